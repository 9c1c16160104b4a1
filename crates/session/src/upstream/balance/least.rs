//! The peer with the least to do (`ngx_http_upstream_least_conn_module.c`, and `least_time`).

use std::sync::Arc;

use super::{Selection, turn, usable};
use crate::upstream::{
    Peer,
    group::{List, Time},
};

/// `least_conn`.
pub fn by_connections<'a>(
    list: &'a List,
    selection: &Selection,
    now_ms: u64,
) -> Option<&'a Arc<Peer>> {
    least(list, selection, now_ms, |peer| u128::from(peer.connections()))
}

/// `least_time`: nginx documents the least average time and the least number of connections, with
/// regard to weights; we multiply the two, as a new request takes its turn among those.
pub fn by_time<'a>(
    list: &'a List,
    selection: &Selection,
    time: Time,
    now_ms: u64,
) -> Option<&'a Arc<Peer>> {
    least(list, selection, now_ms, |peer| peer.expected(time.last_byte, time.inflight, now_ms))
}

/// `ngx_http_upstream_get_least_conn_peer`: the least cost for its weight; among equals, in turn.
fn least<'a>(
    list: &'a List,
    selection: &Selection,
    now_ms: u64,
    cost: impl Fn(&Peer) -> u128,
) -> Option<&'a Arc<Peer>> {
    let weight = |peer: &Peer| peer.weight(list.scale, now_ms).max(1) as u128;
    let mut best: Option<(usize, &Arc<Peer>, u128, u128)> = None;
    let mut many = false;
    for (at, peer) in usable(list, selection, now_ms) {
        let (its_cost, its_weight) = (cost(peer), weight(peer));
        match best {
            Some((.., c, w)) if its_cost * w == c * its_weight => many = true,
            Some((.., c, w)) if its_cost * w > c * its_weight => {}
            _ => (best, many) = (Some((at, peer, its_cost, its_weight)), false),
        }
    }
    let (first, peer, c, w) = best?;
    if !many {
        peer.chosen(0, now_ms);
        return Some(peer);
    }
    let equals = usable(list, selection, now_ms)
        .filter(|(at, peer)| *at >= first && cost(peer) * w == c * weight(peer))
        .map(|(_, peer)| peer);
    turn(equals, list.scale, Some(peer), now_ms)
}
