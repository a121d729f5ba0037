//! Finds what is allocated; librbd uses the calling thread for that.

use super::sys::Image;
use crate::calls::{Call, Work};
use scsi::storage::Found;
use std::sync::{Arc, OnceLock, mpsc};

/// The most bytes of one query: an OSD is queried for each object that may exist.
const WINDOW_BYTES: u64 = 256 << 20;

/// What the thread has to find, and with which image.
type Queue = mpsc::Sender<(Arc<Image>, Box<Call>)>;

/// Queries, handled one at a time on a thread that is started with the first of them.
#[derive(Default)]
pub(super) struct Extents {
    queue: OnceLock<Option<Queue>>,
}

impl Extents {
    /// Finds what a call requests.
    ///
    /// # Errors
    /// The call, if there is no thread for it.
    pub(super) fn start(&self, image: Arc<Image>, call: Box<Call>) -> Result<(), Box<Call>> {
        match self.queue.get_or_init(start_thread) {
            Some(queue) => queue.send((image, call)).map_err(|unsent| unsent.0.1),
            None => Err(call),
        }
    }
}

fn start_thread() -> Option<Queue> {
    let (queue, calls): (Queue, _) = mpsc::channel();
    let thread = std::thread::Builder::new().name("rbd-extents".into());
    let started = thread.spawn(move || {
        for (image, mut call) in calls {
            answer(&image, &mut call);
            Call::answered(call);
        }
    });
    started.is_ok().then_some(queue)
}

fn answer(image: &Image, call: &mut Call) {
    let Work::Extent { offset, len } = call.work else { unreachable!("only extents come here") };
    match image.extent(offset, len.min(WINDOW_BYTES)) {
        Ok((mapped, len)) => (call.answer, call.found) = (0, Found::Extent { mapped, len }),
        Err(error) => call.answer = -i64::from(error),
    }
}
