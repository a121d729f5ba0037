//! One connection: a reliable connected queue pair, established by RDMA/CM.

use super::cm::{EventChannel, Id};
use super::device::{Device, text};
use super::devices::Change;
use super::listener::Incoming;
use super::queue::{Operation, RECEIVE, ReceiveQueue, SendQueue, requests_of};
use super::sink::Sink;
use super::sys::*;
use super::{Error, last};
use crate::provider::{Capabilities, Event, Provider, Refused};
use proto::iwarp::memory::Access;
use proto::time::Time;
use reactor::memory::Arena;
use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;
use wire::{Places, Span};

/// How long the last messages may take to be sent, and then the peer to acknowledge the disconnect.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// How long a peer may take to confirm the answer, in messages that the kernel repeats for longer.
const ESTABLISH_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of a message to copy when it is posted; if the device cannot, fewer.
pub(super) const INLINE_BYTES: [u32; 4] = [256, 128, 64, 0];
/// Completions taken at a time.
const COMPLETIONS: usize = 16;

/// How many requests may be outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depths {
    /// Sends, writes and reads.
    pub work: u16,
    /// Receives.
    pub receives: u16,
}

/// The responding end of a connection.
pub struct QueuePair {
    device: Arc<Device>,
    /// `None`: destroyed.
    queues: Option<Queues>,
    state: State,
    depths: Depths,
    inline_bytes: u32,
    /// RDMA Reads that the peer wants to issue at a time, and those that it serves.
    reads: (u8, u8),
    sends: SendQueue,
    receives: ReceiveQueue,
    events: VecDeque<Event>,
    /// The next completion raises an event.
    is_armed: bool,
    /// Why the connection has ended; reported after everything received before.
    ended: Option<String>,
    /// Only the end is reported.
    is_held: bool,
}

/// Objects that are destroyed together.
struct Queues {
    id: Id,
    completions: NonNull<IbvCq>,
    pair: NonNull<IbvQp>,
}

// SAFETY: libibverbs's functions may be called from any thread, and the queues have one owner. The pointers
// in the request queues point into these queues, and are used only in the call that sets them.
unsafe impl Send for QueuePair {}

/// Where the connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The peer waits for an answer.
    Asked,
    /// The answer was sent; until the peer confirms it or sends a message, the connection is not established.
    /// Deadline.
    Accepted(Time),
    /// Established.
    Full,
    /// Finishing the last work; deadline.
    Closing(Time),
    /// The peer was notified, and has until then to acknowledge.
    Leaving(Time),
    Over,
}

impl QueuePair {
    /// For a peer's connection request, which is reported first.
    pub(super) fn new(
        incoming: Incoming,
        device: Arc<Device>,
        channel: &Arc<EventChannel>,
        token: u64,
        depths: Depths,
    ) -> Result<QueuePair, Error> {
        let Incoming { mut id, asked, .. } = incoming;
        let sink = device.is_iwarp.then(|| Sink::new(&device)).transpose();
        let made = sink.and_then(|sink| Ok((sink, make(&mut id, &device, channel, token, depths)?)));
        let (sink, queues, depths, inline_bytes) = match made {
            Ok((sink, (completions, pair, depths, inline_bytes))) => {
                (sink, Queues { id, completions, pair }, depths, inline_bytes)
            }
            Err(error) => {
                // A peer that is gone needs no answer.
                let _ = id.reject(&[]);
                return Err(error);
            }
        };
        let events = VecDeque::from([Event::Request { private_data: asked.private_data }]);
        Ok(QueuePair {
            device,
            queues: Some(queues),
            state: State::Asked,
            depths,
            inline_bytes,
            reads: (asked.reads_wanted, asked.reads_served),
            sends: SendQueue::new(sink),
            receives: ReceiveQueue::default(),
            events,
            is_armed: false,
            ended: None,
            is_held: false,
        })
    }

    /// How many requests may be outstanding: no more than the device allows.
    pub fn depths(&self) -> Depths {
        self.depths
    }

