//! Active health checks: servers are asked at intervals, and those that do not answer rightly get no
//! requests. In NGINX Plus's form (`health_check`, `match`) and in Tengine's (`check …`).
//!
//! One thread of the process asks; what it learns is in each peer's memory, for all threads.
//!
//! Invariant: a check never waits longer than its timeout, and never reads more than
//! `probe::MAX_RESPONSE`.

pub mod directives;
mod expect;
mod probe;
mod run;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use forebay_rt::listen::Addr;
use forebay_tls::ClientConfig;
use forebay_wire::h1::ResponseHead;

pub use expect::{Expect, HeaderTest, Match, Pattern, Statuses};
pub use probe::READING;
pub use run::Checks;
pub(crate) use run::start;

use super::Peer;
use crate::{
    log::{ErrorLog, Severity},
    var::VarId,
};

/// What a server answered to a check.
#[derive(Clone, Copy)]
pub struct Answer<'a> {
    /// The head.
    pub head: &'a ResponseHead,
    /// What the head points into, and behind it as much of the body as was read.
    pub text: &'a [u8],
    /// Where the body begins.
    pub body_at: usize,
}

/// Who was asked, and when, for the variables of `require`.
pub struct Asked<'a> {
    /// The server.
    pub peer: &'a Arc<Peer>,
    /// Since it was asked, milliseconds.
    pub elapsed_ms: u64,
}

/// Says of an answer whether variables are set to anything but `0`: what they are is known to those
/// who have requests.
pub type Require = Rc<dyn Fn(&[VarId], &Asked<'_>, &Answer<'_>) -> bool>;

/// How the servers of a group are checked.
#[derive(Debug)]
pub struct Check {
    /// Whose words it speaks.
    pub style: Style,
    /// What is asked.
    pub kind: Kind,
    /// Between two checks of a server, in milliseconds.
    pub interval_ms: u64,
    /// Up to so much later, by chance, in milliseconds.
    pub jitter_ms: u64,
    /// So many failed checks in a row make a server unhealthy.
    pub fails: u32,
    /// So many passed checks in a row make it healthy again.
    pub passes: u32,
    /// How long one check may take, in milliseconds.
    pub timeout_ms: u64,
    /// Over TLS: with whom to shake hands.
    pub tls: Option<Tls>,
    /// The port, if not the server's own.
    pub port: Option<u16>,
    /// Whether a server gets no requests before it has passed.
    pub starts_down: bool,
    /// Whether what is known of a server holds over a reload even so.
    pub persistent: bool,
    /// How many checks go over one connection.
    pub keepalive_requests: u32,
    /// How old such a connection may become, in milliseconds.
    pub keepalive_time_ms: u64,
}

/// How a check speaks TLS.
#[derive(Clone)]
pub struct Tls {
    /// Certificates, protocols, verification.
    pub config: Arc<ClientConfig>,
    /// The name that the server has.
    pub name: String,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.name).finish()
    }
}

/// Whose words a check speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// NGINX Plus: `health_check`.
    Plus,
    /// Tengine: `check`.
    Tengine,
}

/// What is asked of a server.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Whether it takes connections.
    Tcp,
    /// An HTTP request.
    Http {
        /// Its bytes.
        request: Box<[u8]>,
        /// What the response must be.
        expect: Expect,
    },
    /// The beginning of a TLS handshake, and that a handshake message comes back.
    SslHello,
    /// The greeting of a MySQL server.
    Mysql,
    /// A ping in AJP/1.3, and the answer to it.
    Ajp,
    /// A question in HTTP/2, which is not spoken here.
    Grpc(Arc<dyn Dialogue>),
}

/// What is asked in a protocol that only those who have requests speak.
pub trait Dialogue: fmt::Debug + Send + Sync {
    /// Begins it on a connection that was just made.
    fn begin(self: Arc<Self>) -> Box<dyn Talk>;
}

/// Such a dialogue on one connection.
pub trait Talk {
    /// Asks, for the first time or again: what is to be sent.
    fn ask(&mut self) -> Vec<u8>;

    /// Takes what the server sent; `end`: nothing more will come.
    fn hear(&mut self, input: &mut Vec<u8>, end: bool) -> Heard;
}

/// What came of what a server sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// There is more to come, as soon as this is sent.
    More(Vec<u8>),
    /// The verdict: whether the connection may be used again, or the stage at which something was wrong;
    /// with [`READING`], a connection that was kept may be what was.
    Verdict(Result<bool, &'static str>),
}

impl Kind {
    /// Tengine's name for it.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Tcp => "tcp",
            Kind::Http { .. } => "http",
            Kind::SslHello => "ssl_hello",
            Kind::Mysql => "mysql",
            Kind::Ajp => "ajp",
            Kind::Grpc(_) => "grpc",
        }
    }
}

/// What the checks of a group know of a peer, in their order.
#[derive(Default)]
pub(crate) struct Memory {
    records: Mutex<Vec<Record>>,
    /// How many of them say that the peer is down, for those who do not want the lock.
    down: AtomicU32,
}

