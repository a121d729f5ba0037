//! What a core requests of the kernel to serve commands that arrive together, recorded at its [`Io`].

mod turns;

use super::*;
use config::ServeOptions;
use config::Url;
use initiator::Destination;
use initiator::Options;
use initiator::session::{Command, Ending, Finished, Session};
use proto::iscsi::initiator::Request;
use proto::services::Attribute;
use proto::time::{Stamp, Time};
use reactor::io::{Allocate, Completion, Handle, Io, Tag, Wait};
use scsi::storage::Traits;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::lane::{Backend, Lane, Store};
use store::ram::RamStore;
use wire::{Cdb, Places, Span};

const BLOCK: u32 = 512;
const HEADER_BYTES: u32 = 48;
const UNIT_BYTES: u64 = 1 << 20;

/// What was requested of the kernel, and when something was received.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Note {
    Receive,
    Received(u32),
    Send(Vec<Span>),
}

type Notes = Arc<Mutex<Vec<Note>>>;

/// The notes since the last call.
fn take(notes: &Notes) -> Vec<Note> {
    std::mem::take(&mut *notes.lock().expect("nobody panics with it"))
}

/// The kernel, with a record of the socket operations requested of it.
struct RecordingIo {
    kernel: Uring,
    receives: Vec<Tag>,
    notes: Notes,
    turns: Arc<AtomicUsize>,
}

impl RecordingIo {
    fn new(waker: reactor::wake::Waker, notes: Notes, turns: Arc<AtomicUsize>) -> RecordingIo {
        let arena = Arena::new(ARENA_BYTES).expect("memory");
        let kernel = Uring::new(arena, waker).expect("an io_uring");
        RecordingIo { kernel, receives: Vec::new(), notes, turns }
    }

    fn note(&self, note: Note) {
        self.notes.lock().expect("nobody panics with it").push(note);
    }
}

impl Io for RecordingIo {
    type Line = Socket;

    fn now(&self) -> Time {
        self.kernel.now()
    }

    fn stamp(&self) -> Stamp {
        self.kernel.stamp()
    }

    fn processor_time(&self) -> Duration {
        self.kernel.processor_time()
    }

    fn arena(&mut self) -> &mut Arena {
        self.kernel.arena()
    }

    fn is_shared(&self) -> bool {
        self.kernel.is_shared()
    }

    fn random() -> u32 {
        Uring::random()
    }

    fn addresses(&self, socket: Handle) -> Option<(SocketAddr, SocketAddr)> {
        self.kernel.addresses(socket)
    }

    fn segment_bytes(&self, socket: Handle) -> u32 {
        self.kernel.segment_bytes(socket)
    }

    fn duplicate(&mut self, socket: Handle) -> Option<Handle> {
        self.kernel.duplicate(socket)
    }

    fn accept(&mut self, listener: Handle, tag: Tag) {
        self.kernel.accept(listener, tag);
    }

    fn connect(&mut self, to: SocketAddr, tag: Tag) {
        self.kernel.connect(to, tag);
    }

    fn recv(&mut self, socket: Handle, into: &Places, tag: Tag) {
        self.note(Note::Receive);
        self.receives.push(tag);
        self.kernel.recv(socket, into, tag);
    }

    fn send(&mut self, socket: Handle, from: &[Span], tag: Tag) {
        self.note(Note::Send(from.to_vec()));
        self.kernel.send(socket, from, tag);
    }

    fn watch(&mut self, descriptor: Handle, tag: Tag) {
        self.kernel.watch(descriptor, tag);
    }

    fn watch_room(&mut self, socket: Handle, tag: Tag) {
        self.kernel.watch_room(socket, tag);
    }

    fn unwatch(&mut self, tag: Tag) {
        self.kernel.unwatch(tag);
    }

    fn shutdown(&mut self, socket: Handle) {
        self.kernel.shutdown(socket);
    }

    fn close(&mut self, handle: Handle) {
        self.kernel.close(handle);
    }

    fn read(&mut self, file: Handle, at: u64, into: &Places, tag: Tag) {
        self.kernel.read(file, at, into, tag);
    }

