//! Writes the raw form as a file, the reverse of [`super::file`]: the running configuration, including
//! options from the command line.

use super::model::{AdminAddress, AdminPlace, ByDevice, Cluster, Config, Lun, StoreSpec};
use super::raw::*;
use super::rbd::RbdImage;
use super::redact::redact;
use std::path::Path;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

/// What replaces a secret.
const HIDDEN: &str = "...";

/// Whether secrets are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Secrets {
    /// As given.
    Shown,
    /// Left out, as in messages.
    Hidden,
}

/// A verified raw form as a file. Its paths are absolute; those of secrets are resolved against `base`.
pub(super) fn file(raw: &Raw, config: &Config, base: &Path, secrets: Secrets) -> String {
    let mut document = DocumentMut::new();
    let root = document.as_table_mut();
    text(root, "cores", &raw.cores);
    text(root, "poll", &raw.poll);
    if let Some(path) = &config.state_dir {
        root.insert("state_dir", item(path.display().to_string()));
    }
    match &config.admin {
        AdminPlace::Usual => {}
        AdminPlace::Nowhere => _ = root.insert("admin", item("none")),
        AdminPlace::At(AdminAddress::Unix(path)) => {
            _ = root.insert("admin", item(path.display().to_string()))
        }
        AdminPlace::At(AdminAddress::Tcp(address)) => _ = root.insert("admin", item(address.to_string())),
    }
    text(root, "admin_group", &raw.admin_group);
    path(root, "admin_token_file", &raw.admin_token_file, base);
    path(root, "admin_certificate", &raw.admin_certificate, base);
    path(root, "admin_key", &raw.admin_key, base);
    text(root, "login_timeout", &raw.login_timeout);
    text(root, "keep_alive", &raw.keep_alive);
    text(root, "stall_timeout", &raw.stall_timeout);
    number(root, "logins_max", &raw.logins_max);
    text(root, "srp_guid", &raw.srp_guid);
    if let Some((raw, cluster)) = raw.cluster.as_ref().zip(config.cluster.as_ref()) {
        let mut inner = Table::new();
        self::cluster(&mut inner, raw, cluster);
        root.insert("cluster", Item::Table(inner));
    }
    tables(root, "portal", &raw.portals, portal);
    tables(root, "portal_group", &raw.portal_groups, |table, group| {
        number(table, "group", &group.group);
        text(table, "state", &group.state);
        boolean(table, "preferred", &group.preferred);
        boolean(table, "explicit", &group.explicit);
        text(table, "port_ids", &group.port_ids);
    });
    tables(root, "aoe", &raw.aoe, |table, aoe| {
        text(table, "interface", &aoe.interface);
        text(table, "cores", &aoe.cores);
        texts(table, "allow", &aoe.allow);
        texts(table, "deny", &aoe.deny);
    });
    let luns: Vec<(&RawLun, &Lun)> = raw.luns.iter().zip(&config.luns).collect();
    tables(root, "lun", &luns, |table, (raw, lun)| self::lun(table, raw, &lun.store, secrets));
    tables(root, "target", &raw.targets, |table, raw| target(table, raw, base, secrets));
    document.to_string()
}

fn cluster(table: &mut Table, raw: &RawCluster, cluster: &Cluster) {
    text(table, "name", &raw.name);
    text(table, "gateway", &raw.gateway);
    text(table, "pool", &raw.pool);
    image_files(table, &cluster.place);
    text(table, "client", &raw.client);
    text(table, "takeover", &raw.takeover);
    text(table, "osd_map_delay", &raw.osd_map_delay);
}

fn image_files(table: &mut Table, place: &RbdImage) {
    let files = [
        ("conf", &place.conf),
        ("keyring", &place.keyring),
        ("luks_passphrase_file", &place.luks_passphrase_file),
    ];
    for (key, path) in files {
        if let Some(path) = path {
            table.insert(key, item(path.display().to_string()));
        }
    }
}

fn portal(table: &mut Table, portal: &RawPortal) {
    text(table, "name", &portal.name);
    text(table, "listen", &portal.listen);
    text(table, "cores", &portal.cores);
    number(table, "group", &portal.group);
    texts(table, "transports", &portal.transports);
    if let Some(at) = &portal.rdma {
        let value = match at.value {
            ByDevice::No => Value::from(false),
            ByDevice::Too => Value::from(true),
            ByDevice::Only => Value::from("only"),
        };
        table.insert("rdma", item(value));
    }
    text(table, "drain", &portal.drain);
    text(table, "redirect", &portal.redirect);
}

