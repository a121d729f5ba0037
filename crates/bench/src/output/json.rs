//! A result as JSON in fio's format (`fio --output-format=json`, version 3.33), so that programs that read
//! fio's output read ours. What fio does not have is under the key `lunette`. What fio has but we do not know
//! is left out, except the statistics of bandwidth over time of several streams, which are 0 of 0 samples.

use super::word;
use crate::limit::bottleneck;
use crate::result::{Latency, RunResult, Stream};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The version of fio whose format this is: programs select their parser by it.
const FIO_VERSION: &str = "fio-3.33";

/// fio's default percentiles.
const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// fio's value for the first error: EIO for I/O errors, EILSEQ for blocks with wrong content.
const EIO: u32 = 5;
const EILSEQ: u32 = 84;

/// The document. `now`: when the run ended, since the epoch.
pub fn json(result: &RunResult, now: Duration) -> Value {
    json!({
        "fio version": FIO_VERSION,
        "timestamp": now.as_secs(),
        "timestamp_ms": u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        "jobs": [job(result)],
        "lunette": {
            "version": env!("CARGO_PKG_VERSION"),
            "iops": result.iops(),
            "bw_bytes": result.bytes_per_second(),
            "limit": bottleneck(result).to_string(),
            "result": result,
        },
    })
}

fn job(result: &RunResult) -> Value {
    let job = &result.job;
    let errors: u64 = result.streams().map(|stream| stream.errors).sum();
    let bad = result.verify.map_or(0, |counts| counts.bad());
    let error = match (errors, bad) {
        (1.., _) => EIO,
        (0, 1..) => EILSEQ,
        (0, 0) => 0,
    };
    let threads = f64::from(job.numjobs.max(1)) * result.targets.len().max(1) as f64;
    let percent =
        |seconds: f64| if result.seconds > 0.0 { seconds * 100.0 / (result.seconds * threads) } else { 0.0 };
    json!({
        "jobname": "lunette",
        "groupid": 0,
        "error": error,
        "elapsed": (result.seconds + job.ramp.as_secs_f64()).ceil() as u64,
        "job options": options(result),
        "read": stream(result, result.read.as_ref()),
        "write": stream(result, result.write.as_ref()),
        "trim": stream(result, result.trim.as_ref()),
        "job_runtime": (result.seconds * threads * 1000.0).round() as u64,
        "usr_cpu": percent(result.initiator_cpu.user_seconds),
        "sys_cpu": percent(result.initiator_cpu.system_seconds),
        "total_err": errors + bad,
        "first_error": error,
    })
}

/// The job as fio's options, all as strings.
fn options(result: &RunResult) -> Value {
    let job = &result.job;
    let mut options = Map::new();
    let mut set = |name: &str, value: String| options.insert(name.into(), Value::String(value));
    set("filename", result.targets.join(":"));
    set("rw", word(&job.rw));
    set("rwmixread", job.rwmixread.to_string());
    set("bs", job.bs.to_string());
    set("iodepth", job.iodepth.to_string());
    set("numjobs", job.numjobs.to_string());
    set("runtime", job.runtime.as_secs_f64().to_string());
    set("ramp_time", job.ramp.as_secs_f64().to_string());
    set("offset", job.offset.to_string());
    set("randseed", job.seed.to_string());
    set("buffer_compress_percentage", job.buffer_compress.to_string());
    job.size.map(|size| set("size", size.to_string()));
    job.rate.map(|rate| set("rate", rate.to_string()));
    job.rate_iops.map(|rate| set("rate_iops", rate.to_string()));
    Value::Object(options)
}

