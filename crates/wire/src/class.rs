//! Character classes as tables, built at compile time. Hot path: one load a byte.
//!
//! *Invariant:* classes of bytes only; what a byte means in its place is the parser's.

/// Bytes that nginx's URI parser passes without a look (`usual` in ngx_http_parse.c):
/// everything from `!` on, without `#`, `%`, `+`, `.`, `/`, `?` and DEL.
pub(crate) static USUAL: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0x21;
    while byte < 256 {
        table[byte] = !matches!(byte as u8, b'#' | b'%' | b'+' | b'.' | b'/' | b'?' | 0x7f);
        byte += 1;
    }
    table
};

/// What a byte is in a header name (`lowcase` and the tests after it in ngx_http_parse.c).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameByte {
    /// A letter, a digit or `-`.
    Plain,
    /// `_`, which `underscores_in_headers` decides on.
    Underscore,
    /// The end of the name.
    Colon,
    /// Controls, space and DEL, CR and LF among them: never in a name (RFC 9112 §5.1).
    Refused,
    /// Anything else: the name is invalid, `ignore_invalid_headers` decides.
    Odd,
}

/// [`NameByte`] of each byte.
pub(crate) static NAME: [NameByte; 256] = {
    let mut table = [NameByte::Odd; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => NameByte::Plain,
            b'_' => NameByte::Underscore,
            b':' => NameByte::Colon,
            0..=0x20 | 0x7f => NameByte::Refused,
            _ => NameByte::Odd,
        };
        byte += 1;
    }
    table
};

/// `tchar` of RFC 9110 §5.6.2.
pub(crate) static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        let ch = byte as u8;
        table[byte] = ch.is_ascii_alphanumeric()
            || matches!(
                ch,
                b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_'
            )
            || matches!(ch, b'`' | b'|' | b'~');
        byte += 1;
    }
    table
};

/// How many bytes at the start of `bytes` are [`USUAL`].
#[inline]
pub(crate) fn usual_run(bytes: &[u8]) -> usize {
    bytes.iter().position(|&ch| !USUAL[ch as usize]).unwrap_or(bytes.len())
}

/// How many bytes at the start of `bytes` are [`NameByte::Plain`].
#[inline]
pub(crate) fn plain_run(bytes: &[u8]) -> usize {
    let plain = |&ch: &u8| NAME[ch as usize] == NameByte::Plain;
    bytes.iter().position(|ch| !plain(ch)).unwrap_or(bytes.len())
}

/// The value of a hexadecimal digit.
#[inline]
pub(crate) fn hex_value(ch: u8) -> Option<u8> {
    match ch {
        b'0'..=b'9' => Some(ch - b'0'),
        b'a'..=b'f' => Some(ch - b'a' + 10),
        b'A'..=b'F' => Some(ch - b'A' + 10),
        _ => None,
    }
}

/// Upper-case hexadecimal digits.
pub(crate) static HEX: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_is_the_table_of_ngx_http_parse() {
        // The words of `usual[]` in ngx_http_parse.c.
        let words = [0u32, 0x7fff_37d6, 0xffff_ffff, 0x7fff_ffff, !0, !0, !0, !0];
        for (byte, &usual) in USUAL.iter().enumerate() {
            assert_eq!(usual, words[byte >> 5] & (1 << (byte & 0x1f)) != 0, "byte {byte:#x}");
        }
    }
}
