//! All keys of RFC 7143 sections 12.1 and 13, RFC 7144 and RFC 7145, in one table: when and by which side
//! they may be sent, and how their values are determined.

use crate::iscsi::text;
use std::collections::BTreeMap;
use wire::iscsi::Stage;

/// A key of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "each is the key of that name")]
pub enum Key {
    AuthMethod,
    ChapA,
    ChapI,
    ChapC,
    ChapN,
    ChapR,
    InitiatorName,
    InitiatorAlias,
    TargetName,
    TargetAlias,
    TargetAddress,
    TargetPortalGroupTag,
    SessionType,
    SendTargets,
    NodeArchitecture,
    HeaderDigest,
    DataDigest,
    MaxConnections,
    InitialR2T,
    ImmediateData,
    MaxRecvDataSegmentLength,
    MaxBurstLength,
    FirstBurstLength,
    DefaultTime2Wait,
    DefaultTime2Retain,
    MaxOutstandingR2T,
    DataPduInOrder,
    DataSequenceInOrder,
    ErrorRecoveryLevel,
    TaskReporting,
    ProtocolLevel,
    IfMarker,
    OfMarker,
    IfMarkInt,
    OfMarkInt,
    RdmaExtensions,
    TargetRecvDataSegmentLength,
    InitiatorRecvDataSegmentLength,
    MaxOutstandingUnexpectedPdus,
    MaxAhsLength,
    TaggedBufferForSolicitedDataOnly,
    IserHelloRequired,
}

/// How a key's value is determined (section 6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Negotiated: the first of the offered values that is allowed here. A value is its index in this list;
    /// what is allowed is a mask of such indices.
    List(&'static [&'static str]),
    /// Negotiated: Yes if both sides say Yes.
    And,
    /// Negotiated: Yes if one side says Yes.
    Or,
    /// Negotiated: the smaller number, within these bounds.
    Minimum(u32, u32),
    /// Negotiated: the larger number, within these bounds.
    Maximum(u32, u32),
    /// A number within these bounds that one side declares.
    Number(u32, u32),
    /// Yes or No, as one side declares.
    Flag,
    /// Text that one side declares.
    Text,
    /// Part of an exchange with its own rules.
    Exchange,
    /// Obsolete: always answered with Reject (section 13.25).
    Obsolete,
}

/// When a key may be used (section 13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// LO: during the login of a session's first connection.
    LeadingOnly,
    /// IO: during login.
    InitializeOnly,
    /// ALL: always.
    All,
    /// FFPO: in the full feature phase.
    FullFeaturePhaseOnly,
}

/// In which stages of the login.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// SecurityNegotiation.
    Security,
    /// LoginOperationalNegotiation.
    Operational,
    /// Both.
    AnyStage,
}

/// Which side may send it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Senders {
    /// The initiator.
    Initiator,
    /// The target.
    Target,
    /// Both.
    Both,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The key.
    pub key: Key,
    /// Its name on the wire.
    pub name: &'static str,
    /// How its value is determined.
    pub kind: Kind,
    /// When it may be used.
    pub usage: Usage,
    /// In which stages.
    pub place: Place,
    /// By which side.
    pub senders: Senders,
    /// Whether it is irrelevant in a discovery session.
    pub irrelevant_in_discovery: bool,
    /// Its value if none was negotiated.
    pub default: u32,
}

const DIGESTS: Kind = Kind::List(&["None", "CRC32C"]);
const REPORTING: Kind = Kind::List(&["RFC3720", "ResponseFence", "FastAbort"]);
const METHODS: Kind = Kind::List(&["None", "CHAP"]);
const LENGTH: Kind = Kind::Minimum(512, 0x00ff_ffff);

macro_rules! table {
    ($($key:ident $name:literal $kind:expr, $usage:ident $place:ident $senders:ident $discovery:literal $default:literal;)*) => {
        &[$(Rule {
            key: Key::$key,
            name: $name,
            kind: $kind,
            usage: Usage::$usage,
            place: Place::$place,
            senders: Senders::$senders,
            irrelevant_in_discovery: $discovery,
            default: $default,
        },)*]
    };
}

