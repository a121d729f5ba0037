//! `[cluster]`: the gateways that share LUNs, and the LUNs that they share.

use super::checks::required;
use super::machine::Machine;
use super::model::{Access, Cluster, Lun, StoreSpec};
use super::problems::{Collector, Fault, suggest};
use super::raw::{At, Raw, RawCluster, RawLun, Text};
use super::rbd::{self, RbdImage};
use super::scalar;
use std::path::Path;
use std::time::Duration;

/// Default time within which another gateway becomes active; if too short, a slow answer is taken for a
/// death.
const TAKEOVER: Duration = Duration::from_secs(10);
const TAKEOVER_MIN: Duration = Duration::from_secs(5);
const TAKEOVER_MAX: Duration = Duration::from_secs(120);

/// Default time until all OSDs have a new map: two heartbeats, 5.9 s each at most, and some. One of those is the least.
const OSD_MAP: Duration = Duration::from_secs(15);
const OSD_MAP_MIN: Duration = Duration::from_secs(7);
const OSD_MAP_MAX: Duration = Duration::from_secs(120);

/// To fence a gateway, and for the others to catch up with that, beyond what is configured.
const FENCES: Duration = Duration::from_secs(3);

impl Cluster {
    /// What a gateway has sent to a medium to which all have access takes effect within this time, or never.
    pub fn fenced_within(&self) -> Duration {
        self.takeover.saturating_mul(2).saturating_add(self.osd_map_delay).saturating_add(FENCES)
    }
}

/// `Some(None)`: there is none.
pub(super) fn cluster(
    raw: &Raw,
    machine: &Machine,
    problems: &mut Collector<'_>,
) -> Option<Option<Box<Cluster>>> {
    let Some(raw) = &raw.cluster else { return Some(None) };
    let RawCluster { place, name, gateway, pool, conf, client, keyring, takeover, osd_map_delay } = raw;
    let mut label = |key, text| {
        let at: &At<String> = required(text, place, key, problems)?;
        problems.check(&at.place, scalar::label(&at.value))
    };
    let (name, gateway) = (label("name", name), label("gateway", gateway));
    let pool = required(pool, place, "pool", problems).and_then(|at| {
        let instead = "name a pool that has no other use for objects of this name (ceph osd pool ls)";
        let is_one = !at.value.is_empty() && !at.value.contains(['/', '@', '\0']);
        let fault = || Fault::new(format!("`{}` is not the name of a pool", at.value), instead);
        problems.check(&at.place, is_one.then(|| at.value.clone()).ok_or_else(fault))
    });
    let mut file = |option: &Text| match option {
        None => Some(None),
        Some(at) => {
            let path = scalar::path(Path::new(&at.value), &machine.base, "name a file");
            problems.check(&at.place, path).map(Some)
        }
    };
    let (conf, keyring) = (file(conf), file(keyring));
    let client = client.as_ref().map(|at| rbd::client(&at.value));
    let mut time = |option: &Text, default, least, most| match option {
        None => Some(default),
        Some(at) => problems.check(&at.place, scalar::duration(&at.value, least, most)),
    };
    let takeover = time(takeover, TAKEOVER, TAKEOVER_MIN, TAKEOVER_MAX);
    let osd_map_delay = time(osd_map_delay, OSD_MAP, OSD_MAP_MIN, OSD_MAP_MAX);
    let place = RbdImage {
        pool: pool?,
        namespace: None,
        image: String::new(),
        snapshot: None,
        conf: conf?,
        client,
        keyring: keyring?,
        luks_passphrase_file: None,
    };
    let (takeover, osd_map_delay) = (takeover?, osd_map_delay?);
    Some(Some(Box::new(Cluster { name: name?, gateway: gateway?, place, takeover, osd_map_delay })))
}

/// A way to share a LUN, by its name.
pub(super) fn access(name: &str) -> Option<Access> {
    match name {
        "one" => Some(Access::One),
        "all" => Some(Access::All),
        _ => None,
    }
}

/// LUNs shared by gateways must be images, and must not have settings that another gateway would not know of.
pub(super) fn check(raw: &Raw, luns: &[Lun], problems: &mut Collector<'_>) {
    for (raw_lun, lun) in raw.luns.iter().zip(luns) {
        let Some(access) = &raw_lun.access else { continue };
        if let Some((at, fault)) = fault(raw, raw_lun, access, lun) {
            problems.add(&at, fault);
        }
    }
}

fn fault(
    raw: &Raw,
    raw_lun: &RawLun,
    access: &At<String>,
    lun: &Lun,
) -> Option<(super::place::Place, Fault)> {
    let here = |what: &str, fix: &str| Some((access.place.clone(), Fault::new(what, fix)));
    if self::access(&access.value).is_none() {
        let what = format!("`{}` is not a way to share a LUN", access.value);
        return here(&what, &suggest(&access.value, ["one", "all"]));
    }
    if raw.cluster.is_none() {
        let what = "gateways share this LUN, and the file does not say which gateway this is";
        return here(what, "add [cluster] with `name`, `gateway` and `pool`, or remove this");
    }
    match &lun.store {
        StoreSpec::Rbd { image, .. } if image.snapshot.is_none() => {}
        StoreSpec::Rbd { .. } => {
            return here("a snapshot is read-only, so any gateway may serve it", "remove this");
        }
        _ => return here("only a Ceph image (rbd) can be shared by gateways", "remove this"),
    }
    if lun.read_only {
        return here("a read-only LUN needs no gateways that agree", "remove this or `read_only`");
    }
    let at = raw_lun.aoe.as_ref()?;
    let what = "ATA over Ethernet has no reservations that gateways share, and no paths in standby";
    Some((at.place.clone(), Fault::new(what, "remove this or `access`")))
}

