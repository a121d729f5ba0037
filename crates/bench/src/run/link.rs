//! Detects queueing on the way to the target: how long it takes to make a connection, which the target's
//! kernel answers without its threads, with and without load.

use crate::result::LinkWait;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Time between two connections.
const PERIOD: Duration = Duration::from_secs(1);
/// Timeout of a connection.
const PATIENCE: Duration = Duration::from_millis(500);
/// Connections before the load; the fastest counts.
const IDLE_HANDSHAKES: usize = 3;

/// Measures the path to one portal.
pub(super) struct Link {
    portal: SocketAddr,
    idle_us: f64,
    last: Instant,
}

impl Link {
    /// Measures before there is load; `None` if nobody answers.
    pub(super) fn new(portal: SocketAddr) -> Option<Link> {
        let handshakes = (0..IDLE_HANDSHAKES).map_while(|_| handshake_us(portal));
        let idle_us = handshakes.reduce(f64::min)?;
        Some(Link { portal, idle_us, last: Instant::now() })
    }

    /// Measures now, if it is time and the answer comes in time.
    pub(super) fn measure(&mut self) -> Option<LinkWait> {
        if self.last.elapsed() < PERIOD {
            return None;
        }
        self.last = Instant::now();
        handshake_us(self.portal).map(|loaded_us| LinkWait { idle_us: self.idle_us, loaded_us })
    }
}

/// The duration of a TCP handshake: one packet there and one back.
fn handshake_us(portal: SocketAddr) -> Option<f64> {
    let begin = Instant::now();
    TcpStream::connect_timeout(&portal, PATIENCE).ok()?;
    Some(begin.elapsed().as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_portal_is_checked_from_time_to_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let portal = listener.local_addr().unwrap();
        let mut link = Link::new(portal).unwrap();
        link.last -= PERIOD;
        let wait = link.measure().unwrap();
        assert!(wait.idle_us > 0.0 && wait.loaded_us > 0.0, "{wait:?}");
        // Nobody listens at the other end of a connection, and nobody else gets its port meanwhile.
        let client = TcpStream::connect(portal).unwrap();
        assert!(Link::new(client.local_addr().unwrap()).is_none());
    }
}
