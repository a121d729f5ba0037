//! Sessions whose connection is not established yet.

use super::*;
use reactor::io::Wait;
use reactor::memory::Arena;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

/// A session that connects to a target at this address.
fn start(address: SocketAddr) -> (Uring, Session) {
    let url: Url = format!("iscsi://{address}/iqn.2026-11.a:b/0").parse().expect("a URL");
    let waker = Waker::new().expect("a waker");
    let mut io = Uring::new(Arena::new(1 << 20).expect("memory"), waker).expect("an io_uring");
    let addresses = vec![Destination::Address(address)];
    let mut session = Session::new::<Uring>(url, addresses, Options::default(), Tag(0));
    session.start(&mut io);
    (io, session)
}

#[test]
fn a_session_that_ends_while_it_connects_leaves_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it does not block");
    let address = listener.local_addr().expect("an address");
    let (mut io, mut session) = start(address);
    let (mut completions, mut finished) = (Vec::new(), Vec::new());
    session.close(&mut io, &mut finished);
    assert!(!session.is_closed(), "the kernel has yet to say how the connection has ended");
    while !session.is_closed() {
        io.turn(Wait::Forever, &mut completions);
        completions.drain(..).for_each(|completion| session.completed(&mut io, completion, &mut finished));
    }
    match listener.accept() {
        Ok((mut connection, _)) => {
            connection.set_nonblocking(false).expect("it blocks");
            let end = connection.read(&mut [0]);
            assert!(end.is_ok_and(|bytes| bytes == 0), "it was closed");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
    }
}

/// A target that redirects the first login that it gets to this address.
fn redirect(listener: &TcpListener, to: &str) {
    let (mut connection, _) = listener.accept().expect("a connection");
    let mut request = [0; 48];
    connection.read_exact(&mut request).expect("a login request");
    let mut text = format!("TargetAddress={to}\0").into_bytes();
    let mut response = [0; 48];
    // Of the login request it repeats ISID and task tag; it says "target moved temporarily".
    (response[0], response[7], response[36], response[37]) = (0x23, text.len() as u8, 1, 1);
    response[8..14].copy_from_slice(&request[8..14]);
    response[16..20].copy_from_slice(&request[16..20]);
    text.resize(text.len().next_multiple_of(4), 0);
    connection.write_all(&[&response[..], &text].concat()).expect("it is sent");
    // Until the initiator has closed it.
    let _ = connection.read_to_end(&mut Vec::new());
}

#[test]
fn a_redirection_to_the_name_of_a_host_is_followed() {
    let first = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = first.local_addr().expect("an address");
    let port = TcpListener::bind("localhost:0").and_then(|any| any.local_addr()).expect("a port").port();
    let named: Vec<TcpListener> = ("localhost", port)
        .to_socket_addrs()
        .expect("it resolves")
        .filter_map(|address| TcpListener::bind(address).ok())
        .collect();
    named.iter().for_each(|one| one.set_nonblocking(true).expect("it does not block"));
    let target = std::thread::spawn(move || redirect(&first, &format!("localhost:{port}")));
    let (mut io, mut session) = start(address);
    let (mut completions, mut finished) = (Vec::new(), Vec::new());
    while !named.iter().any(|one| one.accept().is_ok()) {
        io.turn(Wait::AtMost(Duration::from_millis(10)), &mut completions);
        completions.drain(..).for_each(|completion| session.completed(&mut io, completion, &mut finished));
        session.tick(&mut io, &mut finished);
        assert_eq!(session.failure(), None);
    }
    target.join().expect("it has redirected the login");
}
