//! The built-in pages: redirects and errors without an `error_page`
//! (`ngx_http_special_response.c`).

use bytes::Bytes;
use forebay_wire::h1::{
    FieldId,
    encode::{write_decimal, write_named},
};

use crate::{
    body::Body,
    core::ServerTokens,
    request::{Peer, Request},
};

macro_rules! version {
    () => {
        "1.31.5"
    };
}

/// Our version of nginx's `NGX_VER`: what clients and scripts know how to read.
pub const NGINX_VERSION: &str = version!();
/// `server_tokens build`: which build of that version this is.
pub const BUILD: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

const PADDING: &[u8] = b"<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n\
<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n\
<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n\
<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n\
<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n\
<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n";

/// The title of the page for a status; `None`: there is no page, the body stays empty.
fn title(status: u16) -> Option<&'static str> {
    Some(match status {
        301 => "301 Moved Permanently",
        302 => "302 Found",
        303 => "303 See Other",
        307 => "307 Temporary Redirect",
        308 => "308 Permanent Redirect",
        400 => "400 Bad Request",
        401 => "401 Authorization Required",
        402 => "402 Payment Required",
        403 => "403 Forbidden",
        404 => "404 Not Found",
        405 => "405 Not Allowed",
        406 => "406 Not Acceptable",
        408 => "408 Request Time-out",
        409 => "409 Conflict",
        410 => "410 Gone",
        411 => "411 Length Required",
        412 => "412 Precondition Failed",
        413 => "413 Request Entity Too Large",
        414 => "414 Request-URI Too Large",
        415 => "415 Unsupported Media Type",
        416 => "416 Requested Range Not Satisfiable",
        421 => "421 Misdirected Request",
        429 => "429 Too Many Requests",
        494 => "400 Request Header Or Cookie Too Large",
        495 => "400 The SSL certificate error",
        496 => "400 No required SSL certificate was sent",
        497 => "400 The plain HTTP request was sent to HTTPS port",
        500 => "500 Internal Server Error",
        501 => "501 Not Implemented",
        502 => "502 Bad Gateway",
        503 => "503 Service Temporarily Unavailable",
        504 => "504 Gateway Time-out",
        505 => "505 HTTP Version Not Supported",
        507 => "507 Insufficient Storage",
        _ => return None,
    })
}

/// The second line of the pages that nginx answers 400 with but tells apart.
fn explanation(status: u16) -> Option<(&'static str, &'static str)> {
    Some(match status {
        494 => ("400 Bad Request", "Request Header Or Cookie Too Large"),
        495 => ("400 Bad Request", "The SSL certificate error"),
        496 => ("400 Bad Request", "No required SSL certificate was sent"),
        497 => ("400 Bad Request", "The plain HTTP request was sent to HTTPS port"),
        _ => return None,
    })
}

/// What `Server:` and the foot of the built-in pages say; empty: neither is written.
pub fn server_name(r: &Request) -> Bytes {
    match &*r.location().core.server_tokens {
        ServerTokens::On => {
            const NAME: &str = concat!("nginx/", version!());
            Bytes::from_static(NAME.as_bytes())
        }
        ServerTokens::Off => Bytes::from_static(b"nginx"),
        ServerTokens::Build => Bytes::from(format!("nginx/{NGINX_VERSION} ({BUILD})")),
        ServerTokens::Text(template) => template.value(r).into(),
    }
}

/// Writes the `Server` field of HTTP/1, if there is to be one.
pub fn write_server(r: &Request, out: &mut Vec<u8>) {
    if let ServerTokens::On = &*r.location().core.server_tokens {
        return out.extend_from_slice(concat!("Server: nginx/", version!(), "\r\n").as_bytes());
    }
    let name = server_name(r);
    if !name.is_empty() {
        write_named(out, b"Server: ", &name);
    }
}

/// Makes `r.response` the built-in answer for a status. Fields that are in its list stay there.
pub fn respond(r: &mut Request, error: u16) {
    let page = page(r, error);
    if matches!(r.error_status, 494..=497) {
        r.error_status = 400;
    }
    let response = &mut r.response;
    response.status = r.error_status;
    response.remove("Last-Modified");
    response.remove("ETag");
    response.forget_accept_ranges();
    match page {
        Some(page) => {
            response.content_type = Some(Bytes::from_static(b"text/html"));
            response.content_length = Some(page.len() as u64);
            response.body = Body::Bytes(page);
        }
        None => {
            response.content_type = None;
            response.content_length = Some(0);
            response.body = Body::Empty;
        }
    }
}