    /// With `true`, only the end of the connection is reported from now on: messages wait.
    pub fn hold(&mut self, hold: bool) {
        self.is_held = hold;
    }

    /// The armed completion event has arrived.
    pub fn completed(&mut self) {
        self.is_armed = false;
    }

    /// The connection has changed.
    pub fn changed(&mut self, Change(event): Change) {
        let status = event.status;
        let ended = match event.kind {
            RDMA_CM_EVENT_ESTABLISHED => return self.establish(),
            RDMA_CM_EVENT_DISCONNECTED if matches!(self.state, State::Leaving(_)) => {
                "closed by this side".to_string()
            }
            RDMA_CM_EVENT_DISCONNECTED => "closed by the initiator".to_string(),
            RDMA_CM_EVENT_DEVICE_REMOVAL => format!("the device {} was removed", self.device.name),
            RDMA_CM_EVENT_ADDR_CHANGE => "its address has gone to another device".to_string(),
            RDMA_CM_EVENT_REJECTED => format!("the initiator rejected the answer (reason {status})"),
            RDMA_CM_EVENT_UNREACHABLE => {
                format!("the initiator did not get the answer (error {})", status.abs())
            }
            RDMA_CM_EVENT_CONNECT_ERROR => format!("the connection failed (error {})", status.abs()),
            _ => return,
        };
        self.end(ended);
    }

    fn establish(&mut self) {
        if matches!(self.state, State::Accepted(_)) {
            self.state = State::Full;
            self.events.push_back(Event::Established { private_data: Vec::new() });
        }
    }

    fn end(&mut self, reason: String) {
        self.ended.get_or_insert(reason);
    }

    /// Takes completions; `false`: there were none.
    fn reap(&mut self, arena: &mut Arena) -> bool {
        let Some(queues) = &self.queues else { return false };
        let mut completions = [IbvWc::default(); COMPLETIONS];
        // SAFETY: the queue is alive, and there is room for this many completions.
        let count = unsafe {
            let room = COMPLETIONS as i32;
            (self.device.calls.poll_cq)(queues.completions.as_ptr(), room, completions.as_mut_ptr())
        };
        let Ok(count) = usize::try_from(count) else {
            self.end("its completion queue failed".to_string());
            return false;
        };
        for completion in &completions[..count] {
            self.complete(completion, arena);
        }
        count > 0
    }

    fn complete(&mut self, completion: &IbvWc, arena: &mut Arena) {
        let is_done = completion.status == IBV_WC_SUCCESS;
        // Work that this side stopped is expected to fail.
        let is_leaving = matches!(self.state, State::Leaving(_));
        if !is_done && !is_leaving {
            self.end(self.reason_of(completion.status));
        }
        if completion.wr_id & RECEIVE != 0 {
            self.receives.filled(completion.wr_id, arena);
            if is_done {
                // It may overtake the event that the connection is established.
                self.establish();
                let has_invalidated = completion.wc_flags & IBV_WC_WITH_INV != 0;
                self.events.push_back(Event::Received {
                    id: completion.wr_id & !RECEIVE,
                    len: completion.byte_len,
                    invalidated: has_invalidated.then_some(completion.invalidated_rkey),
                });
            }
            return;
        }
        let finished = self.sends.finished(completion.wr_id, is_done, arena);
        if let Some(finished) = finished.filter(|finished| is_done && finished.is_last) {
            let id = finished.id;
            self.events.push_back(match finished.operation {
                Operation::Send { .. } => Event::Sent { id },
                Operation::Write { .. } => Event::Written { id },
                Operation::Read { .. } => Event::Read { id },
            });
        }
    }

    fn reason_of(&self, status: i32) -> String {
        if status == IBV_WC_WR_FLUSH_ERR {
            return "the device has stopped the queue pair: the connection is broken, or the initiator has violated \
            the RDMA protocol"
                .to_string();
        }
        // SAFETY: the library returns a static string, for any number.
        let text = unsafe { text((self.device.library.ibv_wc_status_str)(status)) };
        format!("work failed: {text}")
    }

