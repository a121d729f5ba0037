//! Who may log in to what: answers the protocol machines' questions from the configuration.

use crate::registry::{CHANNELS_MAX, Registry, SessionName};
use crate::served::Named;
use config::names::srp_port;
use config::{Config, Group, Portal, Target};
use proto::iscsi::login::{Access, ChapCredentials, Grant, Offers, Refusal, SendTargets, Step, TargetRecord};
use proto::iscsi::target::TargetConfig;
use proto::srp::target as srp;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use wire::iscsi::Stage;
use wire::srp::RejectReason;

/// Why a login is refused at a drained portal.
const DRAINED: &str = "the portal is drained";

/// The configuration as protocol machines see it.
pub(crate) struct ConfiguredAccess {
    config: Arc<Config>,
    /// The targets, in order.
    targets: Vec<Arc<Named>>,
    /// Bound addresses of the portals, in order.
    addresses: Vec<SocketAddr>,
    registry: Arc<Registry>,
}

/// A login that was granted.
pub(crate) struct Login<'a> {
    /// The initiator's name.
    pub(crate) initiator: &'a str,
    /// The initiator's address.
    pub(crate) from: IpAddr,
    /// The local address of its connection.
    pub(crate) local: SocketAddr,
    /// The target's name.
    pub(crate) target: &'a str,
    /// Whether it is an SRP login: a portal may accept several protocols.
    pub(crate) is_srp: bool,
}

impl ConfiguredAccess {
    pub(crate) fn new(
        config: Arc<Config>,
        targets: Vec<Arc<Named>>,
        addresses: Vec<SocketAddr>,
        registry: Arc<Registry>,
    ) -> Self {
        ConfiguredAccess { config, targets, addresses, registry }
    }

    /// The sessions.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Index of the portal that owns a local address.
    fn portal_of(&self, local: SocketAddr) -> Option<usize> {
        config::portal_of(&self.addresses, local)
    }

    /// Whether a login granted under `before` is granted in the same way now.
    pub(crate) fn grants_as(&self, before: &ConfiguredAccess, login: &Login<'_>) -> bool {
        let of = |access: &ConfiguredAccess| {
            let portal = access.portal_of(login.local)?;
            let all = &access.config.targets;
            let index = all.iter().position(|target| target.name.eq_ignore_ascii_case(login.target))?;
            let is_reached = if login.is_srp {
                access.config.srp_target(portal) == Some(index)
            } else {
                all[index].portals.contains(&portal)
            };
            let group = all[index].group_of(login.initiator, login.from);
            let terms = group.map(|group| (group.deny, group.chap.clone(), group.queue_depth));
            let of_target = (all[index].groups.is_empty(), all[index].queue_depth);
            let listens = &access.config.portals[portal];
            let portal = (listens.group, listens.drain.is_some(), listens.redirect);
            Some((portal, is_reached, of_target, terms))
        };
        of(self).is_some_and(|now| Some(now) == of(before))
    }

    /// The configuration of iSCSI and iSER machines.
    pub(crate) fn iscsi_config(&self) -> TargetConfig {
        TargetConfig {
            queue_depth: QUEUE_DEPTH,
            login_within: self.config.login_timeout,
            idle: self.config.keep_alive,
            crc32c: reactor::crc::crc32c,
            offers: Offers::default(),
        }
    }

    /// The configuration of SRP machines.
    pub(crate) fn srp_config(&self) -> srp::TargetConfig {
        srp::TargetConfig {
            queue_depth: QUEUE_DEPTH,
            max_it_iu_bytes: SRP_IU_BYTES_MAX,
            target_port: srp_port(self.config.srp_guid.unwrap_or_default()),
            login_within: self.config.login_timeout,
            idle: self.config.keep_alive,
        }
    }

