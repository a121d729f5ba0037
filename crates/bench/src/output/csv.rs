//! A result as comma-separated values (RFC 4180): a header, then a line for each stream.

use super::word;
use crate::limit::bottleneck;
use crate::result::{Cpu, RunResult, Stream};
use csv::{Terminator, WriterBuilder};

/// Header and lines.
pub fn csv(result: &RunResult) -> String {
    let streams = [("read", &result.read), ("write", &result.write), ("trim", &result.trim)];
    let header = fields(result, "", &Stream::default()).into_iter().map(|(name, _)| name.to_string());
    let present = streams.into_iter().filter_map(|(name, stream)| Some((name, stream.as_ref()?)));
    let lines = present
        .map(|(name, stream)| fields(result, name, stream).into_iter().map(|(_, value)| value).collect());
    records([header.collect()].into_iter().chain(lines))
}

/// Records of equal length as lines.
pub fn records(records: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(Vec::new());
    for record in records {
        writer.write_record(record).expect("records of one length are written to memory");
    }
    let bytes = writer.into_inner().expect("memory takes them");
    String::from_utf8(bytes).expect("text stays text")
}

fn fields(result: &RunResult, name: &str, stream: &Stream) -> Vec<(&'static str, String)> {
    let job = &result.job;
    let latency = &stream.latency;
    let target = |value: fn(&Cpu) -> f64| result.target_cpu.as_ref().map(value).map_or(String::new(), number);
    let own = |value: fn(&Cpu) -> f64| number(value(&result.initiator_cpu));
    let busiest = result.cores.iter().map(|load| 1.0 - load.idle).fold(0.0, f64::max);
    vec![
        ("targets", result.targets.join(" ")),
        ("rw", word(&job.rw)),
        ("style", word(&job.style)),
        ("bs", job.bs.to_string()),
        ("iodepth", job.iodepth.to_string()),
        ("numjobs", job.numjobs.to_string()),
        ("stream", name.to_string()),
        ("seconds", number(result.seconds)),
        ("operations", stream.operations.to_string()),
        ("errors", stream.errors.to_string()),
        ("iops", number(stream.iops)),
        ("bytes_per_second", number(stream.bytes_per_second)),
        ("lat_min_us", number(latency.min)),
        ("lat_mean_us", number(latency.mean)),
        ("lat_stddev_us", number(latency.stddev)),
        ("lat_p50_us", number(latency.p50)),
        ("lat_p90_us", number(latency.p90)),
        ("lat_p99_us", number(latency.p99)),
        ("lat_p99.9_us", number(latency.p999)),
        ("lat_max_us", number(latency.max)),
        ("initiator_user_s", own(|cpu| cpu.user_seconds)),
        ("initiator_system_s", own(|cpu| cpu.system_seconds)),
        ("initiator_us_per_op", own(|cpu| cpu.us_per_op)),
        ("target_user_s", target(|cpu| cpu.user_seconds)),
        ("target_system_s", target(|cpu| cpu.system_seconds)),
        ("target_us_per_op", target(|cpu| cpu.us_per_op)),
        ("busiest_core", number(busiest)),
        ("verify_bad", verify_bad(result)),
        ("limit", bottleneck(result).to_string()),
    ]
}

/// Empty when no block was checked.
fn verify_bad(result: &RunResult) -> String {
    let counts = result.verify.filter(|counts| counts.checked > 0);
    counts.map_or(String::new(), |counts| counts.bad().to_string())
}

/// Three decimals, without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::example;

    #[test]
    fn a_result_is_a_line_for_each_stream() {
        let expected = "\
targets,rw,style,bs,iodepth,numjobs,stream,seconds,operations,errors,iops,bytes_per_second,lat_min_us,lat_mean_us,lat_stddev_us,lat_p50_us,lat_p90_us,lat_p99_us,lat_p99.9_us,lat_max_us,initiator_user_s,initiator_system_s,initiator_us_per_op,target_user_s,target_system_s,target_us_per_op,busiest_core,verify_bad,limit\r
iscsi://127.0.0.1:3260/iqn.2026-11.io.lunette:disk/0,randrw,depth,4096,32,2,read,10,3123450,0,312345,1279365120,8.5,101.9,20.5,98.25,120.3,212.9,1400.5,2510000,2.5,2.5,1.2,4,5.875,2.371,1,1,the target: its thread `core 0` on core 0 is 99 % busy (or spins: see its poll mode)\r
iscsi://127.0.0.1:3260/iqn.2026-11.io.lunette:disk/0,randrw,depth,4096,32,2,write,10,1041150,3,104115,426455040,8.5,101.9,20.5,98.25,120.3,212.9,1400.5,2510000,2.5,2.5,1.2,4,5.875,2.371,1,1,the target: its thread `core 0` on core 0 is 99 % busy (or spins: see its poll mode)\r
";
        let text = csv(&example());
        assert_eq!(text, expected, "{text}");
    }

    #[test]
    fn values_that_need_it_are_quoted() {
        let values = ["plain", "a,b", "say \"x\"", "two\nlines", ""].map(String::from);
        assert_eq!(records([values.into()]), "plain,\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\r\n");
    }

    #[test]
    fn what_is_not_known_is_empty() {
        let mut result = example();
        (result.target_cpu, result.verify) = (None, None);
        assert!(csv(&result).contains(",1.2,,,,1,,the"), "{}", csv(&result));
        (result.read, result.write) = (None, None);
        assert_eq!(csv(&result).lines().count(), 1, "the header alone");
    }
}
