//! Gateways that are all active for a disk.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::scsi::command::{CompareAndWrite, Inquiry};

const LOGICAL_UNIT_RESET: u8 = 5;
const FUNCTION_COMPLETE: u8 = 0;
const RESET_OCCURRED: [u8; 2] = [0x29, 0x03];
const MISCOMPARE: u8 = 0x0e;
/// Long enough for writes that librbd holds back.
const LONG: Duration = Duration::from_secs(60);

/// An image without a lock.
fn create(ceph: &Ceph) {
    ceph.rbd(&["create", "--size", "64M", "--image-feature", "layering", &format!("{POOL}/disk")]);
}

/// Two gateways that serve it at the same time.
fn both(takeover: Duration, ceph: &Ceph, directory: &TempDir) -> [Daemon; 2] {
    [("a", 1), ("b", 2)].map(|(name, group)| {
        let gateway = gateway_with("all", takeover, ceph, directory, name, group);
        // The first one decides: it takes over from nobody.
        wait_until("it serves", || readiness(&mut login_as(&gateway, "probe")).is_none());
        gateway
    })
}

/// A host's block with a number, which it increments by COMPARE AND WRITE, as often as another one lets it.
fn count(gateway: &Daemon, name: &str, times: u64) -> u64 {
    let mut host = login_as(gateway, name);
    let (mut counted, mut lost) = (0, 0);
    while counted < times {
        let old = settled(|| host.read(0, Read16::new(8000, 1), BLOCK as usize).expect("an answer")).data;
        let mut new = old.clone();
        let number = u64::from_be_bytes(*old.first_chunk().expect("a number"));
        new[..8].copy_from_slice(&(number + 1).to_be_bytes());
        let data = [old, new].concat();
        let answer = settled(|| host.write(0, CompareAndWrite::new(8000, 1), &data).expect("an answer"));
        match answer.sense_key() {
            None => counted += 1,
            Some(MISCOMPARE) => lost += 1,
            Some(_) => panic!("{answer:?}"),
        }
    }
    lost
}

#[test]
fn all_gateways_serve_a_disk_at_the_same_time_until_one_dies_or_hangs() {
    let ceph = Ceph::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    create(&ceph);
    let [first, second] = both(TAKEOVER, &ceph, &directory);
    let (mut by_first, mut by_second) = (login(&first), login(&second));
    for host in [&mut by_first, &mut by_second] {
        wait_until("both are active/optimized", || groups(host) == [(1, 0), (2, 0)]);
    }
    for round in 1..100 {
        assert_eq!(write(&mut by_first, 0, round).status, GOOD);
        assert_eq!(read(&mut by_second, 0), [round; BYTES]);
        assert_eq!(write(&mut by_second, 8, round).status, GOOD);
        assert_eq!(read(&mut by_first, 8), [round; BYTES]);
    }
    std::thread::scope(|scope| {
        let counts = [(&first, "one"), (&second, "two")]
            .map(|(gateway, name)| scope.spawn(move || count(gateway, name, 300)));
        let lost = counts.map(|count| count.join().expect("it counted"));
        eprintln!("COMPARE AND WRITE: miscompared {lost:?} times");
    });
    let counter = settled(|| by_first.read(0, Read16::new(8000, 1), BLOCK as usize).expect("an answer")).data;
    assert_eq!(u64::from_be_bytes(*counter.first_chunk().expect("a number")), 600);

    one_dies(first, by_first, &second, &mut by_second);
    let first = gateway_with("all", TAKEOVER, &ceph, &directory, "a", 1);
    let mut by_first = login(&first);
    wait_until("it serves again", || readiness(&mut by_first).is_none());
    // The one that decides, and then the other one.
    one_hangs(&second, &mut by_second, &mut by_first);
    let mut by_second = login(&second);
    one_hangs(&first, &mut by_first, &mut by_second);
    first.stop();
    let mut by_second = login(&second);
    assert_eq!(write(&mut by_second, 0, 1).status, GOOD, "it goes on");
    second.stop();
}

