//! Rows of `docs/differences.md` that only a running server can hold and no comparison of single
//! responses shows; and the codings that Debian's nginx does not have.

use std::io::Read;
use std::time::{Duration, Instant};

use forebay_testkit::raw::{Client, Response};
use forebay_testkit::{Kind, Server, wait_for};

const LIMIT: Duration = Duration::from_secs(20);

fn start(http: &str, inside: &str) -> Server {
    Server::start(
        Kind::Forebay,
        &format!(
            "error_log {{prefix}}/error.log notice; events {{ }}
            http {{ {{temp_paths}} {http} access_log {{prefix}}/access.log;
                server {{ listen 127.0.0.1:{{port}}; root {{root}}; {inside} }} }}"
        ),
    )
}

fn ask(client: &mut Client, path: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    client.send(request.as_bytes()).expect("send");
    client.read_response(false).expect("response").status
}

/// A request with an `Accept-Encoding` and more fields.
fn ask_for(client: &mut Client, method: &str, path: &str, accept: &str, more: &str) -> Response {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nAccept-Encoding: {accept}\r\n{more}\r\n"
    );
    client.send(request.as_bytes()).expect("send");
    client.read_response(method == "HEAD").expect("response")
}

fn text<'r>(response: &'r Response, name: &str) -> &'r str {
    std::str::from_utf8(response.header(name).unwrap_or(b"none")).expect("text")
}

fn decoded(response: &Response) -> Vec<u8> {
    let (mut out, body) = (Vec::new(), &response.body[..]);
    match text(response, "Content-Encoding") {
        "br" => drop(brotli::Decompressor::new(body, 4096).read_to_end(&mut out).expect("brotli")),
        "zstd" => out = zstd::decode_all(body).expect("zstd"),
        "gzip" => drop(flate2::read::GzDecoder::new(body).read_to_end(&mut out).expect("gzip")),
        _ => out = body.to_vec(),
    }
    out
}

const CODINGS: &str = "gzip on; brotli on; zstd on; gzip_vary on; brotli_min_length 1k;
    zstd_min_length 1k; brotli_types text/css; zstd_types text/css; gzip_types text/css;
    location /static/ { brotli_static on; zstd_static on; gzip_static on; }
    location /always/ { brotli_static always; }";

#[test]
fn what_is_compressed_comes_out_as_it_was() {
    let server = start("types { text/css css; text/plain txt; }", CODINGS);
    let css = "a { color: #123456 }\n".repeat(9_000);
    for (name, content) in [("a.css", &css[..]), ("a.txt", &css), ("short.css", &css[..800])] {
        std::fs::write(server.root().join(name), content).expect("file");
    }
    let mut client = Client::connect(server.addr()).expect("connect");
    for (path, accept, coding) in [
        ("/a.css", "br", "br"),
        ("/a.css", "zstd", "zstd"),
        ("/a.css", "gzip, deflate, br, zstd", "zstd"),
        ("/a.css", "gzip;q=0.9, br;q=0.8", "gzip"),
        ("/a.css", "zstd;q=0, *;q=0.1", "br"),
        ("/a.css", "identity, br;q=0, *;q=0", "none"),
        ("/a.txt", "br, zstd, gzip", "none"),
        ("/short.css", "br, zstd", "none"),
        ("/short.css", "br, gzip", "gzip"),
    ] {
        let got = ask_for(&mut client, "GET", path, accept, "");
        assert_eq!(text(&got, "Content-Encoding"), coding, "{path} {accept}");
        let content = if path == "/short.css" { &css[..800] } else { &css };
        assert!(decoded(&got) == content.as_bytes(), "{path} {accept}");
        // Compressed anew, it is not the same to the byte, nor of a length that is known.
        let weak = text(&got, "ETag").starts_with("W/");
        let length = text(&got, "Content-Length") != "none";
        assert_eq!((weak, length), (coding != "none", coding == "none"), "{path} {accept}");
        let varies = text(&got, "Vary") == "Accept-Encoding";
        // gzip is there for the short one, too.
        assert_eq!(varies, path != "/a.txt", "{path} {accept}");
        let head = ask_for(&mut client, "HEAD", path, accept, "");
        assert_eq!(text(&head, "Content-Encoding"), coding, "HEAD {path} {accept}");
        assert_eq!(text(&head, "ETag"), text(&got, "ETag"), "HEAD {path} {accept}");
        let same = format!("If-None-Match: {}\r\n", text(&got, "ETag"));
        let same = ask_for(&mut client, "GET", path, accept, &same);
        assert_eq!((same.status, same.body.len()), (304, 0), "{path} {accept}");
        let range = ask_for(&mut client, "GET", path, accept, "Range: bytes=1-2\r\n");
        assert_eq!(range.status, if coding == "none" { 206 } else { 200 }, "{path} {accept}");
    }
}

