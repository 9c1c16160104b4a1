//! One server of a group at one address (`ngx_http_upstream_rr_peer_t`).
//!
//! Invariant: what changes is in [`State`], which a reload takes over; all else is as configured.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{
    Arc,
    atomic::{
        AtomicI64, AtomicU32, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use forebay_rt::listen::Addr;

use super::{
    group::{Server, Shared},
    health,
    select::{Outcome, Timings},
    sticky,
};

/// What the `server` directive says about a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// `weight=`.
    pub weight: i64,
    /// `max_fails=`; 0: failures do not count.
    pub max_fails: u32,
    /// `fail_timeout=`, in seconds.
    pub fail_timeout_s: u64,
    /// `max_conns=`; 0: any number.
    pub max_conns: u32,
    /// `slow_start=`, in milliseconds; 0: none.
    pub slow_start_ms: u64,
    /// `down`.
    pub down: bool,
    /// `drain`: only for requests that are bound to it.
    pub drain: bool,
    /// `route=`: what requests that are bound to it carry.
    pub route: Option<Box<str>>,
}

impl Default for Weights {
    fn default() -> Weights {
        Weights {
            weight: 1,
            max_fails: 1,
            fail_timeout_s: 10,
            max_conns: 0,
            slow_start_ms: 0,
            down: false,
            drain: false,
            route: None,
        }
    }
}

/// What changes about a peer. Written under the group's lock where several values belong together;
/// read and counted without it.
#[derive(Default)]
pub(crate) struct State {
    /// Connections in use.
    conns: AtomicU32,
    /// The sum of the moments at which these began: so the time that all of them have taken so far is
    /// known without a look at each.
    began_ms: AtomicU64,
    /// Smooth weighted round robin.
    current_weight: AtomicI64,
    /// How far below its weight the peer is, for its failures. nginx keeps `effective_weight`; this
    /// survives a change of the weight.
    lowered: AtomicI64,
    /// Failures in a row.
    fails: AtomicU32,
    /// When the last failure was, in seconds.
    accessed_s: AtomicU64,
    /// When it was last tried after failures, in seconds.
    checked_s: AtomicU64,
    /// Since when its weight grows again, in milliseconds; 0: it does not.
    slow_since_ms: AtomicU64,
    /// Average times.
    header: Average,
    response: Average,
    /// What the health checks know of it, one after the other.
    pub checks: health::Memory,
}

/// A moving average of times in milliseconds, in 1/256 ms; 0: nothing is known yet.
#[derive(Default)]
struct Average(AtomicU64);

impl Average {
    /// How much a new value counts: one part in so many.
    const SHARE: i64 = 8;

    fn add(&self, ms: u64) {
        let new = (ms.min(1 << 40) << 8).max(1) as i64;
        let next = |old: u64| match old as i64 {
            0 => new,
            old => (old + (new - old) / Self::SHARE).max(1),
        };
        // A value that another thread adds at the same moment may be lost: it is an average.
        self.0.store(next(self.0.load(Relaxed)) as u64, Relaxed);
    }
}

/// An address that is cloned without taking memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Tcp(SocketAddr),
    Unix(Arc<Path>),
}

impl From<&Addr> for Key {
    fn from(addr: &Addr) -> Key {
        match addr {
            Addr::Tcp(addr) => Key::Tcp(*addr),
            Addr::Unix(path) => Key::Unix(path.as_path().into()),
        }
    }
}

/// One server at one address.
pub struct Peer {
    /// Where it is.
    pub addr: Addr,
    /// The address as logs and variables show it: `127.0.0.1:8080`, `unix:/path`.
    pub name: Box<str>,
    /// The server as the configuration names it.
    pub server: Box<str>,
    /// What a request that is bound to it carries: its `route=`, or the MD5 of its address.
    pub sticky_id: Box<str>,
    /// The address again, for what must tell connections apart.
    pub(crate) key: Key,
    /// `service=` of the server.
    pub(crate) service: Option<Box<str>>,
    /// Whether it is asked only when no primary server can be.
    pub is_backup: bool,
    /// Unlike that of any other peer that ever was.
    pub id: u64,
    /// As configured.
    pub weights: Weights,
    pub(crate) state: Arc<State>,
    pub(crate) shared: Arc<Shared>,
}

