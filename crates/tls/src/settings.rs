//! What the directives of a server or of a proxied location say, in the types of this crate.
//!
//! Answers `ssl_protocols`, `ssl_ecdh_curve`, `ssl_conf_command` and the defaults of
//! `ngx_http_ssl_module`; the strings are parsed here, so that `stream` and `proxy_ssl_*` have the
//! same.

use std::sync::Arc;

use rustls::{
    NamedGroup, SupportedProtocolVersion,
    crypto::{SupportedKxGroup, aws_lc_rs::kx_group},
    pki_types::{CertificateDer, CertificateRevocationListDer},
    version,
};

use crate::{
    certificate::KeyPair,
    ciphers::Ciphers,
    sessions::{SessionCache, TicketKeys},
};

/// Which versions of the protocol are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocols {
    /// TLS 1.2.
    pub tls12: bool,
    /// TLS 1.3.
    pub tls13: bool,
}

impl Default for Protocols {
    fn default() -> Protocols {
        Protocols { tls12: true, tls13: true }
    }
}

impl Protocols {
    /// Of the words of `ssl_protocols`, with a warning for each that is left out. The error is the
    /// whole message: nothing is left.
    pub fn parse(words: &[&str]) -> Result<(Protocols, Vec<String>), String> {
        let mut found = Protocols { tls12: false, tls13: false };
        let mut warnings = Vec::new();
        for word in words {
            let rfc = match word.to_ascii_lowercase().as_str() {
                "tlsv1.2" => {
                    found.tls12 = true;
                    continue;
                }
                "tlsv1.3" => {
                    found.tls13 = true;
                    continue;
                }
                "sslv2" => "RFC 6176",
                "sslv3" => "RFC 7568",
                "tlsv1" | "tlsv1.1" => "RFC 8996",
                _ => return Err(format!("invalid value \"{word}\"")),
            };
            warnings.push(format!("{word} is left out: {rfc} forbids it"));
        }
        match found.tls12 || found.tls13 {
            true => Ok((found, warnings)),
            false => {
                Err(format!("no protocol is left: {}; add TLSv1.2 or TLSv1.3", warnings.join("; ")))
            }
        }
    }

    pub(crate) fn versions(self) -> Vec<&'static SupportedProtocolVersion> {
        let mut versions = Vec::new();
        if self.tls13 {
            versions.push(&version::TLS13);
        }
        if self.tls12 {
            versions.push(&version::TLS12);
        }
        versions
    }
}

/// Which groups (curves) the keys are agreed in, the preferred first.
#[derive(Clone, Debug)]
pub struct Groups(pub(crate) Vec<&'static dyn SupportedKxGroup>);

impl Default for Groups {
    /// `auto`: post-quantum first.
    fn default() -> Groups {
        Groups(vec![
            kx_group::X25519MLKEM768,
            kx_group::X25519,
            kx_group::SECP256R1,
            kx_group::SECP384R1,
        ])
    }
}

impl Groups {
    /// Of `ssl_ecdh_curve`: names separated by colons, with a warning for each that is left out. The
    /// error is the whole message.
    pub fn parse(list: &str) -> Result<(Groups, Vec<String>), String> {
        if list == "auto" {
            return Ok((Groups::default(), Vec::new()));
        }
        let mut found: Vec<&'static dyn SupportedKxGroup> = Vec::new();
        let mut warnings = Vec::new();
        for word in list.split(':').filter(|word| !word.is_empty()) {
            // OpenSSL: ? ignores what is unknown; * asks for a key share, which rustls does itself.
            let optional = word.starts_with('?');
            let name = word.trim_start_matches(['?', '*']);
            match group(name) {
                Ok(Some(group)) if found.iter().all(|known| known.name() != group.name()) => {
                    found.push(group);
                }
                Ok(Some(_)) => {}
                Ok(None) => warnings.push(format!("the curve {name} is left out: not supported")),
                Err(()) if optional => {}
                Err(()) => return Err(format!("unknown curve \"{name}\"")),
            }
        }
        match found.is_empty() {
            true => Err("no supported curve is left: use X25519MLKEM768, X25519, prime256v1 or \
                         secp384r1"
                .to_owned()),
            false => Ok((Groups(found), warnings)),
        }
    }
}

/// `Ok(None)`: OpenSSL knows it, we do not.
// DIFFERS(ssl-curves): P-521, X448, Brainpool and the finite fields are not there.
fn group(name: &str) -> Result<Option<&'static dyn SupportedKxGroup>, ()> {
    Ok(Some(match name.to_ascii_lowercase().as_str() {
        "x25519mlkem768" => kx_group::X25519MLKEM768,
        "secp256r1mlkem768" => kx_group::SECP256R1MLKEM768,
        "mlkem768" => kx_group::MLKEM768,
        "mlkem1024" => kx_group::MLKEM1024,
        "x25519" => kx_group::X25519,
        "prime256v1" | "secp256r1" | "p-256" => kx_group::SECP256R1,
        "secp384r1" | "p-384" => kx_group::SECP384R1,
        "secp521r1" | "p-521" | "x448" | "mlkem512" | "secp384r1mlkem1024" | "secp224r1"
        | "p-224" | "secp256k1" | "prime192v1" | "secp192r1" | "p-192" | "secp192k1"
        | "secp224k1" | "secp160k1" | "secp160r1" | "secp160r2" | "sect163k1" | "sect163r1"
        | "sect163r2" | "sect193r1" | "sect193r2" | "sect233k1" | "sect233r1" | "sect239k1"
        | "sect283k1" | "sect283r1" | "sect409k1" | "sect409r1" | "sect571k1" | "sect571r1"
        | "brainpoolp256r1" | "brainpoolp384r1" | "brainpoolp512r1" | "ffdhe2048" | "ffdhe3072"
        | "ffdhe4096" | "ffdhe6144" | "ffdhe8192" => return Ok(None),
        _ => return Err(()),
    }))
}

