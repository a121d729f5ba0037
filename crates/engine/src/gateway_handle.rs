//! Events for the thread of a unit that gateways share, and the handle by which its store and cores send them.

use crate::origin::Origin;
use crate::readings::GatewayReading;
use cluster::Port;
use config::Lun;
use scsi::HomeRequest;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use store::lane::Failover;

/// Events for a unit's thread.
pub(crate) enum GatewayEvent {
    /// The home wants this saved; the answer is a message to its core.
    Save {
        /// The unit's state.
        state: Vec<u8>,
        /// The answer to another gateway's request, if it results from one.
        outcome: Option<Vec<u8>>,
        /// It ends what others have begun.
        ends: bool,
    },
    /// The home is in standby: the active gateway is to execute this.
    Forward(Box<Forward>),
    /// This requester no longer waits for its request.
    Recall(Origin),
    /// This gateway is to become active.
    Activate(Requester),
    /// The home has executed a request of another gateway, with this answer.
    Executed(Vec<u8>),
    /// All cores have applied the role requested of the home; false: it is impossible.
    Applied(bool),
    /// The unit, and the ports that lead to it, from now on.
    Configured(Arc<scsi::Unit>),
    /// A call that concerns the image has ended.
    CallEnded,
    /// The object may have changed.
    ObjectChanged,
    /// Leave the unit to other gateways, and end.
    Withdraw,
    /// Nobody waits for that any more, and the unit's home may be gone: end at once.
    End,
}

/// A request that the active gateway is to execute.
pub(crate) struct Forward {
    /// Where the answer goes.
    pub(crate) origin: Origin,
    /// For the home, if it is active by then.
    pub(crate) request: HomeRequest,
    /// The same as bytes.
    pub(crate) body: Vec<u8>,
}

/// What requests a gateway to become active, and is notified of the outcome.
pub(crate) enum Requester {
    /// SET TARGET PORT GROUPS.
    Initiator(Origin),
    /// An administrator; `Err`: why it has not become active.
    Administrator(mpsc::Sender<Result<(), String>>),
}

/// Connects a shared unit's store and cores with the thread of its gateway.
pub(crate) struct GatewayHandle {
    inbox: mpsc::Sender<GatewayEvent>,
    /// The receiver, for its thread.
    events: Mutex<Option<mpsc::Receiver<GatewayEvent>>>,
    /// The store, once it is open.
    store: OnceLock<Arc<dyn Failover>>,
    /// The reading that its thread publishes.
    pub(crate) reading: Arc<Mutex<Option<GatewayReading>>>,
    /// The ports of all gateways, as last seen in the object.
    pub(crate) ports: Arc<Mutex<BTreeMap<String, Vec<Port>>>>,
}

impl GatewayHandle {
    /// The handle of a LUN's gateway, if gateways share it.
    pub(crate) fn of(lun: &Lun) -> Option<Arc<GatewayHandle>> {
        lun.is_shared().then(|| {
            let (inbox, events) = mpsc::channel();
            let (events, store) = (Mutex::new(Some(events)), OnceLock::new());
            let (reading, ports) = (Arc::default(), Arc::default());
            Arc::new(GatewayHandle { inbox, events, store, reading, ports })
        })
    }

    /// The channel to its thread.
    pub(crate) fn inbox(&self) -> mpsc::Sender<GatewayEvent> {
        self.inbox.clone()
    }

    /// The events of its thread; the thread calls this once.
    pub(crate) fn take_events(&self) -> Option<mpsc::Receiver<GatewayEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Its store, if open.
    pub(crate) fn store(&self) -> Option<Arc<dyn Failover>> {
        self.store.get().cloned()
    }

    /// Its store is open.
    pub(crate) fn open(&self, store: Arc<dyn Failover>) {
        let _ = self.store.set(store);
    }
}
