//! Bytes to messages and back: HTTP/1 heads, chunked bodies, HTTP/2 frames and HPACK, URIs, ranges,
//! dates, PROXY protocol, messages of gRPC.
//!
//! Everything here is a function of the bytes it is given, or a small state machine over them,
//! so that it can be tested by tables, split at every byte, and fuzzed.
//! *Invariant:* no socket, no clock, no I/O, no `unsafe`; peer input never panics.
#![forbid(unsafe_code)]

pub mod accept;
pub mod base64;
mod class;
pub mod date;
pub mod escape;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod grpc;
pub mod h1;
pub mod h2;
pub mod proxy_protocol;
pub mod range;
pub mod reject;
pub mod scan;
pub mod span;
pub mod uri;

pub use reject::Reject;
pub use span::Span;
