//! Parses TOML into the raw form.

use super::document::{Table, item_place, read_document, read_table, wrong_type};
use super::model::{ByDevice, FILE_BYTES_MAX};
use super::problems::{Collector, Problems};
use super::raw::*;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::DeValue;

/// Reads the text of a configuration file.
pub(super) fn load(path: &Path) -> Result<String, Problems> {
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(Problems::of_file(
            path,
            format!("cannot be read: {error}"),
            "name a readable TOML file in UTF-8",
        )),
        Ok(bytes) if u64::try_from(bytes).is_ok_and(|bytes| bytes > FILE_BYTES_MAX) => {
            Err(Problems::of_file(path, "the file is too large".into(), "keep it below 16 MiB"))
        }
        Ok(_) => Ok(text),
    }
}

/// Reads the whole file; invalid parts are recorded and left out. `None`: it is not TOML at all.
pub(super) fn read(text: &str, problems: &mut Collector<'_>) -> Option<Raw> {
    read_document(text, problems, root)
}

fn root(root: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> Raw {
    Raw {
        cores: root.text("cores", problems),
        poll: root.text("poll", problems),
        state_dir: root.text("state_dir", problems).map(|at| At::new(PathBuf::from(&at.value), &at.place)),
        admin: root.text("admin", problems),
        admin_group: root.text("admin_group", problems),
        admin_token_file: root.text("admin_token_file", problems),
        admin_certificate: root.text("admin_certificate", problems),
        admin_key: root.text("admin_key", problems),
        login_timeout: root.text_or_number("login_timeout", problems),
        keep_alive: root.text_or_number("keep_alive", problems),
        stall_timeout: root.text_or_number("stall_timeout", problems),
        logins_max: root.number("logins_max", problems),
        srp_guid: root.text("srp_guid", problems),
        cluster: root.table("cluster", problems, cluster),
        portals: root.tables("portal", problems, portal),
        portal_groups: root.tables("portal_group", problems, portal_group),
        aoe: root.tables("aoe", problems, aoe),
        luns: root.tables("lun", problems, lun),
        targets: root.tables("target", problems, target),
    }
}

fn cluster(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawCluster {
    RawCluster {
        place: table.place.clone(),
        name: table.text("name", problems),
        gateway: table.text("gateway", problems),
        pool: table.text("pool", problems),
        conf: table.text("conf", problems),
        client: table.text("client", problems),
        keyring: table.text("keyring", problems),
        takeover: table.text_or_number("takeover", problems),
        osd_map_delay: table.text_or_number("osd_map_delay", problems),
    }
}

fn portal(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawPortal {
    RawPortal {
        place: table.place.clone(),
        name: table.text("name", problems),
        listen: table.text("listen", problems),
        cores: table.text("cores", problems),
        group: table.number("group", problems),
        transports: table.texts("transports", problems),
        rdma: by_device(table, "rdma", problems),
        drain: table.text_or_number("drain", problems),
        redirect: table.text("redirect", problems),
    }
}

fn portal_group(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawPortalGroup {
    RawPortalGroup {
        place: table.place.clone(),
        group: table.number("group", problems),
        state: table.text("state", problems),
        preferred: table.boolean("preferred", problems),
        explicit: table.boolean("explicit", problems),
        port_ids: table.text("port_ids", problems),
    }
}

fn aoe(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawAoe {
    RawAoe {
        place: table.place.clone(),
        interface: table.text("interface", problems),
        cores: table.text("cores", problems),
        allow: table.texts("allow", problems),
        deny: table.texts("deny", problems),
    }
}

fn lun(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawLun {
    RawLun {
        place: table.place.clone(),
        name: table.text("name", problems),
        ram: table.text_or_number("ram", problems),
        null: table.text_or_number("null", problems),
        file: table.text("file", problems),
        block: table.text("block", problems),
        url: table.text("url", problems),
        rbd: table.text("rbd", problems),
        conf: table.text("conf", problems),
        client: table.text("client", problems),
        keyring: table.text("keyring", problems),
        luks_passphrase_file: table.text("luks_passphrase_file", problems),
        size: table.text_or_number("size", problems),
        huge_pages: table.text("huge_pages", problems),
        block_size: table.text_or_number("block_size", problems),
        physical_block_size: table.text_or_number("physical_block_size", problems),
        serial: table.text("serial", problems),
        product: table.text("product", problems),
        read_only: table.boolean("read_only", problems),
        write_cache: table.boolean("write_cache", problems),
        thin: table.boolean("thin", problems),
        warn_at: table.text("warn_at", problems),
        removable: table.boolean("removable", problems),
        aoe: table.text("aoe", problems),
        access: table.text("access", problems),
        limits: limits(table, problems),
    }
}

fn limits(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawLimits {
    RawLimits {
        iops_max: table.number("iops_max", problems),
        iops_burst: table.number("iops_burst", problems),
        bytes_per_second_max: table.text_or_number("bytes_per_second_max", problems),
        bytes_burst: table.text_or_number("bytes_burst", problems),
    }
}

fn target(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawTarget {
    RawTarget {
        place: table.place.clone(),
        name: table.text("name", problems),
        alias: table.text("alias", problems),
        sessions_max: table.number("sessions_max", problems),
        queue_depth: table.number("queue_depth", problems),
        portals: table.texts("portals", problems),
        luns: lun_list(table, "luns", problems),
        groups: table.tables("group", problems, group),
    }
}

fn group(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawGroup {
    RawGroup {
        place: table.place.clone(),
        name: table.text("name", problems),
        initiators: table.texts("initiators", problems),
        networks: table.texts("networks", problems),
        deny: table.boolean("deny", problems),
        read_only: table.boolean("read_only", problems),
        luns: lun_list(table, "luns", problems),
        chap: table.table("chap", problems, chap),
        queue_depth: table.number("queue_depth", problems),
        limits: limits(table, problems),
    }
}

fn chap(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawChap {
    RawChap {
        place: table.place.clone(),
        user: table.text("user", problems),
        secret: table.text("secret", problems),
        secret_file: table.text("secret_file", problems),
        mutual_user: table.text("mutual_user", problems),
        mutual_secret: table.text("mutual_secret", problems),
        mutual_secret_file: table.text("mutual_secret_file", problems),
        algorithms: table.texts("algorithms", problems),
    }
}

fn by_device(
    table: &mut Table<'_, '_>,
    key: &'static str,
    problems: &mut Collector<'_>,
) -> Option<At<ByDevice>> {
    let (place, value) = table.take(key)?;
    match (value.as_bool(), value.as_str()) {
        (Some(false), _) => Some(At::new(ByDevice::No, &place)),
        (Some(true), _) => Some(At::new(ByDevice::Too, &place)),
        (None, Some("only")) => Some(At::new(ByDevice::Only, &place)),
        (None, _) => wrong_type(&place, value, "true, false or \"only\"", problems),
    }
}

/// `["disk", { lun = "other", number = 5 }]`.
fn lun_list(
    table: &mut Table<'_, '_>,
    key: &'static str,
    problems: &mut Collector<'_>,
) -> Option<Vec<RawLunRef>> {
    let (place, value) = table.take(key)?;
    let Some(array) = value.as_array() else {
        return wrong_type(&place, value, "an array of LUN names", problems);
    };
    let reference = |(index, item): (usize, &Spanned<DeValue<'_>>)| {
        let place = item_place(&place, index, item);
        match item.get_ref() {
            DeValue::String(name) => {
                let lun = Some(At::new(name.to_string(), &place));
                Some(RawLunRef { place, lun, number: None })
            }
            DeValue::Table(entries) => {
                Some(read_table(entries, place, problems, |table, problems| RawLunRef {
                    place: table.place.clone(),
                    lun: table.text("lun", problems),
                    number: table.number("number", problems),
                }))
            }
            other => wrong_type(&place, other, "a LUN's name or { lun = \"name\", number = 0 }", problems),
        }
    };
    Some(array.iter().enumerate().filter_map(reference).collect())
}
