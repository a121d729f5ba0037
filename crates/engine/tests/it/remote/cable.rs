//! A relay between an initiator and a target: it can be cut, and hold back what one side has sent.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Replaced in what passes, so that the target does not identify itself as Lunette.
const VENDOR: &[u8; 8] = b"LUNETTE ";
const OTHER_VENDOR: &[u8; 8] = b"SOMEBODY";

/// A relay to a target.
pub struct Cable {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The target's address.
    to: Option<SocketAddr>,
    hides_vendor: bool,
    /// Text requests are answered with rejections.
    rejects_text: bool,
    /// Connections are closed instead of relayed.
    is_closed: bool,
    /// A connection on which this is sent is held up, forever or until it is `None`.
    held: Option<Vec<u8>>,
    /// A connection is held up.
    is_holding: bool,
    sockets: Vec<TcpStream>,
}

impl Cable {
    pub fn to(target: SocketAddr) -> Cable {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        shared.state().to = Some(target);
        let relay = shared.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                relay.connect(socket);
            }
        });
        Cable { address, shared }
    }

    /// The same, but the target looks like another vendor's.
    pub fn to_foreign(target: SocketAddr) -> Cable {
        let cable = Cable::to(target);
        cable.shared.state().hides_vendor = true;
        cable
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same, but the target rejects all text requests.
    pub fn rejecting_text_requests(target: SocketAddr) -> Cable {
        let cable = Cable::to(target);
        cable.shared.state().rejects_text = true;
        cable
    }

    /// Breaks all connections, and lets no new ones through.
    pub fn part(&self) {
        self.shared.state().is_closed = true;
        self.cut();
    }

    /// Breaks all connections; new ones go through.
    pub fn cut(&self) {
        for socket in self.shared.state().sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// From now on a connection on which an initiator sends these bytes is held up, and new ones are refused.
    pub fn hold(&self, bytes: &[u8]) {
        let mut state = self.shared.state();
        (state.held, state.is_closed) = (Some(bytes.to_vec()), true);
    }

    /// Waits until something is held.
    pub fn wait_until_held(&self) {
        let state = self.shared.state();
        drop(self.shared.changed.wait_while(state, |state| !state.is_holding).expect("a state"));
    }

    /// Releases what is held.
    pub fn let_go(&self) {
        self.shared.state().held = None;
        self.shared.changed.notify_all();
    }

    /// Lets new connections through.
    pub fn reopen(&self) {
        self.shared.state().is_closed = false;
    }
}

impl State {
    /// Alters what the target has sent.
    fn falsify(&self, data: &mut [u8]) {
        const TEXT_REQUEST: u8 = 0x04;
        const TEXT_RESPONSE: u8 = 0x24;
        const REJECT: u8 = 0x3f;
        while let Some(at) = data.windows(8).position(|part| self.hides_vendor && part == VENDOR) {
            data[at..at + 8].copy_from_slice(OTHER_VENDOR);
        }
        if self.rejects_text && data.len() > 96 && data[0] == TEXT_RESPONSE {
            (data[0], data[48]) = (REJECT, TEXT_REQUEST);
            data[16..20].fill(0xff);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    fn connect(self: &Arc<Self>, near: TcpStream) {
        let mut state = self.state();
        let Some(to) = state.to.filter(|_| !state.is_closed) else { return };
        let Ok(far) = TcpStream::connect(to) else { return };
        let both = || [near.try_clone().expect("a socket"), far.try_clone().expect("a socket")];
        state.sockets.extend(both());
        drop(state);
        for ([from, to], is_out) in [
            (both(), true),
            (
                {
                    let [near, far] = both();
                    [far, near]
                },
                false,
            ),
        ] {
            let shared = self.clone();
            std::thread::spawn(move || shared.pump(from, to, is_out));
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, is_out: bool) {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let len = from.read(&mut buffer).unwrap_or(0);
            let data = &mut buffer[..len];
            if is_out {
                let mut state = self.state();
                let is_held = |state: &State| {
                    state.held.as_ref().is_some_and(|held| data.windows(held.len()).any(|part| part == held))
                };
                if len > 0 && is_held(&state) {
                    state.is_holding = true;
                    self.changed.notify_all();
                    drop(self.changed.wait_while(state, |state| state.held.is_some()).expect("a state"));
                }
            } else {
                self.state().falsify(data);
            }
            if len == 0 || to.write_all(data).is_err() {
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}
