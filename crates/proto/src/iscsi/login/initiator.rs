//! The initiator's side of the login phase.

use super::{LOGIN_TEXT_MAX, Link, Names, Negotiated, REQUESTS_MAX, Recv, UNEXPECTED_MAX};
use crate::iscsi::chap::{self, Algorithm, Challenge, Credentials};
use crate::iscsi::keys::{self, Key, Kind, Offers, Place, Rule, Senders, Settled, Values};
use crate::iscsi::text::{self, TEXT_BYTES_MAX};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use wire::iscsi::{CONTINUE, LoginResponse, LoginStatus, Stage};

/// The port of an address without one (section 4.2.7.3).
const PORT: u16 = 3260;

/// The longest name of a host, and each of its labels (RFC 1035 section 2.3.4).
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// How to log in.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Our name.
    pub initiator: String,
    /// Our alias.
    pub alias: Option<String>,
    /// The target's name; `None`: a discovery session.
    pub target: Option<String>,
    /// Initiator session id.
    pub isid: [u8; 6],
    /// How to authenticate.
    pub chap: Option<InitiatorChap>,
    /// What to offer.
    pub offers: Offers,
    /// Bytes of text in one request, at most 8192.
    pub text_bytes: u16,
}

/// How an initiator authenticates.
#[derive(Clone, Debug)]
pub struct InitiatorChap {
    /// Our credentials.
    pub own: Credentials,
    /// The credentials that the target must prove.
    pub target: Option<Credentials>,
    /// The algorithms to offer, in order of preference.
    pub algorithms: Vec<Algorithm>,
    /// Logging in without it is not allowed; otherwise the target may skip it, unless it has to authenticate
    /// itself.
    pub is_required: bool,
    /// Fresh random bytes for our challenge.
    pub random: [u8; Challenge::RANDOM_BYTES],
}

impl InitiatorChap {
    /// Whether the login may skip it.
    fn may_be_left_out(&self) -> bool {
        self.target.is_none() && !self.is_required
    }
}

/// One login request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoginSend {
    /// T.
    pub transit: bool,
    /// C.
    pub cont: bool,
    /// Current stage.
    pub csg: Stage,
    /// Next stage.
    pub nsg: Stage,
    /// Text.
    pub text: Vec<u8>,
}

/// The login of one connection: [`InitiatorLogin::request`] and [`InitiatorLogin::response`] in turn.
pub struct InitiatorLogin {
    plan: Plan,
    requests: u32,
    stage: Stage,
    step: Step,
    /// Text that has not been sent.
    unsent: Vec<u8>,
    /// Whether to request the next stage after that.
    transit: bool,
    /// The last request.
    sent: Option<LoginSend>,
    /// Text of responses with the C bit.
    gathered: Vec<u8>,
    seen: Vec<String>,
    values: Values,
    /// Where the target is now.
    moved: Option<Elsewhere>,
}

