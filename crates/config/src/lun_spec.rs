//! LUN SPEC: the one-line form of a LUN, such as `file:/srv/disk.img,size=10G,bs=4096,ro`.

use super::model::LUN_NUMBER_MAX;
use super::problems::{Collector, Fault, Problems, suggest};
use super::raw::{At, Place, RawLun, Switch, Text};
use super::redact::redact;
use super::scalar;
use serde_json::{Map, Value as Json};

/// Kinds of store.
const STORES: [&str; 10] = ["ram", "null", "file", "block", "rbd", "nbd", "iscsi", "iser", "srp", "aoe"];
const OPTIONS: [&str; 21] = [
    "size",
    "huge",
    "bs",
    "pbs",
    "ro",
    "serial",
    "name",
    "wcache",
    "thin",
    "removable",
    "id",
    "aoe",
    "iops_max",
    "iops_burst",
    "bytes_per_second_max",
    "bytes_burst",
    "warn_at",
    "conf",
    "client",
    "keyring",
    "luks_passphrase_file",
];

/// Parses a SPEC into the raw form of a LUN, and its number if it has one.
pub(super) fn parse(text: &str, problems: &mut Collector<'_>) -> (RawLun, Text) {
    let place = Place::option(&format!("--lun {}", redact(text)));
    let mut lun = RawLun { place: place.clone(), ..RawLun::default() };
    let mut number = None;
    let mut parts = split(text).into_iter();
    let Some((store, rest)) = parts.next().as_deref().and_then(|first| owned_split(first, ':')) else {
        let fix = "write KIND:ARGUMENT, such as ram:1G, null:1T, file:/srv/disk.img,size=10G, block:/dev/sdb, \
        rbd:POOL/IMAGE, \
                   nbd://HOST/EXPORT or iscsi://HOST/TARGET/LUN";
        problems.add(&place, Fault::new("a LUN starts with its store", fix));
        return (lun, number);
    };
    let (slot, rest) = match store.as_str() {
        "ram" => (Some(&mut lun.ram), rest),
        "null" => (Some(&mut lun.null), rest),
        "file" => (Some(&mut lun.file), rest),
        "block" => (Some(&mut lun.block), rest),
        "rbd" => (Some(&mut lun.rbd), rest),
        "iscsi" | "iser" | "srp" | "aoe" | "nbd" | "nbds" | "nbd+unix" | "nbds+unix" => {
            (Some(&mut lun.url), format!("{store}:{rest}"))
        }
        _ => (None, rest),
    };
    match slot {
        Some(slot) => *slot = Some(At::new(rest, &place)),
        None => {
            let what = format!("{} is not a kind of store", quoted(&store, text));
            let fault = Fault::new(what, suggest(&store, STORES));
            problems.add(&place, fault);
        }
    }
    for part in parts {
        if let Err(fault) = option(&part, text, &place, &mut lun, &mut number) {
            problems.add(&place, fault);
        }
    }
    (lun, number)
}

/// A LUN from the command line, with the keys of the file.
#[derive(Clone, PartialEq, Debug)]
pub struct LunSpec {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its number, if it has one.
    pub number: Option<u16>,
    /// The keys of its table and their values, without the name. Paths are absolute.
    pub settings: Map<String, Json>,
}

impl LunSpec {
    /// Parses a SPEC.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn parse(text: &str) -> Result<LunSpec, Problems> {
        let mut problems = Collector::new(None);
        let (lun, number) = parse(text, &mut problems);
        let number = number.and_then(|at| {
            problems.check(&at.place, scalar::number(&at.value, 0, u64::from(LUN_NUMBER_MAX)))
        });
        let mut settings = Map::new();
        let absolute = |at: &At<String>| {
            let path = std::path::absolute(&at.value).ok().and_then(|path| path.to_str().map(str::to_owned));
            At::new(path.unwrap_or_else(|| at.value.clone()), &at.place)
        };
        let (file, block) = (lun.file.as_ref().map(absolute), lun.block.as_ref().map(absolute));
        let (conf, keyring) = (lun.conf.as_ref().map(absolute), lun.keyring.as_ref().map(absolute));
        let luks_passphrase_file = lun.luks_passphrase_file.as_ref().map(absolute);
        let texts = [
            ("ram", &lun.ram),
            ("null", &lun.null),
            ("file", &file),
            ("block", &block),
            ("url", &lun.url),
            ("rbd", &lun.rbd),
            ("conf", &conf),
            ("client", &lun.client),
            ("keyring", &keyring),
            ("luks_passphrase_file", &luks_passphrase_file),
            ("size", &lun.size),
            ("huge_pages", &lun.huge_pages),
            ("block_size", &lun.block_size),
            ("physical_block_size", &lun.physical_block_size),
            ("serial", &lun.serial),
            ("warn_at", &lun.warn_at),
            ("aoe", &lun.aoe),
            ("bytes_per_second_max", &lun.limits.bytes_per_second_max),
            ("bytes_burst", &lun.limits.bytes_burst),
        ];
        for (key, at) in texts.into_iter().filter_map(|(key, at)| Some((key, at.as_ref()?))) {
            settings.insert(key.into(), at.value.clone().into());
        }
        let numbers = [("iops_max", &lun.limits.iops_max), ("iops_burst", &lun.limits.iops_burst)];
        for (key, at) in numbers.into_iter().filter_map(|(key, at)| Some((key, at.as_ref()?))) {
            let number = problems.check(&at.place, scalar::number(&at.value, 1, u64::MAX));
            settings.insert(key.into(), number.into());
        }
        let switches = [
            ("read_only", &lun.read_only),
            ("write_cache", &lun.write_cache),
            ("thin", &lun.thin),
            ("removable", &lun.removable),
        ];
        for (key, at) in switches.into_iter().filter_map(|(key, at)| Some((key, at.as_ref()?))) {
            settings.insert(key.into(), at.value.into());
        }
        let name = lun.name.map(|at| at.value);
        let number = number.and_then(|number| u16::try_from(number).ok());
        problems.finish(Some(LunSpec { name, number, settings }))
    }
}

