//! What cluster software on hosts sends to a disk, through two gateways and from two hosts.

use super::*;
use std::time::Duration;
use wire::scsi::command::{CompareAndWrite, Inquiry};

const RELEASE: u8 = 2;
const PREEMPT: u8 = 4;
const RESERVATIONS_PREEMPTED: [u8; 2] = [0x2a, 0x03];
const MISCOMPARE: u8 = 0x0e;
const ABORT_TASK: u8 = 1;
const LOGICAL_UNIT_RESET: u8 = 5;
const FUNCTION_COMPLETE: u8 = 0;
const FUNCTION_REJECTED: u8 = 255;
const RESET_OCCURRED: [u8; 2] = [0x29, 0x03];

/// A host with a path through each gateway: the active one first.
struct Host {
    paths: [Initiator; 2],
    key: u64,
}

impl Host {
    fn new(gateways: [&Daemon; 2], name: &str, key: u64) -> Host {
        Host { paths: gateways.map(|gateway| login_as(gateway, name)), key }
    }

    /// PERSISTENT RESERVE OUT on one of its paths, with its key.
    fn reserve(&mut self, path: usize, action: u8, action_key: u64) -> u8 {
        let (kind, key) = (WRITE_EXCLUSIVE_REGISTRANTS_ONLY, self.key);
        reserve(&mut self.paths[path], action, kind, key, action_key).status
    }

    /// Registers all paths, as MPIO does.
    fn register(&mut self) {
        for path in [0, 1] {
            assert_eq!(self.reserve(path, REGISTER_AND_IGNORE_EXISTING_KEY, self.key), GOOD);
        }
    }

    fn write(&mut self, byte: u8) -> u8 {
        write(&mut self.paths[0], 0, byte).status
    }

    fn attentions(&mut self) -> [Vec<[u8; 2]>; 2] {
        [0, 1].map(|path| attentions(&mut self.paths[path]))
    }

    /// Who holds the disk's reservation, as shown on each path.
    fn holders(&mut self) -> [Option<u64>; 2] {
        [0, 1].map(|path| {
            let data = reserved(&mut self.paths[path], 1);
            data.get(8..16).map(|key| u64::from_be_bytes(key.try_into().expect("eight bytes")))
        })
    }
}

/// SET TARGET PORT GROUPS as sg_stpg sends it without options: all groups, with that of the path taking the
/// place of the active one.
fn sg_stpg(host: &mut Initiator, group: u8) -> Response {
    let before = groups(host);
    let state = before.iter().find(|(tag, _)| *tag == group).expect("it is reported").1;
    let mut list = vec![0; 4];
    for (tag, old) in before {
        let new = if tag == group {
            0
        } else if old == 0 {
            state
        } else {
            old
        };
        list.extend([new, 0, 0, tag]);
    }
    settled(|| host.write(0, SetTargetPortGroups::new(list.len() as u32), &list).expect("an answer"))
}

