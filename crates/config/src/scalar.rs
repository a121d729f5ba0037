//! Single values: sizes, times, core lists, addresses, names.

use super::machine::usable_cores;
use super::model::{AdminAddress, AdminPlace, Network};
use super::problems::Fault;
use super::protocol::Protocol;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// iSCSI's port assigned by IANA.
pub(super) const ISCSI_PORT: u16 = 3260;
/// Longest iSCSI name in bytes (RFC 7143 section 4.2.7.1).
pub(super) const ISCSI_NAME_MAX: usize = 223;
/// Largest medium: file offsets are signed 64-bit numbers.
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;
/// Longest path of a socket, in bytes: the size of sockaddr_un (unix(7)), less the terminating zero.
const SOCKET_PATH_MAX: usize = 107;
/// Highest core number allowed in a list.
const CORE_MAX: usize = 4095;

/// `10G`, `512M`, `4096`: bytes.
pub(super) fn size(text: &str) -> Result<u64, Fault> {
    let fault = |what| Fault::new(what, "write bytes, or a whole number with K, M, G or T, such as 10G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        "KB" | "MB" | "GB" | "TB" => {
            let what = format!("`{text}` could be meant in powers of 1000, in powers of 1024, or in bits");
            return Err(Fault::new(what, format!("write {}, in powers of 1024", &text[..text.len() - 1])));
        }
        _ => return Err(fault(format!("`{text}` is not a size"))),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(fault(format!("`{text}` is not a size")));
    }
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    match bytes {
        Some(bytes) if bytes <= SIZE_MAX => Ok(bytes),
        Some(_) | None => Err(Fault::new(format!("`{text}` is too large"), "choose less than 8 EiB")),
    }
}

/// `10G`, `512M`, `4096`: bytes; or what is wrong, and how to fix it.
pub fn parse_size(text: &str) -> Result<u64, String> {
    size(text).map_err(|fault| format!("{}; {}", fault.what, fault.fix))
}

/// Human-readable sizes: `1 GiB`, `1.5 TiB`, `1000 bytes`.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let tenths = (u128::from(bytes) * 10) >> shift;
        let exact = tenths << shift == u128::from(bytes) * 10;
        match (tenths / 10, tenths % 10) {
            (1.., 0) if exact => return format!("{} {unit}", tenths / 10),
            (1..1024, tenth) if exact => return format!("{}.{tenth} {unit}", tenths / 10),
            _ => {}
        }
    }
    format!("{bytes} bytes")
}

/// `15s`, `500ms`, `2m`, `15` (seconds).
pub(super) fn duration(text: &str, least: Duration, most: Duration) -> Result<Duration, Fault> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" | "s" => Some(1000),
        "ms" => Some(1),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    let time = unit.zip(number).and_then(|(unit, n)| n.checked_mul(unit)).map(Duration::from_millis);
    match time {
        None => Err(Fault::new(format!("`{text}` is not a time"), "write a time such as 15s, 500ms or 2m")),
        Some(time) if time < least || time > most => {
            let fix = format!("choose from {least:?} to {most:?}");
            Err(Fault::new(format!("`{text}` is out of range"), fix))
        }
        Some(time) => Ok(time),
    }
}

/// `15s`, `500ms`, `2m`, `15` (seconds), up to a year; or what is wrong, and how to fix it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    duration(text, Duration::ZERO, YEAR).map_err(|fault| format!("{}; {}", fault.what, fault.fix))
}

/// A whole number in a range.
pub(super) fn number(text: &str, least: u64, most: u64) -> Result<u64, Fault> {
    match text.parse::<u64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(_) | Err(_) => Err(Fault::new(
            format!("`{text}` is out of range"),
            format!("choose a number from {least} to {most}"),
        )),
    }
}

