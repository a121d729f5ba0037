//! A cluster of ours: monitors that shut clients out, OSDs that apply their map late, the image's blocks and its lock, and the
//! object in which gateways agree. Everything happens at one instant, and [`super::post`] says when.

use crate::register::BLOCK_BYTES;
use std::collections::BTreeMap;
use store::calls::Work;

/// Blocks of one of the image's objects, each of which lies on one OSD.
pub(super) const OBJECT_BLOCKS: u32 = 8;
pub(super) const OBJECT_BYTES: u64 = (OBJECT_BLOCKS * BLOCK_BYTES) as u64;

const EIO: i64 = -5;
const ENOENT: i32 = 2;
const EBUSY: i32 = 16;
const EILSEQ: i64 = -84;
/// What a client gets that was shut out.
pub(super) const ESHUTDOWN: i32 = 108;

/// A client of the cluster, by its number: no other one ever has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Client(pub(super) u64);

impl Client {
    /// As a blocklist has it.
    pub(super) fn address(self) -> String {
        format!("10.0.2.1:0/{}", self.0)
    }

    pub(super) fn of(address: &str) -> Option<Client> {
        address.rsplit_once('/').and_then(|(_, number)| number.parse().ok()).map(Client)
    }
}

/// Who sends something, and what it knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) client: Client,
    /// The map that it had when it sent that.
    pub(super) epoch: u64,
    /// The claim under which it does that; 0: whoever is asked does not care.
    pub(super) claim: u64,
}

/// The object's version, and its content.
pub(super) type Versioned = (u64, Vec<u8>);

/// The cluster.
#[derive(Debug)]
pub(super) struct Rados {
    /// The monitors' map.
    pub(super) epoch: u64,
    /// Since which map each is shut out.
    shut_out: BTreeMap<Client, u64>,
    /// The map that each OSD has.
    osds: Vec<u64>,
    /// The latest claim under which each has executed something.
    claims: Vec<u64>,
    pub(super) object: Option<Versioned>,
    versions: u64,
    lock: Option<Client>,
    bytes: Vec<u8>,
}

impl Rados {
    pub(super) fn new(osds: usize, blocks: u32) -> Rados {
        Rados {
            epoch: 1,
            shut_out: BTreeMap::new(),
            osds: vec![1; osds],
            claims: vec![0; osds],
            object: None,
            versions: 0,
            lock: None,
            bytes: vec![0; (blocks * BLOCK_BYTES) as usize],
        }
    }

    /// The OSD that has this byte of the image.
    pub(super) fn osd_of(&self, offset: u64) -> usize {
        (offset / OBJECT_BYTES) as usize % self.osds.len()
    }

    pub(super) fn osds(&self) -> usize {
        self.osds.len()
    }

    /// The map that an OSD has.
    pub(super) fn epoch_of(&self, osd: usize) -> u64 {
        self.osds[osd]
    }

    /// An OSD has heard of the monitors' map.
    pub(super) fn hears(&mut self, osd: usize) {
        self.osds[osd] = self.epoch;
    }

    /// The monitors shut a client out, which makes a new map.
    pub(super) fn shut_out(&mut self, client: Client) {
        self.epoch += 1;
        self.shut_out.entry(client).or_insert(self.epoch);
    }

    /// Whether an OSD knows that a client is shut out.
    pub(super) fn refuses(&self, osd: usize, client: Client) -> bool {
        self.shut_out.get(&client).is_some_and(|epoch| *epoch <= self.osds[osd])
    }

    /// Whether an OSD does what this one sends: one that knows less than the sender gets the sender's map first.
    fn admits(&mut self, osd: usize, sender: Sender) -> bool {
        self.osds[osd] = self.osds[osd].max(sender.epoch);
        self.shut_out.get(&sender.client).is_none_or(|epoch| *epoch > self.osds[osd])
    }

    /// Who has the image's lock, which lies on the first OSD.
    ///
    /// # Errors
    /// When the asking client is shut out.
    pub(super) fn lock_owner(&mut self, sender: Sender) -> Result<Option<Client>, i32> {
        if self.admits(0, sender) { Ok(self.lock) } else { Err(ESHUTDOWN) }
    }

    /// Takes the lock where it is free.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn lock(&mut self, sender: Sender) -> Result<(), i32> {
        match self.lock_owner(sender)? {
            Some(owner) if owner != sender.client => Err(EBUSY),
            Some(_) | None => {
                self.lock = Some(sender.client);
                Ok(())
            }
        }
    }

    /// Takes it from this client, which may be the one that asks.
    ///
    /// # Errors
    /// When that one does not have it.
    pub(super) fn unlock(&mut self, sender: Sender, owner: Client) -> Result<(), i32> {
        if self.lock_owner(sender)? != Some(owner) {
            return Err(ENOENT);
        }
        self.lock = None;
        Ok(())
    }

    /// Replaces the object, or creates it; its new version. `None`: it has another one.
    pub(super) fn replace(&mut self, expected: Option<u64>, bytes: Vec<u8>) -> Option<u64> {
        let version = self.object.as_ref().map(|(version, _)| *version);
        if version != expected {
            return None;
        }
        self.versions += 1;
        self.object = Some((self.versions, bytes));
        Some(self.versions)
    }

    /// An OSD does what a call asks of one object: the answer, as librbd has it, and whether this claim is new there.
    ///
    /// # Errors
    /// When a client does something after one of a later claim, where it should be shut out.
    pub(super) fn execute(
        &mut self,
        sender: Sender,
        work: Work,
        data: &mut [u8],
        mismatch: &mut u64,
    ) -> Result<(i64, bool), String> {
        let at = offset(work);
        let osd = self.osd_of(at);
        if !self.admits(osd, sender) {
            return Ok((-i64::from(ESHUTDOWN), false));
        }
        let (latest, claim) = (self.claims[osd], sender.claim);
        if claim < latest {
            return Err(format!(
                "client {} does {work:?} under claim {claim}, and OSD {osd} has served claim {latest}",
                sender.client.0
            ));
        }
        self.claims[osd] = claim;
        let from = at as usize;
        let answer = match work {
            Work::Read { .. } => {
                let len = data.len();
                self.bytes.get(from..from + len).map(|bytes| data.copy_from_slice(bytes)).map(|()| len as i64)
            }
            Work::Write { .. } => self
                .bytes
                .get_mut(from..from + data.len())
                .map(|bytes| bytes.copy_from_slice(data))
                .map(|()| 0),
            Work::Zero { len, .. } => {
                self.bytes.get_mut(from..from + len as usize).map(|bytes| bytes.fill(0)).map(|()| 0)
            }
            Work::CompareAndWrite { .. } => {
                let (old, new) = data.split_at(data.len() / 2);
                self.bytes.get_mut(from..from + old.len()).map(|bytes| {
                    match bytes.iter().zip(old).position(|(here, there)| here != there) {
                        Some(at) => {
                            *mismatch = at as u64;
                            EILSEQ
                        }
                        None => {
                            bytes.copy_from_slice(new);
                            0
                        }
                    }
                })
            }
            Work::Flush | Work::Extent { .. } => Some(0),
        };
        Ok((answer.unwrap_or(EIO), claim > latest))
    }
}

/// Where a call's work begins.
pub(super) fn offset(work: Work) -> u64 {
    match work {
        Work::Read { offset }
        | Work::Write { offset, .. }
        | Work::Zero { offset, .. }
        | Work::Extent { offset, .. }
        | Work::CompareAndWrite { offset } => offset,
        Work::Flush => 0,
    }
}
