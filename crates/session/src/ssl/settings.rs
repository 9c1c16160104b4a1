//! The settings of `ngx_http_ssl_module` and `ngx_stream_ssl_module` at one level, as they are
//! written: typed setters, and how they inherit.
//!
//! Invariant: nothing is opened here but `ssl_password_file`; files are read, and found to fit each
//! other, when a server is built of its merged settings.

use std::sync::Arc;

use forebay_conf::{Arg, Error, Loader, Node, Span, value};

use super::{
    dynamic::KeyPairCache,
    ocsp::{self, AnswersUse},
    sessions::{self, SessionsUse},
};
use crate::zone::Zones;

/// `ssl_verify_client`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyClient {
    /// No certificate is asked for.
    #[default]
    Off,
    /// One is required, and must be good.
    On,
    /// One is asked for; if there is one, it must be good.
    Optional,
    /// One is asked for; who signed it does not matter.
    OptionalNoCa,
}

/// `ssl_ocsp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ocsp {
    /// Nobody is asked.
    #[default]
    Off,
    /// About the whole chain of a client.
    On,
    /// About the client's own certificate.
    Leaf,
}

/// `ssl_certificate_cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateCache {
    /// How many certificates and keys are kept, each counted.
    pub max: usize,
    /// Those not used in that time go, in milliseconds.
    pub inactive_ms: u64,
    /// After that time a file is looked at again, in milliseconds.
    pub valid_ms: u64,
}

/// `ssl_protocols`: one bit each.
pub mod protocol {
    /// SSL 2.
    pub const SSL2: u32 = 1 << 1;
    /// SSL 3.
    pub const SSL3: u32 = 1 << 2;
    /// TLS 1.0.
    pub const TLS1: u32 = 1 << 3;
    /// TLS 1.1.
    pub const TLS1_1: u32 = 1 << 4;
    /// TLS 1.2.
    pub const TLS1_2: u32 = 1 << 5;
    /// TLS 1.3.
    pub const TLS1_3: u32 = 1 << 6;
}

/// `ssl_protocols` and `proxy_ssl_protocols`: the names and their bits.
pub const PROTOCOLS: &[(&str, u32)] = &[
    ("SSLv2", protocol::SSL2),
    ("SSLv3", protocol::SSL3),
    ("TLSv1", protocol::TLS1),
    ("TLSv1.1", protocol::TLS1_1),
    ("TLSv1.2", protocol::TLS1_2),
    ("TLSv1.3", protocol::TLS1_3),
];

/// Passwords of keys, one a line of the file (`ngx_ssl_read_password_file`).
pub type Passwords = Arc<Vec<Vec<u8>>>;

/// What one level sets; after inheritance, what holds there.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `ssl_buffer_size`, bytes.
    pub buffer_size: Option<u64>,
    /// `ssl_certificate`, each with its place.
    pub certificates: Option<Vec<Arg>>,
    /// `ssl_certificate_key`, in the order of the certificates.
    pub certificate_keys: Option<Vec<Arg>>,
    /// `ssl_certificate_cache`; the inner `None`: off.
    pub certificate_cache: Option<Option<Arc<KeyPairCache>>>,
    /// `ssl_certificate_compression`.
    pub certificate_compression: Option<bool>,
    /// `ssl_ciphers`.
    pub ciphers: Option<Arg>,
    /// `ssl_client_certificate`.
    pub client_certificate: Option<Arg>,
    /// `ssl_conf_command`s: name and value.
    pub conf_commands: Option<Vec<(Arg, Arg)>>,
    /// `ssl_crl`.
    pub crl: Option<Arg>,
    /// `ssl_dhparam`.
    pub dhparam: Option<Arg>,
    /// `ssl_early_data`.
    pub early_data: Option<bool>,
    /// `ssl_ecdh_curve`.
    pub ecdh_curve: Option<Arg>,
    /// `ssl_ocsp`, and where it stands.
    pub ocsp: Option<(Ocsp, Span)>,
    /// `ssl_ocsp_cache`; the inner `None`: off.
    pub ocsp_cache: Option<Option<AnswersUse>>,
    /// `ssl_ocsp_responder`.
    pub ocsp_responder: Option<Arg>,
    /// `ssl_password_file`.
    pub passwords: Option<Passwords>,
    /// `ssl_prefer_server_ciphers`.
    pub prefer_server_ciphers: Option<bool>,
    /// `ssl_protocols`, as [`protocol`] bits.
    pub protocols: Option<u32>,
    /// Where `ssl_protocols` stands.
    pub protocols_span: Option<Span>,
    /// `ssl_reject_handshake`.
    pub reject_handshake: Option<bool>,
    /// `ssl_session_cache`: how a server's own cache is to be.
    pub session_cache: Option<SessionCache>,
    /// `ssl_session_cache`: that of several servers.
    pub shared_sessions: Option<SessionsUse>,
    /// `ssl_session_ticket_key`s.
    pub session_ticket_keys: Option<Vec<Arg>>,
    /// `ssl_session_tickets`.
    pub session_tickets: Option<bool>,
    /// `ssl_session_timeout`, seconds.
    pub session_timeout_s: Option<u64>,
    /// `ssl_stapling`.
    pub stapling: Option<bool>,
    /// `ssl_stapling_file`.
    pub stapling_file: Option<Arg>,
    /// `ssl_stapling_responder`.
    pub stapling_responder: Option<Arg>,
    /// `ssl_stapling_verify`.
    pub stapling_verify: Option<bool>,
    /// `ssl_trusted_certificate`.
    pub trusted_certificate: Option<Arg>,
    /// `ssl_verify_client`, and where it stands.
    pub verify_client: Option<(VerifyClient, Span)>,
    /// `ssl_verify_depth`.
    pub verify_depth: Option<usize>,
}

