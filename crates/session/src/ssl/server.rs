//! A server that speaks TLS: its settings with all files read (`ngx_http_ssl_merge_srv_conf`).
//!
//! Invariant: everything that can be wrong with it is found while the configuration loads. What is
//! shared with other threads, and with the configuration before ([`crate::zone`]), is taken when the
//! first client comes: until then it is not known.

use std::sync::{Arc, OnceLock};

use forebay_conf::{Arg, Error, Loader, Span};
use forebay_tls::{
    Ciphers, ClientAuth, Groups, Protocols, Resumption, ServerConfig, ServerSettings, SessionCache,
    TicketKeys, Trust, ocsp_names,
};

use super::{
    commands,
    dynamic::Dynamic,
    load::{self, Source},
    ocsp::{ClientOcsp, Resolving, Responder, Stapler},
    sessions::{self, SessionsUse, TicketsUse},
    settings::{Ocsp, PROTOCOLS, SessionCache as Cache, Settings, VerifyClient},
};
use crate::{
    var::{Registry, Scope},
    zone::Zones,
};

/// How a server speaks TLS.
pub struct Server {
    /// `ssl_reject_handshake`.
    pub rejects: bool,
    /// `ssl_verify_client`.
    pub verify: VerifyClient,
    /// Certificates whose names hold variables.
    pub dynamic: Option<Dynamic>,
    /// What keeps the staples of its certificates fresh.
    pub staplers: Vec<Arc<Stapler>>,
    /// `ssl_ocsp`.
    pub ocsp: Option<ClientOcsp>,
    settings: ServerSettings,
    cache: SessionStore,
    tickets: Option<Tickets>,
    /// By [`Server::config`]'s `alpn`.
    configs: [OnceLock<Option<Arc<ServerConfig>>>; 2],
}

/// Where sessions by id are kept.
enum SessionStore {
    None,
    Own(Arc<SessionCache>),
    Shared(SessionsUse),
}

/// What session tickets are encrypted with.
enum Tickets {
    /// `ssl_session_ticket_key`.
    Given(Arc<TicketKeys>),
    /// Keys of the process, which change by themselves.
    Own(TicketsUse),
}

/// What a server is built with beside its settings.
pub struct Context<'a, 'l, S: 'static> {
    /// Files and warnings.
    pub loader: &'a mut Loader<'l>,
    /// For names with variables.
    pub registry: &'a mut Registry<S>,
    /// For what is shared.
    pub zones: &'a mut Zones,
    /// `http` or `stream`, before the names of directives of files that are missing: the block.
    pub span: Span,
}

impl Server {
    /// Builds it; `None`: it has no certificates and rejects nobody, so it speaks no TLS. `resolving`:
    /// for names of OCSP responders.
    pub fn build<S: Scope>(
        settings: &Settings,
        resolving: &Resolving,
        cx: &mut Context<'_, '_, S>,
    ) -> Result<Option<Server>, Error> {
        let rejects = settings.reject_handshake == Some(true);
        let certificates = settings.certificates.as_deref().unwrap_or_default();
        if certificates.is_empty() && !rejects {
            return Ok(None);
        }
        let keys = settings.certificate_keys.as_deref().unwrap_or_default();
        if keys.len() < certificates.len()
            && let Some(last) = certificates.last()
        {
            let last = last.lossy();
            let text = format!("no \"ssl_certificate_key\" is defined for certificate \"{last}\"");
            return Err(Error::emerg(cx.span, text));
        }
        // In nginx's order (ngx_http_ssl_merge_srv_conf), which says what is told of several faults.
        let dynamic = Dynamic::find(settings, cx)?;
        let mut pairs = Vec::new();
        if dynamic.is_none() {
            for (certificate, key) in certificates.iter().zip(keys) {
                let passwords = settings.passwords.as_ref();
                pairs.push(load::pair(certificate, key, passwords, cx.loader)?);
            }
        }
        let mut built = plain(settings, cx.loader)?;
        built.certificates = pairs;
        let staplers = staple(settings, resolving, &mut built, cx)?;
        let ocsp = client_ocsp(settings, resolving, &built)?;
        let (cache, tickets) = resumption(settings, cx)?;
        if let Err(why) = ServerConfig::new(&built) {
            let span = settings.ciphers.as_ref().map_or(cx.span, |ciphers| ciphers.span);
            return Err(Error::emerg(span, why));
        }
        Ok(Some(Server {
            rejects,
            verify: settings.verify_client.map_or(VerifyClient::Off, |(verify, _)| verify),
            dynamic,
            staplers,
            ocsp,
            settings: built,
            cache,
            tickets,
            configs: Default::default(),
        }))
    }

