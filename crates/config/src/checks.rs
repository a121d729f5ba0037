//! Checks that tables of every kind have in common.

use super::place::{At, Place};
use super::problems::{Collector, Fault};
use super::raw::Text;
use super::scalar;
use std::collections::BTreeMap;

/// A number from 1.
pub(super) fn count(text: &Text, default: usize, most: u64, problems: &mut Collector<'_>) -> Option<usize> {
    match text {
        None => Some(default),
        Some(at) => {
            let number = problems.check(&at.place, scalar::number(&at.value, 1, most))?;
            usize::try_from(number).ok()
        }
    }
}

/// A list of cores, all of which may be used; unless there is one, all of these.
pub(super) fn cores(text: &Text, usable: &[usize], problems: &mut Collector<'_>) -> Option<Vec<usize>> {
    match text {
        None => Some(usable.to_vec()),
        Some(at) => problems.check(&at.place, scalar::core_list(&at.value, usable)),
    }
}

/// The value of an option that must be there.
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

/// Notes an option that must not be there.
pub(super) fn refuse<T>(option: &Option<At<T>>, what: &str, problems: &mut Collector<'_>) {
    if let Some(at) = option {
        problems.add(&at.place, Fault::new(what, "remove this"));
    }
}

/// Notes a key that was there before; both places are named.
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

/// Notes where a list grows beyond its limit.
pub(super) fn limit<'a>(
    mut places: impl Iterator<Item = &'a Place>,
    most: usize,
    problems: &mut Collector<'_>,
) {
    if let Some(place) = places.nth(most) {
        problems.add(place, Fault::new("there are too many of these", format!("use at most {most}")));
    }
}
