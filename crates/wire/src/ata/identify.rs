//! IDENTIFY DEVICE data (ACS-3 section 7.12.7): 256 words, of which we read and write those in use.

use super::{SECTOR_BYTES, SECTORS_28_BIT};

/// An optional feature of a device, which can be disabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feature {
    /// The device supports it.
    pub supported: bool,
    /// It is enabled.
    pub enabled: bool,
}

impl Feature {
    /// Supported and enabled.
    pub const ON: Feature = Feature { supported: true, enabled: true };
}

/// What a device reports about itself.
/// Its fields are the words of IDENTIFY DEVICE data that are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdentifyData {
    /// Serial number: ASCII, padded with spaces ([`text`]).
    pub serial: [u8; 20],
    /// Firmware revision.
    pub firmware: [u8; 8],
    /// Model number.
    pub model: [u8; 40],
    /// Logical sectors.
    pub sectors: u64,
    /// 48-bit commands are supported.
    pub lba48: bool,
    /// FLUSH CACHE is supported.
    pub flush_cache: bool,
    /// FLUSH CACHE EXT is supported.
    pub flush_cache_ext: bool,
    /// The FUA forms of writes are supported.
    pub fua: bool,
    /// The volatile write cache.
    pub write_cache: Feature,
    /// Read look-ahead.
    pub look_ahead: Feature,
    /// SMART.
    pub smart: Feature,
    /// SMART error log and self-test log are supported, as is READ LOG EXT for their extended forms.
    pub smart_logs: bool,
    /// Bytes of a logical sector.
    pub sector_bytes: u32,
    /// Logical sectors per physical sector, as a power of two.
    pub physical_exponent: u8,
    /// Nominal rotation rate; 1: non-rotating, 0: not reported.
    pub rotation_rate: u16,
    /// Most 512-byte blocks of ranges in one TRIM; 0: no TRIM.
    pub trim_sectors: u16,
    /// Trimmed sectors read as zeros.
    pub trim_zeros: bool,
    /// World wide name: an NAA identifier.
    pub world_wide_name: Option<u64>,
    /// Lunette's own: NOP waits for the AoE request that it names
    /// ([`Registers::nop`](super::Registers::nop)).
    pub nop_waits: bool,
}

/// How the model number of a Lunette begins, and that of vblade.
const LUNETTE: &[u8] = b"LUNETTE ";
const VBLADE: &str = "Coraid EtherDrive vblade";

// Word numbers.
const GENERAL: usize = 0;
const SERIAL: usize = 10;
const FIRMWARE: usize = 23;
const MODEL: usize = 27;
const CAPABILITIES: usize = 49;
const SECTORS_28: usize = 60;
const SUPPORTED: usize = 82;
const SUPPORTED_2: usize = 83;
const SUPPORTED_3: usize = 84;
const ENABLED: usize = 85;
const ENABLED_2: usize = 86;
const ENABLED_3: usize = 87;
const ADDITIONAL: usize = 69;
const SECTORS_48: usize = 100;
const TRIM_SECTORS: usize = 105;
const SECTOR_SIZE: usize = 106;
const WORLD_WIDE_NAME: usize = 108;
const SECTOR_WORDS: usize = 117;
const MARKS: usize = 129;
const DATA_SET_MANAGEMENT: usize = 169;
const ROTATION: usize = 217;
const INTEGRITY: usize = 255;

// Bits of SUPPORTED and ENABLED, and of their second and third words.
const SMART: u16 = 1 << 0;
const POWER_MANAGEMENT: u16 = 1 << 3;
const WRITE_CACHE: u16 = 1 << 5;
const LOOK_AHEAD: u16 = 1 << 6;
const LBA48: u16 = 1 << 10;
const FLUSH_CACHE: u16 = 1 << 12;
const FLUSH_CACHE_EXT: u16 = 1 << 13;
const SMART_ERROR_LOG: u16 = 1 << 0;
const SMART_SELF_TEST: u16 = 1 << 1;
const GENERAL_PURPOSE_LOGS: u16 = 1 << 5;
const FUA: u16 = 1 << 6;
const HAS_WORLD_WIDE_NAME: u16 = 1 << 8;
/// Bits of ADDITIONAL: trimmed sectors read deterministically, as zeros.
const TRIM_IS_ZERO: u16 = 1 << 14 | 1 << 5;
/// Bit of MARKS, the first of the vendor's words.
const NOP_WAITS: u16 = 1 << 0;
/// Bit of DATA_SET_MANAGEMENT.
const TRIM: u16 = 1 << 0;
/// Bit 14 set and bit 15 clear: the word is valid.
const VALID: u16 = 0x4000;
const VALID_MASK: u16 = 0xc000;
/// Bits of SECTOR_SIZE.
const LONG_SECTORS: u16 = 1 << 12;
const MANY_PER_PHYSICAL: u16 = 1 << 13;
/// The low byte of INTEGRITY when its high byte is a checksum.
const SIGNATURE: u8 = 0xa5;
/// Bit 15 of GENERAL: not an ATA device.
const NOT_ATA: u16 = 0x8000;