    fn write(&mut self, file: Handle, at: u64, from: &Places, durable: bool, tag: Tag) {
        self.kernel.write(file, at, from, durable, tag);
    }

    fn sync(&mut self, file: Handle, tag: Tag) {
        self.kernel.sync(file, tag);
    }

    fn allocate(&mut self, file: Handle, how: Allocate, at: u64, len: u64, tag: Tag) {
        self.kernel.allocate(file, how, at, len, tag);
    }

    fn is_ready(&self) -> bool {
        self.kernel.is_ready()
    }

    fn turn(&mut self, wait: Wait, completions: &mut Vec<Completion>) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        let before = completions.len();
        self.kernel.turn(wait, completions);
        for completion in &completions[before..] {
            if let Some(index) = self.receives.iter().position(|tag| *tag == completion.tag) {
                self.receives.swap_remove(index);
                self.note(Note::Received(completion.result.unwrap_or(0)));
            }
        }
    }
}

/// How a test wraps a lane.
type Wrap =
    Box<dyn Fn(Box<dyn Lane<RecordingIo>>, Arc<AtomicUsize>) -> Box<dyn Lane<RecordingIo>> + Send + Sync>;

/// A unit in memory whose lanes are wrapped.
struct Wrapped {
    ram: Arc<RamStore>,
    wrap: Arc<Wrap>,
    turns: Arc<AtomicUsize>,
}

impl Store for Wrapped {
    fn traits(&self) -> Traits {
        self.ram.traits()
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        self.ram.refresh()
    }

    fn describe(&self) -> String {
        self.ram.describe()
    }
}

impl Backend<RecordingIo> for Wrapped {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<RecordingIo>> {
        (self.wrap)(self.ram.clone().lane(tags), self.turns.clone())
    }
}

/// One core that serves units in memory.
struct Target {
    portal: SocketAddr,
    name: String,
    stores: Vec<Arc<RamStore>>,
    notes: Notes,
    mail: Sender<Message<RecordingIo>>,
    core: JoinHandle<bool>,
}

impl Target {
    fn start() -> Target {
        Target::with(1, UNIT_BYTES, Box::new(|lane, _| lane))
    }

    /// With a number of units of a certain size; `wrap` gets their lanes, and the number of the core's turn.
    fn with(units: usize, unit_bytes: u64, wrap: Wrap) -> Target {
        let options = ServeOptions {
            listen: vec!["127.0.0.1:0".into()],
            lun: vec![format!("ram:{unit_bytes}"); units],
            cores: Some("0".into()),
            poll: Some("never".into()),
            ..ServeOptions::default()
        };
        let config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
        let stores: Vec<_> = (0..units).map(|_| store::open_ram(unit_bytes).expect("memory")).collect();
        let (wrap, turns) = (Arc::new(wrap), Arc::<AtomicUsize>::default());
        let opened = |store: &Arc<RamStore>| {
            let (ram, wrap, turns) = (store.clone(), wrap.clone(), turns.clone());
            Opened {
                store: Arc::new(Wrapped { ram, wrap, turns }),
                failed: None,
                losses: Arc::default(),
                space: Arc::default(),
                gateway: None,
            }
        };
        let opened: Vec<Opened<RecordingIo>> = stores.iter().map(opened).collect();
        let (units, _) = NewUnit::all(&config, &opened, &System);
        let endpoints = bind_all(&config, Vec::new()).expect("a portal");
        let (portal, name) = (endpoints[0].address, config.targets[0].name.clone());
        let (shared, served) = share(config, endpoints, i32::MAX, mpsc::channel().0, Events::default());
        let mailbox = mailbox::mesh::<Message<RecordingIo>>(1).expect("a mailbox").remove(0);
        let mail = mailbox.sender(0);
        let notes = Notes::default();
        let notes_of = notes.clone();
        let run = move || {
            let io = RecordingIo::new(mailbox.waker(), notes_of, turns);
            Core::new(0, io, shared, served, mailbox, units).run()
        };
        Target { portal, name, stores, notes, mail, core: std::thread::spawn(run) }
    }

