//! Development only: what tests and benchmarks need to hold Forebay beside a real nginx.
//!
//! [`server`] starts either of the two on a throw-away prefix, [`raw`] speaks bytes to it, [`case`]
//! reads the differential cases of `tests/cases`, [`run`] plays one against both servers and
//! [`diff`] says in words what differs. [`process`] reads processor time and memory from `/proc`.
//!
//! Invariant: nothing here is linked into the `forebay` binary, and the HTTP parser in [`raw`] shares
//! no code with the server that it judges.

pub mod case;
mod case_request;
pub mod certs;
pub mod diff;
pub mod dns;
pub mod normal;
pub mod origin;
pub mod origin_h2;
pub mod ports;
pub mod process;
pub mod raw;
pub mod run;
pub mod server;
pub mod tempdir;

pub use nix::sys::signal::Signal;
pub use server::{Kind, Server, StartError, wait_for};
