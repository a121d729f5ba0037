//! The form into which both a file and the command line are parsed: text with places, unverified.

use super::model::ByDevice;
pub(super) use super::place::{At, Place};
use std::path::PathBuf;

/// Text at a place; numbers remain text until verified.
pub(super) type Text = Option<At<String>>;
/// A boolean.
pub(super) type Switch = Option<At<bool>>;

/// A whole configuration.
/// Its fields are one for each section or global key of the file.
#[derive(Default)]
pub(super) struct Raw {
    pub(super) cores: Text,
    pub(super) poll: Text,
    pub(super) state_dir: Option<At<PathBuf>>,
    pub(super) admin: Text,
    pub(super) admin_group: Text,
    pub(super) admin_token_file: Text,
    pub(super) admin_certificate: Text,
    pub(super) admin_key: Text,
    pub(super) login_timeout: Text,
    pub(super) keep_alive: Text,
    pub(super) stall_timeout: Text,
    pub(super) logins_max: Text,
    pub(super) srp_guid: Text,
    pub(super) cluster: Option<RawCluster>,
    pub(super) portals: Vec<RawPortal>,
    pub(super) portal_groups: Vec<RawPortalGroup>,
    pub(super) aoe: Vec<RawAoe>,
    pub(super) luns: Vec<RawLun>,
    pub(super) targets: Vec<RawTarget>,
}

#[derive(Default)]
pub(super) struct RawCluster {
    pub(super) place: Place,
    pub(super) name: Text,
    pub(super) gateway: Text,
    pub(super) pool: Text,
    pub(super) conf: Text,
    pub(super) client: Text,
    pub(super) keyring: Text,
    pub(super) takeover: Text,
    pub(super) osd_map_delay: Text,
}

#[derive(Default)]
pub(super) struct RawPortal {
    pub(super) place: Place,
    pub(super) name: Text,
    pub(super) listen: Text,
    pub(super) cores: Text,
    pub(super) group: Text,
    pub(super) transports: Option<Vec<At<String>>>,
    pub(super) rdma: Option<At<ByDevice>>,
    pub(super) drain: Text,
    pub(super) redirect: Text,
}

impl RawPortal {
    /// A portal from a `--listen`.
    pub(super) fn at(address: &str) -> RawPortal {
        let place = Place::option("--listen");
        RawPortal { listen: Some(At::new(address.into(), &place)), place, ..RawPortal::default() }
    }
}

#[derive(Default)]
pub(super) struct RawPortalGroup {
    pub(super) place: Place,
    pub(super) group: Text,
    pub(super) state: Text,
    pub(super) preferred: Switch,
    pub(super) explicit: Switch,
    pub(super) port_ids: Text,
}

#[derive(Default)]
pub(super) struct RawAoe {
    pub(super) place: Place,
    pub(super) interface: Text,
    pub(super) cores: Text,
    pub(super) allow: Option<Vec<At<String>>>,
    pub(super) deny: Option<Vec<At<String>>>,
}

/// `[[lun]]` as written.
/// Its fields are the keys, one for each.
#[derive(Default, Debug)]
pub(super) struct RawLun {
    pub(super) place: Place,
    pub(super) name: Text,
    pub(super) ram: Text,
    pub(super) null: Text,
    pub(super) file: Text,
    pub(super) block: Text,
    pub(super) url: Text,
    pub(super) rbd: Text,
    pub(super) conf: Text,
    pub(super) client: Text,
    pub(super) keyring: Text,
    pub(super) luks_passphrase_file: Text,
    pub(super) size: Text,
    pub(super) huge_pages: Text,
    pub(super) block_size: Text,
    pub(super) physical_block_size: Text,
    pub(super) serial: Text,
    pub(super) product: Text,
    pub(super) read_only: Switch,
    pub(super) write_cache: Switch,
    pub(super) thin: Switch,
    pub(super) warn_at: Text,
    pub(super) removable: Switch,
    pub(super) aoe: Text,
    pub(super) access: Text,
    pub(super) limits: RawLimits,
}

#[derive(Default, Debug)]
pub(super) struct RawLimits {
    pub(super) iops_max: Text,
    pub(super) iops_burst: Text,
    pub(super) bytes_per_second_max: Text,
    pub(super) bytes_burst: Text,
}

#[derive(Default)]
pub(super) struct RawTarget {
    pub(super) place: Place,
    pub(super) name: Text,
    pub(super) alias: Text,
    pub(super) sessions_max: Text,
    pub(super) queue_depth: Text,
    pub(super) portals: Option<Vec<At<String>>>,
    pub(super) luns: Option<Vec<RawLunRef>>,
    pub(super) groups: Vec<RawGroup>,
}

/// A LUN in the list of a target or a group; without a number, its position in the list is its number.
pub(super) struct RawLunRef {
    pub(super) place: Place,
    pub(super) lun: Text,
    pub(super) number: Text,
}

#[derive(Default)]
pub(super) struct RawGroup {
    pub(super) place: Place,
    pub(super) name: Text,
    pub(super) initiators: Option<Vec<At<String>>>,
    pub(super) networks: Option<Vec<At<String>>>,
    pub(super) deny: Switch,
    pub(super) read_only: Switch,
    pub(super) luns: Option<Vec<RawLunRef>>,
    pub(super) chap: Option<RawChap>,
    pub(super) queue_depth: Text,
    pub(super) limits: RawLimits,
}

#[derive(Default)]
pub(super) struct RawChap {
    pub(super) place: Place,
    pub(super) user: Text,
    pub(super) secret: Text,
    pub(super) secret_file: Text,
    pub(super) mutual_user: Text,
    pub(super) mutual_secret: Text,
    pub(super) mutual_secret_file: Text,
    pub(super) algorithms: Option<Vec<At<String>>>,
}
