//! The object of a unit: everything that its gateways share. It is replaced as a whole, by whoever has read
//! the version that it replaces.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The content of a unit's object.
/// Its fields are what one version of it says, all of which is replaced at once.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Counts claims: in each epoch at most one gateway writes to the medium.
    pub epoch: u64,
    /// The gateway that last claimed the unit, until it releases it.
    pub active: Option<Holder>,
    /// Changed by the active gateway as long as it is alive.
    pub beat: u64,
    /// Clients of gateways that had access to the medium, and must be fenced before another one may become active,
    /// or a change is complete.
    pub fence: Vec<String>,
    /// The clients that were fenced for the active gateway if that alone has access to the medium, by maps that some OSDs
    /// may not have yet: these may still execute what the clients have sent, before anything of the active one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fading: Vec<String>,
    /// The gateway to become active next, if one was requested.
    pub next: Option<Next>,
    /// The target ports of each gateway, by the gateway's name.
    pub gateways: BTreeMap<String, Vec<Port>>,
    /// What gateways have to agree on, as each of them has it, by their names.
    pub members: BTreeMap<String, Member>,
    /// What hosts rely on, as of the last gateway that claimed the unit.
    pub disk: Option<String>,
    /// Requests of gateways in standby to the active one, by their names: one each. Whoever claims the unit
    /// drops them; gateways that still wait send them again.
    pub requests: BTreeMap<String, Request>,
    /// The reply to the last request of each gateway.
    pub replies: BTreeMap<String, Reply>,
    /// The unit's own state: reservations, mode parameters.
    #[serde(with = "hex")]
    pub saved: Vec<u8>,
    /// The gateways, other than the active one, that have access to the medium, by their names. None if only one has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub serving: BTreeMap<String, Serving>,
    /// The clients among these, and that of the active one, of which requests to the medium make no progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<String>,
    /// Counts what each of them must apply: changes of the unit's state, and completed fences.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub change: u64,
    /// Counts completed fences.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fences: u64,
    /// The active gateway has been waiting for the monitors for some time: whoever reaches them fences in its place.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_waiting: bool,
}

/// A gateway that has access to the medium while another one is active, or that is about to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Serving {
    /// Its client, as of a holder.
    pub client: String,
    /// Changed as long as it is alive.
    pub beat: u64,
    /// It neither has, nor will have, access to the medium under a state older than that of this change.
    pub applied: u64,
    /// Nor by requests that do not carry this many fences.
    pub fences: u64,
}

/// A gateway, and its client of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// The gateway's name.
    pub gateway: String,
    /// What the cluster fences to keep the gateway from the medium.
    pub client: String,
}

/// A gateway to become active although another one is alive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Next {
    /// Its name.
    pub gateway: String,
    /// Who requested it.
    pub by: By,
}

/// Who requests that a gateway become active.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum By {
    /// A person: the unit moves at once.
    Person,
    /// An initiator: it moves if it has stayed where it is for some time, as another initiator may want the
    /// opposite.
    Initiator,
}

/// A target port of a gateway.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Port {
    /// Relative target port identifier.
    pub id: u16,
    /// Target port group.
    pub group: u16,
    /// The port's name.
    pub name: String,
    /// ASYMMETRIC ACCESS STATE of its group while its gateway is active.
    pub state: u8,
}

/// What others have to know about a gateway, or must have in common with it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Identifies its process: no other, earlier or concurrent, has this ID.
    pub process: String,
    /// Its takeover time, in milliseconds.
    pub takeover_ms: u64,
    /// By then, in milliseconds, all OSDs have a new map.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub osd_map_ms: u64,
    /// What hosts rely on: the same at each gateway.
    pub disk: String,
}

/// A request that the active gateway is to execute for another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Its number, never reused.
    pub id: u64,
    /// Its content, as the unit's homes understand it.
    #[serde(with = "hex")]
    pub body: Vec<u8>,
}

/// The reply to a request. It is written together with the resulting state, so that no request is executed
/// twice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// That of the request.
    pub id: u64,
    /// The answer.
    #[serde(with = "hex")]
    pub outcome: Vec<u8>,
    /// All cores of the gateway that executed it have applied it, or that gateway is fenced.
    pub is_applied: bool,
}

/// Why an object cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Damaged {
    /// It was written by a later version of this program, in this format.
    Newer(u32),
    /// It was written by an earlier version of this program, in this format.
    Older(u32),
    /// It is something else.
    Other(String),
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damaged::Newer(format) => {
                write!(f, "it has format {format} of a newer version; update this gateway")
            }
            Damaged::Older(format) => {
                write!(
                    f,
                    "it has format {format} of an earlier version; update all gateways, then stop them and remove \
                     the object, which discards reservations and mode parameters"
                )
            }
            Damaged::Other(why) => {
                write!(
                    f,
                    "it is not a unit's state ({why}); is the name of the cluster used by something else?"
                )
            }
        }
    }
}

