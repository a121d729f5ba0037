//! The target's side of the login phase.

use super::{
    Access, ChapCredentials, Grant, LOGIN_TEXT_MAX, Link, LoginReply, Names, Negotiated, REQUESTS_MAX, Recv,
    Refusal, Step, UNEXPECTED_MAX,
};
use crate::iscsi::chap::{self, Algorithm, Challenge, Credentials, Failure};
use crate::iscsi::keys::{self, Key, Kind, Offers, Place, RDMA_SEGMENT_MAX, Rule, Senders, Settled, Values};
use crate::iscsi::text::{self, TEXT_BYTES_MAX};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::iscsi::{LoginRequest, LoginStatus, Stage};
use wire::shown;

/// The login of one connection, fed with login requests until one reply closes it or ends it.
/// Its fields are needed only during the login: what lasts is in the grant and the values.
pub struct TargetLogin {
    access: Arc<dyn Access>,
    from: SocketAddr,
    portal: SocketAddr,
    offers: Offers,
    requests: u32,
    text_bytes: usize,
    /// The first request, which the others must match.
    first: Option<LoginRequest>,
    stage: Stage,
    /// Text of requests with the C bit.
    gathered: Vec<u8>,
    /// Text of our answer that did not fit.
    unsent: Vec<u8>,
    /// Every key received, in which stage, and with which value.
    seen: BTreeMap<String, (Stage, String)>,
    names: Names,
    grant: Option<Grant>,
    security: Security,
    values: Values,
    /// Our MaxRecvDataSegmentLength was declared.
    declared: bool,
    /// Keys that we proposed.
    proposed: Vec<Key>,
    over: bool,
}

/// The state of authentication.
#[derive(Clone, Debug)]
enum Security {
    /// No method was selected.
    Open,
    /// We proposed CHAP.
    Proposed,
    /// CHAP was selected.
    Chosen,
    /// We sent a challenge.
    Challenged(Algorithm, Challenge),
    /// Done, by this method.
    Passed(&'static str),
}

/// Why a login ends here.
struct Fault {
    status: LoginStatus,
    reason: String,
    /// Keys sent with the status.
    text: Vec<u8>,
}

fn fault(status: LoginStatus, reason: impl ToString) -> Fault {
    Fault { status, reason: reason.to_string(), text: Vec::new() }
}

/// A refusal; a redirection includes the address (section 11.13.5).
fn refused(refusal: &Refusal) -> Fault {
    let mut fault = fault(refusal.status(), refusal);
    if let Refusal::Moved(address) = refusal {
        text::append(&mut fault.text, "TargetAddress", address);
    }
    fault
}

/// Who requested what, as far as is known, for the log. What is not a valid name is not quoted.
fn who(names: &Names) -> String {
    let target = match names.target.as_deref() {
        _ if names.initiator.is_empty() => return String::new(),
        _ if names.discovery => "none: discovery",
        Some(target) if keys::is_name(target) => target,
        Some(_) => "no iSCSI name",
        None => "none",
    };
    format!(" (initiator {}, target {target})", names.initiator)
}

fn initiator_error(reason: impl ToString) -> Fault {
    fault(LoginStatus::INITIATOR_ERROR, reason)
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Fault {
        fault(LoginStatus::AUTHENTICATION_FAILURE, failure)
    }
}

type Pair<'a> = (&'a str, &'a str);

impl TargetLogin {
    /// A login that begins on a connection from `from` to this `portal`.
    pub fn new(access: Arc<dyn Access>, from: SocketAddr, portal: SocketAddr, offers: Offers) -> TargetLogin {
        TargetLogin {
            access,
            from,
            portal,
            offers,
            requests: 0,
            text_bytes: 0,
            first: None,
            stage: Stage::SECURITY,
            gathered: Vec::new(),
            unsent: Vec::new(),
            seen: BTreeMap::new(),
            names: Names::default(),
            grant: None,
            security: Security::Open,
            values: Values::default(),
            declared: false,
            proposed: Vec::new(),
            over: false,
        }
    }

    /// The first request, once it was received.
    pub fn begun(&self) -> Option<&LoginRequest> {
        self.first.as_ref()
    }

    /// Commands that the initiator may have in flight, if its grant limits them.
    pub fn queue_depth(&self) -> Option<u16> {
        self.grant.as_ref()?.queue_depth
    }

