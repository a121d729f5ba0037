//! AoE frames: Ethernet and AoE headers, and the arguments of the four commands (AoEr11), big-endian in
//! memory as on the wire. The content of ATA arguments is in `wire::ata`.
//!
//! Between the AoE machine and the device server, non-ATA commands travel as an [`Order`] in a
//! vendor-specific CDB. Its data-out and data-in are what follows the fixed part of the argument in the
//! frame: a config string, [`Directive`]s or MAC addresses. A refused one ends with the sense data of a
//! [`Refusal`].

use crate::iwarp::{Layout, layout};
use crate::scsi::Field;
use crate::{Cdb, Sense, SenseData, SenseKey};
use std::fmt;
use std::str::FromStr;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// AoE's EtherType.
pub const ETHERTYPE: u16 = 0x88a2;
/// Bytes per sector, whatever the disk's sector size.
pub const SECTOR_BYTES: u32 = 512;
/// Bytes of the argument of an ATA command, before its data (section 3.1).
pub const ATA_BYTES: usize = 12;
/// The longest config string in bytes (section 3.2).
pub const CONFIG_BYTES_MAX: u16 = 1024;
/// Most MAC addresses in one of our mask or reserve lists: as many as fit into any frame.
pub const MACS_MAX: u8 = 128;
/// The smallest MTU at which every answer fits into a frame; such a frame holds two sectors.
pub const MTU_MIN: u32 = 1046;

/// Sectors that a frame of this MTU can carry after its headers.
pub fn sectors_per_frame(mtu: u32) -> u8 {
    const HEADERS: u32 = 22;
    u8::try_from(mtu.saturating_sub(HEADERS) / SECTOR_BYTES).unwrap_or(u8::MAX)
}

/// An Ethernet address.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether it is a group address (IEEE 802.3 section 3.2.3).
    pub fn is_group(self) -> bool {
        let Mac([first, ..]) = self;
        first & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = NotMac;

    fn from_str(text: &str) -> Result<Mac, NotMac> {
        let mut mac = Mac::default();
        let mut parts = text.split(':');
        for byte in &mut mac.0 {
            let part =
                parts.next().filter(|part| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit()));
            *byte = part.and_then(|part| u8::from_str_radix(part, 16).ok()).ok_or(NotMac)?;
        }
        if parts.next().is_some() { Err(NotMac) } else { Ok(mac) }
    }
}

/// The text is not an Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotMac;

impl fmt::Display for NotMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an Ethernet address such as 02:00:00:00:00:01")
    }
}

impl std::error::Error for NotMac {}

/// Where a target is on its Ethernet segment: "major" and "minor" (section 2.5), written `shelf.slot`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Address {
    /// Major.
    pub shelf: u16,
    /// Minor.
    pub slot: u8,
}

impl Address {
    /// All targets.
    pub const BROADCAST: Address = Address { shelf: Address::ALL_SHELVES, slot: Address::ALL_SLOTS };
    /// Every shelf; no target has it.
    pub const ALL_SHELVES: u16 = 0xffff;
    /// Every slot; no target has it.
    pub const ALL_SLOTS: u8 = 0xff;

    /// Whether it may match more than one target.
    pub fn is_broadcast(self) -> bool {
        self.shelf == Address::ALL_SHELVES || self.slot == Address::ALL_SLOTS
    }

    /// Whether it matches this target, alone or with others.
    pub fn covers(self, target: Address) -> bool {
        let shelf = self.shelf == Address::ALL_SHELVES || self.shelf == target.shelf;
        shelf && (self.slot == Address::ALL_SLOTS || self.slot == target.slot)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.shelf, self.slot)
    }
}

impl FromStr for Address {
    type Err = NotAddress;

    /// Parses the address of a single target.
    fn from_str(text: &str) -> Result<Address, NotAddress> {
        let is_number = |part: &&str| part.bytes().all(|c| c.is_ascii_digit());
        let (shelf, slot) =
            text.split_once('.').filter(|(a, b)| is_number(a) && is_number(b)).ok_or(NotAddress)?;
        let (shelf, slot) = (shelf.parse().map_err(|_| NotAddress)?, slot.parse().map_err(|_| NotAddress)?);
        Some(Address { shelf, slot }).filter(|address| !address.is_broadcast()).ok_or(NotAddress)
    }
}

/// The text is not the address of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAddress;

impl fmt::Display for NotAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not SHELF.SLOT such as 1.0, with a shelf up to 65534 and a slot up to 254")
    }
}