    /// What connections are accepted with; made when it is first asked for. `alpn`: which of the two
    /// lists of protocols, and the list; the same at every call. `keep_hello`: as in
    /// [`ServerSettings`]. `None` only if what could be built when the configuration was loaded no
    /// longer can.
    pub fn config(
        &self,
        (which, alpn): (usize, &[&[u8]]),
        keep_hello: impl FnOnce() -> bool,
    ) -> Option<&Arc<ServerConfig>> {
        let make = || {
            let resumption = Resumption {
                cache: match &self.cache {
                    SessionStore::None => None,
                    SessionStore::Own(cache) => Some(cache.clone()),
                    SessionStore::Shared(zone) => Some(zone.memory().clone()),
                },
                tickets: self.tickets.as_ref().map(|tickets| match tickets {
                    Tickets::Given(keys) => keys.clone(),
                    Tickets::Own(zone) => zone.memory().clone(),
                }),
                timeout_s: self.settings.resumption.timeout_s,
            };
            ServerConfig::new(&ServerSettings {
                alpn: alpn.iter().map(|protocol| protocol.to_vec()).collect(),
                resumption,
                keep_hello: keep_hello(),
                ..self.settings.clone()
            })
            .ok()
        };
        self.configs[which].get_or_init(make).as_ref()
    }
}

/// What needs no certificates of its own.
fn plain(settings: &Settings, loader: &mut Loader<'_>) -> Result<ServerSettings, Error> {
    let mut built = ServerSettings {
        protocols: protocols(settings.protocols, settings.protocols_span, loader)?,
        ciphers: ciphers(settings.ciphers.as_ref(), loader)?,
        groups: groups(settings.ecdh_curve.as_ref(), loader)?,
        prefer_server_ciphers: settings.prefer_server_ciphers == Some(true),
        buffer_bytes: settings.buffer_size.map_or(16 << 10, |size| size as usize),
        client_auth: client_auth(settings, loader)?,
        early_data: settings.early_data == Some(true),
        compress_certificates: settings.certificate_compression == Some(true),
        ..ServerSettings::default()
    };
    built.resumption.timeout_s = settings.session_timeout_s.unwrap_or(DEFAULT_TIMEOUT_S);
    if let Some(file) = &settings.dhparam {
        dhparam(file, loader)?;
    }
    let commands = settings.conf_commands.as_deref().unwrap_or_default();
    commands::of_server(&mut built, commands, loader)?;
    Ok(built)
}

/// `ssl_protocols` and its sisters.
pub fn protocols(
    bits: Option<u32>,
    span: Option<Span>,
    loader: &mut Loader<'_>,
) -> Result<Protocols, Error> {
    let Some(bits) = bits else { return Ok(Protocols::default()) };
    let span = span.unwrap_or_default();
    let named = PROTOCOLS.iter().filter(|(_, bit)| bits & bit != 0);
    let words: Vec<&str> = named.map(|(name, _)| *name).collect();
    let (protocols, warnings) = Protocols::parse(&words).map_err(|why| Error::emerg(span, why))?;
    warnings.into_iter().for_each(|warning| loader.warn(span, warning));
    Ok(protocols)
}

/// `ssl_ciphers` and its sisters.
pub fn ciphers(arg: Option<&Arg>, loader: &mut Loader<'_>) -> Result<Ciphers, Error> {
    let Some(arg) = arg else { return Ok(Ciphers::default()) };
    let (ciphers, warnings) = Ciphers::parse(arg.text()?).map_err(|why| {
        let list = arg.lossy();
        Error::emerg(arg.span, format!("SSL_CTX_set_cipher_list(\"{list}\") failed {why}"))
    })?;
    warnings.into_iter().for_each(|warning| loader.warn(arg.span, warning));
    Ok(ciphers)
}

