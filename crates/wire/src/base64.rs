//! Base64 as nginx reads and writes it (`ngx_decode_base64`, `ngx_decode_base64url`,
//! `ngx_encode_base64`). Private keys are not read here: `tls` leaves them to `rustls-pki-types`, which
//! takes the same time for all of them.
//!
//! Invariant: reads any bytes.

/// Which symbols stand for 62 and 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// `+` and `/`.
    Standard,
    /// `-` and `_`.
    Url,
}

/// Decodes up to the first `=`; `None` where another byte than those of the alphabet stands before
/// it, or one is left over.
pub fn decode(encoded: &[u8], alphabet: Alphabet) -> Option<Vec<u8>> {
    let end = memchr::memchr(b'=', encoded).unwrap_or(encoded.len());
    let encoded = &encoded[..end];
    if encoded.is_empty() || encoded.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(encoded.len() * 3 / 4);
    for group in encoded.chunks(4) {
        let mut bits = 0;
        for symbol in group {
            bits = bits << 6 | u32::from(sextet(*symbol, alphabet)?);
        }
        bits <<= 6 * (4 - group.len()) + 8;
        out.extend_from_slice(&bits.to_be_bytes()[..group.len() - 1]);
    }
    Some(out)
}

fn sextet(symbol: u8, alphabet: Alphabet) -> Option<u8> {
    Some(match (symbol, alphabet) {
        (b'A'..=b'Z', _) => symbol - b'A',
        (b'a'..=b'z', _) => symbol - b'a' + 26,
        (b'0'..=b'9', _) => symbol - b'0' + 52,
        (b'+', Alphabet::Standard) | (b'-', Alphabet::Url) => 62,
        (b'/', Alphabet::Standard) | (b'_', Alphabet::Url) => 63,
        _ => return None,
    })
}

/// Encodes with the standard alphabet and padding, at the end of `out`.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    const SYMBOLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let symbol = SYMBOLS[(bits >> (18 - 6 * index)) as usize & 63];
            out.push(if index <= group.len() { symbol } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (text, want) in cases {
            let mut out = Vec::new();
            encode(text.as_bytes(), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), want);
            let decoded = decode(want.as_bytes(), Alphabet::Standard).unwrap_or_default();
            assert_eq!(String::from_utf8_lossy(&decoded), text);
        }
    }

    #[test]
    fn hostile_text_is_refused() {
        let cases: [(&str, Alphabet, Option<&[u8]>); 9] = [
            ("", Alphabet::Standard, None),
            ("=", Alphabet::Standard, None),
            ("A", Alphabet::Standard, None),
            ("AAAAA", Alphabet::Standard, None),
            ("AA AA", Alphabet::Standard, None),
            ("-_-_", Alphabet::Standard, None),
            ("+/+/", Alphabet::Url, None),
            ("-_-_", Alphabet::Url, Some(b"\xfb\xff\xbf")),
            ("AAAA\u{e9}", Alphabet::Url, None),
        ];
        for (text, alphabet, want) in cases {
            assert_eq!(decode(text.as_bytes(), alphabet).as_deref(), want, "{text}");
        }
    }
}