/// The steps of validating a Windows failover cluster; then the disk moves, and their effects persist at the
/// other gateway.
#[test]
fn the_reservations_of_a_windows_cluster_are_validated_by_paths_of_both_gateways() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, _), (second, _)] = two(&ceph, &directory);
    let [mut one, mut two] =
        [("one", KEY), ("two", KEY + 1)].map(|(name, key)| Host::new([&first, &second], name, key));
    let (active, standby) = (0, 1);

    one.register();
    two.register();
    assert_eq!(one.reserve(standby, RESERVE, 0), GOOD);
    assert_eq!(one.reserve(standby, RESERVE, 0), GOOD, "it holds it");
    for path in [active, standby] {
        assert_eq!(two.reserve(path, RESERVE, 0), RESERVATION_CONFLICT);
        assert_eq!(two.reserve(path, RELEASE, 0), GOOD, "without effect");
    }
    wait_until("both paths show the holder", || two.holders() == [Some(KEY); 2]);
    assert_eq!((one.write(1), two.write(2)), (GOOD, GOOD), "both are registered");
    let mut stranger = login_as(&first, "stranger");
    assert_eq!(write(&mut stranger, 0, 3).status, RESERVATION_CONFLICT);

    // The second node challenges the first, which loses the reservation and both registrations.
    one.attentions();
    assert_eq!(two.reserve(standby, PREEMPT, KEY), GOOD);
    wait_until("both paths show the new holder", || two.holders() == [Some(KEY + 1); 2]);
    assert_eq!(keys(&mut two.paths[active]), [KEY + 1; 2]);
    wait_until("the path in standby is notified", || {
        one.attentions()[standby].contains(&REGISTRATIONS_PREEMPTED)
    });
    assert_eq!(one.write(4), RESERVATION_CONFLICT);
    for path in [active, standby] {
        assert_eq!(one.reserve(path, RESERVE, 0), RESERVATION_CONFLICT, "it is not registered");
    }
    one.register();
    assert_eq!(one.write(5), GOOD);

    // All of that persists at the other gateway, to which sg_stpg moves the disk once it has been here for
    // long enough.
    wait_until("the disk has been there for long enough", || {
        sg_stpg(&mut two.paths[standby], 2).status == GOOD
    });
    [&mut one, &mut two].into_iter().for_each(|host| host.paths.swap(active, standby));
    assert_eq!((one.write(6), two.write(7)), (GOOD, GOOD));
    let mut stranger = login_as(&second, "stranger");
    assert_eq!(write(&mut stranger, 0, 8).status, RESERVATION_CONFLICT);
    two.attentions();
    assert_eq!(one.reserve(standby, CLEAR, 0), GOOD);
    assert!(two.attentions()[active].contains(&RESERVATIONS_PREEMPTED));
    wait_until("both paths show that", || two.holders() == [None; 2]);
    assert!(keys(&mut two.paths[active]).is_empty());
    assert_eq!(write(&mut stranger, 0, 9).status, GOOD, "nobody has reserved it");
    first.stop();
    second.stop();
}

/// ESXi's heartbeat: COMPARE AND WRITE of its block from the stamp last written to the next one.
fn heartbeat(host: &mut Initiator, old: u8, new: u8) -> Response {
    let block = BLOCK as usize;
    let data = [vec![old; block], vec![new; block]].concat();
    settled(|| host.write(0, CompareAndWrite::new(64, 1), &data).expect("an answer"))
}

#[test]
fn heartbeats_of_esxi_hosts_are_atomic_by_both_gateways_and_over_a_takeover() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, _), (second, _)] = two(&ceph, &directory);
    let [mut one, mut two] = ["one", "two"].map(|name| Host::new([&first, &second], name, 0));
    let stamp = |host: &mut Initiator| {
        let block = settled(|| host.read(0, Read16::new(64, 1), BLOCK as usize).expect("an answer")).data;
        assert_eq!(block, [block[0]; BLOCK as usize], "all of it is of one host");
        block[0]
    };

    assert_eq!(heartbeat(&mut one.paths[0], 0, 1).status, GOOD);
    assert_eq!(heartbeat(&mut one.paths[0], 1, 2).status, GOOD);
    let other = heartbeat(&mut two.paths[0], 1, 0xb0);
    assert_eq!((other.sense_key(), code(&other)), (Some(MISCOMPARE), Some([0x1d, 0])));
    assert_eq!(code(&heartbeat(&mut two.paths[1], 2, 0xb0)), Some(IN_STANDBY));
    assert_eq!(stamp(&mut two.paths[0]), 2);

    // The gateway dies with a heartbeat outstanding, of which it is unknown whether it was written.
    let data = [[2; BLOCK as usize], [3; BLOCK as usize]].concat();
    one.paths[0].issue(0, CompareAndWrite::new(64, 1), 0, data).expect("it is sent");
    first.kill9();
    wait_until("another gateway is active", || readiness(&mut one.paths[1]).is_none());
    let retried = heartbeat(&mut one.paths[1], 2, 3);
    assert!(retried.status == GOOD || retried.sense_key() == Some(MISCOMPARE), "{retried:?}");
    assert_eq!(stamp(&mut one.paths[1]), 3, "it is its own, either way");
    assert_eq!(heartbeat(&mut two.paths[1], 2, 0xb0).sense_key(), Some(MISCOMPARE));
    assert_eq!(heartbeat(&mut one.paths[1], 3, 4).status, GOOD);
    second.stop();
}

