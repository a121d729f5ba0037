//! TOML into the raw form. Every fault of the text is found at once: syntax, types, unknown keys.

use super::ByDevice;
use super::problems::{Collector, Fault, suggest};
use super::raw::*;
use super::redact;
use std::path::PathBuf;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Reads the whole file; what cannot be understood is noted and left out. `None`: it is not TOML at all.
pub(super) fn read(text: &str, problems: &mut Collector<'_>) -> Option<Raw> {
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let offset = error.span().map_or(0, |span| span.start);
        let place = Place { path: String::new(), offset: Some(offset) };
        let what = error.message().lines().next().unwrap_or("not TOML").to_string();
        problems.add(&place, Fault::new(what, "see https://toml.io for the syntax"));
    }
    if !errors.is_empty() {
        return None;
    }
    let mut root = Table::new(document.get_ref(), Place { path: String::new(), offset: Some(0) });
    let raw = Raw {
        cores: root.text("cores", problems),
        poll: root.text("poll", problems),
        state_dir: root.text("state_dir", problems).map(|at| At::new(PathBuf::from(&at.value), &at.place)),
        admin: root.text("admin", problems),
        login_timeout: root.text_or_number("login_timeout", problems),
        keep_alive: root.text_or_number("keep_alive", problems),
        stall_timeout: root.text_or_number("stall_timeout", problems),
        logins_max: root.number("logins_max", problems),
        srp_guid: root.text("srp_guid", problems),
        portals: root.tables("portal", problems, portal),
        aoe: root.tables("aoe", problems, aoe),
        luns: root.tables("lun", problems, lun),
        targets: root.tables("target", problems, target),
    };
    root.finish(problems);
    Some(raw)
}