/// Where a target accepts logins instead (RFC 7143 section 13.8).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Elsewhere {
    /// At this address.
    Address(SocketAddr),
    /// At the host with this name, which has to be resolved, and this port.
    Name {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elsewhere::Address(address) => address.fmt(f),
            Elsewhere::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// What the next response is about.
#[derive(Clone, Debug)]
enum Step {
    Method,
    Challenge,
    /// The target's response, if we requested it with this challenge.
    Proof(Algorithm, Option<Challenge>),
    /// Authentication is done.
    Passed(&'static str),
}

impl InitiatorLogin {
    /// A login that begins.
    pub fn new(plan: Plan) -> InitiatorLogin {
        let mut text = Vec::new();
        text::append(&mut text, "InitiatorName", &plan.initiator);
        if let Some(alias) = &plan.alias {
            text::append(&mut text, "InitiatorAlias", alias);
        }
        match &plan.target {
            Some(target) => {
                text::append(&mut text, "SessionType", "Normal");
                text::append(&mut text, "TargetName", target);
            }
            None => text::append(&mut text, "SessionType", "Discovery"),
        }
        let (methods, transit) = match &plan.chap {
            Some(chap) if chap.may_be_left_out() => ("CHAP,None", true),
            Some(_) => ("CHAP", false),
            None => ("None", true),
        };
        text::append(&mut text, "AuthMethod", methods);
        InitiatorLogin {
            plan,
            requests: 0,
            stage: Stage::SECURITY,
            step: Step::Method,
            unsent: text,
            transit,
            sent: None,
            gathered: Vec::new(),
            seen: Vec::new(),
            values: Values::default(),
            moved: None,
        }
    }

    /// Where to log in instead: the target has refused this login for that reason (section 11.13.5).
    pub fn moved(&self) -> Option<&Elsewhere> {
        self.moved.as_ref()
    }

    /// The plan of this login.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The next request.
    pub fn request(&mut self) -> LoginSend {
        let max = usize::from(self.plan.text_bytes).clamp(1, LOGIN_TEXT_MAX);
        let answering = !self.gathered.is_empty();
        let text = if answering {
            Vec::new()
        } else {
            let rest = self.unsent.split_off(self.unsent.len().min(max));
            std::mem::replace(&mut self.unsent, rest)
        };
        let cont = !answering && !self.unsent.is_empty();
        let transit = !cont && !answering && self.transit;
        let nsg = match (transit, self.stage) {
            (false, _) => Stage::default(),
            (true, Stage::SECURITY) => Stage::OPERATIONAL,
            (true, _) => Stage::FULL_FEATURE,
        };
        let send = LoginSend { transit, cont, csg: self.stage, nsg, text };
        self.sent = Some(send.clone());
        send
    }

    /// Handles the response to the last request. With `Some`, the login is complete; with `None`, another
    /// request is due. An error is the reason to close the connection.
    pub fn response(&mut self, bhs: &LoginResponse, text: &[u8]) -> Result<Option<Negotiated>, String> {
        let Some(sent) = self.sent.take() else {
            return Err("an unexpected login response".to_string());
        };
        self.requests = self.requests.saturating_add(1);
        if self.requests > REQUESTS_MAX {
            return Err("too many login responses".to_string());
        }
        if bhs.status.class == LoginStatus::MOVED_TEMPORARILY.class {
            self.moved = Some(elsewhere(bhs.status, text)?);
        }
        check(bhs, &sent, text)?;
        if sent.cont {
            return Ok(None);
        }
        self.gathered.extend_from_slice(text);
        if self.gathered.len() > TEXT_BYTES_MAX {
            return Err("more than 64 KiB of login text".to_string());
        }
        if bhs.flags & CONTINUE != 0 {
            return Ok(None);
        }
        let whole = std::mem::take(&mut self.gathered);
        let pairs = text::pairs(&whole).map_err(|error| error.to_string())?;
        self.take(&pairs)?;
        if bhs.flags & LoginResponse::TRANSIT == 0 {
            return Ok(None);
        }
        if !matches!(self.step, Step::Passed(_)) {
            return Err("the target ends the security stage too early".to_string());
        }
        self.stage = bhs.nsg();
        if self.stage == Stage::FULL_FEATURE {
            return Ok(Some(self.finish(bhs.tsih.get())));
        }
        self.offer();
        Ok(None)
    }

    /// Handles a complete text.
    fn take(&mut self, pairs: &[(&str, &str)]) -> Result<(), String> {
        for (name, value) in pairs.iter().copied() {
            let rule = keys::find(name);
            let repeatable = rule.is_some_and(|rule| rule.key == Key::TargetAddress);
            if !repeatable && self.seen.iter().any(|seen| seen == name) {
                return Err(format!("{name} was sent twice"));
            }
            self.seen.push(name.to_string());
            match rule {
                None => text::append(&mut self.unsent, name, "NotUnderstood"),
                Some(rule) if rule.senders == Senders::Initiator => {
                    return Err(format!("{name} from a target"));
                }
                Some(rule) if !rule.allowed_in(self.stage) => {
                    return Err(format!("{name} in the wrong login stage"));
                }
                Some(rule) => self.settle(rule, value)?,
            }
        }
        if self.stage == Stage::SECURITY { self.authenticate(pairs) } else { Ok(()) }
    }

    /// Handles the answer to an offer, or a declaration.
    fn settle(&mut self, rule: &Rule, value: &str) -> Result<(), String> {
        let wrong = || format!("{} has an inadmissible value", rule.name);
        match rule.kind {
            Kind::Number(..) | Kind::Flag => {
                let number = rule.number(value).ok_or_else(wrong)?;
                self.values.set(rule.key, number);
                Ok(())
            }
            Kind::Text | Kind::Exchange | Kind::Obsolete => Ok(()),
            _ if rule.key == Key::AuthMethod => Ok(()),
            _ => {
                match rule.settle(self.plan.offers.of(rule.key), value).ok_or_else(wrong)? {
                    Settled::Value(value) => self.values.set(rule.key, value),
                    Settled::Default => {}
                }
                Ok(())
            }
        }
    }

    /// One step of SecurityNegotiation.
    fn authenticate(&mut self, pairs: &[(&str, &str)]) -> Result<(), String> {
        let find = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        match (&self.step, &self.plan.chap) {
            (Step::Method, chap) => match (find("AuthMethod"), chap) {
                (Some("CHAP"), Some(chap)) => {
                    let list: Vec<String> =
                        chap.algorithms.iter().map(|one| one.number().to_string()).collect();
                    text::append(&mut self.unsent, "CHAP_A", list.join(","));
                    self.transit = false;
                    self.step = Step::Challenge;
                }
                (Some("None"), chap) if chap.as_ref().is_none_or(InitiatorChap::may_be_left_out) => {
                    self.transit = true;
                    self.step = Step::Passed("None");
                }
                (None, None) => self.step = Step::Passed("None"),
                (Some(method), _) => {
                    return Err(format!("the target chose AuthMethod={}", wire::shown(method)));
                }
                (None, Some(_)) => return Err("the target chose no AuthMethod".to_string()),
            },
            (Step::Challenge, Some(chap)) => {
                let missing = || "the CHAP challenge is not complete".to_string();
                let algorithm = find("CHAP_A").ok_or_else(missing)?;
                let algorithm = Algorithm::choose(algorithm)
                    .filter(|algorithm| chap.algorithms.contains(algorithm))
                    .ok_or("the target chose a CHAP algorithm that was not offered")?;
                let (identifier, challenge) =
                    (find("CHAP_I").ok_or_else(missing)?, find("CHAP_C").ok_or_else(missing)?);
                let theirs =
                    Challenge::parse(identifier, challenge).map_err(|failure| failure.to_string())?;
                theirs.check_length().map_err(|failure| failure.to_string())?;
                let own = chap.target.is_some().then(|| Challenge::new(algorithm, &chap.random));
                chap::answer(algorithm, &theirs, own.as_ref(), &chap.own, &mut self.unsent)
                    .map_err(|failure| failure.to_string())?;
                if let Some(own) = &own {
                    own.append_to(&mut self.unsent);
                }
                self.transit = true;
                self.step = Step::Proof(algorithm, own);
            }
            (
                Step::Proof(algorithm, Some(challenge)),
                Some(InitiatorChap { own, target: Some(target), .. }),
            ) => {
                let (Some(name), Some(response)) = (find("CHAP_N"), find("CHAP_R")) else {
                    return Err("the target did not authenticate".to_string());
                };
                chap::verify(*algorithm, challenge, target, Some(own), name, response)
                    .map_err(|failure| format!("the target failed to authenticate: {failure}"))?;
                self.step = Step::Passed("CHAP");
            }
            (Step::Proof(..), _) => self.step = Step::Passed("CHAP"),
            (Step::Challenge, None) => return Err("CHAP was not offered".to_string()),
            (Step::Passed(_), _) => {}
        }
        Ok(())
    }

    /// Offers every operational key.
    fn offer(&mut self) {
        self.transit = true;
        if self.has_rdma() {
            // First, as RFC 7145 section 6.3 requires.
            text::append(&mut self.unsent, "RDMAExtensions", "Yes");
            text::append(&mut self.unsent, "MaxOutstandingUnexpectedPDUs", UNEXPECTED_MAX);
            text::append(&mut self.unsent, "TaggedBufferForSolicitedDataOnly", "Yes");
        } else {
            text::append(&mut self.unsent, "MaxRecvDataSegmentLength", self.plan.offers.max_recv);
        }
        for rule in self.offered().filter(|rule| rule.key != Key::RdmaExtensions) {
            text::append(&mut self.unsent, rule.name, rule.offer(self.plan.offers.of(rule.key)));
        }
    }

    fn offered(&self) -> impl Iterator<Item = &'static Rule> + use<> {
        let discovery = self.plan.target.is_none();
        let rdma = self.has_rdma();
        keys::TABLE.iter().filter(move |rule| {
            let obsolete = matches!(rule.key, Key::IfMarker | Key::OfMarker | Key::IserHelloRequired);
            let irrelevant = (discovery && rule.irrelevant_in_discovery)
                || (!rdma && (rule.needs_rdma() || rule.key == Key::RdmaExtensions));
            rule.place == Place::Operational && rule.negotiated() && !obsolete && !irrelevant
        })
    }

    /// Whether RDMAExtensions is offered: discovery sessions do not have it (RFC 7145 section 5.1).
    fn has_rdma(&self) -> bool {
        self.plan.offers.rdma && self.plan.target.is_some()
    }

    fn finish(&mut self, tsih: u16) -> Negotiated {
        // These two need no answer if the offer alone decides (section 6.2.2).
        for rule in self.offered().filter(|rule| !self.values.has(rule.key)).collect::<Vec<_>>() {
            match (rule.kind, self.plan.offers.of(rule.key)) {
                (Kind::And, 0) => self.values.set(rule.key, 0),
                (Kind::Or, 1) => self.values.set(rule.key, 1),
                _ => {}
            }
        }
        let names = Names {
            initiator: self.plan.initiator.clone(),
            alias: self.plan.alias.clone(),
            target: self.plan.target.clone(),
            discovery: self.plan.target.is_none(),
        };
        let recv = if self.has_rdma() {
            Recv {
                initiator: self.values.get(Key::InitiatorRecvDataSegmentLength),
                target: self.values.get(Key::TargetRecvDataSegmentLength),
            }
        } else {
            Recv {
                initiator: self.plan.offers.max_recv,
                target: self.values.get(Key::MaxRecvDataSegmentLength),
            }
        };
        let method = if let Step::Passed(method) = self.step { method } else { "None" };
        let link = Link { isid: self.plan.isid, tsih, cid: 0, method };
        Negotiated::new(&self.values, recv, &names, link)
    }
}

/// Validates the header of a response.
fn check(bhs: &LoginResponse, sent: &LoginSend, text: &[u8]) -> Result<(), String> {
    if bhs.status != LoginStatus::SUCCESS {
        return Err(refused(bhs.status));
    }
    let transit = bhs.flags & LoginResponse::TRANSIT != 0;
    let cont = bhs.flags & CONTINUE != 0;
    if bhs.csg() != sent.csg {
        return Err("the target answers in another stage".to_string());
    }
    if transit && (!sent.transit || cont || bhs.nsg() > sent.nsg || bhs.nsg() <= bhs.csg()) {
        return Err("illegal stage transition by the target".to_string());
    }
    if sent.cont && (!text.is_empty() || cont) {
        return Err("text while a request was not finished".to_string());
    }
    Ok(())
}

/// Where a redirection leads.
fn elsewhere(status: LoginStatus, text: &[u8]) -> Result<Elsewhere, String> {
    let pairs = text::pairs(text).map_err(|error| error.to_string())?;
    let address = pairs.iter().find(|(key, _)| *key == "TargetAddress").map(|(_, address)| *address);
    let address = address.ok_or_else(|| format!("{}, but it has sent no TargetAddress", refused(status)))?;
    let unknown =
        || format!("{} to {}, which is not an address and a port", refused(status), wire::shown(address));
    // Without the portal group (section 13.8).
    let portal = address.split_once(',').map_or(address, |(portal, _)| portal);
    let ip = portal.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(portal);
    let alone = || ip.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
    let address = portal.parse().ok().or_else(alone).map(Elsewhere::Address);
    address.or_else(|| named(portal)).ok_or_else(unknown)
}

/// A host's name, and the port.
fn named(portal: &str) -> Option<Elsewhere> {
    let (host, port) = match portal.split_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (portal, PORT),
    };
    let is_label = |label: &str| {
        let mut bytes = label.bytes();
        let is_plain = bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_plain && (1..=LABEL_BYTES_MAX).contains(&label.len())
    };
    // The last label is not a number, which an address has there (RFC 3696 section 2).
    let last = host.rsplit('.').next()?;
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = host.len() <= NAME_BYTES_MAX && host.split('.').all(is_label) && !is_number;
    is_name.then(|| Elsewhere::Name { host: host.to_owned(), port })
}

