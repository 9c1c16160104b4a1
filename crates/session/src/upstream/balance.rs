//! Choosing a peer.
//!
//! Invariant: the same choices, in the same order, as nginx makes.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use super::{Group, Lease, Peer, Pick, Selection};

/// See [`Group::pick`].
pub(crate) fn pick(group: &Group, selection: &mut Selection, now_ms: u64) -> Pick {
    let peers = group.peers.load();
    let _locked = group.shared.lock();
    let mut found = None;
    if !selection.on_backup {
        found = round_robin(&peers.primary.peers, selection, now_ms / 1000);
        if found.is_none() && !peers.backup.peers.is_empty() {
            selection.on_backup = true;
            selection.tried.clear();
        }
    }
    if found.is_none() && selection.on_backup {
        found = round_robin(&peers.backup.peers, selection, now_ms / 1000);
    }
    match found {
        Some(peer) => {
            selection.tried.push(peer.id);
            Pick::Peer(Lease::new(peer, now_ms))
        }
        None => Pick::NoneLive,
    }
}

/// `ngx_http_upstream_get_peer`.
fn round_robin(peers: &[Arc<Peer>], selection: &Selection, now_s: u64) -> Option<Arc<Peer>> {
    let mut best: Option<&Arc<Peer>> = None;
    let mut total = 0;
    for peer in peers {
        if selection.tried.contains(&peer.id) || peer.is_out(now_s) {
            continue;
        }
        let effective = peer.effective_weight();
        let current = peer.state.current_weight.load(Relaxed) + effective;
        peer.state.current_weight.store(current, Relaxed);
        total += effective;
        let lowered = peer.state.lowered.load(Relaxed);
        peer.state.lowered.store((lowered - 1).max(0), Relaxed);
        if best.is_none_or(|best| current > best.state.current_weight.load(Relaxed)) {
            best = Some(peer);
        }
    }
    let best = best?;
    best.state.current_weight.fetch_sub(total, Relaxed);
    if now_s.saturating_sub(best.state.checked_s.load(Relaxed)) > best.weights.fail_timeout_s {
        best.state.checked_s.store(now_s, Relaxed);
    }
    Some(best.clone())
}
