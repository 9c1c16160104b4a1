//! The server's side: its configuration, and the handshake with a client.
//!
//! Answers `ngx_http_ssl_handshake`, `ngx_http_ssl_servername`, `ngx_ssl_create` and what sets an
//! `SSL_CTX` up.
//! Invariant: a configuration does not change once built; connections share it.

use std::{
    cell::Cell,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use aws_lc_rs::digest;
use forebay_rt::{pool, transport::Transport};
use rustls::{
    CommonState, Error, HandshakeKind, ProtocolVersion, SignatureAlgorithm, SignatureScheme,
    SupportedCipherSuite, Tls12CipherSuite,
    crypto::{CryptoProvider, aws_lc_rs::default_provider},
    server::{
        ClientHello as RustlsHello, NoServerSessionStorage, ResolvesServerCert,
        UnbufferedServerConnection, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
    unbuffered::{ConnectionState, UnbufferedStatus},
};

use crate::{
    certificate::KeyPair,
    early::Early,
    error::{AcceptError, Failure},
    handshake::{self, Exchange, Party, Trouble},
    hello::{ClientHello, Gathered, Scan},
    session::Session,
    sessions::{BoundCache, BoundTickets, SessionCache},
    settings::{ClientAuth, ServerSettings},
    stream::{State, TlsStream},
    verify::{AnyClient, PROVED, Verdict, Verifier},
};

/// How much a client may send before its handshake is done (RFC 8446 §4.2.10): a request's head.
const MAX_EARLY_DATA: u32 = 16 << 10;
/// The size of the cache that `ssl_early_data` needs where the configuration has none.
const EARLY_DATA_CACHE_BYTES: usize = 4 << 20;
/// How many tickets follow a handshake of TLS 1.3, as with OpenSSL.
const TICKETS: usize = 2;

/// How one `server {}` speaks TLS.
#[derive(Debug)]
pub struct ServerConfig {
    configs: Configs,
    /// What clients get that would rather have ChaCha20 than what we prefer: their order counts.
    chacha: Option<Configs>,
    verifier: Option<Arc<Verifier>>,
    buffer_bytes: usize,
    keep_hello: bool,
    tls13: bool,
}

/// What rustls is given, by whom it is for.
#[derive(Clone, Debug)]
struct Configs {
    full: Arc<rustls::ServerConfig>,
    /// The same for clients that resume: a ticket is replaced by one, not by two, as with OpenSSL.
    resuming: Arc<rustls::ServerConfig>,
}

impl Configs {
    fn new(full: rustls::ServerConfig) -> Configs {
        let mut resuming = full.clone();
        resuming.send_tls13_tickets = resuming.send_tls13_tickets.min(1);
        Configs { full: Arc::new(full), resuming: Arc::new(resuming) }
    }

    /// The same with other certificates.
    fn with(&self, certificates: &[KeyPair]) -> Configs {
        let mut config = (*self.full).clone();
        let certificates = Certificates::new(certificates, config.crypto_provider());
        config.cert_resolver = Arc::new(certificates);
        Configs::new(config)
    }
}

/// What becomes of a client, by what it says.
#[derive(Clone, Debug)]
pub enum Choice {
    /// This server serves it.
    Serve(Arc<ServerConfig>),
    /// `ssl_reject_handshake`: the alert unrecognized_name.
    Reject,
    /// Something went wrong that the chooser has logged: the alert internal_error.
    Abort,
}

impl ServerConfig {
    /// Builds it; the error says what cannot work together.
    pub fn new(settings: &ServerSettings) -> Result<Arc<ServerConfig>, String> {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: settings.ciphers.suites(),
            kx_groups: settings.groups.0.clone(),
            ..default_provider()
        });
        let auth = settings.client_auth.as_ref();
        let verifier = auth.map(|auth| Verifier::for_clients(auth).map(Arc::new)).transpose()?;
        let client_verifier: Arc<dyn ClientCertVerifier> = match auth {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(auth) => Arc::new(AnyClient::new(&provider, &auth.names)?),
        };
        let certificates = Certificates::new(&settings.certificates, &provider);
        let builder = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&settings.protocols.versions())
            .map_err(|error| format!("ssl_protocols and ssl_ciphers leave nothing: {error}"))?;
        let mut config = builder
            .with_client_cert_verifier(client_verifier)
            .with_cert_resolver(Arc::new(certificates));
        config.ignore_client_order = settings.prefer_server_ciphers;
        config.alpn_protocols = settings.alpn.clone();
        config.enable_secret_extraction = true;
        if !settings.compress_certificates {
            config.cert_compressors.clear();
        }
        resume(&mut config, settings);
        let chacha = settings.prioritize_chacha && settings.prefer_server_ciphers;
        let chacha = chacha.then(|| {
            let mut config = config.clone();
            config.ignore_client_order = false;
            Configs::new(config)
        });
        Ok(Arc::new(ServerConfig {
            configs: Configs::new(config),
            chacha,
            verifier,
            buffer_bytes: settings.buffer_bytes,
            keep_hello: settings.keep_hello,
            tls13: settings.protocols.tls13,
        }))
    }

    /// The same with other certificates: those whose files have variables in their names.
    pub fn with_certificates(&self, certificates: &[KeyPair]) -> Arc<ServerConfig> {
        Arc::new(ServerConfig {
            configs: self.configs.with(certificates),
            chacha: self.chacha.as_ref().map(|configs| configs.with(certificates)),
            verifier: self.verifier.clone(),
            buffer_bytes: self.buffer_bytes,
            keep_hello: self.keep_hello,
            tls13: self.tls13,
        })
    }
}

