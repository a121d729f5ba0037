//! How much memory this process may use: what the machine has available, and the limits of its control
//! groups.

use std::path::{Path, PathBuf};

/// Available memory, and the source of that figure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// In bytes.
    pub bytes: u64,
    /// The file that it comes from.
    pub said_by: PathBuf,
}

/// The lowest of all limits; `None` if none is known.
pub fn room() -> Option<Room> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    limits(&groups, read).chain(available(read)).min_by_key(|room| room.bytes)
}

/// Limits of the control groups that `/proc/self/cgroup` names, and of those around them (cgroups(7)).
fn limits(groups: &str, read: impl Fn(&Path) -> Option<String>) -> impl Iterator<Item = Room> {
    let file_of = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        // In a container the group may have another name than outside; its limits are then those at the root.
        let group = Path::new(group.strip_prefix('/')?);
        Some(group.ancestors().map(|group| Path::new(root).join(group).join(file)).collect::<Vec<_>>())
    };
    let files: Vec<PathBuf> = groups.lines().filter_map(file_of).flatten().collect();
    // Version 2 has `max` for no limit.
    files
        .into_iter()
        .filter_map(move |file| Some(Room { bytes: read(&file)?.trim().parse().ok()?, said_by: file }))
}

/// Memory that can be used without swapping (proc_meminfo(5)).
fn available(read: impl Fn(&Path) -> Option<String>) -> Option<Room> {
    let said_by = PathBuf::from("/proc/meminfo");
    let text = read(&said_by)?;
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = kibibytes.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(Room { bytes: kibibytes.saturating_mul(1024), said_by })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn least(groups: &str, files: &[(&str, &str)]) -> Option<(u64, String)> {
        let read = |path: &Path| {
            files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| text.to_string())
        };
        let room = limits(groups, read).min_by_key(|room| room.bytes)?;
        Some((room.bytes, room.said_by.display().to_string()))
    }

    #[test]
    fn the_least_limit_of_all_groups_counts() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "4096\n"),
            ("/sys/fs/cgroup/memory.max", "8192\n"),
        ];
        assert_eq!(least("0::/a/b\n", &files), Some((4096, "/sys/fs/cgroup/a/memory.max".into())));
        assert_eq!(least("0::/\n", &files), Some((8192, "/sys/fs/cgroup/memory.max".into())));
        assert_eq!(least("", &files), None);
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n")];
        let lines = "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n0::/docker/abc\n";
        assert_eq!(least(lines, &files).map(|(bytes, _)| bytes), Some(4096));
    }

    #[test]
    fn what_the_machine_has_left_is_read() {
        let text = "MemTotal:  9 kB\nMemAvailable:       3 kB\n";
        assert_eq!(available(|_| Some(text.into())).map(|room| room.bytes), Some(3072));
        assert!(room().is_some());
    }
}