/// What the checks know, while it is being changed: how many say "down" is counted anew before anybody
/// else can look, so that reloads and checks at the same moment always agree.
struct Changing<'a> {
    records: MutexGuard<'a, Vec<Record>>,
    down: &'a AtomicU32,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let down = self.records.iter().filter(|record| !record.up).count();
        self.down.store(down as u32, Relaxed);
    }
}

/// What a check knows of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whether it may get requests.
    pub up: bool,
    /// Whether it was never checked.
    pub fresh: bool,
    /// Checks in a row that passed.
    pub rise: u32,
    /// Checks in a row that failed.
    pub fall: u32,
    /// All checks.
    pub checks: u64,
    /// Of these, failed ones.
    pub fails: u64,
    /// How often it became unhealthy.
    pub unhealthy: u64,
    style: Style,
}

impl Check {
    fn fresh(&self) -> Record {
        Record {
            up: !self.starts_down,
            fresh: true,
            rise: 0,
            fall: 0,
            checks: 0,
            fails: 0,
            unhealthy: 0,
            style: self.style,
        }
    }

    /// What a new configuration makes of what the old one knew.
    fn inherited(&self, old: Option<Record>) -> Record {
        match old {
            // NGINX Plus: without `persistent`, what is mandatory must be passed anew.
            Some(old) if old.style == self.style => match self.style {
                Style::Plus if self.starts_down && !self.persistent => self.fresh(),
                _ => old,
            },
            _ => self.fresh(),
        }
    }

    /// Where a peer is asked.
    fn address(&self, peer: &Peer) -> Addr {
        match (&peer.addr, self.port) {
            (Addr::Tcp(addr), Some(port)) => Addr::Tcp((addr.ip(), port).into()),
            (addr, _) => addr.clone(),
        }
    }
}

impl Memory {
    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> Changing<'_> {
        Changing { records: self.records(), down: &self.down }
    }

    /// Makes room for the checks of a configuration.
    pub fn prepare(&self, checks: &[Arc<Check>]) {
        let mut changing = self.change();
        let old = std::mem::take(&mut *changing.records);
        let new = checks.iter().enumerate();
        *changing.records = new.map(|(n, check)| check.inherited(old.get(n).copied())).collect();
    }

    /// As if so many checks had said so.
    #[cfg(test)]
    pub fn say_down(&self, checks: u32) {
        self.down.store(checks, Relaxed);
    }

    /// Whether no check says that the peer is down.
    pub fn all_up(&self) -> bool {
        self.down.load(Relaxed) == 0
    }

    /// What a check of that number knows.
    pub fn of(&self, number: usize) -> Option<Record> {
        self.records().get(number).copied()
    }
}

/// Notes how a check of a peer ended, and decides (`ngx_http_upstream_check_status_update`).
/// `stage`: what was being done when it failed.
fn note(check: &Check, number: usize, peer: &Peer, passed: bool, now_ms: u64) -> Option<bool> {
    let mut changing = peer.state.checks.change();
    // Another configuration may have fewer checks.
    let record = changing.records.get_mut(number)?;
    record.checks += 1;
    let before = record.up;
    if passed {
        (record.rise, record.fall) = (record.rise.saturating_add(1), 0);
        // What was never checked is up as soon as it passes.
        let first = record.fresh && check.style == Style::Plus;
        record.up |= first || record.rise >= check.passes;
    } else {
        (record.rise, record.fall) = (0, record.fall.saturating_add(1));
        record.fails += 1;
        if record.fall >= check.fails {
            record.up = false;
        }
    }
    record.fresh = false;
    let up = record.up;
    if before && !up {
        record.unhealthy += 1;
    }
    if before == up {
        return None;
    }
    drop(changing);
    if up && peer.is_healthy() {
        peer.recovered(now_ms);
    }
    Some(up)
}

/// What a line of the log says of a check.
struct Story<'a> {
    check: &'a Check,
    group: &'a str,
    peer: &'a str,
}

impl Story<'_> {
    /// A server's state has changed.
    fn changed(&self, log: &ErrorLog, up: bool, stage: &str) {
        let (group, peer) = (self.group, self.peer);
        match self.check.style {
            Style::Tengine => {
                let word = if up { "enable" } else { "disable" };
                log.write(Severity::Error, None, format_args!("{word} check peer: {peer} "));
            }
            Style::Plus => {
                let (severity, word) =
                    if up { (Severity::Notice, "healthy") } else { (Severity::Warn, "unhealthy") };
                let name = match &self.check.kind {
                    Kind::Http { expect: Expect::Match(tests), .. } => &*tests.name,
                    _ => "",
                };
                log.write(
                    severity,
                    None,
                    format_args!(
                        "peer is {word} while {stage}, health check \"{name}\" of peer {peer} in \
                         upstream \"{group}\""
                    ),
                );
            }
        }
    }

    /// A check failed.
    fn failed(&self, log: &ErrorLog, timed_out: bool) {
        if self.check.style == Style::Plus {
            return;
        }
        let (kind, peer) = (self.check.kind.name(), self.peer);
        match timed_out {
            true => {
                log.write(Severity::Error, None, format_args!("check time out with peer: {peer} "))
            }
            false => log.write(
                Severity::Error,
                None,
                format_args!("check protocol {kind} error with peer: {peer} "),
            ),
        }
    }
}
