//! TLS over rustls: what `http` and `stream` need of it, in the terms of nginx's directives.
//!
//! A server builds a [`ServerConfig`] from [`ServerSettings`] and gives each connection to [`accept`],
//! with a closure that chooses the configuration by what the client says; it gets a [`TlsStream`],
//! which is a [`forebay_rt::transport::Transport`] like a socket, and a [`Session`] that answers the
//! `$ssl_*` variables. Towards upstreams, [`ClientConfig`] and [`connect`] do the same.
//!
//! Invariant: opens no file and keeps no time of its own: callers read, and drop what takes too long.

mod authority;
mod certificate;
mod ciphers;
mod client;
mod early;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handshake;
mod hello;
mod hkdf;
mod key;
mod ocsp;
mod records;
mod revocation;
mod server;
mod session;
mod sessions;
mod settings;
mod stream;
mod verify;
mod x509;

pub use certificate::{Chain, KeyPair, PrivateKey, certificates_from_pem, crls_from_pem};
pub use ciphers::{Ciphers, cipher_name};
pub use client::{ClientConfig, connect};
pub use error::{AcceptError, ConnectError, Failure, RecordError};
pub use hello::{ClientHello, MAX_HELLO_BYTES};
pub use ocsp::{OcspResponse, OcspStatus, ocsp_check, ocsp_names, ocsp_request, ocsp_responder};
pub use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
pub use server::{Choice, ServerConfig, accept};
pub use session::Session;
pub use sessions::{SessionCache, TicketKeys};
pub use settings::{
    ClientAuth, ClientSettings, Groups, Protocols, Resumption, ServerSettings, Trust, group_name,
};
pub use stream::{State, TlsStream};
pub use verify::Verdict;
pub use x509::{Certificate, pem};
