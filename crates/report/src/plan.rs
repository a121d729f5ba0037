//! A plan: what a report measures, as a matrix in TOML.

mod builtin;
mod keywords;
mod read;

pub use builtin::{BUILTIN, Builtin, builtin};
pub(crate) use keywords::{show_poll, show_size};

use bench::job::Poll;
use config::Problems;
pub use lab::Link;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most rows of a plan.
pub const ROWS_MAX: usize = 10_000;
/// Most repetitions of a row.
pub const REPETITIONS_MAX: u32 = 100;

/// What is measured, and how often.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Heading of the report.
    pub title: String,
    /// An introduction for the reader.
    pub note: String,
    /// Runs per row.
    pub repetitions: u32,
    /// Measured time per run.
    pub runtime: Duration,
    /// Time before that, in which nothing is counted.
    pub ramp: Duration,
    /// Seed of all randomness.
    pub seed: u64,
    /// Whether the plan was reduced for a quick trial.
    pub quick: bool,
    /// The targets measured.
    pub targets: Vec<Target>,
    /// Cores and polling of both sides.
    pub schedulings: Vec<Scheduling>,
    /// The matrices, each a section of the report.
    pub matrices: Vec<Matrix>,
}

/// A target to measure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Its name in tables and legends.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The transport to it.
    pub transport: Transport,
    /// The store of its units.
    pub store: Store,
    /// The link to it; `None`: loopback.
    pub link: Option<Link>,
    /// Targets chained between the initiator and it, each an initiator of the next.
    pub hops: u32,
    /// Whether its content may be overwritten.
    pub overwrite: bool,
}

/// The kind of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `lunette serve`.
    Lunette,
    /// The do-nothing responder, which shows what the transport allows.
    Ceiling,
    /// Debian's tgt.
    Tgt,
    /// Debian's vblade.
    Vblade,
    /// An existing SPDK iscsi_tgt.
    Spdk(PathBuf),
    /// A target that is already running.
    Url(String),
}

/// The transport to a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// iSCSI over TCP.
    Iscsi,
    /// iSER over iWARP.
    Iser,
    /// SRP over iWARP.
    Srp,
    /// ATA over Ethernet.
    Aoe,
    /// No transport: the store in this process.
    Local,
}

/// The store of units.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Store {
    /// Memory of the target.
    Ram(u64),
    /// None.
    Null(u64),
    /// A file in memory (`/dev/shm`).
    Tmpfs(u64),
    /// A file in the report's directory.
    Disk(u64),
    /// A block device.
    Block(String),
}

/// Cores and polling of both sides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scheduling {
    /// Its name in tables.
    pub name: String,
    /// Cores of the target; empty: all.
    pub target_cores: Vec<usize>,
    /// How the target polls.
    pub target_poll: Poll,
    /// Cores of the initiator; empty: not pinned.
    pub cores: Vec<usize>,
    /// How the initiator polls.
    pub poll: Poll,
}

/// A matrix: every list is combined with every other.
#[derive(Clone, PartialEq, Debug)]
pub struct Matrix {
    /// Heading of its section.
    pub title: String,
    /// An introduction for the reader.
    pub note: String,
    /// Targets, by index in the plan.
    pub targets: Vec<usize>,
    /// Schedulings, by index in the plan.
    pub schedulings: Vec<usize>,
    /// Order and direction.
    pub rw: Vec<Direction>,
    /// Bytes per operation.
    pub bs: Vec<u32>,
    /// Operations in flight per job.
    pub iodepth: Vec<u32>,
    /// Jobs per initiator and LUN.
    pub numjobs: Vec<u32>,
    /// Concurrent initiators.
    pub initiators: Vec<u32>,
    /// Concurrent LUNs.
    pub luns: Vec<u32>,
    /// Whether data of writes comes with the command.
    pub immediate_data: Vec<bool>,
    /// Header digests, and data digests.
    pub digests: Vec<(bool, bool)>,
    /// Whether jobs share one sequential range (sgp_dd).
    pub shared: bool,
    /// Percentage of reads in mixed workloads.
    pub rwmixread: u8,
    /// Block sizes whose latency and core load are drawn.
    pub detail: Vec<u32>,
}

/// Order and direction of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random reads and writes in one stream.
    RandRw,
    /// Discards.
    Trim,
    /// A stream of sequential reads and one of sequential writes, concurrently.
    Both,
    /// The same with random addresses.
    RandBoth,
}

