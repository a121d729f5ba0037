//! Where frames are received and sent: a packet socket of the kernel, or its equivalent in a simulated world.

use super::Setup;
use crate::io::Handle;
use crate::memory::Arena;
use proto::time::Stamp;
use std::fmt;
use std::io;
use wire::Span;

/// Frames of one protocol on one interface, for one core.
pub trait Line: fmt::Debug + Sized + Send + 'static {
    /// State for sending, which only the sending core has.
    type Batch: Default;

    /// Opens this many, one for each core; each frame arrives at one of them.
    ///
    /// # Errors
    /// A message with the fix.
    fn open(setup: &Setup<'_>, count: usize) -> io::Result<Vec<Self>>;

    /// To be watched: readable when a frame has arrived, or on an error.
    fn handle(&self) -> Handle;

    /// The interface's address.
    fn mac(&self) -> [u8; 6];

    /// The largest payload of a frame, when the line was opened.
    fn mtu(&self) -> u32;

    /// What it was opened with.
    fn shape(&self) -> Shape;

    /// Takes the oldest frame that has arrived, without a system call, into this slot.
    fn receive(&mut self, arena: &mut Arena, slot: Span) -> Arrival;

    /// Sends the first of these frames, of which there is at least one; returns how many.
    ///
    /// # Errors
    /// When the first is not sent.
    fn send(
        &mut self,
        batch: &mut Self::Batch,
        arena: &mut Arena,
        frames: impl Iterator<Item = Span>,
    ) -> Result<usize, Unsent>;

    /// Why it no longer works, if so: the interface was removed, or has changed since the line was opened.
    fn outdated(&self) -> Option<String>;

    /// Frames for us that were dropped since the last call.
    fn drops(&self) -> u32;

    /// The error that has occurred, reported once.
    ///
    /// # Errors
    /// That error.
    fn take_error(&self) -> io::Result<()>;
}

/// The dimensions of a line.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// See [`Setup::header`].
    pub header: u32,
    /// See [`Setup::frames`].
    pub frames: u32,
    /// See [`Setup::slots`].
    pub slots: u32,
}

/// The result of receiving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Nothing, yet.
    Nothing,
    /// A frame, which is in the slot.
    Frame {
        /// Its length.
        len: u32,
        /// When it came in.
        stamp: Stamp,
    },
    /// A frame that is truncated, or does not fit; it is dropped.
    Cut,
}

/// Why a frame was not sent.
#[derive(Debug)]
pub enum Unsent {
    /// There is no room now.
    Full,
    /// It is lost, as on any wire, or for this reason.
    Lost(Option<io::Error>),
}