/// `ssl_ecdh_curve`.
pub fn groups(arg: Option<&Arg>, loader: &mut Loader<'_>) -> Result<Groups, Error> {
    let Some(arg) = arg else { return Ok(Groups::default()) };
    let (groups, warnings) = Groups::parse(arg.text()?).map_err(|why| {
        let list = arg.lossy();
        Error::emerg(arg.span, format!("SSL_CTX_set1_curves_list(\"{list}\") failed ({why})"))
    })?;
    warnings.into_iter().for_each(|warning| loader.warn(arg.span, warning));
    Ok(groups)
}

/// The file must be there and be what it is said to be; then it is of no use.
fn dhparam(arg: &Arg, loader: &mut Loader<'_>) -> Result<(), Error> {
    let text = load::bytes(arg, loader)?;
    if memchr::memmem::find(&text, b"DH PARAMETERS-----").is_none() {
        let path = loader.conf_path(arg.path());
        let text = format!(
            "PEM_read_bio_DHparams(\"{}\") failed (SSL: error:0480006C:PEM routines::no start \
             line:Expecting: DH PARAMETERS)",
            path.display()
        );
        return Err(Error::emerg(arg.span, text));
    }
    let text = "the \"ssl_dhparam\" directive changes nothing here: there are no DHE ciphers, which \
                clients take only where they find none better";
    loader.info(arg.span, text);
    Ok(())
}

fn client_auth(settings: &Settings, loader: &mut Loader<'_>) -> Result<Option<ClientAuth>, Error> {
    let (verify, span) = settings.verify_client.unwrap_or_default();
    // As in nginx, the one file is read only where it is needed.
    let client = settings.client_certificate.as_ref().filter(|_| verify != VerifyClient::Off);
    let names = load::authorities(client, loader)?;
    let trusted = load::authorities(settings.trusted_certificate.as_ref(), loader)?;
    let crls = load::crls(settings.crl.as_ref(), loader)?;
    match verify {
        VerifyClient::Off => return Ok(None),
        VerifyClient::On | VerifyClient::Optional if names.is_empty() && trusted.is_empty() => {
            let text = "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client";
            return Err(Error::emerg(span, text));
        }
        _ => {}
    }
    let certificates = names.iter().chain(&trusted).cloned().collect();
    let trust = Trust { certificates, crls, depth: settings.verify_depth.unwrap_or(1) };
    Ok(Some(ClientAuth { trust, names }))
}

/// `ssl_stapling`: from a file, or by asking (`ngx_ssl_stapling`).
fn staple<S: Scope>(
    settings: &Settings,
    resolving: &Resolving,
    built: &mut ServerSettings,
    cx: &mut Context<'_, '_, S>,
) -> Result<Vec<Arc<Stapler>>, Error> {
    if settings.stapling != Some(true) {
        return Ok(Vec::new());
    }
    if let Some(file) = &settings.stapling_file {
        let response = load::bytes(file, cx.loader)?;
        // RFC 6960 §4.2.1: a sequence whose first part says that the responder succeeded.
        if response.first() != Some(&0x30) {
            let path = cx.loader.conf_path(file.path());
            let text = format!("d2i_OCSP_RESPONSE_bio(\"{}\") failed", path.display());
            return Err(Error::emerg(file.span, text));
        }
        // DIFFERS(ssl-stapling-file): nginx sends it with all of several certificates; clients refuse
        // one that is about another.
        let is_alone = built.certificates.len() == 1;
        for pair in &mut built.certificates {
            if is_alone || pair.certificates().first().is_some_and(|der| ocsp_names(&response, der))
            {
                *pair = pair.with_ocsp(Some(response.clone()));
            }
        }
        return Ok(Vec::new());
    }
    let trusted = load::authorities(settings.trusted_certificate.as_ref(), cx.loader)?;
    let url = settings.stapling_responder.as_ref().map(|arg| arg.text()).transpose()?;
    let verify = settings.stapling_verify == Some(true);
    let names = settings.certificates.iter().flatten();
    let mut staplers = Vec::new();
    for (pair, name) in built.certificates.iter().zip(names) {
        let file = Source::of(&name.value, &cx.loader.conf_prefix).to_string();
        match Stapler::new(&file, pair, &trusted, url, verify, resolving.clone()) {
            Ok(stapler) => staplers.push(Arc::new(stapler)),
            Err(why) => {
                let link = if why.contains("OCSP responder") { "in the" } else { "for" };
                let text = format!("\"ssl_stapling\" ignored, {why} {link} certificate \"{file}\"");
                cx.loader.warn(name.span, text);
            }
        }
    }
    Ok(staplers)
}