/// `all` or `0,2-3`, from the usable cores.
pub(super) fn core_list(text: &str, usable: &[usize]) -> Result<Vec<usize>, Fault> {
    if text.trim() == "all" {
        return Ok(usable.to_vec());
    }
    let mut cores = Vec::new();
    for item in text.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let bounds = first.trim().parse::<usize>().ok().zip(last.trim().parse::<usize>().ok());
        let (first, last) = match bounds {
            Some((first, last)) if first <= last && last <= CORE_MAX => (first, last),
            Some(_) | None => {
                let what = format!("`{}` is not a core number or a range of them", item.trim());
                return Err(Fault::new(what, "write `all` or a list such as 0,2-3"));
            }
        };
        if let Some(missing) = (first..=last).find(|core| !usable.contains(core)) {
            let fix = format!("choose from the available cores: {}", show_cores(usable));
            return Err(Fault::new(format!("core {missing} is not available"), fix));
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

/// `all` or `0,2-3`, from the cores that this process may use; or what is wrong, and how to fix it.
pub fn parse_cores(text: &str) -> Result<Vec<usize>, String> {
    core_list(text, &usable_cores()).map_err(|fault| format!("{}; {}", fault.what, fault.fix))
}

/// `0,2-3`.
pub fn show_cores(cores: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &core in cores {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            Some(_) | None => runs.push((core, core)),
        }
    }
    let show = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(show).collect::<Vec<_>>().join(",")
}

/// An address of a portal; or what is wrong, and how to fix it.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    listen(text).map_err(|fault| format!("{}; {}", fault.what, fault.fix))
}

/// `10.0.0.1:3260`, `10.0.0.1`, `[::1]:3260`, `::1`.
pub(super) fn listen(text: &str) -> Result<SocketAddr, Fault> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let address = text.parse::<SocketAddr>().ok();
    address.or_else(|| bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, ISCSI_PORT))).ok_or_else(
        || {
            let fix = "write a numeric address and a port, such as 192.0.2.1:3260 or [2001:db8::1]:3260";
            Fault::new(format!("`{text}` is not an address"), fix)
        },
    )
}

/// `024c750123456789`.
pub(super) fn guid(text: &str) -> Result<u64, Fault> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(text, 16).ok().filter(|number| is_hex && *number != 0);
    number.ok_or_else(|| {
        let fix = "write 16 hexadecimal digits, not all of them zero, such as 024c750123456789";
        Fault::new(format!("`{text}` is not a GUID"), fix)
    })
}

/// 16 hexadecimal digits; or what is wrong, and how to fix it.
pub fn parse_guid(text: &str) -> Result<u64, String> {
    guid(text).map_err(|fault| format!("{}; {}", fault.what, fault.fix))
}

/// Whether a text is intended as a URL, known or not. Joined to a directory it would no longer look like one,
/// and its secrets would not be recognised.
pub(super) fn looks_like_url(text: &str) -> bool {
    Protocol::is_meant(text) || text.contains("://")
}

/// A path, relative to `base`; `instead` is the advice for a URL given by mistake.
pub(super) fn path(path: &Path, base: &Path, instead: &str) -> Result<PathBuf, Fault> {
    if looks_like_url(&path.to_string_lossy()) {
        return Err(Fault::new("this is a URL, not a path", instead));
    }
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(Fault::new(
            "the path is empty or contains a zero byte",
            "name a file, a directory or a device",
        ));
    }
    Ok(base.join(path))
}

/// A path, recognised by a slash and relative to `base`, an address with a port, or `none`.
pub(super) fn admin(text: &str, base: &Path) -> Result<AdminPlace, Fault> {
    if text == "none" {
        return Ok(AdminPlace::Nowhere);
    }
    admin_address(text, base).map(AdminPlace::At)
}

fn admin_address(text: &str, base: &Path) -> Result<AdminAddress, Fault> {
    if looks_like_url(text) {
        let fix = "write a path, such as /run/lunette.sock, or an address and a port, such as 127.0.0.1:9260";
        return Err(Fault::new("this is a URL, not a path", fix));
    }
    if text.contains('/') {
        let path = base.join(text);
        let bytes = path.as_os_str().len();
        if bytes > SOCKET_PATH_MAX || text.contains('\0') || text.ends_with('/') {
            let what = format!("{} cannot be the path of a socket", path.display());
            let fix = format!("name a file whose path has at most {SOCKET_PATH_MAX} bytes");
            return Err(Fault::new(what, fix));
        }
        return Ok(AdminAddress::Unix(path));
    }
    text.parse().map(AdminAddress::Tcp).map_err(|_| {
        let fix = "write a path with a slash, such as /run/lunette.sock, or a numeric address and a port, such as 127.0.0.1:9260";
        Fault::new(format!("`{text}` is neither a path nor an address with a port"), fix)
    })
}