/// The one that decides dies under load by both paths.
fn one_dies(first: Daemon, mut by_first: Initiator, second: &Daemon, by_second: &mut Initiator) {
    assert_eq!(reserve(&mut by_first, REGISTER_AND_IGNORE_EXISTING_KEY, 0, 0, KEY).status, GOOD);
    assert_eq!(reserve(by_second, REGISTER_AND_IGNORE_EXISTING_KEY, 0, 0, KEY).status, GOOD);
    attentions(&mut by_first);
    let has_died = AtomicBool::new(false);
    let writes = std::thread::scope(|scope| {
        let _ends = OnDrop(&has_died);
        let doomed = scope.spawn(|| {
            // Its path fails with the gateway.
            (0..)
                .take_while(|round| {
                    let cdb = write_cdb(1024 + 8 * (round % 64), BYTES, BLOCK, false);
                    let byte = (round / 64) as u8 + 1;
                    by_first.write(0, cdb, &[byte; BYTES]).is_ok_and(|answer| answer.status == GOOD)
                })
                .count() as u64
        });
        let lasting = scope.spawn(|| {
            let mut host = login_as(second, "other");
            let mut rounds = 0;
            // Past the death, and what follows.
            while !has_died.load(Ordering::Relaxed) || rounds % 64 != 0 {
                assert_eq!(write(&mut host, 2048 + 8 * (rounds % 64), (rounds / 64) as u8).status, GOOD);
                rounds += 1;
            }
            rounds
        });
        wait_until("there is load", || read(by_second, 1024 + 8 * 63)[0] > 1);
        first.kill9();
        let answer = change(by_second, KEY + 1);
        has_died.store(true, Ordering::Relaxed);
        assert_eq!(answer.status, GOOD, "{answer:?}");
        (doomed.join().expect("it wrote"), lasting.join().expect("it wrote"))
    });
    let (doomed, lasting) = writes;
    eprintln!("kill -9: {doomed} writes by the gateway that died, {lasting} by the other one");
    // The last one may or may not have landed.
    for block in 0..64 {
        let last = (doomed.saturating_sub(1) - block) / 64;
        let here = read(by_second, 1024 + 8 * block);
        let expected = [last as u8 + 1, (doomed / 64) as u8 + 1];
        assert!(
            here == [expected[0]; BYTES] || (block == doomed % 64 && here == [expected[1]; BYTES]),
            "block {block}"
        );
        assert_eq!(read(by_second, 2048 + 8 * block), [(lasting / 64 - 1) as u8; BYTES]);
    }
}

/// Sets it when it is dropped, also by a panic: whatever waits for it ends.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Registers a key, which is retried as hosts do while it cannot be decided.
fn change(host: &mut Initiator, key: u64) -> Response {
    const IN_TRANSITION: [u8; 2] = [0x04, 0x0a];
    let begin = Instant::now();
    let mut attempts = 0;
    loop {
        let answer = reserve(host, REGISTER_AND_IGNORE_EXISTING_KEY, 0, 0, key);
        attempts += 1;
        if code(&answer) != Some(IN_TRANSITION) || begin.elapsed() > LONG {
            eprintln!("a change was made after {:?}, by attempt {attempts}", begin.elapsed());
            return answer;
        }
    }
}

