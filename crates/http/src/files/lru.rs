//! A table by path that knows which entry was asked for longest ago.
//!
//! Hot path: looking up takes no memory from the heap.

use std::collections::HashMap;

const NONE: u32 = u32::MAX;

struct Node<V> {
    key: Box<[u8]>,
    value: V,
    newer: u32,
    older: u32,
}

/// A table in order of use.
pub struct Lru<V> {
    by_key: HashMap<Box<[u8]>, u32>,
    nodes: Vec<Option<Node<V>>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl<V> Default for Lru<V> {
    fn default() -> Self {
        Lru {
            by_key: HashMap::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }
}

impl<V> Lru<V> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// An entry, without counting as a use.
    pub fn peek(&mut self, key: &[u8]) -> Option<&mut V> {
        let index = *self.by_key.get(key)?;
        Some(&mut self.node(index).value)
    }

    /// An entry, which becomes the newest.
    pub fn touch(&mut self, key: &[u8]) -> Option<&mut V> {
        let index = *self.by_key.get(key)?;
        if self.newest != index {
            self.unlink(index);
            self.link(index);
        }
        Some(&mut self.node(index).value)
    }

    /// Adds or replaces an entry, which becomes the newest; the value that it replaces comes back.
    pub fn insert(&mut self, key: &[u8], value: V) -> Option<V> {
        if let Some(known) = self.touch(key) {
            return Some(std::mem::replace(known, value));
        }
        let node = Node { key: key.into(), value, newer: NONE, older: NONE };
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = Some(node);
                index
            }
            None => {
                self.nodes.push(Some(node));
                (self.nodes.len() - 1) as u32
            }
        };
        self.by_key.insert(key.into(), index);
        self.link(index);
        None
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        let index = self.by_key.remove(key)?;
        self.unlink(index);
        self.free.push(index);
        self.nodes[index as usize].take().map(|node| node.value)
    }

    /// The entry that was used longest ago.
    pub fn oldest(&self) -> Option<&V> {
        self.nodes.get(self.oldest as usize)?.as_ref().map(|node| &node.value)
    }

    /// Removes the entry that was used longest ago.
    pub fn pop_oldest(&mut self) -> Option<(Box<[u8]>, V)> {
        let index = self.oldest;
        if index == NONE {
            return None;
        }
        self.unlink(index);
        self.free.push(index);
        let node = self.nodes[index as usize].take()?;
        self.by_key.remove(&node.key);
        Some((node.key, node.value))
    }

    fn node(&mut self, index: u32) -> &mut Node<V> {
        self.nodes[index as usize].as_mut().expect("links lead to entries only")
    }

    fn unlink(&mut self, index: u32) {
        let Node { newer, older, .. } = *self.node(index);
        match newer {
            NONE => self.newest = older,
            newer => self.node(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.node(older).newer = newer,
        }
    }

    fn link(&mut self, index: u32) {
        let before = self.newest;
        let node = self.node(index);
        node.newer = NONE;
        node.older = before;
        match before {
            NONE => self.oldest = index,
            before => self.node(before).newer = index,
        }
        self.newest = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_used_longest_ago_goes_first() {
        let mut lru = Lru::default();
        for (key, value) in [(b"a", 1), (b"b", 2), (b"c", 3)] {
            assert_eq!(lru.insert(key, value), None);
        }
        assert_eq!(lru.touch(b"a"), Some(&mut 1));
        assert_eq!(lru.peek(b"b"), Some(&mut 2));
        assert_eq!(lru.pop_oldest(), Some(((*b"b").into(), 2)));
        assert_eq!(lru.insert(b"c", 4), Some(3));
        assert_eq!(lru.oldest(), Some(&1));
        assert_eq!(lru.remove(b"a"), Some(1));
        assert_eq!(lru.insert(b"d", 5), None);
        assert_eq!(lru.len(), 2);
        assert_eq!(lru.pop_oldest().map(|(_, value)| value), Some(4));
        assert_eq!(lru.pop_oldest().map(|(_, value)| value), Some(5));
        assert_eq!((lru.pop_oldest(), lru.len()), (None, 0));
    }

    #[test]
    fn places_are_used_again() {
        let mut lru = Lru::default();
        for n in 0..100_u32 {
            lru.insert(&n.to_be_bytes(), n);
            if lru.len() > 3 {
                assert_eq!(lru.pop_oldest().map(|(_, value)| value), Some(n - 3));
            }
        }
        assert!(lru.nodes.len() <= 4);
    }
}
