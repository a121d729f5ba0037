//! The fixed newstyle handshake, as a client does it.

use super::Export;
use std::fmt;
use wire::nbd::{
    self, BASE_ALLOCATION, BlockSizeInfo, EXPORT_NAME_ZEROS, ExportInfo, Greeting, Layout, OptionHead,
    OptionReplyHead, STRING_BYTES_MAX, handshake, info, option, reply,
};
use wire::shown;
use zerocopy::IntoBytes;

/// The longest data of a reply that is accepted: a string of the protocol, and what precedes it.
const REPLY_BYTES_MAX: u32 = 4096 + 64;

/// The limits of an export that names none (section "Size constraints").
const BLOCK_MINIMUM: u32 = 1;
const BLOCK_PREFERRED: u32 = 4096;
const PAYLOAD_MAXIMUM: u32 = 1 << 25;
/// The upper limit of the minimum block size.
const BLOCK_MINIMUM_MAX: u32 = 1 << 16;

/// Whether a connection is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encryption {
    /// No.
    Never,
    /// By TLS, or there is no connection.
    Required,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// From here on the connection is encrypted: continue with [`Handshake::encrypted`].
    StartTls,
    /// The transmission begins.
    Done(Export),
}

/// Why there is no export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The peer does not speak NBD.
    NotNbd,
    /// The server speaks an older style of the handshake.
    TooOld,
    /// The server requires TLS.
    TlsRequired,
    /// The server has no TLS.
    NoTls(String),
    /// There is no such export.
    Unknown(String),
    /// The server is being shut down.
    ShuttingDown,
    /// The server refuses.
    Refused(String),
    /// The server violates the protocol.
    Malformed(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |f: &mut fmt::Formatter<'_>, what: &str, message: &str| match message {
            "" => f.write_str(what),
            message => write!(f, "{what} ({message})"),
        };
        match self {
            Refusal::NotNbd => f.write_str("the peer is not an NBD server"),
            Refusal::TooOld => f.write_str("the server does not know the fixed newstyle handshake"),
            Refusal::TlsRequired => f.write_str("the server requires TLS"),
            Refusal::NoTls(message) => with(f, "the server does not support TLS", message),
            Refusal::Unknown(message) => with(f, "the server has no such export", message),
            Refusal::ShuttingDown => f.write_str("the server is being shut down"),
            Refusal::Refused(message) => with(f, "the server refuses", message),
            Refusal::Malformed(what) => write!(f, "the server breaks the protocol: {what}"),
        }
    }
}

/// The handshake of one connection. The caller sends what is in [`Handshake::out`], and provides as many
/// bytes as [`Handshake::want`] requires.
#[derive(Debug)]
pub struct Handshake {
    name: String,
    encryption: Encryption,
    expects: Expects,
    out: Vec<u8>,
    has_zeros: bool,
    structured: bool,
    allocation: Option<u32>,
    export: Option<ExportInfo>,
    sizes: (u32, u32, u32),
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expects {
    Greeting,
    /// The head of a reply to this option.
    Head(u32),
    /// The data of one.
    Data(OptionReplyHead),
    /// The answer to `NBD_OPT_EXPORT_NAME`.
    Export,
    Nothing,
}

impl Handshake {
    /// For an export; the empty name is the server's default export.
    ///
    /// # Errors
    /// When the name is too long.
    pub fn new(name: &str, encryption: Encryption) -> Result<Handshake, Refusal> {
        if name.len() > STRING_BYTES_MAX {
            return Err(Refusal::Unknown(format!("names have up to {STRING_BYTES_MAX} bytes")));
        }
        Ok(Handshake {
            name: name.to_owned(),
            encryption,
            expects: Expects::Greeting,
            out: Vec::new(),
            has_zeros: true,
            structured: false,
            allocation: None,
            export: None,
            sizes: (BLOCK_MINIMUM, BLOCK_PREFERRED, PAYLOAD_MAXIMUM),
        })
    }