/// The table. The boolean is "true" for keys that are irrelevant in a discovery session; the number is the
/// default.
#[rustfmt::skip]
pub const TABLE: &[Rule] = table! {
    AuthMethod "AuthMethod" METHODS,                            InitializeOnly Security Both false 0;
    ChapA "CHAP_A" Kind::Exchange,                              InitializeOnly Security Both false 0;
    ChapI "CHAP_I" Kind::Exchange,                              InitializeOnly Security Both false 0;
    ChapC "CHAP_C" Kind::Exchange,                              InitializeOnly Security Both false 0;
    ChapN "CHAP_N" Kind::Exchange,                              InitializeOnly Security Both false 0;
    ChapR "CHAP_R" Kind::Exchange,                              InitializeOnly Security Both false 0;
    InitiatorName "InitiatorName" Kind::Text,                   InitializeOnly AnyStage Initiator false 0;
    InitiatorAlias "InitiatorAlias" Kind::Text,                 All AnyStage Initiator false 0;
    TargetName "TargetName" Kind::Text,                         InitializeOnly AnyStage Initiator false 0;
    TargetAlias "TargetAlias" Kind::Text,                       All AnyStage Target false 0;
    TargetAddress "TargetAddress" Kind::Text,                   All AnyStage Target false 0;
    TargetPortalGroupTag "TargetPortalGroupTag" Kind::Number(0, 0xffff), InitializeOnly AnyStage Target false 0;
    SessionType "SessionType" Kind::Text,                       LeadingOnly AnyStage Initiator false 0;
    SendTargets "SendTargets" Kind::Exchange,                   FullFeaturePhaseOnly Operational Initiator false 0;
    NodeArchitecture "X#NodeArchitecture" Kind::Text,           LeadingOnly AnyStage Both false 0;
    HeaderDigest "HeaderDigest" DIGESTS,                        InitializeOnly Operational Both false 0;
    DataDigest "DataDigest" DIGESTS,                            InitializeOnly Operational Both false 0;
    MaxConnections "MaxConnections" Kind::Minimum(1, 0xffff),   LeadingOnly Operational Both true 1;
    InitialR2T "InitialR2T" Kind::Or,                           LeadingOnly Operational Both true 1;
    ImmediateData "ImmediateData" Kind::And,                    LeadingOnly Operational Both true 1;
    MaxRecvDataSegmentLength "MaxRecvDataSegmentLength" Kind::Number(512, 0x00ff_ffff), All Operational Both false 8192;
    MaxBurstLength "MaxBurstLength" LENGTH,                     LeadingOnly Operational Both true 262_144;
    FirstBurstLength "FirstBurstLength" LENGTH,                 LeadingOnly Operational Both true 65_536;
    DefaultTime2Wait "DefaultTime2Wait" Kind::Maximum(0, 3600), LeadingOnly Operational Both false 2;
    DefaultTime2Retain "DefaultTime2Retain" Kind::Minimum(0, 3600), LeadingOnly Operational Both false 20;
    MaxOutstandingR2T "MaxOutstandingR2T" Kind::Minimum(1, 0xffff), LeadingOnly Operational Both true 1;
    DataPduInOrder "DataPDUInOrder" Kind::Or,                   LeadingOnly Operational Both true 1;
    DataSequenceInOrder "DataSequenceInOrder" Kind::Or,         LeadingOnly Operational Both true 1;
    ErrorRecoveryLevel "ErrorRecoveryLevel" Kind::Minimum(0, 2), LeadingOnly Operational Both false 0;
    TaskReporting "TaskReporting" REPORTING,                    LeadingOnly Operational Both true 0;
    ProtocolLevel "iSCSIProtocolLevel" Kind::Minimum(0, 31),    LeadingOnly Operational Both true 1;
    IfMarker "IFMarker" Kind::And,                              InitializeOnly Operational Both false 0;
    OfMarker "OFMarker" Kind::And,                              InitializeOnly Operational Both false 0;
    IfMarkInt "IFMarkInt" Kind::Obsolete,                       InitializeOnly Operational Both false 0;
    OfMarkInt "OFMarkInt" Kind::Obsolete,                       InitializeOnly Operational Both false 0;
    // iSER has no discovery sessions (RFC 7145 section 5.1), but Linux uses them over it, with this key.
    RdmaExtensions "RDMAExtensions" Kind::And,                  LeadingOnly Operational Both false 0;
    TargetRecvDataSegmentLength "TargetRecvDataSegmentLength" LENGTH, InitializeOnly Operational Both false 8192;
    InitiatorRecvDataSegmentLength "InitiatorRecvDataSegmentLength" LENGTH, InitializeOnly Operational Both false 8192;
    MaxOutstandingUnexpectedPdus "MaxOutstandingUnexpectedPDUs" Kind::Number(0, u32::MAX), LeadingOnly Operational Both false 0;
    MaxAhsLength "MaxAHSLength" Kind::Number(0, u32::MAX),      LeadingOnly Operational Both false 256;
    TaggedBufferForSolicitedDataOnly "TaggedBufferForSolicitedDataOnly" Kind::Flag, LeadingOnly Operational Initiator false 0;
    // The initiator declares it; the answer is that there is no Hello here.
    IserHelloRequired "iSERHelloRequired" Kind::And,            LeadingOnly Operational Both false 0;
};