fn page(r: &Request, error: u16) -> Option<Bytes> {
    let title = title(error)?;
    let (title, text) = match explanation(error) {
        Some((heading, text)) => (title, Some((heading, text))),
        None => (title, None),
    };
    let server = server_name(r);
    let mut out = Vec::with_capacity(1024);
    let mut put = |text: &[u8]| out.extend_from_slice(text);
    put(b"<html>\r\n<head><title>");
    put(title.as_bytes());
    put(b"</title></head>\r\n<body>\r\n<center><h1>");
    put(text.map_or(title, |(heading, _)| heading).as_bytes());
    put(b"</h1></center>\r\n");
    if let Some((_, text)) = text {
        put(b"<center>");
        put(text.as_bytes());
        put(b"</center>\r\n");
    }
    put(b"<hr><center>");
    put(&server);
    put(b"</center>\r\n</body>\r\n</html>\r\n");
    let agent = r.field(FieldId::UserAgent).unwrap_or_default();
    if error >= 400 && r.location().core.msie_padding && is_msie_or_chrome(agent) {
        out.extend_from_slice(PADDING);
    }
    Some(out.into())
}

fn is_msie_or_chrome(agent: &[u8]) -> bool {
    let has = |text: &[u8]| memchr::memmem::find(agent, text).is_some();
    is_msie(agent) || (has(b"Chrome/") && !has(b"Gecko/") && !has(b"Opera"))
}

/// MSIE, which takes `Refresh` for redirects where `msie_refresh` says so
/// (`ngx_http_process_user_agent`).
pub fn is_msie(agent: &[u8]) -> bool {
    let at = memchr::memmem::find(agent, b"MSIE ");
    let opera = memchr::memmem::find(agent, b"Opera").is_some();
    at.is_some_and(|at| at + 7 < agent.len()) && !opera
}

/// MSIE 4 to 6 without the service pack that mended it.
pub fn is_msie6(agent: &[u8]) -> bool {
    let Some(at) = memchr::memmem::find(agent, b"MSIE ") else { return false };
    let old = match &agent[at + 5..] {
        [b'4' | b'5', b'.', _, ..] => true,
        [b'6', b'.', _, rest @ ..] => memchr::memmem::find(rest, b"SV1").is_none(),
        _ => false,
    };
    old && is_msie(agent)
}

/// `msie_refresh`: a page that redirects old MSIE, which would otherwise ask with a POST again.
pub fn refresh(r: &mut Request, location: &[u8]) {
    let mut out = b"<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=".to_vec();
    forebay_wire::uri::escape(forebay_wire::uri::Kind::Refresh, location, &mut out);
    out.extend_from_slice(b"\"></head><body></body></html>\r\n");
    r.error_status = 200;
    r.respond(200, Bytes::from_static(b"text/html"), out.into());
    r.response.location = None;
}

/// Whether `msie_refresh` holds for this redirect.
pub fn wants_refresh(r: &Request, status: u16) -> bool {
    r.location().core.msie_refresh
        && matches!(status, 301 | 302)
        && is_msie(r.field(FieldId::UserAgent).unwrap_or_default())
}

/// Whether a `Location` is a path that `absolute_redirect` completes.
pub fn is_relative(r: &Request, location: &[u8]) -> bool {
    location.first() == Some(&b'/') && r.location().core.absolute_redirect
}

/// Writes a `Location` as it is sent: a path is completed with scheme, host and port as
/// `absolute_redirect`, `server_name_in_redirect` and `port_in_redirect` say.
pub fn write_location(r: &Request, location: &[u8], out: &mut Vec<u8>) {
    if is_relative(r, location) {
        let core = &r.location().core;
        let local = &r.connection.local;
        let tls = r.connection.is_tls();
        let (scheme, usual): (&[u8], u16) = if tls { (b"https://", 443) } else { (b"http://", 80) };
        out.extend_from_slice(scheme);
        let named = core.server_name_in_redirect;
        let host: &[u8] = if named { &r.server().name } else { &r.input.host };
        // DIFFERS(redirect-nameless): nginx leaves the host out where a server has no name.
        if host.is_empty() {
            write_host(local, out)
        } else {
            out.extend_from_slice(host)
        }
        let port = local.port();
        if core.port_in_redirect && port != 0 && port != usual {
            out.push(b':');
            write_decimal(out, port.into());
        }
    }
    out.extend_from_slice(location);
}

/// An address as it stands in a URL.
fn write_host(peer: &Peer, out: &mut Vec<u8>) {
    let text = match peer {
        Peer::Inet(addr) if addr.is_ipv6() => format!("[{}]", addr.ip()),
        other => other.to_string(),
    };
    out.extend_from_slice(text.as_bytes());
}
