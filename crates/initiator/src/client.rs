//! A session on the caller's thread, which waits for every command: for tools, and for one-off queries.

use super::session::{Command, Ending, Finished, Refused, Session};
use super::{Options, frames};
use config::{Protocol, Url};
use proto::aoe::discover::Target;
use proto::iscsi::initiator::Request;
use proto::iscsi::login::Negotiated;
use proto::services::Attribute;
use reactor::io::{Completion, Io as _, Tag, Wait};
use reactor::memory::{Arena, LARGE_BYTES};
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::fmt;
use std::time::Duration;
use wire::aoe::{Mac, Order};
use wire::ata::PassThrough;
use wire::scsi::opcode;
use wire::{Cdb, Places, Sense, shown};

/// The most data of one command.
pub const DATA_BYTES_MAX: u32 = LARGE_BYTES * Places::MAX as u32;
/// Buffers of a client, most of them for jumbo frames. Memory is only taken as it is used.
const ARENA_BYTES: u64 = 16 << 20;
/// How often deadlines are checked.
const TICK: Duration = Duration::from_millis(50);

/// A session with one unit.
pub struct Client {
    io: Uring,
    session: Session,
    completions: Vec<Completion>,
    finished: Vec<Finished>,
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Status (SAM-5 section 5.3): 0 is GOOD.
    pub status: u8,
    /// Sense data.
    pub sense: Option<Sense>,
    /// Data-in.
    pub data: Vec<u8>,
}

/// Why there is no session: with which target, and what is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectError {
    what: String,
    problem: String,
}

impl ConnectError {
    fn new(url: &Url, problem: impl fmt::Display) -> ConnectError {
        ConnectError { what: url.to_string(), problem: problem.to_string() }
    }

    /// What is wrong.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.problem)
    }
}

impl std::error::Error for ConnectError {}

/// Why a command has no reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// More than [`DATA_BYTES_MAX`] bytes of data, or a CDB that is too long.
    TooLong,
    /// The target was lost, for this reason.
    Lost(String),
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::TooLong => write!(f, "one command carries at most {DATA_BYTES_MAX} bytes"),
            CommandError::Lost(reason) => write!(f, "the target was lost: {reason}"),
        }
    }
}

impl std::error::Error for CommandError {}

impl Client {
    /// Logs in. Without a target in the URL, it is a discovery session. Blocks.
    ///
    /// # Errors
    /// When the host is not found or unreachable, or the target refuses the login.
    pub fn connect(url: &Url, options: &Options) -> Result<Client, ConnectError> {
        let fault = |problem: &dyn fmt::Display| ConnectError::new(url, problem);
        let addresses =
            super::resolve(url).map_err(|error| fault(&format!("cannot find the host: {error}")))?;
        let tries = addresses.len();
        let io = Arena::new(ARENA_BYTES).and_then(|arena| Uring::new(arena, Waker::new()?));
        // One command at a time: over RDMA there is memory for the answer to each that may be in flight.
        let options = Options { queue_depth: 1, ..options.clone() };
        let session = Session::new::<Uring>(url.clone(), addresses, options, Tag(0));
        let mut client = Client {
            io: io.map_err(|error| fault(&format!("cannot open an io_uring: {error}")))?,
            session: session.unlogged(),
            completions: Vec::new(),
            finished: Vec::new(),
        };
        for _ in 0..tries {
            client.session.start(&mut client.io);
            loop {
                client.turn();
                if client.session.is_ready() {
                    return Ok(client);
                }
                if client.session.failure().is_some() && client.session.is_closed() {
                    break;
                }
            }
        }
        Err(fault(&client.session.failure().unwrap_or("no session")))
    }

