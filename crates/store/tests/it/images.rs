//! Images on Ceph: who may open them, what is allocated, and a cluster that is full.

mod soak {
    use crate::support::Kernel;
    use crate::support::ceph::{Ceph, POOL};
    use crate::support::rig::Rig;
    use config::{Access, RbdImage};
    use reactor::uring::Uring;
    use scsi::storage::{Found, StoreError};
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use store::lane::{Failover, Op, Store};
    use store::rados::Pool;
    use store::rbd::{self, Options, RbdStore};

    const MIB: u64 = 1 << 20;
    const OBJECT: u64 = 4 * MIB;
    const BLOCK: [u8; 4096] = [1; 4096];

    fn place(ceph: &Ceph, name: &str) -> RbdImage {
        let image = RbdImage::parse(name).expect("an image");
        RbdImage { conf: Some(ceph.conf().into()), ..image }
    }

    fn open(ceph: &Ceph, image: &str) -> Arc<RbdStore> {
        let place = place(ceph, &format!("{POOL}/{image}"));
        rbd::open(&place, Options::new(512, false)).expect("it opens")
    }

    fn rig(store: &Arc<RbdStore>) -> Rig<Uring> {
        Rig::new(Uring::start(), store)
    }

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    #[test]
    fn a_client_with_the_rights_of_a_writer_and_its_key_shares_an_image_in_a_namespace() {
        let ceph = Ceph::guarded();
        ceph.rbd(&["namespace", "create", &format!("{POOL}/own")]);
        ceph.rbd(&["create", "--size", "64M", &format!("{POOL}/own/disk")]);
        let keyring = ceph.key("lunette", "profile rbd", &format!("profile rbd pool={POOL} namespace=own"));
        let options = Options { access: Some(Access::One), names_unit: true, ..Options::new(512, false) };
        let place = place(&ceph, &format!("{POOL}/own/disk"));
        let keyless = RbdImage { client: Some("lunette".into()), ..place };
        let refused = rbd::open(&keyless, options).map(drop).expect_err("it has no key").to_string();
        assert!(refused.contains("keyring="), "{refused}");
        let place = RbdImage { keyring: Some(keyring), ..keyless };
        let elsewhere = RbdImage { namespace: None, ..place.clone() };
        assert!(rbd::open(&elsewhere, options).is_err(), "it has no rights there");

        // They suffice for fencing another one, and for what gateways have to agree on.
        let (one, two) = (rbd::open(&place, options), rbd::open(&place, options));
        let (one, two) = (one.expect("it opens"), two.expect("it opens"));
        one.promote(&[]).expect("nobody has it");
        two.promote(&[Failover::client(&*one).expect("it is open")]).expect("its lock is broken");
        assert_eq!(rig(&one).write(0, &BLOCK), Err(StoreError::Unavailable));
        assert!(one.is_fenced());
        rig(&two).write(0, &BLOCK).expect("a write");
        let pool = Pool::open(&place).expect("it opens");
        let version = pool.replace("state", None, b"1").expect("it is new");
        assert_eq!(pool.read("state"), Ok(Some((version, b"1".to_vec()))));
        let listed = ceph.command("rados", &["-p", POOL, "-N", "own", "ls"]);
        assert!(listed.lines().any(|object| object == "state"), "{listed}");
    }

    #[test]
    fn an_image_whose_lock_was_broken_stays_away_until_it_is_opened_again() {
        let ceph = Ceph::start();
        ceph.create("disk", 8 * MIB);
        let first = open(&ceph, "disk");
        let mut guest = rig(&first);
        guest.write(0, &BLOCK).expect("a write");
        let options = Options { access: Some(Access::One), ..Options::new(512, false) };
        let other = rbd::open(&place(&ceph, &format!("{POOL}/disk")), options).expect("it opens");
        other.promote(&[Failover::client(&*first).expect("it is open")]).expect("its lock is broken");
        wait_until("it finds that out without commands", || first.is_fenced() || first.refresh().is_err());
        assert_eq!(guest.read(0, 4096), Err(StoreError::Unavailable));
        let place = place(&ceph, &format!("{POOL}/disk"));
        let again = || rbd::open(&place, Options::new(512, false));
        assert!(again().is_err(), "the other one has it");
        other.demote().expect("it has it");
        let said = first.refresh().expect_err("it stays away");
        assert!(said.contains("remove the LUN and add it again"), "{said}");
        assert_eq!(guest.write(0, &BLOCK), Err(StoreError::Unavailable));
        let again = again().expect("nobody has it");
        assert_eq!(rig(&again).read(0, 4096), Ok(BLOCK.to_vec()));
    }

