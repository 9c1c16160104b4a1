//! The HTTP server: from a `http` block to responses.
//!
//! `load` compiles the configuration to a `plan`; `accept` runs a worker thread; `h1` speaks the
//! protocol; `engine` walks a request through its plan; `modules` are what it meets on the way.

#![forbid(unsafe_code)]

pub mod accept;
mod background;
pub mod body;
pub mod body_in;
pub mod client;
pub mod coding;
pub mod core;
pub mod credentials;
mod engine;
mod error_log;
pub mod files;
pub mod forwarded;
mod h1;
pub mod h2;
pub mod handler;
pub mod limits;
pub mod load;
pub mod mime;
pub mod module;
pub mod modules;
pub mod names;
mod pace;
mod password;
pub mod plan;
mod proxied;
pub mod request;
pub mod response;
pub mod socket;
pub mod special;
pub mod subrequest;
mod target;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code))]
mod testing;
pub mod tls;
mod tree;
pub mod upstream;
mod variables;
pub mod worker;

pub use accept::{Command, run};
pub use engine::subrequest;
pub use load::{load, load_with};