/// `10.0.0.0/8`, `fd00::/64`, `10.1.2.3`.
pub(super) fn network(text: &str) -> Result<Network, Fault> {
    let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
    let address = address.parse::<IpAddr>().ok();
    let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
    let parsed = address.and_then(|address| match prefix {
        "" if !text.contains('/') => Some((address, bits(address))),
        _ => prefix.parse::<u8>().ok().filter(|p| *p <= bits(address)).map(|p| (address, p)),
    });
    let Some((address, prefix)) = parsed else {
        return Err(Fault::new(
            format!("`{text}` is not a network"),
            "write a network such as 10.0.0.0/8 or fd00::/64, or one address",
        ));
    };
    let network = Network { address: masked(address, prefix), prefix };
    if network.address != address {
        let fix = format!("write {}/{prefix} for the network, or {address} for one host", network.address);
        return Err(Fault::new(format!("`{text}` has bits set beyond its prefix"), fix));
    }
    Ok(network)
}

/// The address with its host bits zero.
fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    let host_bits = |width: u32| width.saturating_sub(u32::from(prefix));
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(host_bits(32)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(host_bits(128)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// An iSCSI name, lower-cased (RFC 7143 section 4.2.7, RFC 3722).
pub(super) fn iscsi_name(text: &str) -> Result<String, Fault> {
    let name = text.to_ascii_lowercase();
    if name.len() > ISCSI_NAME_MAX {
        let what = format!("the name has {} bytes, iSCSI allows {ISCSI_NAME_MAX}", name.len());
        return Err(Fault::new(what, "shorten it"));
    }
    if let Some(bad) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "-.:".contains(*c))) {
        let what = format!("an iSCSI name must not contain {bad:?}");
        return Err(Fault::new(what, "use letters, digits, `-`, `.` and `:` only"));
    }
    let hex = |digits: &str, lengths: &[usize]| {
        lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let well_formed = match name.split_once('.') {
        Some(("iqn", rest)) => qualified(rest),
        Some(("eui", digits)) => hex(digits, &[16]),
        Some(("naa", digits)) => hex(digits, &[16, 32]),
        Some(_) | None => false,
    };
    if !well_formed {
        let fix = "write iqn.YYYY-MM.reversed.domain:name, eui. and 16 hex digits, or naa. and 16 or 32";
        return Err(Fault::new(format!("`{text}` is not an iSCSI name"), fix));
    }
    Ok(name)
}

/// `yyyy-mm.` and a naming authority.
fn qualified(rest: &str) -> bool {
    let Some((date, authority)) = rest.split_once('.') else { return false };
    let Some((year, month)) = date.split_once('-') else { return false };
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let month_ok = digits(month, 2) && (1..=12).contains(&month.parse::<u8>().unwrap_or(0));
    let domain = authority.split(':').next().unwrap_or("");
    digits(year, 4) && month_ok && !domain.is_empty()
}

/// A pattern for initiator names, lower-cased like them.
pub(super) fn initiator_pattern(text: &str) -> Result<String, Fault> {
    let pattern = text.to_lowercase();
    let clean = !pattern.chars().any(|c| c.is_whitespace() || c.is_control());
    if pattern.is_empty() || pattern.len() > ISCSI_NAME_MAX || !clean {
        let fix = "write an initiator name in which * stands for any text and ? for one character";
        return Err(Fault::new(format!("{text:?} cannot match an initiator name"), fix));
    }
    Ok(pattern)
}

/// Where the admin interface should listen; or what is wrong, and how to fix it.
pub fn parse_admin(text: &str) -> Result<AdminPlace, String> {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    admin(text, &here).map_err(|fault| format!("{}; {}", fault.what, fault.fix))
}

/// A short name that the file uses for references.
pub(super) fn label(text: &str) -> Result<String, Fault> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=64).contains(&text.len()) && text.chars().all(allowed) {
        return Ok(text.into());
    }
    Err(Fault::new(format!("{text:?} cannot be a name"), "use 1 to 64 letters, digits, `-`, `_` and `.`"))
}

