//! Ceph images encrypted by LUKS, on a Ceph of one monitor and one OSD.

use crate::support::ceph::{Ceph, POOL};
use crate::support::rig::Rig;
use crate::support::{Kernel, tool};
use config::RbdImage;
use reactor::uring::Uring;
use scsi::storage::{Found, StoreError};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::lane::{Op, Store};
use store::rbd::{self, Options, RbdStore};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const RAW: u64 = 64 * MIB;
const IMAGE: &str = "disk";
/// What is written, and found nowhere in the image itself.
const PATTERN: [u8; 512] = *include_bytes!("luks.rs").first_chunk().expect("this file is long enough");

/// A cluster with an encrypted image, and files with passphrases.
struct Encrypted {
    ceph: Ceph,
    directory: TempDir,
}

impl Encrypted {
    fn new(format: &str) -> Encrypted {
        let (ceph, directory) = (Ceph::start(), tempfile::tempdir().expect("a directory"));
        let image = format!("{POOL}/{IMAGE}");
        ceph.rbd(&["create", "--size", "64M", "--image-feature", "layering", &image]);
        let encrypted = Encrypted { ceph, directory };
        let passphrase = encrypted.file("passphrase", "correct horse", 0o600);
        let passphrase = passphrase.to_str().expect("UTF-8");
        encrypted.ceph.rbd(&["encryption", "format", &image, format, passphrase]);
        encrypted
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        path
    }

    fn open_as(&self, image: &str, file: &Path, options: Options) -> Result<Arc<RbdStore>, String> {
        let image = RbdImage::parse(&format!("{POOL}/{image}")).expect("an image");
        let (conf, file) = (Some(self.ceph.conf().into()), Some(file.to_owned()));
        let place = RbdImage { conf, luks_passphrase_file: file, ..image };
        rbd::open(&place, options).map_err(|error| error.to_string())
    }

    fn open(&self, options: Options) -> Arc<RbdStore> {
        self.open_as(IMAGE, &self.directory.path().join("passphrase"), options).expect("it opens")
    }

    /// The image as it is stored.
    fn export(&self) -> PathBuf {
        let path = self.directory.path().join("raw");
        self.ceph.rbd(&["export", &format!("{POOL}/{IMAGE}"), path.to_str().expect("UTF-8")]);
        path
    }
}

fn rig(store: &Arc<RbdStore>) -> Rig<Uring> {
    Rig::new(Uring::start(), store)
}

/// Writes by all kinds of operations; the result can be read.
fn write_in_every_way(store: &Arc<RbdStore>) {
    let mut rig = rig(store);
    let (size, changed) = (store.traits().size_bytes, [7; 512]);
    for at in [0, 4096 + 512, size - 512] {
        rig.write(at, &PATTERN).expect("a write");
        assert_eq!(rig.read(at, 512), Ok(PATTERN.to_vec()), "at {at}");
    }
    assert_eq!(rig.write(size, &PATTERN), Err(StoreError::OutOfRange));
    for (compare, outcome) in
        [(PATTERN, Ok(Found::Nothing)), (PATTERN, Err(StoreError::Miscompare { at: 0 }))]
    {
        assert_eq!(rig.compare_and_write(0, &compare, &changed), outcome);
    }
    // More than a sector: read, compared and written here.
    let page = rig.read(4096, 4096).expect("a read");
    let mut next = page.clone();
    next[..512].copy_from_slice(&PATTERN);
    assert_eq!(rig.compare_and_write(4096, &page, &next), Ok(Found::Nothing));
    assert_eq!(rig.compare_and_write(4096, &page, &next), Err(StoreError::Miscompare { at: 0 }));
    assert_eq!(rig.read(4096, 4096), Ok(next));
    for (unmap, offset) in [(false, 8192), (true, 8192 + 16 * MIB)] {
        rig.write(offset, &PATTERN.repeat(16)).expect("a write");
        rig.run(Op::Zero { offset: offset + 512, len: 4096, unmap, durable: true }).expect("it is cleared");
        let expected = [&PATTERN[..], &[0; 4096], &PATTERN.repeat(7)].concat();
        assert_eq!(rig.read(offset, 8192), Ok(expected));
    }
    // More than is cleared at once.
    rig.run(Op::Zero { offset: 8192, len: 12 * MIB, unmap: false, durable: false }).expect("it is cleared");
    assert_eq!(rig.read(8192, 8192), Ok(vec![0; 8192]));
    rig.run(Op::Flush).expect("it is flushed");
    let Ok(Found::Extent { mapped: true, len }) = rig.run(Op::Extent { offset: 20 * MIB }) else {
        panic!("nothing is known to be a hole");
    };
    assert_eq!(len, size - 20 * MIB);
}

