//! Messages between cores, and from ordinary threads to cores.
//!
//! The queues are the standard library's: unbounded, because two cores that wait for room in each other's
//! queue would deadlock; they are bounded because each message belongs to a connection, a task or an order of
//! the control plane, and those are bounded. READ and WRITE send none.

use crate::wake::Waker;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// One core's end of the mesh: it receives here, and posts to any core.
#[derive(Debug)]
pub struct Mailbox<M> {
    incoming: mpsc::Receiver<M>,
    senders: Vec<Sender<M>>,
    core: usize,
}

/// Posts to one core, from any thread.
#[derive(Debug)]
pub struct Sender<M> {
    queue: mpsc::Sender<M>,
    /// The queue may not be empty: most turns find no mail, and need not check the queue.
    has_mail: Arc<AtomicBool>,
    waker: Waker,
}

/// Mailboxes for `cores` cores, by index, each connected to all.
pub fn mesh<M: Send>(cores: usize) -> io::Result<Vec<Mailbox<M>>> {
    let mut senders = Vec::with_capacity(cores);
    let mut receivers = Vec::with_capacity(cores);
    for _ in 0..cores {
        let (queue, incoming) = mpsc::channel();
        senders.push(Sender { queue, has_mail: Arc::default(), waker: Waker::new()? });
        receivers.push(incoming);
    }
    let mailbox = |(core, incoming)| Mailbox { incoming, senders: senders.clone(), core };
    Ok(receivers.into_iter().enumerate().map(mailbox).collect())
}

impl<M: Send> Mailbox<M> {
    /// Posts a message to a core and wakes it. A core that has ended drops its messages.
    pub fn post(&self, core: usize, message: M) {
        self.senders[core].post(message);
    }

    /// Appends all messages that have arrived.
    #[inline]
    pub fn drain(&mut self, into: &mut Vec<M>) {
        let has_mail = &self.senders[self.core].has_mail;
        // The exchange (not a store) is before the check of the queue: whatever is posted after that sets it
        // again.
        if has_mail.load(Ordering::Relaxed) && has_mail.swap(false, Ordering::AcqRel) {
            into.extend(self.incoming.try_iter());
        }
    }

    /// A sender to a core, for use elsewhere.
    pub fn sender(&self, core: usize) -> Sender<M> {
        self.senders[core].clone()
    }

    /// What this core's ring must be opened with, so that messages wake it.
    pub fn waker(&self) -> Waker {
        self.senders[self.core].waker.clone()
    }

    /// This core's index in the mesh.
    pub fn core(&self) -> usize {
        self.core
    }

    /// Cores in the mesh.
    pub fn cores(&self) -> usize {
        self.senders.len()
    }
}

impl<M: Send> Sender<M> {
    /// Posts a message and wakes the core. A core that has ended drops its messages.
    pub fn post(&self, message: M) {
        if self.queue.send(message).is_ok() {
            // An exchange, too: a core that sees this one sees those of others before it.
            self.has_mail.swap(true, Ordering::Release);
            self.waker.wake();
        }
    }
}

impl<M> Clone for Sender<M> {
    fn clone(&self) -> Sender<M> {
        Sender { queue: self.queue.clone(), has_mail: self.has_mail.clone(), waker: self.waker.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_at_the_right_core() {
        let mut boxes = mesh(2).unwrap();
        let elsewhere = boxes[0].sender(1);
        std::thread::spawn(move || (0..100).for_each(|n| elsewhere.post(n))).join().unwrap();
        boxes[1].post(0, 7);
        let (mut zero, mut one) = (Vec::new(), Vec::new());
        boxes[0].drain(&mut zero);
        boxes[1].drain(&mut one);
        assert_eq!(zero, [7]);
        assert_eq!(one, Vec::from_iter(0..100));
    }
}