impl std::error::Error for NotAddress {}

/// Defines a one-byte code with named values.
macro_rules! code {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
            Unaligned)]
        #[repr(C)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$value_doc])* pub const $value: $name = $name($number);)*
        }
    };
}

code! {
    /// AoE command codes (section 2.6).
    Command {
        /// Issue ATA Command (section 3.1).
        ATA = 0,
        /// Query Config Information (section 3.2).
        CONFIG = 1,
        /// Mac Mask List (section 3.3).
        MASK = 2,
        /// Reserve/Release (section 3.4).
        RESERVE = 3,
    }
}

code! {
    /// Why a request was refused (section 2.4).
    ErrorCode {
        /// None.
        NONE = 0,
        /// Unrecognized command code.
        UNRECOGNIZED_COMMAND = 1,
        /// Bad argument parameter.
        BAD_ARGUMENT = 2,
        /// Device unavailable.
        DEVICE_UNAVAILABLE = 3,
        /// Config string present.
        CONFIG_STRING_PRESENT = 4,
        /// Unsupported version.
        UNSUPPORTED_VERSION = 5,
        /// Target is reserved.
        TARGET_IS_RESERVED = 6,
    }
}

code! {
    /// CCmd: what to do with the config string (section 3.2).
    ConfigCommand {
        /// Read it.
        READ = 0,
        /// Answer if it equals this one.
        TEST = 1,
        /// Answer if it begins with this.
        TEST_PREFIX = 2,
        /// Set it if there is none.
        SET = 3,
        /// Set it.
        FORCE_SET = 4,
    }
}

code! {
    /// MCmd: what to do with the MAC mask list (section 3.3).
    MaskCommand {
        /// Read it.
        READ = 0,
        /// Edit it.
        EDIT = 1,
    }
}

code! {
    /// MError: why an edit was not done (section 3.3).
    MaskError {
        /// No error.
        NONE = 0,
        /// Unspecified.
        UNSPECIFIED = 1,
        /// A directive of an unknown command.
        BAD_DIRECTIVE = 2,
        /// The list is full.
        LIST_FULL = 3,
    }
}

code! {
    /// DCmd: what to do with one MAC address (section 3.3).
    DirectiveCommand {
        /// Nothing.
        NONE = 0,
        /// Add it.
        ADD = 1,
        /// Delete it.
        DELETE = 2,
    }
}

code! {
    /// RCmd: what to do with the reserve list (section 3.4).
    ReserveCommand {
        /// Read it.
        READ = 0,
        /// Set it, if it is empty or the initiator is in it.
        SET = 1,
        /// Set it.
        FORCE_SET = 2,
    }
}

layout! {
    /// Ethernet and AoE header (section 2).
    Header, 24, {
        /// Destination.
        destination: Mac,
        /// Source.
        source: Mac,
        /// [`ETHERTYPE`].
        ethertype: U16,
        /// [`Header::VERSION`] in the upper half, flags in the lower.
        version_flags: u8,
        /// The error, when [`Header::ERROR`] is set.
        error: ErrorCode,
        /// Major.
        shelf: U16,
        /// Minor.
        slot: u8,
        /// The command.
        command: Command,
        /// The initiator's, repeated in the answer.
        tag: U32,
    }
}

impl Header {
    /// The only version of the protocol.
    pub const VERSION: u8 = 1;
    /// R: an answer.
    pub const RESPONSE: u8 = 0x08;
    /// E: a refusal.
    pub const ERROR: u8 = 0x04;

    /// Version of the protocol.
    pub fn version(&self) -> u8 {
        self.version_flags >> 4
    }

    /// Whether it is an answer.
    pub fn is_response(&self) -> bool {
        self.version_flags & Header::RESPONSE != 0
    }

    /// Why the request was refused, if it was.
    pub fn refusal(&self) -> Option<ErrorCode> {
        (self.version_flags & Header::ERROR != 0).then_some(self.error)
    }

    /// Shelf and slot.
    pub fn address(&self) -> Address {
        Address { shelf: self.shelf.get(), slot: self.slot }
    }

    /// A request.
    pub fn request(from: Mac, to: Mac, address: Address, command: Command, tag: u32) -> Header {
        Header {
            destination: to,
            source: from,
            ethertype: U16::new(ETHERTYPE),
            version_flags: Header::VERSION << 4,
            error: ErrorCode::NONE,
            shelf: U16::new(address.shelf),
            slot: address.slot,
            command,
            tag: U32::new(tag),
        }
    }

