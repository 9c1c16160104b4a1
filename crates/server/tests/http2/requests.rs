//! Requests and responses, as clients that obey the rules make them.

use std::time::Duration;

use forebay_testkit::{raw::Client, wait_for};
use nix::sys::signal::Signal;

use forebay_wire::h2::{
    ErrorCode, MAX_WINDOW,
    frame::{self, flag, kind},
    settings::id,
};

use crate::{
    LIMIT,
    client::{Peer, code, get, with},
    pattern, start, start_with,
};

type Fields<'a> = &'a [(&'a str, &'a str)];

#[test]
fn a_request_is_answered_and_logged() {
    let server = start("");
    let mut peer = Peer::connect(server.addr(), &[]);
    let answer = peer.ask(1, "/text?x");
    assert_eq!((answer.status(), &answer.body[..]), ("200", &b"alive"[..]));
    let names: Vec<&str> = answer.fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, [":status", "server", "date", "content-type", "content-length"]);
    assert_eq!(peer.ask(3, "/none").status(), "404");
    drop(peer);
    let logged = || server.access_log().lines().count() == 2;
    assert!(wait_for(logged, Duration::from_secs(10)));
    let log = server.access_log();
    assert!(log.contains("GET /text?x HTTP/2.0 200 5 HTTP/2.0 h2c 1 OK"), "{log}");
    assert!(log.contains("GET /none HTTP/2.0 404 "), "{log}");
}

#[test]
fn requests_that_are_answered_together_are_logged_in_their_order() {
    let server = start("");
    let mut peer = Peer::connect(server.addr(), &[]);
    let paths = ["/text?1", "/text?2", "/text?3"];
    let asked: Vec<u8> = (0..3).flat_map(|n| peer.get(2 * n as u32 + 1, paths[n])).collect();
    peer.send(&asked);
    for stream in [1, 3, 5] {
        assert_eq!(peer.answer(stream).status(), "200");
    }
    assert!(wait_for(|| server.access_log().lines().count() == 3, LIMIT));
    let log = server.access_log();
    let order: Vec<&str> = log.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(order, paths);
}

#[test]
fn http_1_is_spoken_on_the_same_port() {
    let server = start("");
    let mut client = Client::connect(server.addr()).expect("connect");
    client.send(b"GET /text HTTP/1.1\r\nHost: a\r\n\r\n").expect("send");
    assert_eq!(client.read_response(false).expect("a response").body, b"alive");
    let mut client = Client::connect(server.addr()).expect("connect");
    client.send(b"PUT /a b HTTP/1.1\r\nHost: a\r\n\r\n").expect("send");
    assert_eq!(client.read_response(false).expect("a response").status, 400);
    let mut peer = Peer::raw(server.addr());
    peer.send(b"NOT A PREFACE\r\n\r\n");
    assert_eq!(peer.goodbye(), Some((0, with(ErrorCode::ProtocolError))));
}

#[test]
fn large_bodies_obey_windows_and_arrive_whole() {
    for (inside, len) in
        [("", 3_000_000), ("sendfile on; http2_chunk_size 16k;", 70_000), ("aio threads;", 200_000)]
    {
        let server = start_with(inside, len);
        for window in [100, 5000, 65_535, MAX_WINDOW] {
            // A window of a hundred bytes for megabytes is taken for an attack.
            if window == 100 && len > 70_000 {
                continue;
            }
            let mut peer = Peer::connect(server.addr(), &[(id::INITIAL_WINDOW_SIZE, window)]);
            let answer = peer.ask(1, "/file");
            assert!(answer.body == pattern(len), "{inside} {window}: {}", answer.body.len());
        }
    }
}

#[test]
fn heads_without_bodies_end_their_streams() {
    let server = start("location = /none { return 204; }");
    let mut peer = Peer::connect(server.addr(), &[]);
    let head = [(":method", "HEAD"), (":scheme", "http"), (":path", "/file"), (":authority", "a")];
    let request = peer.request(1, &head, true);
    peer.send(&request);
    let answer = peer.answer(1);
    assert_eq!((answer.status(), answer.field("content-length")), ("200", Some("1000")));
    assert!(answer.body.is_empty());
    let modified = answer.field("last-modified").expect("a time").to_owned();
    let fields = [&get("/file")[..], &[("if-modified-since", &modified)]].concat();
    let request = peer.request(3, &fields, true);
    peer.send(&request);
    assert_eq!(peer.answer(3).status(), "304");
    let answer = peer.ask(5, "/none");
    assert_eq!((answer.status(), answer.field("content-type")), ("204", None));
}

