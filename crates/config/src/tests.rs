use super::machine::{Machine, machine_id};
use super::problems::Collector;
use super::*;
use proptest::prelude::*;
use proto::iscsi::chap::Algorithm;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn machine() -> Machine {
    let (id, process) = (Some("test".into()), "first start".into());
    let addresses = ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().expect("an address")).into();
    Machine { cores: vec![0, 1, 2, 3], id, process, base: "/etc/lunette".into(), access: None, addresses }
}

fn parse(text: &str) -> Result<Config, Problems> {
    parse_on(&machine(), text)
}

fn parse_on(machine: &Machine, text: &str) -> Result<Config, Problems> {
    let mut problems = Collector::new(Some((Path::new("lunette.toml"), text)));
    let raw = file::read(text, &mut problems);
    let config = raw.and_then(|mut raw| verify::verify(&mut raw, machine, &mut problems));
    problems.finish(config)
}

fn good(text: &str) -> Config {
    parse(text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn faults(text: &str) -> String {
    parse(text).expect_err("wrong on purpose").to_string()
}

fn options(change: impl Fn(&mut ServeOptions)) -> Result<Config, Problems> {
    let mut options = ServeOptions::default();
    change(&mut options);
    Config::from_options(&options)
}

const FULL: &str = r#"
cores = "0-2"
poll = "never"
state_dir = "state"
admin = "./run/admin.sock"
login_timeout = "5s"
keep_alive = 20
stall_timeout = "90s"
logins_max = 10

[[portal]]
name = "front"
listen = "127.0.0.1:3261"
cores = "1,2"

[[portal]]
listen = "[::1]"
group = 2

[[lun]]
name = "db"
file = "db.img"
size = "1G"
block_size = "4K"

[[lun]]
name = "scratch"
ram = "64M"
serial = "SCRATCH"
read_only = true
write_cache = false
thin = false
removable = true
product = "Scratch"

[[target]]
name = "iqn.2026-11.io.Lunette:DB"
alias = "the database"
sessions_max = 4
portals = ["front"]
luns = ["db", { lun = "scratch", number = 300 }]

[[target.group]]
name = "readers"
initiators = ["IQN.2026-11.*:report?"]
networks = ["192.0.2.0/24", "2001:db8::/32"]
read_only = true
luns = ["db"]
chap = { user = "reader", secret = "a secret of readers", mutual_user = "us", mutual_secret = "another secret" }

[[target.group]]
name = "nobody else"
deny = true

[[target]]
name = "iqn.2026-11.io.lunette:other"
portals = ["[::1]:3260", "front"]
luns = []
"#;

#[test]
fn a_file_with_everything_is_understood() {
    let config = good(FULL);
    assert_eq!((config.cores.as_slice(), config.poll), (&[0, 1, 2][..], Poll::Never));
    assert_eq!(config.state_dir.as_deref(), Some(Path::new("/etc/lunette/state")));
    assert_eq!(config.admin, AdminPlace::At(AdminAddress::Unix("/etc/lunette/run/admin.sock".into())));
    assert_eq!((config.login_timeout.as_secs(), config.keep_alive.as_secs(), config.logins_max), (5, 20, 10));
    assert_eq!(config.stall_timeout.as_secs(), 90);
    assert_eq!((config.portals[0].cores.as_slice(), config.portals[0].group), (&[1, 2][..], 1));
    assert_eq!((config.portals[1].cores.as_slice(), config.portals[1].group), (&[0, 1, 2][..], 2));
    let path = PathBuf::from("/etc/lunette/db.img");
    assert_eq!(config.luns[0].store, StoreSpec::File { path, size: Some(1 << 30) });
    assert_eq!((config.luns[0].block_bytes, config.luns[0].physical_block_bytes), (4096, 4096));
    let scratch = &config.luns[1];
    assert_eq!((scratch.serial.as_str(), scratch.product.as_str()), ("SCRATCH", "Scratch"));
    assert_eq!((scratch.block_bytes, scratch.physical_block_bytes), (512, 4096));
    assert!(scratch.read_only && scratch.removable && !scratch.write_cache && !scratch.thin);
    let [target, other] = config.targets.as_slice() else { panic!("two targets") };
    assert_eq!(target.name, "iqn.2026-11.io.lunette:db");
    assert_eq!((target.portals.as_slice(), target.luns.as_slice()), (&[0][..], &[(0, 0), (300, 1)][..]));
    assert_eq!((other.portals.as_slice(), other.luns.as_slice()), (&[0, 1][..], &[][..]));
    let readers = &target.groups[0];
    assert_eq!(readers.initiators, ["iqn.2026-11.*:report?"]);
    assert_eq!((readers.networks[1].prefix, readers.luns.as_deref()), (32, Some(&[(0, 0)][..])));
    assert!(readers.read_only && !readers.deny && target.groups[1].deny);
    let chap = readers.chap.as_ref().expect("CHAP");
    assert_eq!((chap.user.as_str(), chap.secret.as_slice()), ("reader", &b"a secret of readers"[..]));
    assert_eq!(chap.mutual, Some(("us".into(), b"another secret".to_vec())));
    assert!(!format!("{config:?}").contains("secret of"), "secrets do not reach the log");
}

#[test]
fn little_needs_to_be_said() {
    let config = good("[[lun]]\nram = 1048576\n[[target]]\nname = 'iqn.2026-11.io.lunette:x'\n");
    assert_eq!(config.cores, [0, 1, 2, 3]);
    assert_eq!(config.portals[0].listen.to_string(), "127.0.0.1:3260");
    assert_eq!(
        (config.targets[0].portals.as_slice(), config.targets[0].luns.as_slice()),
        (&[0][..], &[(0, 0)][..])
    );
    assert_eq!(config.luns[0].name, "lun0");
}

#[test]
fn all_faults_come_at_once_in_the_order_of_the_file() {
    let text = r#"poll = "sometimes"
colour = 1
[[portal]]
listen = "localhost"
[[lun]]
name = "a"
ram = "1000"
[[lun]]
name = "b"
file = "x"
ram = "1M"
[[lun]]
name = "c"
blocksize = 512
read_only = "yes"
null = "1M"
[[target]]
name = "disk"
luns = [{ lun = "bb" }, { number = 1, lun = "c" }, { number = 1, lun = "a" }]
portals = ["back"]
[[target.group]]
name = "g"
networks = ["192.0.2.1/24"]
chap = { user = "u", secret = "short" }
"#;
    let expected = [
        "lunette.toml:1:8: poll: `sometimes` is not a polling mode; choose adaptive, always or never",
        "lunette.toml:2:1: colour: unknown key; known here: cores, poll, ",
        "lunette.toml:4:10: portal[0].listen: `localhost` is not an address; ",
        "lunette.toml:7:7: lun[0].ram: 1000 bytes are not a whole number of 512-byte blocks; use 512 or 1024",
        "lunette.toml:10:8: lun[1].file: the LUN has more than one store; ",
        "lunette.toml:14:1: lun[2].blocksize: unknown key; did you mean `block_size`?",
        "lunette.toml:15:13: lun[2].read_only: this is a string; write true or false",
        "lunette.toml:18:8: target[0].name: `disk` is not an iSCSI name; write iqn.",
        "lunette.toml:19:17: target[0].luns[0].lun: there is no LUN `bb`; did you mean `b`?",
        "lunette.toml:19:63: target[0].luns[2].number: this LUN number (1) is already used by target[0].luns[1].number (line 19); ",
        "lunette.toml:20:12: target[0].portals[0]: there is no portal `back`; ",
        "lunette.toml:23:13: target[0].group[0].networks[0]: `192.0.2.1/24` has bits set beyond its prefix; write 192.0.2.0/24",
        "lunette.toml:24:31: target[0].group[0].chap.secret: the secret has 5 bytes; CHAP secrets have 12 to 255; ",
    ];
    let found = faults(text);
    for (line, expected) in found.lines().zip(expected) {
        assert!(line.starts_with(expected), "expected {expected:?} in:\n{found}");
    }
    assert_eq!(found.lines().count(), expected.len(), "{found}");
}

#[test]
fn syntax_errors_have_their_place() {
    let found = faults("poll = never\n[[lun]\n");
    assert!(found.starts_with("lunette.toml:1:8: "), "{found}");
    assert_eq!(found.lines().count(), 2, "{found}");
    assert!(faults("lun = 1").contains("this is an integer; write tables, each under a [[lun]] header"));
}

#[test]
fn a_portal_says_what_is_spoken_there() {
    let with = |transports: &str| {
        let portal = format!("[[portal]]\nlisten = '127.0.0.1:0'\n{transports}\n");
        format!("{portal}[[lun]]\nram = '1M'\n[[target]]\nname = 'iqn.2026-11.io.lunette:x'\n")
    };
    let offered = |transports| good(&with(transports)).portals[0].transports;
    assert_eq!(offered(""), Transports::DEFAULT);
    assert_eq!(offered("transports = ['iser']"), Transports { iscsi: false, iser: true, srp: false });
    let found = faults(&with("transports = ['iscsi', 'isr']"));
    assert!(
        found.contains("3:24: portal[0].transports[1]: `isr` is not a transport; did you mean `iser`?"),
        "{found}"
    );
    assert!(faults(&with("transports = []")).contains("a portal without a transport; name one"));
}

#[test]
fn a_file_must_have_something_to_serve() {
    let found = faults("");
    assert!(found.contains("lun: there are none") && found.contains("target: there are none"), "{found}");
    let found = faults("[[lun]]\nname = 'a'\n[[target]]\nname = 'iqn.2026-11.io.lunette:x'\n");
    assert!(
        found.contains("lun[0]: the LUN has no store; add one of ram, null, file, block, url"),
        "{found}"
    );
}

#[test]
fn what_must_be_unique_names_both_places() {
    let target = "[[target]]\nname = 'iqn.2026-11.io.lunette:X'\nluns = []\n";
    let found = faults(&format!(
        "[[lun]]\nname = 'a'\nfile = 'x'\nserial = 's'\n[[lun]]\nname = 'a'\nblock = '/etc/lunette/x'\nserial = 's'\n\
         [[portal]]\nlisten = '127.0.0.1'\n[[portal]]\nlisten = '127.0.0.1:3260'\n{target}{target}"
    ));
    for expected in [
        "lun[1].name: this name is already used by lun[0].name (line 2)",
        "lun[1].block: this path is already used by lun[0].file (line 3)",
        "lun[1].serial: this serial number is already used by lun[0].serial (line 4)",
        "portal[1].listen: this address is already used by portal[0].listen (line 10)",
        "target[1].name: this target name is already used by target[0].name",
    ] {
        assert!(found.contains(expected), "{expected:?} is missing in:\n{found}");
    }
}

#[test]
fn with_several_targets_each_names_its_luns() {
    let found = faults(
        "[[lun]]\nram = '1M'\n[[target]]\nname = 'iqn.2026-11.a:x'\n[[target]]\nname = 'iqn.2026-11.a:y'",
    );
    assert!(found.contains("target[0].luns: with several targets each must name its LUNs"), "{found}");
}

#[test]
fn a_group_with_an_empty_list_is_a_fault() {
    for key in ["initiators", "networks"] {
        for deny in [false, true] {
            let text = format!(
                "[[lun]]\nram = '1M'\n[[target]]\nname = 'iqn.2026-11.a:x'\n[[target.group]]\nname = 'g'\n\
                 deny = {deny}\n{key} = []\n"
            );
            let found = faults(&text);
            let expected =
                format!("target[0].group[0].{key}: an empty list matches no one; remove the group");
            assert!(found.contains(&expected), "{found}");
        }
    }
}

#[test]
fn a_denying_group_grants_nothing() {
    let found = faults(
        "[[lun]]\nram = '1M'\n[[target]]\nname = 'iqn.2026-11.a:x'\n[[target.group]]\nname = 'g'\ndeny = true\nluns = []\n\
         read_only = true\nchap = { user = 'u', secret = '0123456789abcdef' }",
    );
    assert_eq!(found.matches("a group that denies its members shows them nothing").count(), 3, "{found}");
}

/// A file with one group that has this CHAP table.
fn with_chap(chap: &str) -> String {
    format!(
        "[[lun]]\nram = '1M'\n[[target]]\nname = 'iqn.2026-11.a:x'\n[[target.group]]\nname = 'g'\nchap = {{ {chap} }}"
    )
}

#[test]
fn a_secret_is_given_once_and_serves_one_direction() {
    assert!(faults(&with_chap("user = 'u'")).contains("add `secret_file = \"path\"` or `secret = "));
    let twice = faults(&with_chap("user = 'u', secret = '0123456789abcdef', secret_file = 'x'"));
    assert!(twice.contains("given twice, by secret and by secret_file"), "{twice}");
    let half = faults(&with_chap("user = 'u', secret = '0123456789abcdef', mutual_user = 't'"));
    assert!(half.contains("chap.mutual_secret: this is missing"), "{half}");
    let same =
        "user = 'u', secret = '0123456789abcdef', mutual_user = 't', mutual_secret = '0123456789abcdef'";
    assert!(
        faults(&with_chap(same))
            .contains("this secret also authenticates initiators, in target[0].group[0].chap")
    );
}

#[test]
fn algorithms_of_chap_are_known_and_named_once() {
    let with =
        |list: &str| with_chap(&format!("user = 'u', secret = '0123456789abcdef', algorithms = {list}"));
    let chap = good(&with("['sha256', 'md5']")).targets[0].groups[0].chap.clone().expect("CHAP");
    assert_eq!(chap.algorithms, [Algorithm::Sha256, Algorithm::Md5]);
    for (list, words) in [
        ("['sha265']", "chap.algorithms[0]: `sha265` is not a CHAP algorithm; did you mean `sha256`?"),
        ("['md5', 'sha1', 'md5']", "this algorithm is already used by target[0].group[0].chap.algorithms[0]"),
        ("[]", "an empty list accepts nothing"),
        ("'sha256'", "write an array of strings"),
    ] {
        let found = faults(&with(list));
        assert!(found.contains(words), "{found}");
    }
}

#[test]
fn a_secret_file_must_be_private() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("secret");
    std::fs::write(&path, "sixteen letters!\nnot this line\n").expect("written");
    let text = with_chap(&format!("user = 'u', secret_file = '{}'", path.display()));
    for mode in [0o644, 0o640, 0o602] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("changed");
        let found = faults(&text);
        assert!(found.contains(&format!("chmod 600 {}", path.display())), "{found}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
    let chap = good(&text).targets[0].groups[0].chap.clone().expect("CHAP");
    assert_eq!(chap.secret, b"sixteen letters!");
    let directory = with_chap(&format!("user = 'u', secret_file = '{}'", directory.path().display()));
    assert!(faults(&directory).contains("is not a file"));
    assert!(faults(&with_chap("user = 'u', secret_file = 'none'")).contains("cannot read /etc/lunette/none"));
}

#[test]
fn no_arguments_serve_a_disk_in_memory() {
    let config = options(|_| {}).expect("good");
    assert_eq!(config.targets[0].name, "iqn.2026-11.io.lunette:disk");
    assert_eq!(config.targets[0].luns, [(0, 0)]);
    assert_eq!(config.luns[0].store, StoreSpec::Ram { size: 1 << 30, huge_pages: HugePages::Auto });
    assert_eq!(config.portals[0].listen.to_string(), "127.0.0.1:3260");
}

#[test]
fn a_disk_in_memory_chooses_its_pages() {
    let store =
        |spec: &str| options(|o| o.lun = vec![spec.into()]).map(|config| config.luns[0].store.clone());
    for (word, huge_pages) in
        [("auto", HugePages::Auto), ("always", HugePages::Always), ("never", HugePages::Never)]
    {
        let option = store(&format!("ram:1M,huge={word}")).expect("good");
        assert_eq!(option, StoreSpec::Ram { size: 1 << 20, huge_pages });
        let file = good(&format!(
            "[[lun]]\nram = '1M'\nhuge_pages = '{word}'\n[[target]]\nname = 'iqn.2026-11.a:x'\n"
        ));
        assert_eq!(file.luns[0].store, StoreSpec::Ram { size: 1 << 20, huge_pages });
    }
    assert!(store("ram:1M,huge=on").unwrap_err().to_string().contains("write auto, always or never"));
    assert!(store("null:1M,huge=never").unwrap_err().to_string().contains("only a disk in memory"));
}

#[test]
fn the_admin_interface_is_a_path_or_an_address() {
    let admin = |text: &str| options(|o| o.admin = Some(text.into())).map(|config| config.admin);
    let here = std::env::current_dir().expect("a directory");
    assert_eq!(options(|_| {}).expect("good").admin, AdminPlace::Usual);
    assert_eq!(admin("none"), Ok(AdminPlace::Nowhere));
    assert_eq!(admin("./a.sock"), Ok(AdminPlace::At(AdminAddress::Unix(here.join("a.sock")))));
    let loopback = AdminAddress::Tcp("[::1]:0".parse().expect("an address"));
    assert_eq!(admin("[::1]:0"), Ok(AdminPlace::At(loopback)));
    for (wrong, named) in [
        ("a.sock", "write a path with a slash, such as /run/lunette.sock"),
        ("127.0.0.1", "neither a path nor an address with a port"),
        ("localhost:9260", "numeric address"),
        ("", "neither a path"),
        ("/run/", "cannot be the path of a socket"),
        (&format!("/{}", "long".repeat(30)), "at most 107 bytes"),
    ] {
        let problems = admin(wrong).expect_err(wrong).to_string();
        assert!(problems.starts_with("--admin: ") && problems.contains(named), "{problems}");
    }
}

#[test]
fn luns_of_the_command_line_are_numbered_from_zero() {
    let config =
        options(|o| o.lun = vec!["ram:1M,id=5".into(), "null:1T,bs=4K,name=big".into()]).expect("good");
    assert_eq!(config.targets[0].luns, [(1, 1), (5, 0)]);
    assert_eq!((config.luns[0].name.as_str(), config.luns[1].name.as_str()), ("lun0", "big"));
    assert_ne!(config.luns[0].serial, config.luns[1].serial);
    let clash = options(|o| o.lun = vec!["ram:1M,id=1".into(), "ram:2M".into()]).expect_err("both are LUN 1");
    assert!(
        clash.to_string().contains("--lun ram:2M: this LUN number (1) is already used by --lun ram:1M,id=1")
    );
}

#[test]
fn options_go_before_the_file_but_disks_do_not() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("lunette.toml");
    std::fs::write(&path, "[[lun]]\nfile = 'x'\n[[target]]\nname = 'iqn.2026-11.a:x'\n").expect("written");
    let with = |change: &dyn Fn(&mut ServeOptions)| {
        options(|o| {
            o.config = Some(path.clone());
            change(o);
        })
    };
    let config = with(&|o| {
        o.listen = vec!["127.0.0.1:0".into(), "[::1]:0".into()];
        o.poll = Some("always".into());
        o.state_dir = Some("/var/lib/lunette".into());
    });
    let config = config.expect("good");
    assert_eq!((config.portals.len(), config.poll), (2, Poll::Always));
    assert_eq!(config.state_dir.as_deref(), Some(Path::new("/var/lib/lunette")));
    let path_in_directory = StoreSpec::File { path: directory.path().join("x"), size: None };
    assert_eq!(config.luns[0].store, path_in_directory, "relative paths start at the file's directory");
    let both = with(&|o| {
        o.lun = vec!["ram:1G".into()];
        o.target = Some("iqn.2026-11.a:y".into());
    });
    let both = both.expect_err("refused").to_string();
    assert!(both.contains("--lun: this cannot be combined with --config"), "{both}");
    assert!(both.contains("--target: this cannot be combined with --config"), "{both}");
    let missing = options(|o| o.config = Some("/nonexistent.toml".into())).expect_err("no file").to_string();
    assert!(missing.starts_with("/nonexistent.toml: cannot be read: "), "{missing}");
}

/// The serial number of one LUN on a machine.
fn serial_on(machine: &Machine, lun: &str) -> Result<String, Problems> {
    let config = parse_on(machine, &format!("[[lun]]\n{lun}\n[[target]]\nname = 'iqn.2026-11.a:x'"));
    config.map(|config| config.luns[0].serial.clone())
}

#[test]
fn serial_numbers_stay_and_differ() {
    let serial = |lun: &str| serial_on(&machine(), lun).expect("good");
    let file = serial("file = 'a'");
    assert_eq!(file, serial("file = '/etc/lunette/a'\nname = 'other'\nsize = '1G'"));
    assert_ne!(file, serial("file = 'b'"));
    let again = Machine { process: "second start".into(), ..machine() };
    assert_eq!(serial_on(&again, "file = 'a'").expect("good"), file);
    assert_eq!(file, "029f5a80bb24922c", "the derivation must not change: initiators know disks by it");
}

#[test]
fn no_two_daemons_give_their_memory_one_serial_number() {
    for lun in ["ram = '1M'", "null = '1M'"] {
        let serial = |machine: &Machine| serial_on(machine, lun).expect("good");
        let again = Machine { process: "second start".into(), ..machine() };
        assert_ne!(serial(&machine()), serial(&again), "{lun}");
        assert_ne!(serial(&machine()), serial_on(&machine(), &format!("{lun}\nname = 'b'")).expect("good"));
    }
    assert_eq!(Machine::here(None).process, Machine::here(None).process, "one process stays the same");
}

#[test]
fn what_is_kept_by_serial_number_needs_one_that_lasts() {
    let lasts = |lun: &str| {
        good(&format!("[[lun]]\n{lun}\n[[target]]\nname = 'iqn.2026-11.a:x'")).luns[0].serial_lasts
    };
    assert!(lasts("file = 'a'") && lasts("ram = '1M'\nserial = 'S'") && !lasts("ram = '1M'"));
}

#[test]
fn there_are_no_more_ports_than_identifiers() {
    let portals: String = (1..=17)
        .map(|group| format!("[[portal]]\nlisten = '127.0.0.1:{group}'\ngroup = {group}\n"))
        .collect();
    let targets: String =
        (0..3856).map(|target| format!("[[target]]\nname = 'iqn.2026-11.a:{target}'\nluns = []\n")).collect();
    let problems = faults(&format!("{portals}[[lun]]\nram = '1M'\n{targets}"));
    assert!(problems.contains("65552 target ports") && problems.contains("at most 65535"), "{problems}");
}

#[test]
fn a_machine_without_identity_needs_serial_numbers() {
    let nobody = Machine { id: None, ..machine() };
    for lun in ["file = 'a'", "block = '/dev/sda'", "url = 'iscsi://127.0.0.1/iqn.2026-11.a:x/0'"] {
        let problems = serial_on(&nobody, lun).expect_err(lun).to_string();
        assert!(
            problems.starts_with("lunette.toml:1:1: lun[0]: no serial number can be derived"),
            "{problems}"
        );
        assert!(problems.contains("set `serial`"), "{problems}");
        assert_eq!(serial_on(&nobody, &format!("{lun}\nserial = 'S'")).expect("given"), "S");
    }
    serial_on(&nobody, "ram = '1M'").expect("memory has the process's own");
    for file in ["", "\n", "uninitialized\n"] {
        assert_eq!(machine_id(file), None);
    }
    assert_eq!(machine_id("0123\n").as_deref(), Some("0123"));
}

#[test]
fn the_examples_of_the_manual_are_good() {
    let manual = include_str!("../../../docs/configuration.md");
    let examples: Vec<&str> =
        manual.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 6);
    examples.into_iter().for_each(|text| drop(good(text)));
}