#[cfg(test)]
mod tests {
    use crate::{Access, Config, StepOfChange, diff};
    use std::path::Path;
    use std::time::Duration;

    const CLUSTER: &str = "[cluster]\nname = 'c'\ngateway = 'a'\npool = 'rbd'\n";
    const LUN: &str = "[[lun]]\nrbd = 'rbd/disk'\naccess = 'one'\n";
    const TARGET: &str = "[[target]]\nname = 'iqn.2026-11.a:x'\n";

    fn parse(parts: &[&str]) -> Result<Config, String> {
        let text = [parts, &[TARGET]].concat().concat();
        Config::from_toml(&text, Path::new("/etc/lunette.toml")).map_err(|problems| problems.to_string())
    }

    fn good(parts: &[&str]) -> Config {
        parse(parts).unwrap_or_else(|problems| panic!("{problems}"))
    }

    #[test]
    fn a_cluster_has_a_name_a_gateway_a_pool_and_a_time() {
        let config = good(&[
            "[cluster]\nname = 'c'\ngateway = 'a'\npool = 'p'\nconf = 'ceph.conf'\nclient = 'client.l'\ntakeover = '20s'\n\
             osd_map_delay = '7s'\n",
            LUN,
        ]);
        let cluster = config.cluster.expect("there is one");
        assert_eq!((cluster.name.as_str(), cluster.gateway.as_str()), ("c", "a"));
        assert_eq!((cluster.place.pool.as_str(), cluster.place.client.as_deref()), ("p", Some("l")));
        assert_eq!(cluster.place.conf.as_deref(), Some(Path::new("/etc/ceph.conf")));
        assert_eq!(cluster.takeover, Duration::from_secs(20));
        assert_eq!(cluster.osd_map_delay, Duration::from_secs(7));
        assert_eq!(cluster.fenced_within(), Duration::from_secs(50));
        assert_eq!(config.luns[0].access, Some(Access::One));
        let explicit = "[[portal]]\nlisten = '127.0.0.1:0'\n[[portal_group]]\ngroup = 1\nexplicit = true\n";
        assert!(good(&[CLUSTER, LUN, explicit]).luns[0].is_shared());
        assert_eq!(good(&[CLUSTER, &LUN.replace("one", "all")]).luns[0].access, Some(Access::All));
        let plain = good(&["[[lun]]\nram = '1M'\n"]);
        assert!(plain.cluster.is_none() && !plain.luns[0].is_shared());
        let cluster = good(&[CLUSTER, LUN]).cluster.expect("there is one");
        assert_eq!((cluster.takeover, cluster.osd_map_delay), (super::TAKEOVER, super::OSD_MAP));
    }

    #[test]
    fn what_cannot_be_shared_is_refused_with_place_and_fix() {
        let lun = |text: &str| format!("[[lun]]\n{text}\n");
        for (parts, what) in [
            (["", LUN], "add [cluster] with `name`, `gateway` and `pool`"),
            ([CLUSTER, &LUN.replace("one", "two")], "`two` is not a way to share a LUN"),
            ([CLUSTER, &lun("ram = '1M'\naccess = 'one'")], "only a Ceph image"),
            ([CLUSTER, &LUN.replace("disk", "disk@s")], "a snapshot is read-only"),
            ([CLUSTER, &(LUN.to_owned() + "read_only = true\n")], "a read-only LUN"),
            ([CLUSTER, &(LUN.to_owned() + "aoe = '1.2'\n")], "ATA over Ethernet has no"),
            (["[cluster]\nname = 'c'\npool = 'p'\n", LUN], "cluster.gateway: this is missing"),
            ([&CLUSTER.replace("rbd", "rbd/disk"), LUN], "is not the name of a pool"),
            ([&(CLUSTER.to_owned() + "takeover = '1s'\n"), LUN], "choose from 5s to 120s"),
            ([&(CLUSTER.to_owned() + "osd_map_delay = '6s'\n"), LUN], "choose from 7s to 120s"),
        ] {
            let problems = parse(&parts).expect_err("it is wrong");
            assert!(problems.contains(what), "{parts:?}: {problems}");
        }
    }

    #[test]
    fn another_cluster_needs_a_start_and_a_lun_that_is_shared_is_another_unit() {
        let before = good(&[CLUSTER, LUN]);
        let other = good(&[&CLUSTER.replace("'a'", "'b'"), LUN]);
        assert_eq!(diff(&before, &other), [StepOfChange::Restart("cluster")]);
        let plain = good(&[CLUSTER, &LUN.replace("access = 'one'", "")]);
        assert!(diff(&before, &plain).contains(&StepOfChange::AddLun("lun0".into())));
    }
}