/// One hangs with writes in progress, and gets more: the other one goes on, and when it continues its writes
/// do not land any more.
fn one_hangs(hung: &Daemon, by_hung: &mut Initiator, by_other: &mut Initiator) {
    let old = |host: &mut Initiator| {
        for lba in 0..16 {
            let cdb = write_cdb(8 * lba, BYTES, BLOCK, false);
            host.issue(0, cdb, 0, vec![0xee; BYTES]).expect("it is sent");
        }
    };
    old(by_hung);
    hung.freeze();
    old(by_hung);
    let answer = change(by_other, KEY + 2);
    assert_eq!(answer.status, GOOD, "{answer:?}");
    for lba in 0..32 {
        assert_eq!(write(by_other, 8 * lba, lba as u8 + 101).status, GOOD);
    }
    hung.signal("CONT");
    wait_until("its sessions have ended", || by_hung.complete_any().is_err());
    wait_until("it is back as another client", || {
        let host = Initiator::login(&hung.lun(0), &Login::named("host"));
        host.is_ok_and(|mut host| {
            host.read(0, TestUnitReady {}, 0).is_ok() && {
                host.read(0, Read16::new(0, 8), BYTES).is_ok_and(|answer| answer.data.len() == BYTES)
            }
        })
    });
    let mut host = login(hung);
    for lba in 0..32 {
        assert_eq!(read(by_other, 8 * lba), [lba as u8 + 101; BYTES], "block {lba}");
        assert_eq!(read(&mut host, 8 * lba), [lba as u8 + 101; BYTES], "block {lba}");
    }
}

/// The image's first blocks, read past the gateways.
fn stored(ceph: &Ceph, directory: &TempDir) -> Vec<u8> {
    let path = directory.path().join("image");
    let image = format!("{POOL}/disk");
    let _ = fs::remove_file(&path);
    ceph.rbd(&["export", "--no-progress", &image, path.to_str().expect("UTF-8")]);
    let mut bytes = fs::read(path).expect("it was exported");
    bytes.truncate(64 * BYTES);
    bytes
}

/// Two hosts with a path through each gateway.
struct Hosts {
    one: [Initiator; 2],
    two: [Initiator; 2],
}

impl Hosts {
    fn new(gateways: &[Daemon; 2]) -> Hosts {
        let paths = |name| [0, 1].map(|path: usize| login_as(&gateways[path], name));
        Hosts { one: paths("one"), two: paths("two") }
    }

    /// The first host reserves the disk for both.
    fn reserve(&mut self) {
        for (host, key) in [(&mut self.one, KEY), (&mut self.two, KEY + 1)] {
            for path in host {
                assert_eq!(reserve(path, REGISTER_AND_IGNORE_EXISTING_KEY, 0, 0, key).status, GOOD);
            }
        }
        assert_eq!(reserve(&mut self.two[0], CLEAR, 0, KEY + 1, 0).status, GOOD);
        for (host, key) in [(&mut self.one, KEY), (&mut self.two, KEY + 1)] {
            for path in host {
                assert_eq!(reserve(path, REGISTER, 0, 0, key).status, GOOD);
            }
        }
        let kind = WRITE_EXCLUSIVE_REGISTRANTS_ONLY;
        assert_eq!(reserve(&mut self.one[0], RESERVE, kind, KEY, 0).status, GOOD);
        self.one.iter_mut().chain(&mut self.two).for_each(|path| drop(attentions(path)));
    }
}

/// The first host's writes that one gateway has in hand do not land after the other one has answered what ends
/// them. Returns the unit attentions that the host gets.
fn in_hand_when(
    (ceph, directory): (&Ceph, &TempDir),
    hosts: &mut Hosts,
    here: usize,
    end: impl FnOnce(&mut Initiator),
) -> Vec<[u8; 2]> {
    const WRITES: u64 = 12;
    let there = 1 - here;
    hosts.reserve();
    let writer = &mut hosts.one[here];
    for lba in 0..WRITES {
        let cdb = write_cdb(8 * lba, BYTES, BLOCK, false);
        writer.issue(0, cdb, 0, vec![0xe0 + here as u8; BYTES]).expect("it is sent");
    }
    // All of them have been received when what follows them is answered.
    let inquiry = writer.issue(0, Inquiry::new(36), 36, vec![]).expect("it is sent");
    let answered = std::iter::repeat_with(|| writer.complete_any().expect("an answer"));
    let ended = answered.take_while(|(tag, _)| *tag != inquiry).count() as u64;
    assert!(ended < WRITES, "all had ended before they could be aborted");
    let begin = Instant::now();
    end(&mut hosts.two[there]);
    eprintln!("{} writes were ended within {:?}", WRITES - ended, begin.elapsed());
    let before = stored(ceph, directory);
    // librbd carries it out after all that it already has.
    assert_eq!(write(&mut hosts.two[here], 8 * 80, 2).status, GOOD);
    assert!(stored(ceph, directory) == before, "a write landed after that");
    attentions(&mut hosts.one[here])
}

