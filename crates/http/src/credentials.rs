//! User name and password as `Authorization: Basic` carries them (RFC 7617).
//!
//! Answers nginx's `ngx_http_auth_basic_user`.

use forebay_wire::base64::{self, Alphabet};

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
    let text = base64::decode(encoded.trim_ascii_start(), Alphabet::Standard)?;
    let colon = memchr::memchr(b':', &text).filter(|at| *at > 0)?;
    Some(Credentials { text, colon })
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
