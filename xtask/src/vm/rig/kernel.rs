//! Debian's kernel, and a module that it lacks.

use super::packages::Unpacked;
use crate::command::{Result, command, succeed};
use std::fs::{self, File};
use std::path::Path;

/// siw's directory in the kernel's sources.
const SIW: &str = "drivers/infiniband/sw/siw";

/// Unpacks the kernel's image to the ELF file that the emulator boots.
pub(super) fn uncompress(unpacked: &Unpacked, to: &Path) -> Result {
    let path = unpacked.kernel.join("boot").join(format!("vmlinuz-{}", unpacked.release));
    let image = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let payload = payload(&image).ok_or_else(|| format!("{}: no bzImage with xz", path.display()))?;
    let packed = to.with_extension("xz");
    let fault = |error: std::io::Error| format!("{}: {error}", to.display());
    fs::write(&packed, payload).map_err(fault)?;
    // The image's size follows in the stream.
    let mut xz = command("xz");
    xz.args(["--decompress", "--stdout", "--single-stream"]).arg(&packed);
    succeed(xz.stdout(File::create(to).map_err(fault)?))?;
    fs::remove_file(&packed).map_err(fault)
}

/// The compressed kernel in a bzImage (Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + number(0x248)?;
    let payload = image.get(start..start.checked_add(number(0x24c)?)?)?;
    payload.starts_with(b"\xfd7zXZ\0").then_some(payload)
}

/// Builds siw with the kernel's headers, and adds it to the kernel's modules.
pub(super) fn build_siw(unpacked: &Unpacked) -> Result {
    let archive = unpacked.source.join("usr/src/linux-source-6.1.tar.xz");
    let sources = format!("linux-source-6.1/{SIW}");
    let mut tar = command("tar");
    succeed(
        tar.arg("--extract")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(&unpacked.source)
            .arg(&sources),
    )?;
    let siw = unpacked.source.join(sources);
    let headers = unpacked.headers.join("usr/src").join(format!("linux-headers-{}", unpacked.release));
    // The headers refer to each other by the paths at which the package would have installed them.
    let makefile = headers.join("Makefile");
    let fault = |error: std::io::Error| format!("{}: {error}", makefile.display());
    let text = fs::read_to_string(&makefile).map_err(fault)?;
    let here = format!("{}/usr/src/", unpacked.headers.display());
    fs::write(&makefile, text.replace("/usr/src/", &here)).map_err(fault)?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut make = command("make");
    make.args(["--silent", "CONFIG_RDMA_SIW=m", "modules"]).arg(format!("--jobs={jobs}"));
    succeed(make.arg("-C").arg(headers).arg(format!("M={}", siw.display())))?;
    let modules = unpacked.kernel.join("lib/modules").join(&unpacked.release).join("extra");
    fs::create_dir_all(&modules).map_err(|error| format!("{}: {error}", modules.display()))?;
    succeed(
        command("strip").arg("--strip-debug").arg("-o").arg(modules.join("siw.ko")).arg(siw.join("siw.ko")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compressed_kernel_is_found_in_its_image() {
        let stream = b"\xfd7zXZ\0rest";
        let mut image = vec![0; 3 * 512 + 8];
        image[0x1f1] = 2;
        image[0x248] = 8;
        image[0x24c] = 10;
        image.extend(stream);
        image.extend(b"behind");
        assert_eq!(payload(&image), Some(&stream[..]));
        image[0x24c] = 200;
        assert_eq!(payload(&image), None, "longer than the file");
        assert_eq!(payload(&image[..0x200]), None);
    }
}