/// `ssl_session_cache`, without what several servers share: that is better than a cache of one's own, and
/// means nothing beside `off` and `none`, wherever they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionCache {
    /// Sessions by id are told not to be used again.
    Off,
    /// Clients are told that they may, and then it is not so.
    None,
    /// The cache of one server's own, with room for so many.
    Builtin(usize),
    /// Only the one that several servers share.
    NoBuiltin,
}

macro_rules! inherited {
    ($self:ident, $parent:ident; $($field:ident)+) => {
        $(if $self.$field.is_none() { $self.$field.clone_from(&$parent.$field); })+
    };
}

impl Settings {
    /// Takes over what is not set here.
    pub fn inherit(&mut self, parent: &Settings) {
        inherited!(self, parent; buffer_size certificates certificate_keys certificate_cache
            certificate_compression ciphers client_certificate conf_commands crl dhparam early_data
            ecdh_curve ocsp ocsp_cache ocsp_responder passwords prefer_server_ciphers
            protocols protocols_span reject_handshake session_cache shared_sessions
            session_ticket_keys session_tickets session_timeout_s stapling stapling_file stapling_responder
            stapling_verify trusted_certificate verify_client verify_depth);
    }

    /// `ssl_certificate`: another one.
    pub fn certificate(&mut self, node: &Node) -> Result<(), Error> {
        self.certificates.get_or_insert_default().push(node.arg(0)?.clone());
        Ok(())
    }

    /// `ssl_certificate_key`: that of the next certificate.
    pub fn certificate_key(&mut self, node: &Node) -> Result<(), Error> {
        let arg = node.arg(0)?;
        self.certificate_keys.get_or_insert_default().push(arg.clone());
        for foreign in ["engine:", "store:"] {
            if arg.after(foreign).is_some() {
                let text = format!("keys of \"{foreign}\" are not supported");
                return Err(Error::emerg(arg.span, text)
                    .with_hint("a key is a file, or \"data:\" and the PEM text itself"));
            }
        }
        Ok(())
    }

    /// `ssl_conf_command`: another one.
    pub fn conf_command(&mut self, node: &Node) -> Result<(), Error> {
        let pair = (node.arg(0)?.clone(), node.arg(1)?.clone());
        self.conf_commands.get_or_insert_default().push(pair);
        Ok(())
    }

    /// `ssl_session_ticket_key`: another one; the first encrypts.
    pub fn session_ticket_key(&mut self, node: &Node) -> Result<(), Error> {
        self.session_ticket_keys.get_or_insert_default().push(node.arg(0)?.clone());
        Ok(())
    }

    /// `ssl_protocols`.
    pub fn protocols(&mut self, node: &Node, loader: &mut Loader<'_>) -> Result<(), Error> {
        self.protocols_span.get_or_insert(node.span);
        value::set_bits(&mut self.protocols, node, PROTOCOLS, loader.diags)
    }

    /// `ssl_ocsp`.
    pub fn ocsp(&mut self, node: &Node) -> Result<(), Error> {
        let table = [("off", Ocsp::Off), ("on", Ocsp::On), ("leaf", Ocsp::Leaf)];
        value::set_once(&mut self.ocsp, node, |n| {
            Ok((value::choice(n.arg(0)?, &table)?, n.arg(0)?.span))
        })
    }

