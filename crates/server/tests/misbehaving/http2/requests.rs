//! What an HTTP/2 server gets of a request.

use std::io::Write as _;

use forebay_testkit::Kind;
use forebay_testkit::origin::{Origin, Received};

use super::{counting, proxy};
use crate::{ask, get, last_access, start};

/// What the origin got for a request, by a location with these directives.
fn got(more: &str, request: &str) -> Received {
    let origin = counting();
    let server = proxy(origin.addr(), more);
    let answer = ask(server.addr(), request.as_bytes());
    assert!(answer.starts_with("200"), "{answer}\n{}", server.error_log());
    origin.wait_requests(1);
    origin.requests().remove(0)
}

fn close(line: &str, fields: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n{fields}\r\n")
}

#[test]
fn a_request_is_pseudo_header_fields_and_fields_in_lower_case() {
    let request = close("GET /a?b=c", "X-Own: Value\r\nAccept: */*\r\nCookie: a=b\r\n");
    let lines = got("", &request).lines();
    let expected = [
        "GET /a?b=c HTTP/2",
        "method: GET",
        "scheme: http",
        "path: /a?b=c",
        "authority: o",
        "x-own: Value",
        "accept: */*",
        "cookie: a=b",
        "",
    ];
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    assert_eq!(lines, expected[..lines.len()]);
}

#[test]
fn fields_of_the_connection_stay_with_the_client() {
    let request = close(
        "GET /",
        "Upgrade: websocket\r\nConnection: upgrade, x-mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\n\
         Proxy-Connection: close\r\nTE: gzip, trailers\r\nHTTP2-Settings: AAA\r\nExpect: x\r\n",
    );
    let request = request.replace("Expect: x\r\n", "");
    let received =
        got("proxy_set_header Connection upgrade; proxy_set_header Upgrade websocket;", &request);
    let names: Vec<_> =
        received.lines().iter().filter_map(|l| Some(l.split_once(": ")?.0.to_owned())).collect();
    assert_eq!(names, ["method", "scheme", "path", "authority", "te"]);
    assert_eq!(received.values("te"), ["trailers"]);
}

#[test]
fn what_is_set_is_sent_as_far_as_http_2_has_it() {
    let set = "proxy_set_header Host $http_host:8; proxy_set_header X-One one; \
        proxy_set_header X-Two $request_method; proxy_set_header X-Three ''; \
        proxy_set_header TE deflate; proxy_set_header Transfer-Encoding chunked; \
        proxy_set_header 'X Four' 4; proxy_set_header Authorization 'Basic eA=='; \
        proxy_method PUT;";
    let received = got(set, &close("GET /", "X-One: client's\r\nTE: trailers\r\n"));
    let lines = received.lines();
    for line in [
        "method: PUT",
        "authority: a.test:8",
        "x-one: one",
        "x-two: GET",
        "authorization: Basic eA==",
    ] {
        assert!(lines.iter().any(|known| known == line), "{line}: {lines:?}");
    }
    for name in ["x-three", "te", "transfer-encoding", "x four", "host", "connection"] {
        assert_eq!(received.values(name), [""; 0], "{name}");
    }
}

#[test]
fn bodies_have_their_length_where_it_is_known_and_their_end_always() {
    let sized = got("", &format!("{}hello", close("POST /", "Content-Length: 5\r\n")));
    assert_eq!(
        (sized.value("content-length").as_deref(), &sized.body[..]),
        (Some("5"), &b"hello"[..])
    );
    let chunked =
        close("POST /", "Transfer-Encoding: chunked\r\n") + "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let buffered = got("", &chunked);
    assert_eq!(
        (buffered.value("content-length").as_deref(), &buffered.body[..]),
        (Some("5"), &b"abcde"[..])
    );
    // What is there at once is looked at before; the end of this is not.
    let long = "x".repeat(0x8000);
    let chunked = close("POST /", "Transfer-Encoding: chunked\r\n");
    let streamed =
        got("proxy_request_buffering off;", &format!("{chunked}8000\r\n{long}\r\n0\r\n\r\n"));
    assert_eq!((streamed.value("content-length"), &streamed.body[..]), (None, long.as_bytes()));
    let own = got("proxy_set_body 'mine';", &close("GET /", ""));
    assert_eq!((own.value("content-length").as_deref(), &own.body[..]), (Some("4"), &b"mine"[..]));
    let none = got(
        "proxy_pass_request_body off; proxy_set_header Content-Length '';",
        &format!("{}hello", close("POST /", "Content-Length: 5\r\n")),
    );
    assert_eq!((none.value("content-length"), &none.body[..]), (None, &b""[..]));
}

