//! The peer by a text of the request (`ngx_http_upstream_hash_module.c`): over the weights, or on a
//! ring of points, where a change moves few requests.
//!
//! Invariant: the same text finds the same peer as in nginx, and in Cache::Memcached and
//! Cache::Memcached::Fast.

use std::sync::Arc;

use super::{MAX_TRIES, is_usable, turn, usable};
use crate::upstream::{
    Peer, Selection,
    group::List,
    select::{Key, Text},
};

/// The key of `hash`.
pub fn hash_key(text: Text) -> Key {
    // nginx: an empty key is no key, and round robin chooses.
    match text.bytes().is_empty() {
        true => Key::None,
        false => Key::Hash { text, rehash: 0, sum: 0, tries: 0 },
    }
}

/// The key of `hash … consistent`.
pub fn point_key(text: &[u8]) -> Key {
    match text.is_empty() {
        true => Key::None,
        false => Key::Point { hash: Crc32::default().update(text).value(), tries: 0 },
    }
}

/// `ngx_http_upstream_get_hash_peer`.
pub fn choose<'a>(list: &'a List, selection: &mut Selection, now_ms: u64) -> Option<&'a Arc<Peer>> {
    let Key::Hash { text, mut rehash, mut sum, mut tries } =
        std::mem::replace(&mut selection.key, Key::None)
    else {
        return None;
    };
    let mut found = None;
    while tries <= MAX_TRIES {
        // ((crc32([REHASH] KEY) >> 16) & 0x7fff) + PREV_HASH, with REHASH omitted the first time.
        sum = sum.wrapping_add(rehashed(rehash).update(text.bytes()).value() >> 16 & 0x7fff);
        rehash += 1;
        let Some(peer) = list.at_weight(sum.into()) else { break };
        if is_usable(peer, selection, now_ms) {
            peer.chosen(0, now_ms);
            found = Some(peer);
            break;
        }
        tries += 1;
    }
    selection.key = Key::Hash { text, rehash, sum, tries };
    found
}

/// `crc32(REHASH …)`. A group of many servers may take more than two digits: each that failed counts.
fn rehashed(n: u32) -> Crc32 {
    let mut digits = [0; 10];
    let mut from = digits.len();
    let mut left = n;
    while left > 0 {
        from -= 1;
        digits[from] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    Crc32::default().update(&digits[from..])
}

/// `ngx_http_upstream_get_chash_peer`.
pub fn choose_consistent<'a>(
    list: &'a List,
    selection: &mut Selection,
    now_ms: u64,
) -> Option<&'a Arc<Peer>> {
    let Key::Point { hash, mut tries } = selection.key else { return None };
    if list.peers.len() < 2 {
        return None;
    }
    let start = list.ring.find(hash);
    let mut found = None;
    while tries <= MAX_TRIES {
        let server = list.ring.server(start + tries as usize)?;
        // Several peers stand behind one point when a name has several addresses.
        let same = usable(list, selection, now_ms)
            .map(|(_, peer)| peer)
            .filter(|peer| *peer.server == *server);
        found = turn(same, list.scale, None, now_ms);
        if found.is_some() {
            break;
        }
        tries += 1;
    }
    selection.key = Key::Point { hash, tries };
    found
}

/// The points of a consistent hash, in order.
#[derive(Default)]
pub struct Ring {
    points: Vec<(u32, u32)>,
    servers: Vec<Box<str>>,
}

/// Points for each unit of weight.
const POINTS: i64 = 160;

impl Ring {
    /// `ngx_http_upstream_init_chash`.
    pub fn new(peers: &[Arc<Peer>]) -> Ring {
        let mut ring = Ring::default();
        for (index, peer) in peers.iter().enumerate() {
            ring.servers.push(peer.server.clone());
            let (host, port) = host_and_port(&peer.server);
            // crc32(HOST \0 PORT PREV_HASH)
            let base =
                Crc32::default().update(host.as_bytes()).update(b"\0").update(port.as_bytes());
            let mut before = 0u32;
            for _ in 0..peer.weights.weight * POINTS {
                before = base.update(&before.to_le_bytes()).value();
                ring.points.push((before, index as u32));
            }
        }
        // Stable, as the merge sort that nginx is used to get from qsort(): of equal points, the first
        // server's stays.
        ring.points.sort_by_key(|point| point.0);
        ring.points.dedup_by_key(|point| point.0);
        ring
    }

    /// The first point at or after a hash; may be one behind the last.
    fn find(&self, hash: u32) -> usize {
        self.points.partition_point(|point| point.0 < hash)
    }

    fn server(&self, at: usize) -> Option<&str> {
        let (_, index) = self.points.get(at % self.points.len().max(1))?;
        self.servers.get(*index as usize).map(|server| &**server)
    }
}

fn host_and_port(server: &str) -> (&str, &str) {
    if let Some(path) = server.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
        return (&server[path.len()..], "");
    }
    let digits = server.bytes().rev().take_while(u8::is_ascii_digit).count();
    match server[..server.len() - digits].strip_suffix(':') {
        Some(host) => (host, &server[host.len() + 1..]),
        None => (server, ""),
    }
}

/// CRC-32 as in zlib (`ngx_crc32_update`).
#[derive(Clone, Copy)]
struct Crc32(u32);

impl Default for Crc32 {
    fn default() -> Crc32 {
        Crc32(u32::MAX)
    }
}

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let (mut crc, mut bit) = (n as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
}

impl Crc32 {
    fn update(self, bytes: &[u8]) -> Crc32 {
        let step = |crc: u32, byte: &u8| TABLE[(crc as u8 ^ byte) as usize] ^ crc >> 8;
        Crc32(bytes.iter().fold(self.0, step))
    }

    fn value(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zlib() {
        assert_eq!(Crc32::default().update(b"123456789").value(), 0xcbf4_3926);
        assert_eq!(Crc32::default().update(b"1234").update(b"56789").value(), 0xcbf4_3926);
    }

    #[test]
    fn the_port_is_what_digits_stand_behind_the_last_colon() {
        let cases = [
            ("127.0.0.1:80", ("127.0.0.1", "80")),
            ("127.0.0.1", ("127.0.0.1", "")),
            ("backend", ("backend", "")),
            ("backend:", ("backend", "")),
            ("backend1", ("backend1", "")),
            ("[::1]:80", ("[::1]", "80")),
            ("[::1]", ("[::1]", "")),
            ("unix:/run/a:1", ("/run/a:1", "")),
            ("UNIX:/a", ("/a", "")),
        ];
        for (server, want) in cases {
            assert_eq!(host_and_port(server), want, "{server}");
        }
    }

    #[test]
    fn rehashes_are_counted_in_decimal() {
        // So many servers may have failed before.
        for n in [1, 9, 10, 21, 99, 100, 12_345] {
            let text = format!("{n}key");
            let want = Crc32::default().update(text.as_bytes()).value();
            assert_eq!(rehashed(n).update(b"key").value(), want, "{n}");
        }
        assert_eq!(rehashed(0).value(), Crc32::default().value(), "omitted");
    }
}
