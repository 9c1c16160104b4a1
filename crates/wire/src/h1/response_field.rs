//! The header names of responses that mean something to a proxy (`ngx_http_upstream_headers_in`), as
//! a small id.
//!
//! Hot path: a name is recognised by its length and its first letter, without a hash.
//! *Invariant:* no header's meaning is decided here.

use super::field::is;

/// A known response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum ResponseFieldId {
    Status,
    ContentType,
    ContentLength,
    Date,
    LastModified,
    ETag,
    Server,
    WwwAuthenticate,
    Location,
    Refresh,
    SetCookie,
    ContentDisposition,
    CacheControl,
    Expires,
    AcceptRanges,
    ContentRange,
    Connection,
    KeepAlive,
    Vary,
    Link,
    XAccelExpires,
    XAccelRedirect,
    XAccelLimitRate,
    XAccelBuffering,
    XAccelCharset,
    XPad,
    TransferEncoding,
    ContentEncoding,
    Upgrade,
    Trailer,
    TE,
    ProxyConnection,
    /// A header without an id.
    Other,
}

use ResponseFieldId::*;

impl ResponseFieldId {
    /// The id of a header name, in any case.
    pub fn of(name: &[u8]) -> ResponseFieldId {
        let Some(&first) = name.first() else { return Other };
        match (name.len(), first | 0x20) {
            (2, b't') if is(name, b"te") => TE,
            (4, b'd') if is(name, b"date") => Date,
            (4, b'e') if is(name, b"etag") => ETag,
            (4, b'v') if is(name, b"vary") => Vary,
            (4, b'l') if is(name, b"link") => Link,
            (5, b'x') if is(name, b"x-pad") => XPad,
            (6, b's') if is(name, b"server") => Server,
            (6, b's') if is(name, b"status") => Status,
            (7, b'e') if is(name, b"expires") => Expires,
            (7, b'r') if is(name, b"refresh") => Refresh,
            (7, b'u') if is(name, b"upgrade") => Upgrade,
            (7, b't') if is(name, b"trailer") => Trailer,
            (8, b'l') if is(name, b"location") => Location,
            (10, b'c') if is(name, b"connection") => Connection,
            (10, b'k') if is(name, b"keep-alive") => KeepAlive,
            (10, b's') if is(name, b"set-cookie") => SetCookie,
            (12, b'c') if is(name, b"content-type") => ContentType,
            (13, b'c') if is(name, b"cache-control") => CacheControl,
            (13, b'c') if is(name, b"content-range") => ContentRange,
            (13, b'l') if is(name, b"last-modified") => LastModified,
            (13, b'a') if is(name, b"accept-ranges") => AcceptRanges,
            (14, b'c') if is(name, b"content-length") => ContentLength,
            (15, b'x') if is(name, b"x-accel-expires") => XAccelExpires,
            (15, b'x') if is(name, b"x-accel-charset") => XAccelCharset,
            (16, b'w') if is(name, b"www-authenticate") => WwwAuthenticate,
            (16, b'c') if is(name, b"content-encoding") => ContentEncoding,
            (16, b'x') if is(name, b"x-accel-redirect") => XAccelRedirect,
            (16, b'p') if is(name, b"proxy-connection") => ProxyConnection,
            (17, b't') if is(name, b"transfer-encoding") => TransferEncoding,
            (17, b'x') if is(name, b"x-accel-buffering") => XAccelBuffering,
            (18, b'x') if is(name, b"x-accel-limit-rate") => XAccelLimitRate,
            (19, b'c') if is(name, b"content-disposition") => ContentDisposition,
            _ => Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[(&str, ResponseFieldId)] = &[
        ("Status", Status),
        ("Content-Type", ContentType),
        ("Content-Length", ContentLength),
        ("Date", Date),
        ("Last-Modified", LastModified),
        ("ETag", ETag),
        ("Server", Server),
        ("WWW-Authenticate", WwwAuthenticate),
        ("Location", Location),
        ("Refresh", Refresh),
        ("Set-Cookie", SetCookie),
        ("Content-Disposition", ContentDisposition),
        ("Cache-Control", CacheControl),
        ("Expires", Expires),
        ("Accept-Ranges", AcceptRanges),
        ("Content-Range", ContentRange),
        ("Connection", Connection),
        ("Keep-Alive", KeepAlive),
        ("Vary", Vary),
        ("Link", Link),
        ("X-Accel-Expires", XAccelExpires),
        ("X-Accel-Redirect", XAccelRedirect),
        ("X-Accel-Limit-Rate", XAccelLimitRate),
        ("X-Accel-Buffering", XAccelBuffering),
        ("X-Accel-Charset", XAccelCharset),
        ("X-Pad", XPad),
        ("Transfer-Encoding", TransferEncoding),
        ("Content-Encoding", ContentEncoding),
        ("Upgrade", Upgrade),
        ("Trailer", Trailer),
        ("TE", TE),
        ("Proxy-Connection", ProxyConnection),
        ("X-Anything", Other),
        ("", Other),
    ];

    #[test]
    fn names_are_recognised_in_any_case() {
        for &(name, id) in NAMES {
            assert_eq!(ResponseFieldId::of(name.as_bytes()), id, "{name}");
            assert_eq!(ResponseFieldId::of(name.to_uppercase().as_bytes()), id, "{name}");
            assert_eq!(ResponseFieldId::of(name.to_lowercase().as_bytes()), id, "{name}");
        }
    }
}
