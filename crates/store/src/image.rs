//! Detects disk image formats that are not raw.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Where formats have their magic numbers, and qemu-img's names.
const MARKS: [(usize, &[u8], &str); 9] = [
    (0, b"QFI\xfb", "qcow2"),
    (0, b"KDMV", "vmdk"),
    (0, b"COWD", "vmdk"),
    (0, b"# Disk DescriptorFile", "vmdk"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vpc"),
    (64, b"\x7f\x10\xda\xbe", "vdi"),
    (0, b"QED\0", "qed"),
    (0, b"WithouFreSpacExt", "parallels"),
];
/// Bytes that include all magic numbers.
const HEAD_BYTES: u64 = 128;

/// The format of the disk image in a file, by qemu-img's name; `None`: no known format, so raw.
pub fn format(path: &Path) -> io::Result<Option<&'static str>> {
    // Checked before opening, because opening a FIFO waits for its writer.
    if !path.metadata()?.is_file() {
        return Ok(None);
    }
    let mut head = Vec::new();
    File::open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    let is = |&&(at, mark, _): &&(usize, &[u8], &str)| head.get(at..at + mark.len()) == Some(mark);
    Ok(MARKS.iter().find(is).map(|&(_, _, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_known_by_their_marks() {
        let of = |bytes: &[u8]| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            format(file.path()).unwrap()
        };
        assert_eq!(of(b"QFI\xfb\0\0\0\x03"), Some("qcow2"));
        assert_eq!(of(&[&[b'<'; 64][..], b"\x7f\x10\xda\xbe"].concat()), Some("vdi"));
        assert_eq!((of(b""), of(&[0; 4096]), of(b"QFI")), (None, None, None));
        assert_eq!(format(Path::new("/dev/null")).unwrap(), None);
    }
}
