//! HTTP/1: one connection, request after request.
//!
//! Top down: `serve` waits, `exchange` reads a head, lets the engine answer, writes the response and
//! decides about the next request. Waiting holds no buffer and no request: those come from the pools
//! of the thread when bytes arrive.
//!
//! Answers nginx's `ngx_http_request.c`. RFC 9112.

mod ahead;
mod body;
mod close;
mod complain;
mod head;
mod refused;
mod send;
mod serve;

pub(crate) use close::{Patience, linger, shut_down};
pub(crate) use head::{write_date, write_modified};
pub(crate) use refused::identify;
pub use serve::{serve, shrink};
