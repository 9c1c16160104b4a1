//! What passes through an HTTP/2 connection to and from a server behind it: WebSockets (RFC 8441),
//! interim responses, trailers.

use forebay_testkit::{
    Server,
    origin::{Conn, Origin, Received},
    wait_for,
};
use forebay_wire::h2::{
    ErrorCode, MAX_WINDOW,
    frame::{flag, kind},
    settings::id,
};
use sha1::{Digest, Sha1};

use crate::{
    LIMIT,
    client::{Peer, code, get, with},
    pattern, start,
};

const UPGRADE: &str =
    "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection;";

fn proxied(origin: &Origin, more: &str) -> Server {
    start(&format!("location /ws {{ proxy_pass http://{}; {UPGRADE} {more} }}", origin.addr()))
}

/// The 101 that a WebSocket server sends to this request.
fn switch(request: &Received) -> Vec<u8> {
    let key = request.value("Sec-WebSocket-Key").expect("a key");
    let digest = Sha1::new()
        .chain_update(key)
        .chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11")
        .finalize();
    let accept = base64(&digest);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
    )
    .into_bytes()
}

fn base64(bytes: &[u8]) -> String {
    const SYMBOLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for at in 0..4 {
            let symbol = SYMBOLS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { char::from(symbol) } else { '=' });
        }
    }
    text
}

fn connect(path: &str) -> [(&str, &str); 6] {
    [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("sec-websocket-version", "13"),
    ]
}

/// Opens a tunnel on that stream.
fn open(peer: &mut Peer, stream: u32) {
    let request = peer.request(stream, &connect("/ws/a?b"), false);
    peer.send(&request);
    let (head, payload) = peer.next_of(kind::HEADERS).expect("a head");
    assert_eq!((head.stream, head.flags & flag::END_STREAM), (stream, 0));
    let fields = peer.fields(&payload);
    assert_eq!(fields[0], (":status".into(), "200".into()), "{fields:?}");
    let has = |name: &str| fields.iter().any(|(known, _)| known == name);
    assert!(has("sec-websocket-protocol"), "{fields:?}");
    assert!(!has("sec-websocket-accept") && !has("upgrade") && !has("connection"), "{fields:?}");
}

fn say(peer: &mut Peer, stream: u32, text: &[u8], flags: u8) {
    peer.send(&Peer::frame(kind::DATA, flags, stream, text));
}

/// Reads so many bytes of a stream, without giving windows back.
fn hear(peer: &mut Peer, stream: u32, len: usize) -> Vec<u8> {
    let mut got = Vec::new();
    while got.len() < len {
        let (head, payload) = peer.next_of(kind::DATA).expect("data");
        assert_eq!(head.stream, stream);
        got.extend_from_slice(&payload);
    }
    got
}

fn echo(conn: &mut Conn) -> std::io::Result<()> {
    while let Ok(byte) = conn.take(1) {
        conn.send(&byte)?;
    }
    Ok(())
}

