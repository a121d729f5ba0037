//! Sizes in readable form.

use std::fmt;

/// Shown in the largest unit that divides it, so nothing is rounded.
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.iter().find(|(shift, _)| self.0 > 0 && self.0.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_rounded() {
        let shown = |bytes| Size(bytes).to_string();
        assert_eq!(shown(0), "0 bytes");
        assert_eq!(shown(1023), "1023 bytes");
        assert_eq!(shown(1536 << 20), "1536 MiB");
        assert_eq!(shown(3 << 40), "3 TiB");
    }
}
