//! HTTP/2 to upstreams: the client's side of a connection, and a codec on top of it that reads one
//! response at a time. `proxy_http_version 2` speaks by it; so can anything else that is HTTP/2 below
//! (gRPC).
//!
//! ```text
//! session.rs   one connection: frames, windows, settings, floods; no socket
//! streams.rs   what a session does when a frame is there
//! codec.rs     one request and its response over it
//! ```
//!
//! Answers the framing half of `ngx_http_proxy_v2_module.c` and `ngx_http_grpc_module.c`. RFC 9113.
//!
//! A connection carries one stream at a time, as in nginx. So what a slow client does not take stays in
//! the socket, and TCP holds the server back: no window has to be kept small, nobody waits behind
//! somebody else's body, a connection that breaks costs one request, and no byte of one response can
//! reach another's client. What multiplexing would save, connections, the pool keeps few.
//!
//! The rest of a request is sent while its response comes, which is what calls in both directions need.
//!
//! Invariant: a session is used again only when its stream is over on both sides and nothing is left
//! over of a frame.

mod codec;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod session;
mod streams;

#[cfg(test)]
mod tests;

pub use codec::Http2;
pub use session::{Event, Session};
