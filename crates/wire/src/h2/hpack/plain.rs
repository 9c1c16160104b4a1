//! Compresses without a table (RFC 7541 §6.1, §6.2.2, §6.2.3): what is written means the same on every
//! connection, so a request is written once, whoever gets it, and a part that never changes when the
//! configuration is loaded.
//!
//! Hot path: appends only.
//!
//! *Invariant:* nothing written here adds to the table of the other side.

use super::{
    encoder::{integer, literal},
    static_table,
};

/// Empties the table of the other side: what is said first on a connection, so that no later
/// SETTINGS_HEADER_TABLE_SIZE can ask for a change (RFC 9113 §4.3.1).
pub fn write_no_table(out: &mut Vec<u8>) {
    out.push(0x20);
}

/// Fields that are one byte.
pub mod known {
    #![allow(missing_docs)]
    pub const METHOD_GET: u8 = 0x82;
    pub const METHOD_POST: u8 = 0x83;
    pub const PATH_ROOT: u8 = 0x84;
    pub const SCHEME_HTTP: u8 = 0x86;
    pub const SCHEME_HTTPS: u8 = 0x87;
}

/// Writes a field; the name is in lower case, and both are valid (RFC 9113 §8.2.1). `secret`: nobody on
/// the way may put it into a table (RFC 7541 §7.1.3).
pub fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8], secret: bool) {
    let first = if secret { 0x10 } else { 0 };
    literal(out, first, 4, usize::from(static_table::index_of(name)), name);
    integer(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::{super::Decoder, *};

    #[test]
    fn what_is_written_is_read_again_and_leaves_no_trace() {
        let long = "v".repeat(300);
        let fields = [
            (":authority", "a.test", false),
            ("authorization", "Basic eDp5", true),
            ("x-own", long.as_str(), false),
            ("cookie", "", true),
        ];
        let mut block = Vec::new();
        write_no_table(&mut block);
        block.extend([known::METHOD_POST, known::SCHEME_HTTPS, known::PATH_ROOT]);
        for (name, value, secret) in fields {
            write_field(&mut block, name.as_bytes(), value.as_bytes(), secret);
        }
        let (mut decoder, mut found) = (Decoder::default(), Vec::new());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.decode(&block, |f| found.push((text(f.name), text(f.value)))).expect("a block");
        let pseudo = [(":method", "POST"), (":scheme", "https"), (":path", "/")];
        let fields = fields.map(|(name, value, _)| (name, value));
        let expected: Vec<_> = pseudo.into_iter().chain(fields).collect();
        let found: Vec<_> = found.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(found, expected);
        assert!(decoder.decode(&[0xbe], |_| {}).is_err(), "nothing is in the table");
        // A secret says that it is one: its first bits are 0001.
        assert_eq!(block[4 + 1 + 1 + 6] & 0xf0, 0x10);
    }
}
