//! Error messages of stores that do not open.

use crate::support::{Loop, directory, is_root, sparse};
use config::RbdImage;
use std::os::unix::fs::symlink;
use std::path::Path;
use store::Claim;
use store::OpenError;
use store::file::{Asked, FileStore};
use store::lane::Store;
use store::rbd;

fn refused(opened: Result<std::sync::Arc<FileStore>, OpenError>, words: &[&str]) {
    let error = match opened {
        Ok(store) => panic!("{} opened", store.describe()),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(error.contains(word), "{error:?} does not say {word:?}");
    }
}

#[test]
fn files_that_cannot_be_served() {
    let directory = directory();
    let path = sparse(&directory, 10_000);
    let missing = directory.path().join("missing");
    let empty = directory.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    refused(store::open_file(&missing, None, 512, Claim::Sole), &["missing", "No such file", "size="]);
    refused(
        store::open_file(&missing, Some(4096), 512, Claim::Shared),
        &["No such file", "; check the path"],
    );
    let said = store::open_file(&missing, Some(4096), 512, Claim::Shared).err().expect("refused").to_string();
    assert!(!said.contains("size="), "a file that is only read is not made: {said}");
    refused(store::open_file(&missing.join("deep"), Some(4096), 512, Claim::Sole), &["mkdir -p", "missing"]);
    refused(
        store::open_file(directory.path(), None, 512, Claim::Sole),
        &["not a regular file", "name a file"],
    );
    refused(
        store::open_file(Path::new("/dev/null"), None, 512, Claim::Sole),
        &["/dev/null", "not a regular file"],
    );
    refused(
        store::open_file(&path, None, 512, Claim::Sole),
        &["10000 bytes", "272 more than whole blocks of 512", "truncate -s 10240 "],
    );
    let odd = directory.path().join("odd");
    std::fs::File::create(&odd).unwrap().set_len(10_240).unwrap();
    refused(store::open_file(&odd, None, 4096, Claim::Sole), &["bs=2048", "truncate -s 12288 "]);
    refused(
        store::open_file(&path, Some(16384), 512, Claim::Sole),
        &["10000 bytes, not 16384", "truncate -s 16384"],
    );
    let larger = store::open_file(&path, Some(4096), 512, Claim::Sole).err().expect("refused").to_string();
    assert!(
        larger.contains("10000 bytes, not 4096") && !larger.contains("truncate"),
        "that cuts data off: {larger}"
    );
    let open = |bytes| {
        store::file::open_counted(&odd, Asked::AtLeast(bytes), 512, Claim::Sole, std::sync::Arc::default())
    };
    refused(open(16384), &["10240 bytes, not 16384", "truncate -s 16384"]);
    for bytes in [10_240, 4096] {
        assert_eq!(open(bytes).expect("it has as many").traits().size_bytes, 10_240);
    }
    refused(store::open_file(&empty, None, 512, Claim::Sole), &["empty", "truncate"]);
    refused(store::open_file(&missing, Some(1000), 512, Claim::Sole), &["1000 bytes", "give 1024 bytes"]);
    assert!(!missing.exists(), "a wrong size makes no file");
    let nowhere = directory.path().join("no/where");
    refused(store::open_file(&nowhere, Some(4096), 512, Claim::Sole), &["no/where", "No such file"]);
    refused(store::open_file(&missing.join("x"), Some(u64::MAX), 512, Claim::Sole), &["missing/x"]);
    refused(store::open_block(&path, 512, Claim::Sole), &["not a block device", "file:PATH"]);
    refused(store::open_block(&missing, 512, Claim::Sole), &["No such file"]);
}

#[test]
fn a_file_too_large_for_its_file_system_is_not_left_behind() {
    let directory = directory();
    let path = directory.path().join("huge");
    refused(store::open_file(&path, Some(u64::MAX - 511), 512, Claim::Sole), &["huge", "smaller size"]);
    assert!(!path.exists());
}

#[test]
fn a_sparse_file_is_made_once() {
    let directory = directory();
    let path = directory.path().join("new");
    let size = 1 << 40;
    let store = store::open_file(&path, Some(size), 4096, Claim::Sole).unwrap();
    let traits = store.traits();
    assert_eq!(traits.size_bytes, size);
    assert!(traits.discards && traits.volatile_cache && !traits.read_only);
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap()), 0);
    drop(store);
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    let again = store::open_file(&link, Some(size), 4096, Claim::Sole).unwrap();
    assert!(again.describe().contains("link") && again.describe().contains("1 TiB"));
}

#[test]
fn a_file_is_written_by_one_store_at_a_time() {
    let directory = directory();
    let path = sparse(&directory, 8192);
    std::fs::create_dir(directory.path().join("sub")).unwrap();
    let same = directory.path().join("sub/..").join(path.file_name().unwrap());
    let hard_link = directory.path().join("hard link");
    std::fs::hard_link(&path, &hard_link).unwrap();
    let open = |path: &Path, claim| store::open_file(path, None, 512, claim);
    let taken = ["in use by another LUN of this process", "list that LUN in several targets"];

    let store = open(&path, Claim::Sole).unwrap();
    refused(open(&same, Claim::Sole), &taken);
    refused(open(&hard_link, Claim::Shared), &taken);
    assert!(open(&same, Claim::None).unwrap().traits().read_only, "whoever only reads may always");
    drop(store);

    let one = open(&path, Claim::Shared).unwrap();
    let two = open(&same, Claim::Shared).unwrap();
    refused(open(&path, Claim::Sole), &taken);
    drop((one, two));
    assert!(open(&path, Claim::Sole).is_ok());
}