/// The first host's writes that the active gateway has in hand do not land after the second host has ended them
/// by its path in standby. Returns the unit attentions that the first and the second host then get by each path.
fn in_hand_when(begin: impl FnOnce(&mut [Host; 2]), end: impl FnOnce(&mut Host)) -> [[Vec<[u8; 2]>; 2]; 2] {
    const WRITES: u64 = 12;
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    // Those writes take some seconds.
    ceph.rbd(&["config", "image", "set", &format!("{POOL}/disk"), "rbd_qos_write_iops_limit", "2"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, _), (second, _)] = two(&ceph, &directory);
    let mut hosts =
        [("one", KEY), ("two", KEY + 1)].map(|(name, key)| Host::new([&first, &second], name, key));
    begin(&mut hosts);
    let [mut one, mut two] = hosts;
    one.attentions();
    two.attentions();
    for lba in 0..WRITES {
        let cdb = write_cdb(8 * lba, BYTES, BLOCK, false);
        one.paths[0].issue(0, cdb, 0, vec![0xee; BYTES]).expect("it is sent");
    }
    // All of them have been received when what follows them is answered.
    let mut ended = 0;
    let inquiry = one.paths[0].issue(0, Inquiry::new(36), 36, vec![]).expect("it is sent");
    loop {
        let (tag, response) = one.paths[0].complete_any().expect("an answer");
        if tag == inquiry {
            break;
        }
        ended += u64::from(response.status == GOOD);
    }
    end(&mut two);
    // Read past the gateways; then a write that librbd carries out after all that it already has.
    let image = directory.path().join("image");
    ceph.rbd(&["export", "--no-progress", &format!("{POOL}/disk"), &image.display().to_string()]);
    let before = fs::read(image).expect("it is there");
    let notified = two.attentions();
    assert_eq!(write(&mut two.paths[0], 8 * WRITES, 2).status, GOOD);
    // Those that had ended before are answered, the others are not: the unit attention comes next.
    let last = one.paths[0].issue(0, TestUnitReady {}, 0, vec![]).expect("it is sent");
    let attention = loop {
        let (tag, response) = one.paths[0].complete_any().expect("an answer");
        if tag == last {
            break code(&response).expect("a unit attention");
        }
        ended += u64::from(response.status == GOOD);
    };
    assert!(ended < WRITES, "all had ended before they could be aborted");
    for (lba, block) in (0..WRITES).zip(before.chunks(BYTES)) {
        assert!(read(&mut two.paths[0], 8 * lba) == block, "the write to block {lba} landed after that");
    }
    let [mut active, standby] = one.attentions();
    active.insert(0, attention);
    first.stop();
    second.stop();
    [[active, standby], notified]
}

#[test]
fn nothing_that_the_active_gateway_has_in_hand_lands_after_it_was_preempted_by_the_path_in_standby() {
    let begin = |[one, two]: &mut [Host; 2]| {
        one.register();
        two.register();
        assert_eq!(one.reserve(0, RESERVE, 0), GOOD);
    };
    let [one, _] = in_hand_when(begin, |two| assert_eq!(two.reserve(1, PREEMPT_AND_ABORT, KEY), GOOD));
    assert_eq!(one[0][0], REGISTRATIONS_PREEMPTED);
}

#[test]
fn nothing_that_the_active_gateway_has_in_hand_lands_after_a_reset_by_the_path_in_standby() {
    let reset = |host: &mut Host| {
        let outcome = host.paths[1].manage(LOGICAL_UNIT_RESET, 0, u32::MAX).expect("an answer");
        assert_eq!(outcome, FUNCTION_COMPLETE);
    };
    let notified = in_hand_when(|_| {}, reset);
    let once = || vec![RESET_OCCURRED];
    assert_eq!(notified, [[once(), once()], [once(), once()]]);
}

/// Requests of standby gateways in the unit's object.
fn has_requests(ceph: &Ceph) -> bool {
    let object = format!("lunette.c.{POOL}/disk");
    !ceph.command("rados", &["-p", POOL, "get", &object, "-"]).contains("\"requests\":{}")
}

