//! The client's side: connections to upstreams.
//!
//! Answers `ngx_http_upstream_ssl_init_connection`, `ngx_http_upstream_ssl_handshake` and what
//! `proxy_ssl_*` sets up.
//! Invariant: what is resumed is verified like what is new.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use forebay_rt::{pool, transport::Transport};
use rustls::{
    CommonState, HandshakeKind, NamedGroup,
    client::{ClientSessionMemoryCache, Resumption, UnbufferedClientConnection},
    crypto::{CryptoProvider, aws_lc_rs::default_provider},
    pki_types::{CertificateDer, ServerName},
    sign::SingleCertAndKey,
};

use crate::{
    certificate::KeyPair,
    ciphers::Ciphers,
    error::{ConnectError, Failure},
    handshake::{self, Exchange, Party, Trouble},
    session::Session,
    settings::{ClientSettings, Protocols, Trust},
    stream::TlsStream,
    verify::{AnyServer, PROVED, Verdict, Verifier, is_for_host},
};

/// How many upstream names' sessions a configuration keeps.
const SESSIONS: usize = 1024;

/// How locations speak TLS to their upstreams. Its sessions are shared by all threads, and by whoever says
/// the same: what a configuration before this one agreed on goes on after a reload.
#[derive(Debug)]
pub struct ClientConfig {
    content: Content,
    number: u64,
    rustls: Arc<rustls::ClientConfig>,
    verifier: Option<Arc<Verifier>>,
    buffer_bytes: usize,
}

/// All that two of them may differ in.
#[derive(Clone, Debug, PartialEq)]
struct Content {
    protocols: Protocols,
    ciphers: Ciphers,
    groups: Vec<NamedGroup>,
    /// The certificates of the client; whose key is with it, the first says.
    chain: Option<Vec<CertificateDer<'static>>>,
    verify: Option<Trust>,
    reuse_sessions: bool,
    send_name: bool,
    alpn: Vec<Vec<u8>>,
    buffer_bytes: usize,
}

impl Content {
    fn of(settings: &ClientSettings) -> Content {
        Content {
            protocols: settings.protocols,
            ciphers: settings.ciphers.clone(),
            groups: settings.groups.0.iter().map(|group| group.name()).collect(),
            chain: settings.certificate.as_ref().map(|pair| pair.chain().to_vec()),
            verify: settings.verify.clone(),
            reuse_sessions: settings.reuse_sessions,
            send_name: settings.send_name,
            alpn: settings.alpn.clone(),
            buffer_bytes: settings.buffer_bytes,
        }
    }
}

/// Those that are in use.
static KNOWN: Mutex<Vec<Weak<ClientConfig>>> = Mutex::new(Vec::new());
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl ClientConfig {
    /// Builds it, or finds the one that says the same; the error says what cannot work together.
    pub fn new(settings: &ClientSettings) -> Result<Arc<ClientConfig>, String> {
        let content = Content::of(settings);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|config| config.strong_count() > 0);
        let found = known.iter().filter_map(Weak::upgrade).find(|config| config.content == content);
        if let Some(config) = found {
            return Ok(config);
        }
        let built = Arc::new(ClientConfig::build(settings, content)?);
        known.push(Arc::downgrade(&built));
        Ok(built)
    }

    /// Tells it from all others that there are or were.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn build(settings: &ClientSettings, content: Content) -> Result<ClientConfig, String> {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: settings.ciphers.suites(),
            kx_groups: settings.groups.0.clone(),
            ..default_provider()
        });
        let verifier = settings.verify.as_ref().map(Verifier::new).transpose()?.map(Arc::new);
        let any = Arc::new(AnyServer::new(&provider));
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&settings.protocols.versions())
            .map_err(|error| {
                format!("proxy_ssl_protocols and proxy_ssl_ciphers leave nothing: {error}")
            })?
            .dangerous()
            .with_custom_certificate_verifier(any);
        let mut config = match &settings.certificate {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.current())))
            }
        };
        config.alpn_protocols = settings.alpn.clone();
        // An upstream that ignores ALPN is spoken to in what nginx speaks.
        config.check_selected_alpn = false;
        config.enable_secret_extraction = true;
        config.enable_sni = settings.send_name;
        config.resumption = match settings.reuse_sessions {
            true => Resumption::store(Arc::new(ClientSessionMemoryCache::new(SESSIONS))),
            false => Resumption::disabled(),
        };
        Ok(ClientConfig {
            content,
            number: NUMBERS.fetch_add(1, Relaxed),
            rustls: Arc::new(config),
            verifier,
            buffer_bytes: settings.buffer_bytes,
        })
    }

    /// The same with another certificate to show. Sessions are not resumed: they were made as somebody
    /// else.
    pub fn with_certificate(&self, pair: &KeyPair) -> Arc<ClientConfig> {
        let mut config = (*self.rustls).clone();
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(pair.current()));
        config.resumption = Resumption::disabled();
        let chain = Some(pair.chain().to_vec());
        Arc::new(ClientConfig {
            // No other is ever taken for it: it is not among those that are known.
            content: Content { chain, ..self.content.clone() },
            number: NUMBERS.fetch_add(1, Relaxed),
            rustls: Arc::new(config),
            verifier: self.verifier.clone(),
            buffer_bytes: self.buffer_bytes,
        })
    }
}