/// Sessions and tickets, bound to what the server demands of its clients: one made elsewhere is not
/// resumed here (CVE-2025-23419).
fn resume(config: &mut rustls::ServerConfig, settings: &ServerSettings) {
    let context = context(settings);
    let resumption = &settings.resumption;
    let timeout_s = resumption.timeout_s;
    // DIFFERS(ssl-early-data-clients): nobody is answered early whose certificate is to be asked for.
    let early = settings.early_data && settings.protocols.tls13 && settings.client_auth.is_none();
    let cache = match &resumption.cache {
        // A session with early data is good once: it is kept here, not in a ticket (RFC 8446 §8.1).
        None if early && resumption.tickets.is_some() => {
            Some(SessionCache::new(EARLY_DATA_CACHE_BYTES))
        }
        cache => cache.clone(),
    };
    let resumes = resumption.tickets.is_some() || cache.is_some();
    config.session_storage = match cache {
        None => Arc::new(NoServerSessionStorage {}),
        Some(cache) => Arc::new(BoundCache::new(cache, context, timeout_s)),
    };
    if let Some(keys) = resumption.tickets.as_ref().filter(|_| !early) {
        config.ticketer = Arc::new(BoundTickets::new(keys.clone(), context, timeout_s));
    }
    config.send_tls13_tickets = if resumes { TICKETS } else { 0 };
    if early {
        config.max_early_data_size = MAX_EARLY_DATA;
        config.send_half_rtt_data = true;
    }
}

