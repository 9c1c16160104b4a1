//! Directives, of the proxy for the most part, whose work only shows between two sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use forebay_testkit::origin::{Conn, Origin};
use forebay_testkit::{Kind, wait_for};

use crate::{LIMIT, ask, client, get, of_both, pass, start};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn early_hints_reach_those_who_want_them() {
    let hint = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nConnection: x\r\nX: y\r\nServer: s\r\n\r\n";
    let origin = Origin::answering(format!("{hint}{OK}"));
    let pass = format!("proxy_pass http://{};", origin.addr());
    let inside = format!(
        "early_hints $arg_a $arg_b; location / {{ {pass} }} location /off {{ {pass} early_hints 0; }}"
    );
    let server = start(Kind::Forebay, "", &inside);
    for (path, want) in [
        ("/", "200 ok"),
        ("/?a=0", "200 ok"),
        ("/?a=1", "103, 200 ok"),
        ("/?b=x", "103, 200 ok"),
        ("/off?a=1", "200 ok"),
    ] {
        assert_eq!(ask(server.addr(), &get(path)), want, "{path}");
    }
    // HTTP/1.0 knows no interim responses.
    assert_eq!(ask(server.addr(), b"GET /?a=1 HTTP/1.0\r\n\r\n"), "200 ok");
    let mut client = client(&server);
    client.send(&get("/?a=1")).unwrap();
    let bytes = client.read_to_end().unwrap();
    let first = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n";
    assert!(bytes.starts_with(first.as_bytes()), "{}", bytes.escape_ascii());
}

#[test]
fn server_and_date_are_those_of_the_upstream_where_they_pass() {
    let date = "Date: Mon, 01 Jan 2024 00:00:00 GMT";
    for (fields, want) in [
        ("", vec![]),
        ("Server: up\r\n", vec!["Server: up"]),
        ("Date: Mon, 01 Jan 2024 00:00:00 GMT\r\n", vec![date]),
    ] {
        let origin = Origin::answering(OK.replacen("Content", &format!("{fields}Content"), 1));
        of_both(|kind| {
            let more = "proxy_pass_header Server; proxy_pass_header Date;";
            let server = start(kind, "", &pass(origin.addr(), more));
            let mut client = client(&server);
            client.send(&get("/")).unwrap();
            let text = String::from_utf8(client.read_to_end().unwrap()).unwrap();
            let told = |line: &&str| line.starts_with("Server:") || line.starts_with("Date:");
            let lines: Vec<&str> = text.lines().filter(told).collect();
            assert_eq!(lines, want, "{kind}: {text}");
        });
    }
}

#[test]
fn beside_the_status_of_an_error_page_stand_no_words_of_the_upstream() {
    let origin = Origin::answering("HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\nok");
    of_both(|kind| {
        let inside = format!(
            "location /none {{ error_page 410 =200 /page; return 410; }}
             location /own {{ error_page 410 = /page; return 410; }} {}",
            pass(origin.addr(), "")
        );
        let server = start(kind, "", &inside);
        for (path, line) in [("/none", "200 OK"), ("/own", "200 Fine"), ("/page", "200 Fine")] {
            let mut client = client(&server);
            client.send(&get(path)).unwrap();
            let text = String::from_utf8(client.read_to_end().unwrap()).unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {line}\r\n")), "{kind} {path}: {text}");
        }
    });
}

#[test]
fn trailers_are_passed_on_where_that_is_wanted() {
    let origin = Origin::answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
         2\r\nok\r\n0\r\nX-Sum: 5\r\nContent-Length: 7\r\n\r\n",
    );
    for (more, end, named) in [
        ("", "0\r\n\r\n", false),
        ("proxy_pass_trailers off;", "0\r\n\r\n", false),
        ("proxy_pass_trailers on;", "0\r\nX-Sum: 5\r\n\r\n", true),
        ("proxy_pass_trailers on; proxy_buffering off;", "0\r\nX-Sum: 5\r\n\r\n", true),
    ] {
        let server = start(Kind::Forebay, "", &pass(origin.addr(), more));
        let mut client = client(&server);
        client.send(&get("/")).unwrap();
        let text = String::from_utf8(client.read_to_end().unwrap()).unwrap();
        assert!(text.ends_with(&format!("ok\r\n{end}")), "{more}: {text}");
        assert_eq!(text.contains("Trailer: X-Sum"), named, "{more}: {text}");
        // Who speaks HTTP/1.0 has no place for them.
        let mut client = crate::client(&server);
        client.send(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let text = String::from_utf8(client.read_to_end().unwrap()).unwrap();
        assert!(text.ends_with("\r\n\r\nok"), "{more}: {text}");
    }
}

#[test]
fn a_limited_rate_is_never_exceeded() {
    let body = "x".repeat(50_000);
    let origin =
        Origin::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n{body}"));
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n";
    let small = Origin::answering(format!("{head}{}", &body[..9_000]));
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), "proxy_limit_rate 20k;"));
        let began = Instant::now();
        assert_eq!(ask(server.addr(), &get("/")), format!("200 {body}"), "{kind}");
        // 20 kB a second, and as many at once; nginx counts the ticks of a clock.
        assert!(began.elapsed() > Duration::from_millis(900), "{kind}");
        // A small response that comes in one piece is no exception.
        let server = start(kind, "", &pass(small.addr(), "proxy_limit_rate 3k;"));
        let began = Instant::now();
        assert_eq!(ask(server.addr(), &get("/")), format!("200 {}", &body[..9_000]), "{kind}");
        assert!(began.elapsed() > Duration::from_millis(900), "{kind}");
    });
}

