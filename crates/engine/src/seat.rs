//! What joins a unit that gateways share with its thread.

use crate::origin::Origin;
use crate::readings::GatewayReading;
use config::Lun;
use scsi::HomeRequest;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use store::lane::Failover;

/// What a unit's thread is notified of.
pub(crate) enum GatewayEvent {
    /// The home wants this to be kept; a message to its core answers.
    Keep {
        /// The unit's state.
        state: Vec<u8>,
        /// The answer to the request of another gateway, if it comes of one.
        outcome: Option<Vec<u8>>,
    },
    /// The home is in standby: the active gateway is to execute this.
    Forward(Box<Forward>),
    /// Nobody waits any more for what this one asked for.
    Recall(Origin),
    /// This gateway is to become active.
    Want(Wanter),
    /// The home has executed a request of another gateway: the answer.
    Executed(Vec<u8>),
    /// All cores have applied the role that the home was asked for; false: it cannot be.
    Applied(bool),
    /// The object may have changed.
    Noticed,
    /// Leave the unit to others, and end.
    Withdraw,
    /// Nobody waits for that any more, and the unit's home may be gone: end as you are.
    End,
}

/// A request that the active gateway is to execute.
pub(crate) struct Forward {
    /// Whom to answer.
    pub(crate) origin: Origin,
    /// For the home, if it is active by then.
    pub(crate) request: HomeRequest,
    /// The same as bytes.
    pub(crate) body: Vec<u8>,
}

/// Who wants a gateway to become active, and is notified of the outcome.
pub(crate) enum Wanter {
    /// SET TARGET PORT GROUPS.
    Initiator(Origin),
    /// A person; else why it has not.
    Person(mpsc::Sender<Result<(), String>>),
}

/// What joins a shared unit's store, cores and thread.
pub(crate) struct Seat {
    inbox: mpsc::Sender<GatewayEvent>,
    /// For its thread.
    events: Mutex<Option<mpsc::Receiver<GatewayEvent>>>,
    /// The store, once it is open.
    store: OnceLock<Arc<dyn Failover>>,
    /// What its thread shows.
    pub(crate) reading: Arc<Mutex<Option<GatewayReading>>>,
}

impl Seat {
    /// That of a LUN, if gateways share it.
    pub(crate) fn of(lun: &Lun) -> Option<Arc<Seat>> {
        lun.is_shared.then(|| {
            let (inbox, events) = mpsc::channel();
            let (events, store) = (Mutex::new(Some(events)), OnceLock::new());
            Arc::new(Seat { inbox, events, store, reading: Arc::default() })
        })
    }

    /// The way to its thread.
    pub(crate) fn inbox(&self) -> mpsc::Sender<GatewayEvent> {
        self.inbox.clone()
    }

    /// What its thread is notified of: once, for that thread.
    pub(crate) fn take_events(&self) -> Option<mpsc::Receiver<GatewayEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Its store, once it is open.
    pub(crate) fn store(&self) -> Option<Arc<dyn Failover>> {
        self.store.get().cloned()
    }

    /// Its store is open.
    pub(crate) fn open(&self, store: Arc<dyn Failover>) {
        let _ = self.store.set(store);
    }
}
