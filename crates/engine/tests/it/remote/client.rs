//! One session, and commands one after another.

use super::cable::Cable;
use super::support::{TARGET, scheme, serve, serve_toml, short_timeouts, sums, target_of, url, url_with};
use config::Url;
use initiator::client::CommandError;
use initiator::{Client, Options, discover};
use std::net::TcpStream;
use wire::scsi::command::{Inquiry, Read10, Write10};

const INQUIRY: Inquiry = Inquiry::new(96);
const WRITE: Write10 = Write10::new(8, 384);
const READ: Read10 = Read10::new(8, 384);

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn round_trip(client: &mut Client) {
    let data = pattern(0x180 * 512);
    let reply = client.command(WRITE, 0, &data).expect("a reply");
    assert_eq!((reply.status, reply.sense), (0, None));
    let reply = client.command(READ, 0x180 * 512, &[]).expect("a reply");
    assert!(reply.status == 0 && reply.data == data);
}

#[test]
fn commands_are_answered_with_data_and_sense() {
    let daemon = serve(&["ram:16M"]);
    let mut client = Client::connect(&url(&daemon, 0), &Options::default()).expect("a session");
    let reply = client.command(INQUIRY, 96, &[]).expect("a reply");
    assert_eq!(reply.status, 0);
    assert!(reply.data.len() >= 36 && &reply.data[8..15] == b"LUNETTE", "{:?}", reply.data);
    round_trip(&mut client);
    let beyond = Read10::new(0xff00_0000, 1);
    let reply = client.command(beyond, 512, &[]).expect("a reply");
    assert_eq!((reply.status, reply.sense.map(|sense| sense.code())), (2, Some(0x2100)));
    assert_eq!(client.command(READ, 1 << 20, &[]), Err(CommandError::TooLong));
    drop(client);
    daemon.stop().expect("every core ends in order");
}

#[test]
fn all_transports_are_spoken_on_one_port() {
    let daemon = serve(&["ram:16M"]);
    let connect = |scheme| {
        let (address, target) = (daemon.addresses()[0], target_of(scheme));
        let url: Url = format!("{scheme}://{address}/{target}/0").parse().expect("a URL");
        Client::connect(&url, &Options::default()).expect("a session")
    };
    let mut clients = ["iscsi", "iser", "srp"].map(connect);
    for writer in 0..clients.len() {
        round_trip(&mut clients[writer]);
        for client in &mut clients {
            let there = client.command(READ, 0x180 * 512, &[]).expect("a reply");
            assert!(there.data == pattern(0x180 * 512));
        }
        let zeros = clients[writer].command(WRITE, 0, &[0; 0x180 * 512]).expect("a reply");
        assert_eq!(zeros.status, 0);
    }
    let is_rdma = |client: &Client| client.negotiated().map(|negotiated| negotiated.rdma.is_some());
    assert_eq!(clients.each_ref().map(is_rdma), [Some(false), Some(true), None]);
    drop(clients);
    daemon.stop().expect("every core ends in order");
}

#[test]
fn srp_writes_inside_commands_and_by_rdma_read() {
    let daemon = serve(&["ram:16M"]);
    for options in ["", "?imm=off", "?crc=on", "?imm=off&crc=on"] {
        let url: Url = format!("srp://{}/{}/0{options}", daemon.addresses()[0], target_of("srp"))
            .parse()
            .expect("a URL");
        let mut client = Client::connect(&url, &Options::default()).expect("a session");
        for blocks in [1, 8, 16, 17, 128, 512] {
            let data = pattern(usize::from(blocks) * 512);
            assert_eq!(client.command(Write10::new(8, blocks), 0, &data).expect("a reply").status, 0);
            let reply =
                client.command(Read10::new(8, blocks), u32::from(blocks) * 512, &[]).expect("a reply");
            assert!(reply.data == data, "{options} {blocks}");
        }
    }
}

