//! Images encrypted by LUKS: librbd does it, with the passphrase from a file.

use super::open::{SEE_CEPH, fault, text};
use super::sys::{Image, Luks};
use crate::error::OpenError;
use config::RbdImage;
use rustix::io::Errno;

/// How a LUKS header begins, with its version, in network byte order.
const MAGIC: [u8; 6] = *b"LUKS\xba\xbe";

/// Has librbd decrypt an image whose passphrase is configured.
pub(super) fn load(place: &RbdImage, image: &Image) -> Result<(), OpenError> {
    let Some(passphrase) = passphrase(place)? else { return Ok(()) };
    let mut header = [0; MAGIC.len() + 2];
    image
        .read_start(&mut header)
        .map_err(|error| fault(place, format!("its LUKS header: {}", text(error)), SEE_CEPH))?;
    let version = version(header).map_err(|problem| {
        let remedy = "remove luks_passphrase_file; or format the image (rbd encryption format POOL/IMAGE luks2 \
                      PASSPHRASE-FILE), which destroys its data";
        fault(place, problem, remedy)
    })?;
    image.load_luks(version, &passphrase).map_err(|error| failed(place, error))
}

/// The passphrase, if one is configured.
pub(super) fn passphrase(place: &RbdImage) -> Result<Option<Vec<u8>>, OpenError> {
    place.luks_passphrase().map_err(|fault| OpenError::new(place, fault.what, fault.fix))
}

fn version(header: [u8; 8]) -> Result<Luks, String> {
    match header {
        [magic @ .., 0, 1] if magic == MAGIC => Ok(Luks::One),
        [magic @ .., 0, 2] if magic == MAGIC => Ok(Luks::Two),
        [magic @ .., high, low] if magic == MAGIC => {
            Err(format!("it has a LUKS header of the unknown version {}", u16::from_be_bytes([high, low])))
        }
        _ => Err("it is not encrypted by LUKS: it has no header of that".into()),
    }
}

fn failed(place: &RbdImage, error: i32) -> OpenError {
    let file = place.luks_passphrase_file.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    match Errno::from_raw_os_error(error) {
        Errno::PERM => fault(
            place,
            format!("the passphrase in {file} opens none of its LUKS key slots"),
            &format!("correct {file}: its first line is the passphrase"),
        ),
        Errno::NOSYS => fault(
            place,
            "it is encrypted by LUKS, and this librbd has no rbd_encryption_load",
            "install version 16 of Ceph's client libraries, or a newer one",
        ),
        Errno::OPNOTSUPP => fault(
            place,
            "it is encrypted by LUKS, which this librbd was built without",
            "install Ceph's own client libraries, version 16 or newer",
        ),
        Errno::NOMEM => fault(
            place,
            "there is not enough memory to derive its key from the passphrase",
            "allow the daemon as much as its key slots require (cryptsetup luksDump shows it), up to 1 GiB, or \
             convert them to PBKDF2",
        ),
        _ => fault(
            place,
            format!("librbd cannot use its LUKS header: {}", text(error)),
            "check it (rbd export POOL/IMAGE FILE; cryptsetup luksDump FILE)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_versions_are_known() {
        assert_eq!(version(*b"LUKS\xba\xbe\0\x01"), Ok(Luks::One));
        assert_eq!(version(*b"LUKS\xba\xbe\0\x02"), Ok(Luks::Two));
        assert!(version(*b"LUKS\xba\xbe\x01\x02").is_err_and(|problem| problem.contains("version 258")));
        assert!(version([0; 8]).is_err_and(|problem| problem.contains("not encrypted")));
    }
}
