//! Choosing a peer: smooth weighted round robin, and what other methods have in common with it.
//!
//! Hot path: no allocation, one lock.
//!
//! Invariant: the same choices, in the same order, as nginx makes.

mod hash;
mod ip_hash;
mod least;
mod random;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use hash::{Ring, hash_key, point_key};
pub(crate) use ip_hash::ip_key;
pub(crate) use random::random;

use super::{
    Group, Lease, Method, Peer, Pick, Selection,
    group::{List, Live, Peers},
};

/// How many peers a method that depends on the request may find unusable before round robin takes
/// over, in nginx's counting.
const MAX_TRIES: u32 = 20;

/// See [`Group::pick`].
pub(crate) fn pick(group: &Group, selection: &mut Selection, now_ms: u64) -> Pick {
    let live = group.live();
    let peers = live.peers.load();
    if selection.queued.is_some() && selection.tried.is_empty() {
        selection.begin_again(&peers);
    }
    if let Some(lease) = choose(group, live, &peers, selection, now_ms) {
        return Pick::Peer(lease);
    }
    // Who has tried a server and failed does not wait for another.
    let settings = group.settings.queue.or_else(|| group.waits_for_names(&peers));
    let Some(settings) = settings.filter(|_| selection.tried.is_empty()) else {
        return Pick::NoneLive;
    };
    let queue = &live.shared.queue;
    let Some(ticket) = queue.enter(settings, &mut selection.queued, now_ms) else {
        return Pick::NoneLive;
    };
    // A server that became free, or known, before the place was taken called nobody.
    let peers = live.peers.load();
    match choose(group, live, &peers, selection, now_ms) {
        Some(lease) => Pick::Peer(lease),
        None => Pick::Queue(ticket),
    }
}

fn choose(
    group: &Group,
    live: &Live,
    peers: &Peers,
    selection: &mut Selection,
    now_ms: u64,
) -> Option<Lease> {
    let single = peers.single();
    let _locked = live.shared.lock();
    let peer = match bound(peers, selection, now_ms) {
        Some(peer) => peer,
        None if single => only(peers)?,
        None => from_lists(&group.settings.method, peers, selection, now_ms)?,
    };
    selection.tried.add(peer.id);
    Some(Lease::new(peer, now_ms, single))
}

/// The peer that the request belongs to, if it was not asked yet and can be.
fn bound(peers: &Peers, selection: &Selection, now_ms: u64) -> Option<Arc<Peer>> {
    let id = selection.bound.bytes();
    if id.is_empty() || !selection.tried.is_empty() {
        return None;
    }
    let is_it = |peer: &&Arc<Peer>| peer.sticky_id.as_bytes() == id && !peer.is_out(now_ms, true);
    let peer = peers.iter().find(is_it)?;
    peer.chosen(0, now_ms);
    Some(peer.clone())
}

/// The only peer: its failures do not count, nor whether it was tried.
fn only(peers: &Peers) -> Option<Arc<Peer>> {
    let peer = peers.primary.peers.first()?;
    (!peer.is_off() && !peer.is_full() && !peer.weights.drain).then(|| peer.clone())
}

/// First the primary servers, then, for the rest of the request, the backup servers.
fn from_lists(
    method: &Option<Method>,
    peers: &Peers,
    selection: &mut Selection,
    now_ms: u64,
) -> Option<Arc<Peer>> {
    let method = method.as_ref().unwrap_or(&Method::RoundRobin);
    if !selection.on_backup {
        if let Some(peer) = by_method(method, &peers.primary, selection, now_ms) {
            return Some(peer.clone());
        }
        if peers.backup.peers.is_empty() {
            return None;
        }
    }
    let found = by_method(method, &peers.backup, selection, now_ms).cloned();
    selection.on_backup |= found.is_some();
    found
}

fn by_method<'a>(
    method: &Method,
    list: &'a List,
    selection: &mut Selection,
    now_ms: u64,
) -> Option<&'a Arc<Peer>> {
    let found = match method {
        Method::RoundRobin => None,
        Method::LeastConn => return least::by_connections(list, selection, now_ms),
        Method::LeastTime(time) => return least::by_time(list, selection, *time, now_ms),
        Method::IpHash { .. } => ip_hash::choose(list, selection, now_ms),
        Method::Hash(_) => hash::choose(list, selection, now_ms),
        Method::Consistent(_) => hash::choose_consistent(list, selection, now_ms),
        Method::Random => random::one(list, selection, now_ms),
        Method::RandomTwo(time) => random::two(list, selection, *time, now_ms),
    };
    found.or_else(|| round_robin(list, selection, now_ms))
}

/// The peers of a list that this request may ask, with their places.
fn usable<'a>(
    list: &'a List,
    selection: &Selection,
    now_ms: u64,
) -> impl Iterator<Item = (usize, &'a Arc<Peer>)> {
    list.peers.iter().enumerate().filter(move |(_, peer)| is_usable(peer, selection, now_ms))
}

fn is_usable(peer: &Peer, selection: &Selection, now_ms: u64) -> bool {
    !selection.tried.has(peer.id) && !peer.is_out(now_ms, false)
}

/// `ngx_http_upstream_get_peer`.
fn round_robin<'a>(list: &'a List, selection: &Selection, now_ms: u64) -> Option<&'a Arc<Peer>> {
    turn(usable(list, selection, now_ms).map(|(_, peer)| peer), list.scale, None, now_ms)
}

/// One round among some peers: each current weight grows, the largest is chosen and pays for all.
/// `first`: who is chosen unless another one's weight becomes larger.
fn turn<'a>(
    peers: impl Iterator<Item = &'a Arc<Peer>>,
    scale: i64,
    first: Option<&'a Arc<Peer>>,
    now_ms: u64,
) -> Option<&'a Arc<Peer>> {
    let (mut best, mut total) = (first, 0);
    for peer in peers {
        let (current, effective) = peer.turn(scale, now_ms);
        total += effective;
        if best.is_none_or(|best| current > best.current_weight()) {
            best = Some(peer);
        }
    }
    best?.chosen(total, now_ms);
    best
}
