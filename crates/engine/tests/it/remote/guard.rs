//! What a unit's home ends, undoes and holds back.

use super::support::{TARGET, serve, serve_toml, url};
use engine::Daemon;
use engine::daemon::NotKept;
use initiator::{Client, Options};
use wire::scsi::status::{CHECK_CONDITION, GOOD};

fn session(daemon: &Daemon, lun: u16) -> Client {
    let mut client = Client::connect(&url(daemon, lun), &Options::default()).expect("a session");
    client.command(&[0; 6], 0, &[]).expect("TEST UNIT READY");
    client
}

fn status(client: &mut Client, cdb: &[u8], out: &[u8]) -> (u8, Option<u16>) {
    let reply = client.command(cdb, 0, out).expect("a reply");
    (reply.status, reply.sense.map(|sense| sense.code()))
}

#[test]
fn a_registration_that_cannot_be_kept_is_not_made() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let state = dir.path().join("state");
    let daemon = serve_toml(&format!(
        "state_dir = {:?}\n[[lun]]\nname = \"a\"\nram = \"16M\"\nserial = \"S\"\n[[target]]\nname = \"{TARGET}\"\nluns = [\"a\"]\n[[target.group]]\nname = \"all\"\n",
        state.display()
    ));
    let mut client = session(&daemon, 0);
    std::fs::remove_dir_all(&state).expect("the state directory goes");
    let list = |flags: u8| [&[0; 8][..], &[0, 0, 0, 0, 0, 0, 0, 9], &[0, 0, 0, 0, flags, 0, 0, 0]].concat();
    let register = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let keys = |client: &mut Client| {
        client.command(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64, &[]).expect("READ KEYS").data
    };
    assert_eq!(status(&mut client, &register, &list(1)), (CHECK_CONDITION, Some(0x4400)));
    assert_eq!(keys(&mut client), [0; 8]);
    assert_eq!(status(&mut client, &register, &list(0)), (GOOD, None));
    assert_eq!(keys(&mut client)[7], 8);
    let outcome = daemon.stop();
    assert_eq!(outcome, Err(NotKept::State), "nobody can say what the directory holds");
}

#[test]
fn an_error_is_reported_when_what_it_ends_has_ended() {
    let daemon = serve(&["ram:16M"]);
    let mut client = session(&daemon, 0);
    let control = [0, 0, 0, 0, 0x0a, 0x0a, 0x02, 0x12, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(status(&mut client, &[0x15, 0x10, 0, 0, 16, 0], &control), (GOOD, None));
    for _ in 0..10 {
        let beyond = [0x28, 0, 0xff, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(status(&mut client, &beyond, &[]), (CHECK_CONDITION, Some(0x2100)));
        assert_eq!(status(&mut client, &[0; 6], &[]), (GOOD, None));
    }
    daemon.stop().expect("every core ends in order");
}

/// The unit's NAA name.
fn name(client: &mut Client) -> Vec<u8> {
    let page = client.command(&[0x12, 1, 0x83, 0, 255, 0], 255, &[]).expect("a reply").data;
    let mut rest = &page[4..];
    while let [set, kind, _, len, ..] = *rest {
        let (designator, next) = rest[4..].split_at(len.into());
        if (set & 0x0f, kind & 0x3f) == (1, 3) {
            return designator.to_vec();
        }
        rest = next;
    }
    panic!("a unit without a name");
}

#[test]
fn a_copy_ends_with_the_commands_of_the_unit_that_it_writes() {
    let daemon = serve(&["ram:64M", "ram:64M"]);
    let (mut first, mut second) = (session(&daemon, 0), session(&daemon, 1));
    let cscd = |name: Vec<u8>| {
        let mut cscd = [&[0xe4, 0, 0, 0, 0x01, 0x03, 0, name.len() as u8][..], &name].concat();
        cscd.resize(30, 0);
        cscd.extend([2, 0]);
        cscd
    };
    let segment = [&[0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 255, 255][..], &[0; 16]].concat().repeat(256);
    let mut list = vec![1, 0, 0, 0x20];
    list.resize(15, 0);
    list.extend([1, 0xff, 0, 0, 0, 0, 0, 0, 7]);
    list.resize(42, 0);
    list.extend(64u16.to_be_bytes());
    list.extend((segment.len() as u16).to_be_bytes());
    list.extend([0; 2]);
    let list = [list, cscd(name(&mut first)), cscd(name(&mut second)), segment].concat();
    let mut copy = vec![0x83, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    copy.extend((list.len() as u32).to_be_bytes());
    copy.extend([0, 0]);
    assert_eq!(status(&mut first, &copy, &list), (GOOD, None));
    // Eight gibibytes are on their way.
    assert_eq!(status(&mut second, &[0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0], &[]), (GOOD, None));
    let results = [0x84, 5, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
    let reply = first.command(&results, 1024, &[]).expect("a reply");
    assert_eq!((reply.status, reply.data[5]), (GOOD, 0x60), "{:02x?}", reply.data);
    daemon.stop().expect("every core ends in order");
}
