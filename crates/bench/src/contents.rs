//! Whether a target holds data that writing would destroy.

use crate::target::Opened;
use reactor::io::{Io as _, Tag, Wait};
use reactor::memory::Arena;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::time::{Duration, Instant};
use store::lane::{Lane, Op, OpId, Outcome, Submitted};

/// Bytes checked at the beginning and at the end, where most formats have their signatures.
const END_BYTES: u64 = 128 << 10;
/// Further evenly spaced places, and the bytes read at each.
const SPOTS: u64 = 62;
const SPOT_BYTES: u64 = 4 << 10;
/// Timeout of a read.
const PATIENCE: Duration = Duration::from_secs(30);

/// A description of what was found; `None`: both ends and 62 places between them read as zeros.
///
/// # Errors
/// Why the target cannot be read.
pub fn content(target: &Opened) -> Result<Option<String>, String> {
    let mut reader = Reader::new(target).map_err(|error| format!("{}: {error}", target.name))?;
    for (offset, len) in places(target.size, u64::from(target.block_bytes)) {
        let bytes = reader.read(offset, len).map_err(|problem| format!("{}: {problem}", target.name))?;
        if let Some(first) = bytes.iter().position(|&byte| byte != 0) {
            let known = if offset == 0 { format_of(&bytes) } else { None };
            return Ok(Some(match known {
                Some(format) => format.to_string(),
                None => format!("data at byte {}", offset + first as u64),
            }));
        }
    }
    Ok(None)
}

/// Offsets and lengths, in whole blocks.
fn places(size: u64, block: u64) -> Vec<(u64, u32)> {
    let end = END_BYTES.next_multiple_of(block).min(size);
    let spot = SPOT_BYTES.next_multiple_of(block).min(size);
    let spots = (1..=SPOTS).map(|n| {
        let at = u128::from(size - spot) * u128::from(n) / u128::from(SPOTS + 1);
        // Less than the size, which has 64 bits.
        (at as u64 / block * block, spot)
    });
    let ends = [(0, end), ((size - end) / block * block, end)];
    // Lengths are far below LARGE_BYTES.
    ends.into_iter().chain(spots).map(|(offset, len)| (offset, len as u32)).collect()
}

/// The format recognised by its first bytes.
fn format_of(head: &[u8]) -> Option<&'static str> {
    const MARKS: [(usize, &[u8], &str); 16] = [
        (512, b"EFI PART", "a GPT partition table"),
        (4096, b"EFI PART", "a GPT partition table"),
        (0, b"XFSB", "an XFS file system"),
        (0x10040, b"_BHRfS_M", "a btrfs file system"),
        (0, b"LUKS\xba\xbe", "a LUKS container"),
        (512, b"LABELONE", "an LVM physical volume"),
        (0, b"LABELONE", "an LVM physical volume"),
        (4086, b"SWAPSPACE2", "swap space"),
        (3, b"NTFS    ", "an NTFS file system"),
        (3, b"EXFAT   ", "an exFAT file system"),
        (82, b"FAT32   ", "a FAT file system"),
        (54, b"FAT1", "a FAT file system"),
        (0, b"QFI\xfb", "a qcow2 image"),
        (0x8001, b"CD001", "an ISO 9660 file system"),
        (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
        (510, b"\x55\xaa", "a partition table"),
    ];
    let is = |&&(at, mark, _): &&(usize, &[u8], &str)| head.get(at..at + mark.len()) == Some(mark);
    MARKS.iter().find(is).map(|&(_, _, name)| name)
}

/// Reads piece by piece on this thread.
struct Reader {
    // Dropped before the ring that it uses.
    lane: Box<dyn Lane<Uring>>,
    io: Uring,
}

impl Reader {
    fn new(target: &Opened) -> std::io::Result<Reader> {
        // With room for what a session needs.
        let io = Uring::new(Arena::new(32 << 20)?, Waker::new()?)?;
        Ok(Reader { lane: target.backend.clone().lane(Tag(0)), io })
    }

    fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, String> {
        let into = self.io.arena().take(len).ok_or("no memory to read into")?;
        let outcome = match self.lane.submit(&mut self.io, OpId(0), &Op::Read { offset, into }) {
            Submitted::Done(outcome) => Some(outcome),
            Submitted::Later => self.wait(),
        };
        match outcome {
            Some(Ok(_)) => {
                let bytes = into.iter().flat_map(|span| self.io.arena().bytes(span).to_vec()).collect();
                self.io.arena().give(&into);
                Ok(bytes)
            }
            Some(Err(error)) => Err(format!("it cannot be read at byte {offset}: {error}")),
            None => Err(format!("no answer to a read at byte {offset}")),
        }
    }

    fn wait(&mut self) -> Option<Outcome> {
        let (mut completions, mut done) = (Vec::new(), Vec::new());
        let deadline = Instant::now() + PATIENCE;
        while done.is_empty() && Instant::now() < deadline {
            let hurry = self.lane.flush(&mut self.io, &mut done);
            let wait = if hurry || !done.is_empty() { Wait::No } else { Wait::AtMost(PATIENCE / 100) };
            self.io.turn(wait, &mut completions);
            for completion in completions.drain(..) {
                self.lane.completed(&mut self.io, completion, &mut done);
            }
        }
        done.pop().map(|(_, outcome)| outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{TargetOptions, open};
    use std::os::unix::fs::FileExt as _;

    fn found(size: u64, write: &[(u64, &[u8])]) -> Option<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        write.iter().for_each(|(at, bytes)| file.as_file().write_all_at(bytes, *at).unwrap());
        content(&open(file.path().to_str().unwrap(), &TargetOptions::default()).unwrap()).unwrap()
    }

    #[test]
    fn zeros_are_no_content() {
        assert_eq!(found(1 << 20, &[]), None);
        assert_eq!(found(512, &[]), None);
        let memory = open("ram:1M", &TargetOptions::default()).unwrap();
        assert_eq!(content(&memory), Ok(None));
    }

    #[test]
    fn marks_are_known_by_name_and_other_bytes_by_their_place() {
        assert_eq!(found(1 << 20, &[(1080, b"\x53\xef")]).unwrap(), "an ext2, ext3 or ext4 file system");
        assert_eq!(
            found(1 << 20, &[(510, b"\x55\xaa"), (512, b"EFI PART")]).unwrap(),
            "a GPT partition table"
        );
        assert_eq!(found(1 << 20, &[(100, b"x")]).unwrap(), "data at byte 100");
        assert_eq!(found(1 << 20, &[((1 << 20) - 1, b"x")]).unwrap(), "data at byte 1048575");
    }

    #[test]
    fn data_is_found_between_the_ends() {
        let body = vec![7; 1 << 20];
        assert!(found(4 << 20, &[(1 << 20, &body)]).unwrap().starts_with("data at byte"));
    }

    #[test]
    fn places_are_whole_blocks_within_the_target() {
        for (size, block) in [
            (512, 512),
            (1 << 20, 512),
            (3 << 20, 4096),
            (1 << 40, 65_536),
            (i64::MAX as u64 / 512 * 512, 512),
        ] {
            for (offset, len) in places(size, block) {
                assert!(offset.is_multiple_of(block) && u64::from(len).is_multiple_of(block) && len > 0);
                assert!(offset + u64::from(len) <= size);
            }
        }
    }
}