proptest! {
    #[test]
    fn no_text_makes_the_verifier_panic(text in "\\PC{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_damage_to_a_good_file_makes_the_verifier_panic(at in 0..FULL.len(), len in 0usize..40, new in "[\\]\\[\"a0=.{},\n]{0,4}") {
        let mut text = FULL.to_string();
        text.replace_range(at..(at + len).min(FULL.len()), &new);
        if let Err(problems) = parse(&text) {
            prop_assert!(problems.iter().count() > 0);
        }
    }

    #[test]
    fn values_of_any_type_are_refused_with_a_place(key in "cores|poll|state_dir|admin|login_timeout|logins_max|portal|lun|target",
                                                    value in "1|-1|1\\.5|true|\"\"|\\[\\]|\\{\\}|\\[1\\]|\\[\\{a=1\\}\\]|0xffffffffffffffff|1979-05-27") {
        let found = parse(&format!("{key} = {value}")).expect_err("nothing to serve");
        prop_assert!(found.iter().all(|problem| problem.position.is_some()));
    }
}

#[test]
fn srp_is_a_transport_of_portals() {
    let disk = "lun = [{ ram = '1G' }]\n[[target]]\nname = 'iqn.2026-11.a:x'\n";
    let config = good(&format!(
        "srp_guid = '024C750123456789'\nportal = [{{ listen = '::1', transports = ['srp'] }}, {{ listen = '127.0.0.1' }}]\n{disk}"
    ));
    assert_eq!(config.srp_guid, Some(0x024c_7501_2345_6789));
    let of = |portal: usize| config.portals[portal].transports;
    assert_eq!(of(0), Transports { iscsi: false, iser: false, srp: true });
    assert_eq!((of(1), good(disk).srp_guid), (Transports::DEFAULT, None));
    for guid in ["24c75", "0000000000000000", "0x24c75012345678", "+24c750123456789"] {
        let text = faults(&format!("srp_guid = '{guid}'\n{disk}"));
        assert!(text.contains("srp_guid: ") && text.contains("is not a GUID; write 16 hex"), "{text}");
    }
    let text = faults(&format!(
        "portal = [{{ listen = '::1', transports = ['srp'] }}, {{ listen = '127.0.0.1', name = 'b' }}]\n{disk}portals = ['b']"
    ));
    assert!(text.contains("portal[0]: a portal with SRP that no target uses"), "{text}");
    let text = faults(&format!("portal = [{{ listen = '::1', transports = ['srb'] }}]\n{disk}"));
    assert!(text.contains("did you mean `srp`?"), "{text}");
}

#[test]
fn devices_listen_where_they_have_something_to_carry() {
    let with = |portal: &str| {
        format!(
            "portal = [{{ listen = '::1', {portal} }}]\nlun = [{{ ram = '1G' }}]\n[[target]]\nname = 'iqn.2026-11.a:x'\n"
        )
    };
    let listens = |portal: &str| good(&with(portal)).portals[0].rdma;
    for (portal, expected) in [
        ("rdma = true", ByDevice::Too),
        ("rdma = true, transports = ['srp']", ByDevice::Too),
        ("rdma = \"only\"", ByDevice::Only),
        ("name = 'a'", ByDevice::No),
        ("rdma = false, transports = ['iscsi']", ByDevice::No),
    ] {
        assert_eq!(listens(portal), expected, "{portal}");
    }
    let alone = good(&with("rdma = 'only'")).portals[0].transports;
    assert_eq!(alone, Transports { iscsi: false, ..Transports::DEFAULT });
    let text = faults(&with("rdma = 'only', transports = ['iscsi', 'iser']"));
    assert!(text.contains("portal[0].rdma: iSCSI needs TCP, on which this portal does not listen"), "{text}");
    let text = faults(&with("rdma = 'only'").replace("::1", "[::1]:0"));
    assert!(text.contains("portal[0].rdma: RDMA devices alone cannot choose a free port"), "{text}");
    assert!(faults(&with("rdma = 'also'")).contains("write true, false or \"only\""));
    let text = faults(&with("rdma = true, transports = ['iscsi']"));
    assert!(text.contains("portal[0].rdma: this portal offers no protocol for RDMA devices"), "{text}");
    let config = options(|o| {
        o.listen = vec!["127.0.0.1".into(), "::1".into()];
        o.rdma = true;
    });
    assert!(config.expect("two portals").portals.iter().all(|portal| portal.rdma == ByDevice::Too));
    let config = options(|o| o.rdma = true).expect("the portal that there is by default");
    assert_eq!(config.portals[0].rdma, ByDevice::Too);
}

#[test]
fn options_add_srp() {
    let config = options(|o| o.srp = vec!["127.0.0.1:3261".into(), "127.0.0.1".into()]).expect("two portals");
    let shown = |portal: &Portal| (portal.listen.to_string(), portal.transports);
    let both = Transports { srp: true, ..Transports::DEFAULT };
    let alone = Transports { iscsi: false, iser: false, srp: true };
    let expected = [("127.0.0.1:3260".to_string(), both), ("127.0.0.1:3261".to_string(), alone)];
    assert_eq!(config.portals.iter().map(shown).collect::<Vec<_>>(), expected);
    let guid = options(|o| o.srp_guid = Some("0123456789abcdef".into())).expect("a GUID").srp_guid;
    assert_eq!(guid, Some(0x0123_4567_89ab_cdef));
    let fault = options(|o| o.srp = vec!["host:1".into()]).expect_err("no address").to_string();
    assert!(fault.contains("--srp"), "{fault}");
}

#[test]
fn faults_of_the_command_line_are_fixed_there() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "ops 0123456789abcdef\n").expect("a file");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    let fix = |admin: &str| {
        let options = ServeOptions {
            admin: Some(admin.into()),
            admin_token_file: Some(tokens.display().to_string()),
            ..ServeOptions::default()
        };
        let checked = Checked::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
        checked.warnings[0].fix.clone()
    };
    assert!(fix("0.0.0.0:1").starts_with("add --admin-certificate and --admin-key, or listen on"));
    assert_eq!(fix("./admin.sock"), "give --admin an address and a port, or leave this out");
}