/// The format that this version writes: it changes with what it contains, including requests and the unit's own
/// state.
const FORMAT: u32 = 2;
/// The same, and who else has access to the medium: a version that does not know it must not replace such an object.
const SHARED: u32 = 3;

/// The part common to all formats.
#[derive(Serialize, Deserialize)]
struct Format {
    lunette_unit: u32,
}

#[derive(Serialize)]
struct Sealed<'a> {
    #[serde(flatten)]
    format: Format,
    #[serde(flatten)]
    record: &'a Record,
}

impl Record {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let is_shared = !self.serving.is_empty() || self.change > 0 || self.fences > 0;
        let format = Format { lunette_unit: if is_shared { SHARED } else { FORMAT } };
        let sealed = Sealed { format, record: self };
        serde_json::to_vec(&sealed).unwrap_or_else(|error| panic!("text keys and numbers alone: {error}"))
    }

    /// Parses the record from these bytes.
    ///
    /// # Errors
    /// When they are something else.
    pub fn decode(bytes: &[u8]) -> Result<Record, Damaged> {
        let other = |error: serde_json::Error| Damaged::Other(error.to_string());
        match serde_json::from_slice(bytes).map_err(other)? {
            Format { lunette_unit: FORMAT | SHARED } => {
                serde_json::from_slice(bytes).map_err(other).and_then(Record::checked)
            }
            Format { lunette_unit: format } if format < FORMAT => Err(Damaged::Older(format)),
            Format { lunette_unit: format } => Err(Damaged::Newer(format)),
        }
    }

    /// Its clients can be fenced. The monitors refuse anything but an address, and whoever claims the unit has them all
    /// fenced first.
    fn checked(self) -> Result<Record, Damaged> {
        match self.clients().iter().find(|client| !is_address(client)) {
            Some(client) => Err(Damaged::Other(format!("{client:?} is not the address of a client of Ceph"))),
            None => Ok(self),
        }
    }

    /// Another gateway that has a different disk, with both disks, if that keeps this one from the unit:
    /// hosts know the disk as last served, unless by now all gateways have a new one.
    pub(crate) fn other_disk(&self, gateway: &str, disk: &str) -> Option<String> {
        if self.disk.as_deref() == Some(disk) {
            return None;
        }
        let (other, member) = self.members.iter().find(|(name, one)| *name != gateway && one.disk != disk)?;
        let theirs = &member.disk;
        Some(format!(
            "the disk has {theirs} at gateway {other}, and {disk} here; configure it alike, as hosts rely on that"
        ))
    }

    /// A gateway's takeover time, if it is known.
    pub(crate) fn takeover_of(&self, gateway: Option<&str>) -> Duration {
        let member = gateway.and_then(|gateway| self.members.get(gateway));
        Duration::from_millis(member.map_or(0, |member| member.takeover_ms))
    }

    /// Sets whether requests of a client with access to the medium make no progress.
    pub(crate) fn set_stuck(&mut self, client: &str, is_stuck: bool) {
        if is_stuck && !self.stuck.iter().any(|other| other == client) {
            self.stuck.push(client.to_owned());
        } else if !is_stuck {
            self.stuck.retain(|other| other != client);
        }
    }

    /// The clients that have access to the medium, or are to be fenced since they had.
    pub(crate) fn clients(&self) -> Vec<String> {
        let serving = self.serving.values().map(|one| &one.client);
        let fences = self.fence.iter().chain(&self.fading);
        fences.chain(self.active.iter().map(|holder| &holder.client)).chain(serving).cloned().collect()
    }

    /// Has the client of a gateway that serves fenced, instead.
    pub(crate) fn shut_out(&mut self, gateway: &str) {
        self.fence.extend(self.serving.remove(gateway).map(|one| one.client));
    }

    /// Has this client fenced if it has access.
    pub(crate) fn shut_out_client(&mut self, client: &str) {
        let serving = self.serving.len();
        self.serving.retain(|_, one| one.client != client);
        let was_active = self.active.take_if(|holder| holder.client == client).is_some();
        if was_active || self.serving.len() < serving {
            self.fence.push(client.to_owned());
        }
    }

    /// These clients are fenced, and whoever serves has to catch up with that.
    pub(crate) fn fenced(&mut self, clients: &[String]) {
        if self.fence.iter().any(|client| clients.contains(client)) {
            self.fence.retain(|client| !clients.contains(client));
            self.fences = self.fences.saturating_add(1);
            self.change = self.change.saturating_add(1);
        }
    }

    /// Whether it contains a request of a gateway, or the reply to it.
    pub(crate) fn has(&self, gateway: &str, id: u64) -> bool {
        self.requests.get(gateway).is_some_and(|request| request.id == id) || self.has_reply(gateway, id)
    }

    /// Whether it contains the reply to a request of a gateway.
    pub(crate) fn has_reply(&self, gateway: &str, id: u64) -> bool {
        self.replies.get(gateway).is_some_and(|reply| reply.id == id)
    }

    /// Replaces a request of a gateway, or an earlier reply, by the reply to it. A different request of that
    /// gateway has yet to be executed.
    pub(crate) fn reply(&mut self, gateway: &str, reply: Reply) {
        if self.has(gateway, reply.id) {
            self.requests.retain(|name, request| name != gateway || request.id != reply.id);
            self.replies.insert(gateway.to_owned(), reply);
        }
    }

    /// Another gateway with a port of the same group or number as one of these, and what they have in common.
    pub fn clash(&self, gateway: &str, ports: &[Port]) -> Option<String> {
        let others = self.gateways.iter().filter(|(name, _)| *name != gateway);
        let mut pairs = others
            .flat_map(|(name, theirs)| theirs.iter().map(move |port| (name, port)))
            .flat_map(|(name, theirs)| ports.iter().map(move |ours| (name, theirs, ours)));
        pairs.find_map(|(name, theirs, ours)| {
            if theirs.group == ours.group {
                let group = ours.group;
                Some(format!("target port group {group} is gateway {name}'s as well; give each gateway groups of its own (`group` in [[portal]])"))
            } else if theirs.id == ours.id {
                let id = ours.id;
                Some(format!("relative target port identifier {id} is gateway {name}'s as well; give each gateway's groups a range of their own (`port_ids` in [[portal_group]])"))
            } else {
                None
            }
        })
    }
}

