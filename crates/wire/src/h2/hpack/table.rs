//! The table of fields that came by before (RFC 7541 §2.3.2 and §4).
//!
//! Memory is taken as entries come: an idle connection keeps no more than its own fields.
//!
//! *Invariant:* the sizes of all entries, as the RFC counts them, never exceed the maximum.

use std::collections::VecDeque;

/// What an entry counts beside its name and value (RFC 7541 §4.1).
const OVERHEAD: usize = 32;

/// An entry's place in the bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    name_len: u32,
    value_len: u32,
}

impl Entry {
    fn size(self) -> usize {
        self.name_len as usize + self.value_len as usize + OVERHEAD
    }
}

/// Entries, the newest first.
#[derive(Debug, Default)]
pub struct Table {
    bytes: Vec<u8>,
    entries: VecDeque<Entry>,
    size: usize,
    max: usize,
}

impl Table {
    /// An empty table of that maximal size.
    pub fn new(max: usize) -> Table {
        Table { max, ..Table::default() }
    }

    /// How much it may hold.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Changes that; what no longer fits goes.
    pub fn resize(&mut self, max: usize) {
        self.max = max;
        self.evict(0);
    }

    /// Name and value of the entry of that number; 0 is the newest.
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        let start = entry.start as usize;
        let middle = start + entry.name_len as usize;
        Some((&self.bytes[start..middle], &self.bytes[middle..middle + entry.value_len as usize]))
    }

    /// The number of the newest entry that is this field, else of one of that name.
    pub fn find(&self, name: &[u8], value: &[u8]) -> Option<(usize, bool)> {
        let mut named = None;
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.name_len as usize != name.len() {
                continue;
            }
            let start = entry.start as usize;
            let middle = start + name.len();
            if &self.bytes[start..middle] == name {
                if &self.bytes[middle..middle + entry.value_len as usize] == value {
                    return Some((index, true));
                }
                named = named.or(Some((index, false)));
            }
        }
        named
    }

    /// Adds an entry; one that is too large for the table empties it instead (RFC 7541 §4.4).
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        let entry = Entry {
            start: self.bytes.len() as u32,
            name_len: name.len() as u32,
            value_len: value.len() as u32,
        };
        self.evict(entry.size());
        if entry.size() > self.max {
            return;
        }
        self.compact(name.len() + value.len());
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_front(Entry { start, ..entry });
        self.size += entry.size();
    }

    /// Makes room for an entry of that size, as far as the table goes.
    fn evict(&mut self, size: usize) {
        while self.size + size > self.max {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.size -= oldest.size();
        }
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Moves what lives to the front once as much as the table may hold is dead.
    fn compact(&mut self, len: usize) {
        let dead = self.entries.back().map_or(0, |oldest| oldest.start);
        if self.bytes.len() + len <= self.bytes.capacity() || (dead as usize) < self.bytes.len() / 2
        {
            return;
        }
        self.bytes.drain(..dead as usize);
        self.entries.iter_mut().for_each(|entry| entry.start -= dead);
    }

    /// Bytes of memory that it holds on to.
    pub fn footprint(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entries_make_room() {
        let mut table = Table::new(100);
        table.add(b"a", b"1");
        table.add(b"b", b"2");
        assert_eq!(table.get(0), Some((&b"b"[..], &b"2"[..])));
        assert_eq!(table.get(1), Some((&b"a"[..], &b"1"[..])));
        table.add(b"c", b"3");
        assert_eq!(table.get(1), Some((&b"b"[..], &b"2"[..])));
        assert_eq!(table.get(2), None);
        assert_eq!(table.find(b"b", b"2"), Some((1, true)));
        assert_eq!(table.find(b"b", b"3"), Some((1, false)));
        assert_eq!(table.find(b"a", b"1"), None);
        table.add(b"long", &[b'x'; 100]);
        assert_eq!(table.get(0), None);
    }

    #[test]
    fn a_smaller_table_keeps_the_newest() {
        let mut table = Table::new(4096);
        for n in 0..10 {
            table.add(b"name", &[n]);
        }
        table.resize(37 * 2);
        assert_eq!(table.get(1), Some((&b"name"[..], &[8][..])));
        assert_eq!(table.get(2), None);
        table.resize(0);
        assert_eq!(table.get(0), None);
    }

    #[test]
    fn memory_is_bounded_however_long_it_lives() {
        let mut table = Table::new(4096);
        assert_eq!(table.footprint(), 0);
        for n in 0..100_000u32 {
            table.add(b"name", &vec![b'x'; n as usize % 700]);
            if let Some((name, value)) = table.get(0) {
                assert_eq!((name, value.len()), (&b"name"[..], n as usize % 700));
            }
        }
        assert!(table.footprint() <= 5 * 4096, "{}", table.footprint());
    }
}
