//! Load on stores and targets, and the reports that are made of it.

mod load;
mod report;
