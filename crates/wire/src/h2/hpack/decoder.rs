//! Decompresses field sections (RFC 7541 §6).
//!
//! Hot path: an indexed field is a look into a table.
//!
//! *Invariant:* work and memory are bounded by the length of the block: an indexed field is given out
//! as a slice of the table, and whoever takes it decides how many it wants.

use super::{TABLE_BYTES, huffman, static_table::FIELDS, table::Table};

/// A block that cannot be decompressed: the tables of both sides differ from now on, so the connection
/// ends with COMPRESSION_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// A field as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Whether the name is one of the static table: it needs no check.
    pub known_name: bool,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// How large the peer may make the table: our SETTINGS_HEADER_TABLE_SIZE.
    limit: usize,
    scratch: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new(TABLE_BYTES)
    }
}

/// What has been kept of a literal's name.
enum Name {
    Static(&'static [u8]),
    /// In the scratch, up to there.
    Scratch(usize),
}

impl Decoder {
    /// A decoder whose table the peer may make that large.
    pub fn new(limit: usize) -> Decoder {
        Decoder { table: Table::new(limit.min(TABLE_BYTES)), limit, scratch: Vec::new() }
    }

    /// Decompresses a whole block; each field is given out in order.
    pub fn decode(&mut self, block: &[u8], mut each: impl FnMut(Field<'_>)) -> Result<(), Invalid> {
        let mut rest = block;
        let mut begun = false;
        while let Some(&first) = rest.first() {
            if first & 0x80 != 0 {
                let index = integer(&mut rest, 7)?;
                let (name, value) = self.indexed(index)?;
                each(Field { name, value, known_name: index <= FIELDS.len() });
                begun = true;
            } else if first & 0x60 == 0x20 {
                // RFC 7541 §4.2: only at the beginning of a block.
                let size = integer(&mut rest, 5)?;
                if begun || size > self.limit {
                    return Err(Invalid);
                }
                self.table.resize(size);
            } else {
                let indexing = first & 0x40 != 0;
                self.literal(&mut rest, indexing, &mut each)?;
                begun = true;
            }
        }
        Ok(())
    }

    fn indexed(&self, index: usize) -> Result<(&[u8], &[u8]), Invalid> {
        match index.checked_sub(1).ok_or(Invalid)? {
            at if at < FIELDS.len() => Ok(FIELDS[at]),
            at => self.table.get(at - FIELDS.len()).ok_or(Invalid),
        }
    }

    fn literal(
        &mut self,
        rest: &mut &[u8],
        indexing: bool,
        each: &mut impl FnMut(Field<'_>),
    ) -> Result<(), Invalid> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let index = integer(rest, if indexing { 6 } else { 4 })?;
        let name = match index {
            0 => {
                string(rest, &mut scratch)?;
                Name::Scratch(scratch.len())
            }
            index if index <= FIELDS.len() => Name::Static(FIELDS[index - 1].0),
            index => {
                // Adding the field may evict the entry that its name is taken from (§4.4).
                scratch.extend_from_slice(self.indexed(index)?.0);
                Name::Scratch(scratch.len())
            }
        };
        let start = scratch.len();
        string(rest, &mut scratch)?;
        let value = &scratch[start..];
        let (name, known_name) = match name {
            Name::Static(name) => (name, true),
            Name::Scratch(end) => (&scratch[..end], false),
        };
        each(Field { name, value, known_name });
        if indexing {
            self.table.add(name, value);
        }
        self.scratch = scratch;
        Ok(())
    }

    /// Lets go of memory that only decoding needs.
    pub fn rest(&mut self) {
        self.scratch = Vec::new();
    }

    /// Bytes of memory that it holds on to.
    pub fn footprint(&self) -> usize {
        self.table.footprint() + self.scratch.capacity()
    }
}

/// An integer behind a prefix of so many bits (§5.1). No length or index in use comes near the bound.
fn integer(rest: &mut &[u8], prefix: u32) -> Result<usize, Invalid> {
    let mask = (1u8 << prefix) - 1;
    let (first, mut left) = rest.split_first().ok_or(Invalid)?;
    let mut value = u32::from(first & mask);
    if value == u32::from(mask) {
        let mut shift = 0;
        loop {
            let (&byte, after) = left.split_first().ok_or(Invalid)?;
            left = after;
            // Four times seven bits behind the prefix at the most.
            if shift > 21 {
                return Err(Invalid);
            }
            value += u32::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = left;
    Ok(value as usize)
}

/// Appends a string literal (§5.2).
fn string(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Invalid> {
    let coded = rest.first().ok_or(Invalid)? & 0x80 != 0;
    let len = integer(rest, 7)?;
    let (text, left) = rest.split_at_checked(len).ok_or(Invalid)?;
    *rest = left;
    if !coded {
        out.extend_from_slice(text);
        return Ok(());
    }
    huffman::decode(text, out).map_err(|_| Invalid)
}