    /// `ssl_verify_client`.
    pub fn verify_client(&mut self, node: &Node) -> Result<(), Error> {
        let table = [
            ("off", VerifyClient::Off),
            ("on", VerifyClient::On),
            ("optional", VerifyClient::Optional),
            ("optional_no_ca", VerifyClient::OptionalNoCa),
        ];
        value::set_once(&mut self.verify_client, node, |n| {
            Ok((value::choice(n.arg(0)?, &table)?, n.arg(0)?.span))
        })
    }

    /// `ssl_session_cache` (`ngx_http_ssl_session_cache`), which may be said again: the last word of each
    /// kind counts.
    pub fn session_cache(&mut self, node: &Node, zones: &mut Zones) -> Result<(), Error> {
        for arg in &node.args {
            let own = match &*arg.value {
                b"off" => SessionCache::Off,
                b"none" => SessionCache::None,
                b"builtin" => SessionCache::Builtin(BUILTIN_SESSIONS),
                text => match text.strip_prefix(b"builtin:") {
                    Some(count) => {
                        let text = || format!("invalid session cache \"{}\"", arg.lossy());
                        let count = value::number(count);
                        let count = count.ok_or_else(|| Error::emerg(arg.span, text()))?;
                        SessionCache::Builtin(count as usize)
                    }
                    None => {
                        self.shared_sessions = Some(sessions::shared(arg, zones)?);
                        continue;
                    }
                },
            };
            self.session_cache = Some(own);
        }
        if self.shared_sessions.is_some() {
            self.session_cache.get_or_insert(SessionCache::NoBuiltin);
        }
        Ok(())
    }

    /// `ssl_ocsp_cache` (`ngx_http_ssl_ocsp_cache`).
    pub fn ocsp_cache(&mut self, node: &Node, zones: &mut Zones) -> Result<(), Error> {
        value::set_once(&mut self.ocsp_cache, node, |node| ocsp::cache(node.arg(0)?, zones))
    }
}

/// OpenSSL's `SSL_SESSION_CACHE_MAX_SIZE_DEFAULT`.
const BUILTIN_SESSIONS: usize = 20_480;

/// `ssl_certificate_cache` and its sisters of the upstream modules
/// (`ngx_http_ssl_certificate_cache`).
pub fn certificate_cache(
    slot: &mut Option<Option<Arc<KeyPairCache>>>,
    node: &Node,
) -> Result<(), Error> {
    value::set_once(slot, node, |node| {
        let mut cache = CertificateCache { max: 0, inactive_ms: 10_000, valid_ms: 60_000 };
        let mut off = false;
        for arg in &node.args {
            let invalid = || value::invalid_parameter(arg);
            let msec = |text| value::sec(text).map(|s| s.saturating_mul(1000)).ok_or_else(invalid);
            if let Some(max) = arg.after("max=") {
                let max = value::number(max).filter(|max| *max > 0).ok_or_else(invalid)?;
                cache.max = max as usize;
            } else if let Some(time) = arg.after("inactive=") {
                cache.inactive_ms = msec(time)?;
            } else if let Some(time) = arg.after("valid=") {
                cache.valid_ms = msec(time)?;
            } else if arg.is("off") {
                off = true;
            } else {
                return Err(invalid());
            }
        }
        match (off, cache.max) {
            (true, _) => Ok(None),
            (false, 0) => Err(node.error("must have the \"max\" parameter")),
            (false, _) => Ok(Some(Arc::new(KeyPairCache::new(cache)))),
        }
    })
}

/// A line of a password file may be that long (`NGX_SSL_PASSWORD_BUFFER_SIZE`), in bytes.
const MAX_PASSWORD_LINE: usize = 4096;

/// `ssl_password_file` and its sisters of the upstream modules (`ngx_ssl_read_password_file`).
pub fn password_file(
    slot: &mut Option<Passwords>,
    node: &Node,
    loader: &mut Loader<'_>,
) -> Result<(), Error> {
    value::set_once(slot, node, |node| {
        let arg = node.arg(0)?;
        let path = loader.conf_path(arg.path());
        let text = loader
            .files
            .read(&path)
            .map_err(|error| Error::io(Some(arg.span), "open()", &path, &error))?;
        let lines =
            text.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let lines: Vec<Vec<u8>> = lines.filter(|l| !l.is_empty()).map(<[u8]>::to_vec).collect();
        if lines.iter().any(|line| line.len() >= MAX_PASSWORD_LINE) {
            let text = format!("too long line in \"{}\"", path.display());
            return Err(Error::emerg(arg.span, text));
        }
        Ok(Arc::new(lines))
    })
}
