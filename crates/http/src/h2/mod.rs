//! HTTP/2: one connection, many requests at once.
//!
//! Top down: `serve` runs one task a connection. `conn` goes round in it: `receive` reads frames and
//! opens `stream`s, whose requests the engine answers as futures polled right there; `send` writes
//! heads and, as windows and priorities allow, bodies; everything that is ready leaves in one system
//! call. `tunnel` makes a stream a byte stream (RFC 8441). `calm` counts what only costs work; an idle
//! connection holds its tables and nothing else.
//!
//! Answers nginx's `ngx_http_v2.c` and `ngx_http_v2_filter_module.c`. RFC 9113, RFC 9218.
//!
//! *Invariant:* a stream's slot is free only when the work behind it has ended, whoever has reset it: the
//! back ends never see more at once than `http2_max_concurrent_streams`.

pub(crate) mod calm;
mod client;
mod conn;
mod head;
mod output;
mod receive;
mod send;
mod serve;
mod stream;
#[cfg(test)]
mod tests;
mod tunnel;
mod wake;

use crate::plan::{Listener, Location, Plan, ServerId};

pub use serve::serve;

/// What the directives of HTTP/2 say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `http2`.
    pub on: bool,
    /// `http2_max_concurrent_streams`.
    pub max_concurrent_streams: u32,
    /// `http2_body_preread_size`, bytes: the window of a new stream.
    pub body_preread_size: u32,
    /// `http2_chunk_size`, bytes.
    pub chunk_size: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            on: false,
            max_concurrent_streams: 128,
            body_preread_size: 64 << 10,
            chunk_size: 8 << 10,
        }
    }
}

/// The settings at one level.
pub fn settings(location: &Location) -> Settings {
    location.setting::<Settings>().copied().unwrap_or_default()
}

/// Whether HTTP/2 is spoken at an address to who has to do with that server: the default one, or the
/// one that TLS has named.
pub fn is_on(plan: &Plan, listener: &Listener, server: ServerId) -> bool {
    listener.http2 || settings(plan.location(plan.server(server).location)).on
}
