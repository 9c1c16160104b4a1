//! TLS towards upstreams: the settings of `proxy_ssl_*` and its sisters, and what becomes of them
//! (`ngx_http_proxy_set_ssl`, `ngx_http_upstream_ssl_name`, `ngx_http_upstream_ssl_certificate`).
//!
//! DIFFERS(proxy-ssl-kept-apart): nginx takes any kept connection of the upstream's address, whoever made
//! it; here one is used again only under the same settings, name and certificate.
//!
//! Invariant: a connection is told by its [`Identity`]'s tag from all that were made under other
//! settings, another name or another certificate.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use forebay_conf::{Arg, Error, Loader, Node, Span, value};
use forebay_tls::{ClientConfig, ClientSettings, Trust};

use super::{
    commands::{self, Changes},
    dynamic::{KeyPairCache, PairLoader},
    load,
    server::{self, Context},
    settings::{PROTOCOLS, Passwords},
};
use crate::var::{Registry, Scope, Template};

/// What one level sets; after inheritance, what holds there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// `…_ssl_certificate`.
    pub certificate: Option<Arg>,
    /// `…_ssl_certificate_key`.
    pub certificate_key: Option<Arg>,
    /// `…_ssl_certificate_cache`; the inner `None`: off.
    pub certificate_cache: Option<Option<Arc<KeyPairCache>>>,
    /// `…_ssl_ciphers`.
    pub ciphers: Option<Arg>,
    /// `…_ssl_conf_command`s: name and value.
    pub conf_commands: Option<Vec<(Arg, Arg)>>,
    /// `…_ssl_crl`.
    pub crl: Option<Arg>,
    /// `…_ssl_name`.
    pub name: Option<Arg>,
    /// `…_ssl_password_file`.
    pub passwords: Option<Passwords>,
    /// `…_ssl_protocols`.
    pub protocols: Option<u32>,
    /// Where that stands.
    pub protocols_span: Option<Span>,
    /// `…_ssl_server_name`.
    pub server_name: Option<bool>,
    /// `…_ssl_session_reuse`.
    pub session_reuse: Option<bool>,
    /// `…_ssl_trusted_certificate`.
    pub trusted_certificate: Option<Arg>,
    /// `…_ssl_verify`.
    pub verify: Option<bool>,
    /// `…_ssl_verify_depth`.
    pub verify_depth: Option<usize>,
}

macro_rules! inherited {
    ($self:ident, $parent:ident; $($field:ident)+) => {
        $(if $self.$field.is_none() { $self.$field.clone_from(&$parent.$field); })+
    };
}

impl Settings {
    /// Takes over what is not set here.
    pub fn inherit(&mut self, parent: &Settings) {
        inherited!(self, parent; certificate certificate_key certificate_cache ciphers
            conf_commands crl name passwords protocols protocols_span server_name session_reuse
            trusted_certificate verify verify_depth);
    }

    /// A directive whose value is kept as it is written.
    pub fn set_arg(slot: &mut Option<Arg>, node: &Node) -> Result<(), Error> {
        value::set_once(slot, node, |node| Ok(node.arg(0)?.clone()))
    }

    /// `…_ssl_conf_command`: another one.
    pub fn conf_command(&mut self, node: &Node) -> Result<(), Error> {
        let pair = (node.arg(0)?.clone(), node.arg(1)?.clone());
        self.conf_commands.get_or_insert_default().push(pair);
        Ok(())
    }

    /// `…_ssl_protocols`.
    pub fn protocols(&mut self, node: &Node, loader: &mut Loader<'_>) -> Result<(), Error> {
        self.protocols_span.get_or_insert(node.span);
        value::set_bits(&mut self.protocols, node, PROTOCOLS, loader.diags)
    }
}

/// How a location speaks TLS to its upstreams.
pub struct Client {
    config: Arc<ClientConfig>,
    /// Tells its connections from those of others; the same after a reload that changes nothing.
    number: (u64, u64),
    name: Option<Template>,
    /// A client certificate whose name holds variables.
    dynamic: Option<(Template, Template, PairLoader)>,
}

/// Whom a request speaks TLS to, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the upstream, without port.
    pub name: String,
    /// The client certificate and its key, if variables name them.
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// What connections that may be used for each other's requests have in common.
    pub tag: u64,
}

