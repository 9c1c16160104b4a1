//! `Accept-Encoding`: ngx_http_gzip_accept_encoding, and a general lookup of quality values
//! (RFC 9110 §12.4.2, §12.5.3) for the codings that nginx's core does not know.

/// Whether nginx would send gzip to a client with this header.
pub fn gzip_ok(header: &[u8]) -> bool {
    // What nearly every browser sends.
    if header.starts_with(b"gzip,") {
        return true;
    }
    let Some(rest) = after_gzip(header) else { return false };
    let mut rest = rest.skip_spaces();
    match rest.split_first() {
        None | Some((b',', _)) => return true,
        Some((b';', tail)) => rest = tail.skip_spaces(),
        _ => return false,
    }
    match rest {
        [] => true,
        [b'q' | b'Q', b'=', quantity @ ..] if !quantity.is_empty() => is_quantity(quantity),
        _ => false,
    }
}

trait Spaces {
    fn skip_spaces(&self) -> &Self;
}

impl Spaces for [u8] {
    /// Without the spaces at its start; tabs stay, as in nginx.
    fn skip_spaces(&self) -> &[u8] {
        let spaces = self.iter().take_while(|&&ch| ch == b' ').count();
        &self[spaces..]
    }
}

/// What follows the first `gzip` that begins a member.
fn after_gzip(header: &[u8]) -> Option<&[u8]> {
    let mut start = 0;
    loop {
        let window = header[start..].windows(4);
        let at = start + window.into_iter().position(|w| w.eq_ignore_ascii_case(b"gzip"))?;
        if at == start || matches!(header[at - 1], b',' | b' ') {
            return Some(&header[at + 4..]);
        }
        start = at + 4;
    }
}

/// A weight above zero: `0.001` to `1.000` (ngx_http_gzip_quantity).
fn is_quantity(text: &[u8]) -> bool {
    let ends = |ch: &u8| matches!(ch, b',' | b' ');
    let text = &text[..text.iter().position(ends).unwrap_or(text.len())];
    let (whole, digits) = match text {
        [whole @ (b'0' | b'1')] => (*whole, &text[1..]),
        [whole @ (b'0' | b'1'), b'.', digits @ ..] => (*whole, digits),
        _ => return false,
    };
    if digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let fraction = digits.iter().any(|&ch| ch != b'0');
    if whole == b'1' { !fraction } else { fraction }
}

/// The quality in thousandths that an `Accept-Encoding` gives to `coding`: its own, else that of
/// `*`, else 0. A member that is malformed does not count.
///
/// DIFFERS(coding-star): the modules that there are for nginx do not look at `*`.
pub fn quality(header: &[u8], coding: &[u8]) -> u16 {
    let mut star = 0;
    for member in header.split(|&ch| ch == b',') {
        let mut parts = member.split(|&ch| ch == b';');
        let name = parts.next().unwrap_or_default().trim_ascii();
        let found = name.eq_ignore_ascii_case(coding);
        if !found && name != b"*" {
            continue;
        }
        let Some(weight) = weight(parts) else { continue };
        if found {
            return weight;
        }
        star = weight;
    }
    star
}

/// The `q` of a member's parameters, 1000 if there is none.
fn weight<'a>(parameters: impl Iterator<Item = &'a [u8]>) -> Option<u16> {
    for parameter in parameters {
        if let [b'q' | b'Q', b'=', value @ ..] = parameter.trim_ascii() {
            return thousandths(value);
        }
    }
    Some(1000)
}

fn thousandths(value: &[u8]) -> Option<u16> {
    let (whole, digits) = match value {
        [whole @ (b'0' | b'1')] => (*whole, &value[1..]),
        [whole @ (b'0' | b'1'), b'.', digits @ ..] if digits.len() <= 3 => (*whole, digits),
        _ => return None,
    };
    let mut number = u16::from(whole - b'0');
    for place in 0..3 {
        let ch = digits.get(place).copied().unwrap_or(b'0');
        if !ch.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u16::from(ch - b'0');
    }
    (number <= 1000).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_accepted_as_nginx_does() {
        for (header, ok) in [
            ("gzip", true),
            ("gzip, deflate", true),
            ("gzip,;q=0", true),
            ("GZIP", true),
            ("deflate, gzip", true),
            ("deflate,gzip;q=1.0", true),
            ("gzip ; q=0.5", true),
            ("gzip;q=0.001", true),
            ("gzip;", true),
            ("gzip;q=0", false),
            ("gzip;q=0.000", false),
            ("gzip;q=0., br", false),
            ("gzip;q=1.001", false),
            ("gzip;q=0.0001", false),
            ("gzip;q=2", false),
            ("gzip;q=", false),
            ("gzip;q", false),
            ("gzip;x=1", false),
            ("gzip;q=0.5;x", false),
            ("xgzip", false),
            ("xgzip, gzip", true),
            ("x-gzip", false),
            ("gzipx", false),
            ("*", false),
            ("", false),
        ] {
            assert_eq!(gzip_ok(header.as_bytes()), ok, "{header}");
        }
    }

    #[test]
    fn quality_is_that_of_the_coding_else_of_the_star() {
        for (header, coding, want) in [
            ("br", "br", 1000),
            ("gzip;q=0.5, br;q=0.25", "br", 250),
            ("gzip, *;q=0.1", "zstd", 100),
            ("*;q=0.5, zstd;q=0", "zstd", 0),
            ("BR;Q=0.123", "br", 123),
            ("br ; q=1.000", "br", 1000),
            ("br;q=1.5", "br", 0),
            ("br;q=0.1234", "br", 0),
            ("brx", "br", 0),
            ("", "br", 0),
        ] {
            assert_eq!(quality(header.as_bytes(), coding.as_bytes()), want, "{header}");
        }
    }
}