    /// Where the medium's bytes are.
    fn memory(&self, offset: u64, len: u32) -> Span {
        let mut lane: Box<dyn Lane<RecordingIo>> = self.stores[0].clone().lane(Tag(0));
        lane.borrow(offset, len).expect("the store lends its memory")
    }

    fn stop(self) {
        self.mail.post(Message::Stop);
        assert!(self.core.join().expect("the core ends well"));
    }
}

/// An initiator's session that issues commands all at once.
struct Peer {
    io: RecordingIo,
    session: Session,
    completions: Vec<Completion>,
    finished: Vec<Finished>,
}

impl Peer {
    /// Logs in, and consumes the unit attentions of a new nexus.
    fn login(target: &Target, options: &str) -> Peer {
        Peer::login_to(target, 0, options)
    }

    /// The same for this LUN.
    fn login_to(target: &Target, lun: usize, options: &str) -> Peer {
        let url: Url =
            format!("iscsi://{}/{}/{lun}{options}", target.portal, target.name).parse().expect("a URL");
        let addresses = vec![Destination::Address(target.portal)];
        let mut peer = Peer {
            io: RecordingIo::new(
                reactor::wake::Waker::new().expect("a waker"),
                Notes::default(),
                Arc::default(),
            ),
            session: Session::new::<RecordingIo>(url, addresses, Options::default(), Tag(0)),
            completions: Vec::new(),
            finished: Vec::new(),
        };
        peer.session.start(&mut peer.io);
        while peer.session.negotiated().is_none() {
            assert!(peer.session.failure().is_none(), "{:?}", peer.session.failure());
            peer.turn();
        }
        peer.read(1, 1);
        take(&target.notes);
        take(&peer.io.notes);
        peer
    }

    fn turn(&mut self) {
        self.session.tick(&mut self.io, &mut self.finished);
        self.io.turn(Wait::AtMost(Duration::from_millis(50)), &mut self.completions);
        for completion in self.completions.drain(..) {
            self.session.completed(&mut self.io, completion, &mut self.finished);
        }
        self.session.flush(&mut self.io, &mut self.finished);
    }

    fn logout(mut self) {
        self.session.close(&mut self.io, &mut self.finished);
        while !self.session.is_closed() {
            self.turn();
        }
    }

    /// Runs these commands together; all must succeed.
    fn run(&mut self, requests: &[Request]) {
        self.submit(requests);
        self.finish(requests.len());
    }

    fn submit(&mut self, requests: &[Request]) {
        let since = self.io.now();
        for (cookie, request) in (0..).zip(requests) {
            let command = Command { cookie, request: *request, repeatable: false, patient: true, since };
            self.session.submit(since, &command).expect("there is room");
        }
        self.session.flush(&mut self.io, &mut self.finished);
    }

    /// Waits for this many commands to end.
    fn finish(&mut self, commands: usize) {
        while self.finished.len() < commands {
            self.turn();
        }
        for Finished { ending, .. } in self.finished.drain(..) {
            assert!(matches!(ending, Ending::Good(_)), "{ending:?}");
        }
    }

    /// This many READs of this many blocks each, one after another on the medium; returns what they read.
    fn read(&mut self, commands: u32, blocks: u32) -> Vec<u8> {
        let places: Vec<Places> =
            (0..commands).map(|_| self.io.arena().take(blocks * BLOCK).expect("a buffer")).collect();
        let requests: Vec<Request> = (0..)
            .zip(&places)
            .map(|(command, place)| self.request(0x28, command * blocks, *place, Places::EMPTY))
            .collect();
        self.run(&requests);
        let bytes =
            places.iter().flat_map(Places::iter).flat_map(|span| self.io.kernel.arena().bytes(span).to_vec());
        let bytes = bytes.collect();
        places.iter().for_each(|place| self.io.arena().give(place));
        bytes
    }

