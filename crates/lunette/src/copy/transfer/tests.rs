//! Copies between stores of all kinds.

use super::{CopyError, End, Options, compare, copy};
use reactor::uring::Uring;
use scsi::storage::StoreError;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use store::Claim;
use store::lane::Backend;

const OPTIONS: Options = Options { piece_bytes: 256 << 10, pieces: 8, sparse: true };

fn end(store: Arc<dyn Backend<Uring>>, block_bytes: u32) -> End {
    End { store, block_bytes, holes_read_zeros: true, is_blank: false }
}

fn file(path: &Path) -> End {
    end(store::open_file(path, None, 1, Claim::Sole).expect("the file opens"), 1)
}

fn made(directory: &Path, name: &str, bytes: &[u8]) -> End {
    let path = directory.join(name);
    std::fs::write(&path, bytes).expect("the file is written");
    file(&path)
}

/// Data, zeros and holes of many lengths, not a whole number of blocks.
fn mixture(path: &Path, bytes: u64) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::create(path).expect("a file");
    file.set_len(bytes).expect("its length");
    let (mut at, mut step) = (0, 1000);
    while at < bytes {
        let data: Vec<u8> = (0..step.min(bytes - at)).map(|n| (n * 31 + at) as u8 | 1).collect();
        file.write_all_at(&data, at).expect("a write");
        let zeros = vec![0; step.min((bytes - at).saturating_sub(step)) as usize];
        file.write_all_at(&zeros, at + step).expect("a write");
        at += step * 5;
        step = step * 3 + 512;
    }
    std::fs::read(path).expect("the file")
}

#[test]
fn every_byte_arrives_with_every_kind_of_destination() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("source");
    let bytes = mixture(&source, (9 << 20) + 777);
    let from = file(&source);
    for (sparse, is_blank, block_bytes, piece_bytes) in [
        (true, false, 1, 256 << 10),
        (true, true, 1, 256 << 10),
        (false, false, 1, 256 << 10),
        (true, false, 4096, 64 << 10),
        (true, true, 4096, 4096),
        (true, false, 65536, 65536),
        (true, false, 512, 8192),
    ] {
        let whole = bytes.len().next_multiple_of(block_bytes as usize);
        let old = if is_blank { 0 } else { 0xee };
        let mut to = made(directory.path(), "destination", &vec![old; whole]);
        (to.block_bytes, to.is_blank) = (block_bytes, is_blank);
        let options = Options { sparse, piece_bytes, pieces: 200 };
        let copied = copy(&from, &to, options, &mut |_| ControlFlow::Continue(())).expect("a copy");
        assert_eq!((copied.total, copied.done), (bytes.len() as u64, bytes.len() as u64));
        assert_eq!(copied.written < copied.total, sparse, "zeros are left out, {copied:?}");
        let got = std::fs::read(directory.path().join("destination")).expect("the file");
        assert!(got[..bytes.len()] == bytes, "sparse {sparse}, blank {is_blank}, blocks of {block_bytes}");
        assert!(got[bytes.len()..].iter().all(|byte| *byte == 0), "the last block ends with zeros");
        let difference = compare(&from, &to, options, &mut |_| ControlFlow::Continue(()));
        assert_eq!(difference.expect("a comparison"), None);
    }
}

#[test]
fn the_first_byte_that_differs_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut bytes = vec![7; 3 << 20];
    let first = made(directory.path(), "first", &bytes);
    for at in [(3 << 20) - 1, 2_000_001, 70_000, 0] {
        bytes[at] = 8;
        let second = made(directory.path(), "second", &bytes);
        let options = Options { piece_bytes: 256 << 10, ..OPTIONS };
        let found = compare(&first, &second, options, &mut |_| ControlFlow::Continue(()));
        assert_eq!(found.expect("a comparison"), Some(at as u64));
    }
}

#[test]
fn a_sparse_source_is_not_read_where_it_has_no_data() {
    let from = end(store::open_ram(1 << 40).expect("memory"), 1);
    let to = end(store::open_null(1 << 40), 512);
    let copied = copy(&from, &to, OPTIONS, &mut |_| ControlFlow::Continue(())).expect("a copy");
    assert_eq!((copied.done, copied.written), (1 << 40, 0));
}

#[test]
fn a_copy_can_be_ended_and_faults_name_their_place() {
    let from = end(store::open_null(1 << 40), 1);
    let to = end(store::open_null(1 << 40), 1);
    let options = Options { sparse: false, ..OPTIONS };
    let mut done = 0;
    let stopped = copy(&from, &to, options, &mut |progress| {
        done = progress.done;
        if done > 1 << 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(CopyError::Stopped)) && done < 1 << 30);
    let short = end(store::open_null(1 << 20), 1);
    let failed = copy(&from, &short, options, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(failed, Err(CopyError::Write(0x10_0000.., StoreError::OutOfRange))), "{failed:?}");
    let failed = compare(&from, &short, options, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(failed, Err(CopyError::ReadBack(0x10_0000.., StoreError::OutOfRange))), "{failed:?}");
}
