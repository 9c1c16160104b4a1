//! What was agreed on in a handshake: the `$ssl_*` variables are read from here.
//!
//! Answers `ngx_ssl_get_protocol`, `ngx_ssl_get_cipher_name` and their neighbours.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use rustls::{ProtocolVersion, pki_types::CertificateDer};

use crate::{
    ciphers::{cipher_name, signature_scheme_name},
    hello::ClientHello,
    settings::group_name,
    verify::Verdict,
};

/// One handshake's result. Lives as long as its connection.
#[derive(Debug)]
pub struct Session {
    pub(crate) version: Option<ProtocolVersion>,
    pub(crate) cipher: u16,
    pub(crate) group: Option<u16>,
    pub(crate) server_name: Option<Box<str>>,
    pub(crate) alpn: Option<Box<[u8]>>,
    pub(crate) id: OnceLock<Box<[u8]>>,
    pub(crate) reused: bool,
    pub(crate) early: Option<Arc<AtomicBool>>,
    pub(crate) peer: Box<[CertificateDer<'static>]>,
    pub(crate) verdict: Verdict,
    pub(crate) signature: Option<u16>,
    pub(crate) peer_signature: Option<u16>,
    pub(crate) hello: Option<Box<[u8]>>,
}

impl Session {
    /// `TLSv1.3` (`$ssl_protocol`).
    pub fn protocol(&self) -> &'static str {
        match self.version {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            _ => "TLSv1.2",
        }
    }

    /// `TLS_AES_128_GCM_SHA256`, in OpenSSL's names (`$ssl_cipher`).
    pub fn cipher(&self) -> &'static str {
        cipher_name(self.cipher).unwrap_or("(NONE)")
    }

    /// `X25519MLKEM768` (`$ssl_curve`); empty where a session was resumed without one.
    pub fn curve(&self) -> String {
        self.group.map(group_name).unwrap_or_default()
    }

    /// The name that the client asked for (`$ssl_server_name`), as it came.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The protocol agreed on by ALPN (`$ssl_alpn_protocol`).
    pub fn alpn(&self) -> Option<&[u8]> {
        self.alpn.as_deref()
    }

    /// The identifier of the session, in hexadecimal (`$ssl_session_id`).
    pub fn id(&self) -> String {
        // RFC 8446 has none. OpenSSL makes one up for each session; so do we, when asked.
        let id = self.id.get_or_init(|| {
            let mut id = [0; 32];
            let made = aws_lc_rs::rand::fill(&mut id);
            made.map_or_else(|_| Box::default(), |()| Box::from(id))
        });
        id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether an earlier session was resumed (`$ssl_session_reused`).
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Whether what is read now came as early data, which may be a replay (`$ssl_early_data`).
    pub fn in_early_data(&self) -> bool {
        self.early.as_ref().is_some_and(|early| early.load(Ordering::Relaxed))
    }

    /// The peer's certificates, its own first, in DER; empty: it sent none.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        &self.peer
    }

    /// What came of verifying them (`$ssl_client_verify`).
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// The algorithm of our signature (`$ssl_sigalg`); `None` in a resumed session.
    pub fn signature_algorithm(&self) -> Option<String> {
        self.signature.map(signature_scheme_name)
    }

    /// The algorithm of the peer's signature (`$ssl_client_sigalg`).
    pub fn peer_signature_algorithm(&self) -> Option<String> {
        self.peer_signature.map(signature_scheme_name)
    }

    fn hello(&self) -> ClientHello<'_> {
        ClientHello::parse(self.hello.as_deref().unwrap_or_default())
    }

    /// The cipher suites that the client offered, in OpenSSL's names (`$ssl_ciphers`); kept only with
    /// [`crate::ServerSettings::keep_hello`].
    pub fn client_ciphers(&self) -> String {
        join(self.hello().ciphers().map(|number| match cipher_name(number) {
            Some(name) => name.to_owned(),
            None => format!("0x{number:04x}"),
        }))
    }

    /// The groups that the client offered (`$ssl_curves`); kept likewise.
    pub fn client_curves(&self) -> String {
        join(self.hello().groups().map(group_name))
    }

    /// The signature schemes that the client accepts (`$ssl_sigalgs`); kept likewise.
    pub fn client_signature_algorithms(&self) -> String {
        join(self.hello().signature_schemes().map(signature_scheme_name))
    }
}

fn join(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(":")
}
