//! Limits per second for a LUN, or for the members of a group together.

use super::model::{Limits, QUEUE_DEPTH_MAX, Rate};
use super::problems::{Collector, Fault};
use super::raw::{Place, RawLimits, RawLun, Text};
use super::scalar;

/// The highest limit; anything above it would be no limit.
const IOPS_MAX: u64 = 100_000_000;
const BYTES_MAX: u64 = 1 << 40;
/// The lowest byte rate, per second: commands must end before their initiators abort them.
const BYTES_MIN: u64 = 4096;

/// `None` if invalid.
pub(super) fn limits(raw: &RawLimits, place: &Place, problems: &mut Collector<'_>) -> Option<Limits> {
    let commands = |text: &str| scalar::number(text, 1, IOPS_MAX);
    let bytes = |text: &str| match scalar::size(text)? {
        bytes if (BYTES_MIN..=BYTES_MAX).contains(&bytes) => Ok(bytes),
        _ => Err(Fault::new(format!("`{text}` is out of range"), "choose from 4K to 1T")),
    };
    let iops = rate(&raw.iops_max, &raw.iops_burst, ["iops_max", "iops_burst"], commands, place, problems);
    let keys = ["bytes_per_second_max", "bytes_burst"];
    let bytes = rate(&raw.bytes_per_second_max, &raw.bytes_burst, keys, bytes, place, problems);
    Some(Limits { iops: iops?, bytes: bytes? })
}

/// The percentage of its size that a LUN may use before its initiators are notified; `None` if invalid.
pub(super) fn warn_at(raw: &RawLun, problems: &mut Collector<'_>) -> Option<Option<u8>> {
    let Some(at) = &raw.warn_at else { return Some(None) };
    let fault = if raw.ram.is_none() && raw.file.is_none() {
        Some(Fault::new("the space in use is known only for memory and files", "remove this"))
    } else if raw.thin.as_ref().is_some_and(|thin| !thin.value) {
        Some(Fault::new(
            "only a thin LUN uses just the space that is written",
            "remove this, or `thin = false`",
        ))
    } else {
        None
    };
    if let Some(fault) = fault {
        problems.add(&at.place, fault);
        return None;
    }
    let percent = at.value.strip_suffix('%').and_then(|number| number.parse().ok());
    let percent = percent.filter(|percent| (1..=100).contains(percent));
    let fault = || {
        Fault::new(
            format!("`{}` is not a percentage of the size", at.value),
            "write 1% to 100%, such as \"80%\"",
        )
    };
    problems.check(&at.place, percent.ok_or_else(fault)).map(Some)
}

/// Commands that a session may have in flight; `None` if invalid. With just one, no SRP initiator could
/// request an abort.
pub(super) fn queue_depth(text: &Text, problems: &mut Collector<'_>) -> Option<Option<u16>> {
    let Some(at) = text else { return Some(None) };
    let depth = problems.check(&at.place, scalar::number(&at.value, 2, QUEUE_DEPTH_MAX.into()))?;
    u16::try_from(depth).ok().map(Some)
}

fn rate(
    most: &Text,
    burst: &Text,
    [most_key, burst_key]: [&str; 2],
    parse: impl Fn(&str) -> Result<u64, Fault>,
    place: &Place,
    problems: &mut Collector<'_>,
) -> Option<Option<Rate>> {
    let mut value = |text: &Text| match text {
        None => Some(None),
        Some(at) => problems.check(&at.place, parse(&at.value)).map(Some),
    };
    let (per_second, burst_value) = (value(most)?, value(burst)?);
    match (per_second, burst_value) {
        (None, Some(_)) => {
            let at = burst.as_ref().map_or(place, |at| &at.place);
            let fix = format!("add `{most_key}`, or remove `{burst_key}`");
            problems.add(at, Fault::new("a burst without a limit", fix));
            None
        }
        (None, None) => Some(None),
        (Some(per_second), burst) => Some(Some(Rate { per_second, burst: burst.unwrap_or(0) })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ServeOptions};
    use std::path::Path;

    fn parse(lun: &str, group: &str) -> Result<Config, String> {
        let text = format!(
            "[[lun]]\nram = '1M'\n{lun}\n[[target]]\nname = 'iqn.2026-11.a:x'\n[[target.group]]\nname = 'g'\n{group}\n"
        );
        Config::from_toml(&text, Path::new("lunette.toml")).map_err(|problems| problems.to_string())
    }

    #[test]
    fn luns_and_groups_have_limits_of_their_own() {
        let config =
            parse("iops_max = 500\niops_burst = 1000", "bytes_per_second_max = '10M'").expect("right");
        let rate = |per_second, burst| Some(Rate { per_second, burst });
        assert_eq!(config.luns[0].limits, Limits { iops: rate(500, 1000), bytes: None });
        assert_eq!(config.targets[0].groups[0].limits, Limits { iops: None, bytes: rate(10 << 20, 0) });
        let lun = vec!["ram:1M,iops_max=7,bytes_per_second_max=1M,bytes_burst=64K".into()];
        let config = Config::from_options(&ServeOptions { lun, ..ServeOptions::default() });
        let limits = config.unwrap_or_else(|problems| panic!("{problems}")).luns[0].limits;
        assert_eq!(limits, Limits { iops: rate(7, 0), bytes: rate(1 << 20, 64 << 10) });
        assert!(limits.any() && !Limits::default().any());
    }

    #[test]
    fn limits_that_are_none_or_nothing_are_refused_with_place_and_fix() {
        let fault = |lun: &str, group: &str| parse(lun, group).expect_err("wrong on purpose");
        for (lun, expected) in [
            ("iops_max = 0", "choose a number from 1 to 100000000"),
            ("bytes_per_second_max = '1K'", "choose from 4K to 1T"),
            ("bytes_per_second_max = '10MB'", "write 10M"),
            ("bytes_burst = '1M'", "add `bytes_per_second_max`, or remove `bytes_burst`"),
            ("iops_burst = 1", "add `iops_max`, or remove `iops_burst`"),
        ] {
            let fault = fault(lun, "");
            assert!(fault.contains(expected) && fault.contains("lunette.toml:3"), "{fault}");
        }
        for limit in ["iops_max = 5", "queue_depth = 5"] {
            let fault = fault("", &format!("deny = true\n{limit}"));
            assert!(fault.contains("a group that denies its members"), "{fault}");
        }
        for depth in [1, 129] {
            let fault = fault("", &format!("queue_depth = {depth}"));
            assert!(fault.contains("choose a number from 2 to 128"), "{fault}");
        }
    }

    #[test]
    fn a_thin_lun_warns_at_a_part_of_its_size() {
        assert_eq!(parse("warn_at = '80%'", "").expect("right").luns[0].warn_at, Some(80));
        assert_eq!(parse("", "").expect("right").luns[0].warn_at, None);
        for wrong in ["80", "0%", "101%", "%", "x%", "-1%"] {
            let fault = parse(&format!("warn_at = '{wrong}'"), "").expect_err("wrong on purpose");
            assert!(
                fault.contains("is not a percentage of the size") && fault.contains("lunette.toml:3"),
                "{fault}"
            );
        }
        let fault = parse("warn_at = '80%'\nthin = false", "").expect_err("wrong on purpose");
        assert!(fault.contains("only a thin LUN"), "{fault}");
        let lun = vec!["null:1M,warn_at=80%".into()];
        let null = Config::from_options(&ServeOptions { lun, ..ServeOptions::default() });
        assert!(null.expect_err("wrong on purpose").to_string().contains("only for memory and files"));
    }
}
