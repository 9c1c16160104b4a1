//! Sessions that outlive their connections: the cache that all threads share, and ticket keys.
//!
//! Answers `ngx_ssl_session_cache`, `ngx_ssl_session_ticket_keys` and `ngx_ssl_rotate_ticket_keys`.
//! A cache is kept over a reload by whoever holds its `Arc`, by name.
//! Invariant: a session is found only by a server of the context that made it, and never after its
//! timeout; the cache holds no more bytes than its size.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    digest, rand,
};
use forebay_rt::clock;
use rustls::server::{ProducesTickets, StoresServerSessions};

/// How many locks a cache has.
const SHARDS: usize = 16;
/// What an entry takes beside its key and value: two tables' places and the allocator's headers.
const ENTRY_BYTES: usize = 128;

/// `ssl_session_cache shared:NAME:SIZE` or `builtin`.
pub struct SessionCache {
    shards: [Mutex<Shard>; SHARDS],
    shard_bytes: usize,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<Box<[u8]>, Entry>,
    /// In the order in which they came; those that are gone are skipped.
    order: VecDeque<(u64, Box<[u8]>)>,
    bytes: usize,
    next: u64,
}

struct Entry {
    value: Vec<u8>,
    expires_ms: u64,
    number: u64,
}

impl fmt::Debug for SessionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Sessions are secrets.
        write!(f, "SessionCache({} bytes)", self.shard_bytes * SHARDS)
    }
}

impl SessionCache {
    /// A cache of that many bytes at most. nginx reckons 4,000 sessions to a megabyte; here it is
    /// about 3,000, more without client certificates.
    pub fn new(bytes: usize) -> Arc<SessionCache> {
        Arc::new(SessionCache { shards: Default::default(), shard_bytes: bytes / SHARDS })
    }

    fn shard(&self, key: &[u8]) -> std::sync::MutexGuard<'_, Shard> {
        let index = usize::from(key.last().copied().unwrap_or_default()) % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: Vec<u8>, value: Vec<u8>, timeout_s: u64) -> bool {
        let now_ms = clock::now_ms();
        let size = cost(&key, &value);
        if size > self.shard_bytes {
            return false;
        }
        let mut shard = self.shard(&key);
        shard.remove(&key);
        while shard.bytes + size > self.shard_bytes && shard.drop_oldest() {}
        shard.drop_expired(now_ms);
        let number = shard.next;
        shard.next += 1;
        shard.bytes += size;
        let key: Box<[u8]> = key.into();
        shard.order.push_back((number, key.clone()));
        let expires_ms = now_ms.saturating_add(timeout_s.saturating_mul(1000));
        shard.entries.insert(key, Entry { value, expires_ms, number });
        true
    }

    fn get(&self, key: &[u8], take: bool) -> Option<Vec<u8>> {
        let mut shard = self.shard(key);
        let entry = shard.entries.get(key)?;
        let alive = entry.expires_ms > clock::now_ms();
        if alive && !take {
            return Some(entry.value.clone());
        }
        shard.remove(key).filter(|_| alive)
    }

    /// How many sessions it holds.
    pub fn len(&self) -> usize {
        let lock = |shard: &Mutex<Shard>| {
            shard.lock().unwrap_or_else(PoisonError::into_inner).entries.len()
        };
        self.shards.iter().map(lock).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    2 * key.len() + value.len() + ENTRY_BYTES
}

impl Shard {
    fn remove(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let entry = self.entries.remove(key)?;
        self.bytes -= cost(key, &entry.value);
        // The order forgets it when half of it is stale, which bounds it.
        if self.order.len() > 2 * self.entries.len() + 16 {
            let entries = &self.entries;
            self.order.retain(|(number, key)| {
                entries.get(key).is_some_and(|entry| entry.number == *number)
            });
        }
        Some(entry.value)
    }

    /// `false`: there is none.
    fn drop_oldest(&mut self) -> bool {
        let Some((number, key)) = self.order.pop_front() else { return false };
        if self.entries.get(&key).is_some_and(|entry| entry.number == number) {
            self.remove(&key);
        }
        true
    }

    /// As nginx does at each insertion, up to two that are over.
    fn drop_expired(&mut self, now_ms: u64) {
        for _ in 0..2 {
            let Some((number, key)) = self.order.front() else { return };
            let fresh = |entry: &Entry| entry.number == *number && entry.expires_ms > now_ms;
            if self.entries.get(key).is_some_and(fresh) {
                return;
            }
            self.drop_oldest();
        }
    }
}

/// A cache as one server's sessions see it.
#[derive(Debug)]
pub(crate) struct BoundCache {
    cache: Arc<SessionCache>,
    context: [u8; 32],
    timeout_s: u64,
}