fn portal(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawPortal {
    RawPortal {
        place: table.place.clone(),
        name: table.text("name", problems),
        listen: table.text("listen", problems),
        cores: table.text("cores", problems),
        group: table.number("group", problems),
        transports: table.texts("transports", problems),
        rdma: table.by_device("rdma", problems),
    }
}

fn aoe(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawAoe {
    RawAoe {
        place: table.place.clone(),
        interface: table.text("interface", problems),
        cores: table.text("cores", problems),
        allow: table.texts("allow", problems),
        deny: table.texts("deny", problems),
    }
}

fn lun(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawLun {
    RawLun {
        place: table.place.clone(),
        name: table.text("name", problems),
        ram: table.text_or_number("ram", problems),
        null: table.text_or_number("null", problems),
        file: table.text("file", problems),
        block: table.text("block", problems),
        url: table.text("url", problems),
        size: table.text_or_number("size", problems),
        huge_pages: table.text("huge_pages", problems),
        block_size: table.text_or_number("block_size", problems),
        physical_block_size: table.text_or_number("physical_block_size", problems),
        serial: table.text("serial", problems),
        product: table.text("product", problems),
        read_only: table.switch("read_only", problems),
        write_cache: table.switch("write_cache", problems),
        thin: table.switch("thin", problems),
        removable: table.switch("removable", problems),
        aoe: table.text("aoe", problems),
    }
}

fn target(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawTarget {
    RawTarget {
        place: table.place.clone(),
        name: table.text("name", problems),
        alias: table.text("alias", problems),
        sessions_max: table.number("sessions_max", problems),
        portals: table.texts("portals", problems),
        luns: table.lun_list("luns", problems),
        groups: table.tables("group", problems, group),
    }
}

fn group(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawGroup {
    RawGroup {
        place: table.place.clone(),
        name: table.text("name", problems),
        initiators: table.texts("initiators", problems),
        networks: table.texts("networks", problems),
        deny: table.switch("deny", problems),
        read_only: table.switch("read_only", problems),
        luns: table.lun_list("luns", problems),
        chap: table.table("chap", problems, chap),
    }
}

fn chap(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> RawChap {
    RawChap {
        place: table.place.clone(),
        user: table.text("user", problems),
        secret: table.text("secret", problems),
        secret_file: table.text("secret_file", problems),
        mutual_user: table.text("mutual_user", problems),
        mutual_secret: table.text("mutual_secret", problems),
        mutual_secret_file: table.text("mutual_secret_file", problems),
        algorithms: table.texts("algorithms", problems),
    }
}

/// A table that is being read: it remembers which keys it was asked for, so that the others are unknown.
struct Table<'a, 't> {
    entries: &'a DeTable<'t>,
    place: Place,
    asked: Vec<&'static str>,
}

impl<'a, 't> Table<'a, 't> {
    fn new(entries: &'a DeTable<'t>, place: Place) -> Table<'a, 't> {
        Table { entries, place, asked: Vec::new() }
    }

    /// Notes every key that nobody asked for.
    fn finish(self, problems: &mut Collector<'_>) {
        for key in self.entries.keys() {
            let name: &str = key.get_ref();
            if !self.asked.contains(&name) {
                // Also of a line that only lacks its quotes or its key.
                let place = self.place_of(&redact(name), key.span().start);
                let fix = suggest(name, self.asked.iter().copied());
                problems.add(&place, Fault::new("unknown key", fix));
            }
        }
    }

    fn text(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Text {
        let (place, value) = self.take(key)?;
        match value {
            DeValue::String(text) => Some(At::new(text.to_string(), &place)),
            other => wrong_type(&place, other, "a string in quotes", problems),
        }
    }

    fn number(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Text {
        let (place, value) = self.take(key)?;
        match decimal(value) {
            Some(digits) => Some(At::new(digits, &place)),
            None => wrong_type(&place, value, "a whole number", problems),
        }
    }

    fn text_or_number(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Text {
        let (place, value) = self.take(key)?;
        match (value, decimal(value)) {
            (DeValue::String(text), _) => Some(At::new(text.to_string(), &place)),
            (_, Some(digits)) => Some(At::new(digits, &place)),
            (other, None) => wrong_type(&place, other, "a whole number or a string in quotes", problems),
        }
    }

    fn switch(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Switch {
        let (place, value) = self.take(key)?;
        match value.as_bool() {
            Some(on) => Some(At::new(on, &place)),
            None => wrong_type(&place, value, "true or false", problems),
        }
    }

    fn by_device(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Option<At<ByDevice>> {
        let (place, value) = self.take(key)?;
        match (value.as_bool(), value.as_str()) {
            (Some(false), _) => Some(At::new(ByDevice::No, &place)),
            (Some(true), _) => Some(At::new(ByDevice::Too, &place)),
            (None, Some("only")) => Some(At::new(ByDevice::Only, &place)),
            (None, _) => wrong_type(&place, value, "true, false or \"only\"", problems),
        }
    }

    fn texts(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Option<Vec<At<String>>> {
        let (place, value) = self.take(key)?;
        let Some(array) = value.as_array() else {
            return wrong_type(&place, value, "an array of strings", problems);
        };
        let text = |(index, item): (usize, &Spanned<DeValue<'_>>)| {
            let place = item_place(&place, index, item);
            match item.get_ref().as_str() {
                Some(text) => Some(At::new(text.to_string(), &place)),
                None => wrong_type(&place, item.get_ref(), "a string in quotes", problems),
            }
        };
        Some(array.iter().enumerate().filter_map(text).collect())
    }

    /// `["disk", { lun = "other", number = 5 }]`.
    fn lun_list(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Option<Vec<RawLunRef>> {
        let (place, value) = self.take(key)?;
        let Some(array) = value.as_array() else {
            return wrong_type(&place, value, "an array of LUN names", problems);
        };
        let reference = |(index, item): (usize, &Spanned<DeValue<'_>>)| {
            let place = item_place(&place, index, item);
            match item.get_ref() {
                DeValue::String(name) => {
                    let lun = Some(At::new(name.to_string(), &place));
                    Some(RawLunRef { place, lun, number: None })
                }
                DeValue::Table(entries) => {
                    let mut table = Table::new(entries, place.clone());
                    let (lun, number) = (table.text("lun", problems), table.number("number", problems));
                    table.finish(problems);
                    Some(RawLunRef { place, lun, number })
                }
                other => {
                    wrong_type(&place, other, "a LUN's name or { lun = \"name\", number = 0 }", problems)
                }
            }
        };
        Some(array.iter().enumerate().filter_map(reference).collect())
    }

    fn table<T>(
        &mut self,
        key: &'static str,
        problems: &mut Collector<'_>,
        read: impl Fn(&mut Table<'_, '_>, &mut Collector<'_>) -> T,
    ) -> Option<T> {
        let (place, value) = self.take(key)?;
        let Some(entries) = value.as_table() else {
            return wrong_type(&place, value, "a table", problems);
        };
        Some(read_table(entries, place, problems, &read))
    }

    fn tables<T>(
        &mut self,
        key: &'static str,
        problems: &mut Collector<'_>,
        read: impl Fn(&mut Table<'_, '_>, &mut Collector<'_>) -> T,
    ) -> Vec<T> {
        let Some((place, value)) = self.take(key) else { return Vec::new() };
        let header = format!("tables, each under a [[{}]] header", header_of(&place.path));
        let Some(array) = value.as_array() else {
            return wrong_type(&place, value, &header, problems).unwrap_or_default();
        };
        let entry = |(index, item): (usize, &Spanned<DeValue<'_>>)| {
            let place = item_place(&place, index, item);
            match item.get_ref().as_table() {
                Some(entries) => Some(read_table(entries, place, problems, &read)),
                None => wrong_type(&place, item.get_ref(), &header, problems),
            }
        };
        array.iter().enumerate().filter_map(entry).collect()
    }

    fn take(&mut self, key: &'static str) -> Option<(Place, &'a DeValue<'t>)> {
        self.asked.push(key);
        let value = self.entries.get(key)?;
        Some((self.place_of(key, value.span().start), value.get_ref()))
    }

    fn place_of(&self, key: &str, offset: usize) -> Place {
        let dot = if self.place.path.is_empty() { "" } else { "." };
        Place { path: format!("{}{dot}{key}", self.place.path), offset: Some(offset) }
    }
}

fn read_table<T>(
    entries: &DeTable<'_>,
    place: Place,
    problems: &mut Collector<'_>,
    read: &impl Fn(&mut Table<'_, '_>, &mut Collector<'_>) -> T,
) -> T {
    let mut table = Table::new(entries, place);
    let value = read(&mut table, problems);
    table.finish(problems);
    value
}

fn item_place(array: &Place, index: usize, item: &Spanned<DeValue<'_>>) -> Place {
    Place { path: format!("{}[{index}]", array.path), offset: Some(item.span().start) }
}

/// `target[0].group` is headed `[[target.group]]`.
fn header_of(path: &str) -> String {
    path.split('.').map(|part| part.split('[').next().unwrap_or(part)).collect::<Vec<_>>().join(".")
}

/// An integer of any radix in decimal digits; one that fits nothing stays as it was written.
fn decimal(value: &DeValue<'_>) -> Option<String> {
    let integer = value.as_integer()?;
    let number = i128::from_str_radix(integer.as_str(), integer.radix());
    Some(number.map_or_else(|_| integer.as_str().to_string(), |number| number.to_string()))
}

fn wrong_type<T>(
    place: &Place,
    value: &DeValue<'_>,
    wanted: &str,
    problems: &mut Collector<'_>,
) -> Option<T> {
    let kind = match value.type_str() {
        kind @ ("integer" | "array") => format!("an {kind}"),
        kind => format!("a {kind}"),
    };
    problems.add(place, Fault::new(format!("this is {kind}"), format!("write {wanted}")));
    None
}