/// What tells servers apart whose sessions must not mix (`ngx_ssl_session_id_context`): the
/// certificates, and how clients are verified.
fn context(settings: &ServerSettings) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut add = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    for pair in &settings.certificates {
        add(pair.certificates().first().map_or(&[], |der| der.as_ref()));
    }
    if let Some(ClientAuth { trust, names }) = &settings.client_auth {
        add(format!("verify {}", trust.depth).as_bytes());
        trust.certificates.iter().chain(names).for_each(|der| add(der));
        trust.crls.iter().for_each(|der| add(der));
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

thread_local! {
    /// How the handshake that this thread works on was signed: rustls tells nobody.
    static SIGNED: Cell<Option<SignatureScheme>> = const { Cell::new(None) };
    /// Whether that handshake is one of TLS 1.2: so does a resolver not learn it.
    static TLS12: Cell<bool> = const { Cell::new(false) };
}

/// The certificates of a server, of which a client gets the one that it can use.
#[derive(Debug)]
struct Certificates {
    pairs: Vec<KeyPair>,
    /// The suites of TLS 1.2 that we speak, of which each is for one kind of key.
    suites: Vec<&'static Tls12CipherSuite>,
}

impl Certificates {
    fn new(pairs: &[KeyPair], provider: &CryptoProvider) -> Certificates {
        let suites = provider.cipher_suites.iter().filter_map(|suite| match suite {
            SupportedCipherSuite::Tls12(suite) => Some(*suite),
            SupportedCipherSuite::Tls13(_) => None,
        });
        Certificates { pairs: pairs.to_vec(), suites: suites.collect() }
    }

    /// Whether the client has a suite of TLS 1.2 for such a key.
    fn has_suite(&self, pair: &CertifiedKey, hello: &RustlsHello<'_>) -> bool {
        let kind = pair.key.algorithm();
        self.suites.iter().any(|suite| {
            suite.sign.iter().any(|scheme| algorithm(*scheme) == kind)
                && hello.cipher_suites().contains(&suite.common.suite)
        })
    }
}

/// Which kind of key signs so.
fn algorithm(scheme: SignatureScheme) -> SignatureAlgorithm {
    match scheme {
        SignatureScheme::ECDSA_NISTP256_SHA256
        | SignatureScheme::ECDSA_NISTP384_SHA384
        | SignatureScheme::ECDSA_NISTP521_SHA512
        | SignatureScheme::ECDSA_SHA1_Legacy => SignatureAlgorithm::ECDSA,
        SignatureScheme::ED25519 => SignatureAlgorithm::ED25519,
        SignatureScheme::ED448 => SignatureAlgorithm::ED448,
        _ => SignatureAlgorithm::RSA,
    }
}

impl ResolvesServerCert for Certificates {
    /// In the client's order of preference, as OpenSSL does (`tls_choose_sigalg`).
    fn resolve(&self, hello: RustlsHello<'_>) -> Option<Arc<CertifiedKey>> {
        let offered = hello.signature_schemes();
        let tls12 = TLS12.get();
        let pairs: Vec<_> = self.pairs.iter().map(KeyPair::current).collect();
        let found = offered.iter().find_map(|scheme| {
            let usable = |pair: &&Arc<CertifiedKey>| {
                pair.key.choose_scheme(&[*scheme]).is_some()
                    && (!tls12 || self.has_suite(pair, &hello))
            };
            pairs.iter().find(usable)
        });
        // Where none will do rustls finds that out with any, and says so by the right alert.
        let found = found.or(pairs.first())?;
        SIGNED.set(found.key.choose_scheme(offered).map(|signer| signer.scheme()));
        Some(found.clone())
    }
}

/// Shakes hands with a client. `first`: what was read of it already. `choose` is asked once, when the
/// ClientHello is whole. There is no time limit but the caller's, who drops the future.
pub async fn accept<T: Transport>(
    mut io: T,
    first: Vec<u8>,
    choose: impl FnOnce(&ClientHello<'_>) -> Choice,
) -> Result<(TlsStream<T>, Session), AcceptError<T>> {
    let mut exchange = Exchange::new(first);
    let mut gathered = Gathered::default();
    let body = loop {
        match gathered.scan(&exchange.input) {
            Scan::Hello(body) => break body,
            Scan::Odd => break Vec::new(),
            Scan::Old => {
                alert(&mut io, 0x0301, 70).await;
                return Err(AcceptError::Failed(Failure::unsupported_version()));
            }
            Scan::NotHello => {
                alert(&mut io, 0x0303, 10).await;
                return Err(AcceptError::Failed(Failure::unexpected_message()));
            }
            Scan::TooLarge => {
                alert(&mut io, 0x0303, 47).await;
                return Err(AcceptError::Failed(Failure::excessive_message()));
            }
            Scan::Plain => return Err(AcceptError::PlainText(exchange.input, io)),
            Scan::Partial => {}
        }
        match handshake::read(&mut io, &mut exchange.input).await {
            Ok(0) if exchange.input.is_empty() => return Err(AcceptError::Silent),
            Ok(0) => return Err(AcceptError::Closed(None)),
            Ok(_) => {}
            Err(trouble) => return Err(AcceptError::from(trouble)),
        }
    };
    let hello = ClientHello::parse(&body);
    if let Some(version) = hello.outdated() {
        alert(&mut io, version, 70).await;
        return Err(AcceptError::Failed(Failure::unsupported_version()));
    }
    let config = match choose(&hello) {
        Choice::Serve(config) => config,
        Choice::Reject => {
            alert(&mut io, 0x0303, 112).await;
            return Err(AcceptError::Rejected);
        }
        Choice::Abort => {
            alert(&mut io, 0x0303, 80).await;
            return Err(AcceptError::Failed(Failure::no_certificate()));
        }
    };
    let shaken = shake(&mut io, &config, exchange, &hello).await;
    let (shaken, mut session) = shaken.map_err(|trouble| match trouble {
        Trouble::Closed(error) => AcceptError::Closed(error),
        Trouble::Failed(error) => {
            let tls13 = config.tls13 && hello.offers_tls13();
            AcceptError::Failed(Failure::of_client(&error, tls13))
        }
    })?;
    session.server_name = hello.server_name().map(Box::from);
    if config.keep_hello {
        session.hello = Some(body.into_boxed_slice());
    }
    let stream = match shaken {
        Shaken::Early(early) => TlsStream::early(io, early),
        Shaken::Open(state) => TlsStream::new(io, state),
    };
    Ok((stream, session))
}

async fn shake<T: Transport>(
    io: &mut T,
    config: &ServerConfig,
    mut exchange: Exchange,
    hello: &ClientHello<'_>,
) -> Result<(Shaken, Session), Trouble> {
    let tls12 = !(config.tls13 && hello.offers_tls13());
    let configs = match &config.chacha {
        Some(chacha) if hello.prefers_chacha() => chacha,
        _ => &config.configs,
    };
    let rustls = if hello.resumes_tls13() { &configs.resuming } else { &configs.full };
    let connection = UnbufferedServerConnection::new(rustls.clone());
    let mut party = Observed::new(connection.map_err(Trouble::Failed)?, tls12);
    let run = handshake::run(io, &mut party, &mut exchange).await;
    if run.is_err() {
        pool::recycle(std::mem::take(&mut exchange.input));
    }
    run?;
    let flag = party.is_early().then(|| Arc::new(AtomicBool::new(true)));
    let session = session(&party, config, flag.clone()).map_err(Trouble::Failed)?;
    if let Some(flag) = flag {
        let early = Early::new(party, exchange, config.buffer_bytes, flag);
        return Ok((Shaken::Early(early), session));
    }
    if session.version == Some(ProtocolVersion::TLSv1_2) {
        // The client waits for it; in TLS 1.3 what is left are tickets, which leave with the answer.
        let sent = handshake::flush(io, &mut exchange.output).await;
        sent.map_err(|error| Trouble::Closed(Some(error)))?;
    }
    let mut state = party.state(config.buffer_bytes).map_err(Trouble::Failed)?;
    state.defer(std::mem::take(&mut exchange.output), 0);
    state.preread(&exchange.plain, &exchange.input);
    pool::recycle(std::mem::take(&mut exchange.input));
    Ok((Shaken::Open(state), session))
}

/// How far a handshake has come when the exchange may begin.
enum Shaken {
    Early(Box<Early>),
    Open(Box<State>),
}

/// A connection with what rustls lets be seen only while it happens.
pub(crate) struct Observed {
    /// `None` once it is taken over.
    connection: Option<UnbufferedServerConnection>,
    tls12: bool,
    signature: Option<SignatureScheme>,
    peer_signature: Option<SignatureScheme>,
    /// The session identifier of our ServerHello.
    id: Option<Box<[u8]>>,
}

impl Observed {
    fn new(connection: UnbufferedServerConnection, tls12: bool) -> Observed {
        let connection = Some(connection);
        Observed { connection, tls12, signature: None, peer_signature: None, id: None }
    }

    /// Whether the client has not finished, though there is data of it.
    fn is_early(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.is_handshaking())
    }

    /// Takes the keys over; what is left cannot be used.
    pub(crate) fn state(&mut self, record_bytes: usize) -> Result<Box<State>, Error> {
        let connection = self.connection.take().ok_or(Error::HandshakeNotComplete)?;
        connection.into_state(record_bytes)
    }

    /// Seals data before the client has finished; `None`: says that no more follows.
    pub(crate) fn write(
        &mut self,
        exchange: &mut Exchange,
        data: Option<&[u8]>,
    ) -> Result<(), Error> {
        let connection = self.connection.as_mut().ok_or(Error::HandshakeNotComplete)?;
        let mut output = std::mem::take(&mut exchange.output);
        let UnbufferedStatus { discard, state, .. } =
            connection.process_tls_records(exchange.shown());
        let written = match state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                // A record, and what it is longer than its content.
                let start = output.len();
                output.resize(start + data.map_or(0, <[u8]>::len) + 256, 0);
                let room = &mut output[start..];
                let written = match data {
                    Some(data) => traffic.encrypt(data, room),
                    None => traffic.queue_close_notify(room),
                };
                output.truncate(start + *written.as_ref().unwrap_or(&0));
                written.map(|_| ()).map_err(|error| Error::General(error.to_string()))
            }
            Ok(_) => Err(Error::HandshakeNotComplete),
            Err(error) => Err(error),
        };
        exchange.output = output;
        exchange.discard(discard);
        written
    }
}

