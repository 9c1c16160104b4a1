//! User name and password as `Authorization: Basic` carries them (RFC 7617).
//!
//! Answers nginx's `ngx_http_auth_basic_user` and `ngx_decode_base64`.

/// A user name and a password.
#[derive(Debug, PartialEq, Eq)]
pub struct Credentials {
    text: Vec<u8>,
    colon: usize,
}

impl Credentials {
    /// The user name: at least one byte.
    pub fn user(&self) -> &[u8] {
        &self.text[..self.colon]
    }

    /// The password.
    pub fn password(&self) -> &[u8] {
        &self.text[self.colon + 1..]
    }
}

/// What the field says; `None` where it is absent, of another scheme, or broken.
pub fn basic(field: Option<&[u8]>) -> Option<Credentials> {
    let (scheme, encoded) = field?.split_at_checked(b"Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let text = decode_base64(encoded.trim_ascii_start())?;
    let colon = memchr::memchr(b':', &text).filter(|at| *at > 0)?;
    Some(Credentials { text, colon })
}

/// Decodes up to the first `=` (`ngx_decode_base64`); `None` where another byte than those of the
/// alphabet stands before it, or one is left over.
fn decode_base64(encoded: &[u8]) -> Option<Vec<u8>> {
    let end = memchr::memchr(b'=', encoded).unwrap_or(encoded.len());
    let encoded = &encoded[..end];
    if encoded.is_empty() || encoded.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(encoded.len() * 3 / 4);
    for group in encoded.chunks(4) {
        let mut bits = 0;
        for symbol in group {
            bits = bits << 6 | u32::from(sextet(*symbol)?);
        }
        bits <<= 6 * (4 - group.len()) + 8;
        out.extend_from_slice(&bits.to_be_bytes()[..group.len() - 1]);
    }
    Some(out)
}

fn sextet(symbol: u8) -> Option<u8> {
    Some(match symbol {
        b'A'..=b'Z' => symbol - b'A',
        b'a'..=b'z' => symbol - b'a' + 26,
        b'0'..=b'9' => symbol - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(field: &str) -> Option<(String, String)> {
        let found = basic(Some(field.as_bytes()))?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Some((text(found.user()), text(found.password())))
    }

    #[test]
    fn user_and_password_are_split_at_the_first_colon() {
        let cases = [
            ("Basic YTpi", "a", "b"),
            ("basic   YTpi", "a", "b"),
            ("Basic YTo=", "a", ""),
            ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "Aladdin", "open sesame"),
            ("Basic dTpwOnE=", "u", "p:q"),
        ];
        for (field, user, password) in cases {
            assert_eq!(read(field), Some((user.to_owned(), password.to_owned())), "{field}");
        }
    }

    #[test]
    fn what_is_broken_has_no_user() {
        for field in [
            "",
            "Basic",
            "Basic ",
            "Basic =",
            "Bearer YTpi",
            "Basic Y",
            "Basic YTpi!",
            "Basic YWI=",
            "Basic OmI=",
            "Basic YT pi",
            "Basic \u{e9}",
        ] {
            assert_eq!(read(field), None, "{field}");
        }
        assert_eq!(basic(None), None);
    }
}