    /// What is to be sent; the caller clears it afterwards.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// The number of bytes to provide.
    pub fn want(&self) -> usize {
        match self.expects {
            Expects::Greeting => Greeting::BYTES,
            Expects::Head(_) => OptionReplyHead::BYTES,
            Expects::Data(head) => usize::try_from(head.len.get()).unwrap_or(usize::MAX),
            Expects::Export if self.has_zeros => ExportInfo::BYTES.saturating_add(EXPORT_NAME_ZEROS),
            Expects::Export => ExportInfo::BYTES,
            Expects::Nothing => 0,
        }
    }

    /// Handles the requested bytes.
    ///
    /// # Errors
    /// When the server refuses, or violates the protocol.
    pub fn received(&mut self, bytes: &[u8]) -> Result<Step, Refusal> {
        match self.expects {
            Expects::Greeting => self.greeting(bytes),
            Expects::Head(option) => {
                let head = *OptionReplyHead::view(bytes).ok_or(SHORT)?;
                if head.magic.get() != nbd::OPTION_REPLY_MAGIC || head.option.get() != option {
                    return Err(Refusal::Malformed("a reply to an option that was not sent"));
                }
                match head.len.get() {
                    0 => self.reply(head, &[]),
                    len if len > REPLY_BYTES_MAX => {
                        Err(Refusal::Malformed("a reply to an option is too long"))
                    }
                    _ => {
                        self.expects = Expects::Data(head);
                        Ok(Step::More)
                    }
                }
            }
            Expects::Data(head) => self.reply(head, bytes),
            Expects::Export => {
                self.export = Some(*ExportInfo::view(bytes).ok_or(SHORT)?);
                self.done()
            }
            Expects::Nothing => Err(Refusal::Malformed("there is more than was requested")),
        }
    }

    /// The connection is encrypted from here on: what was negotiated before does not count.
    pub fn encrypted(&mut self) {
        self.ask(option::STRUCTURED_REPLY, &[]);
    }

    fn greeting(&mut self, bytes: &[u8]) -> Result<Step, Refusal> {
        let greeting = Greeting::view(bytes).ok_or(SHORT)?;
        let flags = greeting.flags.get();
        match (greeting.magic.get(), greeting.style.get()) {
            (nbd::SERVER_MAGIC, nbd::OPTION_MAGIC) if flags & handshake::FIXED_NEWSTYLE != 0 => {}
            (nbd::SERVER_MAGIC, nbd::OPTION_MAGIC | nbd::OLDSTYLE_MAGIC) => return Err(Refusal::TooOld),
            _ => return Err(Refusal::NotNbd),
        }
        let ours = flags & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        self.has_zeros = ours & handshake::NO_ZEROES == 0;
        self.out.extend_from_slice(&u32::from(ours).to_be_bytes());
        match self.encryption {
            Encryption::Required => self.ask(option::START_TLS, &[]),
            Encryption::Never => self.ask(option::STRUCTURED_REPLY, &[]),
        }
        Ok(Step::More)
    }

    fn ask(&mut self, option: u32, data: &[u8]) {
        let head = OptionHead::new(option, u32::try_from(data.len()).unwrap_or(u32::MAX));
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(data);
        self.expects = match option {
            option::EXPORT_NAME => Expects::Export,
            option => Expects::Head(option),
        };
    }

    fn reply(&mut self, head: OptionReplyHead, data: &[u8]) -> Result<Step, Refusal> {
        let (option, kind) = (head.option.get(), head.kind.get());
        self.expects = Expects::Head(option);
        if kind & reply::ERROR != 0 {
            return self.refused(option, kind, data);
        }
        match (option, kind) {
            (option::START_TLS, reply::ACK) => {
                self.expects = Expects::Nothing;
                return Ok(Step::StartTls);
            }
            (option::STRUCTURED_REPLY, reply::ACK) => {
                self.structured = true;
                self.ask(option::SET_META_CONTEXT, &self.contexts());
            }
            (option::SET_META_CONTEXT, reply::META_CONTEXT) => {
                let (id, name) = data.split_first_chunk().ok_or(SHORT)?;
                if name == BASE_ALLOCATION.as_bytes() {
                    self.allocation = Some(u32::from_be_bytes(*id));
                }
            }
            (option::SET_META_CONTEXT, reply::ACK) => self.ask(option::GO, &self.go()),
            (option::GO, reply::INFO) => self.info(data)?,
            (option::GO, reply::ACK) => return self.done(),
            _ => return Err(Refusal::Malformed("a reply that does not belong to its option")),
        }
        Ok(Step::More)
    }