/// The rule of the key with this name.
pub fn find(name: &str) -> Option<&'static Rule> {
    TABLE.iter().find(|rule| rule.name == name)
}

/// The rule of this key.
pub fn rule(key: Key) -> Option<&'static Rule> {
    TABLE.iter().find(|rule| rule.key == key)
}

/// A value that may not be offered at all: "Reject", "Irrelevant" and "NotUnderstood" are answers only (section 6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservedWord;

/// The result of an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// This value.
    Value(u32),
    /// The key was not negotiated: the default applies.
    Default,
}

impl Rule {
    /// Whether it may be sent in this stage.
    pub fn allowed_in(&self, stage: Stage) -> bool {
        match stage {
            Stage::SECURITY => self.usage != Usage::FullFeaturePhaseOnly && self.place != Place::Operational,
            Stage::OPERATIONAL => self.usage != Usage::FullFeaturePhaseOnly && self.place != Place::Security,
            _ => matches!(self.usage, Usage::All | Usage::FullFeaturePhaseOnly),
        }
    }

    /// Whether its value is negotiated by the rules of [`Kind`].
    pub fn negotiated(&self) -> bool {
        match self.kind {
            Kind::List(_) | Kind::And | Kind::Or | Kind::Minimum(..) | Kind::Maximum(..) => true,
            Kind::Number(..) | Kind::Flag | Kind::Text | Kind::Exchange | Kind::Obsolete => false,
        }
    }

    /// Whether it is irrelevant without RDMA (RFC 7145 section 6).
    pub fn needs_rdma(&self) -> bool {
        matches!(
            self.key,
            Key::TargetRecvDataSegmentLength
                | Key::InitiatorRecvDataSegmentLength
                | Key::MaxOutstandingUnexpectedPdus
                | Key::MaxAhsLength
                | Key::TaggedBufferForSolicitedDataOnly
                | Key::IserHelloRequired
        )
    }

    /// The value to answer an offer with, where `ours` is what we want (for a list: the mask of what we
    /// allow). `None`: Reject.
    pub fn answer(&self, offered: &str, ours: u32) -> Result<Option<u32>, ReservedWord> {
        if reserved(offered) {
            return Err(ReservedWord);
        }
        let both = |join: fn(bool, bool) -> bool| {
            text::boolean(offered).map(|offered| u32::from(join(offered, ours != 0)))
        };
        Ok(match self.kind {
            Kind::List(names) => {
                offered.split(',').find_map(|value| place(names, value).filter(|at| allows(ours, *at)))
            }
            Kind::And => both(|a, b| a && b),
            Kind::Or => both(|a, b| a || b),
            Kind::Minimum(low, high) => within(offered, low, high).map(|offered| offered.min(ours)),
            Kind::Maximum(low, high) => within(offered, low, high).map(|offered| offered.max(ours)),
            Kind::Number(..) | Kind::Flag | Kind::Text | Kind::Exchange | Kind::Obsolete => None,
        })
    }

    /// Validates the answer to our offer `ours`; `None`: it is not an admissible one (section 6.2.2).
    pub fn settle(&self, ours: u32, answered: &str) -> Option<Settled> {
        if reserved(answered) {
            return Some(Settled::Default);
        }
        let value = match self.kind {
            Kind::List(names) => place(names, answered).filter(|at| allows(ours, *at)),
            Kind::And => text::boolean(answered).map(u32::from).filter(|value| *value <= ours),
            Kind::Or => text::boolean(answered).map(u32::from).filter(|value| *value >= ours),
            Kind::Minimum(low, high) => within(answered, low, high).filter(|value| *value <= ours),
            Kind::Maximum(low, high) => within(answered, low, high).filter(|value| *value >= ours),
            Kind::Number(..) | Kind::Flag | Kind::Text | Kind::Exchange | Kind::Obsolete => None,
        };
        value.map(Settled::Value)
    }