impl IdentifyData {
    /// Bytes of the data.
    pub const BYTES: usize = 512;

    /// The data, with its checksum.
    pub fn encode(&self) -> [u8; IdentifyData::BYTES] {
        let mut words = Words([0; IdentifyData::BYTES]);
        words.set(GENERAL, 0x0040);
        words.set_geometry(self.sectors);
        words.set_text(SERIAL, &self.serial);
        words.set_text(FIRMWARE, &self.firmware);
        words.set_text(MODEL, &self.model);
        words.set(47, 0x8000);
        words.set(48, VALID);
        // IORDY, LBA, DMA.
        words.set(CAPABILITIES, 0x0b00);
        words.set(50, VALID);
        // Words 54 to 58, 64 to 70 and 88 are valid.
        words.set(53, 0x0007);
        words.set_u32(SECTORS_28, u32::try_from(self.sectors.min(SECTORS_28_BIT - 1)).unwrap_or(u32::MAX));
        // Multiword DMA modes 0 to 2; PIO modes 3 and 4, with their cycle times in nanoseconds.
        words.set(63, 0x0007);
        words.set(64, 0x0003);
        (65..=68).for_each(|at| words.set(at, 120));
        // ATA/ATAPI-4 to ACS-3.
        words.set(80, 0x07f0);
        words.set(SUPPORTED, self.first(|feature| feature.supported));
        words.set(SUPPORTED_2, VALID | self.second());
        words.set(SUPPORTED_3, VALID | self.third());
        words.set(ENABLED, self.first(|feature| feature.enabled));
        words.set(ENABLED_2, self.second());
        words.set(ENABLED_3, VALID | self.third());
        // Ultra DMA modes 0 to 5, the last of which is selected.
        words.set(88, 0x203f);
        words.set_u64(SECTORS_48, if self.lba48 { self.sectors } else { 0 });
        if self.trim_sectors != 0 {
            words.set(ADDITIONAL, when(self.trim_zeros, TRIM_IS_ZERO));
            words.set(TRIM_SECTORS, self.trim_sectors);
            words.set(DATA_SET_MANAGEMENT, TRIM);
        }
        words.set_sector_size(self.sector_bytes, self.physical_exponent);
        if let Some(name) = self.world_wide_name {
            words.set_name(name);
        }
        words.set(119, VALID);
        words.set(120, VALID);
        words.set(MARKS, when(self.nop_waits, NOP_WAITS));
        words.set(ROTATION, self.rotation_rate);
        words.seal();
        words.0
    }