#[test]
fn a_head_larger_than_a_frame_is_continued() {
    let mut fields = String::new();
    for number in 0..3 {
        fields += &format!("X-{number}: {}\r\n", "v".repeat(7000));
    }
    let received = got("", &close("GET /", &fields));
    for number in 0..3 {
        assert_eq!(received.value(&format!("x-{number}")).map_or(0, |value| value.len()), 7000);
    }
}

#[test]
fn secrets_are_written_so_that_nobody_keeps_them() {
    let origin = super::serving(|h2, asked| {
        // 0001 and the index of the name: `cookie` 32, `authorization` 23.
        let has = |bytes: &[u8]| asked.block.windows(bytes.len()).any(|part| part == bytes);
        assert!(has(b"\x1f\x11\x03a=b") && has(b"\x1f\x08\x03xyz"), "{:?}", asked.block);
        assert_eq!(asked.block.first(), Some(&0x20), "the table is emptied first");
        h2.ok(asked.stream, b"ok")
    });
    let server = proxy(origin.addr(), "");
    let request = close("GET /", "Cookie: a=b\r\nAuthorization: xyz\r\n");
    assert_eq!(ask(server.addr(), request.as_bytes()), "200 ok");
}

#[test]
fn what_happened_is_in_the_variables() {
    let origin = counting();
    let http = format!("upstream o {{ server {}; }}", origin.addr());
    let http = http
        + "log_format v '$upstream_status $upstream_addr $upstream_response_length \
           $upstream_http_x $proxy_host';";
    let inside = "access_log {prefix}/access.log v; location / { proxy_pass http://o; proxy_http_version 2; }";
    let server = start(Kind::Forebay, &http, inside);
    assert_eq!(ask(server.addr(), &get("/")), "200 0/1");
    assert_eq!(last_access(&server, 1), format!("200 {} 3 - o", origin.addr()));
}

#[test]
fn an_upgrade_is_an_ordinary_request() {
    let received = got(
        "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;",
        &close(
            "GET /chat",
            "Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: x\r\n",
        ),
    );
    assert_eq!(received.line(), "GET /chat HTTP/2");
    assert_eq!(received.value("sec-websocket-key").as_deref(), Some("x"));
    assert_eq!((received.value("upgrade"), received.value("connection")), (None, None));
}

#[test]
fn http_2_is_named_2() {
    let mut text = Vec::new();
    write!(text, "proxy_http_version 3;").expect("a vector");
    let origin = Origin::answering("");
    let conf = |version: &str| {
        format!(
            "events {{ }} http {{ {{temp_paths}} server {{ listen 127.0.0.1:{{port}}; location / {{ \
             proxy_pass http://{}; proxy_http_version {version}; }} }} }}",
            origin.addr()
        )
    };
    let builder = |version| {
        forebay_testkit::Server::builder(Kind::Forebay, &conf(version))
            .binary(env!("CARGO_BIN_EXE_forebay"))
    };
    assert!(builder("2").start().is_ok());
    for wrong in ["2.0", "3", "h2"] {
        let error = builder(wrong).start().expect_err("it must not start");
        assert!(error.output.contains(&format!("invalid value \"{wrong}\"")), "{error}");
    }
}
