//! TOML with positions: a document is read table by table, and every fault is recorded with its place:
//! syntax, types, unknown keys.

use super::place::{At, Place};
use super::problems::{Collector, Fault, suggest};
use super::redact::redact;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Most values in a list.
const LIST_MAX: usize = 256;

/// Reads a whole document; invalid parts are recorded and left out. `None`: it is not TOML at all.
pub fn read_document<T>(
    text: &str,
    problems: &mut Collector<'_>,
    read: impl FnMut(&mut Table<'_, '_>, &mut Collector<'_>) -> T,
) -> Option<T> {
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let offset = error.span().map_or(0, |span| span.start);
        let place = Place { path: String::new(), offset: Some(offset) };
        let what = error.message().lines().next().unwrap_or("not TOML").to_string();
        problems.add(&place, Fault::new(what, "see https://toml.io for the syntax"));
    }
    let root = Place { path: String::new(), offset: Some(0) };
    errors.is_empty().then(|| read_table(document.get_ref(), root, problems, read))
}

/// A table being read: it records which keys were requested, since all others are unknown.
pub struct Table<'a, 't> {
    entries: &'a DeTable<'t>,
    pub(super) place: Place,
    asked: Vec<&'static str>,
}

impl<'a, 't> Table<'a, 't> {
    fn new(entries: &'a DeTable<'t>, place: Place) -> Table<'a, 't> {
        Table { entries, place, asked: Vec::new() }
    }

    /// Reports every key that was not requested.
    fn finish(self, problems: &mut Collector<'_>) {
        for key in self.entries.keys() {
            let name: &str = key.get_ref();
            if !self.asked.contains(&name) {
                // Redacted, as it may come from a line that merely lacks its quotes or its key.
                let place = self.place_of(&redact(name), key.span().start);
                let fix = suggest(name, self.asked.iter().copied());
                problems.add(&place, Fault::new("unknown key", fix));
            }
        }
    }