impl Direction {
    /// A description, for readers who do not know fio's names.
    pub fn phrase(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
            Direction::RandRead => "random read",
            Direction::RandWrite => "random write",
            Direction::RandRw => "random mix",
            Direction::Trim => "discard",
            Direction::Both => "read and write",
            Direction::RandBoth => "random read and write",
        }
    }

    /// Whether it changes anything.
    pub fn writes(self) -> bool {
        !matches!(self, Direction::Read | Direction::RandRead)
    }
}

impl Plan {
    /// Parses a plan; `file` is only used in error messages.
    ///
    /// # Errors
    /// All errors, each with its location and its fix.
    pub fn from_toml(text: &str, file: &Path) -> Result<Plan, Problems> {
        read::read(text, file)
    }

    /// Adds another target to every matrix: `tgt`, with every store of our own targets and behind the same
    /// links, and with no store, memory and a file, each beside ours; `vblade`, with every store of ours that
    /// is reached over AoE; `spdk=PATH_OF_ISCSI_TGT`, with our stores in memory; or the URL of a running
    /// target.
    ///
    /// # Errors
    /// When the word is none of these, or there is nothing to compare it with.
    pub fn add_peer(&mut self, word: &str) -> Result<(), String> {
        let (kind, pairs) = match word {
            "tgt" => {
                self.add_usual_stores();
                (Kind::Tgt, self.own_stores(|_| true))
            }
            "vblade" => {
                let is_fit = |target: &Target| {
                    target.transport == Transport::Aoe && !matches!(target.store, Store::Null(_))
                };
                let pairs = self.own_stores(is_fit);
                if pairs.is_empty() {
                    let fix = "give one transport = \"aoe\"";
                    return Err(format!("--peer vblade: no target of the plan is reached over AoE; {fix}"));
                }
                (Kind::Vblade, pairs)
            }
            _ if word.starts_with("spdk=") => {
                let path = Path::new(word.trim_start_matches("spdk="));
                // It will be started from another directory.
                let path = std::path::absolute(path).map_err(|error| format!("--peer {word}: {error}"))?;
                let pairs = self.own_stores(|target| matches!(target.store, Store::Ram(_)));
                if pairs.is_empty() {
                    let fix = "give one store = \"ram:1G\"";
                    return Err(format!("--peer spdk: no target of the plan has its data in memory; {fix}"));
                }
                (Kind::Spdk(path), pairs)
            }
            _ if config::Url::is_meant(word) => {
                config::Url::given(word).map_err(|error| format!("--peer: {error}"))?;
                (Kind::Url(word.into()), vec![(Store::Ram(0), None)])
            }
            _ => {
                return Err(format!(
                    "--peer {word}: not known; give tgt, vblade, spdk=PATH_OF_ISCSI_TGT, or iscsi://HOST/IQN/LUN"
                ));
            }
        };
        for (store, link) in pairs {
            let is_there = |target: &Target| {
                (&target.kind, &target.store, target.link, target.hops) == (&kind, &store, link, 0)
            };
            if self.targets.iter().any(is_there) {
                continue;
            }
            self.add(&kind, store, link);
        }
        Ok(())
    }

    /// Adds a target to every matrix, over its default transport.
    fn add(&mut self, kind: &Kind, store: Store, link: Option<Link>) {
        let name = self.peer_name(kind, &store, link);
        let (kind, transport) = (kind.clone(), kind.usual_transport());
        self.targets.push(Target { name, kind, transport, store, link, hops: 0, overwrite: false });
        let place = self.targets.len() - 1;
        self.matrices.iter_mut().for_each(|matrix| matrix.targets.push(place));
    }

    /// Ensures that our own targets include one that stores nothing, one in memory and one in a file, so that
    /// a peer is not only compared in its best discipline. Those added are small enough to fit into memory,
    /// and behind the link of the first.
    fn add_usual_stores(&mut self) {
        const SIZE_MAX: u64 = 1 << 30;
        let own = |target: &&Target| target.kind == Kind::Lunette && target.transport == Transport::Iscsi;
        let Some(first) = self.targets.iter().find(own) else { return };
        let size = first.store.size().map_or(SIZE_MAX, |size| size.min(SIZE_MAX));
        let link = first.link;
        for store in [Store::Null(size), Store::Ram(size), Store::Disk(size)] {
            let is_alike = |target: &Target| target.store.word() == store.word();
            if !self.targets.iter().filter(own).any(is_alike) {
                self.add(&Kind::Lunette, store, link);
            }
        }
    }