    /// A declared number, or Yes as 1 and No as 0; `None` when it is out of bounds.
    pub fn number(&self, declared: &str) -> Option<u32> {
        match self.kind {
            Kind::Number(low, high) => within(declared, low, high),
            Kind::Flag => text::boolean(declared).map(u32::from),
            _ => None,
        }
    }

    /// A value as text.
    pub fn show(&self, value: u32) -> String {
        match self.kind {
            Kind::List(names) => {
                let at = usize::try_from(value).unwrap_or(usize::MAX);
                names.get(at).copied().unwrap_or_default().to_string()
            }
            Kind::And | Kind::Or => if value == 0 { "No" } else { "Yes" }.to_string(),
            _ => value.to_string(),
        }
    }

    /// `ours` as an offer: like [`Rule::show`], but with all allowed values of a list.
    pub fn offer(&self, ours: u32) -> String {
        let Kind::List(names) = self.kind else { return self.show(ours) };
        let allowed: Vec<&str> =
            (0..).zip(names).filter(|(at, _)| allows(ours, *at)).map(|(_, name)| *name).collect();
        allowed.join(",")
    }
}

/// Negotiated and declared numbers, by key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Values(BTreeMap<Key, u32>);

impl Values {
    /// The value, or the default of the key.
    pub fn get(&self, key: Key) -> u32 {
        self.0.get(&key).copied().unwrap_or_else(|| rule(key).map_or(0, |rule| rule.default))
    }

    /// Whether it was negotiated.
    pub fn has(&self, key: Key) -> bool {
        self.0.contains_key(&key)
    }

    /// Records a value.
    pub fn set(&mut self, key: Key, value: u32) {
        self.0.insert(key, value);
    }
}

/// Bytes of a data segment over RDMA: the default of both keys (RFC 7145 sections 6.4 and 6.5), and what
/// Linux requests.
pub const RDMA_SEGMENT_MAX: u32 = 8192;

/// Which digests are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Digests {
    /// None.
    Never,
    /// What the initiator prefers.
    Allowed,
    /// CRC32C.
    Required,
}

impl Digests {
    fn mask(self) -> u32 {
        match self {
            Digests::Never => 0b01,
            Digests::Allowed => 0b11,
            Digests::Required => 0b10,
        }
    }
}

/// What this side wants, for all keys with a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offers {
    /// HeaderDigest.
    pub header_digest: Digests,
    /// DataDigest.
    pub data_digest: Digests,
    /// InitialR2T: whether R2T is needed for the first burst.
    pub initial_r2t: bool,
    /// ImmediateData: whether data may come with the command.
    pub immediate_data: bool,
    /// RDMAExtensions: this is iSER.
    pub rdma: bool,
    /// MaxRecvDataSegmentLength: the longest data segment that this side receives. With RDMA, the longest
    /// that either side receives in a message.
    pub max_recv: u32,
    /// MaxBurstLength.
    pub max_burst: u32,
    /// FirstBurstLength.
    pub first_burst: u32,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
}

impl Default for Offers {
    fn default() -> Offers {
        Offers {
            header_digest: Digests::Allowed,
            data_digest: Digests::Allowed,
            initial_r2t: false,
            immediate_data: true,
            rdma: false,
            max_recv: 262_144,
            max_burst: 262_144,
            // A whole burst may be unsolicited: a task takes a buffer for as much before its data arrives
            // anyway.
            first_burst: 262_144,
            max_outstanding_r2t: 8,
        }
    }
}

impl Offers {
    /// What this side wants for a negotiated key (for a list: a mask).
    pub fn of(&self, key: Key) -> u32 {
        match key {
            Key::HeaderDigest => self.header_digest.mask(),
            Key::DataDigest => self.data_digest.mask(),
            Key::InitialR2T => u32::from(self.initial_r2t),
            Key::ImmediateData => u32::from(self.immediate_data),
            Key::RdmaExtensions => u32::from(self.rdma),
            Key::MaxRecvDataSegmentLength
            | Key::TargetRecvDataSegmentLength
            | Key::InitiatorRecvDataSegmentLength => self.max_recv,
            Key::MaxBurstLength => self.max_burst,
            Key::FirstBurstLength => self.first_burst.min(self.max_burst),
            Key::MaxOutstandingR2T => u32::from(self.max_outstanding_r2t),
            // One connection at error recovery level 0: nothing outlives it, and responses are always in
            // order.
            Key::MaxConnections | Key::ProtocolLevel | Key::DataPduInOrder | Key::DataSequenceInOrder => 1,
            Key::TaskReporting => 0b011,
            _ => 0,
        }
    }

