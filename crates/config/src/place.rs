//! Places of options in a configuration, for messages.

/// Where an option is: in the file or on the command line.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Place {
    /// `target[0].luns[2]` or `--lun`.
    pub path: String,
    /// Byte offset in the file; `None`: on the command line.
    pub offset: Option<usize>,
}

impl Place {
    pub(super) fn option(name: &str) -> Place {
        Place { path: name.into(), offset: None }
    }

    /// A place inside this one that has no text of its own in the file.
    pub(super) fn inner(&self, name: &str) -> Place {
        Place { path: format!("{}.{name}", self.path), offset: self.offset }
    }
}

/// A value and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

impl<T> At<T> {
    pub(super) fn new(value: T, place: &Place) -> At<T> {
        At { value, place: place.clone() }
    }
}