    pub(super) fn text(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Option<At<String>> {
        let (place, value) = self.take(key)?;
        match value {
            DeValue::String(text) => Some(At::new(text.to_string(), &place)),
            other => wrong_type(&place, other, "a string in quotes", problems),
        }
    }

    pub(super) fn number(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Option<At<String>> {
        let (place, value) = self.take(key)?;
        match decimal(value) {
            Some(digits) => Some(At::new(digits, &place)),
            None => wrong_type(&place, value, "a whole number", problems),
        }
    }

    pub(super) fn text_or_number(
        &mut self,
        key: &'static str,
        problems: &mut Collector<'_>,
    ) -> Option<At<String>> {
        let (place, value) = self.take(key)?;
        match (value, decimal(value)) {
            (DeValue::String(text), _) => Some(At::new(text.to_string(), &place)),
            (_, Some(digits)) => Some(At::new(digits, &place)),
            (other, None) => wrong_type(&place, other, "a whole number or a string in quotes", problems),
        }
    }

    pub(super) fn boolean(&mut self, key: &'static str, problems: &mut Collector<'_>) -> Option<At<bool>> {
        let (place, value) = self.take(key)?;
        match value.as_bool() {
            Some(on) => Some(At::new(on, &place)),
            None => wrong_type(&place, value, "true or false", problems),
        }
    }

    pub(super) fn texts(
        &mut self,
        key: &'static str,
        problems: &mut Collector<'_>,
    ) -> Option<Vec<At<String>>> {
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

    pub(super) fn table<T>(
        &mut self,
        key: &'static str,
        problems: &mut Collector<'_>,
        mut read: impl FnMut(&mut Table<'_, '_>, &mut Collector<'_>) -> T,
    ) -> Option<T> {
        let (place, value) = self.take(key)?;
        let Some(entries) = value.as_table() else {
            return wrong_type(&place, value, "a table", problems);
        };
        Some(read_table(entries, place, problems, &mut read))
    }

    /// An array of tables.
    pub fn tables<T>(
        &mut self,
        key: &'static str,
        problems: &mut Collector<'_>,
        mut read: impl FnMut(&mut Table<'_, '_>, &mut Collector<'_>) -> T,
    ) -> Vec<T> {
        let Some((place, value)) = self.take(key) else { return Vec::new() };
        let header = format!("tables, each under a [[{}]] header", header_of(&place.path));
        let Some(array) = value.as_array() else {
            return wrong_type(&place, value, &header, problems).unwrap_or_default();
        };
        let entry = |(index, item): (usize, &Spanned<DeValue<'_>>)| {
            let place = item_place(&place, index, item);
            match item.get_ref().as_table() {
                Some(entries) => Some(read_table(entries, place, problems, &mut read)),
                None => wrong_type(&place, item.get_ref(), &header, problems),
            }
        };
        array.iter().enumerate().filter_map(entry).collect()
    }

    /// Whether a key is missing, or an empty array.
    pub fn is_empty(&self, key: &str) -> bool {
        let array = |value: &Spanned<DeValue<'_>>| value.get_ref().as_array().map(|array| array.is_empty());
        self.entries.get(key).is_none_or(|value| array(value).unwrap_or(false))
    }

    /// Reports a fault of one key; if that is missing, at the place of the table.
    pub fn fault(&self, key: &str, fault: Fault, problems: &mut Collector<'_>) {
        let offset = self.entries.get(key).map_or(self.place.offset, |value| Some(value.span().start));
        problems.add(&Place { offset, ..self.place_of(key, 0) }, fault);
    }

    /// A required string.
    pub fn required(&mut self, key: &'static str, problems: &mut Collector<'_>) -> String {
        let text = self.one(key, |text| Ok(text.to_string()), problems);
        let is_blank = text.as_ref().is_some_and(|text| text.trim().is_empty());
        if is_blank || !self.entries.contains_key(key) {
            self.fault(key, Fault::new("it is missing", format!("write {key} = \"...\"")), problems);
        }
        text.unwrap_or_default()
    }

    /// A scalar as text: a string, a number or a boolean.
    pub fn one<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Fault>,
        problems: &mut Collector<'_>,
    ) -> Option<T> {
        let (place, value) = self.take(key)?;
        scalar(value, &place, "one value", &parse, problems)
    }

    /// A scalar, or an array of them without duplicates.
    pub fn list<T: PartialEq>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Fault>,
        problems: &mut Collector<'_>,
    ) -> Option<Vec<T>> {
        let (place, value) = self.take(key)?;
        let Some(array) = value.as_array() else {
            let one = scalar(value, &place, "one value, or an array of them", &parse, problems);
            return one.map(|one| vec![one]);
        };
        if array.is_empty() || array.len() > LIST_MAX {
            let fix = format!("write 1 to {LIST_MAX} values, or remove the key");
            problems.add(&place, Fault::new("the list has the wrong length", fix));
        }
        let mut list = Vec::new();
        for (index, item) in array.iter().take(LIST_MAX).enumerate() {
            let place = item_place(&place, index, item);
            match scalar(item.get_ref(), &place, "one value", &parse, problems) {
                Some(value) if list.contains(&value) => {
                    problems.add(&place, Fault::new("it is a duplicate", "remove it"));
                }
                value => list.extend(value),
            }
        }
        Some(list)
    }

    pub(super) fn take(&mut self, key: &'static str) -> Option<(Place, &'a DeValue<'t>)> {
        self.asked.push(key);
        let value = self.entries.get(key)?;
        Some((self.place_of(key, value.span().start), value.get_ref()))
    }

    fn place_of(&self, key: &str, offset: usize) -> Place {
        let dot = if self.place.path.is_empty() || key.is_empty() { "" } else { "." };
        Place { path: format!("{}{dot}{key}", self.place.path), offset: Some(offset) }
    }
}

pub(super) fn read_table<T>(
    entries: &DeTable<'_>,
    place: Place,
    problems: &mut Collector<'_>,
    mut read: impl FnMut(&mut Table<'_, '_>, &mut Collector<'_>) -> T,
) -> T {
    let mut table = Table::new(entries, place);
    let value = read(&mut table, problems);
    table.finish(problems);
    value
}

pub(super) fn item_place(array: &Place, index: usize, item: &Spanned<DeValue<'_>>) -> Place {
    Place { path: format!("{}[{index}]", array.path), offset: Some(item.span().start) }
}

/// `target[0].group` has the header `[[target.group]]`.
fn header_of(path: &str) -> String {
    path.split('.').map(|part| part.split('[').next().unwrap_or(part)).collect::<Vec<_>>().join(".")
}

/// An integer of any radix, in decimal; one out of range stays as written.
fn decimal(value: &DeValue<'_>) -> Option<String> {
    let integer = value.as_integer()?;
    let number = i128::from_str_radix(integer.as_str(), integer.radix());
    Some(number.map_or_else(|_| integer.as_str().to_string(), |number| number.to_string()))
}

pub(super) fn wrong_type<T>(
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

fn scalar<T>(
    value: &DeValue<'_>,
    place: &Place,
    wanted: &str,
    parse: &impl Fn(&str) -> Result<T, Fault>,
    problems: &mut Collector<'_>,
) -> Option<T> {
    let switch = || value.as_bool().map(|on| on.to_string());
    let text = value.as_str().map(str::to_string).or_else(|| decimal(value)).or_else(switch);
    match text {
        Some(text) => problems.check(place, parse(&text)),
        None => wrong_type(place, value, &format!("{wanted}: a string or a whole number"), problems),
    }
}
