//! Reports from fake results: what is measured when, what is saved, and what the page looks like.

mod browser;
mod page;
mod session;
mod synthetic;
