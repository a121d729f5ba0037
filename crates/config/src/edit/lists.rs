//! Lists of LUNs: `luns = ["disk", { lun = "other", number = 5 }]`. Removing a LUN never changes the number
//! of another.

use toml_edit::{Array, InlineTable, Item, TableLike, Value};

/// The LUNs of a target or a group.
pub(super) struct List<'a>(&'a mut Array);

impl<'a> List<'a> {
    /// The list of a table, if it has one.
    pub(super) fn of(table: &'a mut dyn TableLike) -> Option<List<'a>> {
        table.get_mut("luns").and_then(Item::as_array_mut).map(List)
    }

    /// Adds a LUN; without a number it gets one above the highest.
    pub(super) fn add(&mut self, lun: &str, number: Option<u16>) {
        let next = self.entries().iter().map(|(_, number)| number + 1).max().unwrap_or(0);
        let number = number.map_or(next, i64::from);
        let mut value = entry(lun, number, self.0.len());
        // Formatted like the previous one, which may be on a line of its own, with its comma after it.
        if let Some(last) = self.0.len().checked_sub(1).and_then(|last| self.0.get_mut(last)) {
            let (prefix, suffix) = (last.decor().prefix().cloned(), last.decor().suffix().cloned());
            let is_first = self.0.len() == 1;
            let prefix = prefix.and_then(|prefix| prefix.as_str().map(str::to_owned)).unwrap_or_default();
            let prefix = if is_first && prefix.is_empty() { " ".into() } else { prefix };
            value.decor_mut().set_prefix(prefix);
            if let (Some(suffix), Some(last)) = (suffix, self.0.get_mut(self.0.len() - 1)) {
                value.decor_mut().set_suffix(suffix);
                last.decor_mut().set_suffix("");
            }
        }
        self.0.push_formatted(value);
    }

    /// Removes a LUN. Those after it keep their numbers.
    pub(super) fn remove(&mut self, lun: &str) {
        let entries = self.entries();
        for position in (0..entries.len()).rev().filter(|position| entries[*position].0 == lun) {
            self.0.remove(position);
        }
        let left = entries.into_iter().filter(|(name, _)| name != lun);
        for (position, (name, number)) in left.enumerate() {
            let Some(value) = self.0.get_mut(position) else { continue };
            if value.is_str() && usize::try_from(number) != Ok(position) {
                let decor = value.decor().clone();
                *value = entry(&name, number, position);
                *value.decor_mut() = decor;
            }
        }
        if self.is_on_one_line() {
            self.0.fmt();
        }
    }

    /// Names and numbers.
    fn entries(&self) -> Vec<(String, i64)> {
        let one = |(position, value): (i64, &Value)| {
            let table = value.as_inline_table();
            let name = value.as_str().or_else(|| table?.get("lun")?.as_str()).unwrap_or_default();
            let number = table.and_then(|table| table.get("number")?.as_integer());
            (name.to_owned(), number.unwrap_or(position))
        };
        (0..).zip(self.0.iter()).map(one).collect()
    }

    fn is_on_one_line(&self) -> bool {
        let trailing = self.0.trailing().as_str().unwrap_or_default();
        !trailing.contains('\n') && self.0.iter().all(|value| !value.to_string().contains(['\n', '#']))
    }
}

/// Makes the implicit list of a table, all LUNs by position, explicit.
pub(super) fn write(table: &mut dyn TableLike, names: &[String]) {
    let list = names.iter().map(String::as_str).collect::<Array>();
    table.insert("luns", Item::Value(list.into()));
}

/// Shortens an entry to the LUN's name if its number is its position.
fn entry(lun: &str, number: i64, position: usize) -> Value {
    if usize::try_from(number) == Ok(position) {
        return lun.into();
    }
    let mut table = InlineTable::new();
    table.insert("lun", lun.into());
    table.insert("number", number.into());
    table.into()
}