    fn refused(&mut self, option: u32, kind: u32, message: &[u8]) -> Result<Step, Refusal> {
        let message = shown(message).to_string();
        match (option, kind) {
            (_, reply::SHUTDOWN) => return Err(Refusal::ShuttingDown),
            (option::START_TLS, _) => return Err(Refusal::NoTls(message)),
            (_, reply::TLS_REQUIRED) => return Err(Refusal::TlsRequired),
            (option::STRUCTURED_REPLY, _) => self.ask(option::GO, &self.go()),
            (option::SET_META_CONTEXT, _) => {
                // Errors of the export itself are reported for the next option.
                self.allocation = None;
                self.ask(option::GO, &self.go());
            }
            (option::GO, reply::UNSUPPORTED) => {
                let name = self.name.clone().into_bytes();
                self.ask(option::EXPORT_NAME, &name);
            }
            (option::GO, reply::UNKNOWN) => return Err(Refusal::Unknown(message)),
            _ => return Err(Refusal::Refused(message)),
        }
        Ok(Step::More)
    }

    /// The data of `NBD_OPT_SET_META_CONTEXT`.
    fn contexts(&self) -> Vec<u8> {
        let mut data = self.named();
        data.extend_from_slice(&1u32.to_be_bytes());
        data.extend_from_slice(&u32::try_from(BASE_ALLOCATION.len()).unwrap_or(0).to_be_bytes());
        data.extend_from_slice(BASE_ALLOCATION.as_bytes());
        data
    }

    /// The data of `NBD_OPT_GO`.
    fn go(&self) -> Vec<u8> {
        let mut data = self.named();
        data.extend_from_slice(&1u16.to_be_bytes());
        data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        data
    }

    fn named(&self) -> Vec<u8> {
        let mut data = u32::try_from(self.name.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
        data.extend_from_slice(self.name.as_bytes());
        data
    }

    fn info(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let (kind, data) = data.split_first_chunk().ok_or(SHORT)?;
        match u16::from_be_bytes(*kind) {
            info::EXPORT => self.export = Some(*ExportInfo::view(data).ok_or(SHORT)?),
            info::BLOCK_SIZE => {
                let sizes = BlockSizeInfo::view(data).ok_or(SHORT)?;
                let (minimum, preferred) = (sizes.minimum.get(), sizes.preferred.get());
                let is_right = minimum.is_power_of_two()
                    && minimum <= BLOCK_MINIMUM_MAX
                    && preferred.is_power_of_two()
                    && preferred >= minimum
                    && sizes.maximum.get() >= minimum;
                if !is_right {
                    return Err(Refusal::Malformed("invalid block sizes"));
                }
                self.sizes = (minimum, preferred, sizes.maximum.get());
            }
            // Unknown information is ignored.
            _ => {}
        }
        Ok(())
    }

    fn done(&mut self) -> Result<Step, Refusal> {
        self.expects = Expects::Nothing;
        let export = self.export.ok_or(Refusal::Malformed("no size of the export"))?;
        let (block_minimum, block_preferred, payload_maximum) = self.sizes;
        Ok(Step::Done(Export {
            size: export.size.get(),
            flags: export.flags.get(),
            block_minimum,
            block_preferred,
            payload_maximum,
            structured: self.structured,
            allocation: self.allocation,
        }))
    }
}

const SHORT: Refusal = Refusal::Malformed("a reply to an option is too short");

#[cfg(test)]
mod tests {
    use super::*;
    use wire::nbd::transmission::{CAN_MULTI_CONN, HAS_FLAGS, SEND_FLUSH};

