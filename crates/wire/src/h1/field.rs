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
        let (expected, id): (&[u8], FieldId) = match (name.len(), first | 0x20) {
            (2, b't') => (b"te", FieldId::TE),
            (3, b'v') => (b"via", FieldId::Via),
            (4, b'h') => (b"host", FieldId::Host),
            (4, b'd') => (b"date", FieldId::Date),
            (5, b'r') => (b"range", FieldId::Range),
            (5, b'd') => (b"depth", FieldId::Depth),
            (6, b'c') => (b"cookie", FieldId::Cookie),
            (6, b'a') => (b"accept", FieldId::Accept),
            (6, b'e') => (b"expect", FieldId::Expect),
            (7, b'r') => (b"referer", FieldId::Referer),
            (7, b'u') => (b"upgrade", FieldId::Upgrade),
            (8, b'i') if name[3] | 0x20 == b'm' => (b"if-match", FieldId::IfMatch),
            (8, b'i') => (b"if-range", FieldId::IfRange),
            (8, b'p') => (b"priority", FieldId::Priority),
            (9, b'x') => (b"x-real-ip", FieldId::XRealIp),
            (9, b'o') => (b"overwrite", FieldId::Overwrite),
            (10, b'u') => (b"user-agent", FieldId::UserAgent),
            (10, b'c') => (b"connection", FieldId::Connection),
            (10, b'k') => (b"keep-alive", FieldId::KeepAlive),
            (11, b'd') => (b"destination", FieldId::Destination),
            (12, b'c') => (b"content-type", FieldId::ContentType),
            (13, b'i') => (b"if-none-match", FieldId::IfNoneMatch),
            (13, b'c') => (b"content-range", FieldId::ContentRange),
            (13, b'a') => (b"authorization", FieldId::Authorization),
            (14, b'c') => (b"content-length", FieldId::ContentLength),
            (15, b'a') if name[7] | 0x20 == b'e' => (b"accept-encoding", FieldId::AcceptEncoding),
            (15, b'a') => (b"accept-language", FieldId::AcceptLanguage),
            (15, b'x') => (b"x-forwarded-for", FieldId::XForwardedFor),
            (17, b'i') => (b"if-modified-since", FieldId::IfModifiedSince),
            (17, b't') => (b"transfer-encoding", FieldId::TransferEncoding),
            (19, b'i') => (b"if-unmodified-since", FieldId::IfUnmodifiedSince),
            _ => return FieldId::Other,
        };
        if name.eq_ignore_ascii_case(expected) { id } else { FieldId::Other }
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