/// A group as OpenSSL names it (`$ssl_curve`, `$ssl_curves`); unknown ones are `0x` and a number.
pub fn group_name(group: u16) -> String {
    match NamedGroup::from(group) {
        NamedGroup::secp256r1 => "prime256v1".to_owned(),
        NamedGroup::secp384r1 => "secp384r1".to_owned(),
        NamedGroup::secp521r1 => "secp521r1".to_owned(),
        NamedGroup::X25519 => "X25519".to_owned(),
        NamedGroup::X448 => "X448".to_owned(),
        NamedGroup::FFDHE2048 => "ffdhe2048".to_owned(),
        NamedGroup::FFDHE3072 => "ffdhe3072".to_owned(),
        NamedGroup::FFDHE4096 => "ffdhe4096".to_owned(),
        NamedGroup::FFDHE6144 => "ffdhe6144".to_owned(),
        NamedGroup::FFDHE8192 => "ffdhe8192".to_owned(),
        NamedGroup::MLKEM512 => "MLKEM512".to_owned(),
        NamedGroup::MLKEM768 => "MLKEM768".to_owned(),
        NamedGroup::MLKEM1024 => "MLKEM1024".to_owned(),
        NamedGroup::secp256r1MLKEM768 => "SecP256r1MLKEM768".to_owned(),
        NamedGroup::X25519MLKEM768 => "X25519MLKEM768".to_owned(),
        _ => format!("0x{group:04x}"),
    }
}

/// What certificates of peers are held against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The roots, and certificates on the way to them.
    pub certificates: Vec<CertificateDer<'static>>,
    /// Revocation lists; empty: revocation is not looked at.
    pub crls: Vec<CertificateRevocationListDer<'static>>,
    /// How many certificates may stand between the peer's and the root (`ssl_verify_depth`).
    pub depth: usize,
}

/// `ssl_verify_client`, other than off: a certificate is asked for, and none is refused in the
/// handshake. HTTP tells on, optional and optional_no_ca apart by [`crate::Session::verdict`].
#[derive(Clone, Debug, Default)]
pub struct ClientAuth {
    /// What it is held against: `ssl_client_certificate` and `ssl_trusted_certificate`.
    pub trust: Trust,
    /// Those whose names the client is told: `ssl_client_certificate`.
    pub names: Vec<CertificateDer<'static>>,
}

/// How sessions are resumed.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// `ssl_session_cache`; `None`: off, or none.
    pub cache: Option<Arc<SessionCache>>,
    /// `ssl_session_timeout`, in seconds.
    pub timeout_s: u64,
    /// `ssl_session_tickets` with their keys; `None`: off.
    pub tickets: Option<Arc<TicketKeys>>,
}

