//! An NBD server's description of an export. It is not a SCSI unit: it has neither an identity nor pages.

use super::rows::{Rows, yes_no};
use config::{NbdUrl, format_size};
use serde::Serialize;

/// An export: one field for each part of the JSON document.
#[derive(Serialize)]
pub(super) struct Report {
    url: String,
    size_bytes: u64,
    block_minimum_bytes: u32,
    block_preferred_bytes: u32,
    payload_maximum_bytes: u32,
    read_only: bool,
    flush: bool,
    fua: bool,
    write_zeroes: bool,
    block_status: bool,
    structured_replies: bool,
    multi_conn: bool,
}

/// Queries the server.
pub(super) fn ask(url: &NbdUrl) -> Result<Report, store::OpenError> {
    let export = store::nbd::inspect(url)?;
    Ok(Report {
        url: url.to_string(),
        size_bytes: export.size,
        block_minimum_bytes: export.block_minimum,
        block_preferred_bytes: export.block_preferred,
        payload_maximum_bytes: export.payload_maximum,
        read_only: export.is_read_only(),
        flush: export.flushes(),
        fua: export.writes_through(),
        write_zeroes: export.clears(),
        block_status: export.allocation.is_some(),
        structured_replies: export.structured,
        multi_conn: export.shares_connections(),
    })
}

impl Report {
    pub(super) fn text(&self) -> String {
        let mut rows = Rows::default();
        rows.title(&self.url);
        rows.add("capacity", format!("{} ({} bytes)", format_size(self.size_bytes), self.size_bytes));
        rows.add("smallest block", format!("{} bytes", self.block_minimum_bytes));
        rows.add("preferred block", format!("{} bytes", self.block_preferred_bytes));
        rows.add("longest payload", format!("{} bytes", self.payload_maximum_bytes));
        for (label, value) in [
            ("read-only", self.read_only),
            ("flush", self.flush),
            ("FUA", self.fua),
            ("write zeroes", self.write_zeroes),
            ("block status", self.block_status),
            ("structured replies", self.structured_replies),
            ("several connections", self.multi_conn),
        ] {
            rows.add(label, yes_no(value));
        }
        rows.finish()
    }
}
