//! SPDK's iscsi_tgt as a child process: one daemon per run, with disks in its huge pages. The user has built
//! it.

use crate::directory::Directory;
use crate::place::{AT_ONCE, Place};
use crate::process::Process;
use crate::tgt::free_port;
use serde_json::{Value, json};
use std::fs;
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Duration;

/// SPDK's prefix for the names of its targets.
const NODE_BASE: &str = "iqn.2016-06.io.spdk";
const TARGET: &str = "peer";
const BLOCK_BYTES: u64 = 512;
/// Memory that it uses in addition to its disks: with the pools below, a disk of 1 GiB fits into 4400 MiB.
const OWN_MIB: u64 = 3376;
const MIB: u64 = 1 << 20;

/// A running iscsi_tgt, stopped when this is dropped.
#[derive(Debug)]
pub struct Spdk {
    process: Process,
    portal: SocketAddrV4,
    /// Contains its configuration and its RPC socket.
    _directory: Directory,
    commands: Vec<String>,
}

impl Spdk {
    /// Its version, if it can serve disks of these sizes here.
    pub fn prepare(place: &Place, program: &Path, sizes: &[u64]) -> Result<String, String> {
        if !program.is_file() {
            let fix = "build SPDK, and give the path of its build/bin/iscsi_tgt to --peer spdk=";
            return Err(format!("{} is not a program; {fix}", program.display()));
        }
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        huge_pages(&read("/proc/meminfo")?, &read("/proc/mounts")?, memory_mib(sizes))?;
        place.tools().run(&[&program.display().to_string(), "-v"])
    }

