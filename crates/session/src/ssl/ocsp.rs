//! Asking authorities whether a certificate is still good (OCSP, RFC 6960), over HTTP: about our own,
//! to staple the answer to it, and about those of clients.
//!
//! Answers the part of `ngx_event_openssl_stapling.c` that is HTTP; what the messages say is
//! [`forebay_tls`]'s.
//!
//! DIFFERS(ssl-ocsp-nobody-to-ask): nginx closes the connection of a client whose certificate names no
//! responder, where none is configured; here it gets 495, as after any question without an answer.
//!
//! Invariant: without an answer a client's certificate is not good, and nothing is stapled.

use std::{
    collections::HashMap,
    future::poll_fn,
    io::IoSlice,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
};

use forebay_conf::{Arg, Error};
use forebay_rt::{
    clock, connect,
    listen::Addr,
    timer::Timer,
    transport::{Socket, Transport},
};
use forebay_tls::{
    Certificate, CertificateDer, KeyPair, OcspStatus, ocsp_check, ocsp_request, ocsp_responder,
};
use forebay_wire::{
    base64,
    h1::{Progress, ResponseParser},
    uri,
};

use super::sessions;
use crate::{
    resolver::Resolver,
    upstream::address::Target,
    zone::{Kind, Zone, Zones},
};

/// How long a responder may take in all at one address (nginx's 60 s).
const TIMEOUT_MS: u64 = 60_000;
/// What a response may have, head included, in bytes.
const MAX_RESPONSE: usize = 64 << 10;
/// How soon is asked again after a failure, and at the soonest after an answer, in seconds.
const AGAIN_S: i64 = 300;
/// And at the latest.
const LATEST_S: i64 = 3600;

/// How names of responders become addresses: by whom, and how long that may take in milliseconds.
pub type Resolving = (Arc<Resolver>, u64);

/// Who is asked.
#[derive(Clone, Debug)]
pub struct Responder {
    target: Target,
    path: String,
}

impl Responder {
    /// Of an `http://` URL. The error is nginx's reason, without the place.
    pub fn parse(url: &str) -> Result<Responder, &'static str> {
        let prefix = url.get(..7).filter(|prefix| prefix.eq_ignore_ascii_case("http://"));
        let rest = prefix.map(|prefix| &url[prefix.len()..]).ok_or("invalid URL prefix")?;
        let (target, path) = Target::parse(rest, 80, true)?;
        let path = if path.is_empty() { "/" } else { path };
        Ok(Responder { target, path: path.to_owned() })
    }

    /// The line for the log about a failure (`ngx_ssl_ocsp_log_error`).
    fn told(&self, why: &str, peer: Option<Addr>) -> String {
        let host = &self.target.host;
        let peer = peer.map(|peer| format!(", peer: {peer}")).unwrap_or_default();
        format!("{why} while requesting certificate status, responder: {host}{peer}")
    }

    /// Sends a request and reads the answer, of the first of its addresses that gives one
    /// (`ngx_ssl_ocsp_next`), and tells which was asked last. The error is a line for the log.
    async fn ask(&self, request: &[u8], resolving: &Resolving) -> (Answer, Option<Addr>) {
        let addrs = match self.addresses(resolving).await {
            Ok(addrs) => addrs,
            Err(why) => return (Err(why), None),
        };
        let text = self.http_request(request);
        let mut asked = (Err(format!("{} could not be resolved", self.target.host)), None);
        for addr in addrs {
            asked = (ask_at(&addr, text.as_bytes()).await, Some(addr));
            if asked.0.is_ok() {
                break;
            }
        }
        asked
    }

    async fn addresses(&self, (resolver, timeout_ms): &Resolving) -> Result<Vec<Addr>, String> {
        if let Some(addr) = &self.target.addr {
            return Ok(vec![addr.clone()]);
        }
        let host = &self.target.host;
        let found = resolver.resolve(host, *timeout_ms).await;
        let found = found.map_err(|error| format!("{host} could not be resolved ({error})"))?;
        Ok(found.iter().map(|ip| Addr::Tcp((*ip, self.target.port).into())).collect())
    }

    /// `ngx_ssl_ocsp_create_request`: the request stands in the path.
    fn http_request(&self, request: &[u8]) -> String {
        let (mut encoded, mut escaped) = (Vec::new(), Vec::new());
        base64::encode(request, &mut encoded);
        uri::escape(uri::Kind::UriComponent, &encoded, &mut escaped);
        let escaped = String::from_utf8_lossy(&escaped).into_owned();
        let slash = if self.path.ends_with('/') { "" } else { "/" };
        let host = &self.target.text;
        format!("GET {}{slash}{escaped} HTTP/1.0\r\nHost: {host}\r\n\r\n", self.path)
    }
}

