//! What one request knows about its servers: who was tried, who serves it now, how that ended.
//!
//! Hot path: no allocation for a request that is served by one of the first servers tried.
//!
//! Invariant: a connection counts for its peer from the pick to the end of its lease, however that
//! comes.

use std::{cell::RefCell, sync::Arc};

use forebay_rt::clock;

use super::{
    Peer,
    group::Peers,
    queue::{Arrival, Ticket},
};

/// A request's choice of servers so far.
pub struct Selection {
    pub(crate) tries: u32,
    pub(crate) tried: Tried,
    pub(crate) on_backup: bool,
    /// What the method knows about the request.
    pub(crate) key: Key,
    /// The peer that the request is bound to, as [`Peer::sticky_id`] has it; empty: none.
    pub(crate) bound: Text,
    /// When it began to wait in the queue; `None`: it did not.
    pub(crate) queued: Option<Arrival>,
    /// See [`Selection::limit_tries`].
    max_tries: u32,
}

/// What a method knows about a request.
pub(crate) enum Key {
    None,
    /// `hash`: the text; how often it was hashed, the sum, how many peers were not to be had.
    Hash {
        text: Text,
        rehash: u32,
        sum: u32,
        tries: u32,
    },
    /// `hash … consistent`: the hash of the text, and how many points on the ring were tried.
    Point {
        hash: u32,
        tries: u32,
    },
    /// `ip_hash`: the octets that count, the hash so far, how many peers were not to be had.
    Ip {
        octets: [u8; 16],
        len: usize,
        hash: u32,
        tries: u32,
    },
    /// `random`: how many peers were not to be had.
    Random {
        tries: u32,
    },
}

/// Who is to be asked.
pub enum Pick {
    /// This one.
    Peer(Lease),
    /// Nobody now, but waiting may help: when the ticket says [`super::Called::Again`], pick again.
    Queue(Ticket),
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
    /// A failure as `proxy_next_upstream` counts them (`NGX_PEER_FAILED`). That a kept connection had
    /// been closed is none: connect anew under the same lease.
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
    pub(crate) fn new(peers: &Peers, key: Key) -> Selection {
        let tries = peers.primary.tries + peers.backup.tries;
        Selection {
            tries,
            tried: Tried::default(),
            on_backup: false,
            key,
            bound: Text::default(),
            queued: None,
            max_tries: 0,
        }
    }

    /// The request has waited, and there may be other servers than before; it has tried none.
    pub(crate) fn begin_again(&mut self, peers: &Peers) {
        self.tries = peers.primary.tries + peers.backup.tries;
        self.limit_tries(self.max_tries);
    }

    /// How many servers may still be tried (nginx's `pc->tries`), while a lease is held that one
    /// included; [`Lease::finish`] lowers it.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// The request belongs to that peer, if it can be asked.
    pub fn bind(&mut self, peer: &Peer) {
        self.bound = Text::written(|out| out.extend_from_slice(peer.sticky_id.as_bytes()));
    }

    /// Not more than that many (`proxy_next_upstream_tries`); 0: as many as there are.
    pub fn limit_tries(&mut self, max: u32) {
        self.max_tries = max;
        if max > 0 {
            self.tries = self.tries.min(max);
        }
    }
}

/// A peer that serves a request. Dropped without [`Lease::finish`], it was [`Outcome::Good`].
pub struct Lease {
    peer: Arc<Peer>,
    began_ms: u64,
    single: bool,
    finished: bool,
}

impl Lease {
    /// Begins to count; the peer's group is locked. `single`: there is no other peer.
    pub(crate) fn new(peer: Arc<Peer>, began_ms: u64, single: bool) -> Lease {
        peer.begin(began_ms);
        Lease { peer, began_ms, single, finished: false }
    }

    /// The peer.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// When it was picked, in [`clock::now_ms`].
    pub fn began_ms(&self) -> u64 {
        self.began_ms
    }

    /// Ends it (`ngx_http_upstream_free_round_robin_peer`). Says what is worth a line at `warn`:
    /// `upstream server temporarily disabled`.
    pub fn finish(
        self,
        selection: &mut Selection,
        outcome: Outcome,
        timings: Timings,
    ) -> Option<&'static str> {
        self.finish_at(selection, outcome, timings, clock::now_ms())
    }

    pub(crate) fn finish_at(
        mut self,
        selection: &mut Selection,
        outcome: Outcome,
        timings: Timings,
        now_ms: u64,
    ) -> Option<&'static str> {
        let left = if self.single { 0 } else { selection.tries.saturating_sub(1) };
        selection.tries = left;
        let disabled = self.end(outcome, timings, now_ms);
        disabled.then_some("upstream server temporarily disabled")
    }

    fn end(&mut self, outcome: Outcome, timings: Timings, now_ms: u64) -> bool {
        self.finished = true;
        let disabled = self.peer.end(self.began_ms, outcome, timings, self.single, now_ms);
        self.peer.shared.wake_one();
        disabled
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.finished {
            self.end(Outcome::Good, Timings::default(), clock::now_ms());
        }
    }
}

/// The peers that a request has tried, by [`Peer::id`].
#[derive(Default)]
pub(crate) struct Tried {
    first: [u64; 4],
    len: usize,
    more: Vec<u64>,
}

impl Tried {
    pub fn add(&mut self, id: u64) {
        match self.first.get_mut(self.len) {
            Some(slot) => *slot = id,
            None => self.more.push(id),
        }
        self.len += 1;
    }

    pub fn has(&self, id: u64) -> bool {
        self.first[..self.len.min(4)].contains(&id) || self.more.contains(&id)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A text that a request keeps; its memory goes back to its thread.
#[derive(Default)]
pub(crate) struct Text(Vec<u8>);

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Texts that a thread keeps the memory of, and how long each may be at the most, in bytes.
const SPARE_TEXTS: usize = 256;
const SPARE_LEN: usize = 4096;

impl Text {
    /// A text that `write` fills in.
    pub fn written(write: impl FnOnce(&mut Vec<u8>)) -> Text {
        let mut text = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        write(&mut text);
        Text(text)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        let mut text = std::mem::take(&mut self.0);
        if text.capacity() == 0 || text.capacity() > SPARE_LEN {
            return;
        }
        text.clear();
        // While the thread ends, the list may be gone already.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_TEXTS {
                spare.push(text);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tried_peers_are_remembered_however_many() {
        let mut tried = Tried::default();
        assert!(tried.is_empty() && !tried.has(0));
        (1..=9).for_each(|id| tried.add(id));
        assert!((1..=9).all(|id| tried.has(id)) && !tried.has(0) && !tried.has(10));
    }

    #[test]
    fn the_memory_of_a_text_is_used_again() {
        let first = Text::written(|out| out.extend_from_slice(&[b'x'; 100]));
        let at = first.bytes().as_ptr();
        drop(first);
        let second = Text::written(|out| out.extend_from_slice(b"short"));
        assert_eq!((second.bytes(), second.bytes().as_ptr()), (&b"short"[..], at));
    }
}