fn stream(result: &RunResult, stream: Option<&Stream>) -> Value {
    let none = Stream::default();
    let is_only = result.streams().count() == 1;
    let present = stream.is_some();
    let stream = stream.unwrap_or(&none);
    let samples = if present && is_only { result.series.as_slice() } else { &[] };
    let iops = Spread::of(samples.iter().map(|sample| sample.iops));
    let bw = Spread::of(samples.iter().map(|sample| sample.bytes_per_second / 1024.0));
    let latency = latency(stream);
    let zero = json!({ "min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0 });
    json!({
        "io_bytes": stream.bytes,
        "io_kbytes": stream.bytes / 1024,
        "bw_bytes": stream.bytes_per_second.round() as u64,
        "bw": (stream.bytes_per_second / 1024.0).round() as u64,
        "iops": stream.iops,
        "runtime": if present { (result.seconds * 1000.0).round() as u64 } else { 0 },
        "total_ios": stream.operations,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": zero,
        "clat_ns": latency,
        "lat_ns": latency,
        "bw_min": bw.min.round() as u64,
        "bw_max": bw.max.round() as u64,
        "bw_agg": if bw.samples > 0 { 100.0 } else { 0.0 },
        "bw_mean": bw.mean,
        "bw_dev": bw.deviation,
        "bw_samples": bw.samples,
        "iops_min": iops.min.round() as u64,
        "iops_max": iops.max.round() as u64,
        "iops_mean": iops.mean,
        "iops_stddev": iops.deviation,
        "iops_samples": iops.samples,
    })
}

/// In nanoseconds, from submission to completion.
fn latency(stream: &Stream) -> Value {
    let Latency { min, mean, stddev, max, curve, .. } = &stream.latency;
    let whole = |us: f64| (us * 1000.0).round() as u64;
    let mut out = json!({
        "min": whole(*min),
        "max": whole(*max),
        "mean": mean * 1000.0,
        "stddev": stddev * 1000.0,
        "N": stream.operations,
    });
    let known = |&&(percentile, _): &&(f64, f64)| PERCENTILES.iter().any(|p| (p - percentile).abs() < 1e-9);
    let percentiles: Map<String, Value> = curve
        .iter()
        .filter(known)
        .map(|&(percentile, us)| (format!("{percentile:.6}"), Value::from(whole(us))))
        .collect();
    if !percentiles.is_empty() {
        out["percentile"] = Value::Object(percentiles);
    }
    out
}

/// Statistics of values over time.
#[derive(Default)]
struct Spread {
    min: f64,
    max: f64,
    mean: f64,
    deviation: f64,
    samples: usize,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Spread {
        let samples = values.clone().count();
        if samples == 0 {
            return Spread::default();
        }
        let mean = values.clone().sum::<f64>() / samples as f64;
        let squares = values.clone().map(|value| (value - mean).powi(2)).sum::<f64>();
        Spread {
            min: values.clone().fold(f64::INFINITY, f64::min),
            max: values.fold(0.0, f64::max),
            mean,
            deviation: if samples > 1 { (squares / (samples - 1) as f64).sqrt() } else { 0.0 },
            samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::output::tests::example;

    fn document(result: &RunResult) -> Value {
        let text = json(result, Duration::from_millis(1_795_252_196_322)).to_string();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn fio_s_fields_have_fio_s_units() {
        let document = document(&example());
        assert_eq!(document["fio version"], "fio-3.33");
        assert_eq!(document["timestamp_ms"], 1_795_252_196_322u64);
        let job = &document["jobs"][0];
        assert_eq!(job["job options"]["rw"], "randrw");
        assert_eq!(job["job options"]["bs"], "4096");
        assert_eq!(job["error"], 5);
        assert_eq!(job["total_err"], 4, "three writes, and a block that is misplaced");
        assert_eq!((&job["usr_cpu"], &job["sys_cpu"]), (&json!(12.5), &json!(12.5)));
        let read = &job["read"];
        assert_eq!(read["total_ios"], 3_123_450);
        assert_eq!(read["iops"], 312_345.0);
        assert_eq!(read["bw_bytes"], 1_279_365_120u64);
        assert_eq!(read["bw"], 1_249_380, "KiB/s");
        assert_eq!(read["runtime"], 10_000, "milliseconds");
        assert_eq!(read["clat_ns"]["min"], 8500);
        assert_eq!(read["clat_ns"]["max"], 2_510_000_000u64);
        assert_eq!(read["clat_ns"]["percentile"]["50.000000"], 100_000);
        assert_eq!(read["clat_ns"]["percentile"]["99.900000"], 149_900);
        assert_eq!(read["clat_ns"]["percentile"].as_object().unwrap().len(), PERCENTILES.len());
        assert_eq!((&job["elapsed"], &job["job_runtime"]), (&json!(11), &json!(20_000)));
        assert_eq!(read["iops_samples"], 0, "samples are of both streams together");
        assert_eq!(job["trim"]["total_ios"], 0);
        assert!(job["trim"]["clat_ns"].get("percentile").is_none(), "as fio has it");
    }

    #[test]
    fn one_stream_has_its_spread_over_time() {
        let read = document(&RunResult { write: None, ..example() })["jobs"][0]["read"].clone();
        assert_eq!((&read["iops_min"], &read["iops_max"]), (&json!(400_000), &json!(433_000)));
        assert_eq!((&read["iops_mean"], &read["iops_samples"]), (&json!(416_500.0), &json!(2)));
        assert_eq!(read["bw_mean"], 1_666_000.0);
    }

    #[test]
    fn rates_are_named_as_in_fio() {
        let job = Job { rate: Some(1 << 20), ..example().job };
        let options = options(&RunResult { job, ..example() });
        assert_eq!((&options["rate"], options.get("rate_iops")), (&json!("1048576"), None));
        let job = Job { rate_iops: Some(50), ..example().job };
        let options = super::options(&RunResult { job, ..example() });
        assert_eq!((options.get("rate"), &options["rate_iops"]), (None, &json!("50")));
    }

    #[test]
    fn the_whole_result_is_read_back() {
        let document = document(&example());
        let back: RunResult = serde_json::from_value(document["lunette"]["result"].clone()).unwrap();
        assert_eq!(back, example());
        assert!(document["lunette"]["limit"].as_str().unwrap().starts_with("the target"));
    }

    /// fio 3.33's output for `--rw=randrw --bs=4k --runtime=1` has all keys that we write into a stream, and
    /// those that we write into a job.
    #[test]
    fn every_key_beside_our_own_is_one_of_fio_s() {
        const STREAM: &str = "io_bytes io_kbytes bw_bytes bw iops runtime total_ios short_ios drop_ios slat_ns clat_ns \
            lat_ns bw_min bw_max bw_agg bw_mean bw_dev bw_samples iops_min iops_max iops_mean iops_stddev iops_samples";
        const JOB: &str =
            "jobname groupid error elapsed read write trim job_runtime usr_cpu sys_cpu total_err first_error";
        let document = document(&example());
        let ours = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for key in ours(&document["jobs"][0]["read"]) {
            assert!(STREAM.split_whitespace().any(|fio| fio == key), "{key}");
        }
        for key in ours(&document["jobs"][0]) {
            assert!(JOB.split_whitespace().any(|fio| fio == key) || key == "job options", "{key}");
        }
        assert_eq!(
            ours(&document["jobs"][0]["read"]).len(),
            STREAM.split_whitespace().count(),
            "none is missing"
        );
    }
}
