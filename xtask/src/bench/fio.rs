//! How fast fio reads a file, relative to our own load generator: whether the rows `local` are a fair
//! baseline.

use super::goals::FILES;
use super::part::Part;
use super::results::REPETITIONS_MIN;
use crate::command::{DIST, Result, command, lunette, output, root};
use crate::instructions::Figures;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// As large as those of the plan.
const FILE_MIB: usize = 256;

/// Measures both files, alternating fio and ours.
pub(super) fn measure(figures: &mut Figures) -> Result {
    let directories = [PathBuf::from("/dev/shm"), root().join(Part::Datapath.output())];
    for ((place, name), directory) in FILES.into_iter().zip(directories) {
        println!("measuring: a file on {place}, read by fio and by lunette bench");
        let file = filled(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..REPETITIONS_MIN {
            theirs.push(if place == "tmpfs" {
                // In memory there is no cache to bypass.
                fio(file.path(), false)?
            } else {
                // Not every file system supports direct I/O.
                fio(file.path(), true).or_else(|_| fio(file.path(), false))?
            });
            ours.push(own(file.path())?);
        }
        figures.insert(name.into(), median(theirs) / median(ours));
    }
    Ok(())
}

/// A file with all its blocks allocated.
fn filled(directory: &Path) -> std::io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("lunette-fio-").tempfile_in(directory)?;
    let piece = vec![0x5a; 1 << 20];
    (0..FILE_MIB).try_for_each(|_| file.write_all(&piece))?;
    file.as_file().sync_all()?;
    Ok(file)
}

fn fio(file: &Path, direct: bool) -> Result<f64> {
    let mut fio = command("fio");
    fio.args(["--name=read", "--readonly", "--rw=randread", "--norandommap", "--bs=4k", "--iodepth=32"]);
    fio.args(["--ioengine=io_uring", "--time_based", "--runtime=600ms", "--ramp_time=200ms"]);
    fio.args([format!("--direct={}", u8::from(direct)), format!("--filename={}", file.display())]);
    iops(&output(fio.arg("--output-format=json"))?)
}

fn own(file: &Path) -> Result<f64> {
    let mut bench = command(lunette(DIST));
    bench.arg("bench").arg(file).args(["--rw", "randread", "--bs", "4K", "--iodepth", "32"]);
    iops(&output(bench.args(["--runtime", "600ms", "--ramp", "200ms", "--json"]))?)
}

/// Both print the same format; fio may print something before it.
fn iops(text: &str) -> Result<f64> {
    let json = text.find('{').map_or("", |start| &text[start..]);
    let json: serde_json::Value =
        serde_json::from_str(json).map_err(|error| format!("{error} in: {text}"))?;
    let iops = json["jobs"][0]["read"]["iops"].as_f64().filter(|iops| *iops > 0.0);
    iops.ok_or_else(|| format!("no operations per second in: {text}"))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_found_in_fio_s_json() {
        assert_eq!(iops("fio: a note\n{\"jobs\": [{\"read\": {\"iops\": 12.5}}]}"), Ok(12.5));
        assert!(iops("{\"jobs\": []}").is_err() && iops("no JSON").is_err());
        assert_eq!(median(vec![3.0, 9.0, 1.0]), 3.0);
    }
}