    const FLAGS: u16 = HAS_FLAGS | SEND_FLUSH | CAN_MULTI_CONN;

    fn greeting(flags: u16) -> Vec<u8> {
        let flags = flags.into();
        Greeting { magic: nbd::SERVER_MAGIC.into(), style: nbd::OPTION_MAGIC.into(), flags }
            .as_bytes()
            .to_vec()
    }

    fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let head = OptionReplyHead {
            magic: nbd::OPTION_REPLY_MAGIC.into(),
            option: option.into(),
            kind: kind.into(),
            len: u32::try_from(data.len()).unwrap().into(),
        };
        [head.as_bytes(), data].concat()
    }

    fn export_info(size: u64) -> Vec<u8> {
        let info = ExportInfo { size: size.into(), flags: FLAGS.into() };
        [&info::EXPORT.to_be_bytes(), info.as_bytes()].concat()
    }

    fn block_sizes(sizes: [u32; 3]) -> Vec<u8> {
        let [minimum, preferred, maximum] = sizes.map(Into::into);
        [&info::BLOCK_SIZE.to_be_bytes(), BlockSizeInfo { minimum, preferred, maximum }.as_bytes()].concat()
    }

    /// Feeds in what the server sends, and returns the result and what the client has sent.
    fn run(encryption: Encryption, server: &[Vec<u8>]) -> (Result<Step, Refusal>, Vec<u8>) {
        let (mut handshake, stream) = (Handshake::new("disk", encryption).unwrap(), server.concat());
        let (mut rest, mut sent) = (&stream[..], Vec::new());
        loop {
            sent.append(handshake.out());
            let Some((bytes, behind)) = rest.split_at_checked(handshake.want()) else {
                return (Ok(Step::More), sent);
            };
            rest = behind;
            match handshake.received(bytes) {
                Ok(Step::More) => {}
                Ok(Step::StartTls) if !rest.is_empty() => handshake.encrypted(),
                ended => return (ended, sent),
            }
        }
    }

    fn good() -> Vec<Vec<u8>> {
        vec![
            greeting(3),
            answer(option::STRUCTURED_REPLY, reply::ACK, &[]),
            answer(option::SET_META_CONTEXT, reply::META_CONTEXT, b"\0\0\0\x07base:allocation"),
            answer(option::SET_META_CONTEXT, reply::ACK, &[]),
            answer(option::GO, reply::INFO, &export_info(1 << 30)),
            answer(option::GO, reply::INFO, b"\0\x02a description"),
            answer(option::GO, reply::INFO, &block_sizes([512, 4096, 1 << 25])),
            answer(option::GO, reply::ACK, &[]),
        ]
    }

    fn refusal(server: &[Vec<u8>]) -> Refusal {
        run(Encryption::Never, server).0.expect_err("it is refused")
    }