/// The body of a response, or a line for the log.
type Answer = Result<Vec<u8>, String>;

/// One attempt.
async fn ask_at(addr: &Addr, text: &[u8]) -> Answer {
    let timer = Timer::new();
    timer.arm(TIMEOUT_MS);
    let mut socket =
        connect::start(addr, &connect::Options::default()).map_err(|error| error.to_string())?;
    let timed_out = || "OCSP responder timed out (110: Connection timed out)".to_owned();
    let connected = poll_fn(|cx| match connect::poll_connected(&mut socket, cx) {
        Poll::Ready(done) => Poll::Ready(done.map_err(|error| {
            format!("connect() failed ({})", forebay_conf::error::errno_text(&error))
        })),
        Poll::Pending => timer.poll_expired(cx).map(|()| Err(timed_out())),
    });
    connected.await?;
    send(&mut socket, &timer, text).await.ok_or_else(timed_out)?;
    receive(&mut socket, &timer).await
}

/// `None`: it took too long, or the connection broke.
async fn send(socket: &mut Socket, timer: &Timer, bytes: &[u8]) -> Option<()> {
    let mut at = 0;
    while at < bytes.len() {
        let sent =
            poll_fn(|cx| match socket.poll_write(cx, &[IoSlice::new(&bytes[at..])], false) {
                Poll::Ready(sent) => Poll::Ready(sent.ok()),
                Poll::Pending => timer.poll_expired(cx).map(|()| None),
            });
        at += sent.await.filter(|sent| *sent > 0)?;
    }
    Some(())
}

async fn receive(socket: &mut Socket, timer: &Timer) -> Answer {
    let mut buf = Vec::with_capacity(4096);
    loop {
        let read = poll_fn(|cx| match socket.poll_read(cx, &mut buf) {
            Poll::Ready(read) => Poll::Ready(Ok(read.unwrap_or(0))),
            Poll::Pending => timer.poll_expired(cx).map(|()| Err(())),
        });
        let read =
            read.await.map_err(|()| "OCSP responder timed out (110: Connection timed out)")?;
        if buf.len() > MAX_RESPONSE {
            return Err("OCSP responder sent too large response".to_owned());
        }
        if let Some(body) = body(&buf, read == 0)? {
            return Ok(body);
        }
        if read == 0 {
            return Err("OCSP responder prematurely closed connection".to_owned());
        }
        if buf.capacity() - buf.len() < 1024 {
            buf.reserve(buf.len());
        }
    }
}

/// The body of a response, once it is whole.
fn body(buf: &[u8], ended: bool) -> Result<Option<Vec<u8>>, String> {
    let mut parser = ResponseParser::default();
    let head = match parser.parse(buf, MAX_RESPONSE) {
        Ok(Progress::Complete { consumed }) => consumed,
        Ok(Progress::Partial) => return Ok(None),
        Err(_) => return Err("OCSP responder sent invalid response".to_owned()),
    };
    // As in nginx (ngx_ssl_stapling_ocsp_handler), which does not say so.
    let status = parser.head().status;
    if status != 200 {
        return Err(format!("OCSP responder sent unexpected status {status}"));
    }
    let fields = &parser.head().fields;
    let field = |name: &str| {
        let mut found = fields.iter();
        let is_it = |name_span: &[u8]| name_span.eq_ignore_ascii_case(name.as_bytes());
        let field = found.find(|field| is_it(field.name.of(buf)))?;
        std::str::from_utf8(field.value.of(buf)).ok()
    };
    if let Some(kind) = field("Content-Type")
        && !kind.eq_ignore_ascii_case("application/ocsp-response")
    {
        let kind: String = kind.chars().filter(|c| !c.is_control()).collect();
        return Err(format!("OCSP responder sent invalid \"Content-Type\" header: \"{kind}\""));
    }
    let body = &buf[head..];
    match field("Content-Length").and_then(|len| len.parse::<usize>().ok()) {
        Some(len) if body.len() >= len => Ok(Some(body[..len].to_vec())),
        None if ended => Ok(Some(body.to_vec())),
        _ => Ok(None),
    }
}

