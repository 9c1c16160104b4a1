//! A peer by chance, or the better of two (`ngx_http_upstream_random_module.c`).

use std::{
    cell::Cell,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use super::{MAX_TRIES, is_usable};
use crate::upstream::{
    Peer, Selection,
    group::{List, Time},
    select::Key,
};

thread_local! {
    static SEED: Cell<u64> = Cell::new(RandomState::new().hash_one(0) | 1);
}

/// A number by chance; not for secrets (xorshift64*).
pub fn random() -> u64 {
    let mut x = SEED.get();
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    SEED.set(x);
    x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}

/// `ngx_http_upstream_get_random_peer`.
pub fn one<'a>(list: &'a List, selection: &mut Selection, now_ms: u64) -> Option<&'a Arc<Peer>> {
    let peer = next(list, selection, now_ms, None)?;
    peer.chosen(0, now_ms);
    Some(peer)
}

/// `ngx_http_upstream_get_random2_peer`: of two, the one with less to do for its weight.
pub fn two<'a>(
    list: &'a List,
    selection: &mut Selection,
    time: Option<Time>,
    now_ms: u64,
) -> Option<&'a Arc<Peer>> {
    let cost = |peer: &Peer| match time {
        None => u128::from(peer.connections()),
        Some(time) => peer.expected(time.last_byte, time.inflight, now_ms),
    };
    let weight = |peer: &Peer| peer.weights.weight as u128;
    let first = next(list, selection, now_ms, None)?;
    // Where there is no second one, nginx leaves it to round robin.
    let second = next(list, selection, now_ms, Some(first))?;
    let first_is_better = cost(second) * weight(first) > cost(first) * weight(second);
    let best = if first_is_better { first } else { second };
    best.chosen(0, now_ms);
    Some(best)
}

fn next<'a>(
    list: &'a List,
    selection: &mut Selection,
    now_ms: u64,
    not: Option<&Arc<Peer>>,
) -> Option<&'a Arc<Peer>> {
    let Key::Random { mut tries } = selection.key else { return None };
    let mut found = None;
    while tries <= MAX_TRIES && list.peers.len() > 1 {
        let peer = list.at_weight(random())?;
        let is_new = not.is_none_or(|not| not.id != peer.id);
        if is_new && is_usable(peer, selection, now_ms) {
            found = Some(peer);
            break;
        }
        tries += 1;
    }
    selection.key = Key::Random { tries };
    found
}