    /// What was negotiated at login; with SRP, nothing.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.session.negotiated()
    }

    /// Over AoE, our address.
    pub fn mac(&self) -> Option<Mac> {
        self.session.mac()
    }

    /// Sends a command to the URL's unit and waits for its end. Data goes in one direction, except for orders
    /// of AoE, which are answered with data. Unit attentions are handled here, and a busy target is retried.
    ///
    /// # Errors
    /// When there is too much data, or the target is lost.
    pub fn command(
        &mut self,
        cdb: impl Into<Cdb>,
        read_bytes: u32,
        write: &[u8],
    ) -> Result<Reply, CommandError> {
        self.execute(cdb.into(), read_bytes, write, true)
    }

    /// Sends a command that reads, without retries while the target is busy or the unit is becoming ready.
    ///
    /// # Errors
    /// Like [`Client::command`].
    pub fn command_once(&mut self, cdb: impl Into<Cdb>, read_bytes: u32) -> Result<Reply, CommandError> {
        self.execute(cdb.into(), read_bytes, &[], false)
    }

    fn execute(
        &mut self,
        cdb: Cdb,
        read_bytes: u32,
        write: &[u8],
        patient: bool,
    ) -> Result<Reply, CommandError> {
        let write_bytes = u32::try_from(write.len()).map_err(|_| CommandError::TooLong)?;
        let read = self.take(read_bytes)?;
        let write_places = self.take(write_bytes).inspect_err(|_| self.io.arena().give(&read))?;
        let mut rest = write;
        for span in write_places.iter() {
            let (piece, tail) = rest.split_at(span.len as usize);
            self.io.arena().bytes_mut(span).copy_from_slice(piece);
            rest = tail;
        }
        let request = Request {
            lun: self.session.lun_bytes(),
            attribute: Attribute::Simple,
            cdb,
            read,
            write: write_places,
        };
        let (repeatable, since) = (is_repeatable(cdb.opcode()), self.io.now());
        let reply = self.run(Command { cookie: 0, request, repeatable, patient, since });
        let reply = reply.map(|(status, sense, read_bytes)| {
            let part = read.slice(0, read_bytes);
            let data = part.iter().flat_map(|span| self.io.arena().bytes(span).to_vec()).collect();
            Reply { status, sense, data }
        });
        self.io.arena().give(&read);
        self.io.arena().give(&write_places);
        reply
    }

    /// Sends a text request and waits for the answer.
    ///
    /// # Errors
    /// When the target is lost, rejects it, or does not answer in time.
    pub fn text(&mut self, text: &[u8]) -> Result<Vec<u8>, CommandError> {
        if !self.session.send_text(text) {
            return Err(self.lost());
        }
        let until = self.io.now().after(self.session.give_up_after());
        loop {
            self.turn();
            if let Some(answer) = self.session.take_text() {
                return answer.map_err(CommandError::Lost);
            }
            if self.io.now() >= until {
                let seconds = self.session.give_up_after().as_secs();
                let reason = format!("a text request was not answered within {seconds} s");
                return Err(CommandError::Lost(reason));
            }
            if !self.session.is_ready() {
                return Err(self.lost());
            }
        }
    }

    fn run(&mut self, command: Command) -> Result<(u8, Option<Sense>, u32), CommandError> {
        match self.session.submit(self.io.now(), &command) {
            Ok(()) => {}
            Err(Refused::Full | Refused::Lost) => return Err(self.lost()),
        }
        let ending = loop {
            self.turn();
            if let Some(Finished { ending, .. }) = self.finished.pop() {
                break ending;
            }
        };
        match ending {
            Ending::Good(moved) => Ok((0, None, moved.read_bytes)),
            Ending::Status { status, sense, moved } => Ok((status, sense, moved.read_bytes)),
            Ending::Lost { .. } => Err(self.lost()),
        }
    }

    fn take(&mut self, bytes: u32) -> Result<Places, CommandError> {
        if bytes == 0 {
            return Ok(Places::EMPTY);
        }
        self.io.arena().take(bytes).ok_or(CommandError::TooLong)
    }

    fn lost(&self) -> CommandError {
        CommandError::Lost(self.session.failure().unwrap_or("no answer").to_string())
    }

    fn turn(&mut self) {
        self.session.tick(&mut self.io, &mut self.finished);
        self.io.turn(Wait::AtMost(TICK), &mut self.completions);
        for completion in self.completions.drain(..) {
            self.session.completed(&mut self.io, completion, &mut self.finished);
        }
        self.session.flush(&mut self.io, &mut self.finished);
    }
}

/// Logs out; a target that does not answer is not waited for.
impl Drop for Client {
    fn drop(&mut self) {
        let until = self.io.now().after(Duration::from_secs(1));
        self.session.close(&mut self.io, &mut self.finished);
        while !self.session.is_closed() && self.io.now() < until {
            self.io.turn(Wait::AtMost(TICK), &mut self.completions);
            for completion in self.completions.drain(..) {
                self.session.completed(&mut self.io, completion, &mut self.finished);
            }
        }
        self.session.close_socket();
    }
}

/// Whether executing a command twice changes nothing.
fn is_repeatable(opcode: u8) -> bool {
    use opcode::{COMPARE_AND_WRITE, EXTENDED_COPY, PERSISTENT_RESERVE_OUT};
    // A device never executes those that it aborts; and an order may have been followed by another
    // initiator's meanwhile.
    const OF_ATA: [u8; 2] = [PassThrough::OPCODE, Order::OPCODE];
    !matches!(opcode, COMPARE_AND_WRITE | PERSISTENT_RESERVE_OUT | EXTENDED_COPY) && !OF_ATA.contains(&opcode)
}

/// What an AoE target reports about itself.
fn describe(target: &Target) -> String {
    let Target { mac, buffer_count, sectors, config, .. } = target;
    let config = if config.is_empty() { String::new() } else { format!(", config string {}", shown(config)) };
    format!("{mac}, {buffer_count} buffers, {sectors} sectors in a frame{config}")
}

/// The targets at an address, each with its addresses (SendTargets, RFC 7143 appendix C); with AoE, those
/// that answer on an interface. Blocks.
///
/// # Errors
/// When there is no discovery session, as with SRP, or its answer is invalid.
pub fn discover(url: &Url, options: &Options) -> Result<Vec<(String, Vec<String>)>, ConnectError> {
    let url = Url { target: None, lun: None, ..url.clone() };
    if url.protocol == Protocol::Aoe {
        let found = frames::discover(&url.host).map_err(|error| ConnectError::new(&url, error))?;
        return Ok(found.iter().map(|target| (target.address.to_string(), vec![describe(target)])).collect());
    }
    if url.protocol == Protocol::Srp {
        let problem = "SRP has no discovery; ask the target's administrator for its GUID (`lunette serve` prints it), \
        or discover the same host by iscsi://";
        return Err(ConnectError::new(&url, problem));
    }
    let mut client = Client::connect(&url, options)?;
    let text = client.text(b"SendTargets=All\0").map_err(|error| ConnectError::new(&url, error))?;
    let mut targets: Vec<(String, Vec<String>)> = Vec::new();
    for pair in text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()) {
        let pair = String::from_utf8_lossy(pair);
        match (pair.split_once('='), targets.last_mut()) {
            (Some(("TargetName", name)), _) => targets.push((name.to_string(), Vec::new())),
            (Some(("TargetAddress", address)), Some((_, addresses))) => addresses.push(address.to_string()),
            (Some(_) | None, _) => {
                let problem =
                    format_args!("`{}` is not a valid answer to SendTargets", shown(pair.as_bytes()))
                        .to_string();
                return Err(ConnectError::new(&url, problem));
            }
        }
    }
    Ok(targets)
}
