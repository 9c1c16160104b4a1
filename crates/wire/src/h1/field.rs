//! The header names that mean something to the server (`ngx_http_headers_in`), as a small id.
//!
//! Hot path: a name is recognised by its length and its first letters, without a hash.
//! *Invariant:* no header's meaning is decided here; that is `h1::framing` and the callers.

/// A known request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum FieldId {
    Host,
    Connection,
    IfModifiedSince,
    IfUnmodifiedSince,
    IfMatch,
    IfNoneMatch,
    UserAgent,
    Referer,
    ContentLength,
    ContentType,
    ContentRange,
    Range,
    IfRange,
    TransferEncoding,
    TE,
    Expect,
    Upgrade,
    AcceptEncoding,
    Via,
    Authorization,
    KeepAlive,
    XForwardedFor,
    XRealIp,
    Accept,
    AcceptLanguage,
    Depth,
    Destination,
    Overwrite,
    Date,
    Cookie,
    Priority,
    /// A header without an id.
    Other,
}

impl FieldId {
    /// The id of a header name, in any case.
    pub fn of(name: &[u8]) -> FieldId {
        let Some(&first) = name.first() else { return FieldId::Other };
        // Each arm compares arrays of a length known at compile time, a few instructions each.
        match (name.len(), first | 0x20) {
            (2, b't') if is(name, b"te") => FieldId::TE,
            (3, b'v') if is(name, b"via") => FieldId::Via,
            (4, b'h') if is(name, b"host") => FieldId::Host,
            (4, b'd') if is(name, b"date") => FieldId::Date,
            (5, b'r') if is(name, b"range") => FieldId::Range,
            (5, b'd') if is(name, b"depth") => FieldId::Depth,
            (6, b'c') if is(name, b"cookie") => FieldId::Cookie,
            (6, b'a') if is(name, b"accept") => FieldId::Accept,
            (6, b'e') if is(name, b"expect") => FieldId::Expect,
            (7, b'r') if is(name, b"referer") => FieldId::Referer,
            (7, b'u') if is(name, b"upgrade") => FieldId::Upgrade,
            (8, b'i') if is(name, b"if-match") => FieldId::IfMatch,
            (8, b'i') if is(name, b"if-range") => FieldId::IfRange,
            (8, b'p') if is(name, b"priority") => FieldId::Priority,
            (9, b'x') if is(name, b"x-real-ip") => FieldId::XRealIp,
            (9, b'o') if is(name, b"overwrite") => FieldId::Overwrite,
            (10, b'u') if is(name, b"user-agent") => FieldId::UserAgent,
            (10, b'c') if is(name, b"connection") => FieldId::Connection,
            (10, b'k') if is(name, b"keep-alive") => FieldId::KeepAlive,
            (11, b'd') if is(name, b"destination") => FieldId::Destination,
            (12, b'c') if is(name, b"content-type") => FieldId::ContentType,
            (13, b'i') if is(name, b"if-none-match") => FieldId::IfNoneMatch,
            (13, b'c') if is(name, b"content-range") => FieldId::ContentRange,
            (13, b'a') if is(name, b"authorization") => FieldId::Authorization,
            (14, b'c') if is(name, b"content-length") => FieldId::ContentLength,
            (15, b'a') if is(name, b"accept-encoding") => FieldId::AcceptEncoding,
            (15, b'a') if is(name, b"accept-language") => FieldId::AcceptLanguage,
            (15, b'x') if is(name, b"x-forwarded-for") => FieldId::XForwardedFor,
            (17, b'i') if is(name, b"if-modified-since") => FieldId::IfModifiedSince,
            (17, b't') if is(name, b"transfer-encoding") => FieldId::TransferEncoding,
            (19, b'i') if is(name, b"if-unmodified-since") => FieldId::IfUnmodifiedSince,
            _ => FieldId::Other,
        }
    }

    /// Headers of which a request may carry one line only
    /// (`ngx_http_process_unique_header_line`); a second is answered 400.
    pub fn is_unique(self) -> bool {
        matches!(
            self,
            FieldId::Host
                | FieldId::IfModifiedSince
                | FieldId::IfUnmodifiedSince
                | FieldId::IfMatch
                | FieldId::IfNoneMatch
                | FieldId::ContentLength
                | FieldId::ContentRange
                | FieldId::IfRange
                | FieldId::TransferEncoding
                | FieldId::Expect
                | FieldId::Authorization
        )
    }
}

/// Whether `name` is `expected`, which is in lower case, in any case. Without a branch a byte.
#[inline(always)]
pub(super) fn is<const N: usize>(name: &[u8], expected: &[u8; N]) -> bool {
    let Ok(name) = <&[u8; N]>::try_from(name) else { return false };
    let mut differ = 0;
    for at in 0..N {
        let mask = if expected[at].is_ascii_lowercase() { !0x20 } else { !0 };
        differ |= (name[at] ^ expected[at]) & mask;
    }
    differ == 0
}

#[cfg(test)]
mod tests {
    use super::FieldId::{self, *};

    const NAMES: &[(&str, FieldId)] = &[
        ("Host", Host),
        ("Connection", Connection),
        ("If-Modified-Since", IfModifiedSince),
        ("If-Unmodified-Since", IfUnmodifiedSince),
        ("If-Match", IfMatch),
        ("If-None-Match", IfNoneMatch),
        ("User-Agent", UserAgent),
        ("Referer", Referer),
        ("Content-Length", ContentLength),
        ("Content-Type", ContentType),
        ("Content-Range", ContentRange),
        ("Range", Range),
        ("If-Range", IfRange),
        ("Transfer-Encoding", TransferEncoding),
        ("TE", TE),
        ("Expect", Expect),
        ("Upgrade", Upgrade),
        ("Accept-Encoding", AcceptEncoding),
        ("Via", Via),
        ("Authorization", Authorization),
        ("Keep-Alive", KeepAlive),
        ("X-Forwarded-For", XForwardedFor),
        ("X-Real-IP", XRealIp),
        ("Accept", Accept),
        ("Accept-Language", AcceptLanguage),
        ("Depth", Depth),
        ("Destination", Destination),
        ("Overwrite", Overwrite),
        ("Date", Date),
        ("Cookie", Cookie),
        ("Priority", Priority),
        ("X-Anything", Other),
        ("", Other),
    ];

    #[test]
    fn names_are_recognised_in_any_case() {
        for &(name, id) in NAMES {
            assert_eq!(FieldId::of(name.as_bytes()), id, "{name}");
            assert_eq!(FieldId::of(name.to_uppercase().as_bytes()), id, "{name}");
            assert_eq!(FieldId::of(name.to_lowercase().as_bytes()), id, "{name}");
        }
    }

    #[test]
    fn a_name_that_differs_in_one_byte_is_other() {
        for &(name, id) in NAMES {
            for at in 0..name.len() {
                let mut changed = name.as_bytes().to_vec();
                changed[at] = b'@';
                assert_eq!(FieldId::of(&changed), Other, "{id:?} at {at}");
            }
        }
    }
}
