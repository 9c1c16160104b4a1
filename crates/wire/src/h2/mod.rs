//! HTTP/2: frames, settings, priorities, header compression, and requests and responses put together
//! from them (RFC 9113, RFC 7541, RFC 9218).
//!
//! *Invariant:* no stream's state is known here; what a frame may do where is for
//! `http::h2` to decide, and for `http::upstream::h2` where it comes from an upstream.

pub mod fault;
pub mod frame;
pub mod hpack;
pub mod priority;
pub mod request;
pub mod response;
pub mod settings;

pub use fault::Fault;
pub use frame::{ErrorCode, Frame, Head, Scope, Violation};
pub use priority::Priority;
pub use request::{Refusal, RequestBuilder};
pub use response::ResponseBuilder;
pub use settings::Settings;

/// What a client sends before its first frame (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest window (RFC 9113 §6.9.1).
pub const MAX_WINDOW: u32 = (1 << 31) - 1;
/// What windows begin with (RFC 9113 §6.9.2).
pub const DEFAULT_WINDOW: u32 = 65_535;