/// Printable ASCII without leading or trailing spaces, as INQUIRY data requires (SPC-4 section 4.4.1).
pub(super) fn printable(text: &str, most: usize) -> Result<String, Fault> {
    let printable = text.bytes().all(|b| (0x20..=0x7e).contains(&b));
    if (1..=most).contains(&text.len()) && printable && text.trim() == text {
        return Ok(text.into());
    }
    let fix = format!("use 1 to {most} printable ASCII characters, without a space at either end");
    Err(Fault::new(format!("{text:?} is empty, too long, or has characters that are not allowed"), fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_take_binary_suffixes() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("1K"), Ok(1024));
        assert_eq!(size("3m"), Ok(3 << 20));
        assert_eq!(size("10GiB"), Ok(10 << 30));
        assert_eq!(size("2T"), Ok(2 << 40));
        for bad in [
            "",
            "G",
            "-1",
            "1.5G",
            "10Gb",
            "10GB",
            "1kb",
            "1P",
            "1 G",
            "K1",
            "9999999999999T",
            "99999999999999999999",
            "1é",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_read_back_what_people_are_shown() {
        assert_eq!(format_size(1 << 30), "1 GiB");
        assert_eq!(format_size(1536 << 20), "1.5 GiB");
        assert_eq!(format_size((1 << 30) + 512), "1073742336 bytes");
        assert_eq!(format_size(4096), "4 KiB");
        assert_eq!(format_size(u64::MAX), "18446744073709551615 bytes");
    }

    #[test]
    fn times_have_units_and_a_range() {
        let parse = |text| duration(text, Duration::from_secs(1), Duration::from_secs(600));
        assert_eq!(parse("15"), Ok(Duration::from_secs(15)));
        assert_eq!(parse("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "1x", "0", "500ms", "1h", "99999999999999999h"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn core_lists_are_sorted_and_limited_to_what_may_be_used() {
        let usable = [0, 1, 2, 3, 6];
        assert_eq!(core_list("all", &usable), Ok(usable.to_vec()));
        assert_eq!(core_list("3, 0-1,1", &usable), Ok(vec![0, 1, 3]));
        assert_eq!(show_cores(&[0, 2, 3, 4, 7]), "0,2-4,7");
        for bad in ["", ",", "1-", "3-1", "a", "0-99999999999", "4096", "3-6", "-"] {
            assert!(core_list(bad, &usable).is_err(), "{bad}");
        }
        assert!(core_list("3-6", &usable).unwrap_err().fix.contains("0-3,6"));
    }

    #[test]
    fn addresses_default_to_the_iscsi_port() {
        assert_eq!(listen("10.0.0.1").unwrap().to_string(), "10.0.0.1:3260");
        assert_eq!(listen("10.0.0.1:0").unwrap().to_string(), "10.0.0.1:0");
        assert_eq!(listen("::1").unwrap().to_string(), "[::1]:3260");
        assert_eq!(listen("[::1]").unwrap().to_string(), "[::1]:3260");
        assert_eq!(listen("[::]:860").unwrap().to_string(), "[::]:860");
        for bad in ["", "localhost:3260", "10.0.0.1:70000", ":3260", "[10.0.0.1"] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_name_their_own_correction() {
        assert!(network("10.0.0.0/8").is_ok());
        assert_eq!(network("10.1.2.3").unwrap().prefix, 32);
        assert_eq!(network("fd00::/64").unwrap().prefix, 64);
        assert!(network("0.0.0.0/0").is_ok());
        assert!(network("10.1.2.3/8").unwrap_err().fix.contains("10.0.0.0/8"));
        for bad in ["", "10.0.0.0/33", "10.0.0.0/", "x/8", "fd00::/129", "10.0.0.0/-1"] {
            assert!(network(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn iscsi_names_follow_the_standard() {
        assert_eq!(iscsi_name("iqn.2001-04.COM.Example:Disk").unwrap(), "iqn.2001-04.com.example:disk");
        assert!(iscsi_name("iqn.2001-04.com.example").is_ok());
        assert!(iscsi_name("eui.02004567A425678D").is_ok());
        assert!(iscsi_name("naa.52004567BA64678D").is_ok());
        assert!(iscsi_name("naa.62004567BA64678D0123456789ABCDEF").is_ok());
        for bad in
            ["", "disk", "iqn.2001-13.com", "iqn.01-04.com", "iqn.2001-04.", "iqn.2001-04.:x", "eui.12"]
        {
            assert!(iscsi_name(bad).is_err(), "{bad}");
        }
        assert!(iscsi_name("iqn.2001-04.com.example:a_b").unwrap_err().what.contains('_'));
        assert!(
            iscsi_name(&format!("iqn.2001-04.com:{}", "x".repeat(223))).unwrap_err().what.contains("223")
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_a_scalar_panic(text in "\\PC{0,40}") {
            let _ = (size(&text), listen(&text), network(&text), iscsi_name(&text), initiator_pattern(&text));
            let _ = (core_list(&text, &[0, 1]), label(&text), printable(&text, 16), number(&text, 1, 9));
            let _ = duration(&text, Duration::ZERO, Duration::MAX);
        }

        #[test]
        fn a_size_is_what_was_written(number in 0u64..=1 << 20) {
            prop_assert_eq!(size(&format!("{number}G")), Ok(number << 30));
        }
    }
}
