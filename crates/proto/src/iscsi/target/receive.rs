//! Parses PDUs as they arrive over a byte stream.

use super::Target;
use super::layer::{Incoming, Phase};
use super::violation::Violation;
use wire::iscsi::{BasicHeader, DIGEST_BYTES, Opcode};

impl Target {
    /// Contiguous bytes: a header, the rest of one, or a piece of text.
    pub(super) fn received(&mut self, bytes: &[u8]) {
        match self.layer.incoming {
            Incoming::Nothing if self.segments > 0 => {
                self.segments = 0;
                let mut head = std::mem::take(&mut self.head);
                head.extend_from_slice(bytes);
                self.checked_header(&head);
                self.restore_head(head);
            }
            Incoming::Nothing => self.basic_header(bytes),
            Incoming::Text { len } => {
                self.gathered.extend_from_slice(bytes);
                let total = self.text_bytes(len);
                if u32::try_from(self.gathered.len()).is_ok_and(|have| have >= total) {
                    self.gathered_all(len);
                }
            }
            Incoming::Unplaced(_) | Incoming::Body { .. } | Incoming::Skip { .. } => {}
        }
    }

    fn basic_header(&mut self, bytes: &[u8]) {
        let login = matches!(self.layer.phase, Phase::Login { .. });
        match BasicHeader::view(bytes) {
            Some(basic) if basic.total_ahs_length == 0 => self.checked_header(bytes),
            // Additional segments are not awaited where they are refused anyway.
            Some(basic) if login && basic.opcode() != Opcode::LOGIN_REQUEST => self.layer.refuse_login(),
            Some(basic) if basic.opcode() != Opcode::SCSI_COMMAND => {
                self.layer.drop_for(Violation::AdditionalHeader)
            }
            Some(basic) => {
                self.head.clear();
                self.head.extend_from_slice(bytes);
                self.segments = basic.ahs_bytes();
            }
            None => {}
        }
    }

    /// A whole header with its digest.
    fn checked_header(&mut self, bytes: &[u8]) {
        let header = if self.layer.link.header_digest {
            let end = bytes.len().saturating_sub(DIGEST_BYTES);
            let (header, digest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
            if digest != (self.layer.config.crc32c)(header).to_le_bytes() {
                return self.layer.drop_for(Violation::HeaderDigest);
            }
            header
        } else {
            bytes
        };
        self.layer.header(header);
        if let Incoming::Text { .. } = self.layer.incoming {
            self.gathered.clear();
            self.head.clear();
            self.head.extend_from_slice(header);
        }
    }

    fn gathered_all(&mut self, len: u32) {
        self.layer.incoming = Incoming::Nothing;
        let head = std::mem::take(&mut self.head);
        let mut text = std::mem::take(&mut self.gathered);
        let padded = if self.layer.link.data_digest {
            let end = text.len().saturating_sub(DIGEST_BYTES);
            let (padded, digest) = text.split_at_checked(end).unwrap_or((&text, &[]));
            if digest != (self.layer.config.crc32c)(padded).to_le_bytes() {
                return self.layer.drop_for(Violation::DataDigest);
            }
            end
        } else {
            text.len()
        };
        text.truncate(usize::try_from(len).unwrap_or(padded).min(padded));
        self.layer.request(&head, &text);
        self.restore_head(head);
        self.gathered = text;
    }

    /// Restores the header's allocation for the next one.
    fn restore_head(&mut self, mut head: Vec<u8>) {
        if self.head.is_empty() {
            head.clear();
            self.head = head;
        }
    }
}