#[test]
fn websockets_share_a_connection_with_requests() {
    let origin = Origin::start(|conn| {
        let Some(request) = conn.request()? else { return Ok(()) };
        conn.send(&[&switch(&request)[..], b"hi"].concat())?;
        echo(conn)
    });
    let server = proxied(&origin, "");
    let mut peer = Peer::connect(server.addr(), &[]);
    open(&mut peer, 1);
    assert_eq!(hear(&mut peer, 1, 2), b"hi");
    open(&mut peer, 3);
    assert_eq!(hear(&mut peer, 3, 2), b"hi");
    for (stream, text) in [(1, &b"one"[..]), (3, b"\0\xff\r\n"), (1, &pattern(5000))] {
        say(&mut peer, stream, text, 0);
        assert_eq!(hear(&mut peer, stream, text.len()), text);
    }
    assert_eq!(peer.ask(5, "/text").body, b"alive");
    // The client has said all; the server has its word, and then the stream is over.
    say(&mut peer, 1, b"bye", flag::END_STREAM);
    let answer = peer.answer(1);
    assert_eq!((&answer.body[..], answer.reset), (&b"bye"[..], None));
    // A reset reaches the server as an end.
    peer.send(&Peer::frame(kind::RST_STREAM, 0, 3, &8u32.to_be_bytes()));
    origin.wait_closed(2);
    let request = &origin.requests()[0];
    assert_eq!(request.line(), "GET /ws/a?b HTTP/1.1");
    let values =
        ["Upgrade", "Connection", "Sec-WebSocket-Version"].map(|name| request.values(name));
    assert_eq!(values.concat(), ["websocket", "upgrade", "13"]);
    let logged = || server.access_log().matches("GET /ws/a?b HTTP/2.0 200 ").count() == 2;
    assert!(wait_for(logged, LIMIT), "{}", server.access_log());
    assert_eq!(peer.ask(7, "/text").status(), "200");
}

#[test]
fn what_a_client_says_before_the_grant_reaches_the_server() {
    let origin = Origin::start(|conn| {
        let Some(request) = conn.request()? else { return Ok(()) };
        conn.send(&switch(&request))?;
        echo(conn)
    });
    let server = proxied(&origin, "");
    let mut peer = Peer::connect(server.addr(), &[]);
    let mut bytes = peer.request(1, &connect("/ws"), false);
    bytes.extend(Peer::frame(kind::DATA, flag::END_STREAM, 1, b"early"));
    peer.send(&bytes);
    let answer = peer.answer(1);
    assert_eq!((answer.status(), &answer.body[..], answer.reset), ("200", &b"early"[..], None));
}

#[test]
fn the_server_s_end_leaves_the_client_its_word() {
    let origin = Origin::start(|conn| {
        let Some(request) = conn.request()? else { return Ok(()) };
        conn.send(&[&switch(&request)[..], b"last"].concat())?;
        conn.shutdown_write()?;
        assert_eq!(conn.to_end()?, b"words");
        Ok(())
    });
    let server = proxied(&origin, "");
    let mut peer = Peer::connect(server.addr(), &[]);
    open(&mut peer, 1);
    let answer = peer.answer(1);
    assert_eq!((&answer.body[..], answer.reset), (&b"last"[..], None));
    say(&mut peer, 1, b"words", flag::END_STREAM);
    origin.wait_closed(1);
    assert_eq!(peer.ask(3, "/text").status(), "200");
}

#[test]
fn a_tunnel_obeys_windows_in_both_directions() {
    const LEN: usize = 3_000_000;
    let origin = Origin::start(|conn| {
        let Some(request) = conn.request()? else { return Ok(()) };
        conn.send(&switch(&request))?;
        if request.line().contains("down") {
            return conn.send(&pattern(LEN));
        }
        let all = conn.to_end()?;
        assert!(all == pattern(LEN));
        conn.send(b"got it")
    });
    let server = proxied(&origin, "");
    for window in [5000, 65_535, MAX_WINDOW] {
        let mut peer = Peer::connect(server.addr(), &[(id::INITIAL_WINDOW_SIZE, window)]);
        let request = peer.request(1, &connect("/ws/down"), false);
        peer.send(&request);
        assert!(peer.answer(1).body == pattern(LEN), "{window}");
    }
    let mut peer = Peer::connect(server.addr(), &[]);
    open(&mut peer, 1);
    let body = pattern(LEN);
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
        say(&mut peer, 1, &body[at..at + len], end);
        at += len;
        (connection, stream) = (connection - len, stream - len);
    }
    assert_eq!(peer.answer(1).body, b"got it");
}

