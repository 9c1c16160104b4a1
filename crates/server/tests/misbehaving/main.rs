//! The proxy between clients and back ends that misbehave: judged by what the client sees, what the
//! origin gets and what the log says. Where nginx behaves the same, each claim is held of both.

mod bodies;
mod connect;
mod connections;
mod directives;
mod downloads;
mod duplex;
mod http2;
mod names;
mod requests;
mod responses;
mod transparent;
mod tunnels;
mod waiting;

use std::net::SocketAddr;
use std::time::Duration;

use forebay_testkit::raw::{self, Client, Framing};
use forebay_testkit::{Kind, Server, server, wait_for};

/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(20);
const CRLF2: &[u8] = b"\r\n\r\n";

/// One of the two servers on a configuration: `http` stands before the `server`, `inside` in it. The
/// access log has `$status` and what the upstream module knows.
pub fn start(kind: Kind, http: &str, inside: &str) -> Server {
    run(kind, &conf(http, inside))
}

/// The configuration of such a server.
pub fn conf(http: &str, inside: &str) -> String {
    "worker_processes 1; error_log {prefix}/error.log info; events { }
        http { {temp_paths} keepalive_timeout 60s; proxy_http_version 1.1; proxy_set_header Connection '';
            log_format up '$uri $status [$upstream_addr] [$upstream_status]';
            access_log {prefix}/access.log up;
            %HTTP%
            server { listen 127.0.0.1:{port}; %INSIDE% } }"
        .replace("%HTTP%", http)
        .replace("%INSIDE%", inside)
}

/// Starts one with a configuration.
pub fn run(kind: Kind, conf: &str) -> Server {
    let builder = Server::builder(kind, conf);
    let builder = match kind {
        Kind::Forebay => builder.binary(env!("CARGO_BIN_EXE_forebay")),
        Kind::Nginx => builder,
    };
    builder.start().unwrap_or_else(|e| panic!("{e}"))
}

/// Makes a claim of nginx, to know that the test is right, and of Forebay.
pub fn of_both(claim: impl Fn(Kind)) {
    [Kind::Nginx, Kind::Forebay].into_iter().filter(|kind| is_held(*kind)).for_each(claim);
}

/// Whether there is such a server to make claims of.
pub fn is_held(kind: Kind) -> bool {
    let is_there = match kind {
        Kind::Nginx => server::binary(Kind::Nginx).is_some(),
        Kind::Forebay => true,
    };
    let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(is_there || !in_ci, "{kind} must be installed");
    is_there
}

/// A location that passes everything to an origin.
pub fn pass(origin: SocketAddr, more: &str) -> String {
    format!("location / {{ proxy_pass http://{origin}; {more} }}")
}

/// The request for a path, after which the connection closes.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").into_bytes()
}

/// Sends a request, and says what came until the end of the connection, see [`seen`].
pub fn ask(addr: SocketAddr, request: &[u8]) -> String {
    let mut client = Client::connect(addr).expect("connect");
    // A server that answers early may close before it has everything.
    let _ = client.send(request);
    match client.read_to_end() {
        Ok(bytes) => seen(&bytes, request.starts_with(b"HEAD")),
        Err(e) => format!("failed: {e}"),
    }
}

/// A response in words: `200 body`, `200 cut bo`, `502` (with its built-in page), `nothing`.
pub fn seen(bytes: &[u8], head: bool) -> String {
    if bytes.is_empty() {
        return "nothing".to_owned();
    }
    let Some(at) = bytes.windows(4).position(|window| window == CRLF2) else {
        return format!("no head: {}", bytes.escape_ascii());
    };
    let (text, rest) = bytes.split_at(at + 4);
    let response = match raw::parse_head(text, head) {
        Ok(response) => response,
        Err(why) => return format!("bad head ({why}): {}", text.escape_ascii()),
    };
    let status = response.status;
    if status < 200 && status != 101 {
        return format!("{status}, {}", seen(rest, head));
    }
    let length = response.header("content-length").and_then(|value| {
        std::str::from_utf8(value).ok().and_then(|text| text.parse::<usize>().ok())
    });
    let (body, end) = match (response.framing, length) {
        (Framing::None, _) => (rest.to_vec(), Some(rest.len())),
        (Framing::Length, Some(length)) => (rest.to_vec(), Some(length)),
        (Framing::Chunked, _) => dechunk(rest),
        _ => (rest.to_vec(), None),
    };
    let end_is = |expected: usize| match body.len().cmp(&expected) {
        std::cmp::Ordering::Less => " cut",
        std::cmp::Ordering::Equal => "",
        std::cmp::Ordering::Greater => " too long",
    };
    let note = end.map_or(" until close", end_is);
    match body.starts_with(b"<html>") {
        true => format!("{status}{note}"),
        false => format!("{status}{note} {}", body.escape_ascii()),
    }
}

/// The body of chunks, and its length if the last one came.
fn dechunk(mut bytes: &[u8]) -> (Vec<u8>, Option<usize>) {
    let mut body = Vec::new();
    loop {
        let line_end = bytes.windows(2).position(|window| window == b"\r\n");
        let line = line_end.map(|at| (&bytes[..at], &bytes[at + 2..]));
        let Some((size, rest)) = line else { return (body, Some(usize::MAX)) };
        let size = std::str::from_utf8(size).ok().and_then(|s| usize::from_str_radix(s, 16).ok());
        match size {
            Some(0) if rest.ends_with(b"\r\n") => {
                let len = body.len();
                return (body, Some(len));
            }
            Some(size) if size > 0 && rest.len() >= size + 2 => {
                body.extend_from_slice(&rest[..size]);
                bytes = &rest[size + 2..];
            }
            Some(size) => {
                body.extend_from_slice(&rest[..size.min(rest.len())]);
                return (body, Some(usize::MAX));
            }
            None => return (b"bad chunk".to_vec(), Some(usize::MAX)),
        }
    }
}

/// Waits until the error log holds a text.
pub fn wait_logged(server: &Server, text: &str) {
    assert!(
        wait_for(|| server.error_log().contains(text), LIMIT),
        "{} did not log {text:?}:\n{}",
        server.kind(),
        server.error_log()
    );
}

/// Waits until the access log has a line that ends so, and only that since the last look.
pub fn last_access(server: &Server, lines: usize) -> String {
    let enough = || server.access_log().lines().count() >= lines;
    assert!(wait_for(enough, LIMIT), "{}", server.access_log());
    server.access_log().lines().last().unwrap_or_default().to_owned()
}

/// A client that keeps its connection.
pub fn client(server: &Server) -> Client {
    Client::connect(server.addr()).expect("connect")
}

/// Asks on a kept connection, and gives the response's status and body.
pub fn ask_on(client: &mut Client, request: &str) -> (u16, String) {
    client.send(request.as_bytes()).expect("send");
    let response = client.read_response(request.starts_with("HEAD")).expect("a response");
    (response.status, String::from_utf8_lossy(&response.body).into_owned())
}
