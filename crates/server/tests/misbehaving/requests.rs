//! What reaches the back end: one message that nobody can read in two ways.

use forebay_testkit::origin::{Origin, Received};
use forebay_testkit::{Kind, Server};

use crate::{ask, client, get, of_both, pass, start};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Sends a request through a server of its own; the answer, and what the origin read.
fn passed(kind: Kind, inside: &str, request: &str) -> (String, Vec<Received>, Vec<u8>) {
    let origin = Origin::answering(OK);
    let server = start(kind, "", &inside.replace("ORIGIN", &origin.addr().to_string()));
    let got = ask(server.addr(), request.as_bytes());
    drop::<Server>(server);
    origin.wait_closed(origin.connections());
    (got, origin.requests(), origin.bytes(0))
}

const PLAIN: &str = "location / { proxy_pass http://ORIGIN; }";

#[test]
fn hop_by_hop_fields_stay_here() {
    let request = "POST /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\nKeep-Alive: timeout=9\r\n\
                   TE: trailers\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\nExpect: \r\n\
                   X-Kept: yes\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    of_both(|kind| {
        let (got, requests, _) = passed(kind, PLAIN, request);
        assert_eq!(got, "200 ok", "{kind}");
        let [request] = &requests[..] else { panic!("{kind}: {requests:?}") };
        for name in ["Connection", "Keep-Alive", "TE", "Upgrade", "Transfer-Encoding", "Expect"] {
            assert_eq!(request.value(name), None, "{kind}: {request:?}");
        }
        assert_eq!(request.value("X-Kept").as_deref(), Some("yes"), "{kind}");
        assert_eq!(request.value("Content-Length").as_deref(), Some("2"), "{kind}");
        assert_eq!(request.body, b"hi", "{kind}");
    });
}

#[test]
fn fields_that_connection_names_stay_here() {
    let request = "POST /a HTTP/1.1\r\nHost: test\r\nConnection: close, X-Secret , host,content-length\r\n\
                   Connection: x-other\r\nx-secret: 1\r\nX-Other: 2\r\nProxy-Connection: keep-alive\r\n\
                   X-Kept: 3\r\nContent-Length: 2\r\n\r\nhi";
    let (got, requests, _) = passed(Kind::Forebay, PLAIN, request);
    assert_eq!(got, "200 ok");
    let [request] = &requests[..] else { panic!("{requests:?}") };
    for name in ["X-Secret", "X-Other", "Proxy-Connection", "Connection"] {
        assert_eq!(request.value(name), None, "{request:?}");
    }
    // What the message needs is not the client's to take away.
    assert_eq!(request.values("Host").len(), 1, "{request:?}");
    assert_eq!(request.values("Content-Length"), ["2"], "{request:?}");
    assert_eq!(request.value("X-Kept").as_deref(), Some("3"), "{request:?}");
}

#[test]
fn trailers_of_a_chunked_request_stay_here_whatever_they_say() {
    let trailers =
        "Host: evil\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\nCookie: evil\r\n";
    let post = format!(
        "POST /a HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nhi\r\n0\r\n{trailers}\r\n"
    );
    let both = format!("{post}GET /b HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    of_both(|kind| {
        for buffering in ["", "proxy_request_buffering off;"] {
            let more = format!("proxy_set_header Host $host; {buffering}");
            let inside = format!("location / {{ proxy_pass http://ORIGIN; {more} }}");
            let origin = Origin::answering(OK);
            let server = start(kind, "", &inside.replace("ORIGIN", &origin.addr().to_string()));
            let mut client = client(&server);
            client.send(both.as_bytes()).unwrap();
            for _ in 0..2 {
                assert_eq!(client.read_response(false).unwrap().status, 200, "{kind} {buffering}");
            }
            drop(server);
            let requests = origin.requests();
            let lines: Vec<_> = requests.iter().map(Received::line).collect();
            assert_eq!(lines, ["POST /a HTTP/1.1", "GET /b HTTP/1.1"], "{kind} {buffering}");
            assert_eq!(requests[0].body, b"hi", "{kind} {buffering}");
            assert!(!format!("{requests:?}").contains("evil"), "{kind} {buffering}: {requests:?}");
        }
    });
}