#[test]
fn an_image_encrypted_by_luks_is_served_decrypted() {
    let encrypted = Encrypted::new("luks2");
    let store = encrypted.open(Options::new(512, false));
    let size = store.traits().size_bytes;
    assert_eq!(size, RAW - 16 * MIB, "without the header");
    assert!(!store.traits().discards && store.describe().ends_with("encrypted by LUKS"));
    write_in_every_way(&store);
    let raw = std::fs::read(encrypted.export()).expect("it was exported");
    assert!(!raw.windows(64).any(|part| part == &PATTERN[..64]), "it is not encrypted");

    let image = format!("{POOL}/{IMAGE}");
    encrypted.ceph.rbd(&["resize", "--size", &format!("{}B", RAW + 32 * MIB), &image]);
    while store.refresh().expect("it is there").is_none_or(|traits| traits.size_bytes != size + 32 * MIB) {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    rig(&store).write(size, &PATTERN).expect("a write");

    // Another client reads the same.
    drop(store);
    rbd::wait_closed(std::time::Duration::from_secs(60));
    let again = encrypted.open(Options { read_only: true, ..Options::new(4096, false) });
    for at in [4096, 4096 + 512, size] {
        assert_eq!(rig(&again).read(at, 512), Ok(PATTERN.to_vec()), "at {at}");
    }
    refuses_what_it_cannot_decrypt(&encrypted);
}

fn refuses_what_it_cannot_decrypt(encrypted: &Encrypted) {
    encrypted.ceph.create("plain", 8 * MIB);
    let right = encrypted.directory.path().join("passphrase");
    let wrong = encrypted.file("wrong", "incorrect horse", 0o600);
    let (open, empty) =
        (encrypted.file("open", "correct horse", 0o644), encrypted.file("empty", "\n", 0o600));
    for (image, file, problem) in [
        (IMAGE, &wrong, "opens none of its LUKS key slots"),
        ("plain", &right, "it is not encrypted by LUKS"),
        (IMAGE, &open, "chmod 600"),
        (IMAGE, &empty, "is empty"),
        (IMAGE, &encrypted.directory.path().join("none"), "cannot read"),
    ] {
        let refused = encrypted.open_as(image, file, Options::new(512, false)).map(drop).expect_err(problem);
        assert!(refused.contains(problem), "{refused}");
    }
}

mod soak {
    use super::*;
    use config::Access;
    use store::lane::Failover as _;

    #[test]
    fn what_was_written_to_an_image_encrypted_by_luks1_is_decrypted_by_qemu() {
        let encrypted = Encrypted::new("luks1");
        let store = encrypted.open(Options::new(512, false));
        assert_eq!(store.traits().size_bytes, RAW - 4 * MIB, "without the header");
        write_in_every_way(&store);
        let raw = encrypted.export();
        let plain = encrypted.directory.path().join("plain");
        let secret = format!("secret,id=s,file={}", encrypted.directory.path().join("passphrase").display());
        let image = format!("driver=luks,key-secret=s,file.filename={}", raw.display());
        let target = plain.to_str().expect("UTF-8");
        tool("qemu-img", &["convert", "--object", &secret, "--image-opts", &image, "-O", "raw", target]);
        let plain = std::fs::read(plain).expect("it was converted");
        let mut rig = rig(&store);
        for at in [0, 4096, 8192 + 16 * MIB, store.traits().size_bytes - 4096] {
            let here = rig.read(at, 4096).expect("a read");
            assert_eq!(plain[usize::try_from(at).expect("it fits")..][..4096], here, "at {at}");
        }
    }

    /// A sector of 512 bytes is part of one of 4096 that is encrypted as a whole.
    #[test]
    fn gateways_write_to_parts_of_one_encrypted_sector() {
        let encrypted = Encrypted::new("luks2");
        let options = Options { access: Some(Access::All), ..Options::new(512, false) };
        let (one, two) = (encrypted.open(options), encrypted.open(options));
        one.promote(&[]).expect("it serves");
        two.catch_up().expect("it serves, too");
        std::thread::scope(|scope| {
            for (store, own) in [(&one, 0), (&two, 512)] {
                scope.spawn(move || {
                    let mut rig = rig(store);
                    for round in 0..200 {
                        rig.write(own, &[round; 512]).expect("a write");
                        assert_eq!(rig.read(own, 512), Ok(vec![round; 512]), "its own sector");
                    }
                });
            }
        });
        assert_eq!(rig(&two).compare_and_write(0, &[199; 512], &[1; 512]), Ok(Found::Nothing));
        assert_eq!(rig(&one).read(0, 1024), Ok([[1; 512], [199; 512]].concat()));
    }
}