    /// The same over RDMA: no digests (RFC 7145 section 5.1), and data segments that fit into a message.
    /// Unsolicited data is copied, and each message of it occupies a receive, so it is limited to one
    /// message: for the rest, reading is faster than sending.
    #[must_use]
    pub fn over_rdma(self) -> Offers {
        Offers {
            header_digest: Digests::Never,
            data_digest: Digests::Never,
            rdma: true,
            max_recv: self.max_recv.min(RDMA_SEGMENT_MAX),
            first_burst: self.first_burst.min(RDMA_SEGMENT_MAX),
            ..self
        }
    }

    /// Whether the default of this negotiated key exceeds what this side supports, so that it must offer a
    /// value.
    pub fn exceeded_by_default(&self, rule: &Rule) -> bool {
        let ours = self.of(rule.key);
        match rule.kind {
            Kind::List(_) => !allows(ours, rule.default),
            Kind::And | Kind::Minimum(..) => match rule.key {
                // A smaller value is not needed for safety here.
                Key::DefaultTime2Retain => false,
                _ => rule.default > ours,
            },
            Kind::Or | Kind::Maximum(..) => rule.default < ours,
            Kind::Number(..) | Kind::Flag | Kind::Text | Kind::Exchange | Kind::Obsolete => false,
        }
    }
}