#[test]
fn trailers_of_a_request_are_bounded() {
    let origin = Origin::start(|conn| {
        conn.head()?;
        conn.wait_closed()
    });
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n";
    for buffering in ["", "proxy_request_buffering off;"] {
        let server = start(Kind::Forebay, "", &pass(origin.addr(), buffering));
        let mut client = client(&server);
        let _ = client.send(format!("{head}{}", "X: y\r\n".repeat(200_000)).as_bytes());
        crate::wait_logged(&server, "client sent invalid chunked body");
    }
}

#[test]
fn nothing_of_a_client_s_chunks_but_the_body_goes_on() {
    let request = "POST /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5;evil=\"1\"\r\nhello\r\n1\r\n!\r\n0\r\nEvil: 1\r\n\r\n";
    of_both(|kind| {
        for buffering in ["", "proxy_request_buffering off;"] {
            let inside = format!("location / {{ proxy_pass http://ORIGIN; {buffering} }}");
            let (got, requests, bytes) = passed(kind, &inside, request);
            assert_eq!(got, "200 ok", "{kind} {buffering}");
            let [request] = &requests[..] else { panic!("{kind}: {requests:?}") };
            assert_eq!(request.body, b"hello!", "{kind} {buffering}");
            let framing =
                ["Content-Length", "Transfer-Encoding"].map(|name| request.values(name).len());
            assert_eq!(framing.iter().sum::<usize>(), 1, "{kind} {buffering}: {request:?}");
            assert!(!String::from_utf8_lossy(&bytes).to_lowercase().contains("evil"), "{kind}");
        }
    });
}

#[test]
fn lengths_that_can_be_read_in_two_ways_reach_nobody() {
    for fields in [
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 2\r\nContent-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Content-Length: +2\r\n",
        "Content-Length: 2 2\r\n",
        "Content-Length: 0x2\r\n",
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: test\r\n{fields}\r\n2\r\nhi\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\
             Host: test\r\nConnection: close\r\n\r\n"
        );
        let (got, requests, bytes) = passed(Kind::Forebay, PLAIN, &request);
        assert!(got.starts_with("400") || got.starts_with("501"), "{fields}: {got}");
        assert!(requests.is_empty() && bytes.is_empty(), "{fields}: {requests:?}");
    }
}

#[test]
fn decoded_line_ends_do_not_become_lines() {
    for inside in [
        "location / { proxy_pass http://ORIGIN; proxy_set_header X-Path $uri; }",
        "location ~ ^(?<rest>.*)$ { proxy_pass http://ORIGIN$rest; }",
        "location ~ ^(?<rest>.*)$ { proxy_pass http://ORIGIN/?x=$rest; }",
        "location / { proxy_pass http://ORIGIN; proxy_method $arg_m; proxy_set_header Host $uri; }",
        "location / { rewrite ^ $uri? break; proxy_pass http://ORIGIN; }",
    ] {
        let path = "/a%20HTTP/1.1%0d%0aEvil:%201%0d%0a%0d%0aGET%20/smuggled?m=G%0d%0aE";
        let (got, requests, bytes) =
            passed(Kind::Forebay, inside, &String::from_utf8(get(path)).unwrap());
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(requests.len() <= 1, "{inside}: {got} {text}");
        assert!(!text.contains("\nEvil:"), "{inside}: {got} {text}");
        let lines = requests.iter().flat_map(|request| request.lines());
        for line in lines.take(1) {
            assert_eq!(line.split(' ').count(), 3, "{inside}: {line}");
        }
    }
}