fn now_s() -> i64 {
    (clock::wall_ms() / 1000) as i64
}

/// The certificate that signed another, among some; `None` also where there are two of that name.
fn issuer<'a>(
    der: &CertificateDer<'_>,
    among: impl Iterator<Item = &'a CertificateDer<'static>>,
) -> Option<&'a CertificateDer<'static>> {
    let wanted = Certificate::parse(der)?.issuer();
    let is_it = |der: &&CertificateDer<'static>| {
        Certificate::parse(der).is_some_and(|candidate| candidate.subject() == wanted)
    };
    let mut found = among.filter(is_it);
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

/// `ssl_stapling` of one certificate.
pub struct Stapler {
    /// The certificate's, for the log.
    name: String,
    pair: KeyPair,
    certificate: CertificateDer<'static>,
    issuer: CertificateDer<'static>,
    responder: Responder,
    verify: bool,
    resolving: Resolving,
    state: Mutex<Staple>,
}

#[derive(Default)]
struct Staple {
    asking: bool,
    /// When to ask again, by a clock that nobody sets.
    due_ms: u64,
    /// How long what is stapled may be shown, in seconds since 1970.
    valid_s: Option<i64>,
}

impl Stapler {
    /// For a certificate of that name. The error is why there will be no staple, as nginx warns of it.
    pub fn new(
        name: &str,
        pair: &KeyPair,
        trusted: &[CertificateDer<'static>],
        url: Option<&str>,
        verify: bool,
        resolving: Resolving,
    ) -> Result<Stapler, String> {
        let chain = pair.certificates();
        let certificate = chain.first().ok_or("no certificate")?.clone();
        let issuer = issuer(&certificate, chain[1..].iter().chain(trusted))
            .ok_or("issuer certificate not found")?
            .clone();
        let named = || ocsp_responder(&certificate);
        let url = url.map(str::to_owned).or_else(named).ok_or("no OCSP responder URL")?;
        let responder =
            Responder::parse(&url).map_err(|why| format!("{why} in OCSP responder \"{url}\""))?;
        let (name, pair, state) = (name.to_owned(), pair.clone(), Mutex::default());
        Ok(Stapler { name, pair, certificate, issuer, responder, verify, resolving, state })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, Staple> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says so when it is time to ask; nobody else is told as long as that is not dropped.
    pub fn due(self: &Arc<Stapler>) -> Option<Refresh> {
        let (mut state, now_s) = (self.state(), now_s());
        if state.valid_s.is_some_and(|valid_s| valid_s < now_s) {
            self.pair.staple(None);
            state.valid_s = None;
        }
        let due = !state.asking && state.due_ms <= clock::now_ms();
        state.asking |= due;
        drop(state);
        due.then(|| Refresh(self.clone()))
    }

    async fn refresh(&self) -> Result<(), String> {
        self.ask_again_in(AGAIN_S);
        let request = ocsp_request(&self.certificate, &self.issuer)
            .ok_or("OCSP request cannot be made of this certificate")?;
        let (answer, peer) = self.responder.ask(&request, &self.resolving).await;
        let told = |why: String| {
            format!("{}, certificate: \"{}\"", self.responder.told(&why, peer), self.name)
        };
        answer.and_then(|response| self.take(response)).map_err(told)
    }

    /// Staples what was answered, if it is good.
    fn take(&self, response: Vec<u8>) -> Result<(), String> {
        let now_s = now_s();
        let found = ocsp_check(&response, &self.certificate, &self.issuer, now_s, self.verify)?;
        if found.status != OcspStatus::Good {
            let status = found.status.name();
            return Err(format!("certificate status \"{status}\" in the OCSP response"));
        }
        self.pair.staple(Some(response));
        self.state().valid_s = found.valid_until_s;
        let left_s = found.valid_until_s.map_or(LATEST_S, |valid_s| valid_s - now_s - AGAIN_S);
        self.ask_again_in(left_s.clamp(AGAIN_S, LATEST_S));
        Ok(())
    }

    fn ask_again_in(&self, seconds: i64) {
        self.state().due_ms = clock::now_ms() + seconds.unsigned_abs() * 1000;
    }
}

/// A staple that is to be renewed. While it lasts nobody else asks, however it ends.
pub struct Refresh(Arc<Stapler>);

impl Refresh {
    /// Asks, and staples what was answered. The error is a line for the log.
    pub async fn run(self) -> Result<(), String> {
        self.0.refresh().await
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        self.0.state().asking = false;
    }
}

/// `ssl_ocsp`: clients' certificates are asked about.
pub struct ClientOcsp {
    /// The client's own only (`leaf`).
    pub leaf: bool,
    /// `ssl_ocsp_responder`.
    pub responder: Option<Responder>,
    /// Who signs clients' certificates.
    pub trusted: Vec<CertificateDer<'static>>,
    /// `ssl_ocsp_cache`.
    pub cache: Option<AnswersUse>,
    /// For names of responders.
    pub resolving: Resolving,
}

/// How many certificates of a client are asked about at the most; chains that are verified are shorter.
const MAX_PATH: usize = 100;

fn is_self_issued(der: &CertificateDer<'_>) -> bool {
    Certificate::parse(der).is_some_and(|parsed| parsed.subject() == parsed.issuer())
}

/// The line for the log about a failure before anybody was asked.
fn unasked(why: &str) -> String {
    format!("{why} while requesting certificate status")
}

fn failed(why: String) -> Refused {
    ("certificate status request failed", Some(why))
}

/// What a client's certificate is refused for (`ngx_ssl_ocsp_get_status`), and a line for the log
/// where that is nobody's word but a failure.
pub type Refused = (&'static str, Option<String>);

impl ClientOcsp {
    /// Asks about the certificates of a client that were found to be good otherwise.
    pub async fn validate(&self, chain: &[CertificateDer<'static>]) -> Result<(), Refused> {
        for (der, issuer) in self.path(chain) {
            let issuer = issuer.ok_or_else(|| failed(unasked("issuer certificate not found")))?;
            self.validate_one(der, issuer).await?;
        }
        Ok(())
    }

    /// The certificates that are asked about, each with its issuer: from the client's own up to a root, in
    /// whatever order they were sent, and whether the one or other of them is trusted itself.
    fn path<'a>(
        &'a self,
        chain: &'a [CertificateDer<'static>],
    ) -> Vec<(&'a CertificateDer<'static>, Option<&'a CertificateDer<'static>>)> {
        let (mut path, mut next) = (Vec::new(), chain.first());
        while let Some(der) = next {
            if is_self_issued(der) {
                break;
            }
            let issuer = issuer(der, self.trusted.iter()).or_else(|| issuer(der, chain.iter()));
            path.push((der, issuer));
            // A circle is no chain that was verified.
            next = issuer.filter(|_| !self.leaf && path.len() < MAX_PATH);
        }
        path
    }

    async fn validate_one(
        &self,
        der: &CertificateDer<'static>,
        issuer: &CertificateDer<'static>,
    ) -> Result<(), Refused> {
        let request = ocsp_request(der, issuer)
            .ok_or_else(|| failed(unasked("OCSP request cannot be made")))?;
        let known = self.cache.as_ref().and_then(|cache| cache.memory().find(&request, now_s()));
        let status = match known {
            Some(status) => status,
            None => self.ask(der, issuer, request).await.map_err(failed)?,
        };
        match status {
            OcspStatus::Good => Ok(()),
            OcspStatus::Revoked => Err(("certificate revoked", None)),
            OcspStatus::Unknown => Err(("certificate status unknown", None)),
        }
    }

    async fn ask(
        &self,
        der: &CertificateDer<'static>,
        issuer: &CertificateDer<'static>,
        request: Vec<u8>,
    ) -> Result<OcspStatus, String> {
        let named = || ocsp_responder(der).and_then(|url| Responder::parse(&url).ok());
        let responder = self.responder.clone().or_else(named);
        let responder = responder.ok_or_else(|| unasked("no OCSP responder URL in certificate"))?;
        let (answer, peer) = responder.ask(&request, &self.resolving).await;
        let found = answer.and_then(|response| ocsp_check(&response, der, issuer, now_s(), true));
        let found = found.map_err(|why| responder.told(&why, peer))?;
        if let (Some(cache), Some(valid_s)) = (&self.cache, found.valid_until_s) {
            cache.memory().keep(request, found.status, valid_s, now_s());
        }
        Ok(found.status)
    }
}

/// A zone of `ssl_ocsp_cache`.
pub struct Answers {
    size: u64,
}

impl Kind for Answers {
    const MODULE: &'static str = "ngx_http_ssl_module ocsp";
    type Memory = AnswersKept;

    fn memory(&self, size: u64) -> AnswersKept {
        AnswersKept { max: (size / ANSWER_BYTES) as usize, kept: Mutex::default() }
    }
}

/// What an answer takes, about: its request and its place in a table.
const ANSWER_BYTES: u64 = 256;

impl std::fmt::Debug for Zone<Answers> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Such a zone, as a server names it.
pub type AnswersUse = Arc<Zone<Answers>>;

/// What was answered: by request, the status and until when it may be believed.
pub struct AnswersKept {
    max: usize,
    kept: Mutex<HashMap<Vec<u8>, (OcspStatus, i64)>>,
}

impl AnswersKept {
    fn find(&self, request: &[u8], now_s: i64) -> Option<OcspStatus> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(request).filter(|(_, valid_s)| *valid_s > now_s).map(|(status, _)| *status)
    }

    fn keep(&self, request: Vec<u8>, status: OcspStatus, valid_s: i64, now_s: i64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= self.max {
            kept.retain(|_, (_, valid_s)| *valid_s > now_s);
        }
        if kept.len() < self.max && status != OcspStatus::Unknown {
            kept.insert(request, (status, valid_s));
        }
    }
}

/// `ssl_ocsp_cache off | shared:name:size` (`ngx_http_ssl_ocsp_cache`).
pub fn cache(arg: &Arg, zones: &mut Zones) -> Result<Option<AnswersUse>, Error> {
    if arg.is("off") {
        return Ok(None);
    }
    let (name, size) = sessions::name_and_size(arg, "OCSP")?;
    let zone = zones.used::<Answers>(&name, arg.span)?;
    if zone.declared().is_none_or(|before| before.size != size) {
        zones.declare(&name, size, arg.span, Answers { size }, |_| String::new())?;
    }
    Ok(Some(zone))
}

#[cfg(test)]
mod tests {
    use forebay_testkit::certs::{Authority, Leaf};
    use forebay_tls::{Chain, PrivateKey, certificates_from_pem};

