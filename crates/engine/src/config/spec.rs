//! Sizes and LUN SPECs as they are written on the command line and in the file.

use super::raw::RawLun;

/// Bytes of a size: digits with K, M, G or T (powers of 1024).
///
/// # Errors
/// What is wrong and what is expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(size_error(text)),
    };
    let number: u64 = digits.parse().map_err(|_| size_error(text))?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= i64::MAX as u64);
    bytes.ok_or_else(|| format!("size {text} is too large"))
}

fn size_error(text: &str) -> String {
    format!("size `{text}` is not a number with an optional K, M, G or T, like 512M or 10G")
}

/// Bytes as a person reads them: `1 GiB`.
pub fn format_size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units.iter().find(|(_, shift)| bytes >= 1 << shift && bytes.trailing_zeros() >= *shift);
    match whole {
        Some((unit, shift)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

/// Parses `KIND:WHERE[,OPTION...]`. A comma in a path is written `\,`.
///
/// # Errors
/// What is wrong and what is expected.
pub(super) fn parse_lun(spec: &str) -> Result<RawLun, String> {
    let mut parts = split(spec);
    let store = parts.remove(0);
    let Some((kind, place)) = store.split_once(':') else {
        return Err(
            "it does not say what it is; write ram:SIZE, null:SIZE, file:PATH or block:PATH".to_owned()
        );
    };
    let mut lun = RawLun::default();
    match kind {
        "ram" => lun.ram = Some(place.to_owned()),
        "null" => lun.null = Some(place.to_owned()),
        "file" => lun.file = Some(place.into()),
        "block" => lun.block = Some(place.into()),
        _ => return Err(format!("`{kind}` is no kind of store; use ram, null, file or block")),
    }
    for option in parts {
        set_option(&mut lun, &option)?;
    }
    Ok(lun)
}

fn set_option(lun: &mut RawLun, option: &str) -> Result<(), String> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let text =
        || value.map(str::to_owned).ok_or_else(|| format!("option `{name}` needs a value: {name}=..."));
    let flag = || match value {
        Some("on") => Ok(Some(true)),
        Some("off") => Ok(Some(false)),
        _ => Err(format!("option `{name}` is on or off: {name}=on")),
    };
    let set = || match value {
        None | Some("on") => Ok(Some(true)),
        Some("off") => Ok(Some(false)),
        Some(_) => Err(format!("option `{name}` takes no value")),
    };
    match name {
        "size" => lun.size = Some(text()?),
        "bs" => lun.block_size = Some(text()?),
        "pbs" => lun.physical_block_size = Some(text()?),
        "serial" => lun.serial = Some(text()?),
        "name" => lun.name = Some(text()?),
        "wcache" => lun.write_cache = flag()?,
        "thin" => lun.thin = flag()?,
        "ro" => lun.read_only = set()?,
        "removable" => lun.removable = set()?,
        "id" => {
            let text = text()?;
            lun.id = Some(text.parse().map_err(|_| format!("option `id={text}` is not a LUN number"))?);
        }
        _ => {
            return Err(format!(
                "`{name}` is no option; there are size=, bs=, pbs=, ro, serial=, name=, wcache=, thin=, removable, id="
            ));
        }
    }
    Ok(())
}

/// Splits at commas that are not escaped.
fn split(spec: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = spec.chars().peekable();
    while let Some(c) = chars.next() {
        let escaped = c == '\\' && chars.peek() == Some(&',');
        let last = parts.last_mut().expect("never empty");
        if escaped {
            last.extend(chars.next());
        } else if c == ',' {
            parts.push(String::new());
        } else {
            last.push(c);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        assert_eq!(parse_size("2t"), Ok(2 << 40));
        assert!(parse_size("").is_err());
        assert!(parse_size("1X").is_err());
        assert!(parse_size("99999999999T").is_err());
        assert_eq!(format_size(1 << 30), "1 GiB");
        assert_eq!(format_size(1536), "1536 bytes");
    }

    #[test]
    fn a_spec_with_everything() {
        let lun = parse_lun("file:/a\\,b,size=1G,bs=4096,ro,serial=x,wcache=off,thin=on,removable,id=7")
            .expect("good");
        assert_eq!(lun.file.as_deref(), Some(std::path::Path::new("/a,b")));
        assert_eq!((lun.id, lun.read_only, lun.write_cache), (Some(7), Some(true), Some(false)));
    }

    #[test]
    fn errors_say_what_and_how() {
        for (spec, expected) in [
            ("disk", "write ram:SIZE"),
            ("floppy:1M", "use ram, null, file or block"),
            ("ram:1M,colour=red", "`colour` is no option"),
            ("ram:1M,wcache=maybe", "wcache=on"),
            ("ram:1M,bs", "needs a value"),
            ("ram:1M,id=x", "not a LUN number"),
        ] {
            let error = parse_lun(spec).expect_err(spec);
            assert!(error.contains(expected), "{spec}: {error}");
        }
    }
}