    /// Arms the event for the next completion; `false`: it was already armed.
    fn arm(&mut self) -> bool {
        let Some(queues) = &self.queues else { return false };
        if std::mem::replace(&mut self.is_armed, true) {
            return false;
        }
        // SAFETY: the queue is alive.
        let armed = unsafe { (self.device.calls.req_notify_cq)(queues.completions.as_ptr(), 0) };
        if armed != 0 {
            self.end("its completion queue reports nothing any more".to_string());
        }
        true
    }

    /// Continues closing, once there are no more completions.
    fn proceed(&mut self, arena: &mut Arena) {
        if self.device.has_failed() {
            self.end(format!("the device {} has failed", self.device.name));
        }
        if let Some(reason) = self.ended.take() {
            return self.over(reason, arena);
        }
        if let State::Closing(until) = self.state
            && self.sends.len() == 0
            && let Some(queues) = &mut self.queues
        {
            queues.id.disconnect();
            self.state = State::Leaving(until);
        }
    }

    fn over(&mut self, reason: String, arena: &mut Arena) {
        if self.state != State::Over {
            self.stop(arena);
            self.events.push_back(Event::Gone { reason });
        }
    }

    /// Destroys the queues: nothing accesses memory any more.
    fn stop(&mut self, arena: &mut Arena) {
        let state = std::mem::replace(&mut self.state, State::Over);
        if let Some(mut queues) = self.queues.take() {
            match state {
                State::Asked => {
                    let _ = queues.id.reject(&[]);
                }
                State::Accepted(_) | State::Full | State::Closing(_) => queues.id.disconnect(),
                State::Leaving(_) | State::Over => {}
            }
            queues.end(&self.device);
        }
        self.sends.clear(arena);
        self.receives.clear(arena);
    }

    fn post(
        &mut self,
        id: u64,
        places: &Places,
        operation: Operation,
        arena: &mut Arena,
    ) -> Result<(), Refused> {
        if !self.is_established() {
            return Err(Refused::State);
        }
        let most = match operation {
            Operation::Read { .. } if self.device.is_iwarp => 1,
            Operation::Read { .. } => self.device.limits.read_places,
            Operation::Send { .. } | Operation::Write { .. } => self.device.limits.places,
        };
        let requests = requests_of(places, most);
        if requests > 1 && matches!(operation, Operation::Send { .. }) {
            return Err(Refused::TooLong);
        }
        let is_read = matches!(operation, Operation::Read { .. });
        if self.sends.len() + requests > usize::from(self.depths.work)
            || is_read && !self.sends.can_read(requests)
        {
            return Err(Refused::Full);
        }
        self.sends.add(id, places, most, operation, &self.device.memory, arena);
        Ok(())
    }
}