/// Everything about one `server {}`.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// `ssl_certificate` with `ssl_certificate_key`; several for clients of different abilities. Empty
    /// only where they are found later ([`crate::ServerConfig::with_certificates`]).
    pub certificates: Vec<KeyPair>,
    /// `ssl_protocols`.
    pub protocols: Protocols,
    /// `ssl_ciphers`.
    pub ciphers: Ciphers,
    /// `ssl_prefer_server_ciphers`.
    pub prefer_server_ciphers: bool,
    /// `ssl_conf_command Options PrioritizeChaCha`: with that, ChaCha20 all the same for clients that would
    /// rather have it.
    pub prioritize_chacha: bool,
    /// `ssl_ecdh_curve`.
    pub groups: Groups,
    /// The protocols offered by ALPN, the preferred first.
    pub alpn: Vec<Vec<u8>>,
    /// `ssl_buffer_size`, in bytes: how large records are at most.
    pub buffer_bytes: usize,
    /// `ssl_verify_client`; `None`: off.
    pub client_auth: Option<ClientAuth>,
    /// `ssl_session_*`.
    pub resumption: Resumption,
    /// `ssl_early_data`.
    pub early_data: bool,
    /// `ssl_certificate_compression`.
    pub compress_certificates: bool,
    /// Whether `$ssl_ciphers`, `$ssl_curves` or `$ssl_sigalgs` will be asked for: a connection keeps
    /// what the client offered only then.
    pub keep_hello: bool,
}

impl Default for ServerSettings {
    fn default() -> ServerSettings {
        ServerSettings {
            certificates: Vec::new(),
            protocols: Protocols::default(),
            ciphers: Ciphers::default(),
            prefer_server_ciphers: false,
            prioritize_chacha: false,
            groups: Groups::default(),
            alpn: Vec::new(),
            buffer_bytes: 16 << 10,
            client_auth: None,
            resumption: Resumption { cache: None, timeout_s: 300, tickets: None },
            early_data: false,
            compress_certificates: false,
            keep_hello: false,
        }
    }
}

/// Everything about connections to upstreams (`proxy_ssl_*`).
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// `proxy_ssl_protocols`.
    pub protocols: Protocols,
    /// `proxy_ssl_ciphers`.
    pub ciphers: Ciphers,
    /// Groups, as far as `proxy_ssl_conf_command` sets them.
    pub groups: Groups,
    /// `proxy_ssl_certificate` with its key.
    pub certificate: Option<KeyPair>,
    /// `proxy_ssl_verify` with what it is held against; `None`: off.
    pub verify: Option<Trust>,
    /// `proxy_ssl_session_reuse`.
    pub reuse_sessions: bool,
    /// `proxy_ssl_server_name`: whether the name is sent (SNI).
    pub send_name: bool,
    /// The protocols offered by ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// How large records are at most, in bytes.
    pub buffer_bytes: usize,
}

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings {
            protocols: Protocols::default(),
            ciphers: Ciphers::default(),
            groups: Groups::default(),
            certificate: None,
            verify: None,
            reuse_sessions: true,
            send_name: false,
            alpn: Vec::new(),
            buffer_bytes: 16 << 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_taken_left_out_or_refused() {
        let names = |list: &str| {
            Groups::parse(list).map(|(groups, warnings)| {
                let names: Vec<_> =
                    groups.0.iter().map(|group| group_name(group.name().into())).collect();
                (names.join(":"), warnings.len())
            })
        };
        let ok = |names: &str, warnings| Ok((names.to_owned(), warnings));
        assert_eq!(names("auto"), ok("X25519MLKEM768:X25519:prime256v1:secp384r1", 0));
        assert_eq!(names("prime256v1:X25519:P-256"), ok("prime256v1:X25519", 0));
        assert_eq!(names("secp384r1:secp521r1"), ok("secp384r1", 1));
        assert_eq!(names("?nonsense:*X25519"), ok("X25519", 0));
        assert_eq!(names("X25519:nonsense").unwrap_err(), "unknown curve \"nonsense\"");
        assert!(names("secp521r1").unwrap_err().starts_with("no supported curve is left"));
        assert!(names("").is_err());
    }

    #[test]
    fn protocols_are_taken_left_out_or_refused() {
        let (both, warnings) = Protocols::parse(&["TLSv1.2", "TLSv1.3"]).unwrap();
        assert_eq!((both, warnings.len()), (Protocols { tls12: true, tls13: true }, 0));
        let old = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2"];
        let (found, warnings) = Protocols::parse(&old).unwrap();
        assert_eq!(found, Protocols { tls12: true, tls13: false });
        let rfcs = ["RFC 6176", "RFC 7568", "RFC 8996", "RFC 8996"];
        assert!(warnings.iter().zip(rfcs).all(|(warning, rfc)| warning.contains(rfc)));
        assert!(Protocols::parse(&["TLSv1"]).unwrap_err().contains("no protocol is left"));
        assert_eq!(Protocols::parse(&["TLSv2"]).unwrap_err(), "invalid value \"TLSv2\"");
    }
}
