//! Sessions whose connection is not established yet.

use super::*;
use reactor::io::Wait;
use reactor::memory::Arena;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::io::{ErrorKind, Read};
use std::net::TcpListener;

#[test]
fn a_session_that_ends_while_it_connects_leaves_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it does not block");
    let address = listener.local_addr().expect("an address");
    let url: Url = format!("iscsi://{address}/iqn.2026-11.a:b/0").parse().expect("a URL");
    let waker = Waker::new().expect("a waker");
    let mut io = Uring::new(Arena::new(1 << 20).expect("memory"), waker).expect("an io_uring");
    let addresses = vec![Destination::Address(address)];
    let mut session = Session::new::<Uring>(url, addresses, Options::default(), Tag(0));
    let (mut completions, mut finished) = (Vec::new(), Vec::new());
    session.start(&mut io);
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