    /// This target's answer to a request, with an error if it was refused.
    pub fn answer(&self, ours: Mac, address: Address, error: ErrorCode) -> Header {
        let refused = if error == ErrorCode::NONE { 0 } else { Header::ERROR };
        Header {
            version_flags: (Header::VERSION << 4) | Header::RESPONSE | refused,
            error,
            ..Header::request(ours, self.source, address, self.command, self.tag.get())
        }
    }
}

layout! {
    /// Argument of a config command; the config string follows (section 3.2).
    ConfigArgument, 8, {
        /// Requests that the target can queue.
        buffer_count: U16,
        /// The target's firmware version.
        firmware: U16,
        /// Sectors that the target accepts per frame; 0 means two.
        sector_count: u8,
        /// Version of the protocol in the upper half, [`ConfigCommand`] in the lower.
        version_command: u8,
        /// Length of the config string.
        len: U16,
    }
}

impl ConfigArgument {
    /// What to do.
    pub fn command(&self) -> ConfigCommand {
        ConfigCommand(self.version_command & 0x0f)
    }
}

layout! {
    /// Argument of a mask command; [`Directive`]s follow (section 3.3).
    MaskArgument, 4, {
        /// Zero.
        reserved: u8,
        /// What to do.
        command: MaskCommand,
        /// Why it failed.
        error: MaskError,
        /// Directives that follow; with an error, how many were processed.
        count: u8,
    }
}

layout! {
    /// A change to a MAC mask list; in an answer, an entry of it (section 3.3).
    Directive, 8, {
        /// Zero.
        reserved: u8,
        /// What to do.
        command: DirectiveCommand,
        /// The address.
        mac: Mac,
    }
}

layout! {
    /// Argument of a reserve command; [`Mac`]s follow (section 3.4).
    ReserveArgument, 2, {
        /// What to do.
        command: ReserveCommand,
        /// MAC addresses that follow.
        count: u8,
    }
}

impl Layout for Mac {}

/// What a non-ATA command does to a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderKind {
    /// Set the config string, unless a different one is set ([`ErrorCode::CONFIG_STRING_PRESENT`]). Data-in:
    /// the string.
    SetConfig,
    /// Set the config string. Data-in: the string.
    ForceConfig,
    /// Read the MAC mask list. Data-in: [`Directive`]s.
    ReadMask,
    /// Edit the MAC mask list with [`Directive`]s. Data-in: the list, as [`Directive`]s.
    EditMask,
    /// Read the reserve list. Data-in: [`Mac`]s.
    ReadReserve,
    /// Set the reserve list, unless another initiator holds it (RESERVATION CONFLICT). Data-in: the list, as
    /// [`Mac`]s.
    SetReserve,
    /// Set the reserve list. Data-in: the list, as [`Mac`]s.
    ForceReserve,
}

impl OrderKind {
    const ALL: [OrderKind; 7] = [
        OrderKind::SetConfig,
        OrderKind::ForceConfig,
        OrderKind::ReadMask,
        OrderKind::EditMask,
        OrderKind::ReadReserve,
        OrderKind::SetReserve,
        OrderKind::ForceReserve,
    ];

    /// AoE command and subcommand (CCmd, MCmd, RCmd).
    pub fn codes(self) -> (Command, u8) {
        match self {
            OrderKind::SetConfig => (Command::CONFIG, ConfigCommand::SET.0),
            OrderKind::ForceConfig => (Command::CONFIG, ConfigCommand::FORCE_SET.0),
            OrderKind::ReadMask => (Command::MASK, MaskCommand::READ.0),
            OrderKind::EditMask => (Command::MASK, MaskCommand::EDIT.0),
            OrderKind::ReadReserve => (Command::RESERVE, ReserveCommand::READ.0),
            OrderKind::SetReserve => (Command::RESERVE, ReserveCommand::SET.0),
            OrderKind::ForceReserve => (Command::RESERVE, ReserveCommand::FORCE_SET.0),
        }
    }

    /// The order for an AoE command and subcommand.
    pub fn from_codes(command: Command, subcommand: u8) -> Option<OrderKind> {
        OrderKind::ALL.into_iter().find(|kind| kind.codes() == (command, subcommand))
    }

