//! Compresses field sections (RFC 7541 §6).
//!
//! What the next response will have again (server, date, types, what the configuration adds) goes into
//! the table, Huffman-coded; what changes with each response is written as it is, which is cheaper
//! than to code it.
//!
//! Hot path: no `format!`; no allocation once the table is warm.

use super::{TABLE_BYTES, huffman, static_table, table::Table};

/// How large our half of the table gets: enough for the fields that come again, and few enough to look
/// through for each.
const OWN_TABLE_BYTES: usize = 1024;
/// A field larger than that would push out all others.
const MAX_INDEXED: usize = 512;

/// What becomes of a field after it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// It comes again: the peer keeps it.
    Kept,
    /// It is another one each time.
    Once,
    /// It is a secret that nobody on the way may keep (§7.1.3).
    Never,
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// What the peer must be told before the next field: the smallest maximum since the last one.
    told_min: Option<usize>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        // The peer keeps 4096 until it is told otherwise.
        Encoder { table: Table::new(OWN_TABLE_BYTES), told_min: Some(OWN_TABLE_BYTES) }
    }
}

impl Encoder {
    /// The peer's SETTINGS_HEADER_TABLE_SIZE.
    pub fn peer_table_size(&mut self, size: u32) {
        let max = (size as usize).min(OWN_TABLE_BYTES);
        if max != self.table.max() {
            self.table.resize(max);
            self.told_min = Some(self.told_min.map_or(max, |min| min.min(max)));
        }
    }

    /// Begins a block.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        let Some(min) = self.told_min.take() else { return };
        if min < self.table.max() {
            integer(out, 0x20, 5, min);
        }
        integer(out, 0x20, 5, self.table.max());
    }

    /// Writes `:status`.
    pub fn status(&mut self, status: u16, out: &mut Vec<u8>) {
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let digits = [status / 100 % 10, status / 10 % 10, status % 10];
                out.extend_from_slice(&[0x08, 3]);
                out.extend(digits.map(|digit| b'0' + digit as u8));
                return;
            }
        };
        out.push(0x80 | index);
    }

    /// Writes a field. The name is in lower case; both are valid (RFC 9113 §8.2.1).
    pub fn field(&mut self, name: &[u8], value: &[u8], indexing: Indexing, out: &mut Vec<u8>) {
        let known = static_table::index_of(name);
        let fits = name.len() + value.len() <= MAX_INDEXED.min(self.table.max());
        if indexing != Indexing::Kept || !fits {
            let first = if indexing == Indexing::Never { 0x10 } else { 0 };
            literal(out, first, 4, usize::from(known), name);
            integer(out, 0, 7, value.len());
            out.extend_from_slice(value);
            return;
        }
        let found = self.table.find(name, value);
        if let Some((index, true)) = found {
            integer(out, 0x80, 7, 1 + static_table::FIELDS.len() + index);
            return;
        }
        literal(out, 0x40, 6, usize::from(known), name);
        string(out, value);
        self.table.add(name, value);
    }

    /// Bytes of memory that it holds on to.
    pub fn footprint(&self) -> usize {
        self.table.footprint()
    }
}

/// The first byte of a literal, and its name where that is not an index.
pub(super) fn literal(out: &mut Vec<u8>, first: u8, prefix: u32, index: usize, name: &[u8]) {
    integer(out, first, prefix, index);
    if index == 0 {
        string(out, name);
    }
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    let len = huffman::encoded_len(text);
    if len < text.len() {
        integer(out, 0x80, 7, len);
        huffman::encode(text, out);
    } else {
        integer(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
}

/// An integer behind a prefix of so many bits (§5.1).
pub(super) fn integer(out: &mut Vec<u8>, first: u8, prefix: u32, value: usize) {
    let mask = (1usize << prefix) - 1;
    if value < mask {
        out.push(first | value as u8);
        return;
    }
    out.push(first | mask as u8);
    let mut left = value - mask;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

const _: () = assert!(OWN_TABLE_BYTES <= TABLE_BYTES);