#[test]
fn a_tunnel_that_breaks_or_is_silent_is_cancelled() {
    let origin = Origin::start(|conn| {
        let Some(request) = conn.request()? else { return Ok(()) };
        conn.send(&switch(&request))?;
        conn.take(1)?;
        match request.line().contains("reset") {
            true => conn.reset(),
            false => conn.wait_closed(),
        }
    });
    let server = proxied(&origin, "proxy_read_timeout 300ms;");
    let mut peer = Peer::connect(server.addr(), &[]);
    for (stream, path) in [(1, "/ws/reset"), (3, "/ws/silent")] {
        let request = peer.request(stream, &connect(path), false);
        peer.send(&request);
        say(&mut peer, stream, b"x", 0);
        let answer = peer.answer(stream);
        assert_eq!(
            (answer.status(), answer.reset),
            ("200", Some(with(ErrorCode::Cancel))),
            "{path}"
        );
    }
    assert_eq!(peer.ask(5, "/text").status(), "200");
    let log = server.error_log();
    assert!(log.contains("while proxying upgraded connection"), "{log}");
}

#[test]
fn a_server_may_decline_or_answer_wrongly() {
    let origin = Origin::start(|conn| {
        let Some(request) = conn.request()? else { return Ok(()) };
        match request.line().contains("/no") {
            true => conn.send(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno"),
            false => conn.send(
                b"HTTP/1.1 101 Ok\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
                  Sec-WebSocket-Accept: aaaa\r\n\r\nx",
            ),
        }
    });
    let server = proxied(&origin, "");
    let mut peer = Peer::connect(server.addr(), &[]);
    for (stream, path, status, body) in [(1, "/ws/no", "403", &b"no"[..]), (3, "/ws", "502", b"")] {
        let request = peer.request(stream, &connect(path), false);
        peer.send(&request);
        let answer = peer.answer(stream);
        assert_eq!((answer.status(), &answer.body[..]), (status, body));
        say(&mut peer, stream, b"", flag::END_STREAM);
    }
    assert!(server.error_log().contains("upstream sent invalid \"Sec-WebSocket-Accept\""));
}

#[test]
fn other_protocols_are_offered_only_where_a_server_may_grant_them() {
    let setting = |server: &Server| {
        let mut peer = Peer::connect(server.addr(), &[]);
        let (_, payload) = peer.next_of(kind::SETTINGS).expect("settings");
        let mut entries = payload.chunks(6);
        let is_on = entries.any(|entry| entry == [0, 8, 0, 0, 0, 1]);
        let request = peer.request(1, &connect("/ws"), false);
        peer.send(&request);
        (is_on, peer.answer(1).status().to_owned())
    };
    let origin = Origin::answering("HTTP/1.1 204 No\r\n\r\n");
    let plain = start(&format!("location /ws {{ proxy_pass http://{}; }}", origin.addr()));
    assert_eq!(setting(&plain), (false, "400".to_owned()));
    assert_eq!(setting(&proxied(&origin, "proxy_http_version 1.0;")), (false, "400".to_owned()));
    assert_eq!(setting(&proxied(&origin, "")), (true, "204".to_owned()));
}

#[test]
fn connect_opens_a_tunnel_where_there_is_one() {
    let origin = Origin::start(echo);
    let closed = Origin::start(|conn| conn.wait_closed());
    let (open, port) = (origin.addr(), closed.addr().port());
    let server = start(&format!(
        "location / {{ tunnel_pass; tunnel_allow_upstream $is_open; }}
        set $is_open 1; if ($request_port = {port}) {{ set $is_open 0; }}"
    ));
    let connect = |target: &str, peer: &mut Peer, stream: u32| {
        let request =
            peer.request(stream, &[(":method", "CONNECT"), (":authority", target)], false);
        peer.send(&request);
    };
    let mut peer = Peer::connect(server.addr(), &[]);
    connect(&open.to_string(), &mut peer, 1);
    let (_, payload) = peer.next_of(kind::HEADERS).expect("a head");
    assert_eq!(peer.fields(&payload)[0], (":status".into(), "200".into()));
    say(&mut peer, 1, b"hello", 0);
    assert_eq!(hear(&mut peer, 1, 5), b"hello");
    say(&mut peer, 1, b"bye", flag::END_STREAM);
    let answer = peer.answer(1);
    assert_eq!((&answer.body[..], answer.reset), (&b"bye"[..], None));
    for (stream, target, status) in [
        (3, closed.addr().to_string(), "403"),
        (5, "a".to_owned(), "400"),
        (7, "a:0".to_owned(), "400"),
    ] {
        connect(&target, &mut peer, stream);
        assert_eq!(peer.answer(stream).status(), status, "{target}");
        // Nothing of what was meant for the tunnel is taken for anything else.
        say(&mut peer, stream, b"GET / HTTP/1.1\r\n\r\n", flag::END_STREAM);
    }
    assert_eq!(peer.ask(9, "/text").body, b"alive");
    assert_eq!(closed.connections(), 0);
    let without = start("");
    let mut peer = Peer::connect(without.addr(), &[]);
    connect(&open.to_string(), &mut peer, 1);
    assert_eq!(peer.answer(1).status(), "400");
}

#[test]
fn early_hints_precede_the_answer() {
    let hint = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n";
    let origin =
        Origin::answering(format!("{hint}{hint}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"));
    for (more, statuses) in [("early_hints 1;", &["103", "103", "200"][..]), ("", &["200"])] {
        let server = proxied(&origin, more);
        let mut peer = Peer::connect(server.addr(), &[]);
        let request = peer.get(1, "/ws");
        peer.send(&request);
        if statuses.len() > 1 {
            let (head, payload) = peer.next_of(kind::HEADERS).expect("a hint");
            assert_eq!(head.flags, flag::END_HEADERS);
            let fields = peer.fields(&payload);
            let text: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            assert_eq!(text, [":status: 103", "link: </a.css>; rel=preload"]);
        }
        let answer = peer.answer(1);
        assert_eq!(answer.statuses, statuses[statuses.len().min(2) - 1..]);
        assert_eq!(answer.body, b"ok");
    }
}

#[test]
fn trailers_of_a_server_follow_the_body() {
    let origin = Origin::answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
         3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n",
    );
    let slow = Origin::start(|conn| {
        conn.request()?;
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
        conn.send_pieces(&[head.as_bytes(), b"0\r\nX-Sum: 6\r\n\r\n"])?;
        conn.wait_closed()
    });
    for origin in [&origin, &slow] {
        for (more, trailers) in [("proxy_pass_trailers on;", 1), ("", 0)] {
            let server = proxied(origin, more);
            let mut peer = Peer::connect(server.addr(), &[]);
            let answer = peer.ask(1, "/ws");
            assert_eq!((&answer.body[..], answer.reset), (&b"abc"[..], None));
            let expected = [("x-sum".to_owned(), "6".to_owned())];
            assert_eq!(answer.trailers, expected[..trailers]);
        }
    }
}