    use super::*;

    fn stapler(url: &str) -> Arc<Stapler> {
        let root = Authority::root("root");
        let issued = root.issue(Leaf::default());
        let chain = format!("{}{}", issued.certificate, root.pem());
        let chain = Chain::from_pem(chain.as_bytes()).unwrap();
        let key = PrivateKey::from_pem(issued.key.as_bytes(), &[]).unwrap();
        let pair = KeyPair::new(&chain, &key).unwrap();
        let resolving = (Resolver::of(Default::default()), 1);
        Arc::new(Stapler::new("x", &pair, &[], Some(url), false, resolving).unwrap())
    }

    #[test]
    fn when_to_ask_again_is_no_matter_of_the_date() {
        let stapler = stapler("http://o.test");
        stapler.ask_again_in(AGAIN_S);
        assert!(stapler.due().is_none());
        forebay_rt::clock::pause();
        forebay_rt::clock::advance(AGAIN_S as u64 * 1000);
        assert!(stapler.due().is_some());
    }

    #[test]
    fn who_was_to_ask_and_went_away_holds_up_nobody() {
        let stapler = stapler("http://o.test");
        let refresh = stapler.due();
        assert!(refresh.is_some() && stapler.due().is_none(), "one at a time");
        // The task that would have asked was dropped before it ran: its thread ended.
        drop(refresh.map(Refresh::run));
        assert!(stapler.due().is_some());
    }