#[test]
fn a_preemption_or_reset_by_one_gateway_ends_the_commands_of_the_other_one_before_it_is_answered() {
    let ceph = Ceph::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    create(&ceph);
    // Twelve writes take some seconds.
    ceph.rbd(&["config", "image", "set", &format!("{POOL}/disk"), "rbd_qos_write_iops_limit", "2"]);
    let gateways = both(LONG, &ceph, &directory);
    let mut hosts = Hosts::new(&gateways);
    for here in [0, 1] {
        let kind = WRITE_EXCLUSIVE_REGISTRANTS_ONLY;
        let attentions = in_hand_when((&ceph, &directory), &mut hosts, here, |other| {
            assert_eq!(reserve(other, PREEMPT_AND_ABORT, kind, KEY + 1, KEY).status, GOOD);
        });
        assert!(attentions.contains(&REGISTRATIONS_PREEMPTED), "{attentions:02x?}");
        assert_eq!(write(&mut hosts.one[here], 0, 1).status, RESERVATION_CONFLICT);
        assert_eq!(write(&mut hosts.one[1 - here], 0, 1).status, RESERVATION_CONFLICT);
        let attentions = in_hand_when((&ceph, &directory), &mut hosts, here, |other| {
            assert_eq!(other.manage(LOGICAL_UNIT_RESET, 0, u32::MAX).expect("an answer"), FUNCTION_COMPLETE);
        });
        assert!(attentions.contains(&RESET_OCCURRED), "{attentions:02x?}");
    }
    gateways.into_iter().for_each(|gateway| drop(gateway.stop()));
}

mod soak {
    use super::*;

    #[test]
    fn all_gateways_serve_again_as_new_clients_after_an_outage_of_the_cluster() {
        let ceph = Ceph::start();
        let directory = tempfile::tempdir().expect("a temporary directory");
        create(&ceph);
        let gateways = both(TAKEOVER, &ceph, &directory);
        let mut hosts = [0, 1].map(|nth: usize| login(&gateways[nth]));
        for (host, lba) in hosts.iter_mut().zip([0, 8]) {
            assert_eq!(write(host, lba, 1).status, GOOD);
        }
        ceph.signal_osd("STOP");
        for host in &mut hosts {
            let cdb = write_cdb(16, BYTES, BLOCK, false);
            host.issue(0, cdb, 0, vec![0xee; BYTES]).expect("it is sent");
        }
        for gateway in &gateways {
            wait_until("it has stopped serving", || gateway.log().contains("is now standby"));
        }
        ceph.signal_osd("CONT");
        // After that long, placement groups of an OSD that nobody missed may answer nobody until they peer again.
        ceph.ceph(&["osd", "down", "0"]);
        for (gateway, lba) in gateways.iter().zip([0, 8]) {
            let mut writes = |mut host: Initiator| {
                let mut write = || host.write(0, write_cdb(lba, BYTES, BLOCK, false), &[7; BYTES]);
                (0..4).any(|_| write().is_ok_and(|answer| answer.status == GOOD))
            };
            let log_in = || Initiator::login(&gateway.lun(0), &Login::named("next"));
            wait_until("it serves again", || log_in().is_ok_and(&mut writes));
        }
        for (gateway, lba) in gateways.iter().rev().zip([0, 8]) {
            assert_eq!(read(&mut login(gateway), lba), [7; BYTES]);
        }
        gateways.into_iter().for_each(|gateway| drop(gateway.stop()));
    }
}