    /// The group that admits an initiator, if the target has groups.
    fn group_for<'a>(
        &self,
        target: &'a Target,
        initiator: &str,
        from: IpAddr,
    ) -> Result<Option<&'a Group>, String> {
        match target.group_of(initiator, from) {
            Some(group) if group.deny => Err(format!("group {} denies it", group.name)),
            None if !target.groups.is_empty() => Err("no group of the target matches".to_owned()),
            matched => Ok(matched),
        }
    }

    /// The portals at which discovery reports a target; `None`: none can be reported to initiators at this
    /// portal.
    fn record(&self, target: &Target, portal: SocketAddr) -> Option<TargetRecord> {
        let address = |index: &usize| {
            let listen = *self.addresses.get(*index)?;
            let portal_config = self.config.portals.get(*index)?;
            let group = portal_config.group;
            if !portal_config.transports.any_iscsi() || portal_config.drain.is_some() {
                return None;
            }
            if !listen.ip().is_unspecified() {
                return Some((listen, group));
            }
            // A wildcard portal is reported by the address that the initiator connected to, if the families
            // match.
            of_one_family(&listen, &portal).then(|| (SocketAddr::new(portal.ip(), listen.port()), group))
        };
        let portals: Vec<_> = target.portals.iter().filter_map(address).collect();
        (!portals.is_empty()).then(|| TargetRecord { name: target.name.clone(), portals })
    }
}

impl Access for ConfiguredAccess {
    fn authorize(
        &self,
        initiator: &str,
        target: Option<&str>,
        from: SocketAddr,
        portal: SocketAddr,
        isid: [u8; 6],
    ) -> Result<Grant, Refusal> {
        let local = portal;
        let portal = self.portal_of(local);
        let group = portal.and_then(|index| self.config.portals.get(index)).map_or(1, |portal| portal.group);
        let Some(name) = target else {
            return Ok(Grant { group, ..Grant::default() });
        };
        let name = name.to_ascii_lowercase();
        let found = self.config.targets.iter().position(|target| target.name == name);
        let Some(index) = found.filter(|index| {
            portal.is_some_and(|portal| self.config.targets[*index].portals.contains(&portal))
        }) else {
            return Err(Refusal::NotFound);
        };
        let target = &self.config.targets[index];
        let matched = self.group_for(target, initiator, from.ip()).map_err(Refusal::Forbidden)?;
        match portal.and_then(|index| self.config.portals.get(index)) {
            // A portal that listens on all addresses may redirect to one of its own: an initiator that has
            // followed the redirection must not be redirected again.
            Some(Portal { redirect: Some(address), .. }) if *address != local => {
                return Err(Refusal::Moved(*address));
            }
            Some(Portal { drain: Some(_), .. }) => return Err(Refusal::Unavailable(DRAINED.into())),
            Some(_) | None => {}
        }
        let number = self.targets[index].number;
        let session =
            SessionName { initiator: initiator.to_lowercase(), isid, target: number, group, channel: 0 };
        let existing = self.registry.find(&session);
        if !self.registry.has_room(&session, target.sessions_max) {
            return Err(Refusal::TooManySessions);
        }
        let chap = matched.and_then(|group| group.chap.as_ref()).map(|chap| ChapCredentials {
            user: chap.user.clone(),
            secret: chap.secret.clone(),
            mutual: chap.mutual.clone(),
            algorithms: chap.algorithms.clone(),
        });
        let session = existing.map(|place| (place.tsih, place.cid));
        let queue_depth = matched.and_then(|group| group.queue_depth).or(target.queue_depth);
        Ok(Grant { chap, group, alias: target.alias.clone(), session, queue_depth })
    }

    fn send_targets(
        &self,
        initiator: &str,
        from: SocketAddr,
        portal: SocketAddr,
        which: SendTargets<'_>,
    ) -> Vec<TargetRecord> {
        let visible = |target: &&Target| {
            target.groups.is_empty() || target.group_of(initiator, from.ip()).is_some_and(|group| !group.deny)
        };
        let wanted = |target: &&Target| match which {
            SendTargets::All => true,
            SendTargets::One(name) => target.name.eq_ignore_ascii_case(name),
        };
        self.config
            .targets
            .iter()
            .filter(visible)
            .filter(wanted)
            .filter_map(|target| self.record(target, portal))
            .collect()
    }

    fn random(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the system gives random bytes");
    }

    fn new_tsih(&self) -> u16 {
        self.registry.new_tsih()
    }

    fn log_step(&self, step: &Step<'_>) {
        let Step { from, portal, stage, is_answer, keys } = step;
        let (stage, who) = (stage_name(*stage), if *is_answer { "target" } else { "initiator" });
        tracing::debug!(%from, %portal, keys = %shown_keys(keys), "login: {stage} negotiation, the {who} says");
    }
}