    /// Parses the data; `None` when it is too short, not from an ATA device, or fails its checksum.
    pub fn decode(data: &[u8]) -> Option<IdentifyData> {
        let words = Words(*data.first_chunk::<{ IdentifyData::BYTES }>()?);
        if words.get(GENERAL) & NOT_ATA != 0 || !words.is_whole() {
            return None;
        }
        let (supported, enabled) = (words.get(SUPPORTED), words.get(ENABLED));
        let second = if words.is_valid(SUPPORTED_2) { words.get(SUPPORTED_2) } else { 0 };
        let third = if words.is_valid(SUPPORTED_3) { words.get(SUPPORTED_3) } else { 0 };
        let feature = |bit| Feature { supported: supported & bit != 0, enabled: enabled & bit != 0 };
        let lba48 = second & LBA48 != 0;
        let sectors = match words.get_u64(SECTORS_48) {
            sectors if lba48 && sectors != 0 => sectors,
            _ => u64::from(words.get_u32(SECTORS_28)),
        };
        let (sector_bytes, physical_exponent) = words.sector_size();
        let trims = words.get(DATA_SET_MANAGEMENT) & TRIM != 0;
        Some(IdentifyData {
            serial: words.text(SERIAL),
            firmware: words.text(FIRMWARE),
            model: words.text(MODEL),
            sectors,
            lba48,
            flush_cache: second & FLUSH_CACHE != 0,
            flush_cache_ext: second & FLUSH_CACHE_EXT != 0,
            fua: third & FUA != 0,
            write_cache: feature(WRITE_CACHE),
            look_ahead: feature(LOOK_AHEAD),
            smart: feature(SMART),
            smart_logs: third & (SMART_ERROR_LOG | SMART_SELF_TEST) != 0,
            sector_bytes,
            physical_exponent,
            rotation_rate: words.get(ROTATION),
            // One, when not reported.
            trim_sectors: if trims { words.get(TRIM_SECTORS).max(1) } else { 0 },
            trim_zeros: trims && words.get(ADDITIONAL) & TRIM_IS_ZERO == TRIM_IS_ZERO,
            world_wide_name: (third & HAS_WORLD_WIDE_NAME != 0).then(|| words.name()),
            nop_waits: words.get(MARKS) & NOP_WAITS != 0,
        })
    }

    /// Whether the answer to [`Registers::nop`](super::Registers::nop) proves that the AoE request it names
    /// has ended. A Lunette reports this; vblade processes requests one at a time, in order of arrival.
    pub fn proves_by_nop(&self) -> bool {
        self.nop_waits && self.model.starts_with(LUNETTE) || self.model == text(VBLADE)
    }

    fn first(&self, has: fn(&Feature) -> bool) -> u16 {
        let bit = |feature: &Feature, bit: u16| if has(feature) { bit } else { 0 };
        POWER_MANAGEMENT
            | bit(&self.smart, SMART)
            | bit(&self.write_cache, WRITE_CACHE)
            | bit(&self.look_ahead, LOOK_AHEAD)
    }

    fn second(&self) -> u16 {
        when(self.lba48, LBA48)
            | when(self.flush_cache, FLUSH_CACHE)
            | when(self.flush_cache_ext, FLUSH_CACHE_EXT)
    }

    fn third(&self) -> u16 {
        when(self.smart_logs, SMART_ERROR_LOG | SMART_SELF_TEST | GENERAL_PURPOSE_LOGS)
            | when(self.fua, FUA)
            | when(self.world_wide_name.is_some(), HAS_WORLD_WIDE_NAME)
    }
}

/// Text for a field of [`IdentifyData`]: truncated or padded with spaces; unprintable and non-ASCII
/// characters become spaces.
pub fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [b' '; N];
    for (slot, byte) in out.iter_mut().zip(text.bytes()) {
        *slot = if byte.is_ascii_graphic() { byte } else { b' ' };
    }
    out
}

fn when(is_so: bool, bits: u16) -> u16 {
    if is_so { bits } else { 0 }
}

/// The data, as little-endian words.
struct Words([u8; IdentifyData::BYTES]);

impl Words {
    fn get(&self, at: usize) -> u16 {
        let mut words = self.0.chunks_exact(2).skip(at);
        words.next().and_then(|word| word.try_into().ok()).map_or(0, u16::from_le_bytes)
    }

    fn set(&mut self, at: usize, value: u16) {
        if let Some(word) = self.0.chunks_exact_mut(2).nth(at) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn get_u32(&self, at: usize) -> u32 {
        u32::from(self.get(at)) | u32::from(self.get(at.saturating_add(1))) << 16
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        let [a, b, c, d] = value.to_le_bytes();
        self.set(at, u16::from_le_bytes([a, b]));
        self.set(at.saturating_add(1), u16::from_le_bytes([c, d]));
    }

    fn get_u64(&self, at: usize) -> u64 {
        u64::from(self.get_u32(at)) | u64::from(self.get_u32(at.saturating_add(2))) << 32
    }

    fn set_u64(&mut self, at: usize, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.set_u32(at, u32::from_le_bytes([a, b, c, d]));
        self.set_u32(at.saturating_add(2), u32::from_le_bytes([e, f, g, h]));
    }

    /// Text has the first of two characters in the high byte of a word (ACS-3 section 3.4.9).
    fn set_text(&mut self, at: usize, text: &[u8]) {
        for (word, pair) in self.0.chunks_exact_mut(2).skip(at).zip(text.chunks_exact(2)) {
            word.copy_from_slice(pair);
            word.reverse();
        }
    }

    fn text<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [b' '; N];
        for (pair, word) in out.chunks_exact_mut(2).zip(self.0.chunks_exact(2).skip(at)) {
            pair.copy_from_slice(word);
            pair.reverse();
        }
        out
    }