impl Client {
    /// Builds it; `prefix`: `proxy`, `grpc` …; `alpn`: the protocol that is offered, if any.
    pub fn build<S: Scope>(
        settings: &Settings,
        prefix: &str,
        alpn: Option<&[u8]>,
        cx: &mut Context<'_, '_, S>,
    ) -> Result<Client, Error> {
        let loader = &mut *cx.loader;
        let mut built = ClientSettings {
            protocols: server::protocols(settings.protocols, settings.protocols_span, loader)?,
            ciphers: server::ciphers(settings.ciphers.as_ref(), loader)?,
            verify: trust(settings, prefix, cx.span, loader)?,
            reuse_sessions: settings.session_reuse != Some(false),
            send_name: settings.server_name == Some(true),
            alpn: alpn.map(<[u8]>::to_vec).into_iter().collect(),
            ..ClientSettings::default()
        };
        let commands = settings.conf_commands.as_deref().unwrap_or_default();
        let mut changes = Changes {
            protocols: &mut built.protocols,
            ciphers: &mut built.ciphers,
            groups: &mut built.groups,
            prefer_server_ciphers: None,
            prioritize_chacha: None,
        };
        commands::obey(&mut changes, commands, loader)?;
        let mut dynamic = None;
        if let Some(certificate) = settings.certificate.as_ref().filter(|arg| !arg.value.is_empty())
        {
            let Some(key) = &settings.certificate_key else {
                let text = format!(
                    "no \"{prefix}_ssl_certificate_key\" is defined for certificate \"{}\"",
                    certificate.lossy()
                );
                return Err(Error::emerg(certificate.span, text));
            };
            dynamic = self::dynamic(settings, certificate, key, cx)?;
            if dynamic.is_none() {
                let passwords = settings.passwords.as_ref();
                built.certificate = Some(load::pair(certificate, key, passwords, cx.loader)?);
            }
        }
        let name = match &settings.name {
            None => None,
            Some(arg) => Some(Template::parse(&arg.value, arg.span, cx.registry)?),
        };
        let config = ClientConfig::new(&built).map_err(|why| Error::emerg(cx.span, why))?;
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        // Files that variables name may have changed.
        let own = dynamic.as_ref().map_or(0, |_| NUMBERS.fetch_add(1, Relaxed));
        Ok(Client { number: (config.number(), own), config, name, dynamic })
    }

    /// Whom to speak to where there is no request: health checks. `None`: variables say who.
    pub fn fixed(&self, host: &[u8]) -> Option<(Arc<ClientConfig>, String)> {
        let own = match &self.name {
            None => None,
            Some(name) => Some(name.as_text()?),
        };
        let name = String::from_utf8_lossy(without_port(own.unwrap_or(host))).into_owned();
        self.dynamic.is_none().then(|| (self.config.clone(), name))
    }

    /// Works out whom a request speaks to; `host`: where it goes, if nothing else is said.
    pub fn identify<S: Scope>(&self, scope: &S, host: &[u8]) -> Identity {
        let own = self.name.as_ref().map(|name| name.value(scope));
        let name = without_port(own.as_deref().unwrap_or(host));
        let name = String::from_utf8_lossy(name).into_owned();
        let certificate = self
            .dynamic
            .as_ref()
            .map(|(certificate, key, _)| (certificate.value(scope), key.value(scope)));
        let mut tag = DefaultHasher::new();
        (self.number, &name, &certificate).hash(&mut tag);
        // Connections in the clear have the tag 0.
        let tag = tag.finish() | 1;
        Identity { name, certificate, tag }
    }

    /// What to shake hands with. The error is a line for the log.
    pub fn config(&self, identity: &Identity) -> Result<Arc<ClientConfig>, String> {
        match (&identity.certificate, &self.dynamic) {
            // As in nginx, an empty name is no certificate.
            (Some((certificate, key)), Some((_, _, loader))) if !certificate.is_empty() => {
                let pair = loader.load(certificate.clone(), key.clone())?;
                Ok(self.config.with_certificate(&pair))
            }
            _ => Ok(self.config.clone()),
        }
    }
}

fn dynamic<S: Scope>(
    settings: &Settings,
    certificate: &Arg,
    key: &Arg,
    cx: &mut Context<'_, '_, S>,
) -> Result<Option<(Template, Template, PairLoader)>, Error> {
    let parse =
        |arg: &Arg, registry: &mut Registry<S>| Template::parse(&arg.value, arg.span, registry);
    let (certificate, key) = (parse(certificate, cx.registry)?, parse(key, cx.registry)?);
    if certificate.as_text().is_some() && key.as_text().is_some() {
        return Ok(None);
    }
    let loader = PairLoader {
        prefix: cx.loader.conf_prefix.clone(),
        passwords: settings.passwords.clone(),
        cache: settings.certificate_cache.clone().flatten(),
    };
    Ok(Some((certificate, key, loader)))
}

fn trust(
    settings: &Settings,
    prefix: &str,
    span: Span,
    loader: &mut Loader<'_>,
) -> Result<Option<Trust>, Error> {
    let certificates = load::authorities(settings.trusted_certificate.as_ref(), loader)?;
    let crls = load::crls(settings.crl.as_ref(), loader)?;
    if settings.verify != Some(true) {
        return Ok(None);
    }
    if certificates.is_empty() {
        let text = format!("no {prefix}_ssl_trusted_certificate for {prefix}_ssl_verify");
        return Err(Error::emerg(span, text));
    }
    Ok(Some(Trust { certificates, crls, depth: settings.verify_depth.unwrap_or(1) }))
}

/// `ngx_http_upstream_ssl_name` cuts a port off; an address of IPv6 stands in brackets.
fn without_port(name: &[u8]) -> &[u8] {
    if let Some(inner) = name.strip_prefix(b"[") {
        return memchr::memchr(b']', inner).map_or(inner, |end| &inner[..end]);
    }
    memchr::memchr(b':', name).map_or(name, |end| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_ports() {
        let cases: [(&[u8], &[u8]); 5] = [
            (b"a.test", b"a.test"),
            (b"a.test:8443", b"a.test"),
            (b"127.0.0.1:1", b"127.0.0.1"),
            (b"[::1]:443", b"::1"),
            (b"", b""),
        ];
        for (name, want) in cases {
            assert_eq!(without_port(name), want);
        }
    }
}