/// Stages of RFC 7143 section 11.12.3.
fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::SECURITY => "security",
        Stage::OPERATIONAL => "operational",
        _ => "unknown",
    }
}

/// Keys and values, with credentials left out.
fn shown_keys(keys: &[(&str, &str)]) -> String {
    let value = |key: &str, value: &str| match key {
        "CHAP_A" | "CHAP_I" | "CHAP_N" => wire::shown(value).to_string(),
        // The challenge too: with both challenge and response, secrets can be guessed offline.
        _ if key.to_ascii_uppercase().contains("CHAP") => "(not logged)".into(),
        _ => wire::shown(value).to_string(),
    };
    let keys: Vec<String> =
        keys.iter().map(|(key, of)| format!("{}={}", wire::shown(key), value(key, of))).collect();
    keys.join(" ")
}

impl srp::login::Access for ConfiguredAccess {
    fn admit(&self, applicant: &srp::login::Applicant) -> Result<bool, (RejectReason, String)> {
        let srp::login::Applicant { from, portal, initiator_port, target_port, keeps_others } = applicant;
        let (initiator, target) = (srp::login::port_name(initiator_port), srp::login::port_name(target_port));
        tracing::debug!(%from, %portal, initiator, target, keeps_others, "login: an SRP initiator requests a channel");
        let portal = self.portal_of(applicant.portal);
        let Some((portal, index)) = portal.and_then(|portal| Some((portal, self.config.srp_target(portal)?)))
        else {
            return Err((
                RejectReason::UNABLE_TO_ASSOCIATE,
                "no target is served through this portal".into(),
            ));
        };
        let target = &self.config.targets[index];
        let refused =
            |reason, why: &str| (reason, format!("{why} (initiator {initiator}, target {})", target.name));
        let forbidden = |why: String| refused(RejectReason::UNABLE_TO_ESTABLISH, &why);
        let matched = self.group_for(target, &initiator, applicant.from.ip()).map_err(forbidden)?;
        if let Some(group) = matched.filter(|group| group.chap.is_some()) {
            return Err(forbidden(format!("group {} requires CHAP, which SRP does not have", group.name)));
        }
        let Portal { group, drain, .. } = self.config.portals[portal];
        if drain.is_some() {
            return Err(refused(RejectReason::INSUFFICIENT_RESOURCES, DRAINED));
        }
        let number = self.targets[index].number;
        let ports =
            SessionName { initiator: initiator.clone(), isid: [0; 6], target: number, group, channel: 0 };
        let others = self.registry.channels(&ports);
        if applicant.keeps_others && others >= CHANNELS_MAX {
            let why = format!("the session has {CHANNELS_MAX} channels already");
            return Err(refused(RejectReason::CHANNEL_LIMIT, &why));
        }
        if !self.registry.has_room(&ports, target.sessions_max) {
            let why = "the target has no free slot for another session (sessions_max)";
            return Err(refused(RejectReason::INSUFFICIENT_RESOURCES, why));
        }
        Ok(others > 0)
    }

    fn queue_depth(&self, applicant: &srp::login::Applicant) -> Option<u16> {
        let index = self.config.srp_target(self.portal_of(applicant.portal)?)?;
        let (target, initiator) =
            (&self.config.targets[index], srp::login::port_name(&applicant.initiator_port));
        let group = target.group_of(&initiator, applicant.from.ip());
        group.and_then(|group| group.queue_depth).or(target.queue_depth)
    }
}

/// Whether both are IPv4 or both IPv6: sockets on `[::]` do not accept IPv4 connections here.
fn of_one_family(a: &SocketAddr, b: &SocketAddr) -> bool {
    a.is_ipv6() == b.is_ipv6()
}

/// Commands that one session may have in flight.
pub(crate) const QUEUE_DEPTH: u16 = config::QUEUE_DEPTH_MAX;

