//! Values under keys that clients choose, within the memory of a zone (nginx: the tree, the queue and
//! the slab pool of its limit modules).
//!
//! Hot path: finding a key takes no memory.
//!
//! Invariant: the entries of a table never take more than its budget, each counted as nginx counts
//! it: the node and its key, rounded up to a power of two.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use hashbrown::HashTable;

const NONE: u32 = u32::MAX;
/// Zones of less than that many bytes a shard have fewer shards, so that a small zone holds what it
/// would hold in nginx.
const MIN_SHARD: u64 = 1 << 20;
const MAX_SHARDS: u64 = 64;

/// A table that all threads share, in shards with a lock each.
pub struct Keyed<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    // Keys are the clients': the seed is not theirs to know.
    hasher: RandomState,
}

impl<V> Keyed<V> {
    /// A table for a zone of `size` bytes; a node of nginx's takes `node` bytes without its key.
    pub fn new(size: u64, node: u64) -> Keyed<V> {
        let count = (size / MIN_SHARD).clamp(1, MAX_SHARDS);
        // The slab pool's own pages are not there for nodes.
        let budget = (size - size.min(2 * 4096)) / count;
        let shard = |_| Mutex::new(Shard::new(budget, node));
        Keyed { shards: (0..count).map(shard).collect(), hasher: RandomState::new() }
    }

    /// The shard of a key, locked, and the key's hash in it.
    pub fn lock(&self, key: &[u8]) -> (MutexGuard<'_, Shard<V>>, u64) {
        let hash = self.hasher.hash_one(key);
        (self.lock_again(hash), hash)
    }

    /// The shard of a key whose hash is known.
    pub fn lock_again(&self, hash: u64) -> MutexGuard<'_, Shard<V>> {
        // The upper bits choose, for the table itself uses the lower ones.
        let index = ((hash >> 32) * self.shards.len() as u64) >> 32;
        let shard = &self.shards[index as usize];
        // A panic elsewhere leaves numbers, at worst wrong by one.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of an entry in its shard, valid until that entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

struct Entry<V> {
    hash: u64,
    key: Box<[u8]>,
    value: V,
    newer: u32,
    older: u32,
}

/// A part of a table: entries by key, and in the order of their last use.
pub struct Shard<V> {
    table: HashTable<u32>,
    entries: Vec<Option<Entry<V>>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    used: u64,
    budget: u64,
    node: u64,
}

impl<V> Shard<V> {
    fn new(budget: u64, node: u64) -> Shard<V> {
        Shard {
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            used: 0,
            budget,
            node,
        }
    }

    fn cost(&self, key: &[u8]) -> u64 {
        (self.node + key.len() as u64).next_power_of_two()
    }

    fn entry(&self, index: u32) -> Option<&Entry<V>> {
        self.entries.get(index as usize)?.as_ref()
    }

    fn entry_mut(&mut self, index: u32) -> Option<&mut Entry<V>> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// The entry of a key.
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<Slot> {
        let is_it = |&index: &u32| self.entry(index).is_some_and(|entry| *entry.key == *key);
        self.table.find(hash, is_it).copied().map(Slot)
    }

