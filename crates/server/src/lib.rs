//! The server program: command line, master and worker, reload, upgrade.
//!
//! The way of a start: [`cli`] reads the arguments, [`boot`] decides, [`cycle`] loads and opens,
//! [`master`] forks, [`worker`] serves with the threads of [`engine`].

#![forbid(unsafe_code)]

pub mod boot;
pub mod builtin;
pub mod bundle;
pub mod cli;
pub mod control;
pub mod core;
pub mod cycle;
pub mod engine;
pub mod format;
pub mod load;
pub mod log;
pub mod master;
pub mod paths;
pub mod pid;
pub mod reload;
pub mod single;
pub mod site;
pub mod sockets;
pub mod upgrade;
pub mod version;
pub mod worker;