impl BoundCache {
    pub(crate) fn new(cache: Arc<SessionCache>, context: [u8; 32], timeout_s: u64) -> BoundCache {
        BoundCache { cache, context, timeout_s }
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.context[..16], key].concat()
    }
}

impl StoresServerSessions for BoundCache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.cache.put(self.key(&key), value, self.timeout_s)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.cache.get(&self.key(key), false)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.cache.get(&self.key(key), true)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// A key that tickets are sealed with, and the name by which a ticket says so.
struct TicketKey {
    name: [u8; 16],
    key: LessSafeKey,
}

impl TicketKey {
    fn new(name: [u8; 16], secret: &[u8; 32]) -> Option<TicketKey> {
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, secret).ok()?);
        Some(TicketKey { name, key })
    }

    fn random() -> Option<TicketKey> {
        let (mut name, mut secret) = ([0; 16], [0; 32]);
        rand::fill(&mut name).ok()?;
        rand::fill(&mut secret).ok()?;
        TicketKey::new(name, &secret)
    }

    /// Of a file of `ssl_session_ticket_key`.
    fn from_file(file: &[u8]) -> Option<TicketKey> {
        let (name, secret) = file.split_first_chunk::<16>()?;
        // nginx takes the rest for an AES-CBC and an HMAC key. One AEAD key is made of both.
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"forebay ticket key");
        context.update(secret);
        TicketKey::new(*name, context.finish().as_ref().try_into().ok()?)
    }
}

/// `ssl_session_ticket_key`, or keys that change by themselves.
pub struct TicketKeys(Keys);

enum Keys {
    /// The first seals; all open.
    Fixed(Vec<TicketKey>),
    /// The first seals; changed when it is older than the period, and then opens for one more.
    Rotating { keys: RwLock<Rotation>, period_ms: u64 },
}

struct Rotation {
    made_ms: u64,
    keys: Vec<Arc<TicketKey>>,
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKeys")
    }
}

impl TicketKeys {
    /// Of the files' contents, in their order. The error is nginx's, behind the file's name, with the
    /// file's index.
    pub fn from_files(files: &[Vec<u8>]) -> Result<Arc<TicketKeys>, (usize, &'static str)> {
        let mut keys = Vec::new();
        for (index, file) in files.iter().enumerate() {
            if file.len() != 48 && file.len() != 80 {
                return Err((index, "must be 48 or 80 bytes"));
            }
            keys.push(TicketKey::from_file(file).ok_or((index, "cannot be used"))?);
        }
        Ok(Arc::new(TicketKeys(Keys::Fixed(keys))))
    }

    /// Made at random, and anew every `timeout_s` seconds.
    pub fn rotating(timeout_s: u64) -> Arc<TicketKeys> {
        let keys = RwLock::new(Rotation { made_ms: 0, keys: Vec::new() });
        let period_ms = timeout_s.saturating_mul(1000).max(1000);
        Arc::new(TicketKeys(Keys::Rotating { keys, period_ms }))
    }

    fn seal(&self, aad: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
        match &self.0 {
            Keys::Fixed(keys) => seal(keys.first()?, aad, plain),
            Keys::Rotating { keys, period_ms } => {
                let now_ms = clock::now_ms();
                let fresh = |rotation: &Rotation| {
                    let key = rotation.keys.first()?;
                    (now_ms.saturating_sub(rotation.made_ms) < *period_ms).then(|| key.clone())
                };
                let known = fresh(&keys.read().unwrap_or_else(PoisonError::into_inner));
                let key = match known {
                    Some(key) => key,
                    None => {
                        let mut rotation = keys.write().unwrap_or_else(PoisonError::into_inner);
                        match fresh(&rotation) {
                            Some(key) => key,
                            None => rotation.rotate(now_ms, *period_ms)?,
                        }
                    }
                };
                seal(&key, aad, plain)
            }
        }
    }

    fn open(&self, aad: &[u8], ticket: &[u8]) -> Option<Vec<u8>> {
        let name: &[u8; 16] = ticket.first_chunk()?;
        match &self.0 {
            Keys::Fixed(keys) => open(keys.iter().find(|key| key.name == *name)?, aad, ticket),
            Keys::Rotating { keys, period_ms } => {
                let now_ms = clock::now_ms();
                let rotation = keys.read().unwrap_or_else(PoisonError::into_inner);
                let useful = rotation.useful(now_ms, *period_ms);
                let useless = useful < rotation.keys.len();
                let key = rotation.keys[..useful].iter().find(|key| key.name == *name).cloned();
                drop(rotation);
                if useless {
                    let mut rotation = keys.write().unwrap_or_else(PoisonError::into_inner);
                    rotation.drop_useless(now_ms, *period_ms);
                }
                open(&*key?, aad, ticket)
            }
        }
    }
}