    /// Bytes of one entry of its data-out and data-in.
    pub fn entry_bytes(self) -> usize {
        match self {
            OrderKind::SetConfig | OrderKind::ForceConfig => 1,
            OrderKind::ReadMask | OrderKind::EditMask => Directive::BYTES,
            OrderKind::ReadReserve | OrderKind::SetReserve | OrderKind::ForceReserve => Mac::BYTES,
        }
    }

    /// Most entries in its data-in.
    pub fn entries_max(self) -> u16 {
        match self {
            OrderKind::SetConfig | OrderKind::ForceConfig => CONFIG_BYTES_MAX,
            OrderKind::ReadMask
            | OrderKind::EditMask
            | OrderKind::ReadReserve
            | OrderKind::SetReserve
            | OrderKind::ForceReserve => u16::from(MACS_MAX),
        }
    }
}

/// The length of the argument in the vendor's CDBs.
const ARGUMENT_BYTES: Field<u32> = Field::at(4);

/// A non-ATA command, on its way to the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// What to do.
    pub kind: OrderKind,
    /// Length of its data-out.
    pub argument_bytes: u32,
}

impl Order {
    /// Operation code of its CDB, in the vendor-specific range (SPC-4 section 4.2.5.1).
    pub const OPCODE: u8 = 0xc0;

    /// As a CDB: the opcode, AoE command, subcommand, zero, and the argument's length in four bytes.
    pub fn cdb(self) -> Cdb {
        vendor_cdb(self.kind.codes(), self.argument_bytes)
    }

    /// Parses a CDB, if it holds an order.
    pub fn from_cdb(cdb: &Cdb) -> Option<Order> {
        let kind = OrderKind::from_codes(Command(cdb.byte(1)), cdb.byte(2))?;
        (cdb.opcode() == Order::OPCODE).then(|| Order { kind, argument_bytes: cdb.get(ARGUMENT_BYTES) })
    }
}

fn vendor_cdb((Command(command), subcommand): (Command, u8), argument_bytes: u32) -> Cdb {
    let [a, b, c, d] = argument_bytes.to_be_bytes();
    let bytes = [Order::OPCODE, command, subcommand, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0];
    Cdb::from_bytes(&bytes).unwrap_or_else(|| unreachable!("16 bytes fit"))
}

/// A query of the config string. Data-in: the string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueryKind {
    /// Read it.
    Read,
    /// Answer only if it equals the argument; otherwise a target stays silent.
    Test,
    /// Answer only if it begins with the argument; otherwise a target stays silent.
    TestPrefix,
}

impl QueryKind {
    const ALL: [QueryKind; 3] = [QueryKind::Read, QueryKind::Test, QueryKind::TestPrefix];

    /// AoE command and subcommand (CCmd).
    pub fn codes(self) -> (Command, u8) {
        let ConfigCommand(subcommand) = match self {
            QueryKind::Read => ConfigCommand::READ,
            QueryKind::Test => ConfigCommand::TEST,
            QueryKind::TestPrefix => ConfigCommand::TEST_PREFIX,
        };
        (Command::CONFIG, subcommand)
    }
}

/// A config query. Initiator machines accept it as a CDB, as they do an [`Order`]; it never reaches a unit,
/// because the interface answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// The kind of query.
    pub kind: QueryKind,
    /// Length of its data-out.
    pub argument_bytes: u32,
}

impl Query {
    /// As a CDB, laid out like an [`Order`]'s.
    pub fn cdb(self) -> Cdb {
        vendor_cdb(self.kind.codes(), self.argument_bytes)
    }

    /// Parses a CDB, if it holds a query.
    pub fn from_cdb(cdb: &Cdb) -> Option<Query> {
        let codes = (Command(cdb.byte(1)), cdb.byte(2));
        let kind = QueryKind::ALL.into_iter().find(|kind| kind.codes() == codes)?;
        (cdb.opcode() == Order::OPCODE).then(|| Query { kind, argument_bytes: cdb.get(ARGUMENT_BYTES) })
    }
}

/// Why an [`Order`] failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The request is refused.
    Error(ErrorCode),
    /// A directive of an edit cannot be carried out.
    Mask {
        /// Why.
        error: MaskError,
        /// Directives carried out before it.
        done: u8,
    },
}

impl Refusal {
    /// COMMAND-SPECIFIC INFORMATION: from its highest byte, the AoE error, MError and the number of directives.
    pub fn command_specific(self) -> u64 {
        let (error, mask_error, done) = match self {
            Refusal::Error(ErrorCode(error)) => (error, 0, 0),
            Refusal::Mask { error: MaskError(error), done } => (0, error, done),
        };
        u64::from_be_bytes([error, mask_error, done, 0, 0, 0, 0, 0])
    }

