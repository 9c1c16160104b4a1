//! Names to addresses while the server runs: `resolver`, `resolver_timeout`.
//!
//! Answers nginx's `core/ngx_resolver.c`. Lookups run in one thread of their own, which starts with
//! the first of them; what it finds is kept for all threads. Names are absolute: no search list, no
//! `/etc/hosts`. A lookup that is under way is shared by all who wait for the same name; failures are
//! told to those who wait and not kept.
//!
//! Invariant: nothing that a DNS server sends makes memory grow beyond the limits named here, and no
//! answer is taken that does not bear the port, the number and the question of its query.

mod cache;
mod exchange;
mod message;
mod settings;
#[cfg(test)]
mod tests;
mod thread;
mod zone;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    task::{Context, Poll},
};

use forebay_rt::clock;
use tokio::sync::oneshot;

pub use settings::Settings;
pub use zone::{Counter, StatusZone, status_zones};

use cache::Cache;

/// nginx's `resolver_timeout`, milliseconds.
pub const DEFAULT_TIMEOUT_MS: u64 = 30_000;

/// Why a name has no addresses. Shown as in nginx's messages: `3: Host not found`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// The DNS server did not understand the query.
    Format,
    /// The DNS server failed.
    Server,
    /// There is no such name, or it has no address.
    NotFound,
    /// The DNS server does not do this.
    Unimplemented,
    /// The DNS server does not want to.
    Refused,
    /// No answer in time.
    TimedOut,
    /// A code that nobody knows.
    Other(u8),
}

impl ResolveError {
    /// The error of a response code; `None`: no error.
    fn of_code(code: u8) -> Option<ResolveError> {
        Some(match code {
            0 => return None,
            1 => ResolveError::Format,
            2 => ResolveError::Server,
            3 => ResolveError::NotFound,
            4 => ResolveError::Unimplemented,
            5 => ResolveError::Refused,
            code => ResolveError::Other(code),
        })
    }

    /// The number in nginx's messages: the response code, or `ETIMEDOUT`.
    pub fn code(self) -> u32 {
        match self {
            ResolveError::Format => 1,
            ResolveError::Server => 2,
            ResolveError::NotFound => 3,
            ResolveError::Unimplemented => 4,
            ResolveError::Refused => 5,
            ResolveError::TimedOut => 110,
            ResolveError::Other(code) => u32::from(code),
        }
    }
}

/// `ngx_resolver_strerror` with the number in front.
impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ResolveError::Format => "Format error",
            ResolveError::Server => "Server failure",
            ResolveError::NotFound => "Host not found",
            ResolveError::Unimplemented => "Unimplemented",
            ResolveError::Refused => "Operation refused",
            ResolveError::TimedOut => "Operation timed out",
            ResolveError::Other(_) => "Unknown error",
        };
        write!(f, "{}: {text}", self.code())
    }
}

impl std::error::Error for ResolveError {}

/// What is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The addresses of a host.
    Host(Box<str>),
    /// The servers of a service: the name of its SRV records, see [`Target::service`].
    Service(Box<str>),
}

impl Target {
    /// A host; a dot at the end counts for nothing, nor does the case.
    pub fn host(name: &str) -> Target {
        Target::Host(normal(name))
    }

    /// A service of a host, as `server NAME service=SERVICE` has it: a service without dots is looked
    /// up as `_SERVICE._tcp.NAME`, one with dots as `SERVICE.NAME`
    /// (`ngx_resolver_create_srv_query`).
    pub fn service(service: &str, name: &str) -> Target {
        let name = normal(name);
        Target::Service(match service.contains('.') {
            true => format!("{}.{name}", service.to_ascii_lowercase()).into(),
            false => format!("_{}._tcp.{name}", service.to_ascii_lowercase()).into(),
        })
    }
}

fn normal(name: &str) -> Box<str> {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase().into()
}

/// One address of a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub ip: IpAddr,
    /// The port of a service; 0 for hosts.
    pub port: u16,
    /// The priority of a service's server: the smallest is asked first. 0 for hosts.
    pub priority: u16,
    /// The weight among servers of one priority. 0 for hosts.
    pub weight: u16,
    /// The server's name where a service was looked up.
    pub host: Option<Arc<str>>,
}

/// The addresses found for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Never empty. Those of a host, IPv4 first, as the DNS server ordered them; those of a service by
    /// priority.
    pub endpoints: Arc<[Endpoint]>,
    /// Hosts of a service that are left out, as they have no address.
    pub missing: Vec<Missing>,
    /// Until when that holds, by [`clock::now_ms`].
    pub valid_until_ms: u64,
}

/// A host of a service without an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub host: Arc<str>,
    /// Why there is none.
    pub error: ResolveError,
}

/// What a lookup comes to.
pub type Outcome = Result<Answer, ResolveError>;

/// A set of DNS servers with what was learned from them. Configurations that name the same ones in the
/// same way share it, also over a reload.
pub struct Resolver {
    settings: Settings,
    cache: Mutex<Cache>,
    zone: Option<Arc<StatusZone>>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resolver").field(&self.settings).finish()
    }
}

