//! What a unit's home ends, rolls back and holds back.

use super::support::{TARGET, serve, serve_toml, url};
use engine::Daemon;
use engine::daemon::NotSaved;
use initiator::{Client, Options};
use wire::Cdb;
use wire::scsi::command::{
    ExtendedCopyLid4, Inquiry, ModeSelect6, PersistentReserveIn, PersistentReserveOut, Read10,
    ReceiveCopyStatusLid4, SanitizeBlockErase, TestUnitReady,
};
use wire::scsi::copy::{BlockSegment, CopyListLid4, IdentificationCscd};
use wire::scsi::designator::{association, designators, kind};
use wire::scsi::mode::{Control, Header6};
use wire::scsi::opcode::service_action::{persistent_reserve_in, persistent_reserve_out};
use wire::scsi::parameters::ReserveOutList;
use wire::scsi::status::{CHECK_CONDITION, GOOD};
use wire::scsi::vpd;

fn session(daemon: &Daemon, lun: u16) -> Client {
    let mut client = Client::connect(&url(daemon, lun), &Options::default()).expect("a session");
    client.command(TestUnitReady {}, 0, &[]).expect("TEST UNIT READY");
    client
}

fn status(client: &mut Client, cdb: impl Into<Cdb>, out: &[u8]) -> (u8, Option<u16>) {
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
    let list = |persist| ReserveOutList { action_key: 9, persist, ..ReserveOutList::ZERO }.to_bytes();
    let register = PersistentReserveOut::new(persistent_reserve_out::REGISTER, 0, 24);
    let keys = |client: &mut Client| {
        client
            .command(PersistentReserveIn::new(persistent_reserve_in::READ_KEYS, 64), 64, &[])
            .expect("READ KEYS")
            .data
    };
    assert_eq!(status(&mut client, register, &list(true)), (CHECK_CONDITION, Some(0x4400)));
    assert_eq!(keys(&mut client), [0; 8]);
    assert_eq!(status(&mut client, register, &list(false)), (GOOD, None));
    assert_eq!(keys(&mut client)[7], 8);
    let outcome = daemon.stop();
    assert_eq!(outcome, Err(NotSaved::State), "nobody can say what the directory holds");
}

#[test]
fn an_error_is_reported_when_what_it_ends_has_ended() {
    let daemon = serve(&["ram:16M"]);
    let mut client = session(&daemon, 0);
    let control = Control { no_log_saving: true, reordering: 1, queue_error: 1, ..Control::ZERO };
    let control = [&[0; Header6::BYTES][..], &control.to_page()].concat();
    assert_eq!(status(&mut client, ModeSelect6::new(16), &control), (GOOD, None));
    for _ in 0..10 {
        let beyond = Read10::new(0xff00_0000, 1);
        assert_eq!(status(&mut client, beyond, &[]), (CHECK_CONDITION, Some(0x2100)));
        assert_eq!(status(&mut client, TestUnitReady {}, &[]), (GOOD, None));
    }
    daemon.stop().expect("every core ends in order");
}

/// The unit's NAA name.
fn name(client: &mut Client) -> Vec<u8> {
    let page = client.command(Inquiry::page(vpd::page::IDENTIFICATION, 255), 255, &[]).expect("a reply").data;
    let naa =
        designators(&page[4..]).find(|one| (one.association, one.kind) == (association::UNIT, kind::NAA));
    naa.expect("a unit with a name").bytes.to_vec()
}

#[test]
fn a_copy_ends_with_the_commands_of_the_unit_that_it_writes() {
    let daemon = serve(&["ram:64M", "ram:64M"]);
    let (mut first, mut second) = (session(&daemon, 0), session(&daemon, 1));
    let cscds = [&mut first, &mut second].map(|client| IdentificationCscd::of_naa(&name(client)));
    let segments = [BlockSegment::new((0, 0), (1, 0), u16::MAX); 256];
    let list = CopyListLid4 { immediate: true, list_id: 7, ..CopyListLid4::ZERO }.with(&cscds, &segments);
    assert_eq!(status(&mut first, ExtendedCopyLid4::new(list.len() as u32), &list), (GOOD, None));
    // Eight gibibytes are being cleared.
    assert_eq!(status(&mut second, SanitizeBlockErase::ZERO, &[]), (GOOD, None));
    let results = ReceiveCopyStatusLid4::new(7, 1024);
    let reply = first.command(results, 1024, &[]).expect("a reply");
    assert_eq!((reply.status, reply.data[5]), (GOOD, 0x60), "{:02x?}", reply.data);
    daemon.stop().expect("every core ends in order");
}
