//! Request methods as ngx_http_parse_request_line recognises them (case-sensitively).

use crate::class::TOKEN;

/// A request method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Mkcol,
    Copy,
    Move,
    Options,
    Propfind,
    Proppatch,
    Lock,
    Unlock,
    Patch,
    Trace,
    Connect,
    /// Any other; its text is in `Head::method_span`. nginx's NGX_HTTP_UNKNOWN.
    #[default]
    Other,
}

/// Whether a text can be a method (RFC 9110 §9.1: a token).
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|ch| TOKEN[usize::from(*ch)])
}

impl Method {
    /// The method with this name.
    pub fn of(name: &[u8]) -> Method {
        match name {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"MKCOL" => Method::Mkcol,
            b"COPY" => Method::Copy,
            b"MOVE" => Method::Move,
            b"OPTIONS" => Method::Options,
            b"PROPFIND" => Method::Propfind,
            b"PROPPATCH" => Method::Proppatch,
            b"LOCK" => Method::Lock,
            b"UNLOCK" => Method::Unlock,
            b"PATCH" => Method::Patch,
            b"TRACE" => Method::Trace,
            b"CONNECT" => Method::Connect,
            _ => Method::Other,
        }
    }
}
