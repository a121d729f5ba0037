//! A daemon that shares the unit: its lives, and what it waits for.

use super::change::Change;
use super::image::Image;
use super::plan::{OSD_MAP_DELAY, Plan};
use super::rados::Client;
use super::reloads::Reload;
use crate::directory::Directory;
use crate::kernel::Kernel;
use crate::net::Shared;
use crate::register::BLOCK_BYTES;
use crate::world::daemon::Daemon;
use config::Config;
use engine::world::Cores;
use fastrand::Rng;
use proto::time::Time;
use reactor::io::Handle;
use reactor::packet::Setup;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const ARENA_BYTES: u64 = 96 << 20;
pub(super) const TARGET: &str = "iqn.2026-11.io.lunette:shared";

/// How it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Course {
    Serves,
    /// It leaves the unit to others.
    Withdraws,
    /// Its cores end.
    Stops,
}

/// One of the daemons.
/// Its fields are its hosts, its present life, and what goes wrong with it.
pub(super) struct Member {
    pub(super) number: usize,
    /// `None`: it is dead.
    pub(super) daemon: Option<Daemon>,
    pub(super) image: Arc<Image>,
    /// The clients that it has been, and when the process of each died.
    pub(super) clients: Vec<(Client, Option<Time>)>,
    pub(super) first: usize,
    pub(super) cores: usize,
    /// How often it was started.
    pub(super) life: u32,
    started: Time,
    /// How fast its clock is, in thousandths.
    speed: u64,
    /// Its clock stands still while it is paused, as that of a virtual machine.
    stands: bool,
    pub(super) course: Course,
    /// It has no turn before this.
    pub(super) paused_until: Time,
    /// The cluster does not reach it before this.
    pub(super) cut_until: Time,
    /// It has no answer about the object before this.
    pub(super) blind_until: Time,
    /// Until when each OSD does not get what it has sent there, or, if it is given, what this client of it has.
    pub(super) held_up: BTreeMap<(usize, Option<Client>), Time>,
    /// Since when its image has not answered.
    pub(super) hung: Option<Time>,
    /// The call that its gateway waits for, and that during which it goes on.
    pub(super) waits: Option<u64>,
    pub(super) works: Option<u64>,
    pub(super) change: Option<Change>,
    pub(super) is_watching: bool,
    /// How often its gateway has looked again at once.
    pub(super) spins: u32,
    /// The group of its second portal, if it has one, where that listens once a reload has added it, and the reload under way.
    pub(super) extra: Option<u16>,
    pub(super) door: Option<Handle>,
    pub(super) reload: Option<Reload>,
}

pub(super) fn name(member: usize) -> String {
    format!("gw{member}")
}

/// Its second portal.
fn second_portal(member: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, member as u8 + 1], 3260))
}

pub(super) fn portal(member: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, member as u8 + 1], 3260))
}

impl Member {
    /// One that is dead.
    pub(super) fn new(plan: &Plan, number: usize) -> Member {
        let hosts = |member: usize| plan.cores[member] + 2;
        Member {
            number,
            daemon: None,
            image: Image::new(Client(0), plan.access, 0, Duration::ZERO),
            clients: Vec::new(),
            first: (0..number).map(hosts).sum(),
            cores: plan.cores[number],
            life: 0,
            started: Time(0),
            speed: plan.speeds[number],
            stands: plan.stands,
            course: Course::Serves,
            paused_until: Time(0),
            cut_until: Time(0),
            blind_until: Time(0),
            held_up: BTreeMap::new(),
            hung: None,
            waits: None,
            works: None,
            change: None,
            is_watching: false,
            spins: 0,
            extra: None,
            door: None,
            reload: None,
        }
    }

    /// Its hosts: cores, what is kept off them, and its gateway.
    pub(super) fn hosts(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.cores + 2
    }

    /// The host that its gateway is.
    pub(super) fn gateway(&self) -> usize {
        self.first + self.cores + 1
    }

    /// Its own time.
    pub(super) fn clock(&self, now: Time) -> Duration {
        let nanos = now.since(self.started).as_nanos() as u64;
        Duration::from_nanos(nanos / 1000 * self.speed)
    }

    /// How long so much of its time is.
    pub(super) fn really(&self, time: Duration) -> Duration {
        Duration::from_nanos(time.as_nanos() as u64 / self.speed * 1000 + 1000)
    }

    pub(super) fn is_paused(&self, now: Time) -> bool {
        self.paused_until > now
    }