    /// The stores of our own targets that satisfy `is_fit`, with their links, with which a peer is then
    /// measured too.
    fn own_stores(&self, is_fit: impl Fn(&Target) -> bool) -> Vec<(Store, Option<Link>)> {
        let mut pairs = Vec::new();
        let own = |target: &&Target| target.kind == Kind::Lunette && is_fit(target);
        for target in self.targets.iter().filter(own) {
            let pair = (target.store.clone(), target.link);
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        pairs
    }

    /// `tgt null`, `tgt disk, 100 Mbit/s`; with the size or the path if the name would not be unique.
    fn peer_name(&self, kind: &Kind, store: &Store, link: Option<Link>) -> String {
        let link = link.map(|link| format!(", {link}")).unwrap_or_default();
        let name = match kind {
            Kind::Url(url) => config::Url::shown(url),
            Kind::Lunette => format!("Lunette {}{link}", store.word()),
            Kind::Ceiling | Kind::Tgt => format!("tgt {}{link}", store.word()),
            Kind::Vblade => format!("vblade {}{link}", store.word()),
            Kind::Spdk(_) => format!("SPDK {}{link}", store.word()),
        };
        match self.targets.iter().any(|target| target.name == name) {
            true => format!("{name} ({store})"),
            false => name,
        }
    }

    /// Allows running targets and block devices to be overwritten.
    pub fn allow_overwriting(&mut self) {
        self.targets.iter_mut().for_each(|target| target.overwrite = true);
    }

    /// Reduces the plan to a trial of seconds: short runs, the ends of every list, small stores.
    pub fn make_quick(&mut self) {
        const SIZE: u64 = 64 << 20;
        self.quick = true;
        self.repetitions = self.repetitions.min(2);
        self.runtime = self.runtime.min(Duration::from_millis(200));
        self.ramp = self.ramp.min(Duration::from_millis(50));
        for target in &mut self.targets {
            match &mut target.store {
                Store::Ram(size) | Store::Null(size) | Store::Tmpfs(size) | Store::Disk(size) => {
                    *size = SIZE.min(*size);
                }
                Store::Block(_) => {}
            }
        }
        for matrix in &mut self.matrices {
            ends(&mut matrix.bs);
            ends(&mut matrix.iodepth);
            ends(&mut matrix.numjobs);
            ends(&mut matrix.initiators);
            ends(&mut matrix.luns);
            matrix.detail.retain(|bs| matrix.bs.contains(bs));
            if matrix.detail.is_empty() {
                matrix.detail.clone_from(&matrix.bs);
            }
        }
    }
}

/// Keeps the first and the last.
fn ends<T: Clone>(list: &mut Vec<T>) {
    if list.len() > 2 {
        list.drain(1..list.len() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        Plan::from_toml(text, Path::new("plan.toml")).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_short_plan_is_filled_up_with_defaults() {
        let plan = plan("[[target]]\nname = 'ours'\n[[matrix]]\nbs = '4K'");
        assert_eq!((plan.repetitions, plan.runtime, plan.quick), (5, Duration::from_secs(5), false));
        assert_eq!(plan.targets[0].store, Store::Ram(1 << 30));
        assert_eq!(plan.matrices[0].bs, [4096]);
        assert_eq!(plan.matrices[0].rw, [Direction::RandRead]);
        assert_eq!(plan.schedulings[plan.matrices[0].schedulings[0]].name, "free");
    }

    #[test]
    fn a_try_keeps_the_ends_of_every_list() {
        let mut plan =
            plan("[[target]]\nname = 'a'\n[[matrix]]\nbs = ['1K', '2K', '4K']\nnumjobs = [1, 2, 3, 4]");
        plan.make_quick();
        assert_eq!(
            (plan.matrices[0].bs.as_slice(), plan.matrices[0].numjobs.as_slice()),
            (&[1024, 4096][..], &[1, 4][..])
        );
        assert!(plan.repetitions == 2 && plan.runtime < Duration::from_secs(1) && plan.quick);
        assert_eq!(plan.targets[0].store, Store::Ram(64 << 20));
    }

    #[test]
    fn a_peer_stands_beside_ours_in_every_matrix() {
        let mut plan = plan("[[target]]\nname = 'a'\nstore = 'null:1G'\n[[matrix]]\n[[matrix]]\nrw = 'read'");
        plan.add_peer("tgt").unwrap();
        plan.add_peer("tgt").unwrap();
        plan.add_peer("iscsi://u%secret@h/iqn.2001-04.com.example:x/0").unwrap();
        let names: Vec<&str> = plan.targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names.len(), 7);
        assert_eq!(names[..6], ["a", "Lunette ram", "Lunette disk", "tgt null", "tgt ram", "tgt disk"]);
        assert_eq!(plan.targets[1].store, Store::Ram(1 << 30), "as large as ours");
        assert!(names[6].contains("iqn.2001-04.com.example:x") && !names[6].contains("secret"), "{names:?}");
        assert!(plan.matrices.iter().all(|matrix| matrix.targets == [0, 1, 2, 3, 4, 5, 6]));
        let error = plan.add_peer("iscsi://u%my secret@h/iqn.2001-04.com.example:x/0").unwrap_err();
        assert!(error.contains("%20") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn spdk_stands_beside_our_disks_in_memory() {
        let mut plan = plan(
            "[[target]]\nname = 'a'\nstore = 'ram:64M'\n[[target]]\nname = 'b'\nstore = 'null:1G'\n\
             [[scheduling]]\nname = 's'\n[[matrix]]\ntitle = 't'\nrw = 'read'\n",
        );
        plan.add_peer("spdk=/opt/iscsi_tgt").unwrap();
        plan.add_peer("spdk=/opt/iscsi_tgt").unwrap();
        let last = plan.targets.last().unwrap();
        let found = (plan.targets.len(), &*last.name, &last.kind, &last.store);
        assert_eq!(found, (3, "SPDK ram", &Kind::Spdk("/opt/iscsi_tgt".into()), &Store::Ram(64 << 20)));
        plan.targets.retain(|target| !matches!(target.store, Store::Ram(_)));
        assert!(plan.add_peer("spdk=x").unwrap_err().contains("in memory"));
        assert!(plan.add_peer("spdk").unwrap_err().contains("spdk=PATH_OF_ISCSI_TGT"));
    }

    #[test]
    fn stgt_s_plan_with_a_peer_has_nothing_memory_and_files_of_both() {
        let mut plan = plan(builtin("stgt").map_or("", |plan| plan.text));
        plan.add_peer("tgt").unwrap();
        let rows = crate::matrix::rows(&plan);
        for kind in [Kind::Lunette, Kind::Tgt] {
            for store in ["null", "ram", "disk"] {
                let mut rows =
                    rows.iter().filter(|row| (&row.target.kind, row.target.store.word()) == (&kind, store));
                assert!(rows.all(|row| row.ceiling.is_some()), "{kind:?} {store}");
                let is_it = |target: &Target| target.kind == kind && target.store.word() == store;
                // Only our own targets are chained.
                for matrix in &plan.matrices[..3] {
                    assert!(
                        matrix.targets.iter().any(|place| is_it(&plan.targets[*place])),
                        "{kind:?} {store}"
                    );
                }
            }
        }
        assert!(plan.targets.iter().all(|target| target.store.size().is_none_or(|size| size <= 64 << 30)));
    }

    #[test]
    fn a_peer_has_the_stores_of_ours_and_stands_behind_their_links() {
        let mut plan = plan(
            "[[target]]\nname = 'a'\nstore = 'ram:1G'\n\
             [[target]]\nname = 'b'\nstore = 'disk:1G'\nlink = '100mbit'\n\
             [[target]]\nname = 'c'\nkind = 'tgt'\nstore = 'disk:1G'\n\
             [[target]]\nname = 'd'\nstore = 'disk:1G'\nhops = 1\n\
             [[target]]\nname = 'e'\nstore = 'ram:2G'\n[[matrix]]\n",
        );
        let own = plan.targets.len();
        plan.add_peer("tgt").unwrap();
        let added: Vec<(&str, Option<Link>)> =
            plan.targets[own..].iter().map(|target| (target.name.as_str(), target.link)).collect();
        let expected = [
            ("Lunette null", None),
            ("tgt ram", None),
            ("tgt disk, 100 Mbit/s", Some(Link::Rate(100_000_000))),
            ("tgt ram (ram:2G)", None),
            ("tgt null", None),
        ];
        assert_eq!(added, expected);
        assert!(plan.add_peer("scst").unwrap_err().contains("give tgt"));
    }

    #[test]
    fn vblade_stands_beside_what_aoe_leads_to() {
        let mut plan = plan(
            "[[target]]\nname = 'a'\nstore = 'tmpfs:1G'\nlink = 'veth'\ntransport = ['iscsi', 'aoe']\n\
             [[target]]\nname = 'b'\nstore = 'null:1G'\nlink = 'veth'\ntransport = 'aoe'\n[[matrix]]\n",
        );
        plan.add_peer("vblade").unwrap();
        let added = &plan.targets[3..];
        assert_eq!(added.len(), 1);
        assert_eq!((added[0].name.as_str(), added[0].transport), ("vblade tmpfs, veth", Transport::Aoe));
        plan.targets.retain(|target| target.transport != Transport::Aoe);
        assert!(plan.add_peer("vblade").unwrap_err().contains("transport = \"aoe\""));
    }
}
