//! What one request knows about its servers: who was tried, who serves it now, how that ended.
//!
//! Invariant: a connection counts for its peer from the pick to the end of its lease, however that
//! comes.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use forebay_rt::clock;

use super::{Peer, group::Peers};

/// A request's choice of servers so far.
pub struct Selection {
    /// How many more servers are worth a try, this one included; `proxy_next_upstream_tries` may lower
    /// it ([`Selection::limit_tries`]).
    pub(crate) tries: u32,
    pub(crate) tried: Vec<u64>,
    pub(crate) on_backup: bool,
}

/// Who is to be asked.
pub enum Pick {
    /// This one.
    Peer(Lease),
    /// Nobody: `no live upstreams`.
    NoneLive,
}

/// How it went with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response, whatever its status.
    Good,
    /// A response that another server may better (`http_403`, `http_404`): no failure of the server
    /// (`NGX_PEER_NEXT`).
    Next,
    /// A failure as `proxy_next_upstream` counts them (`NGX_PEER_FAILED`).
    Failed,
}

/// How long it took, in milliseconds, where it came so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Until the connection stood.
    pub connect_ms: Option<u64>,
    /// Until the head of the response was there.
    pub header_ms: Option<u64>,
    /// Until the last byte.
    pub response_ms: Option<u64>,
}

impl Selection {
    pub(crate) fn new(peers: &Peers) -> Selection {
        let tries = peers.primary.tries + peers.backup.tries;
        Selection { tries, tried: Vec::new(), on_backup: false }
    }

    /// How many servers may still be tried (nginx's `pc->tries`); a lease that ends lowers it.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Not more than that many; 0: as many as there are.
    pub fn limit_tries(&mut self, max: u32) {
        if max > 0 {
            self.tries = self.tries.min(max);
        }
    }
}

/// A peer that serves a request. Dropped without [`Lease::finish`], it was [`Outcome::Good`].
pub struct Lease {
    peer: Arc<Peer>,
    started_ms: u64,
    finished: bool,
}

impl Lease {
    /// Begins to count; the peer's group is locked.
    pub(crate) fn new(peer: Arc<Peer>, started_ms: u64) -> Lease {
        peer.state.conns.fetch_add(1, Relaxed);
        Lease { peer, started_ms, finished: false }
    }

    /// The peer.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// When it was picked, in [`clock::now_ms`].
    pub fn started_ms(&self) -> u64 {
        self.started_ms
    }

    /// Ends it (`ngx_http_upstream_free_round_robin_peer`). Says what is worth a line at `warn`:
    /// `upstream server temporarily disabled`.
    pub fn finish(
        mut self,
        selection: &mut Selection,
        outcome: Outcome,
        _timings: Timings,
    ) -> Option<&'static str> {
        selection.tries = selection.tries.saturating_sub(1);
        self.end(outcome)
    }

    fn end(&mut self, outcome: Outcome) -> Option<&'static str> {
        self.finished = true;
        let (state, weights) = (&self.peer.state, &self.peer.weights);
        let mut told = None;
        if outcome == Outcome::Failed {
            let _locked = self.peer.shared.lock();
            let now_s = clock::now_ms() / 1000;
            let fails = state.fails.fetch_add(1, Relaxed) + 1;
            state.accessed_s.store(now_s, Relaxed);
            state.checked_s.store(now_s, Relaxed);
            if weights.max_fails > 0 {
                let step = weights.weight / i64::from(weights.max_fails);
                let lowered = state.lowered.load(Relaxed) + step;
                state.lowered.store(lowered.min(weights.weight), Relaxed);
                told =
                    (fails >= weights.max_fails).then_some("upstream server temporarily disabled");
            }
        } else if state.accessed_s.load(Relaxed) < state.checked_s.load(Relaxed) {
            // It was tried after its failures, and held.
            state.fails.store(0, Relaxed);
        }
        state.conns.fetch_sub(1, Relaxed);
        told
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.finished {
            self.end(Outcome::Good);
        }
    }
}