#[test]
fn a_method_that_is_none_is_not_sent() {
    let inside = "location ~ (?s)^/(?<m>.*)$ { proxy_pass http://ORIGIN; proxy_method $m; }";
    for (path, want) in [
        ("/PURGE", Some("PURGE /PURGE HTTP/1.1")),
        ("/", Some("GET / HTTP/1.1")),
        ("/GET%20/admin%20HTTP/1.1", None),
        ("/G%0d%0aE", None),
    ] {
        let request = String::from_utf8(get(path)).unwrap();
        let (got, requests, bytes) = passed(Kind::Forebay, inside, &request);
        let line = requests.first().map(|request| request.line());
        assert_eq!(line.as_deref(), want, "{path}: {got}");
        assert!(want.is_some() || got == "500" && bytes.is_empty(), "{path}: {got}");
    }
}

#[test]
fn the_request_is_written_as_the_directives_say() {
    let table: &[(&str, &str, &str)] = &[
        (
            "proxy_set_header X-Real-IP $remote_addr;",
            "GET /a?b=c",
            "GET /a?b=c HTTP/1.1\r\nHost: ORIGIN\r\nX-Real-IP: 127.0.0.1\r\n",
        ),
        (
            "proxy_set_header Host $host; proxy_set_header Accept '';",
            "GET /",
            "GET / HTTP/1.1\r\nHost: test\r\n",
        ),
        ("proxy_http_version 1.0;", "GET /", "GET / HTTP/1.0\r\n"),
        ("proxy_method PUT;", "GET /", "PUT / HTTP/1.1\r\n"),
        ("proxy_pass_request_headers off;", "GET /", "GET / HTTP/1.1\r\n"),
        ("proxy_set_body \"b=$arg_b\";", "GET /?b=xyz", "Content-Length: 5\r\n"),
        ("", "GET /%41%2f..%2fb//c?%41", "GET /%41%2f..%2fb//c?%41 HTTP/1.1\r\n"),
    ];
    for (more, line, want) in table {
        let inside = format!(
            "location / {{ proxy_pass http://ORIGIN; proxy_set_header Connection ''; {more} }}"
        );
        let request = format!(
            "{line} HTTP/1.1\r\nHost: test\r\nAccept: x\r\nUser-Agent: u\r\nConnection: close\r\n\r\n"
        );
        let mut heads = Vec::new();
        for kind in [Kind::Nginx, Kind::Forebay] {
            if !crate::is_held(kind) {
                continue;
            }
            let origin = Origin::answering(OK);
            let addr = origin.addr().to_string();
            let server = start(kind, "", &inside.replace("ORIGIN", &addr));
            assert_eq!(ask(server.addr(), request.as_bytes()), "200 ok", "{kind} {more}");
            let request = origin.requests().remove(0);
            let text = format!("{}{}", request.head.escape_ascii(), request.body.escape_ascii());
            heads.push(text.replace(&addr, "ORIGIN"));
        }
        for head in &heads {
            let first = want.split("\r\n").next().unwrap();
            assert!(head.contains(first), "{more}: {head} without {first}");
            assert_eq!(head, &heads[0], "{more}");
        }
    }
}

#[test]
fn hop_by_hop_fields_of_a_response_stay_here() {
    let origin = Origin::answering(
        "HTTP/1.1 200 OK\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\nKeep-Alive: timeout=9\r\n\
         Proxy-Authenticate: x\r\nX-Kept: 2\r\nContent-Length: 2\r\n\r\nok",
    );
    let server = start(Kind::Forebay, "", &pass(origin.addr(), ""));
    let mut client = crate::client(&server);
    client.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let response = client.read_response(false).unwrap();
    for name in ["X-Secret", "Keep-Alive"] {
        assert_eq!(response.header(name), None, "{response:?}");
    }
    assert_eq!(response.header("X-Kept"), Some(&b"2"[..]));
    // The client's own connection goes on.
    assert_eq!(response.header("Connection"), Some(&b"keep-alive"[..]));
}
