//! TLS as the configuration has it, the same for HTTP and stream: the settings of a level, what
//! becomes of them once files are read, and the `$ssl_*` variables.
//!
//! Answers `ngx_event_openssl.c`, `ngx_event_openssl_cache.c` and what `ngx_http_ssl_module.c` and
//! `ngx_stream_ssl_module.c` have in common. The protocol itself is [`forebay_tls`].
//!
//! Invariant: after the configuration is loaded no file is opened here, but those whose names hold
//! variables ([`dynamic`]).

pub mod client;
pub mod commands;
pub mod dynamic;
pub mod load;
pub mod ocsp;
pub mod server;
pub mod sessions;
pub mod settings;
pub mod variables;

pub use server::Server;
pub use settings::{Settings, VerifyClient};