    /// Cylinders, heads and sectors: obsolete since ATA/ATAPI-6, but still read from small disks.
    fn set_geometry(&mut self, sectors: u64) {
        let (heads, per_track) = (16u16, 63u16);
        let cylinders = u16::try_from(sectors / 1008).unwrap_or(u16::MAX).min(16383);
        for (at, value) in [(1, cylinders), (3, heads), (6, per_track)] {
            self.set(at, value);
        }
        for (at, value) in [(54, cylinders), (55, heads), (56, per_track)] {
            self.set(at, value);
        }
        self.set_u32(57, u32::from(cylinders).saturating_mul(1008));
    }

    fn set_sector_size(&mut self, bytes: u32, exponent: u8) {
        let long = bytes > SECTOR_BYTES;
        let flags = when(long, LONG_SECTORS) | when(exponent != 0, MANY_PER_PHYSICAL);
        self.set(SECTOR_SIZE, VALID | flags | u16::from(exponent & 0x0f));
        if long {
            self.set_u32(SECTOR_WORDS, bytes >> 1);
        }
    }

    /// Bytes per logical sector, and logical sectors per physical one.
    fn sector_size(&self) -> (u32, u8) {
        if !self.is_valid(SECTOR_SIZE) {
            return (SECTOR_BYTES, 0);
        }
        let flags = self.get(SECTOR_SIZE);
        let long = flags & LONG_SECTORS != 0;
        let bytes = if long { self.get_u32(SECTOR_WORDS).saturating_mul(2) } else { SECTOR_BYTES };
        let [exponent, _] = (flags & 0x0f).to_le_bytes();
        (bytes, if flags & MANY_PER_PHYSICAL != 0 { exponent } else { 0 })
    }

    /// The name's highest word comes first.
    fn set_name(&mut self, name: u64) {
        let [a, b, c, d, e, f, g, h] = name.to_be_bytes();
        let words = [[a, b], [c, d], [e, f], [g, h]];
        for (at, word) in (WORLD_WIDE_NAME..).zip(words) {
            self.set(at, u16::from_be_bytes(word));
        }
    }

    fn name(&self) -> u64 {
        (WORLD_WIDE_NAME..).take(4).fold(0, |name, at| name << 16 | u64::from(self.get(at)))
    }

    fn is_valid(&self, at: usize) -> bool {
        self.get(at) & VALID_MASK == VALID
    }

