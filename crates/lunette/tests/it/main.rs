//! The command as its users have it: started as a process, and driven by tools that others wrote and by initiators of our
//! own.

mod admin;
mod aoe;
mod aoe_addresses;
mod aoe_interface;
mod aoe_late;
mod aoe_orders;
mod aoe_tools;
mod bench;
mod ceiling;
mod chain;
mod cli;
mod command;
mod copy_and_inquiry;
mod device;
mod durability;
mod hostile;
mod huge_pages;
mod idle;
mod late;
mod libiscsi;
mod log;
mod logins;
mod long;
mod lost;
mod manage;
mod network;
mod nexus;
mod notify;
mod real_input;
mod reload;
mod report;
mod room;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
