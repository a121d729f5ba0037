//! World-wide names derived from the configuration.

/// World-wide names of a unit.
pub struct Designators {
    /// NAA IEEE Registered Extended (SPC-4 section 7.8.6.6.5).
    pub naa: [u8; 16],
    /// EUI-64.
    pub eui: [u8; 8],
}

/// An OUI with the locally administered bit set: it belongs to no vendor, so no vendor's names can collide
/// with ours.
pub const OUI: [u8; 3] = [0x02, 0x4c, 0x75];

/// Names derived from the serial number alone, so that they survive a restart and a move to another machine.
pub fn identity(serial: &str) -> Designators {
    // FNV-1a, 128 bits.
    let hash = serial.bytes().fold(0x6c62272e07bb014262b821756295c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000000001000000000000000000013b)
    });
    let oui = u128::from(u32::from_be_bytes([0, OUI[0], OUI[1], OUI[2]]));
    let naa = (6 << 124 | oui << 100 | hash >> 28).to_be_bytes();
    let eui = ((oui << 40 | hash >> 88) as u64).to_be_bytes();
    Designators { naa, eui }
}

/// The port identifier of an SRP target with this GUID: id_ext and ioc_guid, which are the same.
pub fn srp_port(guid: u64) -> [u8; 16] {
    (u128::from(guid) << 64 | u128::from(guid)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_stable_and_differ() {
        let (a, b) = (identity("a"), identity("b"));
        assert_eq!(a.naa[0] >> 4, 6);
        assert_eq!(a.eui[..3], OUI);
        assert_ne!((a.naa, a.eui), (b.naa, b.eui));
        assert_eq!(identity("a").naa, a.naa);
    }
}