    fn sum(&self) -> u8 {
        self.0.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    /// Sets the checksum.
    fn seal(&mut self) {
        self.set(INTEGRITY, u16::from(SIGNATURE));
        let rest = self.sum().wrapping_neg();
        self.set(INTEGRITY, u16::from_le_bytes([SIGNATURE, rest]));
    }

    /// Whether the checksum is right, if there is one.
    fn is_whole(&self) -> bool {
        let [signature, _] = self.get(INTEGRITY).to_le_bytes();
        signature != SIGNATURE || self.sum() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: IdentifyData = IdentifyData {
        serial: *b"0123456789          ",
        firmware: *b"1.2     ",
        model: *b"Lunette disk                            ",
        sectors: 0x0001_2345_6789,
        lba48: true,
        flush_cache: true,
        flush_cache_ext: true,
        fua: true,
        write_cache: Feature { supported: true, enabled: false },
        look_ahead: Feature::ON,
        smart: Feature::ON,
        smart_logs: true,
        sector_bytes: 512,
        physical_exponent: 3,
        rotation_rate: 1,
        trim_sectors: 4,
        trim_zeros: true,
        world_wide_name: Some(0x5001_2345_6789_abcd),
        nop_waits: true,
    };

    #[test]
    fn only_a_mark_or_vblade_s_name_says_that_nop_proves_anything() {
        let named =
            |model, nop_waits| IdentifyData { model: text(model), nop_waits, ..IDENTITY }.proves_by_nop();
        assert!(named("LUNETTE disk", true) && named("Coraid EtherDrive vblade", false));
        assert!(!named("LUNETTE disk", false) && !named("ACME disk", true));
        assert!(!named("EtherDrive(R) kvblade", false));
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        assert_eq!(IdentifyData::decode(&IDENTITY.encode()), Some(IDENTITY));
        let small = IdentifyData {
            sectors: 2048,
            lba48: false,
            flush_cache_ext: false,
            fua: false,
            write_cache: Feature::default(),
            smart: Feature::default(),
            smart_logs: false,
            physical_exponent: 0,
            world_wide_name: None,
            nop_waits: false,
            ..IDENTITY
        };
        assert_eq!(IdentifyData::decode(&small.encode()), Some(small));
        let long = IdentifyData { sector_bytes: 4096, trim_zeros: false, ..small };
        assert_eq!(IdentifyData::decode(&long.encode()), Some(long));
    }

    #[test]
    fn words_are_where_the_standard_has_them() {
        let data = IDENTITY.encode();
        let word = |at: usize| u16::from_le_bytes([data[2 * at], data[2 * at + 1]]);
        assert_eq!(&data[54..58], b"uLen", "characters are swapped");
        assert_eq!((word(60), word(61)), (0xffff, 0x0fff), "as much as 28 bits can say");
        assert_eq!([word(100), word(101), word(102), word(103)], [0x6789, 0x2345, 0x0001, 0]);
        assert_eq!(word(82), 0x0069);
        assert_eq!(word(85), 0x0049);
        assert_eq!(word(83), 0x7400);
        assert_eq!(word(106), 0x6003);
        assert_eq!([word(108), word(111)], [0x5001, 0xabcd]);
        assert_eq!(data[510], 0xa5);
        assert_eq!(data.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
    }

    #[test]
    fn identify_data_that_is_short_or_corrupt_or_of_no_disk_is_rejected() {
        let good = IDENTITY.encode();
        assert_eq!(IdentifyData::decode(&good[..511]), None);
        let mut broken = good;
        broken[200] ^= 1;
        assert_eq!(IdentifyData::decode(&broken), None);
        let mut packet = good;
        packet[1] |= 0x80;
        packet[510] = 0;
        assert_eq!(IdentifyData::decode(&packet), None);
    }

    #[test]
    fn a_word_that_is_not_valid_says_nothing() {
        let mut data = [0; 512];
        data[120..124].copy_from_slice(&2048u32.to_le_bytes());
        data[167] = 0xff;
        let identity = IdentifyData::decode(&data).unwrap();
        assert_eq!((identity.sectors, identity.lba48, identity.sector_bytes), (2048, false, 512));
    }

    /// The fields that vblade's `ata.c` fills, and no others.
    #[test]
    fn a_target_that_says_little_is_understood() {
        let mut words = Words([0; 512]);
        for (at, value) in [(47, 0x8000), (49, 0x0200), (50, 0x4000), (83, 0x5400), (84, 0x4000)] {
            words.set(at, value);
        }
        for (at, value) in [(86, 0x1400), (87, 0x4000), (93, 0x400b)] {
            words.set(at, value);
        }
        words.set_text(MODEL, &text::<40>("Coraid EtherDrive vblade"));
        words.set_u32(SECTORS_28, 4096);
        words.set_u64(SECTORS_48, 4096);
        let identity = IdentifyData::decode(&words.0).unwrap();
        assert_eq!((identity.sectors, identity.lba48, identity.sector_bytes), (4096, true, 512));
        assert_eq!((identity.flush_cache, identity.flush_cache_ext), (true, false));
        assert_eq!(identity.write_cache, Feature::default());
    }

    #[test]
    fn text_is_cut_and_padded() {
        assert_eq!(text::<4>("ab"), *b"ab  ");
        assert_eq!(text::<4>("a\u{7}bcdef"), *b"a bc");
    }
}