/// `ssl_ocsp` (`ngx_ssl_ocsp`).
fn client_ocsp(
    settings: &Settings,
    resolving: &Resolving,
    built: &ServerSettings,
) -> Result<Option<ClientOcsp>, Error> {
    let (Some((mode @ (Ocsp::On | Ocsp::Leaf), span)), Some(auth)) =
        (settings.ocsp, &built.client_auth)
    else {
        return Ok(None);
    };
    if settings.verify_client.is_some_and(|(verify, _)| verify == VerifyClient::OptionalNoCa) {
        let text = "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"";
        return Err(Error::emerg(span, text));
    }
    let responder = settings.ocsp_responder.as_ref().map(|arg| {
        let url = arg.text()?;
        Responder::parse(url).map_err(|why| {
            let text = format!("{why} in OCSP responder \"{url}\" in \"ssl_ocsp_responder\"");
            Error::emerg(arg.span, text)
        })
    });
    Ok(Some(ClientOcsp {
        leaf: mode == Ocsp::Leaf,
        responder: responder.transpose()?,
        trusted: auth.trust.certificates.clone(),
        cache: settings.ocsp_cache.clone().flatten(),
        resolving: resolving.clone(),
    }))
}

fn resumption<S: Scope>(
    settings: &Settings,
    cx: &mut Context<'_, '_, S>,
) -> Result<(SessionStore, Option<Tickets>), Error> {
    let own = settings.session_cache.unwrap_or(Cache::None);
    let cache = match (own, &settings.shared_sessions) {
        (Cache::Builtin(_) | Cache::NoBuiltin, Some(zone)) => SessionStore::Shared(zone.clone()),
        (Cache::Builtin(count), None) => {
            SessionStore::Own(SessionCache::new(count.saturating_mul(SESSION_BYTES)))
        }
        _ if settings.early_data == Some(true) => {
            SessionStore::Shared(sessions::for_early_data(cx.zones, cx.span)?)
        }
        _ => SessionStore::None,
    };
    // DIFFERS(ssl-early-data-once): a ticket with early data could be sent twice. Such sessions are kept
    // here, each to be used once (RFC 8446 §8.1); nginx leaves replays to the application.
    if settings.session_tickets == Some(false) || settings.early_data == Some(true) {
        return Ok((cache, None));
    }
    let Some(files) = &settings.session_ticket_keys else {
        let timeout_s = settings.session_timeout_s.unwrap_or(DEFAULT_TIMEOUT_S);
        return Ok((cache, Some(Tickets::Own(sessions::tickets(cx.zones, timeout_s, cx.span)?))));
    };
    let mut keys = Vec::new();
    for file in files {
        let path = cx.loader.conf_path(file.path());
        let read = cx.loader.files.read(&path);
        let key = read.map_err(|error| Error::io(Some(file.span), "open()", &path, &error))?;
        keys.push(key);
    }
    let keys = TicketKeys::from_files(&keys).map_err(|(index, why)| {
        let path = cx.loader.conf_path(files[index].path());
        Error::emerg(files[index].span, format!("\"{}\" {why}", path.display()))
    })?;
    Ok((cache, Some(Tickets::Given(keys))))
}

/// `ssl_session_timeout`, if it is not said.
const DEFAULT_TIMEOUT_S: u64 = 300;
/// What a session takes in a cache whose size is told in sessions, about.
const SESSION_BYTES: usize = 350;
