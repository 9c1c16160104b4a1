//! HPACK: header compression (RFC 7541).

mod decoder;
mod encoder;
mod huffman;
mod plain;
mod static_table;
mod table;

#[cfg(test)]
mod tests;

pub use decoder::{Decoder, Field, Invalid};
pub use encoder::{Encoder, Indexing};
pub use plain::{known, write_field, write_no_table};

/// The size of the table that both sides begin with, and the largest that is kept here.
pub const TABLE_BYTES: usize = 4096;