/// Whether a name has one of the formats of RFC 7143 section 4.2.7: `iqn.`, `eui.` with 16 or `naa.` with 16
/// or 32 hexadecimal digits; at most 223 bytes. Characters that the standard does not allow but
/// administrators use, such as "_", are accepted; those that would break a list, an address or a TransportID
/// are not.
pub fn is_name(name: &str) -> bool {
    let digits = |digits: &str, lens: &[usize]| {
        lens.contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    if name.len() > NAME_BYTES_MAX {
        return false;
    }
    if let Some(rest) = name.strip_prefix("eui.") {
        return digits(rest, &[16]);
    }
    if let Some(rest) = name.strip_prefix("naa.") {
        return digits(rest, &[16, 32]);
    }
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && !"\",;=\\'<>".contains(c);
    name.strip_prefix("iqn.").is_some_and(|rest| !rest.is_empty() && rest.chars().all(fits))
}

/// Bytes of an iSCSI name (section 4.2.7.1).
pub const NAME_BYTES_MAX: usize = 223;

fn reserved(value: &str) -> bool {
    matches!(value, "Reject" | "Irrelevant" | "NotUnderstood")
}

fn place(names: &[&str], value: &str) -> Option<u32> {
    names.iter().position(|name| *name == value).and_then(|at| u32::try_from(at).ok())
}

fn allows(mask: u32, at: u32) -> bool {
    mask.checked_shr(at).is_some_and(|rest| rest & 1 == 1)
}

fn within(value: &str, low: u32, high: u32) -> Option<u32> {
    let number = text::number(value).and_then(|number| u32::try_from(number).ok())?;
    (low..=high).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_rule() {
        for rule in TABLE {
            assert_eq!(TABLE.iter().filter(|other| other.key == rule.key).count(), 1, "{}", rule.name);
            assert_eq!(find(rule.name).map(|found| found.key), Some(rule.key));
        }
        assert!(find("X-com.example.key").is_none());
    }

    #[test]
    fn stages_are_kept_apart() {
        let allowed = |name: &str| {
            let rule = find(name).unwrap();
            [Stage::SECURITY, Stage::OPERATIONAL, Stage::FULL_FEATURE].map(|stage| rule.allowed_in(stage))
        };
        assert_eq!(allowed("AuthMethod"), [true, false, false]);
        assert_eq!(allowed("InitiatorName"), [true, true, false]);
        assert_eq!(allowed("InitiatorAlias"), [true, true, true]);
        assert_eq!(allowed("MaxBurstLength"), [false, true, false]);
        assert_eq!(allowed("MaxRecvDataSegmentLength"), [false, true, true]);
        assert_eq!(allowed("SendTargets"), [false, false, true]);
    }

    /// Key, what is offered, what we want, the answer.
    #[test]
    fn answers_follow_the_result_functions() {
        for (name, offered, ours, answer) in [
            ("HeaderDigest", "CRC32C,None", 0b11, Some("CRC32C")),
            ("HeaderDigest", "None,CRC32C", 0b11, Some("None")),
            ("HeaderDigest", "Y-x,CRC32C", 0b01, None),
            ("InitialR2T", "No", 0, Some("No")),
            ("InitialR2T", "Yes", 0, Some("Yes")),
            ("ImmediateData", "Yes", 1, Some("Yes")),
            ("ImmediateData", "Yes", 0, Some("No")),
            ("ImmediateData", "yes", 1, None),
            ("MaxBurstLength", "16776192", 262_144, Some("262144")),
            ("MaxBurstLength", "0x200", 262_144, Some("512")),
            ("MaxBurstLength", "511", 262_144, None),
            ("MaxBurstLength", "16777216", 262_144, None),
            ("DefaultTime2Wait", "5", 0, Some("5")),
            ("ErrorRecoveryLevel", "2", 0, Some("0")),
            ("ErrorRecoveryLevel", "3", 0, None),
            ("iSCSIProtocolLevel", "2", 1, Some("1")),
            ("TaskReporting", "FastAbort,ResponseFence,RFC3720", 0b011, Some("ResponseFence")),
            ("OFMarker", "Yes", 0, Some("No")),
            ("OFMarkInt", "1~2", 0, None),
        ] {
            let rule = find(name).unwrap();
            let found = rule.answer(offered, ours).unwrap().map(|value| rule.show(value));
            assert_eq!(found.as_deref(), answer, "{name}={offered}");
        }
        assert_eq!(find("InitialR2T").unwrap().answer("Irrelevant", 0), Err(ReservedWord));
    }

    #[test]
    fn answers_to_our_offers_are_validated() {
        let settle = |name: &str, ours, answered: &str| find(name).unwrap().settle(ours, answered);
        assert_eq!(settle("HeaderDigest", 0b10, "CRC32C"), Some(Settled::Value(1)));
        assert_eq!(settle("HeaderDigest", 0b10, "None"), None);
        assert_eq!(settle("InitialR2T", 1, "No"), None);
        assert_eq!(settle("InitialR2T", 0, "Yes"), Some(Settled::Value(1)));
        assert_eq!(settle("ImmediateData", 0, "Yes"), None);
        assert_eq!(settle("MaxBurstLength", 1024, "512"), Some(Settled::Value(512)));
        assert_eq!(settle("MaxBurstLength", 1024, "2048"), None);
        assert_eq!(settle("DefaultTime2Wait", 2, "1"), None);
        assert_eq!(settle("TaskReporting", 1, "NotUnderstood"), Some(Settled::Default));
    }

    #[test]
    fn offers_say_when_a_default_is_too_much() {
        let exceeded = |offers: Offers| -> Vec<&str> {
            let rules = TABLE.iter().filter(|rule| offers.exceeded_by_default(rule));
            rules.map(|rule| rule.name).filter(|name| *name != "AuthMethod").collect()
        };
        assert!(exceeded(Offers::default()).is_empty());
        let (all, first_burst) = (Key::MaxBurstLength, Key::FirstBurstLength);
        assert_eq!(
            Offers::default().of(first_burst),
            Offers::default().of(all),
            "no write of a burst waits for R2T"
        );
        let small = Offers {
            header_digest: Digests::Required,
            immediate_data: false,
            max_burst: 4096,
            first_burst: 65_536,
            ..Offers::default()
        };
        let names = ["HeaderDigest", "ImmediateData", "MaxBurstLength", "FirstBurstLength"];
        assert_eq!(exceeded(small), names);
        assert_eq!(find("DataDigest").unwrap().offer(0b11), "None,CRC32C");
    }

    #[test]
    fn names_are_checked() {
        for name in
            ["iqn.2026-11.io.lunette:disk", "iqn.1993-08.org.debian:01:my_host", "eui.02004567A425678D"]
        {
            assert!(is_name(name), "{name}");
        }
        assert!(is_name("naa.52004567BA64678D") && is_name(&format!("iqn.{}", "a".repeat(219))));
        for name in ["", "iqn.", "iqn", "IQN.2026-11.a:b", "iqn.a b", "iqn.a,i,0x1", "eui.0200", "naa.xyz"] {
            assert!(!is_name(name), "{name}");
        }
        assert!(!is_name(&format!("iqn.{}", "a".repeat(220))));
    }
}