#[test]
fn what_runs_is_shown_as_a_file_that_says_the_same_but_for_secrets() {
    let checked = |change: &dyn Fn(&mut ServeOptions)| {
        let mut options = ServeOptions::default();
        change(&mut options);
        Checked::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"))
    };
    let from_line = checked(&|options| {
        options.lun = vec![
            "ram:1M,id=5,huge=never,warn_at=80%".into(),
            "null:1T,bs=4K,name=big,ro,iops_max=7,bytes_per_second_max=1M".into(),
            "iscsi://u%0123456789abcdef@h/iqn.2026-11.a:x/3,serial=S".into(),
        ];
        options.listen = vec!["127.0.0.1:1".into()];
        options.srp = vec!["127.0.0.1:1".into()];
        options.admin = Some("none".into());
        options.poll = Some("never".into());
    });
    let again = Checked::from_text(&ServeOptions::default(), &from_line.text, Some(Arc::default()));
    let again = again.unwrap_or_else(|problems| panic!("{problems}\n{}", from_line.text));
    assert_eq!(again.config, from_line.config, "{}", from_line.text);
    assert_eq!(again.shown, from_line.shown);
    assert!(from_line.shown.contains("iscsi://...@h/iqn.2026-11.a:x/3"), "{}", from_line.shown);

    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("lunette.toml");
    let text = FULL.replace("cores = \"0-2\"\n", "").replace("cores = \"1,2\"\n", "");
    std::fs::write(&path, &text).expect("a file");
    let from_file = checked(&|options| options.config = Some(path.clone()));
    assert_eq!(from_file.text, text);
    let shown = &from_file.shown;
    assert!(!shown.contains("a secret of readers") && !shown.contains("another secret"), "{shown}");
    let base = directory.path().display();
    for line in [
        &format!("state_dir = \"{base}/state\"\nadmin = \"{base}/./run/admin.sock\"\n"),
        &format!("file = \"{base}/db.img\"\nsize = \"1G\"\n"),
        "luns = [\"db\", { lun = \"scratch\", number = 300 }]\n",
        "[target.group.chap]\nuser = \"reader\"\nsecret = \"...\"\n",
        "keep_alive = \"20\"\n",
    ] {
        assert!(shown.contains(line), "{line} is missing in:\n{shown}");
    }
}