/// A part of a SPEC as it may be shown: it could be part of a secret with an unescaped comma.
fn quoted(part: &str, spec: &str) -> String {
    if redact(spec) == spec { format!("`{part}`") } else { "part of this".into() }
}

fn option(part: &str, spec: &str, place: &Place, lun: &mut RawLun, number: &mut Text) -> Result<(), Fault> {
    let (key, value) = match owned_split(part, '=') {
        Some((key, value)) => (key, Some(value)),
        None => (part.to_string(), None),
    };
    match key.as_str() {
        "size" => set(&mut lun.size, &key, value, place),
        "huge" => set(&mut lun.huge_pages, &key, value, place),
        "bs" => set(&mut lun.block_size, &key, value, place),
        "pbs" => set(&mut lun.physical_block_size, &key, value, place),
        "serial" => set(&mut lun.serial, &key, value, place),
        "name" => set(&mut lun.name, &key, value, place),
        "id" => set(number, &key, value, place),
        "aoe" => set(&mut lun.aoe, &key, value, place),
        "iops_max" => set(&mut lun.limits.iops_max, &key, value, place),
        "iops_burst" => set(&mut lun.limits.iops_burst, &key, value, place),
        "bytes_per_second_max" => set(&mut lun.limits.bytes_per_second_max, &key, value, place),
        "bytes_burst" => set(&mut lun.limits.bytes_burst, &key, value, place),
        "warn_at" => set(&mut lun.warn_at, &key, value, place),
        "conf" => set(&mut lun.conf, &key, value, place),
        "client" => set(&mut lun.client, &key, value, place),
        "keyring" => set(&mut lun.keyring, &key, value, place),
        "luks_passphrase_file" => set(&mut lun.luks_passphrase_file, &key, value, place),
        "ro" => flag(&mut lun.read_only, &key, value, place),
        "removable" => flag(&mut lun.removable, &key, value, place),
        "wcache" => on_off(&mut lun.write_cache, &key, value, place),
        "thin" => on_off(&mut lun.thin, &key, value, place),
        _ => Err(Fault::new(format!("{} is not a LUN option", quoted(&key, spec)), suggest(&key, OPTIONS))),
    }
}

fn set(slot: &mut Text, key: &str, value: Option<String>, place: &Place) -> Result<(), Fault> {
    let value =
        value.ok_or_else(|| Fault::new(format!("`{key}` has no value"), format!("write {key}=VALUE")))?;
    fill(slot, key, value, place)
}

fn flag(slot: &mut Switch, key: &str, value: Option<String>, place: &Place) -> Result<(), Fault> {
    match value {
        None => fill(slot, key, true, place),
        Some(_) => Err(Fault::new(format!("`{key}` takes no value"), format!("write {key} alone"))),
    }
}

fn on_off(slot: &mut Switch, key: &str, value: Option<String>, place: &Place) -> Result<(), Fault> {
    match value.as_deref() {
        Some("on") => fill(slot, key, true, place),
        Some("off") => fill(slot, key, false, place),
        Some(_) | None => {
            Err(Fault::new(format!("`{key}` is on or off"), format!("write {key}=on or {key}=off")))
        }
    }
}

fn fill<T>(slot: &mut Option<At<T>>, key: &str, value: T, place: &Place) -> Result<(), Fault> {
    if slot.is_some() {
        return Err(Fault::new(format!("`{key}` is given twice"), "keep one of them"));
    }
    *slot = Some(At::new(value, place));
    Ok(())
}

/// Splits at commas; `\,` is a literal comma and `\\` a literal backslash.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let part = match c {
            ',' => {
                parts.push(String::new());
                continue;
            }
            '\\' => rest.next_if(|next| matches!(next, ',' | '\\')).unwrap_or('\\'),
            other => other,
        };
        if let Some(last) = parts.last_mut() {
            last.push(part);
        }
    }
    parts
}