#[test]
fn request_bodies_are_read_as_their_windows_grow() {
    let inside = "dav_methods PUT; client_max_body_size 2m; client_body_buffer_size 4k;";
    let server = start(inside);
    let mut peer = Peer::connect(server.addr(), &[]);
    let put = [
        (":method", "PUT"),
        (":scheme", "http"),
        (":path", "/new"),
        (":authority", "a"),
        ("expect", "100-continue"),
    ];
    let request = peer.request(1, &put, false);
    peer.send(&request);
    let (head, payload) = peer.next_of(kind::HEADERS).expect("an interim response");
    assert_eq!((head.flags, peer.fields(&payload)), (4, vec![(":status".into(), "100".into())]));
    let body = pattern(1_000_000);
    // As much as is allowed at each time; the connection's window was made larger at its beginning.
    let (mut connection, mut stream, mut at) = (512usize << 10, 65_535usize, 0);
    while at < body.len() {
        let len = connection.min(stream).min(16_384).min(body.len() - at);
        if len == 0 {
            let (head, payload) = peer.next_of(kind::WINDOW_UPDATE).expect("more window");
            let window = if head.stream == 0 { &mut connection } else { &mut stream };
            *window += code(&payload) as usize;
            continue;
        }
        let end = if at + len == body.len() { flag::END_STREAM } else { 0 };
        peer.send(&Peer::frame(kind::DATA, end, 1, &body[at..at + len]));
        at += len;
        (connection, stream) = (connection - len, stream - len);
    }
    assert_eq!(peer.answer(1).status(), "201");
    assert!(std::fs::read(server.root().join("new")).expect("the file") == body);
}

#[test]
fn a_body_that_is_too_large_is_refused_while_it_comes() {
    let server = start("dav_methods PUT; client_max_body_size 10k;");
    let mut peer = Peer::connect(server.addr(), &[]);
    let put = [(":method", "PUT"), (":scheme", "http"), (":path", "/new"), (":authority", "a")];
    let mut bytes = peer.request(1, &put, false);
    bytes.extend(Peer::frame(kind::DATA, 0, 1, &[b'x'; 16_000]));
    peer.send(&bytes);
    assert_eq!(peer.answer(1).status(), "413");
    let fields = [&put[..], &[("content-length", "1000000")]].concat();
    let request = peer.request(3, &fields, false);
    peer.send(&request);
    assert_eq!(peer.answer(3).status(), "413");
    // It can never end within its window, so it is told not to go on.
    let (head, payload) = peer.next_of(kind::RST_STREAM).expect("a reset");
    assert_eq!((head.stream, code(&payload)), (3, with(ErrorCode::NoError)));
}

#[test]
fn trailers_follow_the_body() {
    let server = start("location /t { alias {root}/file; add_trailer X-End \"yes\"; }");
    let mut peer = Peer::connect(server.addr(), &[]);
    let answer = peer.ask(1, "/t");
    assert_eq!(answer.body, pattern(1000));
    assert_eq!(answer.trailers, [("x-end".to_owned(), "yes".to_owned())]);
}

#[test]
fn cookies_come_in_crumbs_and_are_one() {
    let server = start("location /c { return 200 \"$http_cookie|$cookie_b|$http_host|$host\"; }");
    let mut peer = Peer::connect(server.addr(), &[]);
    let crumbs = [("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")];
    let request = peer.request(1, &[&get("/c")[..], &crumbs].concat(), true);
    peer.send(&request);
    assert_eq!(peer.answer(1).body, b"a=1; b=2|2|test|test");
}

#[test]
fn malformed_requests_are_answered_and_never_handled() {
    let server = start("location / { return 200 \"handled\"; }");
    let cases: &[Fields<'_>] = &[
        &[("X-Upper", "1")],
        &[("connection", "close")],
        &[("te", "gzip")],
        &[("x", "a\r\nb: c")],
        &[("host", "other")],
        &[(":path", "/again")],
        &[("transfer-encoding", "chunked")],
    ];
    let mut peer = Peer::connect(server.addr(), &[]);
    for (n, fields) in cases.iter().enumerate() {
        let stream = n as u32 * 2 + 1;
        let request = peer.request(stream, &[&get("/")[..], fields].concat(), true);
        peer.send(&request);
        assert_eq!(peer.answer(stream).status(), "400", "{fields:?}");
        let (head, payload) = peer.next_of(kind::RST_STREAM).expect("a reset");
        assert_eq!((head.stream, code(&payload)), (stream, with(ErrorCode::ProtocolError)));
    }
    assert!(!server.access_log().contains(" 200 "));
}