#[test]
fn an_image_and_how_its_cluster_is_reached_are_read_from_a_file() {
    let lun = |text: &str| {
        Config::from_toml(
            &format!("[[lun]]\n{text}\n[[target]]\nname = 'iqn.2026-11.a:x'"),
            Path::new("/etc/lunette/lunette.toml"),
        )
    };
    let config = lun(
        "rbd = \"p/disk@snap\"\nconf = \"ceph.conf\"\nclient = \"client.me\"\nkeyring = \"/k\"\nluks_passphrase_file = \"p\"",
    );
    let StoreSpec::Rbd { image, names_unit } = config.unwrap_or_else(|p| panic!("{p}")).luns.remove(0).store
    else {
        panic!("it is an image");
    };
    assert_eq!((image.conf, image.keyring), (Some("/etc/lunette/ceph.conf".into()), Some("/k".into())));
    assert_eq!(image.luks_passphrase_file, Some("/etc/lunette/p".into()));
    assert_eq!(
        (image.client.as_deref(), image.snapshot.as_deref(), names_unit),
        (Some("me"), Some("snap"), true)
    );
    for (text, words) in [
        ("ram = \"1M\"\nclient = \"me\"", "only a Ceph image (rbd) has this"),
        ("rbd = \"disk\"", "the image's pool is missing"),
        ("rbd = \"p/disk\"\nram = \"1M\"", "more than one store"),
    ] {
        let problems = lun(text).expect_err(text).to_string();
        assert!(problems.contains(words), "{problems}");
    }
}