    /// One WRITE, from the first block on.
    fn write(&mut self, bytes: &[u8]) {
        let place = self.io.arena().take(bytes.len() as u32).expect("a buffer");
        let span = place.iter().next().expect("one span");
        self.io.arena().bytes_mut(span).copy_from_slice(bytes);
        let request = self.request(0x2a, 0, Places::EMPTY, place);
        self.run(&[request]);
        self.io.arena().give(&place);
    }

    /// READ(10) or WRITE(10).
    fn request(&self, opcode: u8, lba: u32, read: Places, write: Places) -> Request {
        let [a, b, c, d] = lba.to_be_bytes();
        let [.., high, low] = ((read.len() + write.len()) / BLOCK).to_be_bytes();
        let cdb = Cdb::from_bytes(&[opcode, 0, a, b, c, d, 0, high, low, 0]).expect("a CDB");
        Request { lun: self.session.lun_bytes(), attribute: Attribute::Simple, cdb, read, write }
    }
}

fn len_of(spans: &[Span]) -> u32 {
    spans.iter().map(|span| span.len).sum()
}

#[test]
fn commands_that_arrive_together_are_answered_in_one_send() {
    const COMMANDS: u32 = 32;
    for blocks in [1, 8] {
        let target = Target::start();
        let mut peer = Peer::login(&target, "");
        peer.read(COMMANDS, blocks);
        let notes = take(&target.notes);
        let [Note::Received(bytes), Note::Receive, Note::Send(spans)] = &notes[..] else {
            panic!("{blocks} blocks: {notes:?}");
        };
        assert_eq!(*bytes, COMMANDS * HEADER_BYTES);
        assert_eq!(len_of(spans), COMMANDS * (HEADER_BYTES + blocks * BLOCK), "status came with the data");
        let sends = take(&peer.io.notes).into_iter().filter(|note| matches!(note, Note::Send(_))).count();
        assert_eq!(sends, 1, "the initiator's commands leave together, too");
        peer.logout();
        target.stop();
    }
}

#[test]
fn a_read_of_memory_is_sent_from_where_it_lies() {
    const BLOCKS: u32 = 8;
    let target = Target::start();
    let lies_at = target.memory(0, BLOCKS * BLOCK);
    let data: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| at as u8 ^ (at >> 8) as u8).collect();
    let sent = |options: &str| {
        let mut peer = Peer::login(&target, options);
        peer.write(&data);
        take(&target.notes);
        assert!(peer.read(1, BLOCKS) == data);
        let notes = take(&target.notes);
        peer.logout();
        let sends = notes.into_iter().filter_map(|note| match note {
            Note::Send(spans) => Some(spans),
            Note::Receive | Note::Received(_) => None,
        });
        let mut sends: Vec<Vec<Span>> = sends.collect();
        assert_eq!(sends.len(), 1);
        sends.remove(0)
    };
    let spans = sent("");
    assert_eq!(
        (spans[0].len, &spans[1..]),
        (HEADER_BYTES, &[lies_at][..]),
        "a header, and the medium's own memory"
    );
    assert_ne!(spans[0].buffer, lies_at.buffer);
    // What is summed must be what is sent, even while another initiator writes there: a copy.
    let spans = sent("?data_digest=crc32c");
    assert!(spans.iter().all(|span| span.buffer != lies_at.buffer), "{spans:?}");
    assert_eq!(len_of(&spans), HEADER_BYTES + BLOCKS * BLOCK + 4);
    target.stop();
}

#[test]
fn an_address_in_use_is_waited_for_and_not_for_ever() {
    let mut killed = Some(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = killed.as_ref().unwrap().local_addr().unwrap();
    let mut patience = Duration::from_secs(1);
    let refused = listen(address, &mut patience, |_| {});
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::AddrInUse);
    assert!(patience.is_zero());

    let mut patience = Duration::from_secs(1);
    let mut pauses = 0;
    let bound = listen(address, &mut patience, |_| {
        pauses += 1;
        if pauses == 3 {
            killed = None;
        }
    });
    assert_eq!(bound.unwrap().local_addr().unwrap(), address);
    assert_eq!((pauses, patience), (3, Duration::from_secs(1) - 3 * PORT_PAUSE));
}