fn lun(table: &mut Table, raw: &RawLun, store: &StoreSpec, secrets: Secrets) {
    // Destructured by name, so that a new field is not forgotten.
    let RawLun {
        place: _,
        name,
        ram,
        null,
        file: _,
        block: _,
        url,
        rbd,
        conf: _,
        client,
        keyring: _,
        luks_passphrase_file: _,
        size,
        huge_pages,
        block_size,
        physical_block_size,
        serial,
        product,
        read_only,
        write_cache,
        thin,
        warn_at,
        removable,
        aoe,
        access,
        limits,
    } = raw;
    text(table, "name", name);
    text(table, "ram", ram);
    text(table, "null", null);
    match store {
        StoreSpec::File { path, .. } => _ = table.insert("file", item(path.display().to_string())),
        StoreSpec::Block { path } => _ = table.insert("block", item(path.display().to_string())),
        StoreSpec::Rbd { image, .. } => {
            text(table, "rbd", rbd);
            image_files(table, image);
            text(table, "client", client);
        }
        StoreSpec::Null { .. } | StoreSpec::Ram { .. } | StoreSpec::Remote { .. } | StoreSpec::Nbd { .. } => {
        }
    }
    if let Some(at) = url {
        let shown = match secrets {
            Secrets::Shown => at.value.clone(),
            Secrets::Hidden => redact(&at.value),
        };
        table.insert("url", item(shown));
    }
    text(table, "size", size);
    text(table, "huge_pages", huge_pages);
    text(table, "block_size", block_size);
    text(table, "physical_block_size", physical_block_size);
    text(table, "serial", serial);
    text(table, "product", product);
    boolean(table, "read_only", read_only);
    boolean(table, "write_cache", write_cache);
    boolean(table, "thin", thin);
    text(table, "warn_at", warn_at);
    boolean(table, "removable", removable);
    text(table, "aoe", aoe);
    text(table, "access", access);
    self::limits(table, limits);
}

fn limits(table: &mut Table, limits: &RawLimits) {
    number(table, "iops_max", &limits.iops_max);
    number(table, "iops_burst", &limits.iops_burst);
    text(table, "bytes_per_second_max", &limits.bytes_per_second_max);
    text(table, "bytes_burst", &limits.bytes_burst);
}

fn target(table: &mut Table, target: &RawTarget, base: &Path, secrets: Secrets) {
    text(table, "name", &target.name);
    text(table, "alias", &target.alias);
    number(table, "sessions_max", &target.sessions_max);
    number(table, "queue_depth", &target.queue_depth);
    texts(table, "portals", &target.portals);
    lun_list(table, &target.luns);
    tables(table, "group", &target.groups, |table, group| {
        text(table, "name", &group.name);
        texts(table, "initiators", &group.initiators);
        texts(table, "networks", &group.networks);
        boolean(table, "deny", &group.deny);
        boolean(table, "read_only", &group.read_only);
        lun_list(table, &group.luns);
        number(table, "queue_depth", &group.queue_depth);
        limits(table, &group.limits);
        if let Some(raw) = &group.chap {
            let mut inner = Table::new();
            chap(&mut inner, raw, base, secrets);
            table.insert("chap", Item::Table(inner));
        }
    });
}

fn chap(table: &mut Table, chap: &RawChap, base: &Path, secrets: Secrets) {
    let secret = |table: &mut Table, key, at: &Text| {
        if let Some(at) = at {
            table.insert(key, item(if secrets == Secrets::Shown { at.value.as_str() } else { HIDDEN }));
        }
    };
    text(table, "user", &chap.user);
    secret(table, "secret", &chap.secret);
    path(table, "secret_file", &chap.secret_file, base);
    text(table, "mutual_user", &chap.mutual_user);
    secret(table, "mutual_secret", &chap.mutual_secret);
    path(table, "mutual_secret_file", &chap.mutual_secret_file, base);
    texts(table, "algorithms", &chap.algorithms);
}

fn lun_list(table: &mut Table, list: &Option<Vec<RawLunRef>>) {
    let Some(list) = list else { return };
    let mut array = Array::new();
    for (position, entry) in list.iter().enumerate() {
        let Some(lun) = &entry.lun else { continue };
        array.push(reference(&lun.value, entry.number.as_ref().map(|at| at.value.as_str()), position));
    }
    table.insert("luns", item(array));
}

/// A LUN in a list: just its name if its number is its position.
fn reference(lun: &str, number: Option<&str>, position: usize) -> Value {
    match number.and_then(|number| number.parse::<i64>().ok()) {
        Some(number) if usize::try_from(number) != Ok(position) => {
            let mut entry = InlineTable::new();
            entry.insert("lun", lun.into());
            entry.insert("number", number.into());
            entry.into()
        }
        Some(_) | None => lun.into(),
    }
}

fn tables<T>(into: &mut Table, key: &str, all: &[T], mut write: impl FnMut(&mut Table, &T)) {
    if all.is_empty() {
        return;
    }
    let mut array = ArrayOfTables::new();
    for one in all {
        let mut table = Table::new();
        write(&mut table, one);
        array.push(table);
    }
    into.insert(key, Item::ArrayOfTables(array));
}

fn item(value: impl Into<Value>) -> Item {
    Item::Value(value.into())
}

fn text(table: &mut Table, key: &str, at: &Text) {
    if let Some(at) = at {
        table.insert(key, item(at.value.as_str()));
    }
}

fn path(table: &mut Table, key: &str, at: &Text, base: &Path) {
    if let Some(at) = at {
        table.insert(key, item(base.join(&at.value).display().to_string()));
    }
}

fn number(table: &mut Table, key: &str, at: &Text) {
    if let Some(number) = at.as_ref().and_then(|at| at.value.parse::<i64>().ok()) {
        table.insert(key, item(number));
    }
}

fn boolean(table: &mut Table, key: &str, at: &Switch) {
    if let Some(at) = at {
        table.insert(key, item(at.value));
    }
}

fn texts(table: &mut Table, key: &str, list: &Option<Vec<At<String>>>) {
    if let Some(list) = list {
        table.insert(key, item(list.iter().map(|at| at.value.as_str()).collect::<Array>()));
    }
}