    #[test]
    fn a_gateway_that_releases_the_lock_on_request_is_not_fenced() {
        let ceph = Ceph::start();
        ceph.create("disk", 64 * MIB);
        let image = format!("{POOL}/disk");
        let mut bench =
            ceph.start_rbd(&["bench", "--io-type", "write", "--io-total", "64G", "--io-size", "4K", &image]);
        wait_until("it has the lock", || ceph.rbd(&["lock", "ls", &image]).contains("auto"));
        let store = open(&ceph, "disk");
        rig(&store).write(0, &BLOCK).expect("a write");
        assert!(bench.try_wait().expect("its status").is_none(), "it is alive");
        let listed = ceph.ceph(&["osd", "blocklist", "ls"]);
        assert!(!listed.contains("127.0.0.1"), "{listed}");
        bench.kill().and_then(|()| bench.wait()).expect("it ends");
    }

    #[test]
    fn a_lane_waits_for_threads_while_librbd_has_calls_of_it() {
        let ceph = Ceph::start();
        ceph.create("disk", 8 * MIB);
        let mut guest = rig(&open(&ceph, "disk"));
        guest.write(0, &BLOCK).expect("a write");
        assert!(!guest.lane.waits_for_threads());
        ceph.signal_osd("STOP");
        let into = guest.room(0, BLOCK.len());
        guest.start(&Op::Read { offset: 0, into });
        assert!(guest.lane.waits_for_threads());
        ceph.signal_osd("CONT");
        guest.settle();
        assert!(!guest.lane.waits_for_threads());
    }

    #[test]
    fn what_is_allocated_is_found_object_by_object_also_in_a_parent() {
        let ceph = Ceph::start();
        ceph.create("disk", 512 * MIB);
        let store = open(&ceph, "disk");
        let mut guest = rig(&store);
        let extent = |guest: &mut Rig<Uring>, offset| match guest.run(Op::Extent { offset }) {
            Ok(Found::Extent { mapped, len }) => (mapped, len),
            other => panic!("{other:?}"),
        };
        let window = 256 * MIB;
        assert_eq!(extent(&mut guest, 0), (false, window), "a question is bounded");
        assert_eq!(extent(&mut guest, 500 * MIB), (false, 12 * MIB), "and by the end");
        guest.write(2 * OBJECT, &BLOCK).expect("a write");
        assert_eq!(extent(&mut guest, OBJECT), (false, OBJECT));
        assert_eq!(extent(&mut guest, 2 * OBJECT), (true, 4096));
        assert_eq!(extent(&mut guest, 3 * OBJECT), (false, window));

        ceph.rbd(&["snap", "create", &format!("{POOL}/disk@base")]);
        ceph.rbd(&["snap", "protect", &format!("{POOL}/disk@base")]);
        ceph.rbd(&["clone", &format!("{POOL}/disk@base"), &format!("{POOL}/child")]);
        let mut child = rig(&open(&ceph, "child"));
        assert_eq!(extent(&mut child, 2 * OBJECT), (true, 4096));
        assert_eq!(guest.run(Op::Discard { offset: 2 * OBJECT, len: OBJECT }), Ok(Found::Nothing));
        assert_eq!(extent(&mut guest, 0), (false, window));
        assert_eq!(extent(&mut child, 2 * OBJECT), (true, 4096), "its parent has it");

        (0..200).for_each(|_| _ = guest.start(&Op::Extent { offset: 0 }));
        guest.write(0, &BLOCK).expect("it does not wait for them");
        let found = guest.settle().into_iter().map(|(_, outcome)| outcome);
        let (answered, refused): (Vec<_>, Vec<_>) = found.partition(Result::is_ok);
        assert!(answered.len() >= 32, "{answered:?}");
        assert!(refused.iter().all(|outcome| *outcome == Err(StoreError::Busy)), "{refused:?}");
    }

    #[test]
    fn a_full_cluster_refuses_allocations_and_frees_space() {
        let ceph = Ceph::start();
        ceph.create("disk", 65536 * MIB);
        let mut guest = rig(&open(&ceph, "disk"));
        for object in 0..4 {
            guest.write(object * OBJECT, &BLOCK).expect("a write");
        }
        // Each ratio is at least as large as the one before.
        let set = |ratios: [&str; 3]| {
            for (ratio, value) in ["nearfull", "backfillfull", "full"].iter().zip(ratios) {
                ceph.ceph(&["osd", &format!("set-{ratio}-ratio"), value]);
            }
        };
        set(["0.0000001"; 3]);
        let mut next = 4;
        let mut fresh = |guest: &mut Rig<Uring>| {
            next += 1;
            guest.write(next * OBJECT, &BLOCK)
        };
        wait_until("it is full", || match fresh(&mut guest) {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error, StoreError::NoSpace);
                true
            }
        });
        guest.write(OBJECT, &[2; 4096]).expect("it takes no space");
        assert_eq!(guest.read(OBJECT, 4096), Ok(vec![2; 4096]));
        assert_eq!(guest.run(Op::Discard { offset: 0, len: OBJECT }), Ok(Found::Nothing));
        assert_eq!(guest.read(0, 4096), Ok(vec![0; 4096]));
        set(["0.85", "0.90", "0.95"]);
        wait_until("there is space", || fresh(&mut guest).is_ok());
    }
}