    /// As sense data: ABORTED COMMAND, with [`Refusal::command_specific`].
    pub fn sense(self) -> Sense {
        Sense::descriptor(&SenseData {
            key: SenseKey::AbortedCommand,
            code: 0,
            information: None,
            command_specific: Some(self.command_specific()),
            specific: None,
        })
    }

    /// Parses sense data, if it holds a refusal.
    pub fn from_sense(sense: &Sense) -> Option<Refusal> {
        // The descriptor header, and that of a command-specific information descriptor (SPC-4 section 4.5.2.3).
        let fields =
            sense.as_bytes().strip_prefix(&[0x72, SenseKey::AbortedCommand.bits(), 0, 0, 0, 0, 0, 12])?;
        let [error, mask_error, done, ..] = fields.strip_prefix(&[0x01, 0x0a, 0, 0])? else { return None };
        match (ErrorCode(*error), MaskError(*mask_error)) {
            (ErrorCode::NONE, MaskError::NONE) => None,
            (ErrorCode::NONE, error) => Some(Refusal::Mask { error, done: *done }),
            (error, _) => Some(Refusal::Error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;

    const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const E1_2: Address = Address { shelf: 1, slot: 2 };

    /// Linux's discovery (aoecmd_cfg): to all stations, all shelves and all slots.
    #[test]
    fn a_discovery_of_linux() {
        let mut bytes = vec![0xff; 6];
        bytes.extend([2, 0, 0, 0, 0, 9, 0x88, 0xa2, 0x10, 0, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0]);
        let header: Header = decoded(&bytes);
        assert_eq!((header.destination, header.source), (Mac::BROADCAST, PEER));
        assert_eq!((header.version(), header.is_response(), header.refusal()), (1, false, None));
        assert_eq!((header.address(), header.command), (Address::BROADCAST, Command::CONFIG));
        assert_eq!(header, Header::request(PEER, Mac::BROADCAST, Address::BROADCAST, Command::CONFIG, 0));
    }

    /// vblade's answer to that, as shelf 1, slot 2.
    #[test]
    fn an_answer_of_vblade() {
        let bytes = [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xa2, 0x18, 0, 0, 1, 2, 1, 0xde, 0xad, 0, 1];
        let header: Header = decoded(&bytes);
        let request = Header::request(PEER, Mac::BROADCAST, Address::BROADCAST, Command::CONFIG, 0xdead_0001);
        assert_eq!(header, request.answer(OURS, E1_2, ErrorCode::NONE));
        let argument: ConfigArgument = decoded(&[0, 16, 0x40, 0x16, 2, 0x10, 0, 3]);
        assert_eq!((argument.buffer_count.get(), argument.firmware.get()), (16, 0x4016));
        assert_eq!((argument.sector_count, argument.command()), (2, ConfigCommand::READ));
        assert_eq!(argument.len.get(), 3);
    }

    #[test]
    fn a_refusal_in_a_header() {
        let request = Header::request(PEER, OURS, E1_2, Command::RESERVE, 7);
        let header = request.answer(OURS, E1_2, ErrorCode::TARGET_IS_RESERVED);
        assert_eq!(header.as_bytes()[12..], [0x88, 0xa2, 0x1c, 6, 0, 1, 2, 3, 0, 0, 0, 7]);
        assert_eq!(header.refusal(), Some(ErrorCode::TARGET_IS_RESERVED));
        assert!(header.is_response());
    }

    #[test]
    fn masks_and_reserves() {
        let mask: MaskArgument = decoded(&[0, 1, 3, 2]);
        assert_eq!((mask.command, mask.error, mask.count), (MaskCommand::EDIT, MaskError::LIST_FULL, 2));
        let directive: Directive = decoded(&[0, 2, 2, 0, 0, 0, 0, 9]);
        assert_eq!((directive.command, directive.mac), (DirectiveCommand::DELETE, PEER));
        let reserve: ReserveArgument = decoded(&[2, 1]);
        assert_eq!((reserve.command, reserve.count), (ReserveCommand::FORCE_SET, 1));
        assert_eq!(decoded::<Mac>(&[2, 0, 0, 0, 0, 9]), PEER);
    }

    #[test]
    fn orders_travel_in_a_cdb() {
        let order = Order { kind: OrderKind::EditMask, argument_bytes: 0x0102 };
        assert_eq!(order.cdb().as_bytes(), [0xc0, 2, 1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
        for kind in OrderKind::ALL {
            let order = Order { kind, argument_bytes: 77 };
            assert_eq!(Order::from_cdb(&order.cdb()), Some(order));
            let answer = 24 + 8 + usize::from(kind.entries_max()) * kind.entry_bytes();
            assert!(answer <= MTU_MIN as usize + 14, "every answer fits");
        }
        for other in [&[0xc0, 1, 2, 0][..], &[0xc0, 0, 0, 0], &[0x85, 1, 3], &[]] {
            assert_eq!(Order::from_cdb(&Cdb::from_bytes(other).unwrap()), None);
        }
    }

    #[test]
    fn a_query_is_a_cdb_and_no_order() {
        for (kind, code) in [(QueryKind::Read, 0), (QueryKind::Test, 1), (QueryKind::TestPrefix, 2)] {
            let query = Query { kind, argument_bytes: 9 };
            let cdb = query.cdb();
            assert_eq!(cdb.as_bytes()[..8], [0xc0, 1, code, 0, 0, 0, 0, 9]);
            assert_eq!((Query::from_cdb(&cdb), Order::from_cdb(&cdb)), (Some(query), None));
        }
        let order = Order { kind: OrderKind::SetConfig, argument_bytes: 9 };
        assert_eq!(Query::from_cdb(&order.cdb()), None);
    }

    #[test]
    fn refusals_travel_in_sense_data() {
        let present = Refusal::Error(ErrorCode::CONFIG_STRING_PRESENT);
        let full = Refusal::Mask { error: MaskError::LIST_FULL, done: 5 };
        let bytes = [0x72, 0x0b, 0, 0, 0, 0, 0, 12, 1, 10, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(present.sense().as_bytes(), bytes);
        for refusal in [present, full] {
            assert_eq!(Refusal::from_sense(&refusal.sense()), Some(refusal));
            for len in 0..11 {
                assert_eq!(Refusal::from_sense(&Sense::from_bytes(&bytes[..len])), None);
            }
        }
        let none = Refusal::Error(ErrorCode::NONE);
        assert_eq!(Refusal::from_sense(&none.sense()), None);
    }

    #[test]
    fn addresses_are_written_and_read() {
        assert_eq!(("1.2".parse(), E1_2.to_string()), (Ok(E1_2), "1.2".to_string()));
        assert_eq!("65534.254".parse(), Ok(Address { shelf: 65534, slot: 254 }));
        for wrong in ["", ".", "1", "1.", ".2", "1.2.3", "65535.0", "0.255", "65536.0", "+1.0", "1. 0", "a.b"]
        {
            assert_eq!(wrong.parse::<Address>(), Err(NotAddress), "{wrong}");
        }
        let (shelf, slot) = (Address { slot: 0xff, ..E1_2 }, Address { shelf: 0xffff, ..E1_2 });
        for all in [Address::BROADCAST, shelf, slot] {
            assert!(all.covers(E1_2) && all.is_broadcast());
        }
        assert!(E1_2.covers(E1_2) && !E1_2.is_broadcast());
        let other = Address { shelf: 2, slot: 3 };
        assert!(!shelf.covers(other) && !slot.covers(other) && !E1_2.covers(other));
    }

    #[test]
    fn ethernet_addresses_are_written_and_read() {
        assert_eq!((PEER.to_string().parse(), PEER.to_string()), (Ok(PEER), "02:00:00:00:00:09".to_string()));
        assert_eq!("aB:CD:ef:00:11:22".parse(), Ok(Mac([0xab, 0xcd, 0xef, 0, 0x11, 0x22])));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:09:00",
            "2:00:00:00:00:09",
            "02-00-00-00-00-09",
            "+2:00:00:00:00:09",
        ] {
            assert_eq!(wrong.parse::<Mac>(), Err(NotMac), "{wrong}");
        }
        assert!(Mac::BROADCAST.is_group() && !PEER.is_group());
    }

    #[test]
    fn frames_hold_sectors() {
        assert_eq!([1500, 9000, MTU_MIN, 65535].map(sectors_per_frame), [2, 17, 2, 127]);
        assert_eq!([0, 22, 533, u32::MAX].map(sectors_per_frame), [0, 0, 0, 255]);
    }
}