    pub(super) fn config(&self, plan: &Plan) -> Config {
        let (name, group, portal) = (name(self.number), self.number + 1, portal(self.number));
        let text = format!(
            "poll = \"never\"\nlogin_timeout = \"5s\"\nkeep_alive = 5\nstall_timeout = \"10s\"\n\n[cluster]\nname = \"c\"\n\
             gateway = \"{name}\"\npool = \"p\"\n\n[[portal]]\nlisten = \"{portal}\"\ntransports = [\"iscsi\", \"iser\"]\n\
             group = {group}\n\n[[lun]]\nname = \"disk\"\nrbd = \"p/disk\"\naccess = \"one\"\nserial = \"SHARED\"\n\n[[target]]\n\
             name = \"{TARGET}\"\n"
        );
        let explicit = if plan.wants > 0 { "explicit = true\n" } else { "" };
        let text = text + &format!("\n[[portal_group]]\ngroup = {group}\n{explicit}");
        let extra = self.extra.map(|group| {
            let portal = second_portal(self.number);
            format!("\n[[portal]]\nlisten = \"{portal}\"\ngroup = {group}\n\n[[portal_group]]\ngroup = {group}\n{explicit}")
        });
        let text = text + &extra.unwrap_or_default();
        let config = Config::from_toml(&text, Path::new("gateway.toml"));
        let mut config = config.unwrap_or_else(|problems| panic!("{problems}"));
        config.cores = (0..self.cores).collect();
        config.portals.iter_mut().for_each(|portal| portal.cores.clone_from(&config.cores));
        config.luns.iter_mut().for_each(|lun| lun.access = Some(plan.access));
        let times = (plan.takeover, OSD_MAP_DELAY);
        config.cluster.iter_mut().for_each(|cluster| (cluster.takeover, cluster.osd_map_delay) = times);
        config
    }

    /// It is started, as this client.
    pub(super) fn start(&mut self, plan: &Plan, net: &Shared, client: Client) {
        let config = self.config(plan);
        let listen = |portal: &config::Portal| net.borrow_mut().listen(portal.listen);
        let listeners: Vec<Handle> = config.portals.iter().map(listen).collect();
        self.door = listeners.get(1).copied();
        let size_bytes = u64::from(plan.blocks * BLOCK_BYTES);
        self.image = Image::new(client, plan.access, size_bytes, plan.takeover);
        self.clients.push((client, None));
        let (first, life) = (self.first, self.life);
        let kernel = |core, waker| {
            let mut kernel = Kernel::new(first + core, net.clone(), ARENA_BYTES, Some(waker), life);
            kernel.is_exact = true;
            kernel
        };
        let lines = |_: &Setup<'_>, _| Ok(Vec::new());
        let directory = Box::new(Directory::new(Rng::with_seed(0), 0));
        let stores = vec![(self.image.clone() as _, Arc::default())];
        let cores = Cores::new(config, stores, listeners, directory, lines, kernel).expect("descriptors");
        let mut daemon = Daemon::new(cores, self.cores, self.first, self.first + self.cores);
        daemon.cores.open_shared(0, self.image.clone());
        daemon.wake(net);
        {
            let net = &mut *net.borrow_mut();
            self.started = net.now;
            net.wake(self.gateway(), net.now);
        }
        self.daemon = Some(daemon);
        (self.course, self.change, self.is_watching) = (Course::Serves, None, false);
        (self.waits, self.works) = (None, None);
    }

    /// Its process is no more.
    pub(super) fn is_gone(&mut self, net: &Shared) {
        self.life += 1;
        (self.daemon, self.change) = (None, None);
        (self.waits, self.works, self.hung) = (None, None, None);
        (self.reload, self.door) = (None, None);
        let net = &mut *net.borrow_mut();
        self.clients.iter_mut().for_each(|(_, died)| _ = died.get_or_insert(net.now));
        net.kill(portal(self.number));
        net.kill(second_portal(self.number));
        self.continues(net);
    }

    /// It has no turns until then.
    pub(super) fn pauses(&mut self, now: Time, until: Time) {
        let from = self.paused_until.max(now);
        self.paused_until = until.max(from);
        if self.stands {
            self.started = self.started.after(self.paused_until.since(from));
        }
    }

    /// It has turns again.
    pub(super) fn continues(&mut self, net: &mut crate::net::Net) {
        if self.stands && self.paused_until > net.now {
            let left = self.paused_until.since(net.now).as_nanos() as u64;
            self.started = Time(self.started.0.saturating_sub(left));
        }
        self.paused_until = net.now;
        self.hosts().for_each(|host| net.free(host));
    }

    /// What it has, in words.
    pub(super) fn status(&mut self) -> String {
        let Some(daemon) = &mut self.daemon else { return format!("gateway {} is dead", self.number) };
        let reading = daemon.cores.gateway_reading(0);
        let role = reading.as_ref().map_or("not there yet", |reading| reading.role);
        let fault = reading.and_then(|reading| reading.fault).unwrap_or_default();
        let (number, waits, course) = (self.number, (self.waits, self.works), self.course);
        format!("gateway {number} is {role} {fault}, waits for {waits:?}, {course:?}\n{}", daemon.status())
    }

    /// What its gateway is.
    pub(super) fn is_active(&self) -> bool {
        let role = self.daemon.as_ref().and_then(|daemon| daemon.cores.gateway_role(0));
        role == Some("active")
    }
}