#[test]
fn heads_have_the_limits_of_http_1() {
    let server = start("large_client_header_buffers 4 1k; max_headers 20;");
    let mut peer = Peer::connect(server.addr(), &[]);
    let long = "x".repeat(1100);
    let path = format!("/{long}");
    let many: Vec<(&str, &str)> = (0..21).map(|_| ("a", "b")).collect();
    let cases: [(&str, Fields<'_>, &str); 4] = [
        ("/text", &[("x", &long)], "400"),
        ("/text", &many, "400"),
        (&path, &[], "414"),
        ("/text", &[("x", "y")], "200"),
    ];
    for (n, (path, fields, status)) in cases.iter().enumerate() {
        let stream = n as u32 * 2 + 1;
        let request = peer.request(stream, &[&get(path)[..], fields].concat(), true);
        peer.send(&request);
        assert_eq!(peer.answer(stream).status(), *status);
    }
}

#[test]
fn urgent_responses_come_first_and_others_in_turns() {
    let server = start_with("http2_chunk_size 4k;", 40_000);
    let order = |requests: &[(u32, &str, &str)]| {
        // All wait for a window, which then opens for all at once.
        let mut peer = Peer::connect(server.addr(), &[(id::INITIAL_WINDOW_SIZE, 0)]);
        let mut bytes = Vec::new();
        for (stream, priority, update) in requests {
            let fields = [&get("/file")[..], &[("priority", priority)]].concat();
            let len = if priority.is_empty() { 4 } else { 5 };
            bytes.extend(peer.request(*stream, &fields[..len], true));
            if !update.is_empty() {
                let payload = [&stream.to_be_bytes()[..], update.as_bytes()].concat();
                bytes.extend(Peer::frame(kind::PRIORITY_UPDATE, 0, 0, &payload));
            }
        }
        frame::write_window_update(&mut bytes, 0, 1 << 20);
        frame::write_settings(&mut bytes, &[(id::INITIAL_WINDOW_SIZE, 100_000)]);
        peer.send(&bytes);
        let mut order = Vec::new();
        let mut ends = 0;
        while ends < requests.len() {
            let (head, _) = peer.next_of(kind::DATA).expect("data");
            order.push(head.stream);
            ends += usize::from(head.flags & flag::END_STREAM != 0);
        }
        order
    };
    let frames = |stream: u32| vec![stream; 10];
    assert_eq!(order(&[(1, "u=5", ""), (3, "u=0", "")]), [frames(3), frames(1)].concat());
    assert_eq!(order(&[(1, "u=1", ""), (3, "u=1", "")]), [frames(1), frames(3)].concat());
    assert_eq!(order(&[(1, "u=1", ""), (3, "u=1", "u=0")]), [frames(3), frames(1)].concat());
    for incremental in ["", "i"] {
        let turns = order(&[(1, incremental, ""), (3, incremental, "")]);
        assert_eq!(turns, [1, 3].repeat(10), "{incremental}");
    }
}

#[test]
fn a_worn_connection_is_closed_in_two_steps() {
    let server = start("keepalive_requests 2;");
    let mut peer = Peer::connect(server.addr(), &[]);
    assert_eq!(peer.ask(1, "/text").status(), "200");
    let request = peer.get(3, "/text");
    peer.send(&request);
    let (_, payload) = peer.next_of(kind::GOAWAY).expect("the first GOAWAY");
    assert_eq!((code(&payload), code(&payload[4..])), (MAX_WINDOW, 0));
    let (_, ping) = peer.next_of(kind::PING).expect("its PING");
    // What was on its way when it came is served.
    assert_eq!(peer.ask(5, "/text").body, b"alive");
    peer.send(&Peer::frame(kind::PING, flag::ACK, 0, &ping));
    assert_eq!(peer.goodbye(), Some((5, 0)));
}

#[test]
fn a_quit_finishes_what_is_under_way() {
    let server = start_with("limit_rate 20k;", 40_000);
    let mut peer = Peer::connect(server.addr(), &[]);
    let mut idle = Peer::connect(server.addr(), &[]);
    assert_eq!(idle.ask(1, "/text").status(), "200");
    let request = peer.get(1, "/file");
    peer.send(&request);
    assert!(peer.next_of(kind::HEADERS).is_some());
    server.signal(Signal::SIGQUIT);
    assert_eq!(idle.goodbye(), Some((1, 0)));
    let answer = peer.answer(1);
    assert_eq!(answer.body.len(), 40_000);
    assert_eq!(peer.goodbye(), Some((1, 0)));
}

#[test]
fn an_idle_connection_ends_after_keepalive_timeout() {
    let server = start("keepalive_timeout 1s;");
    let mut peer = Peer::connect(server.addr(), &[]);
    assert_eq!(peer.ask(1, "/text").status(), "200");
    assert_eq!(peer.goodbye(), Some((1, 0)));
}

#[test]
fn streams_beyond_the_limit_are_refused_and_others_served() {
    let inside = "http2_max_concurrent_streams 2;
        location /slow { auth_delay 20s; auth_basic x; auth_basic_user_file {root}/none; }";
    let server = start(inside);
    let mut peer = Peer::connect(server.addr(), &[]);
    let mut bytes = Vec::new();
    for stream in [1, 3, 5] {
        bytes.extend(peer.get(stream, "/slow/"));
    }
    // The client gives one up; but somebody still works on it.
    bytes.extend(Peer::frame(kind::RST_STREAM, 0, 1, b"\0\0\0\x08"));
    bytes.extend(peer.get(7, "/text"));
    peer.send(&bytes);
    for stream in [5, 7] {
        let (head, payload) = peer.next_of(kind::RST_STREAM).expect("a reset");
        assert_eq!((head.stream, code(&payload)), (stream, with(ErrorCode::RefusedStream)));
    }
}

#[test]
fn a_reload_lets_requests_finish_and_new_ones_see_the_new_configuration() {
    let inside = "location = /version { return 200 \"old\"; } limit_rate 20k;";
    let server = start_with(inside, 40_000);
    let mut busy = Peer::connect(server.addr(), &[]);
    let mut idle = Peer::connect(server.addr(), &[]);
    assert_eq!(idle.ask(1, "/version").body, b"old");
    let request = busy.get(1, "/file");
    busy.send(&request);
    let (_, head) = busy.next_of(kind::HEADERS).expect("a head");
    busy.fields(&head);
    let worker = server.worker_pids();
    let conf = server.read("nginx.conf").replace("\"old\"", "\"new\"").replace("20k", "1000k");
    server.rewrite_conf(&conf).expect("written");
    server.signal(Signal::SIGHUP);
    let is_new = || Peer::connect(server.addr(), &[]).ask(1, "/version").body == b"new";
    assert!(wait_for(is_new, LIMIT), "{}", server.error_log());
    // Connections stay: what was begun goes on, and what begins now is answered by the new plan.
    assert_eq!(idle.ask(3, "/version").body, b"new");
    let request = busy.get(3, "/version");
    busy.send(&request);
    assert_eq!(busy.answer(3).body, b"new");
    drop(busy);
    assert_eq!(server.worker_pids(), worker);
}

#[test]
fn a_connection_to_an_address_that_is_given_up_is_told_and_finishes() {
    let server = start_with("limit_rate 20k;", 40_000);
    let mut busy = Peer::connect(server.addr(), &[]);
    let mut idle = Peer::connect(server.addr(), &[]);
    assert_eq!(idle.ask(1, "/text").body, b"alive");
    let request = busy.get(1, "/file");
    busy.send(&request);
    assert!(busy.next_of(kind::HEADERS).is_some());
    let (old, new) = (server.addr().port().to_string(), server.addr_of(1).port().to_string());
    let conf = server.read("nginx.conf").replace(&format!("{old};"), &format!("{new};"));
    server.rewrite_conf(&conf).expect("written");
    server.signal(Signal::SIGHUP);
    assert_eq!(idle.goodbye(), Some((1, 0)));
    assert_eq!(busy.answer(1).body.len(), 40_000);
    assert_eq!(busy.goodbye(), Some((1, 0)));
    assert_eq!(Peer::connect(server.addr_of(1), &[]).ask(1, "/text").body, b"alive");
}