    /// Handles one login request and its text; returns the reply.
    pub fn request(&mut self, bhs: &LoginRequest, text: &[u8]) -> LoginReply {
        let stage = self.stage;
        let is_rest = !self.unsent.is_empty();
        let result = self.check(bhs).and_then(|()| self.take(bhs, text));
        if let Ok(reply) = &result
            && !is_rest
            && !reply.cont
            && let Ok(keys) = text::pairs(&reply.text)
        {
            self.trace(stage, true, &keys);
        }
        result.unwrap_or_else(|fault| {
            self.over = true;
            let reason = format!("login refused: {}{}", fault.reason, who(&self.names));
            LoginReply {
                status: fault.status,
                close: Some(reason),
                csg: Stage::default(),
                ..self.reply(fault.text)
            }
        })
    }

    fn trace(&self, stage: Stage, is_answer: bool, keys: &[Pair<'_>]) {
        self.access.log_step(&Step { from: self.from, portal: self.portal, stage, is_answer, keys });
    }

    /// Validates the header (sections 6.3 and 11.12).
    fn check(&mut self, bhs: &LoginRequest) -> Result<(), Fault> {
        if self.over {
            return Err(initiator_error("the login had ended"));
        }
        self.requests = self.requests.saturating_add(1);
        if self.requests > REQUESTS_MAX {
            return Err(initiator_error("too many login requests"));
        }
        match &self.first {
            Some(first) => {
                let same = first.isid == bhs.isid
                    && first.tsih == bhs.tsih
                    && first.cid == bhs.cid
                    && first.initiator_task_tag == bhs.initiator_task_tag;
                if !same {
                    return Err(initiator_error("ISID, TSIH, CID or task tag changed during login"));
                }
            }
            None => self.check_first(bhs)?,
        }
        if bhs.csg() != self.stage {
            return Err(initiator_error("wrong login stage"));
        }
        if bhs.transit() {
            let ahead = bhs.nsg() == Stage::FULL_FEATURE || bhs.nsg() == Stage::OPERATIONAL;
            if bhs.cont() || !ahead || bhs.nsg() <= bhs.csg() {
                return Err(initiator_error("illegal stage transition (RFC 7143 section 6.3)"));
            }
        }
        Ok(())
    }

    fn check_first(&mut self, bhs: &LoginRequest) -> Result<(), Fault> {
        if bhs.version_min > 0 {
            return Err(fault(LoginStatus::UNSUPPORTED_VERSION, "iSCSI version not supported"));
        }
        if bhs.csg() == Stage::SECURITY || bhs.csg() == Stage::OPERATIONAL {
            self.stage = bhs.csg();
        }
        self.first = Some(*bhs);
        Ok(())
    }

    /// Gathers text, and answers once it is complete.
    fn take(&mut self, bhs: &LoginRequest, text: &[u8]) -> Result<LoginReply, Fault> {
        if !self.unsent.is_empty() {
            if !text.is_empty() {
                return Err(initiator_error("text while an answer was not finished (RFC 7143 section 6.2)"));
            }
            let rest = std::mem::take(&mut self.unsent);
            return Ok(self.begin_text(rest));
        }
        self.text_bytes = self.text_bytes.saturating_add(text.len());
        if self.text_bytes > TEXT_BYTES_MAX {
            return Err(initiator_error("more than 64 KiB of login text"));
        }
        self.gathered.extend_from_slice(text);
        if bhs.cont() {
            return Ok(self.reply(Vec::new()));
        }
        let whole = std::mem::take(&mut self.gathered);
        let pairs = text::pairs(&whole).map_err(initiator_error)?;
        self.trace(self.stage, false, &pairs);
        let mut out = Vec::new();
        self.negotiate(&pairs, &mut out)?;
        if out.len() > LOGIN_TEXT_MAX || !bhs.transit() {
            return Ok(self.begin_text(out));
        }
        self.transit(bhs.nsg(), out)
    }

    fn reply(&self, text: Vec<u8>) -> LoginReply {
        LoginReply {
            status: LoginStatus::SUCCESS,
            transit: false,
            cont: false,
            csg: self.stage,
            nsg: Stage::default(),
            tsih: 0,
            text,
            close: None,
            done: None,
        }
    }

    /// Sends as much of the text as fits; the rest waits for requests without text. It is sent without the T
    /// bit: the initiator keeps requesting the transition (section 6.3.3).
    fn begin_text(&mut self, mut text: Vec<u8>) -> LoginReply {
        self.unsent = text.split_off(text.len().min(LOGIN_TEXT_MAX));
        let cont = !self.unsent.is_empty();
        LoginReply { cont, ..self.reply(text) }
    }

    /// Answers a complete text.
    fn negotiate(&mut self, pairs: &[Pair<'_>], out: &mut Vec<u8>) -> Result<(), Fault> {
        let mut fresh = Vec::with_capacity(pairs.len());
        for (name, value) in pairs.iter().copied() {
            let rule = keys::find(name);
            if !self.is_new(rule, name, value)? {
                continue;
            }
            match rule {
                None => text::append(out, name, "NotUnderstood"),
                Some(rule) if rule.senders == Senders::Target => {
                    return Err(initiator_error(format!("{name} from an initiator")));
                }
                Some(rule) if !rule.allowed_in(self.stage) => {
                    return Err(initiator_error(format!("{name} in the wrong login stage")));
                }
                Some(rule) => fresh.push((rule, value)),
            }
        }
        match self.grant {
            None => self.identify(&fresh, out)?,
            Some(_) => {
                let fixed =
                    |rule: &Rule| matches!(rule.key, Key::InitiatorName | Key::TargetName | Key::SessionType);
                if let Some((rule, _)) = fresh.iter().find(|(rule, _)| fixed(rule)) {
                    return Err(initiator_error(format!("{} after the first request", rule.name)));
                }
            }
        }
        if let Some((_, alias)) = fresh.iter().find(|(rule, _)| rule.key == Key::InitiatorAlias) {
            self.names.alias = Some((*alias).to_string());
        }
        match self.stage {
            Stage::SECURITY => self.authenticate(&fresh, out),
            _ => self.operate(&fresh, out),
        }
    }

    /// A key may be sent once. Only the names may be repeated in a later stage: each stage is a separate
    /// negotiation (section 6.2), and some initiators repeat them.
    fn is_new(&mut self, rule: Option<&Rule>, name: &str, value: &str) -> Result<bool, Fault> {
        match self.seen.get(name) {
            None => {
                self.seen.insert(name.to_string(), (self.stage, value.to_string()));
                Ok(true)
            }
            Some((stage, before)) if *stage != self.stage && before == value => {
                let may_repeat = rule.is_some_and(|rule| rule.kind == Kind::Text);
                if may_repeat { Ok(false) } else { Err(initiator_error(format!("{name} was sent twice"))) }
            }
            Some(_) => Err(initiator_error(format!("{name} was sent twice"))),
        }
    }

    /// Determines the names from the first text (section 6.3).
    fn identify(&mut self, pairs: &[(&Rule, &str)], out: &mut Vec<u8>) -> Result<(), Fault> {
        let find = |key| pairs.iter().find(|(rule, _)| rule.key == key).map(|(_, value)| *value);
        let missing = |name: &str| fault(LoginStatus::MISSING_PARAMETER, format!("{name} is missing"));
        let initiator = find(Key::InitiatorName).ok_or_else(|| missing("InitiatorName"))?;
        if !keys::is_name(initiator) {
            return Err(initiator_error("InitiatorName is no iSCSI name"));
        }
        self.names.initiator = initiator.to_string();
        self.names.discovery = match find(Key::SessionType) {
            None | Some("Normal") => false,
            Some("Discovery") => true,
            Some(_) => return Err(fault(LoginStatus::SESSION_TYPE_NOT_SUPPORTED, "unknown SessionType")),
        };
        let target = match find(Key::TargetName) {
            _ if self.names.discovery => None,
            Some(target) => Some(target),
            None => return Err(missing("TargetName")),
        };
        self.names.target = target.map(str::to_string);
        let isid = self.first.map_or([0; 6], |first| first.isid);
        let grant = self
            .access
            .authorize(initiator, target, self.from, self.portal, isid)
            .map_err(|refusal| refused(&refusal))?;
        self.check_session(grant.session)?;
        if grant.chap.is_some() && self.stage != Stage::SECURITY {
            return Err(fault(LoginStatus::AUTHENTICATION_FAILURE, "authentication is required"));
        }
        text::append(out, "TargetPortalGroupTag", grant.group);
        if let (Some(alias), false) = (&grant.alias, self.names.discovery) {
            text::append(out, "TargetAlias", alias);
        }
        self.grant = Some(grant);
        Ok(())
    }

    /// With a TSIH, the session must exist (section 6.3.1); at error recovery level 0 it is reinstated. A
    /// second connection would be one too many.
    fn check_session(&self, session: Option<(u16, u16)>) -> Result<(), Fault> {
        let (tsih, cid) = self.first.map_or((0, 0), |first| (first.tsih.get(), first.cid.get()));
        match session {
            _ if tsih == 0 => Ok(()),
            Some((found, connection)) if found == tsih && connection == cid => Ok(()),
            Some((found, _)) if found == tsih => Err(fault(
                LoginStatus::TOO_MANY_CONNECTIONS,
                "the session has a connection (MaxConnections=1)",
            )),
            Some(_) | None => Err(fault(LoginStatus::NO_SUCH_SESSION, "there is no session with that TSIH")),
        }
    }

    fn credentials(&self) -> Option<&ChapCredentials> {
        self.grant.as_ref().and_then(|grant| grant.chap.as_ref())
    }

    /// SecurityNegotiation (sections 6.3.2 and 12.1).
    fn authenticate(&mut self, pairs: &[(&Rule, &str)], out: &mut Vec<u8>) -> Result<(), Fault> {
        let find = |key| pairs.iter().find(|(rule, _)| rule.key == key).map(|(_, value)| *value);
        if let Some((rule, offered)) = pairs.iter().find(|(rule, _)| rule.key == Key::AuthMethod) {
            self.choose_method(rule, offered, out)?;
        }
        match &self.security {
            Security::Chosen => {
                let Some(list) = find(Key::ChapA) else { return Ok(()) };
                let accepted = self.credentials().map_or(&[][..], |credentials| &credentials.algorithms);
                let algorithm = Algorithm::choose_of(accepted, list).map_err(|failure| {
                    let accepted = if accepted.is_empty() { &Algorithm::ALL } else { accepted };
                    let accepted: Vec<&str> = accepted.iter().map(|one| one.name()).collect();
                    let (offered, accepted) = (shown(list), accepted.join(", "));
                    let reason = format!("{failure}: CHAP_A={offered} is offered, accepted is {accepted}");
                    fault(LoginStatus::AUTHENTICATION_FAILURE, reason)
                })?;
                let mut random = [0; Challenge::RANDOM_BYTES];
                self.access.random(&mut random);
                let challenge = Challenge::new(algorithm, &random);
                text::append(out, "CHAP_A", algorithm.number());
                challenge.append_to(out);
                self.security = Security::Challenged(algorithm, challenge);
                Ok(())
            }
            Security::Challenged(algorithm, challenge) => {
                if !pairs.iter().any(|(rule, _)| is_chap(rule)) {
                    return Ok(());
                }
                let name = find(Key::ChapN).ok_or(Failure::Missing("CHAP_N"))?;
                let response = find(Key::ChapR).ok_or(Failure::Missing("CHAP_R"))?;
                let theirs = match (find(Key::ChapI), find(Key::ChapC)) {
                    (None, None) => None,
                    (Some(identifier), Some(challenge)) => Some(Challenge::parse(identifier, challenge)?),
                    (None, Some(_)) => return Err(Failure::Missing("CHAP_I").into()),
                    (Some(_), None) => return Err(Failure::Missing("CHAP_C").into()),
                };
                let credentials = self.credentials().ok_or(Failure::Wrong)?;
                let (expected, ours) = identities(credentials);
                chap::verify(*algorithm, challenge, &expected, ours.as_ref(), name, response)?;
                if let Some(theirs) = theirs {
                    let ours = ours.ok_or(Failure::NotMutual)?;
                    chap::answer(*algorithm, &theirs, Some(challenge), &ours, out)?;
                }
                self.security = Security::Passed("CHAP");
                Ok(())
            }
            Security::Open | Security::Proposed | Security::Passed(_) => {
                match pairs.iter().find(|(rule, _)| is_chap(rule)) {
                    Some((rule, _)) => Err(initiator_error(format!("unexpected {}", rule.name))),
                    None => Ok(()),
                }
            }
        }
    }

    /// Selects the first method that is allowed for this initiator; without one the login cannot continue.
    fn choose_method(&mut self, rule: &Rule, offered: &str, out: &mut Vec<u8>) -> Result<(), Fault> {
        const NONE: u32 = 0b01;
        const CHAP: u32 = 0b10;
        let allowed = if self.credentials().is_some() { CHAP } else { NONE };
        let Ok(Some(method)) = rule.answer(offered, allowed) else {
            return Err(fault(
                LoginStatus::AUTHENTICATION_FAILURE,
                format!("no AuthMethod of {} is allowed", wire::shown(offered)),
            ));
        };
        if !matches!(self.security, Security::Proposed) {
            text::append(out, rule.name, rule.show(method));
        }
        self.security = if allowed == CHAP { Security::Chosen } else { Security::Passed("None") };
        Ok(())
    }

    /// LoginOperationalNegotiation (sections 6.3.3 and 13).
    fn operate(&mut self, pairs: &[(&Rule, &str)], out: &mut Vec<u8>) -> Result<(), Fault> {
        // FirstBurstLength depends on MaxBurstLength, so it is answered last.
        let last = |rule: &Rule| rule.key == Key::FirstBurstLength;
        let ordered =
            pairs.iter().filter(|(rule, _)| !last(rule)).chain(pairs.iter().filter(|(rule, _)| last(rule)));
        for (rule, value) in ordered {
            self.answer(rule, value, out)?;
        }
        if !self.declared && !self.has_rdma() {
            self.declared = true;
            text::append(out, "MaxRecvDataSegmentLength", self.offers.max_recv);
        }
        Ok(())
    }

    fn answer(&mut self, rule: &Rule, value: &str, out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.is_irrelevant(rule) {
            if rule.negotiated() {
                text::append(out, rule.name, "Irrelevant");
            }
            return Ok(());
        }
        let ours = match rule.key {
            Key::FirstBurstLength => self.offers.first_burst.min(self.values.get(Key::MaxBurstLength)),
            key => self.offers.of(key),
        };
        match rule.kind {
            Kind::Number(..) | Kind::Flag => {
                let number = rule.number(value);
                let number =
                    number.ok_or_else(|| initiator_error(format!("{} is out of bounds", rule.name)))?;
                self.values.set(rule.key, number);
                // Only to initiators that know the key: open-iscsi fails on keys that it does not know.
                if rule.key == Key::MaxOutstandingUnexpectedPdus {
                    text::append(out, rule.name, UNEXPECTED_MAX);
                }
            }
            Kind::Text | Kind::Exchange => {}
            Kind::Obsolete => text::append(out, rule.name, "Reject"),
            _ if self.proposed.contains(&rule.key) => match rule.settle(ours, value) {
                Some(Settled::Value(settled)) => self.values.set(rule.key, settled),
                Some(Settled::Default) | None => {
                    return Err(initiator_error(format!("{} is not what was proposed", rule.name)));
                }
            },
            _ => {
                let answer = rule.answer(value, ours);
                match answer.map_err(|_| initiator_error(format!("{} offers an answer", rule.name)))? {
                    Some(agreed) => {
                        self.values.set(rule.key, agreed);
                        text::append(out, rule.name, rule.show(agreed));
                    }
                    None => text::append(out, rule.name, "Reject"),
                }
            }
        }
        Ok(())
    }

    /// The initiator requests the transition to stage `to`.
    fn transit(&mut self, to: Stage, mut out: Vec<u8>) -> Result<LoginReply, Fault> {
        let ready = match self.stage {
            Stage::SECURITY => self.security_done(&mut out)?,
            _ => self.operational_done(&mut out)?,
        };
        if !ready {
            return Ok(self.reply(out));
        }
        if to == Stage::FULL_FEATURE && self.offers.rdma && !self.names.discovery && !self.has_rdma() {
            return Err(initiator_error("RDMAExtensions=Yes is missing (RFC 7145 section 3.3)"));
        }
        let exceeded = self.exceeded().next().is_some();
        let to = if self.stage == Stage::SECURITY && exceeded { Stage::OPERATIONAL } else { to };
        let mut reply = LoginReply { transit: true, nsg: to, ..self.reply(out) };
        self.stage = to;
        if to == Stage::FULL_FEATURE {
            let negotiated = self.finish();
            reply.tsih = negotiated.session.tsih;
            reply.done = Some(negotiated);
        }
        Ok(reply)
    }

    /// Whether authentication is complete; if it is required and was not begun, we propose it.
    fn security_done(&mut self, out: &mut Vec<u8>) -> Result<bool, Fault> {
        match self.security {
            Security::Passed(_) => Ok(true),
            Security::Open if self.credentials().is_none() => Ok(true),
            Security::Open => {
                text::append(out, "AuthMethod", "CHAP");
                self.security = Security::Proposed;
                Ok(false)
            }
            Security::Proposed => {
                Err(fault(LoginStatus::AUTHENTICATION_FAILURE, "authentication is required"))
            }
            Security::Chosen | Security::Challenged(..) => Ok(false),
        }
    }

    /// Whether everything required has been negotiated: where a default exceeds what we support, we propose
    /// less.
    fn operational_done(&mut self, out: &mut Vec<u8>) -> Result<bool, Fault> {
        let max_burst = self.values.get(Key::MaxBurstLength);
        if self.values.has(Key::FirstBurstLength) && self.values.get(Key::FirstBurstLength) > max_burst {
            return Err(initiator_error("FirstBurstLength exceeds MaxBurstLength (RFC 7143 section 13.14)"));
        }
        let exceeded: Vec<&Rule> = self.exceeded().collect();
        for rule in &exceeded {
            if self.seen.contains_key(rule.name) {
                return Err(initiator_error(format!("{} cannot be agreed on", rule.name)));
            }
            if !self.proposed.contains(&rule.key) {
                self.proposed.push(rule.key);
                text::append(out, rule.name, rule.offer(self.offers.of(rule.key)));
            }
        }
        Ok(exceeded.is_empty())
    }

    /// Keys that were not negotiated and whose default exceeds what we support.
    fn exceeded(&self) -> impl Iterator<Item = &'static Rule> + '_ {
        keys::TABLE.iter().filter(|rule| {
            rule.place == Place::Operational
                && !self.is_irrelevant(rule)
                && !self.values.has(rule.key)
                && self.offers.exceeded_by_default(rule)
        })
    }

    /// Whether RDMAExtensions=Yes was negotiated.
    fn has_rdma(&self) -> bool {
        self.values.get(Key::RdmaExtensions) != 0
    }

    fn is_irrelevant(&self, rule: &Rule) -> bool {
        (rule.irrelevant_in_discovery && self.names.discovery) || (rule.needs_rdma() && !self.offers.rdma)
    }

    /// MaxRecvDataSegmentLength of both sides; with RDMA it is ignored (RFC 7145 section 6.2).
    fn recv(&self) -> Recv {
        let declared = self.values.get(Key::MaxRecvDataSegmentLength);
        if self.has_rdma() {
            return Recv {
                initiator: self.values.get(Key::InitiatorRecvDataSegmentLength),
                target: self.values.get(Key::TargetRecvDataSegmentLength),
            };
        }
        let undeclared = keys::rule(Key::MaxRecvDataSegmentLength).map_or(0, |rule| rule.default);
        Recv {
            // In a discovery session over iSER, no more fits into a message, whatever the initiator declares.
            initiator: if self.offers.rdma { declared.min(RDMA_SEGMENT_MAX) } else { declared },
            target: if self.declared { self.offers.max_recv } else { undeclared },
        }
    }

    fn finish(&mut self) -> Negotiated {
        self.over = true;
        let recv = self.recv();
        let method = match self.security {
            Security::Passed(method) => method,
            Security::Open | Security::Proposed | Security::Chosen | Security::Challenged(..) => "None",
        };
        let (isid, tsih, cid) =
            self.first.map_or(([0; 6], 0, 0), |first| (first.isid, first.tsih.get(), first.cid.get()));
        let tsih = if tsih == 0 { self.access.new_tsih() } else { tsih };
        let link = Link { isid, tsih, cid, method };
        Negotiated::new(&self.values, recv, &self.names, link)
    }
}

fn is_chap(rule: &Rule) -> bool {
    matches!(rule.key, Key::ChapA | Key::ChapI | Key::ChapC | Key::ChapN | Key::ChapR)
}

/// The credentials of the initiator and of the target.
fn identities(credentials: &ChapCredentials) -> (Credentials, Option<Credentials>) {
    let identity =
        |name: &str, secret: &[u8]| Credentials { name: name.to_string(), secret: secret.to_vec() };
    let ours = credentials.mutual.as_ref().map(|(name, secret)| identity(name, secret));
    (identity(&credentials.user, &credentials.secret), ours)
}
