//! What HTTP and stream share: variables and templates, regular expressions, maps, addresses, shared
//! zones, names and their resolution, groups of upstream servers, TLS as configured, logs.
//!
//! Invariant: what is not used by both does not live here.

#![forbid(unsafe_code)]

pub mod addr;
pub mod geo;
pub mod keyed;
pub mod limit_conn;
pub mod log;
pub mod map;
pub mod regex;
pub mod resolver;
pub mod split_clients;
pub mod ssl;
#[cfg(test)]
mod testing;
pub mod upstream;
pub mod var;
pub mod zone;