#[test]
fn permissions_are_explained() {
    use std::os::unix::fs::PermissionsExt;
    if is_root() {
        // Permissions do not stop root.
        return;
    }
    let directory = directory();
    let path = sparse(&directory, 4096);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    refused(store::open_file(&path, None, 512, Claim::Sole), &["Permission denied", "chmod", "(ro)"]);
    assert!(store::open_file(&path, None, 512, Claim::Shared).is_ok());
}

#[test]
fn block_devices() {
    if !is_root() {
        return;
    }
    let directory = directory();
    let device = Loop::attach(&sparse(&directory, 8 << 20), 4096);
    refused(store::open_file(&device.device, None, 512, Claim::Sole), &["is a block device", "block:PATH"]);
    let store = store::open_block(&device.device, 512, Claim::Sole).unwrap();
    assert_eq!(store.traits().size_bytes, 8 << 20);
    assert!(store.describe().contains("direct I/O in 4096-byte blocks"), "{}", store.describe());
    refused(store::open_block(&device.device, 512, Claim::Sole), &["busy", "in use", "umount"]);
    drop(store);
    let read_only = store::open_block(&device.device, 512, Claim::Shared).unwrap();
    assert!(read_only.traits().read_only);
}

#[test]
fn a_ram_disk_larger_than_memory_is_refused() {
    let error = store::open_ram(u64::MAX).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("ram:") && error.contains("smaller size"), "{error}");
}

/// The store's report about its path contains all these words.
fn misplaced(store: &FileStore, words: &[&str]) {
    let problem = store.misplaced().unwrap().expect("its path does not lead to it");
    for word in words {
        assert!(problem.contains(word), "{problem:?} does not say {word:?}");
    }
}

/// Needs librbd, but no cluster.
#[test]
fn an_image_whose_cluster_is_not_reached_says_what_is_missing() {
    let directory = directory();
    let path = |name: &str| Some(directory.path().join(name));
    let image = RbdImage::parse("pool/disk").unwrap();
    let said = |image: &RbdImage, words: &[&str]| {
        for error in [rbd::examine(image), rbd::open(image, rbd::Options::new(512, true)).map(drop)] {
            let error = error.expect_err("there is no cluster").to_string();
            words.iter().for_each(|word| assert!(error.contains(word), "{error:?} does not say {word:?}"));
        }
    };
    said(&RbdImage { conf: path("none.conf"), ..image.clone() }, &["rbd:pool/disk: ", "none.conf", "conf="]);
    std::fs::write(directory.path().join("ceph.conf"), "[global]\nmon host = 127.0.0.1:1\n").unwrap();
    let conf = path("ceph.conf");
    let keyless = RbdImage { conf, keyring: path("none.keyring"), ..image };
    said(&keyless, &["rbd:pool/disk: ", "keyring="]);
}

#[test]
fn a_file_that_its_path_does_not_name_any_more_is_noticed() {
    let directory = directory();
    let path = sparse(&directory, 8192);
    let (link, elsewhere) = (directory.path().join("link"), directory.path().join("elsewhere"));
    symlink(&path, &link).unwrap();
    let store = store::open_file(&link, None, 512, Claim::Sole).unwrap();
    assert_eq!(store.misplaced().unwrap(), None);
    std::fs::hard_link(&path, &elsewhere).unwrap();
    std::fs::remove_file(&path).unwrap();
    misplaced(&store, &[link.to_str().unwrap(), "no longer at this path", "move it back"]);
    std::fs::write(&path, [1; 8192]).unwrap();
    misplaced(&store, &["another file at this path is not served"]);
    std::fs::rename(&elsewhere, &path).unwrap();
    assert_eq!(store.misplaced().unwrap(), None, "it is back");
    std::fs::write(&elsewhere, [1; 8192]).unwrap();
    std::fs::rename(&elsewhere, &path).unwrap();
    misplaced(&store, &["was deleted", "copy it through an initiator", "not served until a restart"]);
    std::fs::remove_file(&path).unwrap();
    misplaced(&store, &["was deleted"]);
}

#[test]
fn a_device_whose_node_is_gone_is_noticed() {
    if !is_root() {
        return;
    }
    let directory = directory();
    let device = Loop::attach(&sparse(&directory, 8 << 20), 512);
    let node = directory.path().join("node");
    symlink(&device.device, &node).unwrap();
    let store = store::open_block(&node, 512, Claim::Sole).unwrap();
    assert_eq!(store.misplaced().unwrap(), None);
    std::fs::remove_file(&node).unwrap();
    misplaced(&store, &[node.to_str().unwrap(), "restore its node"]);
    std::fs::write(&node, [1; 8192]).unwrap();
    misplaced(&store, &["another device at this path is not served"]);
}
