//! Eight gateways of one disk, and several hosts with a path through each.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const GATEWAYS: usize = 8;
const WRITERS: u64 = 3;
const TAKEOVER: Duration = Duration::from_secs(10);
/// How long a host waits for the outcome of a write before it repeats it by another path (docs/cluster.md).
const PATH_TIMEOUT: Duration = Duration::from_secs(2 * TAKEOVER.as_secs() + 10);
/// How long a write may take in all.
const PATIENCE: Duration = Duration::from_secs(180);
const NOT_READY: u8 = 2;
const ABORTED_COMMAND: u8 = 0x0b;
/// Blocks of a writer's part of the disk.
const BLOCKS: u64 = 64;

/// The gateways, of which each listens elsewhere after a restart.
struct Gateways<'a> {
    access: &'static str,
    ceph: &'a Ceph,
    directory: &'a TempDir,
    daemons: Vec<Option<Daemon>>,
    /// Where they are, for the hosts.
    urls: &'a Urls,
}

/// `None`: it does not run.
type Urls = Mutex<[Option<Url>; GATEWAYS]>;

impl Gateways<'_> {
    /// Starts one, and waits until it takes part.
    fn start(&mut self, nth: usize) {
        let name = format!("gw{nth}");
        let group = nth as u16 + 1;
        let daemon = gateway_with(self.access, TAKEOVER, self.ceph, self.directory, &name, group);
        let mut probe = login_as(&daemon, "probe");
        let is_first = self.daemons.iter().all(Option::is_none);
        wait_until("it takes part", || {
            let code = readiness(&mut probe);
            code.is_none() || self.access == "one" && !is_first && code == Some(IN_STANDBY)
        });
        wait_until_it_knows_the_state(&mut probe);
        self.urls.lock().expect("no panic")[nth] = Some(daemon.lun(0));
        self.daemons[nth] = Some(daemon);
    }

    fn take(&mut self, nth: usize) -> Daemon {
        self.urls.lock().expect("no panic")[nth] = None;
        self.daemons[nth].take().expect("it runs")
    }

    /// A session with each.
    fn sessions(&self, name: &str) -> Vec<Initiator> {
        self.daemons.iter().flatten().map(|daemon| login_as(daemon, name)).collect()
    }
}

/// A host with a path through each gateway.
struct Host<'a> {
    name: String,
    /// Whether another path may be tried at once when one has failed.
    is_hasty: bool,
    urls: &'a Urls,
    paths: [Option<(SocketAddr, Initiator)>; GATEWAYS],
    /// The path in use.
    current: usize,
}