/// Why the target refused a login.
fn refused(status: LoginStatus) -> String {
    let LoginStatus { class, detail } = status;
    format!("login refused: {} (status {class:02x}{detail:02x})", refusal(status))
}

/// A login status as text (section 11.13.5).
fn refusal(status: LoginStatus) -> &'static str {
    match status {
        LoginStatus::MOVED_TEMPORARILY => "target moved temporarily",
        LoginStatus::MOVED_PERMANENTLY => "target moved permanently",
        LoginStatus::AUTHENTICATION_FAILURE => {
            "authentication failed: check name, secret and CHAP algorithms"
        }
        LoginStatus::AUTHORIZATION_FAILURE => "this initiator may not use the target",
        LoginStatus::NOT_FOUND => "target not found",
        LoginStatus::TARGET_REMOVED => "the target was removed",
        LoginStatus::UNSUPPORTED_VERSION => "unsupported version of iSCSI",
        LoginStatus::TOO_MANY_CONNECTIONS => "too many connections",
        LoginStatus::MISSING_PARAMETER => "missing parameter",
        LoginStatus::CANT_INCLUDE_IN_SESSION => "the connection cannot join the session",
        LoginStatus::SESSION_TYPE_NOT_SUPPORTED => "the session type is not supported",
        LoginStatus::NO_SUCH_SESSION => "no such session",
        LoginStatus::INVALID_DURING_LOGIN => "not during login",
        LoginStatus::SERVICE_UNAVAILABLE => "the service is unavailable",
        LoginStatus::OUT_OF_RESOURCES => "the target is out of resources",
        LoginStatus { class: 2, .. } => "initiator error",
        LoginStatus { class: 3, .. } => "target error",
        LoginStatus { .. } => "unknown reason",
    }
}