#[test]
fn logins_are_redirected_to_portals_that_take_them() {
    let with = |keys: &str, other: &str, portals: &str| {
        format!(
            "portal = [{{ listen = '192.0.2.1', redirect = '192.0.2.2', {keys} }}, {{ listen = '192.0.2.2', {other} }}]
             lun = [{{ ram = '1M' }}]
             [[target]]
             name = 'iqn.2026-11.a:disk'
             {portals}"
        )
    };
    let all = "portals = ['192.0.2.1', '192.0.2.2']";
    for keys in ["", "drain = '30s'"] {
        assert_eq!(good(&with(keys, "", all)).portals[0].redirect, "192.0.2.2:3260".parse().ok());
    }
    for (other, portals, why) in [
        ("drain = '30s'", all, "which is drained"),
        ("redirect = '192.0.2.1'", all, "which redirects them, too"),
        ("transports = ['srp']", all, "which accepts no iSCSI logins"),
        ("", "portals = ['192.0.2.1']", "which does not serve iqn.2026-11.a:disk"),
    ] {
        let found = faults(&with("", other, portals));
        assert!(found.contains(&format!("logins cannot be redirected to `192.0.2.2`, {why}")), "{found}");
        assert!(found.contains("portal[0].redirect"), "{found}");
    }
    let itself = faults(&with("", "", all).replace("redirect = '192.0.2.2'", "redirect = '192.0.2.1'"));
    assert!(itself.contains("logins cannot be redirected to `192.0.2.1`"), "{itself}");
}