#[test]
fn what_was_compressed_before_is_sent_as_it_is() {
    let server = start("types { text/css css; }", CODINGS);
    for dir in ["static", "always"] {
        std::fs::create_dir(server.root().join(dir)).expect("directory");
        for name in ["a.css", "a.css.br", "a.css.zst", "a.css.gz"] {
            std::fs::write(server.root().join(dir).join(name), name).expect("file");
        }
    }
    let mut client = Client::connect(server.addr()).expect("connect");
    for (path, accept, coding, body) in [
        ("/static/a.css", "br", "br", "a.css.br"),
        ("/static/a.css", "zstd", "zstd", "a.css.zst"),
        ("/static/a.css", "gzip", "gzip", "a.css.gz"),
        ("/static/a.css", "gzip, br;q=0.5", "gzip", "a.css.gz"),
        ("/static/a.css", "zstd;q=0.4, br;q=0.5", "br", "a.css.br"),
        ("/static/a.css", "identity", "none", "a.css"),
        ("/always/a.css", "identity", "br", "a.css.br"),
    ] {
        let got = ask_for(&mut client, "GET", path, accept, "");
        assert_eq!(text(&got, "Content-Encoding"), coding, "{path} {accept}");
        assert_eq!(String::from_utf8_lossy(&got.body), body, "{path} {accept}");
        assert_eq!(text(&got, "Content-Length"), body.len().to_string(), "{path} {accept}");
        assert!(text(&got, "ETag").starts_with('"'), "{path} {accept}");
        assert_eq!(text(&got, "Vary") == "Accept-Encoding", path.starts_with("/static"));
    }
}

#[test]
fn the_next_request_does_not_wait_for_a_mirror() {
    let server = start(
        "limit_req_zone $server_name zone=z:64k rate=3r/m;",
        "location /copied { mirror /mirror; }
         location = /mirror { internal; limit_req zone=z burst=5; }",
    );
    std::fs::write(server.root().join("copied"), "x").expect("file");
    let mut client = Client::connect(server.addr()).expect("connect");
    let started = Instant::now();
    // The copy of the first is answered at once, that of the second twenty seconds later.
    for _ in 0..3 {
        assert_eq!(ask(&mut client, "/copied"), 200);
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn one_post_action_follows_a_request() {
    let server = start(
        "",
        "location = /a { post_action /b; }
         location = /b { internal; access_log {prefix}/b.log; post_action /c; }
         location = /c { internal; access_log {prefix}/c.log; }",
    );
    for name in ["a", "b", "c"] {
        std::fs::write(server.root().join(name), "x").expect("file");
    }
    let mut client = Client::connect(server.addr()).expect("connect");
    for _ in 0..2 {
        assert_eq!(ask(&mut client, "/a"), 200);
    }
    let logged = || server.read("b.log").lines().count();
    assert!(wait_for(|| logged() == 2, LIMIT), "{}", server.error_log());
    assert_eq!(server.read("c.log"), "");
}

#[test]
fn subrequests_are_logged_with_what_they_gave() {
    let server = start(
        "log_format sizes '$uri $body_bytes_sent'; types { text/html html; }",
        "access_log {prefix}/sizes.log sizes; log_subrequest on;
         location = /a.html { add_before_body /before; add_after_body /after.html; }
         location = /before { return 200 12345; }",
    );
    std::fs::write(server.root().join("a.html"), "x").expect("file");
    std::fs::write(server.root().join("after.html"), "y".repeat(100_000)).expect("file");
    let mut client = Client::connect(server.addr()).expect("connect");
    assert_eq!(ask(&mut client, "/a.html"), 200);
    let logged = || server.read("sizes.log");
    assert!(wait_for(|| logged().lines().count() == 3, LIMIT), "{}", logged());
    // The whole is chunked: its size has the sizes of chunks in it.
    assert!(logged().starts_with("/before 5\n/after.html 100000\n/a.html "), "{}", logged());
}

#[test]
fn a_request_whose_condition_is_unmet_is_complete() {
    let server = start(
        "log_format done '$status $request_completion';",
        "access_log {prefix}/access.log done; location / { return 200 x; }",
    );
    let mut client = Client::connect(server.addr()).expect("connect");
    client.send(b"GET / HTTP/1.1\r\nHost: test\r\nIf-Match: \"x\"\r\n\r\n").expect("send");
    assert_eq!(client.read_response(false).expect("response").status, 412);
    assert!(wait_for(|| !server.access_log().is_empty(), LIMIT));
    assert_eq!(server.access_log(), "412 OK\n");
}

#[test]
fn a_status_below_200_has_no_content() {
    let server = start("", "location / { return 199 text; }");
    let mut client = Client::connect(server.addr()).expect("connect");
    client.send(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").expect("send");
    let all = client.read_to_end().expect("response");
    assert!(all.starts_with(b"HTTP/1.1 199 ") && all.ends_with(b"\r\n\r\n"));
}

#[test]
fn what_is_ready_leaves_before_what_is_waited_for() {
    let server = start(
        "limit_req_zone $server_name zone=z:64k rate=1r/m; types { text/html html; }",
        "location = /page.html { ssi on; } location = /held.html { limit_req zone=z burst=5; }",
    );
    let page = "first<!--#include virtual='/held.html' -->last";
    std::fs::write(server.root().join("page.html"), page).expect("file");
    std::fs::write(server.root().join("held.html"), "x").expect("file");
    let mut client = Client::connect(server.addr()).expect("connect");
    assert_eq!(ask(&mut client, "/held.html"), 200);
    client.send(b"GET /page.html HTTP/1.1\r\nHost: test\r\n\r\n").expect("send");
    // What follows comes a minute later, after the client's patience.
    let mut got = Vec::new();
    while !got.ends_with(b"5\r\nfirst\r\n") {
        got.extend(client.read_exactly(1).expect("a byte"));
    }
}