    #[test]
    fn an_export_is_negotiated_with_all_that_the_server_can() {
        let (ended, sent) = run(Encryption::Never, &good());
        let export = Export {
            size: 1 << 30,
            flags: FLAGS,
            block_minimum: 512,
            block_preferred: 4096,
            payload_maximum: 1 << 25,
            structured: true,
            allocation: Some(7),
        };
        assert_eq!(ended, Ok(Step::Done(export)));
        assert!(export.flushes() && export.shares_connections() && !export.is_read_only());
        let options =
            [&b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0"[..], b"IHAVEOPT\0\0\0\x0a\0\0\0\x1f\0\0\0\x04disk"]
                .concat();
        assert!(sent.starts_with(&options));
        assert!(sent.ends_with(b"IHAVEOPT\0\0\0\x07\0\0\0\x0c\0\0\0\x04disk\0\x01\0\x03"));
    }

    #[test]
    fn a_server_that_knows_little_is_used_as_far_as_it_goes() {
        let unsupported = |option| answer(option, reply::UNSUPPORTED, b"what?");
        let old = ExportInfo { size: 4096.into(), flags: HAS_FLAGS.into() }.as_bytes().to_vec();
        for (flags, zeros) in [(3, 0), (1, EXPORT_NAME_ZEROS)] {
            let server = [
                greeting(flags),
                unsupported(option::STRUCTURED_REPLY),
                unsupported(option::GO),
                old.clone(),
                vec![0; zeros],
            ];
            let (ended, sent) = run(Encryption::Never, &server);
            let Ok(Step::Done(export)) = ended else { panic!("{ended:?}") };
            assert_eq!((export.size, export.block_minimum, export.structured), (4096, 1, false));
            assert!(sent.ends_with(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk"));
        }
    }

    #[test]
    fn tls_comes_before_everything_else_where_it_is_required() {
        let acked = [greeting(3), answer(option::START_TLS, reply::ACK, &[])];
        let (ended, sent) = run(Encryption::Required, &acked);
        assert_eq!(ended, Ok(Step::StartTls));
        assert!(sent.ends_with(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0"));
        let all = [&acked[..], &good()[1..]].concat();
        assert!(matches!(run(Encryption::Required, &all).0, Ok(Step::Done(_))));
        let refused = [greeting(3), answer(option::START_TLS, reply::POLICY, b"not here")];
        assert_eq!(run(Encryption::Required, &refused).0, Err(Refusal::NoTls("not here".into())));
        let required = answer(option::STRUCTURED_REPLY, reply::TLS_REQUIRED, &[]);
        assert_eq!(refusal(&[greeting(3), required]), Refusal::TlsRequired);
    }

    #[test]
    fn what_a_server_refuses_is_said() {
        let upto = |count: usize, last: Vec<u8>| [&good()[..count], &[last]].concat();
        let unknown = answer(option::GO, reply::UNKNOWN, b"export 'disk' \x1b not present");
        let said = refusal(&upto(4, unknown)).to_string();
        assert_eq!(said, "the server has no such export (export 'disk' \\x1b not present)");
        let policy = answer(option::GO, reply::POLICY, b"");
        assert_eq!(refusal(&upto(4, policy)).to_string(), "the server refuses");
        let shutdown = answer(option::STRUCTURED_REPLY, reply::SHUTDOWN, &[]);
        assert_eq!(refusal(&upto(1, shutdown)), Refusal::ShuttingDown);
    }

    #[test]
    fn protocol_violations_are_named() {
        assert_eq!(refusal(&[b"HTTP/1.1 400 Bad Request".to_vec()]), Refusal::NotNbd);
        assert_eq!(refusal(&[greeting(2)]), Refusal::TooOld);
        let oldstyle = [nbd::SERVER_MAGIC.to_be_bytes(), nbd::OLDSTYLE_MAGIC.to_be_bytes()].concat();
        assert_eq!(refusal(&[oldstyle, vec![0; 2]]), Refusal::TooOld);
        let upto = |count: usize, last: Vec<u8>| refusal(&[&good()[..count], &[last]].concat());
        let mut long = answer(option::GO, reply::INFO, &[]);
        long[16..20].copy_from_slice(&(REPLY_BYTES_MAX + 1).to_be_bytes());
        for (count, last) in [
            (1, answer(option::GO, reply::ACK, &[])),
            (1, answer(option::STRUCTURED_REPLY, reply::INFO, &[])),
            (4, answer(option::GO, reply::ACK, &[])),
            (4, answer(option::GO, reply::INFO, b"\0")),
            (4, answer(option::GO, reply::INFO, b"\0\0\0")),
            (4, answer(option::GO, reply::INFO, &block_sizes([0, 4096, 1 << 25]))),
            (4, answer(option::GO, reply::INFO, &block_sizes([512, 256, 1 << 25]))),
            (4, answer(option::GO, reply::INFO, &block_sizes([1 << 17, 1 << 17, 1 << 25]))),
            (4, long),
            (2, answer(option::SET_META_CONTEXT, reply::META_CONTEXT, b"\0\0")),
        ] {
            let refused = upto(count, last.clone());
            assert!(matches!(refused, Refusal::Malformed(_)), "{last:?}: {refused:?}");
        }
        assert!(Handshake::new(&"x".repeat(4097), Encryption::Never).is_err());
    }
}