#[test]
fn trailers_of_a_request_end_it_and_are_not_passed_on() {
    let origin = Origin::start(|conn| {
        while conn.request()?.is_some() {
            conn.send(b"HTTP/1.1 204 No\r\n\r\n")?;
        }
        Ok(())
    });
    for more in ["", "proxy_request_buffering off;"] {
        let server = proxied(&origin, more);
        let mut peer = Peer::connect(server.addr(), &[]);
        let mut post = get("/ws");
        post[0].1 = "POST";
        let mut bytes = peer.request(1, &post, false);
        bytes.extend(Peer::frame(kind::DATA, 0, 1, b"abc"));
        bytes.extend(peer.request(1, &[("x-sum", "6")], true));
        peer.send(&bytes);
        assert_eq!(peer.answer(1).status(), "204");
        // RFC 9113 §8.1: no pseudo-header, and the end of the stream.
        for (stream, fields, end) in [(3, (":path", "/"), true), (5, ("x", "y"), false)] {
            let mut bytes = peer.request(stream, &post, false);
            bytes.extend(peer.request(stream, &[fields], end));
            peer.send(&bytes);
            assert_eq!(peer.answer(stream).reset, Some(with(ErrorCode::ProtocolError)));
        }
    }
    let requests = origin.requests();
    assert!(requests.iter().take(2).all(|request| request.body == b"abc"), "{requests:?}");
    let text = format!("{requests:?}").to_ascii_lowercase();
    assert!(!text.contains("x-sum"), "{text}");
}

