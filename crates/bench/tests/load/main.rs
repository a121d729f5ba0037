//! Runs of jobs on stores, good ones and bad ones.
mod run;
mod support;
mod verify;
