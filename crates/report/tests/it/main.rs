//! Reports from results that are made up: what is measured when, what is kept, and what the page looks like.

mod browser;
mod page;
mod session;
mod synthetic;