impl Queues {
    fn end(self, device: &Device) {
        // SAFETY: the queue pair is the identifier's, and is destroyed once; the completion queue belongs to
        // it only, and its events are acknowledged. The device holds the objects that both depend on.
        unsafe {
            (device.library.rdma_destroy_qp)(self.id.as_ptr());
            (device.library.ibv_destroy_cq)(self.completions.as_ptr());
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // If nobody has called `release`, the arena is being dropped with its core.
        if let Some(queues) = self.queues.take() {
            queues.end(&self.device);
        }
    }
}

type Made = (NonNull<IbvCq>, NonNull<IbvQp>, Depths, u32);

/// Creates the queues; events go to this channel from now on.
fn make(
    id: &mut Id,
    device: &Device,
    channel: &Arc<EventChannel>,
    token: u64,
    depths: Depths,
) -> Result<Made, Error> {
    let depths = Depths {
        work: depths.work.min(u16::try_from(device.limits.work).unwrap_or(u16::MAX)),
        receives: depths.receives.min(u16::try_from(device.limits.work).unwrap_or(u16::MAX)),
    };
    let entries = u32::from(depths.work) + u32::from(depths.receives);
    if entries > device.limits.completions {
        return Err(Error::Unfit(format!(
            "{} has completion queues of {} entries; {entries} are needed",
            device.name, device.limits.completions
        )));
    }
    id.set_token(token);
    id.migrate(channel)?;
    // SAFETY: the device is open, and the channel its own.
    let completions = unsafe {
        let context = ptr::without_provenance_mut(token as usize);
        (device.library.ibv_create_cq)(
            device.context.as_ptr(),
            entries as i32,
            context,
            device.completions.as_ptr(),
            0,
        )
    };
    let completions = NonNull::new(completions).ok_or_else(|| last("creating a completion queue"))?;
    for inline_bytes in INLINE_BYTES {
        let mut attr = attributes(completions, device, depths, inline_bytes);
        // SAFETY: identifier and protection domain are alive and of one device; the library reads and writes
        // the attributes.
        let made = unsafe { (device.library.rdma_create_qp)(id.as_ptr(), device.pd.as_ptr(), &raw mut attr) };
        // SAFETY: the identifier is alive.
        let pair = NonNull::new(unsafe { (*id.as_ptr()).qp });
        if let (0, Some(pair)) = (made, pair) {
            return Ok((completions, pair, depths, inline_bytes.min(attr.cap.max_inline_data)));
        }
    }
    let error = last("creating a queue pair");
    // SAFETY: it was created above, and nothing depends on it.
    unsafe { (device.library.ibv_destroy_cq)(completions.as_ptr()) };
    Err(error)
}

/// Attributes of a queue pair of these depths.
fn attributes(
    completions: NonNull<IbvCq>,
    device: &Device,
    depths: Depths,
    inline_bytes: u32,
) -> IbvQpInitAttr {
    IbvQpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: completions.as_ptr(),
        recv_cq: completions.as_ptr(),
        srq: ptr::null_mut(),
        cap: IbvQpCap {
            max_send_wr: depths.work.into(),
            max_recv_wr: depths.receives.into(),
            max_send_sge: device.limits.places.min(Places::MAX) as u32,
            max_recv_sge: 1,
            max_inline_data: inline_bytes,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 1,
    }
}

impl Provider for QueuePair {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            inline_bytes: self.inline_bytes,
            send_with_invalidate: self.device.limits.send_with_invalidate,
            fast_registration: self.device.limits.fast_registration,
            shared_receives: self.device.limits.shared_receives,
        }
    }

    fn is_established(&self) -> bool {
        self.state == State::Full && self.ended.is_none()
    }

    /// The layer above gets the outcome as events.
    fn accept(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refused> {
        let (State::Asked, Some(queues)) = (self.state, &mut self.queues) else { return Err(Refused::State) };
        if u8::try_from(private_data.len()).is_err() {
            return Err(Refused::TooLong);
        }
        let limits = self.device.limits;
        let reads = (self.reads.0.min(limits.reads_served), self.reads.1.min(limits.reads_made));
        self.state = State::Accepted(now.after(ESTABLISH_WITHIN));
        if let Err(error) = queues.id.accept(private_data, reads) {
            self.end(error.to_string());
        }
        Ok(())
    }

    fn reject(&mut self, _now: Time, private_data: &[u8]) -> Result<(), Refused> {
        let (State::Asked, Some(queues)) = (self.state, &mut self.queues) else { return Err(Refused::State) };
        if u8::try_from(private_data.len()).is_err() {
            return Err(Refused::TooLong);
        }
        // A peer that is gone needs no answer.
        let _ = queues.id.reject(private_data);
        self.state = State::Leaving(Time(0));
        self.end("rejected by this side".to_string());
        Ok(())
    }

    fn post_receive(&mut self, place: Span, arena: &mut Arena) -> Result<(), Refused> {
        if !matches!(self.state, State::Asked | State::Accepted(_) | State::Full) {
            return Err(Refused::State);
        }
        if self.receives.len() == usize::from(self.depths.receives) {
            return Err(Refused::Full);
        }
        self.receives.add(place, &self.device.memory, arena);
        Ok(())
    }

    fn copied(&self, header: &[u8], payload: &Places) -> usize {
        let is_inline = payload.is_empty() && header.len() <= self.inline_bytes as usize;
        if is_inline { header.len() } else { 0 }
    }

    fn send(
        &mut self,
        id: u64,
        header: &[u8],
        from: Places,
        solicited: bool,
        invalidate: Option<u32>,
        arena: &mut Arena,
    ) -> Result<(), Refused> {
        let invalidate = invalidate.filter(|_| self.device.limits.send_with_invalidate);
        let operation = Operation::Send { solicited, invalidate };
        if header.is_empty() {
            return self.post(id, &from, operation, arena);
        }
        assert!(from.is_empty(), "what has a payload is in one buffer with it");
        if !self.is_established() {
            return Err(Refused::State);
        }
        if self.sends.len() >= usize::from(self.depths.work) {
            return Err(Refused::Full);
        }
        self.sends.add_inline(id, header, operation);
        Ok(())
    }

    fn write(
        &mut self,
        id: u64,
        from: Places,
        stag: u32,
        offset: u64,
        arena: &mut Arena,
    ) -> Result<(), Refused> {
        self.post(id, &from, Operation::Write { stag, offset }, arena)
    }

    fn read(
        &mut self,
        id: u64,
        into: Places,
        stag: u32,
        offset: u64,
        arena: &mut Arena,
    ) -> Result<(), Refused> {
        if self.reads.1.min(self.device.limits.reads_made) == 0 {
            return Err(Refused::NoReads);
        }
        self.post(id, &into, Operation::Read { stag, offset }, arena)
    }

    fn register(&mut self, _places: Places, _access: Access) -> Result<u32, Refused> {
        unreachable!("a target advertises nothing")
    }

    fn moved(&self, _stag: u32) -> u32 {
        unreachable!("a target advertises nothing")
    }

    fn invalidate(&mut self, _stag: u32) -> bool {
        unreachable!("a target advertises nothing")
    }

    /// Receives first: sends may promise them.
    fn submit(&mut self) {
        let Some(queues) = &self.queues else { return };
        let (calls, pair) = (&self.device.calls, queues.pair.as_ptr());
        let posted = self.receives.submit(calls, pair).and_then(|()| self.sends.submit(calls, pair));
        if let Err(errno) = posted {
            self.end(format!("work cannot be posted: {}", std::io::Error::from_raw_os_error(errno)));
        }
    }

    fn poll(&mut self, arena: &mut Arena) -> Option<Event> {
        if self.is_held && self.state != State::Over {
            if !self.device.has_failed() {
                self.ended.as_ref()?;
            }
            self.events.clear();
            self.proceed(arena);
        }
        while self.events.is_empty() && self.state != State::Over {
            if !self.reap(arena) && !self.arm() {
                self.proceed(arena);
                break;
            }
        }
        self.events.pop_front()
    }

    fn close(&mut self, now: Time) {
        match self.state {
            State::Accepted(_) | State::Full => self.state = State::Closing(now.after(CLOSE_WITHIN)),
            State::Asked => self.end("closed by this side".to_string()),
            State::Closing(_) | State::Leaving(_) | State::Over => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self.state {
            State::Accepted(until) | State::Closing(until) | State::Leaving(until) => Some(until),
            State::Asked | State::Full | State::Over => None,
        }
    }

    fn tick(&mut self, now: Time) {
        if self.deadline().is_none_or(|until| now < until) {
            return;
        }
        let is_unheard = matches!(self.state, State::Accepted(_));
        let why =
            if is_unheard { "the initiator did not take the answer in time" } else { "closed by this side" };
        self.end(why.to_string());
    }

    fn release(&mut self, arena: &mut Arena) {
        self.stop(arena);
    }
}