impl Peer {
    pub(crate) fn new(
        addr: Addr,
        server: &Server,
        weights: Weights,
        is_backup: bool,
        state: Arc<State>,
        shared: Arc<Shared>,
    ) -> Peer {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Relaxed) + 1;
        let name: Box<str> = addr.to_string().into();
        let sticky_id = weights.route.clone().unwrap_or_else(|| sticky::id_of(&name));
        let (server, service) = (server.target.text.clone(), server.service.clone());
        let key = Key::from(&addr);
        Peer { addr, name, server, sticky_id, key, service, is_backup, id, weights, state, shared }
    }

    /// How many connections to it are in use.
    pub fn connections(&self) -> u32 {
        self.state.conns.load(SeqCst)
    }

    /// How many failures in a row count against it.
    pub fn fails(&self) -> u32 {
        self.state.fails.load(Relaxed)
    }

    /// Whether all health checks find it well.
    pub fn is_healthy(&self) -> bool {
        self.state.checks.all_up()
    }

    /// What the health check of that number knows of it.
    pub fn health(&self, number: usize) -> Option<health::Record> {
        self.state.checks.of(number)
    }

    /// Whether it must not be asked now; `bound`: by a request that belongs to it.
    pub(crate) fn is_out(&self, now_ms: u64, bound: bool) -> bool {
        let (w, s) = (&self.weights, &self.state);
        let failed = || {
            let waited_s = (now_ms / 1000).saturating_sub(s.checked_s.load(Relaxed));
            w.max_fails > 0 && s.fails.load(Relaxed) >= w.max_fails && waited_s <= w.fail_timeout_s
        };
        self.is_off() || w.drain && !bound || failed() || self.is_full()
    }

    /// Whether nobody asks it, whatever it did.
    pub(crate) fn is_off(&self) -> bool {
        self.weights.down || !self.is_healthy()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.weights.max_conns > 0 && self.connections() >= self.weights.max_conns
    }

    /// The weight without regard to failures, times `scale`; less while it starts slowly.
    pub(crate) fn weight(&self, scale: i64, now_ms: u64) -> i64 {
        let whole = self.weights.weight * scale;
        let (since, span) = (self.state.slow_since_ms.load(Relaxed), self.weights.slow_start_ms);
        let passed = now_ms.saturating_sub(since);
        if since == 0 || span == 0 || passed >= span {
            return whole;
        }
        (whole as i128 * i128::from(passed) / i128::from(span)).max(1) as i64
    }

    /// One turn of smooth weighted round robin (`ngx_http_upstream_get_peer`): grows the current
    /// weight, and answers it with what it grew by. The group is locked.
    pub(crate) fn turn(&self, scale: i64, now_ms: u64) -> (i64, i64) {
        let s = &self.state;
        let lowered = s.lowered.load(Relaxed);
        let effective = (self.weight(scale, now_ms) - lowered * scale).max(0);
        let current = s.current_weight.load(Relaxed) + effective;
        s.current_weight.store(current, Relaxed);
        if lowered > 0 {
            s.lowered.store(lowered - 1, Relaxed);
        }
        (current, effective)
    }

    /// It is chosen, out of weights of that sum. The group is locked.
    pub(crate) fn chosen(&self, total: i64, now_ms: u64) {
        let (s, now_s) = (&self.state, now_ms / 1000);
        s.current_weight.fetch_sub(total, Relaxed);
        if now_s.saturating_sub(s.checked_s.load(Relaxed)) > self.weights.fail_timeout_s {
            s.checked_s.store(now_s, Relaxed);
        }
    }

    pub(crate) fn current_weight(&self) -> i64 {
        self.state.current_weight.load(Relaxed)
    }

    /// A connection begins to count.
    pub(crate) fn begin(&self, now_ms: u64) {
        self.state.conns.fetch_add(1, Relaxed);
        self.state.began_ms.fetch_add(now_ms, Relaxed);
    }

    /// A connection that began then ends (`ngx_http_upstream_free_round_robin_peer`); `single`: there
    /// is no other peer. Answers whether this disabled the peer.
    pub(crate) fn end(
        &self,
        began_ms: u64,
        outcome: Outcome,
        timings: Timings,
        single: bool,
        now_ms: u64,
    ) -> bool {
        let s = &self.state;
        if let Some(ms) = timings.header_ms {
            s.header.add(ms);
        }
        if let Some(ms) = timings.response_ms {
            s.response.add(ms);
        }
        let mut disabled = false;
        if single {
            // nginx: the only peer is never failed.
        } else if outcome == Outcome::Failed {
            disabled = self.fail(now_ms / 1000);
        } else if s.accessed_s.load(Relaxed) < s.checked_s.load(Relaxed) {
            self.revive(now_ms);
        }
        s.conns.fetch_sub(1, SeqCst);
        s.began_ms.fetch_sub(began_ms, Relaxed);
        disabled
    }

    fn fail(&self, now_s: u64) -> bool {
        let _locked = self.shared.lock();
        let (s, w) = (&self.state, &self.weights);
        let fails = s.fails.load(Relaxed).saturating_add(1);
        s.fails.store(fails, Relaxed);
        s.accessed_s.store(now_s, Relaxed);
        s.checked_s.store(now_s, Relaxed);
        if w.max_fails == 0 {
            return false;
        }
        let lowered = s.lowered.load(Relaxed) + w.weight / i64::from(w.max_fails);
        s.lowered.store(lowered.min(w.weight), Relaxed);
        fails >= w.max_fails
    }

    /// It was tried after its failures, and held.
    fn revive(&self, now_ms: u64) {
        let fails = self.state.fails.swap(0, Relaxed);
        if self.weights.max_fails > 0 && fails >= self.weights.max_fails {
            self.start_slowly(now_ms);
        }
    }

    fn start_slowly(&self, now_ms: u64) {
        if self.weights.slow_start_ms > 0 {
            self.state.slow_since_ms.store(now_ms.max(1), Relaxed);
        }
    }

    /// Its health checks pass again.
    pub(crate) fn recovered(&self, now_ms: u64) {
        self.state.fails.store(0, Relaxed);
        self.start_slowly(now_ms);
        self.shared.wake_all();
    }

    /// How long a request to it would take, judged by how long others took and how many there are now
    /// (`least_time`); of two peers, that with the smaller number times the other's weight is better.
    pub(crate) fn expected(&self, last_byte: bool, inflight: bool, now_ms: u64) -> u128 {
        let s = &self.state;
        let average = if last_byte { &s.response } else { &s.header };
        let mut time = average.0.load(Relaxed);
        let conns = u64::from(self.connections());
        if inflight && conns > 0 {
            let so_far = (conns * now_ms).saturating_sub(s.began_ms.load(Relaxed));
            time = time.max((so_far << 8) / conns);
        }
        u128::from(time) * u128::from(conns + 1)
    }
}

/// What a peer's counters say, for tests.
#[cfg(test)]
impl Peer {
    pub(crate) fn set_times(&self, header_ms: u64, response_ms: u64) {
        self.state.header.0.store(header_ms << 8, Relaxed);
        self.state.response.0.store(response_ms << 8, Relaxed);
    }
}
