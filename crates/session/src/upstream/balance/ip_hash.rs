//! The peer by the client's address (`ngx_http_upstream_ip_hash_module.c`).
//!
//! DIFFERS(ip-hash-full): nginx takes the first three octets of an IPv4 address; `ip_hash full` takes
//! all four.

use std::{net::IpAddr, sync::Arc};

use super::{MAX_TRIES, is_usable};
use crate::upstream::{Peer, Selection, group::List, select::Key};

/// What counts of a client's address; a unix socket's is three zeros.
pub fn ip_key(client: Option<IpAddr>, full: bool) -> Key {
    let mut octets = [0; 16];
    let len = match client {
        None => 3,
        Some(IpAddr::V4(ip)) => {
            octets[..4].copy_from_slice(&ip.octets());
            if full { 4 } else { 3 }
        }
        Some(IpAddr::V6(ip)) => {
            octets = ip.octets();
            16
        }
    };
    Key::Ip { octets, len, hash: 89, tries: 0 }
}

/// `ngx_http_upstream_get_ip_hash_peer`.
pub fn choose<'a>(list: &'a List, selection: &mut Selection, now_ms: u64) -> Option<&'a Arc<Peer>> {
    let Key::Ip { octets, len, mut hash, mut tries } = selection.key else { return None };
    let mut found = None;
    while tries <= MAX_TRIES {
        hash = octets[..len].iter().fold(hash, |hash, o| (hash * 113 + u32::from(*o)) % 6271);
        let peer = list.at_weight(hash.into())?;
        if is_usable(peer, selection, now_ms) {
            peer.chosen(0, now_ms);
            found = Some(peer);
            break;
        }
        tries += 1;
    }
    selection.key = Key::Ip { octets, len, hash, tries };
    found
}