impl Rotation {
    /// How many of the keys may still open a ticket: the first seals for a period, and what it has sealed
    /// is good for one more.
    fn useful(&self, now_ms: u64, period_ms: u64) -> usize {
        let periods = now_ms.saturating_sub(self.made_ms) / period_ms;
        2usize.saturating_sub(periods as usize).min(self.keys.len())
    }

    /// Who takes a key from here later must not read what was said long ago
    /// (ngx_ssl_rotate_ticket_keys).
    fn drop_useless(&mut self, now_ms: u64, period_ms: u64) {
        let useful = self.useful(now_ms, period_ms);
        self.keys.truncate(useful);
    }

    fn rotate(&mut self, now_ms: u64, period_ms: u64) -> Option<Arc<TicketKey>> {
        let key = Arc::new(TicketKey::random()?);
        self.drop_useless(now_ms, period_ms);
        self.keys.insert(0, key.clone());
        self.keys.truncate(2);
        self.made_ms = now_ms;
        Some(key)
    }
}

const NONCE: usize = 12;

/// Name, nonce, sealed bytes with their tag; what it is for is authenticated, and so is the name.
fn seal(key: &TicketKey, aad: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
    let mut nonce = [0; NONCE];
    rand::fill(&mut nonce).ok()?;
    let mut out = Vec::with_capacity(16 + NONCE + plain.len() + 16);
    out.extend_from_slice(&key.name);
    out.extend_from_slice(&nonce);
    out.extend_from_slice(plain);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let sealed = &mut out[16 + NONCE..];
    let tag = key.key.seal_in_place_separate_tag(nonce, Aad::from(aad), sealed).ok()?;
    out.extend_from_slice(tag.as_ref());
    Some(out)
}

fn open(key: &TicketKey, aad: &[u8], ticket: &[u8]) -> Option<Vec<u8>> {
    let (nonce, sealed) = ticket.get(16..)?.split_first_chunk::<NONCE>()?;
    let mut sealed = sealed.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let len = key.key.open_in_place(nonce, Aad::from(aad), &mut sealed).ok()?.len();
    sealed.truncate(len);
    Some(sealed)
}

/// Ticket keys as one server uses them.
#[derive(Debug)]
pub(crate) struct BoundTickets {
    keys: Arc<TicketKeys>,
    context: [u8; 32],
    timeout_s: u64,
}

impl BoundTickets {
    pub(crate) fn new(keys: Arc<TicketKeys>, context: [u8; 32], timeout_s: u64) -> BoundTickets {
        BoundTickets { keys, context, timeout_s }
    }
}

impl ProducesTickets for BoundTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        // RFC 8446 §4.6.1: seven days at most.
        self.timeout_s.min(604_800) as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        // The wall clock: a key from a file may serve several processes and outlive this one.
        let made_s = clock::wall_ms() / 1000;
        self.keys.seal(&self.context, &[&made_s.to_be_bytes(), plain].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let opened = self.keys.open(&self.context, ticket)?;
        let (made_s, session) = opened.split_first_chunk::<8>()?;
        let age_s = (clock::wall_ms() / 1000).saturating_sub(u64::from_be_bytes(*made_s));
        (age_s <= self.timeout_s).then(|| session.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(keys: &TicketKeys) -> usize {
        let Keys::Rotating { keys, .. } = &keys.0 else { panic!() };
        keys.read().unwrap().keys.len()
    }

    #[test]
    fn a_ticket_is_good_for_its_time_and_its_key_is_forgotten() {
        clock::pause();
        let keys = TicketKeys::rotating(100);
        let bound = BoundTickets::new(keys.clone(), [1; 32], 100);
        let first = bound.encrypt(b"session").unwrap();
        clock::advance(60_000);
        let second = bound.encrypt(b"session").unwrap();
        assert_eq!(first[..16], second[..16], "one key seals for a period");
        clock::advance(40_000);
        assert!(bound.decrypt(&first).is_some());
        let third = bound.encrypt(b"session").unwrap();
        assert_ne!(third[..16], second[..16]);
        clock::advance(1_000);
        assert!(bound.decrypt(&first).is_none(), "older than ssl_session_timeout");
        assert!(bound.decrypt(&second).is_some(), "the last key still opens");
        assert_eq!(held(&keys), 2);
        // Nothing is sealed any more: keys go when nothing of theirs is good.
        clock::advance(99_000);
        assert!(bound.decrypt(&second).is_none());
        assert_eq!(held(&keys), 1);
        assert!(bound.decrypt(&third).is_some());
        clock::advance(100_000);
        assert!(bound.decrypt(&third).is_none());
        assert_eq!(held(&keys), 0);
        bound.encrypt(b"session").unwrap();
        clock::advance(1_000_000);
        bound.encrypt(b"session").unwrap();
        assert_eq!(held(&keys), 1, "one that nobody has asked for since goes with the next");
    }
}