#[test]
fn a_daemon_that_is_dropped_accepts_nothing_of_another() {
    for _ in 0..8 {
        let dropped = serve_toml(
            "[[lun]]\nname = \"a\"\nram = \"16M\"\n[[target]]\nname = \"iqn.2026-11.org.example:other\"\nluns = [\"a\"]\n",
        );
        let its = dropped.addresses()[0];
        drop(dropped);
        let daemon = serve(&["ram:16M"]);
        // Whether or not it is still received.
        let _ = TcpStream::connect(its);
        for _ in 0..4 {
            Client::connect(&url(&daemon, 0), &Options::default()).expect("a session");
        }
        daemon.stop().expect("every core ends in order");
    }
}

#[test]
fn digests_are_requested_by_url() {
    let daemon = serve(&["ram:16M"]);
    let url = url_with(&daemon, "", 0, sums());
    let mut client = Client::connect(&url, &Options::default()).expect("a session");
    let has_digests =
        client.negotiated().map(|negotiated| negotiated.header_digest && negotiated.data_digest);
    let expected = [("iscsi", Some(true)), ("iser", Some(false)), ("srp", None)];
    assert!(expected.contains(&(scheme().as_str(), has_digests)));
    round_trip(&mut client);
}

#[test]
fn both_sides_authenticate() {
    let daemon = serve_toml(&format!(
        "[[lun]]\nname = \"a\"\nram = \"16M\"\n[[target]]\nname = \"{TARGET}\"\nluns = [\"a\"]\n[[target.group]]\n\
         name = \"all\"\n[target.group.chap]\nuser = \"me\"\nsecret = \"secret of me\"\nmutual_user = \"it\"\n\
         mutual_secret = \"secret of it\""
    ));
    let connect = |login, options| Client::connect(&url_with(&daemon, login, 0, options), &short_timeouts());
    if scheme() == "srp" {
        let refused = connect("", "").err().expect("SRP has no CHAP").to_string();
        return assert!(refused.contains("does not admit this initiator"), "{refused}");
    }
    round_trip(&mut connect("me%secret%20of%20me@", "").expect("a session"));
    let mutual = "?target_user=it&target_password=secret%20of%20it";
    round_trip(&mut connect("me%secret%20of%20me@", mutual).expect("a session"));
    let refused = connect("me%wrong@", "").err().expect("no session").to_string();
    assert!(refused.contains("authentication"), "{refused}");
    let refused = connect("me%secret%20of%20me@", "?target_user=it&target_password=other").err();
    assert!(refused.is_some());
    assert!(connect("", "").is_err());
}

#[test]
fn targets_are_discovered() {
    let daemon = serve(&["ram:16M"]);
    let address = daemon.addresses()[0];
    let url: Url = format!("{}://{address}", scheme()).parse().expect("a URL");
    let found = discover(&url, &Options::default());
    if scheme() == "srp" {
        return assert!(found.expect_err("SRP has no discovery").to_string().contains("for its GUID"));
    }
    let found = found.expect("an answer");
    assert_eq!(found, [(TARGET.to_string(), vec![format!("{address},1")])]);
}

#[test]
fn a_target_that_rejects_discovery_is_not_waited_for() {
    let daemon = serve(&["ram:16M"]);
    let cable = Cable::rejecting_text_requests(daemon.addresses()[0]);
    let url: Url = format!("iscsi://{}", cable.address()).parse().expect("a URL");
    let fault = discover(&url, &Options::default()).expect_err("no answer").to_string();
    assert!(fault.contains("rejected the text request"), "{fault}");
}

#[test]
fn faults_name_the_target_and_the_reason() {
    let daemon = serve(&["ram:16M"]);
    let there = url(&daemon, 0);
    let (name, reason) = match scheme().as_str() {
        "srp" => ("0123456789abcdef", "no such target port"),
        _ => ("iqn.2026-11.io.lunette:other", "not found"),
    };
    let other = Url { target: Some(name.into()), ..there.clone() };
    let fault = Client::connect(&other, &short_timeouts()).err().expect("no session").to_string();
    assert!(fault.contains(name) && fault.contains(reason), "{fault}");
    let mut client = Client::connect(&there, &short_timeouts()).expect("a session");
    daemon.stop().expect("every core ends in order");
    let fault = Client::connect(&there, &short_timeouts()).err().expect("no session").to_string();
    assert!(fault.contains("refused"), "{fault}");
    assert!(matches!(client.command(READ, 0x180 * 512, &[]), Err(CommandError::Lost(_))));
}