impl<'a> Host<'a> {
    fn new(name: &str, access: &str, urls: &'a Urls) -> Host<'a> {
        let paths = std::array::from_fn(|_| None);
        Host { name: name.to_owned(), is_hasty: access == "one", urls, paths, current: 0 }
    }

    fn next(&mut self) {
        self.current = (self.current + 1) % GATEWAYS;
    }

    /// The current path, if its gateway can be reached.
    fn path(&mut self) -> Option<&mut Initiator> {
        let url = self.urls.lock().expect("no panic")[self.current].clone()?;
        let path = &mut self.paths[self.current];
        if path.as_ref().is_none_or(|(portal, _)| *portal != url.portal) {
            *path = None;
            *path = Some((url.portal, Initiator::login(&url, &Login::named(&self.name)).ok()?));
        }
        path.as_mut().map(|(_, session)| session)
    }

    /// The answer of the first path that executes it.
    fn run(&mut self, mut command: impl FnMut(&mut Initiator) -> std::io::Result<Response>) -> Response {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "{}: no path executes the command", self.name);
            let sent = Instant::now();
            match self.path().map(&mut command) {
                Some(Ok(answer)) => match answer.sense_key() {
                    Some(UNIT_ATTENTION) => {}
                    Some(NOT_READY | ABORTED_COMMAND) => self.next(),
                    _ => return answer,
                },
                Some(Err(_)) => {
                    self.paths[self.current] = None;
                    self.next();
                    if !self.is_hasty {
                        thread::sleep(PATH_TIMEOUT.saturating_sub(sent.elapsed()));
                    }
                }
                None => {
                    self.next();
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Registers a key by all paths.
    fn register(&mut self, key: u64) {
        for nth in 0..GATEWAYS {
            self.current = nth;
            let path = self.path().expect("its gateway runs");
            assert_eq!(reserve(path, REGISTER_AND_IGNORE_EXISTING_KEY, 0, 0, key).status, GOOD);
        }
    }

    fn write(&mut self, lba: u64, data: &[u8]) -> Response {
        self.run(|path| path.write(0, write_cdb(lba, BYTES, BLOCK, false), data))
    }

    fn read(&mut self, lba: u64) -> Vec<u8> {
        let answer = self.run(|path| path.read(0, Read16::new(lba, BYTES as u32 / BLOCK), BYTES));
        assert_eq!(answer.status, GOOD, "{answer:?}");
        answer.data
    }
}

/// The content of a block after this many writes to it.
fn content(writer: u64, block: u64, writes: u64) -> Vec<u8> {
    [writer, block, writes, !writes].iter().flat_map(|word| word.to_be_bytes()).cycle().take(BYTES).collect()
}

fn lba(writer: u64, block: u64) -> u64 {
    8 * (BLOCKS * writer + block)
}

/// Writes all blocks again and again, each by another path if all serve, and reads all of them by other paths
/// before the next round. Returns how many rounds were complete.
fn writes(host: &mut Host<'_>, writer: u64, rounds: &AtomicU64, is_over: &AtomicBool) -> u64 {
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        for block in 0..BLOCKS {
            let answer = host.write(lba(writer, block), &content(writer, block, round));
            assert_eq!(answer.status, GOOD, "{answer:?}");
            if !host.is_hasty {
                host.next();
            }
        }
        for block in 0..BLOCKS {
            let data = host.read(lba(writer, block));
            assert!(data == content(writer, block, round), "block {block} in round {round} of {}", host.name);
            if !host.is_hasty {
                host.next();
            }
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    round
}

/// Waits until the writers have made progress from here on.
fn wait_for_rounds(rounds: &[AtomicU64]) {
    let before: Vec<u64> = rounds.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let begin = Instant::now();
    while rounds.iter().zip(&before).any(|(count, before)| count.load(Ordering::Relaxed) < before + 2) {
        assert!(begin.elapsed() < PATIENCE, "a writer is stuck");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sets it when it is dropped, also by a panic: the writers end.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each gateway shows these registrations, at once if all serve.
fn all_show(gateways: &Gateways<'_>, expected: &[u64]) {
    for (nth, path) in gateways.sessions("probe").iter_mut().enumerate() {
        let mut shown = || {
            let mut keys = keys(path);
            keys.sort_unstable();
            keys
        };
        match gateways.access {
            "one" => wait_until("all registrations are shown", || shown() == expected),
            _ => assert_eq!(shown(), expected, "by gateway {nth}"),
        }
    }
}

/// A host whose writes are on their way is preempted by another one: nothing of it lands afterwards.
fn one_host_is_preempted(gateways: &Gateways<'_>, by: &mut Host<'_>, key: u64) {
    const AT: u64 = 8 * BLOCKS * WRITERS;
    let mut victim = Host::new("victim", gateways.access, gateways.urls);
    victim.register(KEY + 99);
    let mut paths = gateways.sessions("victim");
    for (nth, path) in (0..).zip(&mut paths) {
        attentions(path);
        for write in 0..8 {
            let cdb = write_cdb(AT + 8 * (8 * nth + write), BYTES, BLOCK, false);
            path.issue(0, cdb, 0, vec![0xee; BYTES]).expect("it is sent");
        }
    }
    by.current = GATEWAYS - 1;
    let path = by.path().expect("its gateway runs");
    let kind = WRITE_EXCLUSIVE_REGISTRANTS_ONLY;
    assert_eq!(reserve(path, PREEMPT_AND_ABORT, kind, key, KEY + 99).status, GOOD);
    let mut stored = || -> Vec<_> { (0..8 * GATEWAYS as u64).map(|block| by.read(AT + 8 * block)).collect() };
    let before = stored();
    for mut path in gateways.sessions("victim") {
        let status = write(&mut path, AT, 0xdd).status;
        let is_refused = status == RESERVATION_CONFLICT;
        assert!(is_refused || gateways.access == "one" && readiness(&mut path) == Some(IN_STANDBY));
    }
    assert!(stored() == before, "a write landed after that");
}

fn play(ceph: &Ceph, access: &'static str) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let urls = Urls::default();
    let daemons = std::iter::repeat_with(|| None).take(GATEWAYS).collect();
    let mut gateways = Gateways { access, ceph, directory: &directory, daemons, urls: &urls };
    (0..GATEWAYS).for_each(|nth| gateways.start(nth));
    let mut hosts: Vec<Host<'_>> =
        (0..WRITERS).map(|nth| Host::new(&format!("writer{nth}"), access, &urls)).collect();
    for (host, key) in hosts.iter_mut().zip(KEY..) {
        host.register(key);
    }
    let kind = WRITE_EXCLUSIVE_REGISTRANTS_ONLY;
    let mut decides = Host::new("writer0", access, &urls);
    let holds = decides.path().expect("its gateway runs");
    assert_eq!(reserve(holds, RESERVE, kind, KEY, 0).status, GOOD);
    let expected: Vec<u64> = (KEY..KEY + WRITERS).flat_map(|key| [key; GATEWAYS]).collect();
    all_show(&gateways, &expected);

    let (rounds, is_over) = ([const { AtomicU64::new(0) }; WRITERS as usize], AtomicBool::new(false));
    let written: Vec<u64> = thread::scope(|scope| {
        let ends = OnDrop(&is_over);
        let writers: Vec<thread::ScopedJoinHandle<'_, u64>> = (0..)
            .zip(hosts.iter_mut().zip(&rounds))
            .map(|(nth, (host, count))| {
                let is_over = &is_over;
                scope.spawn(move || writes(host, nth, count, is_over))
            })
            .collect();
        wait_for_rounds(&rounds);
        things_happen(&mut gateways, &mut decides, &rounds, &expected);
        drop(ends);
        writers.into_iter().map(|writer| writer.join().expect("it wrote")).collect()
    });
    eprintln!("{access}: {written:?} verified rounds");
    for mut path in gateways.sessions("probe") {
        if access == "one" && readiness(&mut path) == Some(IN_STANDBY) {
            continue;
        }
        for (writer, round) in (0..).zip(&written) {
            for block in 0..BLOCKS {
                assert!(read(&mut path, lba(writer, block)) == content(writer, block, *round));
            }
        }
    }
    (0..GATEWAYS).for_each(|nth| drop(gateways.take(nth).stop()));
}

fn things_happen(
    gateways: &mut Gateways<'_>,
    decides: &mut Host<'_>,
    rounds: &[AtomicU64],
    expected: &[u64],
) {
    let begin = Instant::now();
    let report = |what: &str| eprintln!("{:?}: {what}", begin.elapsed());
    one_host_is_preempted(gateways, decides, KEY);
    all_show(gateways, expected);
    report("a host was preempted");
    // Among them the one that decides, or is active.
    let killed = [0, 3, 6];
    killed.map(|nth| gateways.take(nth)).into_iter().for_each(Daemon::kill9);
    wait_for_rounds(rounds);
    report("three were killed");
    all_show(gateways, expected);
    killed.into_iter().for_each(|nth| gateways.start(nth));
    wait_for_rounds(rounds);
    report("they are back");
    for nth in 0..GATEWAYS {
        gateways.take(nth).stop();
        gateways.start(nth);
    }
    wait_for_rounds(rounds);
    report("all were restarted");
    all_show(gateways, expected);
    one_host_is_preempted(gateways, decides, KEY);
    report("a host was preempted again");
}

mod soak {
    use super::*;

    #[test]
    fn eight_gateways_of_which_one_is_active_agree_whichever_dies_or_is_restarted() {
        let ceph = Ceph::start();
        ceph.create_shared("disk", 64 << 20);
        play(&ceph, "one");
    }

    #[test]
    fn eight_active_gateways_agree_whichever_dies_or_is_restarted() {
        let ceph = Ceph::start();
        ceph.rbd(&["create", "--size", "64M", "--image-feature", "layering", &format!("{POOL}/disk")]);
        play(&ceph, "all");
    }
}
