//! Bare connections to a daemon, for tests of peers that do not log in properly.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A peer that is refused must notice within this time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Connects.
pub fn connect(portal: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(portal).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Connects from this address.
pub fn connect_from(source: &str, portal: SocketAddr) -> TcpStream {
    // Daemons of other tests must not inherit it: some have few descriptors.
    let socket =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&socket, &source.parse::<SocketAddr>().expect("an address")).expect("an address of this host");
    rustix::net::connect(&socket, &portal).expect("a connection");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// The daemon sends at most a few bytes and closes.
pub fn assert_hung_up(stream: &mut TcpStream) {
    let mut words = Vec::new();
    match stream.take(4096).read_to_end(&mut words) {
        Ok(_) => assert!(words.len() < 4096, "the daemon talks on"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the daemon neither answers nor closes")
        }
    }
}