#[test]
fn a_request_that_waits_for_the_active_gateway_is_withdrawn_when_its_sender_aborts_it() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, mut by_first), (second, mut by_second)] =
        two_within(Duration::from_secs(60), &ceph, &directory);
    first.freeze();
    let register = |host: &mut Initiator, key: u64| {
        let list = ReserveOutList { action_key: key, ..ReserveOutList::ZERO }.to_bytes();
        host.issue(0, PersistentReserveOut::new(REGISTER, 0, 24), 0, list.to_vec()).expect("it is sent")
    };
    let task = register(&mut by_second, KEY);
    wait_until("it is in the object", || has_requests(&ceph));
    assert_eq!(by_second.manage(ABORT_TASK, 0, task).expect("an answer"), FUNCTION_COMPLETE);
    wait_until("it is withdrawn", || !has_requests(&ceph));
    let task = register(&mut by_second, KEY + 1);
    wait_until("the next one is in the object", || has_requests(&ceph));
    first.signal("CONT");
    assert_eq!(by_second.complete(task).expect("an answer").status, GOOD);
    assert_eq!(keys(&mut by_first), [KEY + 1]);
    first.stop();
    second.stop();
}

/// LOGICAL UNIT RESET, of which the answer is yet to come.
fn ask_to_reset(host: &mut Initiator) -> u32 {
    host.ask_to_manage(LOGICAL_UNIT_RESET, 0, u32::MAX).expect("it is sent")
}

#[test]
fn a_reset_that_waits_for_the_active_gateway_is_withdrawn_when_its_session_ends_and_no_login_waits_for_it() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    // It would be withdrawn after two minutes.
    let [(first, mut by_first), (second, mut by_second)] =
        two_within(Duration::from_secs(60), &ceph, &directory);
    attentions(&mut by_first);
    first.freeze();
    let reset = ask_to_reset(&mut by_second);
    wait_until("it is in the object", || has_requests(&ceph));
    let mut other = login_as(&second, "other");
    assert_eq!(readiness(&mut other), Some(IN_STANDBY));
    assert!(!by_second.has_ended(reset));
    // Reinstates the session.
    let mut by_second = login(&second);
    assert_eq!(readiness(&mut by_second), Some(IN_STANDBY));
    wait_until("it is withdrawn", || !has_requests(&ceph));
    first.signal("CONT");
    assert_eq!(reserve(&mut by_second, REGISTER, 0, 0, KEY).status, GOOD);
    assert!(attentions(&mut by_first).is_empty(), "there was no reset");
    first.stop();
    second.stop();
}

#[test]
fn a_reset_waits_for_the_next_gateway_and_is_rejected_when_the_cluster_stays_away() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, _), (second, mut by_second)] = two(&ceph, &directory);
    let mut other = login_as(&second, "other");
    let resets = |host: &mut Initiator| attentions(host).iter().filter(|one| **one == RESET_OCCURRED).count();
    resets(&mut other);
    first.freeze();
    let outcome = by_second.manage(LOGICAL_UNIT_RESET, 0, u32::MAX).expect("an answer");
    assert_eq!(outcome, FUNCTION_COMPLETE);
    assert_eq!(readiness(&mut by_second), None, "it is active");
    assert_eq!(resets(&mut other), 1);
    first.signal("CONT");
    // Its sessions end when it notices that it was fenced.
    let is_in_standby = |mut host: Initiator| {
        let mut ready = || host.read(0, TestUnitReady {}, 0);
        (0..4).any(|_| ready().is_ok_and(|answer| code(&answer) == Some(IN_STANDBY)))
    };
    let log_in = || Initiator::login(&first.lun(0), &Login::named("next"));
    wait_until("the other one is in standby", || log_in().is_ok_and(is_in_standby));
    let mut by_first = login(&first);

    ceph.signal_osd("STOP");
    let reset = ask_to_reset(&mut by_first);
    assert_eq!(readiness(&mut login_as(&first, "other")), Some(IN_STANDBY));
    assert_eq!(by_first.complete(reset).expect("an answer").status, FUNCTION_REJECTED);
    ceph.signal_osd("CONT");
    // After that long, placement groups of an OSD that nobody missed may answer nobody until they peer again.
    ceph.ceph(&["osd", "down", "0"]);
    wait_until("one is active again", || {
        [&first, &second].into_iter().any(|one| readiness(&mut login_as(one, "last")).is_none())
    });
    first.stop();
    second.stop();
}