    /// Adds an entry as the newest; `None`: there is no room for it. The key must not be there yet.
    pub fn insert(&mut self, hash: u64, key: &[u8], value: V) -> Option<Slot> {
        let cost = self.cost(key);
        if self.used + cost > self.budget {
            return None;
        }
        self.used += cost;
        let entry = Entry { hash, key: key.into(), value, newer: NONE, older: NONE };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = Some(entry);
                index
            }
            None => {
                self.entries.push(Some(entry));
                // The budget is far below 2^32 entries of at least 64 bytes.
                (self.entries.len() - 1) as u32
            }
        };
        let entries = &self.entries;
        let hash_of = |&index: &u32| entries[index as usize].as_ref().map_or(0, |e| e.hash);
        self.table.insert_unique(hash, index, hash_of);
        self.link(index);
        Some(Slot(index))
    }

    /// Takes an entry out.
    pub fn remove(&mut self, slot: Slot) -> Option<V> {
        self.entry(slot.0)?;
        self.unlink(slot.0);
        let entry = self.entries[slot.0 as usize].take()?;
        if let Ok(found) = self.table.find_entry(entry.hash, |index| *index == slot.0) {
            found.remove();
        }
        self.used -= self.cost(&entry.key);
        self.free.push(slot.0);
        Some(entry.value)
    }

    /// The value of an entry.
    pub fn value(&mut self, slot: Slot) -> Option<&mut V> {
        self.entry_mut(slot.0).map(|entry| &mut entry.value)
    }

    /// Makes an entry the newest.
    pub fn touch(&mut self, slot: Slot) {
        if self.newest != slot.0 {
            self.unlink(slot.0);
            self.link(slot.0);
        }
    }

    /// The entry that was not used for longest.
    pub fn oldest(&self) -> Option<Slot> {
        (self.oldest != NONE).then_some(Slot(self.oldest))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    fn link(&mut self, index: u32) {
        let before = std::mem::replace(&mut self.newest, index);
        if let Some(entry) = self.entry_mut(index) {
            (entry.newer, entry.older) = (NONE, before);
        }
        match self.entry_mut(before) {
            Some(entry) => entry.newer = index,
            None => self.oldest = index,
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some((newer, older)) = self.entry(index).map(|entry| (entry.newer, entry.older)) else {
            return;
        };
        match self.entry_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entry_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(table: &Keyed<u32>, key: &str, value: u32) -> Option<Slot> {
        let (mut shard, hash) = table.lock(key.as_bytes());
        shard.insert(hash, key.as_bytes(), value)
    }

    #[test]
    fn entries_are_found_by_key_until_they_are_removed() {
        let table = Keyed::new(32 << 10, 80);
        let slot = insert(&table, "a", 1).unwrap();
        insert(&table, "b", 2).unwrap();
        let (mut shard, hash) = table.lock(b"a");
        assert_eq!(shard.find(hash, b"a"), Some(slot));
        assert_eq!(shard.value(slot), Some(&mut 1));
        assert_eq!((shard.remove(slot), shard.remove(slot)), (Some(1), None));
        assert_eq!((shard.find(hash, b"a"), shard.len()), (None, 1));
    }

    #[test]
    fn the_oldest_is_the_one_that_was_touched_longest_ago() {
        let table = Keyed::new(32 << 10, 80);
        let slots = ["a", "b", "c"].map(|key| insert(&table, key, 0).unwrap());
        let (mut shard, _) = table.lock(b"a");
        shard.touch(slots[0]);
        shard.touch(slots[0]);
        let mut order = Vec::new();
        while let Some(slot) = shard.oldest() {
            order.push(slot);
            shard.remove(slot);
        }
        assert_eq!(order, [slots[1], slots[2], slots[0]]);
        assert!(shard.is_empty());
    }

    #[test]
    fn the_budget_holds_and_freed_room_is_used_again() {
        let table = Keyed::new(32 << 10, 80);
        let names: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let held = names.iter().filter(|name| insert(&table, name, 0).is_some()).count();
        // (32 KiB - 8 KiB) / 128.
        assert_eq!(held, 192);
        let (mut shard, _) = table.lock(b"");
        let oldest = shard.oldest().unwrap();
        shard.remove(oldest);
        drop(shard);
        assert!(insert(&table, "x", 0).is_some());
        assert!(insert(&table, "y", 0).is_none());
        let (shard, _) = table.lock(b"");
        assert_eq!(shard.entries.len(), 192);
    }

    #[test]
    fn large_zones_have_several_locks() {
        let table = Keyed::new(10 << 20, 80);
        assert_eq!(table.shards.len(), 10);
        for n in 0..1000 {
            insert(&table, &n.to_string(), n).unwrap();
        }
        assert!(table.shards.iter().all(|shard| !shard.lock().unwrap().is_empty()));
    }
}