/// Shakes hands with an upstream. `name` (`proxy_ssl_name`, without a port) is sent if the settings
/// say so, is what the certificate must be for, and is what sessions are kept by. There is no time
/// limit but the caller's, who drops the future.
pub async fn connect<T: Transport>(
    mut io: T,
    config: &ClientConfig,
    name: &str,
) -> Result<(TlsStream<T>, Session), ConnectError> {
    let mut exchange = Exchange::new(pool::buffer());
    let result = shake(&mut io, config, &mut exchange, name).await;
    pool::recycle(std::mem::take(&mut exchange.input));
    let (state, session) = result?;
    Ok((TlsStream::new(io, state), session))
}

async fn shake<T: Transport>(
    io: &mut T,
    config: &ClientConfig,
    exchange: &mut Exchange,
    name: &str,
) -> Result<(Box<crate::stream::State>, Session), ConnectError> {
    let connection = client(config, name)?;
    let mut party = Observed { connection, peer_signature: None };
    handshake::run(io, &mut party, exchange).await?;
    let session = session(&party, config);
    if let Err(text) = check(config, &session, name) {
        // What was agreed on is not used; the upstream gets no byte of the request.
        return Err(ConnectError::Certificate(text));
    }
    let mut state = party.into_state(config.buffer_bytes).map_err(Trouble::Failed)?;
    // The end of the handshake leaves with the request.
    state.defer(std::mem::take(&mut exchange.output), 0);
    state.preread(&exchange.plain, &exchange.input);
    Ok((state, session))
}

fn client(config: &ClientConfig, name: &str) -> Result<UnbufferedClientConnection, ConnectError> {
    let name = name.trim_end_matches('.');
    let (rustls, name) = match ServerName::try_from(name.to_owned()) {
        Ok(name) => (config.rustls.clone(), name),
        // No name of a host (a socket's path, a variable that is empty): none is sent.
        Err(_) => {
            let mut nameless = (*config.rustls).clone();
            nameless.enable_sni = false;
            nameless.resumption = Resumption::disabled();
            (Arc::new(nameless), ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into()))
        }
    };
    let connection = UnbufferedClientConnection::new(rustls, name);
    connection.map_err(|error| ConnectError::Failed(Failure::of(&error)))
}

/// `ngx_http_upstream_ssl_handshake`: the texts of nginx's log.
fn check(config: &ClientConfig, session: &Session, name: &str) -> Result<(), String> {
    match &session.verdict {
        _ if config.verifier.is_none() => return Ok(()),
        // Without a certificate there is none that could be for the name.
        Verdict::Success | Verdict::None => {}
        Verdict::Failed(code, text) => {
            return Err(format!("upstream SSL certificate verify error: ({code}:{text})"));
        }
    }
    match session.peer.first().is_some_and(|der| is_for_host(der, name)) {
        true => Ok(()),
        false => Err(format!("upstream SSL certificate does not match \"{name}\"")),
    }
}

struct Observed {
    connection: UnbufferedClientConnection,
    peer_signature: Option<rustls::SignatureScheme>,
}

impl Party for Observed {
    fn step(&mut self, exchange: &mut Exchange) -> Result<handshake::Step, rustls::Error> {
        PROVED.set(None);
        let step = self.connection.step(exchange);
        self.peer_signature = PROVED.get().or(self.peer_signature);
        step
    }

    fn has_output(&self) -> bool {
        self.connection.has_output()
    }

    fn into_state(self, bytes: usize) -> Result<Box<crate::stream::State>, rustls::Error> {
        self.connection.into_state(bytes)
    }
}

fn session(party: &Observed, config: &ClientConfig) -> Session {
    let common: &CommonState = &party.connection;
    let peer: Box<[_]> = common.peer_certificates().unwrap_or_default().into();
    let verdict = match &config.verifier {
        Some(verifier) => verifier.verify_server(&peer),
        None => Verdict::None,
    };
    Session {
        version: common.protocol_version(),
        cipher: common.negotiated_cipher_suite().map_or(0, |suite| suite.suite().into()),
        group: common.negotiated_key_exchange_group().map(|group| group.name().into()),
        server_name: None,
        alpn: common.alpn_protocol().map(Box::from),
        id: OnceLock::new(),
        reused: common.handshake_kind() == Some(HandshakeKind::Resumed),
        early: None,
        peer,
        verdict,
        signature: None,
        peer_signature: party.peer_signature.map(u16::from),
        hello: None,
    }
}

impl From<Trouble> for ConnectError {
    fn from(trouble: Trouble) -> ConnectError {
        match trouble {
            Trouble::Closed(error) => ConnectError::Closed(error),
            Trouble::Failed(error) => ConnectError::Failed(Failure::of(&error)),
        }
    }
}
