//! Discovery: config queries and their answers (AoEr11 section 3.2), as an initiator sees them.

use super::Frame;
use wire::Places;
use wire::aoe::{Address, Command, ConfigArgument, ETHERTYPE, Header, Mac};
use wire::iwarp::Layout;
use zerocopy::IntoBytes;

/// Targets that a discovery lists.
pub const FOUND_MAX: usize = 4096;
/// Sectors that fit into a frame of 1500 bytes: what a target accepts that does not report a number.
const SECTORS_UNSAID: u8 = 2;

/// A config query; to all targets with [`Mac::BROADCAST`] and [`Address::BROADCAST`].
pub fn query(ours: Mac, to: Mac, address: Address, tag: u32) -> Frame {
    let header = Header::request(ours, to, address, Command::CONFIG, tag);
    let version_command = Header::VERSION << 4;
    let argument = ConfigArgument { version_command, ..ConfigArgument::default() };
    Frame::new([header.as_bytes(), argument.as_bytes()], Places::EMPTY, None)
}

/// A target that has answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found<'a> {
    /// Its address.
    pub address: Address,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Requests that it can queue.
    pub buffer_count: u16,
    /// Its firmware version.
    pub firmware: u16,
    /// Sectors that it accepts in a frame.
    pub sectors: u8,
    /// Its config string.
    pub config: &'a [u8],
}

/// The target that sent this frame, if it is an answer to a config query.
pub fn found(frame: &[u8]) -> Option<Found<'_>> {
    let header = response(frame).filter(|header| header.command == Command::CONFIG)?;
    let address = header.address();
    if header.refusal().is_some() || address.is_broadcast() {
        return None;
    }
    let rest = frame.get(Header::BYTES..)?;
    let argument = ConfigArgument::view(rest)?;
    let config = rest.get(ConfigArgument::BYTES..)?.get(..usize::from(argument.len.get()))?;
    let sectors = if argument.sector_count == 0 { SECTORS_UNSAID } else { argument.sector_count };
    Some(Found {
        address,
        mac: header.source,
        buffer_count: argument.buffer_count.get(),
        firmware: argument.firmware.get(),
        sectors,
        config,
    })
}

/// The header of a frame, if it is an AoE response.
pub(super) fn response(frame: &[u8]) -> Option<&Header> {
    Header::view(frame).filter(|header| {
        header.ethertype.get() == ETHERTYPE
            && header.version() == Header::VERSION
            && header.is_response()
            && !header.source.is_group()
    })
}

/// A target that was found, owned.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Target {
    /// Its address.
    pub address: Address,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Requests that it can queue.
    pub buffer_count: u16,
    /// Its firmware version.
    pub firmware: u16,
    /// Sectors that it accepts in a frame.
    pub sectors: u8,
    /// Its config string.
    pub config: Vec<u8>,
}

/// The targets found: each address at each Ethernet address once, in order, with its latest answer.
#[derive(Debug, Default)]
pub struct Discovery {
    targets: Vec<Target>,
}

impl Discovery {
    /// Takes a frame; returns whether it is from a new target. There are at most [`FOUND_MAX`].
    pub fn take(&mut self, frame: &[u8]) -> bool {
        let Some(Found { address, mac, buffer_count, firmware, sectors, config }) = found(frame) else {
            return false;
        };
        let target = Target { address, mac, buffer_count, firmware, sectors, config: config.to_vec() };
        let place = self.targets.binary_search_by_key(&(address, mac), |one| (one.address, one.mac));
        match place {
            Ok(at) => {
                if let Some(slot) = self.targets.get_mut(at) {
                    *slot = target;
                }
                false
            }
            Err(_) if self.targets.len() >= FOUND_MAX => false,
            Err(at) => {
                self.targets.insert(at, target);
                true
            }
        }
    }

    /// The targets found.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::aoe::ErrorCode;
    use zerocopy::byteorder::big_endian::U16;

    const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn answer(address: Address, mac: Mac, config: &[u8]) -> Vec<u8> {
        let query = query(OURS, Mac::BROADCAST, Address::BROADCAST, 7);
        let header = Header::view(query.header()).unwrap().answer(mac, address, ErrorCode::NONE);
        let argument = ConfigArgument {
            buffer_count: U16::new(16),
            firmware: U16::new(0x4016),
            sector_count: 0,
            version_command: 0x10,
            len: U16::new(config.len() as u16),
        };
        [header.as_bytes(), argument.as_bytes(), config, &[0; 20]].concat()
    }

    #[test]
    fn a_query_is_one_of_linux() {
        let frame = query(OURS, Mac::BROADCAST, Address::BROADCAST, 0);
        let mut expected = vec![0xff; 6];
        expected.extend([2, 0, 0, 0, 0, 1, 0x88, 0xa2, 0x10, 0, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0]);
        expected.extend([0, 0, 0, 0, 0, 0x10, 0, 0]);
        assert_eq!(frame.header(), expected);
        assert!(found(frame.header()).is_none(), "it is no answer");
    }

    #[test]
    fn an_answer_describes_its_target() {
        let address = Address { shelf: 1, slot: 2 };
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let bytes = answer(address, mac, b"disk");
        let target = found(&bytes).unwrap();
        assert_eq!((target.address, target.mac, target.config), (address, mac, &b"disk"[..]));
        assert_eq!((target.buffer_count, target.sectors), (16, 2));
        for len in 0..36 {
            assert!(found(&bytes[..len]).is_none());
        }
    }

    #[test]
    fn each_target_is_listed_once_and_in_order() {
        let mut discovery = Discovery::default();
        let at = |slot| Address { shelf: 1, slot };
        let (one, two) = (Mac([2, 0, 0, 0, 0, 9]), Mac([2, 0, 0, 0, 0, 8]));
        assert!(discovery.take(&answer(at(2), one, b"")));
        assert!(discovery.take(&answer(at(1), one, b"")));
        assert!(discovery.take(&answer(at(1), two, b"")));
        assert!(!discovery.take(&answer(at(1), one, b"new")));
        assert!(!discovery.take(b"no frame"));
        let list: Vec<_> = discovery.targets().iter().map(|one| (one.address, one.mac)).collect();
        assert_eq!(list, [(at(1), two), (at(1), one), (at(2), one)]);
        assert_eq!(discovery.targets()[1].config, b"new");
    }
}