    #[test]
    fn all_below_the_root_are_asked_about_whatever_was_sent() {
        let root = Authority::root("root");
        let between = root.intermediate("between");
        let [root, leaf, between] =
            [root.pem(), &between.issue(Leaf::default()).certificate, between.pem()]
                .map(|pem| certificates_from_pem(pem.as_bytes()).unwrap().remove(0));
        let asked = |leaf_only,
                     sent: &[&CertificateDer<'static>],
                     trusted: &[&CertificateDer<'static>]| {
            let owned = |list: &[&CertificateDer<'static>]| -> Vec<_> {
                list.iter().map(|der| (*der).clone()).collect()
            };
            let resolving = (Resolver::of(Default::default()), 1);
            let (leaf, trusted) = (leaf_only, owned(trusted));
            let ocsp = ClientOcsp { leaf, responder: None, trusted, cache: None, resolving };
            let sent = owned(sent);
            let path = ocsp.path(&sent);
            path.into_iter().map(|(der, issuer)| (der.clone(), issuer.cloned())).collect::<Vec<_>>()
        };
        let whole = [(leaf.clone(), Some(between.clone())), (between.clone(), Some(root.clone()))];
        assert_eq!(asked(false, &[&leaf, &between], &[&root]), whole);
        assert_eq!(
            asked(false, &[&leaf, &root, &between], &[&root]),
            whole,
            "a root does not end it"
        );
        assert_eq!(
            asked(false, &[&leaf], &[&between, &root]),
            whole,
            "nor does trust in who is below one"
        );
        assert_eq!(asked(true, &[&leaf, &between], &[&root]), whole[..1]);
        assert_eq!(asked(false, &[&root], &[&root]), []);
        assert_eq!(asked(false, &[&leaf], &[&root]), [(leaf.clone(), None)]);
    }

    #[test]
    fn responders_are_http_urls() {
        let request = |url: &str| Responder::parse(url).map(|r| r.http_request(b"\xfb\xff\x01?"));
        assert_eq!(
            request("http://o.test:81/x").unwrap(),
            "GET /x/%2B%2F8BPw%3D%3D HTTP/1.0\r\nHost: o.test:81\r\n\r\n"
        );
        assert!(request("http://o.test").unwrap().starts_with("GET /%2B"));
        assert_eq!(request("https://o.test").unwrap_err(), "invalid URL prefix");
    }

    #[test]
    fn bodies_are_read_to_their_length_or_end() {
        let head = "HTTP/1.0 200 OK\r\nContent-Type: application/ocsp-response\r\n";
        let with = |more: &str| format!("{head}{more}").into_bytes();
        assert_eq!(body(&with("Content-Length: 2\r\n\r\na"), false), Ok(None));
        assert_eq!(body(&with("Content-Length: 2\r\n\r\nabc"), false), Ok(Some(b"ab".to_vec())));
        assert_eq!(body(&with("\r\nabc"), false), Ok(None));
        assert_eq!(body(&with("\r\nabc"), true), Ok(Some(b"abc".to_vec())));
        let html = body(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n", true);
        assert!(html.unwrap_err().contains("invalid \"Content-Type\" header: \"text/html\""));
        assert!(body(b"SSH-2.0-x\r\n", false).is_err());
        // Whatever stands behind it.
        let broken = String::from_utf8(with("\r\nabc")).unwrap().replace("200 OK", "500 No");
        assert!(body(broken.as_bytes(), true).unwrap_err().contains("unexpected status 500"));
    }
}
