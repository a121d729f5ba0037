//! Checks shared by all kinds of tables.

use super::place::{At, Place};
use super::problems::{Collector, Fault};
use super::raw::Text;
use super::scalar;
use std::collections::BTreeMap;

/// A number, at least 1.
pub(super) fn count(text: &Text, default: usize, most: u64, problems: &mut Collector<'_>) -> Option<usize> {
    match text {
        None => Some(default),
        Some(at) => {
            let number = problems.check(&at.place, scalar::number(&at.value, 1, most))?;
            usize::try_from(number).ok()
        }
    }
}

/// A list of cores, all of which must be usable; by default all usable ones.
pub(super) fn cores(text: &Text, usable: &[usize], problems: &mut Collector<'_>) -> Option<Vec<usize>> {
    match text {
        None => Some(usable.to_vec()),
        Some(at) => problems.check(&at.place, scalar::core_list(&at.value, usable)),
    }
}

/// The value of a required option.
pub(super) fn required<'a, T>(
    option: &'a Option<At<T>>,
    place: &Place,
    name: &str,
    problems: &mut Collector<'_>,
) -> Option<&'a At<T>> {
    if option.is_none() {
        problems.add(&place.inner(name), Fault::new("this is missing", format!("add `{name} = ...`")));
    }
    option.as_ref()
}

/// Reports an option that is not allowed here.
pub(super) fn refuse<T>(option: &Option<At<T>>, what: &str, problems: &mut Collector<'_>) {
    if let Some(at) = option {
        problems.add(&at.place, Fault::new(what, "remove this"));
    }
}

/// Reports a duplicate key, with both places.
pub(super) fn unique<K: Ord>(
    seen: &mut BTreeMap<K, Place>,
    key: K,
    place: &Place,
    what: &str,
    problems: &mut Collector<'_>,
) {
    if let Some(first) = seen.get(&key) {
        let fault = format!("this {what} is already used by {}", problems.locate(first));
        problems.add(place, Fault::new(fault, "change one of them"));
        return;
    }
    seen.insert(key, place.clone());
}

/// Reports where a list exceeds its limit.
pub(super) fn limit<'a>(
    mut places: impl Iterator<Item = &'a Place>,
    most: usize,
    problems: &mut Collector<'_>,
) {
    if let Some(place) = places.nth(most) {
        problems.add(place, Fault::new("there are too many of these", format!("use at most {most}")));
    }
}