/// Whether this is an address as in the monitors' blocklist: `IP:PORT/NONCE`.
fn is_address(client: &str) -> bool {
    let plain = ["any:", "v1:", "v2:"].iter().find_map(|kind| client.strip_prefix(kind)).unwrap_or(client);
    let is_socket = |socket: &str| !socket.contains('%') && socket.parse::<SocketAddr>().is_ok();
    let is_nonce =
        |nonce: &str| nonce.bytes().all(|byte| byte.is_ascii_digit()) && nonce.parse::<u32>().is_ok();
    plain.rsplit_once('/').is_some_and(|(socket, nonce)| is_socket(socket) && is_nonce(nonce))
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Bytes in hexadecimal.
mod hex {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    const DIGITS: &[u8; 16] = b"0123456789abcdef";

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
        let mut text = String::with_capacity(bytes.len().saturating_mul(2));
        text.extend(digits.map(|digit| char::from(DIGITS[usize::from(digit)])));
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let (pairs, rest) = text.as_bytes().as_chunks();
        let value = |digit: u8| char::from(digit).to_digit(16);
        let byte = |[high, low]: &[u8; 2]| Some((value(*high)? << 4 | value(*low)?) as u8);
        let mut bytes = Vec::with_capacity(pairs.len());
        bytes.extend(pairs.iter().map_while(byte));
        let is_whole = rest.is_empty() && bytes.len() == pairs.len();
        if is_whole { Ok(bytes) } else { Err(D::Error::custom("no hexadecimal digits")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(id: u16, group: u16) -> Port {
        Port { id, group, name: format!("iqn.2026-11.a:x,t,0x{group:04x}"), state: 0 }
    }

    fn serving(client: &str) -> Serving {
        Serving { client: client.into(), beat: 1, applied: 2, fences: 3 }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record {
            epoch: 7,
            active: Some(Holder { gateway: "a".into(), client: "127.0.0.1:0/7".into() }),
            beat: 3,
            fence: vec!["127.0.0.1:0/6".into()],
            fading: vec!["127.0.0.1:0/5".into()],
            next: Some(Next { gateway: "b".into(), by: By::Initiator }),
            gateways: [("a".into(), vec![port(1, 1)])].into(),
            members: [(
                "a".into(),
                Member { process: "p".into(), takeover_ms: 5, osd_map_ms: 6, disk: "d".into() },
            )]
            .into(),
            requests: [("b".into(), Request { id: 1, body: vec![1] })].into(),
            replies: [("b".into(), Reply { id: 0, outcome: vec![2], is_applied: true })].into(),
            disk: Some("d".into()),
            saved: vec![0, 0x7f, 0xff],
            serving: [("b".into(), serving("[2001:db8::1]:0/4294967295"))].into(),
            stuck: vec!["127.0.0.1:0/7".into()],
            change: 4,
            fences: 5,
            is_waiting: true,
        };
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn earlier_versions_refuse_an_object_only_if_several_gateways_have_access() {
        let starts = |record: &Record, with: &str| record.encode().starts_with(with.as_bytes());
        let mut record = Record { epoch: 7, saved: vec![1], ..Record::default() };
        assert!(starts(&record, r#"{"lunette_unit":2,"#));
        assert_eq!(record.encode().last(), Some(&b'}'));
        assert!(!String::from_utf8(record.encode()).expect("text").contains("serving"));
        for change in [0, 1] {
            record.change = change;
            record.serving = [("b".into(), serving("127.0.0.1:0/7"))].into();
            assert!(starts(&record, r#"{"lunette_unit":3,"#));
        }
        record.serving.clear();
        assert!(starts(&record, r#"{"lunette_unit":3,"#), "{record:?}");
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn what_is_newer_or_something_else_is_not_taken_for_a_state() {
        assert_eq!(Record::decode(br#"{"lunette_unit":4,"more":[]}"#), Err(Damaged::Newer(4)));
        assert_eq!(Record::decode(br#"{"lunette_unit":1,"epoch":1}"#), Err(Damaged::Older(1)));
        for other in ["", "{}", r#"{"lunette_unit":2}"#, "\u{0}"] {
            assert!(matches!(Record::decode(other.as_bytes()), Err(Damaged::Other(_))), "{other}");
        }
        let odd = String::from_utf8(Record::default().encode())
            .expect("text")
            .replace("\"saved\":\"\"", "\"saved\":\"0\"");
        assert!(Record::decode(odd.as_bytes()).is_err());
    }

    #[test]
    fn what_nobody_could_have_fenced_is_not_taken_for_a_client() {
        let with = [
            |client: &str| Record { fence: vec!["127.0.0.1:0/6".into(), client.into()], ..Record::default() },
            |client: &str| Record { serving: [("b".into(), serving(client))].into(), ..Record::default() },
            |client: &str| {
                let active = Some(Holder { gateway: "a".into(), client: client.into() });
                Record { active, ..Record::default() }
            },
        ];
        for record in with {
            for client in ["192.0.2.1:0/1", "v1:192.0.2.1:6789/1", "[2001:db8::1]:0/4294967295"] {
                assert_eq!(Record::decode(&record(client).encode()), Ok(record(client)));
            }
            for client in [
                "",
                "c",
                "192.0.2.1:0",
                "192.0.2.1/1",
                "192.0.2.1:0/1\0",
                "192.0.2.1:0/1\",\"x\":\"",
                "192.0.2.1:0/+5",
                "[fe80::1%1]:0/1",
            ] {
                let damaged = Record::decode(&record(client).encode());
                assert!(matches!(damaged, Err(Damaged::Other(why)) if why.contains("address")), "{client:?}");
            }
        }
    }

    #[test]
    fn a_reply_takes_the_place_of_its_own_request_only() {
        let request = Request { id: 2, body: vec![2] };
        let mut record = Record { requests: [("b".into(), request)].into(), ..Record::default() };
        let before = record.clone();
        let reply = |id: u64, is_applied: bool| Reply { id, outcome: vec![], is_applied };
        record.reply("b", reply(1, true));
        record.reply("c", reply(2, true));
        assert_eq!(record, before);
        for is_applied in [false, true] {
            record.reply("b", reply(2, is_applied));
            assert_eq!(record.requests, BTreeMap::new());
            assert_eq!(record.replies["b"], reply(2, is_applied));
        }
        // Its gateway no longer waits for it, and has another one.
        record.requests =
            before.requests.into_iter().map(|(name, one)| (name, Request { id: 3, ..one })).collect();
        record.reply("b", reply(2, true));
        assert_eq!(record.requests["b"].id, 3);
    }

    #[test]
    fn groups_and_numbers_that_two_gateways_have_are_found() {
        let record =
            Record { gateways: [("a".into(), vec![port(1, 1), port(2, 2)])].into(), ..Record::default() };
        assert_eq!(record.clash("a", &[port(1, 1)]), None);
        assert_eq!(record.clash("b", &[port(11, 11)]), None);
        assert!(record.clash("b", &[port(11, 2)]).is_some_and(|why| why.contains("group 2 is gateway a's")));
        assert!(
            record.clash("b", &[port(2, 3)]).is_some_and(|why| why.contains("identifier 2 is gateway a's"))
        );
    }
}