#[test]
fn connections_are_made_from_the_address_that_bind_names() {
    let origin = Origin::start(|conn: &mut Conn| {
        while conn.request()?.is_some() {
            let ip = conn.peer().ip().to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", ip.len());
            conn.send(format!("{head}{ip}").as_bytes())?;
        }
        Ok(())
    });
    of_both(|kind| {
        for (bind, want) in [
            ("proxy_bind 127.0.0.9;", "127.0.0.9"),
            ("proxy_bind $arg_from;", "127.0.0.8"),
            ("proxy_bind $arg_none;", "127.0.0.1"),
            ("proxy_bind $arg_bad;", "127.0.0.1"),
            ("proxy_bind off;", "127.0.0.1"),
        ] {
            let server = start(kind, "", &pass(origin.addr(), bind));
            let got = ask(server.addr(), &get("/?from=127.0.0.8&bad=x"));
            assert_eq!(got, format!("200 {want}"), "{kind} {bind}: {}", server.error_log());
        }
        // An address that this machine has not (192.0.2.0/24 is for documentation).
        let server = start(kind, "", &pass(origin.addr(), "proxy_bind 192.0.2.1;"));
        assert_eq!(ask(server.addr(), &get("/")), "500", "{kind}");
        crate::wait_logged(&server, "(99: Cannot assign requested address) while connecting");
    });
}

#[test]
fn transparent_connections_are_allowed_to_workers_without_privileges() {
    let origin = Origin::start(|conn: &mut Conn| conn.request().and(conn.send(OK.as_bytes())));
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), "proxy_bind 127.0.0.7 transparent;"));
        let got = ask(server.addr(), &get("/"));
        if server.error_log().contains("(1: Operation not permitted)") {
            println!("skipped: transparent sockets are not permitted here");
            return;
        }
        assert_eq!(got, "200 ok", "{kind}: {}", server.error_log());
    });
}

#[test]
fn a_small_body_is_whole_before_a_server_is_asked_where_sending_is_postponed() {
    let origin = Origin::answering(OK);
    let more = "proxy_request_buffering off; client_body_postpone_sending 1k;";
    let inside = format!("{} location /here {{ return 204; }}", pass(origin.addr(), more));
    let server = start(Kind::Forebay, "", &inside);
    let (mut slow, head) = (client(&server), "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ");
    slow.send(format!("{head}2000\r\n\r\n{}", "x".repeat(1000)).as_bytes()).unwrap();
    // By the time another request is answered, this one was looked at.
    assert!(ask(server.addr(), &get("/here")).starts_with("204"));
    assert_eq!(origin.connections(), 0);
    slow.send(&[b'x'; 24]).unwrap();
    assert!(wait_for(|| origin.connections() == 1, LIMIT));
    slow.send(&[b'x'; 976]).unwrap();
    assert_eq!(slow.read_response(false).unwrap().body, b"ok");
    assert_eq!(origin.requests()[0].body.len(), 2000);
    // A body that ends before that is sent with its length, whatever it came with.
    let mut small = client(&server);
    small
        .send(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        )
        .unwrap();
    assert_eq!(small.read_response(false).unwrap().body, b"ok");
    let last = origin.requests().pop().unwrap();
    assert_eq!((last.value("Content-Length"), &last.body[..]), (Some("2".into()), &b"hi"[..]));
    // Unless it is set, nothing is held back.
    let server = start(Kind::Forebay, "", &pass(origin.addr(), "proxy_request_buffering off;"));
    let (mut slow, before) = (client(&server), origin.connections());
    slow.send(format!("{head}2\r\n\r\n").as_bytes()).unwrap();
    assert!(wait_for(|| origin.connections() > before, LIMIT));
    slow.send(b"hi").unwrap();
    assert_eq!(slow.read_response(false).unwrap().body, b"ok");
}

#[test]
fn who_is_too_slow_or_not_to_be_answered_is_reset_where_that_is_said() {
    of_both(|kind| {
        let inside = "reset_timedout_connection on; client_body_timeout 1s;
            location /none { return 444; }
            location /polite { reset_timedout_connection off; return 444; }
            location /nobody { return 408; }
            location /slow { proxy_pass http://127.0.0.1:1; }";
        let server = start(kind, "", inside);
        let reset = Err(ErrorKind::ConnectionReset);
        for (path, length, end) in
            [("/none", 0, reset), ("/polite", 0, Ok(0)), ("/nobody", 0, Ok(0)), ("/slow", 1, reset)]
        {
            let mut client = TcpStream::connect(server.addr()).expect("connect");
            client.set_read_timeout(Some(LIMIT)).expect("timeout");
            let fields = format!("Host: test\r\nContent-Length: {length}\r\n");
            let request = format!("POST {path} HTTP/1.1\r\n{fields}\r\n");
            client.write_all(request.as_bytes()).expect("send");
            let read = client.read(&mut [0; 16]).map_err(|error| error.kind());
            assert_eq!(read, end, "{kind}: {path}");
        }
    });
}
