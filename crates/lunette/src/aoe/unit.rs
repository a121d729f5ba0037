//! A session with a unit of an AoE target, and its answers as text.

use crate::Failure;
use config::Protocol;
use config::Url;
use initiator::client::Reply;
use initiator::{Client, Options};
use std::fmt::Display;
use wire::aoe::{ErrorCode, Mac, MaskError, Order, OrderKind, Query, QueryKind, Refusal};
use wire::ata::{Command, IdentifyData, PassThrough, Registers, StatusReturn, error, status};
use wire::scsi::status::{GOOD, RESERVATION_CONFLICT};
use wire::{Cdb, SenseKey};

/// More than any config string or list.
const ANSWER_BYTES: u32 = 2048;

/// A unit.
pub(super) struct Unit {
    url: Url,
    client: Client,
    ours: Mac,
}

impl Unit {
    /// Connects to it.
    pub(super) fn connect(text: &str) -> Result<Unit, Failure> {
        let url = Url::given(text).map_err(|error| Failure::wrong_input(format!("URL: {error}")))?;
        if url.protocol != Protocol::Aoe {
            let text = "only ATA over Ethernet has this; write aoe://IFACE/SHELF.SLOT";
            return Err(Failure::wrong_input(format!("{url}: {text}")));
        }
        url.check_unit().map_err(|error| {
            let list = format!("`lunette discover aoe://{}` lists units", url.host);
            Failure::wrong_input(format!("{url}: {error}: {list}"))
        })?;
        let client = Client::connect(&url, &Options::default()).map_err(Failure::failed)?;
        let ours = client.mac().ok_or_else(|| Failure::failed(format!("{url}: the connection was lost")))?;
        Ok(Unit { url, client, ours })
    }

    /// Its URL.
    pub(super) fn url(&self) -> String {
        self.url.to_string()
    }

    /// The failure of an operation.
    pub(super) fn failed(&self, problem: impl Display) -> Failure {
        Failure::failed(format!("{}: {problem}", self.url))
    }

    /// The address of our interface.
    pub(super) fn ours(&self) -> Mac {
        self.ours
    }

    /// Sends an order; returns its answer.
    pub(super) fn order(&mut self, kind: OrderKind, argument: &[u8]) -> Result<Vec<u8>, Failure> {
        let argument_bytes = u32::try_from(argument.len()).unwrap_or(u32::MAX);
        let reply = self.ask(&Order { kind, argument_bytes }.cdb(), ANSWER_BYTES, argument)?;
        if reply.status == GOOD {
            return Ok(reply.data);
        }
        Err(self.failed(problem(&reply, kind)))
    }

    /// Queries the config string; `None`: a test does not match.
    pub(super) fn query(&mut self, kind: QueryKind, argument: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let argument_bytes = u32::try_from(argument.len()).unwrap_or(u32::MAX);
        let reply = self.ask(&Query { kind, argument_bytes }.cdb(), ANSWER_BYTES, argument)?;
        match reply.sense.as_ref().and_then(wire::Sense::key) {
            None if reply.status == GOOD => Ok(Some(reply.data)),
            Some(SenseKey::Miscompare) => Ok(None),
            Some(_) | None => Err(self.failed(unknown(&reply))),
        }
    }

    /// Sends an ATA command that reads at most a sector; returns the registers after it, and the data.
    pub(super) fn ata(
        &mut self,
        registers: Registers,
        name: &str,
    ) -> Result<(StatusReturn, Vec<u8>), Failure> {
        let pass = PassThrough { check_condition: true, ..PassThrough::new(registers) };
        let cdb = pass.to_cdb().ok_or_else(|| self.failed(format!("{name} cannot be sent")))?;
        let reply = self.ask(&cdb, pass.transfer().bytes(), &[])?;
        let end = reply.sense.as_ref().and_then(StatusReturn::from_sense);
        match end {
            Some(end) if end.status & (status::ERR | status::DF) == 0 => Ok((end, reply.data)),
            Some(end) if end.status & status::DF == 0 && end.error & error::ABRT != 0 => {
                Err(self.failed(format!("the device aborted {name}: unsupported or invalid")))
            }
            Some(end) => Err(self
                .failed(format!("{name} has failed: STATUS {:#04x}, ERROR {:#04x}", end.status, end.error))),
            None if reply.status == RESERVATION_CONFLICT => Err(self.failed(RESERVED)),
            None => Err(self.failed(format!("{name}: {}", unknown(&reply)))),
        }
    }

    /// The disk's identification.
    pub(super) fn identify(&mut self) -> Result<IdentifyData, Failure> {
        let (_, data) = self.ata(Registers::new(Command::IdentifyDevice, 0, 1), "IDENTIFY DEVICE")?;
        IdentifyData::decode(&data).ok_or_else(|| self.failed("it has no valid IDENTIFY DEVICE data"))
    }

    fn ask(&mut self, cdb: &Cdb, read_bytes: u32, data: &[u8]) -> Result<Reply, Failure> {
        self.client.command(cdb, read_bytes, data).map_err(|error| self.failed(error))
    }
}

const RESERVED: &str =
    "it is reserved: `lunette aoe reserve URL` shows for whom, and --release --force releases it";

/// Why an order was not executed.
fn problem(reply: &Reply, kind: OrderKind) -> String {
    if reply.status == RESERVATION_CONFLICT {
        return match kind {
            OrderKind::SetReserve => "it is reserved by others; add --force to override that".into(),
            OrderKind::SetConfig
            | OrderKind::ForceConfig
            | OrderKind::ReadMask
            | OrderKind::EditMask
            | OrderKind::ReadReserve
            | OrderKind::ForceReserve => RESERVED.into(),
        };
    }
    match reply.sense.as_ref().and_then(Refusal::from_sense) {
        Some(Refusal::Error(ErrorCode::CONFIG_STRING_PRESENT)) => {
            "it has a config string; add --force to replace it".into()
        }
        Some(Refusal::Error(ErrorCode::UNRECOGNIZED_COMMAND)) => "it does not support this command".into(),
        Some(Refusal::Error(ErrorCode::BAD_ARGUMENT)) => {
            "it rejected the argument, which may be too long for it or for a frame of the interface".into()
        }
        Some(Refusal::Error(ErrorCode(code))) => format!("it refuses that with AoE error {code}"),
        Some(Refusal::Mask { error: MaskError::LIST_FULL, .. }) => {
            "its mask list is full; remove addresses first".into()
        }
        Some(Refusal::Mask { error: MaskError(code), .. }) => {
            format!("it rejected this edit of its mask list (MError {code})")
        }
        None => unknown(reply),
    }
}

fn unknown(reply: &Reply) -> String {
    match &reply.sense {
        Some(sense) => format!("it has failed: {sense}"),
        None => format!("it ended with status {:02x}h", reply.status),
    }
}
