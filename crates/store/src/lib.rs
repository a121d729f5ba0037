//! Backing stores. A [`Store`] is shared by cores; a [`Lane`] is one core's private way into it.
#![forbid(unsafe_code)]

pub mod lane;