impl Party for Observed {
    fn step(&mut self, exchange: &mut Exchange) -> Result<handshake::Step, Error> {
        TLS12.set(self.tls12);
        SIGNED.set(None);
        PROVED.set(None);
        let connection = self.connection.as_mut().ok_or(Error::HandshakeNotComplete)?;
        let step = connection.step(exchange);
        self.signature = SIGNED.get().or(self.signature);
        self.peer_signature = PROVED.get().or(self.peer_signature);
        if self.id.is_none() {
            self.id = server_hello_id(&exchange.output);
        }
        step
    }

    fn has_output(&self) -> bool {
        self.connection.as_ref().is_some_and(Party::has_output)
    }

    fn into_state(mut self, record_bytes: usize) -> Result<Box<State>, Error> {
        self.state(record_bytes)
    }
}

/// The session identifier in a ServerHello that begins a flight (RFC 5246 §7.4.1.3).
fn server_hello_id(output: &[u8]) -> Option<Box<[u8]>> {
    // Record header, message header, version, random.
    let (before, rest) = output.split_at_checked(5 + 4 + 2 + 32)?;
    let (len, rest) = rest.split_first()?;
    let is_hello = before[0] == 22 && before[5] == 2;
    rest.get(..usize::from(*len)).filter(|_| is_hello).map(Box::from)
}

