use super::super::Options;
use super::*;
use std::io::Write as _;

fn parse(text: &str) -> Result<Config, Problems> {
    Config::from_toml(text, Path::new("/etc/lunette/lunette.toml"), &Options::default())
}

fn errors(text: &str) -> String {
    parse(text).expect_err("wrong on purpose").to_string()
}

const GOOD: &str = r#"
poll = "never"
state_dir = "state"

[[portal]]
name = "front"
listen = "127.0.0.1:3261"

[[portal]]
listen = "[::1]:3262"
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

[[target]]
name = "iqn.2026-11.io.Lunette:DB"
portals = ["front"]
luns = [{ number = 0, lun = "db" }, { number = 300, lun = "scratch" }]

[[target.group]]
name = "readers"
initiators = ["iqn.2026-11.*:report?"]
networks = ["192.0.2.0/24", "2001:db8::/32"]
read_only = true
luns = [{ number = 0, lun = "db" }]
chap = { user = "reader", secret = "a secret of the readers", mutual_user = "us", mutual_secret = "another secret of ours" }

[[target.group]]
name = "nobody else"
deny = true
"#;

#[test]
fn a_file_with_everything_is_understood() {
    let config = parse(GOOD).expect("good");
    assert_eq!(config.poll, Poll::Never);
    assert_eq!(config.state_dir.as_deref(), Some(Path::new("/etc/lunette/state")));
    assert_eq!(config.portals[1].group, 2);
    assert_eq!(config.luns[0].physical_block_bytes, 4096);
    let StoreSpec::File { path, size } = &config.luns[0].store else { panic!("a file") };
    assert_eq!((path.as_path(), *size), (Path::new("/etc/lunette/db.img"), Some(1 << 30)));
    let target = &config.targets[0];
    assert_eq!(target.name, "iqn.2026-11.io.lunette:db");
    assert_eq!((target.portals.as_slice(), target.luns.as_slice()), (&[0][..], &[(0, 0), (300, 1)][..]));
    assert!(target.groups[0].read_only && target.groups[1].deny);
    assert_eq!(target.groups[0].chap.as_ref().map(|chap| chap.user.as_str()), Some("reader"));
    assert!(!format!("{config:?}").contains("a secret"), "secrets do not reach the log");
}

#[test]
fn all_errors_come_at_once_with_their_places() {
    let text = r#"
poll = "sometimes"
[[lun]]
name = "a"
ram = "1000"
[[lun]]
name = "a"
file = "x"
ram = "1M"
[[target]]
name = "disk"
luns = [{ number = 0, lun = "b" }, { number = 1, lun = "a" }, { number = 1, lun = "a" }]
portals = ["back"]
[[target.group]]
name = "g"
networks = ["192.0.2.1/24"]
chap = { user = "u", secret = "short" }
"#;
    let errors = errors(text);
    for expected in [
        "poll: `sometimes` is none of",
        "lun[0] (line 3): size 1000 is not a multiple of the block size 512",
        "lun[1] (line 6): a LUN has exactly one of",
        "another LUN is named a already",
        "target[0] (line 10).name: `disk` is no iSCSI name",
        "there is no LUN `b`; there are a",
        "LUN number 1 is given twice",
        "there is no portal `back`",
        "`192.0.2.1/24` is no network",
        "shorter than 12 bytes",
    ] {
        assert!(errors.contains(expected), "{expected:?} is missing in:\n{errors}");
    }
}

#[test]
fn a_misspelt_key_is_named_with_its_line() {
    let errors = errors("[[lun]]\nram = \"1M\"\nblocksize = 512\n");
    assert!(
        errors.contains("line 3") && errors.contains("blocksize") && errors.contains("block_size"),
        "{errors}"
    );
}

#[test]
fn a_secret_file_must_be_private() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("secret");
    fs::File::create(&path).and_then(|mut file| file.write_all(b"twelve bytes or more\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("changed");
    assert!(read_secret(&path).expect_err("readable by all").contains("chmod 600"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("changed");
    assert_eq!(read_secret(&path).expect("private"), b"twelve bytes or more");
}

#[test]
fn options_make_the_same_configuration() {
    let config = Config::from_options(&Options::default()).expect("good");
    assert_eq!(config.targets[0].name, super::super::DEFAULT_TARGET);
    assert_eq!(config.portals[0].listen, LISTEN);
    assert_eq!(config.luns[0].store, StoreSpec::Ram { size: 1 << 30 });
    let options = Options {
        listen: vec!["[::1]:0".into(), "127.0.0.1".into()],
        luns: vec!["ram:1M,id=5".into(), "null:1T,bs=4K".into()],
        ..Options::default()
    };
    let config = Config::from_options(&options).expect("good");
    assert_eq!(config.targets[0].luns, [(1, 1), (5, 0)]);
    assert_eq!(config.portals[1].listen.port(), 3260);
    assert_eq!(config.luns[1].physical_block_bytes, 4096);
}

#[test]
fn names() {
    for good in [
        "iqn.2026-11.io.lunette:disk",
        "iqn.2001-04.com.example",
        "eui.02004567a425678d",
        "naa.52004567ba64678d",
    ] {
        assert_eq!(check_name(good), Ok(()), "{good}");
    }
    for bad in ["", "disk", "iqn.", "iqn.2026-13.a", "iqn.2026-11", "iqn.2026-11.a b", "eui.xyz", "naa.12"] {
        assert!(check_name(bad).is_err(), "{bad}");
    }
}