    /// Starts it on these cores, at least one, with disks of these sizes, numbered from 0.
    pub fn start(place: &Place, program: &Path, cores: &[usize], sizes: &[u64]) -> Result<Spdk, String> {
        let portal = SocketAddrV4::new(place.address(), free_port()?);
        let directory = Directory::make(&std::env::temp_dir(), "spdk")?;
        let (file, socket) = (directory.path().join("iscsi.json"), directory.path().join("rpc"));
        let text = config(portal, sizes).to_string();
        fs::write(&file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
        let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let [file, socket] = [file, socket].map(|path| path.display().to_string());
        let memory = memory_mib(sizes).to_string();
        let arguments =
            ["-m", &format!("[{list}]"), "-s", &memory, "-r", &socket, "-c", &file].map(String::from);
        let mut command = place.command(program, cores, AT_ONCE);
        let process = Process::start("iscsi_tgt", command.args(&arguments))?;
        let line = [place.prefix(cores), vec![program.display().to_string()], arguments.into()].concat();
        let mut spdk = Spdk {
            process,
            portal,
            _directory: directory,
            commands: vec![
                "# iscsi_tgt spins on all its cores whatever the scheduling says".into(),
                format!("echo '{text}' > {file}"),
                line.join(" "),
            ],
        };
        spdk.process.serves(Duration::from_millis(20), || TcpStream::connect(portal).ok())?;
        Ok(spdk)
    }

    /// The URLs of its units.
    pub fn units(&self, count: u32) -> Vec<String> {
        (0..count).map(|lun| format!("iscsi://{}/{NODE_BASE}:{TARGET}/{lun}", self.portal)).collect()
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The equivalent commands.
    pub fn commands(&self) -> &[String] {
        &self.commands
    }

    /// Stops it gracefully, and waits until it has ended.
    pub fn stop(&mut self) -> Result<(), String> {
        self.process.terminate()?;
        self.process.stopped()
    }
}

/// Its configuration: the calls of its RPC interface, subsystem by subsystem.
fn config(portal: SocketAddrV4, sizes: &[u64]) -> Value {
    let call = |method: &str, params: Value| json!({ "method": method, "params": params });
    let name = |number: usize| format!("Malloc{number}");
    let disk = |(number, size): (usize, &u64)| {
        let blocks = size / BLOCK_BYTES;
        let params = json!({ "name": name(number), "num_blocks": blocks, "block_size": BLOCK_BYTES });
        call("bdev_malloc_create", params)
    };
    let disks: Vec<Value> = sizes.iter().enumerate().map(disk).collect();
    let lun = |number: usize| json!({ "bdev_name": name(number), "lun_id": number });
    let luns: Vec<Value> = (0..sizes.len()).map(lun).collect();
    // Pools as large as this memory allows.
    let options = json!({
        "node_base": NODE_BASE, "max_sessions": 32, "immediate_data": true, "first_burst_length": 262_144,
        "immediate_data_pool_size": 1024, "data_out_pool_size": 1024,
    });
    let portals = json!([{ "host": portal.ip().to_string(), "port": portal.port().to_string() }]);
    let node = json!({
        "name": TARGET, "alias_name": TARGET, "pg_ig_maps": [{ "pg_tag": 1, "ig_tag": 1 }], "luns": luns,
        "queue_depth": 128, "disable_chap": true,
    });
    let iscsi = [
        call("iscsi_set_options", options),
        // It does not listen until the target exists: once it accepts connections, a login works.
        call("iscsi_create_portal_group", json!({ "tag": 1, "portals": portals, "wait": true })),
        call("iscsi_create_initiator_group", json!({ "tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"] })),
        call("iscsi_create_target_node", node),
        call("iscsi_start_portal_group", json!({ "tag": 1 })),
    ];
    json!({ "subsystems": [
        { "subsystem": "bdev", "config": disks },
        { "subsystem": "iscsi", "config": iscsi },
    ] })
}

fn memory_mib(sizes: &[u64]) -> u64 {
    sizes.iter().fold(OWN_MIB, |all, size| all.saturating_add(size.div_ceil(MIB)))
}

/// Whether this much memory is free in huge pages, according to /proc/meminfo and /proc/mounts.
fn huge_pages(meminfo: &str, mounts: &str, needed_mib: u64) -> Result<(), String> {
    let figure = |name: &str| {
        let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
    };
    let (Some(page_kib @ 1..), Some(free)) = (figure("Hugepagesize"), figure("HugePages_Free")) else {
        return Err("SPDK needs huge pages, and this kernel has none (CONFIG_HUGETLBFS)".into());
    };
    let needed = needed_mib.saturating_mul(1024).div_ceil(page_kib);
    if free < needed {
        let all = figure("HugePages_Total").unwrap_or(0).saturating_add(needed - free);
        return Err(format!(
            "SPDK needs {needed} free huge pages of {page_kib} KiB, and there are {free}; as root: sysctl \
             vm.nr_hugepages={all} (restore it afterwards: nothing else can use that memory)"
        ));
    }
    if !mounts.lines().any(|line| line.split(' ').nth(2) == Some("hugetlbfs")) {
        let fix = "as root: mkdir -p /dev/hugepages && mount -t hugetlbfs none /dev/hugepages";
        return Err(format!("SPDK needs hugetlbfs, which is not mounted; {fix}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Tools;
    use std::os::unix::fs::PermissionsExt as _;

    const MOUNTS: &str = "proc /proc proc rw 0 0\nnone /dev/hugepages hugetlbfs rw 0 0\n";

    fn meminfo(total: u64, free: u64) -> String {
        format!("MemTotal: 9 kB\nHugePages_Total: {total}\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n")
    }

    #[test]
    fn its_configuration_has_a_disk_for_each_unit_and_the_portal() {
        let config = config("127.0.0.1:4000".parse().unwrap(), &[1 << 30, 64 << 20]);
        let calls: Vec<&Value> = config["subsystems"].as_array().unwrap().iter().collect();
        assert_eq!(calls[0]["subsystem"], "bdev");
        let disk = &calls[0]["config"][1];
        assert_eq!(disk["method"], "bdev_malloc_create");
        assert_eq!(disk["params"], json!({ "name": "Malloc1", "num_blocks": 131_072, "block_size": 512 }));
        let iscsi = calls[1]["config"].as_array().unwrap();
        let methods: Vec<&str> = iscsi.iter().filter_map(|call| call["method"].as_str()).collect();
        let expected = [
            "iscsi_set_options",
            "iscsi_create_portal_group",
            "iscsi_create_initiator_group",
            "iscsi_create_target_node",
            "iscsi_start_portal_group",
        ];
        assert_eq!(methods, expected);
        assert_eq!(iscsi[0]["params"]["immediate_data_pool_size"], 1024);
        assert_eq!(iscsi[1]["params"]["portals"], json!([{ "host": "127.0.0.1", "port": "4000" }]));
        assert_eq!(iscsi[1]["params"]["wait"], true);
        let luns = json!([{ "bdev_name": "Malloc0", "lun_id": 0 }, { "bdev_name": "Malloc1", "lun_id": 1 }]);
        assert_eq!(iscsi[3]["params"]["luns"], luns);
        assert_eq!(iscsi[3]["params"]["disable_chap"], true);
    }

    #[test]
    fn missing_huge_pages_are_reported_with_their_remedy() {
        let needed = memory_mib(&[1 << 30]);
        assert_eq!(needed, 4400);
        assert_eq!(huge_pages(&meminfo(2300, 2200), MOUNTS, needed), Ok(()));
        let few = huge_pages(&meminfo(300, 100), MOUNTS, needed).unwrap_err();
        assert!(few.contains("needs 2200 free huge pages of 2048 KiB, and there are 100"), "{few}");
        assert!(few.contains("sysctl vm.nr_hugepages=2400"), "{few}");
        let unmounted = huge_pages(&meminfo(2300, 2300), "proc /proc proc rw 0 0\n", needed).unwrap_err();
        assert!(unmounted.contains("mount -t hugetlbfs none /dev/hugepages"), "{unmounted}");
        assert!(huge_pages("MemTotal: 9 kB\n", MOUNTS, needed).unwrap_err().contains("this kernel has none"));
        let place = Place::new(&Tools::here(), None).unwrap();
        let absent = Spdk::prepare(&place, Path::new("/nothing/there"), &[1 << 30]).unwrap_err();
        assert!(absent.contains("/nothing/there is not a program; build SPDK"), "{absent}");
    }

    /// Starts a script instead, in the environment of iscsi_tgt.
    fn start(script: &str) -> Result<Spdk, String> {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("iscsi_tgt");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Spdk::start(&Place::new(&Tools::here(), None)?, &program, &[0], &[64 << 20])
    }

    #[test]
    fn it_serves_on_its_cores_and_ends_without_a_trace() {
        // It listens where the configuration says, and stops gracefully on SIGTERM.
        let script = r#"[ "$1 $2 $3 $4 $5 $7" = "-m [0] -s 3440 -r -c" ] || exit 2
            exec perl -MIO::Socket::INET -e 'local $/; my ($port) = <> =~ /"port":"(\d+)"/; $SIG{TERM} = sub { exit 0 };
            my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1", LocalPort => $port) or die;
            sleep 1 while 1' "$8""#;
        let mut spdk = start(script).unwrap_or_else(|error| panic!("{error}"));
        let units = spdk.units(2);
        assert!(units[1].ends_with("/iqn.2016-06.io.spdk:peer/1"), "{units:?}");
        let status = fs::read_to_string(format!("/proc/{}/status", spdk.pid())).unwrap();
        assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
        assert!(spdk.commands()[2].contains("iscsi_tgt -m [0] -s 3440"), "{:?}", spdk.commands());
        spdk.stop().unwrap();
        let directory = spdk._directory.path().to_path_buf();
        drop(spdk);
        assert!(!directory.exists());
    }

    #[test]
    fn its_last_output_is_reported() {
        let fault = start("echo 'EAL: no memory' >&2; exit 1").err().unwrap_or_default();
        assert!(fault.contains("does not serve") && fault.contains("EAL: no memory"), "{fault}");
        let mut spdk = start(
            r#"exec perl -MIO::Socket::INET -e 'local $/; my ($port) = <> =~ /"port":"(\d+)"/;
            $SIG{TERM} = sub { print STDERR "not in order\n"; exit 3 };
            my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1", LocalPort => $port) or die;
            sleep 1 while 1' "$8""#,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        let fault = spdk.stop().unwrap_err();
        assert!(fault.contains("exit status: 3") && fault.contains("not in order"), "{fault}");
    }
}