#[test]
fn a_server_that_breaks_off_resets_the_stream_and_is_told_of() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc";
    let origin = Origin::start(move |conn| {
        conn.request()?;
        conn.send(head.as_bytes())
    });
    let server = proxied(&origin, "");
    let mut peer = Peer::connect(server.addr(), &[]);
    let answer = peer.ask(1, "/ws");
    assert_eq!((answer.status(), answer.reset), ("200", Some(with(ErrorCode::InternalError))));
    let text = "upstream prematurely closed connection while reading upstream";
    let told = || server.error_log().contains(text);
    assert!(wait_for(told, LIMIT), "{}", server.error_log());
    assert_eq!(peer.ask(3, "/text").status(), "200");
}

/// A server that answers each request with nothing, and passes on what comes to `/` and `/stream`.
fn silent() -> (Origin, Server) {
    let origin = Origin::start(|conn| {
        while conn.request()?.is_some() {
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
        }
        Ok(())
    });
    let addr = origin.addr();
    let server = start(&format!(
        "location /pass {{
            proxy_pass http://{addr};
            location /pass/stream {{ proxy_pass http://{addr}; proxy_request_buffering off; }}
        }}"
    ));
    (origin, server)
}

fn post<'a>(path: &'a str, length: &'a str) -> [(&'a str, &'a str); 5] {
    [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "a"),
        ("content-length", length),
    ]
}

#[test]
fn a_body_of_another_length_is_refused_by_whoever_reads_it() {
    let (_origin, server) = silent();
    let mut peer = Peer::connect(server.addr(), &[]);
    let cases: [(&str, &str, &[&[u8]]); 4] = [
        ("/pass", "5", &[b"TEST"]),
        ("/pass", "3", &[b"TEST"]),
        // What else comes of it means nothing.
        ("/pass", "3", &[b"TEST", b"TEST"]),
        ("/pass/stream", "5", &[b"TEST"]),
    ];
    for (n, (path, length, data)) in cases.into_iter().enumerate() {
        let stream = n as u32 * 2 + 1;
        let mut bytes = peer.request(stream, &post(path, length), false);
        for (n, piece) in data.iter().enumerate() {
            let end = if n + 1 == data.len() { flag::END_STREAM } else { 0 };
            bytes.extend(Peer::frame(kind::DATA, end, stream, piece));
        }
        peer.send(&bytes);
        assert_eq!(peer.answer(stream).status(), "400", "{path} {length}");
        let (head, payload) = peer.next_of(kind::RST_STREAM).expect("a reset");
        assert_eq!((head.stream, code(&payload)), (stream, with(ErrorCode::ProtocolError)));
    }
    assert_eq!(peer.ask(9, "/text").status(), "200");
}

#[test]
fn an_empty_body_is_announced_as_it_was() {
    let (origin, server) = silent();
    let mut peer = Peer::connect(server.addr(), &[]);
    for (stream, path) in [(1, "/pass"), (3, "/pass/stream")] {
        let request = peer.request(stream, &post(path, "0"), true);
        peer.send(&request);
        assert_eq!(peer.answer(stream).status(), "200");
    }
    for request in &origin.requests()[..2] {
        assert_eq!(request.values("Content-Length"), ["0"], "{}", request.line());
    }
}