fn session(
    party: &Observed,
    config: &ServerConfig,
    early: Option<Arc<AtomicBool>>,
) -> Result<Session, Error> {
    let connection = party.connection.as_ref().ok_or(Error::HandshakeNotComplete)?;
    let common: &CommonState = connection;
    let peer: Box<[_]> = common.peer_certificates().unwrap_or_default().into();
    // A resumed session is verified anew: its certificate may have expired since, or been revoked.
    let verdict = match &config.verifier {
        Some(verifier) => verifier.verify_client(&peer),
        None => Verdict::None,
    };
    let reused = common.handshake_kind() == Some(HandshakeKind::Resumed);
    let session = Session {
        version: common.protocol_version(),
        cipher: common.negotiated_cipher_suite().map_or(0, |suite| suite.suite().into()),
        group: common.negotiated_key_exchange_group().map(|group| group.name().into()),
        server_name: None,
        alpn: common.alpn_protocol().map(Box::from),
        id: OnceLock::new(),
        reused,
        early,
        peer,
        verdict,
        signature: party.signature.filter(|_| !reused).map(u16::from),
        peer_signature: party.peer_signature.map(u16::from),
        hello: None,
    };
    if let (Some(id), Some(ProtocolVersion::TLSv1_2)) = (&party.id, session.version) {
        // RFC 8446 §4.1.3: in TLS 1.3 it only echoes the client's.
        let _ = session.id.set(id.clone());
    }
    Ok(session)
}

/// Sends a fatal alert in the clear, in records of that version.
async fn alert<T: Transport>(io: &mut T, version: u16, description: u8) {
    let [major, minor] = version.to_be_bytes();
    let mut record = vec![21, major, minor, 0, 2, 2, description];
    // Whoever is gone already needs none.
    let _ = handshake::flush(io, &mut record).await;
}

impl<T> From<Trouble> for AcceptError<T> {
    fn from(trouble: Trouble) -> AcceptError<T> {
        match trouble {
            Trouble::Closed(error) => AcceptError::Closed(error),
            Trouble::Failed(error) => AcceptError::Failed(Failure::of(&error)),
        }
    }
}
