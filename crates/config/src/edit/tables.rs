//! Arrays of tables, in both TOML forms: `[[lun]]` and `lun = [{ ... }]`.

use serde_json::{Map, Value as Json};
use toml_edit::{Array, ArrayOfTables, InlineTable, Item, Table, TableLike, Value};

/// An array of tables.
pub(super) enum Tables<'a> {
    /// Each with a header.
    Headed(&'a mut ArrayOfTables),
    /// In one array.
    Inline(&'a mut Array),
}

impl<'a> Tables<'a> {
    /// The tables under a key.
    pub(super) fn at(table: &'a mut dyn TableLike, key: &str) -> Option<Tables<'a>> {
        match table.get_mut(key)? {
            Item::ArrayOfTables(tables) => Some(Tables::Headed(tables)),
            Item::Value(Value::Array(array)) if array.iter().all(Value::is_inline_table) => {
                Some(Tables::Inline(array))
            }
            Item::Value(_) | Item::Table(_) | Item::None => None,
        }
    }

    /// The same; if there are none, an empty array in the form of the parent table.
    pub(super) fn at_or_new(table: &'a mut dyn TableLike, key: &str) -> Option<Tables<'a>> {
        if !table.contains_key(key) {
            // In an inline table this becomes an inline array.
            table.insert(key, Item::ArrayOfTables(ArrayOfTables::new()));
        }
        Tables::at(table, key)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Tables::Headed(tables) => tables.len(),
            Tables::Inline(array) => array.len(),
        }
    }

    /// The table with this index, which must exist.
    pub(super) fn get_mut(&mut self, index: usize) -> &mut dyn TableLike {
        match self {
            Tables::Headed(tables) => tables.get_mut(index).expect("the index was found"),
            Tables::Inline(array) => {
                array.get_mut(index).and_then(Value::as_inline_table_mut).expect("the index was found")
            }
        }
    }

    /// The name of a table.
    pub(super) fn name(&mut self, index: usize) -> Option<String> {
        self.get_mut(index).get("name").and_then(Item::as_str).map(str::to_owned)
    }

    /// The table with this name; if there is none, case is ignored, as in iSCSI names.
    pub(super) fn named(&mut self, name: &str) -> Option<usize> {
        let mut find = |is_it: fn(&str, &str) -> bool| {
            (0..self.len()).find(|index| self.name(*index).is_some_and(|other| is_it(&other, name)))
        };
        find(|a, b| a == b).or_else(|| find(str::eq_ignore_ascii_case))
    }

    /// The table with this number under a key.
    pub(super) fn with_number(&mut self, key: &str, number: i64) -> Option<usize> {
        (0..self.len()).find(|index| self.get_mut(*index).get(key).and_then(Item::as_integer) == Some(number))
    }

    /// Appends a table.
    pub(super) fn push(&mut self, table: &Table) {
        match self {
            Tables::Headed(tables) => tables.push(table.clone()),
            Tables::Inline(array) => array.push(table.clone().into_inline_table()),
        }
    }

    /// Removes a table. Comments above it that a blank line separates from it stay above the next one; if
    /// there is none, they are returned.
    pub(super) fn remove(&mut self, index: usize) -> Option<String> {
        let tables = match self {
            Tables::Inline(array) => {
                array.remove(index);
                return None;
            }
            Tables::Headed(tables) => tables,
        };
        let before = |table: &Table| {
            table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default().to_owned()
        };
        let prefix = before(tables.get(index)?);
        tables.remove(index);
        let comment = &prefix[..prefix.rfind("\n\n")? + 1];
        if comment.trim().is_empty() {
            return None;
        }
        match tables.get_mut(index) {
            None => Some(comment.to_owned()),
            Some(next) => {
                let prefix = format!("{comment}{}", before(next));
                next.decor_mut().set_prefix(prefix);
                None
            }
        }
    }
}

/// Changes the keys of a table; null ones are removed (RFC 7396).
pub(super) fn merge(table: &mut dyn TableLike, settings: &Map<String, Json>) {
    for (key, json) in settings {
        match json {
            Json::Null => _ = table.remove(key),
            Json::Object(inner) if table.get(key).is_some_and(Item::is_table_like) => {
                if let Some(table) = table.get_mut(key).and_then(Item::as_table_like_mut) {
                    merge(table, inner);
                }
            }
            json => set_key(table, key, value(json)),
        }
    }
}

/// Sets a key, preserving a comment after its value.
pub(super) fn set_key(table: &mut dyn TableLike, key: &str, value: Value) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            let decor = old.decor().clone();
            *old = value;
            *old.decor_mut() = decor;
        }
        None => _ = table.insert(key, Item::Value(value)),
    }
}

/// Nested nulls are left out; numbers that are not integers become text, which the file's verification
/// reports.
fn value(json: &Json) -> Value {
    match json {
        Json::Null => "".into(),
        Json::Bool(on) => (*on).into(),
        Json::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.to_string().into(),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(list) => list.iter().map(value).collect::<Array>().into(),
        Json::Object(map) => {
            let entries = map.iter().filter(|(_, json)| !json.is_null());
            entries.map(|(key, json)| (key.as_str(), value(json))).collect::<InlineTable>().into()
        }
    }
}