#[test]
fn a_redirect_to_an_address_of_this_machine_is_one_to_the_portal_that_listens_there() {
    let with = |portals: &[&str]| {
        let portals = portals.join("}, {");
        format!(
            "portal = [{{ {portals} }}]
             lun = [{{ ram = '1M' }}]
             [[target]]
             name = 'iqn.2026-11.a:disk'"
        )
    };
    let wild = "listen = '0.0.0.0:3261'";
    let (drained, back) = (format!("{wild}, drain = '30s'"), format!("{wild}, redirect = '192.0.2.1:3260'"));
    for (portals, why) in [
        (["listen = '0.0.0.0', redirect = '192.0.2.1:3261'", &back], "which redirects them, too"),
        (["listen = '0.0.0.0', redirect = '192.0.2.1:3261'", &drained], "which is drained"),
        (["listen = '0.0.0.0', redirect = '127.0.0.1:3261'", &drained], "which is drained"),
        (
            ["listen = '[::]', redirect = '[2001:db8::1]', drain = '30s'", wild],
            "which is an address of this portal, which is drained",
        ),
    ] {
        let found = faults(&with(&portals));
        assert!(found.contains("logins cannot be redirected to ") && found.contains(why), "{found}");
        assert!(found.contains("portal[0].redirect"), "{found}");
    }
    for portals in [
        // Another machine's portals have the same ports.
        ["listen = '0.0.0.0', redirect = '192.0.2.2:3260', drain = '30s'", &drained],
        ["listen = '0.0.0.0', redirect = '192.0.2.2:3261'", &drained],
        // `[::]` takes no IPv4 connections.
        ["listen = '[::]:3261', redirect = '192.0.2.1:3261', drain = '30s'", "listen = '192.0.2.9:3261'"],
        // The portal with the exact address accepts its connections.
        ["listen = '0.0.0.0', redirect = '192.0.2.1:3260', drain = '30s'", "listen = '192.0.2.1:3260'"],
        // Logins are accepted at the address to which others of the portal are redirected.
        ["listen = '0.0.0.0', redirect = '192.0.2.1:3260'", wild],
        [
            "listen = '0.0.0.0', redirect = '192.0.2.1:3261'",
            "listen = '0.0.0.0:3261', redirect = '192.0.2.1:3261'",
        ],
    ] {
        good(&with(&portals));
    }
}