/// The longest information unit that is accepted: one with 16 KiB of data in it.
const SRP_IU_BYTES_MAX: u32 = srp::login::IMMEDIATE_OFFSET_MAX as u32 + (16 << 10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Place;
    use config::ServeOptions;

    fn access(config: Config, addresses: Vec<SocketAddr>, registry: Arc<Registry>) -> ConfiguredAccess {
        let named =
            |(number, target): (usize, &Target)| Arc::new(Named { number, name: target.name.clone() });
        let targets = config.targets.iter().enumerate().map(named).collect();
        ConfiguredAccess::new(Arc::new(config), targets, addresses, registry)
    }

    #[test]
    fn all_addresses_of_each_family_are_a_portal_of_their_own() {
        let listen = ["0.0.0.0:3260".to_owned(), "[::]:3260".to_owned()];
        let options = ServeOptions { listen: listen.into(), ..ServeOptions::default() };
        let mut config = Config::from_options(&options).expect("a configuration");
        config.portals[1].group = 2;
        let mut only_v6 = Target { name: "iqn.2026-11.a:six".into(), ..config.targets[0].clone() };
        only_v6.portals = vec![1];
        config.targets.push(only_v6);
        let addresses = config.portals.iter().map(|portal| portal.listen).collect();
        let access = access(config, addresses, Arc::default());
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let (v4, v6) = (at("192.0.2.1:3260"), at("[2001:db8::1]:3260"));
        let group = |target: &str, portal: SocketAddr| {
            access.authorize("iqn.a:i", Some(target), portal, portal, [0; 6]).map(|grant| grant.group)
        };
        assert_eq!(group("iqn.2026-11.io.lunette:disk", v4).ok(), Some(1));
        assert_eq!(group("iqn.2026-11.io.lunette:disk", v6).ok(), Some(2));
        assert_eq!(group("iqn.2026-11.a:six", v6).ok(), Some(2));
        assert!(matches!(group("iqn.2026-11.a:six", v4), Err(Refusal::NotFound)));
        let listed = |portal: SocketAddr| -> Vec<(String, Vec<(SocketAddr, u16)>)> {
            let records = access.send_targets("iqn.a:i", portal, portal, SendTargets::All);
            records.into_iter().map(|record| (record.name, record.portals)).collect()
        };
        let disk = "iqn.2026-11.io.lunette:disk".to_owned();
        assert_eq!(listed(v4), [(disk.clone(), vec![(v4, 1)])]);
        assert_eq!(listed(v6), [(disk, vec![(v6, 2)]), ("iqn.2026-11.a:six".into(), vec![(v6, 2)])]);
    }

    #[test]
    fn a_login_redirected_to_another_address_of_the_same_portal_is_not_redirected_again() {
        let login = |keys: &str, to: &str| {
            let text = format!(
                "portal = [{{ listen = '0.0.0.0:3260', redirect = '192.0.2.1:3260', {keys} }}]
                 lun = [{{ ram = '1M' }}]
                 [[target]]
                 name = 'iqn.2026-11.a:disk'"
            );
            let config = Config::from_toml(&text, std::path::Path::new("lunette.toml"));
            let config = config.unwrap_or_else(|problems| panic!("{problems}"));
            let addresses = vec![config.portals[0].listen];
            let (access, local) =
                (access(config, addresses, Arc::default()), to.parse().expect("an address"));
            access.authorize("iqn.a:i", Some("iqn.2026-11.a:disk"), local, local, [0; 6])
        };
        let there = "192.0.2.1:3260";
        for keys in ["", "drain = '30s'"] {
            let elsewhere = login(keys, "192.0.2.2:3260");
            assert!(matches!(elsewhere, Err(Refusal::Moved(to)) if to.to_string() == there));
        }
        assert!(login("", there).is_ok());
        let since = login("drain = '30s'", there);
        assert!(matches!(since, Err(Refusal::Unavailable(_))), "the machine has that address only since");
    }

    #[test]
    fn a_group_may_have_fewer_commands_in_flight_than_its_target() {
        const TEXT: &str = "
            portal = [{ listen = '192.0.2.1:1', transports = ['iscsi', 'srp'] }]
            lun = [{ ram = '1M' }]
            [[target]]
            name = 'iqn.2026-11.a:disk'
            queue_depth = 64
            [[target.group]]
            name = 'few'
            initiators = ['iqn.a:few', '0x0000000000000000000000000000000f']
            queue_depth = 4
            [[target.group]]
            name = 'others'";
        let config = Config::from_toml(TEXT, std::path::Path::new("lunette.toml"));
        let config = config.unwrap_or_else(|problems| panic!("{problems}"));
        let portal = config.portals[0].listen;
        let access = access(config, vec![portal], Arc::default());
        let by_iscsi = |name: &str| {
            let grant = access.authorize(name, Some("iqn.2026-11.a:disk"), portal, portal, [0; 6]);
            grant.expect("it may log in").queue_depth
        };
        assert_eq!([by_iscsi("iqn.a:few"), by_iscsi("iqn.a:many")], [Some(4), Some(64)]);
        let by_srp = |port: u128| {
            let (initiator_port, target_port) = (port.to_be_bytes(), [0; 16]);
            let (from, keeps_others) = (portal, false);
            let applicant = srp::login::Applicant { initiator_port, target_port, from, portal, keeps_others };
            srp::login::Access::queue_depth(&access, &applicant)
        };
        assert_eq!([by_srp(0xf), by_srp(0x10)], [Some(4), Some(64)]);
    }

    #[test]
    fn srp_reaches_the_first_target_of_its_portal_if_a_group_lets_it() {
        const TEXT: &str = "
            portal = [{ listen = '192.0.2.1:1', transports = ['srp'] }, { listen = '192.0.2.1:2' }]
            lun = [{ ram = '1M' }]
            [[target]]
            name = 'iqn.2026-11.a:other'
            luns = []
            portals = ['192.0.2.1:2']
            [[target]]
            name = 'iqn.2026-11.a:disk'
            luns = []
            sessions_max = 1
            [[target.group]]
            name = 'secret'
            initiators = ['0x0000000000000000000000000000000c']
            chap = { user = 'u', secret = '0123456789abcdef' }
            [[target.group]]
            name = 'ours'
            initiators = ['0x000000000000000000000000000000*']
            networks = ['192.0.2.0/24']";
        let config = Config::from_toml(TEXT, std::path::Path::new("lunette.toml"));
        let config = config.unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!((config.srp_target(0), config.srp_target(1)), (Some(1), Some(0)));
        let addresses: Vec<SocketAddr> = config.portals.iter().map(|portal| portal.listen).collect();
        let registry = Arc::new(Registry::default());
        let access = access(config, addresses.clone(), registry.clone());
        let admit = |port: u128, from: &str, keeps_others: bool| {
            let applicant = srp::login::Applicant {
                initiator_port: port.to_be_bytes(),
                target_port: [0; 16],
                from: from.parse().expect("an address"),
                portal: addresses[0],
                keeps_others,
            };
            srp::login::Access::admit(&access, &applicant)
        };
        let here = "192.0.2.9:9";
        assert_eq!(admit(0xb, here, false), Ok(false));
        let why = |refused: Result<bool, (RejectReason, String)>| refused.expect_err("refused");
        let (reason, text) = why(admit(0xc, here, false));
        assert!(reason == RejectReason::UNABLE_TO_ESTABLISH && text.contains("requires CHAP"), "{text}");
        let (_, text) = why(admit(0xb00, here, false));
        let port = srp::login::port_name(&0xb00_u128.to_be_bytes());
        let target = &access.config.targets[1].name;
        assert_eq!(text, format!("no group of the target matches (initiator {port}, target {target})"));
        assert!(why(admit(0xb, "203.0.113.1:9", false)).1.starts_with("no group of the target matches"));
        for serial in 1..=CHANNELS_MAX as u64 {
            let initiator = srp::login::port_name(&0xb_u128.to_be_bytes());
            let name = SessionName { initiator, isid: [0; 6], target: 1, group: 1, channel: serial };
            let place =
                Place { core: 0, serial, tsih: 0, cid: 0, is_over: false, is_settled: false, nexus: serial };
            registry.enter(name, place, 1).expect("room");
            let is_last = serial == CHANNELS_MAX as u64;
            let more = admit(0xb, here, true).map_err(|(reason, _)| reason);
            assert_eq!(more, if is_last { Err(RejectReason::CHANNEL_LIMIT) } else { Ok(true) });
        }
        assert_eq!(why(admit(0xd, here, false)).0, RejectReason::INSUFFICIENT_RESOURCES);
        assert_eq!(admit(0xb, here, false), Ok(true), "it replaces all");
        let listed = access.send_targets("iqn.a:i", addresses[0], addresses[1], SendTargets::All);
        let portals: Vec<_> = listed.into_iter().map(|record| record.portals).collect();
        assert_eq!(portals, [[(addresses[1], 1)]], "SRP's portal is not listed");
    }
}
