//! What frames come from and go to: a packet socket of the kernel, or what a simulated world has in its place.

use super::Setup;
use crate::io::Handle;
use crate::memory::Arena;
use proto::time::Stamp;
use std::fmt;
use std::io;
use wire::Span;

/// Frames of one protocol on one interface, for one core.
pub trait Line: fmt::Debug + Sized + Send + 'static {
    /// What sending needs and only the core that sends has.
    type Batch: Default;

    /// Opens so many, one for each core; each frame comes to one of them.
    ///
    /// # Errors
    /// A message that says what to do.
    fn open(setup: &Setup<'_>, count: usize) -> io::Result<Vec<Self>>;

    /// To be watched: readable when a frame has come, or there is trouble.
    fn handle(&self) -> Handle;

    /// The interface's address.
    fn mac(&self) -> [u8; 6];

    /// The largest payload of a frame, when the line was opened.
    fn mtu(&self) -> u32;

    /// What it was opened for.
    fn shape(&self) -> Shape;

    /// Takes the oldest frame that has come, without a system call, into this slot.
    fn receive(&mut self, arena: &mut Arena, slot: Span) -> Arrival;

    /// Sends the first of these frames, of which there are some: how many.
    ///
    /// # Errors
    /// When the first is not sent.
    fn send(
        &mut self,
        batch: &mut Self::Batch,
        arena: &mut Arena,
        frames: impl Iterator<Item = Span>,
    ) -> Result<usize, Unsent>;

    /// Why it no longer works, if so: the interface has gone, or is not what it was when the line was opened.
    fn outdated(&self) -> Option<String>;

    /// Frames for us that were dropped since this was last asked.
    fn drops(&self) -> u32;

    /// What has happened to it, once.
    ///
    /// # Errors
    /// That.
    fn trouble(&self) -> io::Result<()>;
}

/// How much a line is for.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// See [`Setup::header`].
    pub header: u32,
    /// See [`Setup::frames`].
    pub frames: u32,
    /// See [`Setup::slots`].
    pub slots: u32,
}

/// What has come.
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
    /// A frame that is not whole, or does not fit; it is gone.
    Cut,
}

/// Why a frame is not sent.
#[derive(Debug)]
pub enum Unsent {
    /// There is no room now.
    Full,
    /// It is lost, as on any wire, or for this reason.
    Lost(Option<io::Error>),
}