fn owned_split(text: &str, at: char) -> Option<(String, String)> {
    text.split_once(at).map(|(left, right)| (left.to_string(), right.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn good(text: &str) -> (RawLun, Text) {
        let mut problems = Collector::new(None);
        let parsed = parse(text, &mut problems);
        problems.finish(Some(parsed)).unwrap_or_else(|p| panic!("{p}"))
    }

    fn fault(text: &str) -> String {
        let mut problems = Collector::new(None);
        parse(text, &mut problems);
        problems.finish(Some(())).unwrap_err().to_string()
    }

    fn value(text: &Text) -> Option<&str> {
        text.as_ref().map(|at| at.value.as_str())
    }

    #[test]
    fn every_option_is_read() {
        let (lun, number) = good(
            "file:/srv/a,size=1G,bs=4096,pbs=8192,ro,serial=S 1,name=a,wcache=off,thin=on,removable,id=7,aoe=1.2",
        );
        assert_eq!(value(&lun.file), Some("/srv/a"));
        assert_eq!(value(&lun.size), Some("1G"));
        assert_eq!(value(&lun.block_size), Some("4096"));
        assert_eq!(value(&lun.physical_block_size), Some("8192"));
        assert_eq!(value(&lun.serial), Some("S 1"));
        assert_eq!(value(&lun.name), Some("a"));
        let switches = [&lun.read_only, &lun.write_cache, &lun.thin, &lun.removable];
        assert_eq!(
            switches.map(|s| s.as_ref().map(|at| at.value)),
            [Some(true), Some(false), Some(true), Some(true)]
        );
        assert_eq!((value(&number), value(&lun.aoe)), (Some("7"), Some("1.2")));
    }

    #[test]
    fn paths_may_hold_commas_colons_and_equal_signs() {
        assert_eq!(value(&good(r"file:/a\,b:c=d\\e\f,size=1M").0.file), Some(r"/a,b:c=d\e\f"));
        assert_eq!(
            value(&good("block:/dev/disk/by-path/pci-0000:00").0.block),
            Some("/dev/disk/by-path/pci-0000:00")
        );
    }

    #[test]
    fn a_url_is_a_store() {
        let (lun, _) = good("iscsi://me%a\\,b@h:860/iqn.2026-11.io.lunette:a/3?data_digest=crc32c,ro");
        let url = "iscsi://me%a,b@h:860/iqn.2026-11.io.lunette:a/3?data_digest=crc32c";
        assert_eq!(value(&lun.url), Some(url));
        assert!(lun.read_only.is_some());
        for url in [
            "iser://h/iqn.2026-11.io.lunette:a/3",
            "srp://h/024c750000000001/3?imm=off",
            "aoe://eth0/1.1",
            "nbd://h/disk",
            "nbd+unix:///disk?socket=/run/s",
        ] {
            assert_eq!(value(&good(url).0.url), Some(url));
        }
    }

    #[test]
    fn an_image_is_a_store_with_options_of_its_own() {
        let (lun, _) =
            good("rbd:pool/space/disk@snap,conf=/a.conf,client=me,keyring=/k,luks_passphrase_file=/p,ro");
        assert_eq!(value(&lun.rbd), Some("pool/space/disk@snap"));
        assert_eq!([&lun.conf, &lun.client, &lun.keyring].map(value), ["/a.conf", "me", "/k"].map(Some));
    }

    #[test]
    fn faults_name_the_option_and_the_fix() {
        assert!(fault("1G").contains("ram:1G"));
        assert!(fault("ram:1G,sise=2").contains("did you mean `size`?"));
        assert!(fault("ram:1G,bs").contains("write bs=VALUE"));
        assert!(fault("ram:1G,ro=yes").contains("takes no value"));
        assert!(fault("ram:1G,thin=yes").contains("thin=on or thin=off"));
        assert!(fault("ram:1G,bs=512,bs=512").contains("twice"));
        assert!(fault("rem:1G").contains("did you mean `ram`?"));
        assert!(fault("ram:1G,").contains("`` is not a LUN option"));
        assert_eq!(fault("ram:1G,x1,y1").lines().count(), 2, "all faults at once");
    }

    #[test]
    fn no_part_of_a_secret_is_shown() {
        for text in [
            "iscsi://me%Geheimnis@h/iqn.2026-11.a:b/0,x=1",
            "iscsi://me%a,Geheimnis@h/iqn.2026-11.a:b/0",
            "iscsi:/me%Geheimnis@h/iqn.2026-11.a:b/0,y",
            "me%Geheimnis:b@h/iqn.2026-11.a:b/0",
            "isci://me%Geheimnis@h/iqn.2026-11.a:b/0",
            "iscsi://h/iqn.2026-11.a:b/0?target_password=a,Geheimnis",
            "iscsi//h/iqn.2026-11.a:b/0?target_password=Geheimnis",
        ] {
            assert!(!fault(text).contains("Geheimnis"), "{}", fault(text));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,80}") {
            parse(&text, &mut Collector::new(None));
        }

        #[test]
        fn an_escaped_path_comes_back(path in "[a-z,\\\\:= é]{1,30}") {
            let escaped = path.replace('\\', r"\\").replace(',', r"\,");
            let (lun, _) = good(&format!("file:{escaped},ro"));
            prop_assert_eq!(value(&lun.file), Some(path.as_str()));
        }
    }
}