impl Resolver {
    /// The resolver with these settings.
    pub fn of(settings: Settings) -> Arc<Resolver> {
        static ALL: OnceLock<Mutex<HashMap<Settings, Weak<Resolver>>>> = OnceLock::new();
        // A panic while the table was held left it whole.
        let mut all =
            ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&settings).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, resolver| resolver.strong_count() > 0);
        let zone = settings.status_zone.as_deref().map(zone::zone);
        let resolver =
            Arc::new(Resolver { settings: settings.clone(), cache: Mutex::default(), zone });
        all.insert(settings, Arc::downgrade(&resolver));
        resolver
    }

    /// The resolver where the configuration names none: the servers of `/etc/resolv.conf`, read anew
    /// when it changes.
    // DIFFERS(resolver-by-default): nginx has no resolver unless one is configured.
    pub fn system() -> Arc<Resolver> {
        Resolver::of(Settings::default())
    }

    /// How it was configured.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Finds the addresses of a host, beginning at another one each time; gives up after `timeout_ms`.
    /// An address stands for itself. May be polled by any thread, under any event loop.
    pub fn resolve(self: &Arc<Self>, name: &str, timeout_ms: u64) -> Addresses {
        let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        match crate::addr::parse_ip(literal.unwrap_or(name).as_bytes()) {
            Some(ip) => Addresses(Stage::Literal(ip)),
            None => Addresses(Stage::Lookup(self.lookup(Target::host(name), timeout_ms))),
        }
    }

    /// Looks a target up; gives up after `timeout_ms`. May be polled by any thread.
    pub fn lookup(self: &Arc<Self>, target: Target, timeout_ms: u64) -> Lookup {
        if let Some(answer) = self.cache().find(&target, clock::now_ms()) {
            return Lookup::Known(Some(Ok(answer)));
        }
        let (tell, told) = oneshot::channel();
        let job = thread::Job::Lookup { resolver: self.clone(), target, timeout_ms, tell };
        match thread::send(job) {
            true => Lookup::Waiting(told),
            // No thread can be made: the machine is out of them.
            false => Lookup::Known(Some(Err(ResolveError::Server))),
        }
    }

    /// Looks a target up now and whenever the answer grows old, and tells what comes of it each time,
    /// in the resolver's thread, until the [`Watch`] is dropped. `told` must not wait.
    ///
    /// Failures come too: the one who watches decides whether the old addresses are still good, and
    /// the next attempt follows after ten seconds, or sooner (see [`retry_ms`]).
    pub fn watch(
        self: &Arc<Self>,
        target: Target,
        timeout_ms: u64,
        told: impl Fn(&Outcome) + Send + 'static,
    ) -> Watch {
        let (alive, ended) = oneshot::channel();
        let resolver = self.clone();
        let told = Box::new(told);
        thread::send(thread::Job::Watch { resolver, target, timeout_ms, told, ended });
        Watch { _alive: alive }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        // Each change of the cache leaves it whole.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, counter: Counter) {
        if let Some(zone) = &self.zone {
            zone.count(counter);
        }
    }
}

/// How long a watcher waits after a failure, milliseconds: nginx's ten seconds, no longer than
/// `resolver_timeout`, at least one second (`ngx_http_upstream_zone_resolve_handler`).
pub fn retry_ms(timeout_ms: u64) -> u64 {
    timeout_ms.clamp(1_000, 10_000)
}

/// A target that is looked up again and again; dropping this ends it.
pub struct Watch {
    _alive: oneshot::Sender<()>,
}

/// A lookup under way. Dropping it is forgetting it.
pub enum Lookup {
    /// Already answered; empty when that was taken.
    Known(Option<Outcome>),
    /// The resolver's thread works on it.
    Waiting(oneshot::Receiver<Outcome>),
}

impl Future for Lookup {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.get_mut() {
            Lookup::Known(outcome) => {
                Poll::Ready(outcome.take().unwrap_or(Err(ResolveError::TimedOut)))
            }
            // A sender that goes away without a word has panicked.
            Lookup::Waiting(told) => {
                Pin::new(told).poll(cx).map(|told| told.unwrap_or(Err(ResolveError::Server)))
            }
        }
    }
}

/// The addresses of a host, when they are known; see [`Resolver::resolve`].
pub struct Addresses(Stage);

enum Stage {
    Literal(IpAddr),
    Lookup(Lookup),
}

impl Future for Addresses {
    type Output = Result<Arc<[IpAddr]>, ResolveError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Stage::Literal(ip) => Poll::Ready(Ok([*ip].into())),
            Stage::Lookup(lookup) => Pin::new(lookup)
                .poll(cx)
                .map_ok(|answer| rotated(&answer.endpoints, rand::random::<u32>() as usize)),
        }
    }
}

/// `ngx_resolver_export`: the addresses, beginning at a random one.
fn rotated(endpoints: &[Endpoint], by: usize) -> Arc<[IpAddr]> {
    let len = endpoints.len().max(1);
    endpoints.iter().cycle().skip(by % len).take(endpoints.len()).map(|e| e.ip).collect()
}
