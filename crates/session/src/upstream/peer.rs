//! One server of a group at one address (`ngx_http_upstream_rr_peer_t`).
//!
//! Invariant: what changes is in [`State`], which a reload takes over; all else is as configured.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use forebay_rt::listen::Addr;

use super::group::Shared;

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
        }
    }
}

/// What changes about a peer. Written under the group's lock where several values belong together;
/// read and counted without it.
#[derive(Default)]
pub(crate) struct State {
    /// Connections in use.
    pub conns: AtomicU32,
    /// Smooth weighted round robin.
    pub current_weight: AtomicI64,
    /// How far below its weight the peer is, for its failures. nginx keeps `effective_weight`; this
    /// survives a change of the weight.
    pub lowered: AtomicI64,
    /// Failures in a row.
    pub fails: AtomicU32,
    /// When the last failure was, in seconds.
    pub accessed_s: AtomicU64,
    /// When it was last tried after failures, in seconds.
    pub checked_s: AtomicU64,
}

/// One server at one address.
pub struct Peer {
    /// Where it is.
    pub addr: Addr,
    /// The address as logs and variables show it: `127.0.0.1:8080`, `unix:/path`.
    pub name: Box<str>,
    /// The server as the configuration names it.
    pub server: Box<str>,
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
        server: &str,
        weights: Weights,
        state: Arc<State>,
        shared: Arc<Shared>,
    ) -> Peer {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Relaxed) + 1;
        let name = addr.to_string().into();
        Peer { addr, name, server: server.into(), id, weights, state, shared }
    }

    /// How many connections to it are in use.
    pub fn connections(&self) -> u32 {
        self.state.conns.load(Relaxed)
    }

    pub(crate) fn effective_weight(&self) -> i64 {
        (self.weights.weight - self.state.lowered.load(Relaxed)).max(0)
    }

    /// Whether it must not be asked now, whoever asks.
    pub(crate) fn is_out(&self, now_s: u64) -> bool {
        let (w, s) = (&self.weights, &self.state);
        let failed = w.max_fails > 0
            && s.fails.load(Relaxed) >= w.max_fails
            && now_s.saturating_sub(s.checked_s.load(Relaxed)) <= w.fail_timeout_s;
        w.down || failed || self.is_full()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.weights.max_conns > 0 && self.connections() >= self.weights.max_conns
    }
}
