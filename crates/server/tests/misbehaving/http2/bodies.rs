//! Large bodies and small windows, in both directions, and what follows a body.

use std::io::Read as _;

use forebay_testkit::Kind;
use forebay_testkit::origin::{Gate, Origin};
use forebay_testkit::origin_h2::H2;
use forebay_wire::h2::{
    ErrorCode,
    frame::{flag, kind},
    settings::id,
};

use super::{proxy, serving};
use crate::{LIMIT, ask, client, get, start, wait_for, wait_logged};

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| b'a' + ((at.wrapping_mul(2_654_435_761) >> 13) % 26) as u8).collect()
}

fn post(body: &[u8], more: &str) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "POST / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {len}\r\n{more}\r\n"
    );
    [head.as_bytes(), body].concat()
}

const UPLOADS: [&str; 3] = [
    "",
    "proxy_request_buffering off;",
    // In a file.
    "client_body_buffer_size 1k;",
];

#[test]
fn uploads_keep_to_windows_of_any_size() {
    let body = pattern(300_000);
    let expected = body.clone();
    for (window, frame) in [(1, 16_384), (1000, 16_384), (65_535, 16_384), (1 << 20, 1 << 20)] {
        let body = if window == 1 { &body[..200] } else { &body[..] };
        let origin = Origin::start(move |conn| {
            let settings = [(id::INITIAL_WINDOW_SIZE, window), (id::MAX_FRAME_SIZE, frame)];
            let Some(mut h2) = H2::serve(conn, &settings)? else { return Ok(()) };
            while let Some(asked) = h2.request()? {
                h2.ok(asked.stream, asked.body.len().to_string().as_bytes())?;
            }
            Ok(())
        });
        for how in UPLOADS {
            let server = proxy(origin.addr(), how);
            let before = origin.requests().len();
            let got = ask(server.addr(), &post(body, ""));
            assert_eq!(got, format!("200 {}", body.len()), "{window} {how}");
            assert!(origin.requests()[before].body == expected[..body.len()], "{window} {how}");
        }
    }
}

#[test]
fn a_window_that_stays_shut_runs_into_the_send_timeout() {
    let origin = Origin::start(|conn| {
        let Some(mut h2) = H2::serve(conn, &[])? else { return Ok(()) };
        h2.gives_windows = false;
        h2.conn.wait_closed()
    });
    for how in UPLOADS {
        let server = proxy(origin.addr(), &format!("proxy_send_timeout 300ms; {how}"));
        assert_eq!(ask(server.addr(), &post(&pattern(100_000), "")), "504", "{how}");
        wait_logged(
            &server,
            "upstream timed out (110: Connection timed out) while sending request",
        );
    }
}

#[test]
fn a_window_may_shrink_below_nothing_and_open_again() {
    let origin = Origin::start(|conn| {
        let Some(mut h2) = H2::serve(conn, &[(id::INITIAL_WINDOW_SIZE, 1000)])? else {
            return Ok(());
        };
        h2.gives_windows = false;
        let Some(asked) = h2.request_head()? else { return Ok(()) };
        let stream = asked.stream;
        while h2.so_far(stream).is_some_and(|asked| asked.body.len() < 1000) {
            h2.next_of(kind::DATA)?;
        }
        h2.settings(&[(id::INITIAL_WINDOW_SIZE, 0)])?;
        h2.next_of(kind::SETTINGS)?;
        h2.window(stream, 1000)?;
        h2.window(stream, 500)?;
        while h2.so_far(stream).is_some_and(|asked| asked.body.len() < 1500) {
            h2.next_of(kind::DATA)?;
        }
        h2.settings(&[(id::INITIAL_WINDOW_SIZE, 60_000)])?;
        h2.gives_windows = true;
        let Some(asked) = h2.request()? else { return Ok(()) };
        h2.ok(stream, asked.body.len().to_string().as_bytes())
    });
    let server = proxy(origin.addr(), "");
    assert_eq!(ask(server.addr(), &post(&pattern(50_000), "")), "200 50000");
}

#[test]
fn an_answer_may_come_before_the_request_is_whole() {
    // It has said all: the rest is not wanted (RFC 9113 §8.1).
    let origin = Origin::start(|conn| {
        let Some(mut h2) = H2::serve(conn, &[])? else { return Ok(()) };
        h2.gives_windows = false;
        let Some(asked) = h2.request_head()? else { return Ok(()) };
        h2.head(asked.stream, &[(":status", "413")], false)?;
        h2.data(asked.stream, b"too much", true)?;
        h2.reset(asked.stream, ErrorCode::NoError)?;
        h2.conn.wait_closed()
    });
    for how in UPLOADS {
        let server = proxy(origin.addr(), how);
        let got = ask(server.addr(), &post(&pattern(200_000), ""));
        assert_eq!(got, "413 until close too much".replace(" until close", ""), "{how}");
    }
}

#[test]
fn a_request_goes_on_while_its_answer_comes() {
    // An echo: the body goes in and out at once, and neither fits a window.
    let origin = Origin::start(|conn| {
        let Some(mut h2) = H2::serve(conn, &[(id::INITIAL_WINDOW_SIZE, 5000)])? else {
            return Ok(());
        };
        let Some(asked) = h2.request_head()? else { return Ok(()) };
        h2.head(asked.stream, &[(":status", "200")], false)?;
        let mut sent = 0;
        loop {
            let so_far = match h2.so_far(asked.stream) {
                Some(asked) => (asked.body[sent..].to_vec(), asked.ended),
                None => return Ok(()),
            };
            sent += so_far.0.len();
            h2.data(asked.stream, &so_far.0, so_far.1)?;
            if so_far.1 {
                break;
            }
            h2.next_of(kind::DATA)?;
        }
        h2.conn.wait_closed()
    });
    let body = pattern(200_000);
    for how in [UPLOADS, ["proxy_buffering off;", "", ""]].concat() {
        let server = proxy(origin.addr(), how);
        let got = ask(server.addr(), &post(&body, ""));
        assert!(got == format!("200 {}", body.escape_ascii()), "{how}: {} bytes", got.len());
    }
}

#[test]
fn downloads_are_whole_however_they_are_passed_on() {
    const LEN: usize = 3 << 20;
    let origin = serving(|h2, asked| {
        h2.head(asked.stream, &[(":status", "200")], false)?;
        let body = pattern(LEN);
        for (number, part) in body.chunks(9000).enumerate() {
            // Padded now and then, and with frames between.
            let payload = [&[200][..], part, &[0; 200]].concat();
            match number % 3 {
                0 => h2.frame(kind::DATA, flag::PADDED, asked.stream, &payload)?,
                1 => h2.data(asked.stream, part, false)?,
                _ => {
                    h2.frame(kind::PING, 0, 0, &[9; 8])?;
                    h2.data(asked.stream, part, false)?;
                }
            }
        }
        h2.data(asked.stream, b"", true)
    });
    for how in ["", "proxy_buffering off;", "proxy_max_temp_file_size 0;"] {
        let server = proxy(origin.addr(), how);
        let got = ask(server.addr(), &get("/"));
        assert!(got == format!("200 {}", pattern(LEN).escape_ascii()), "{how}: {}", got.len());
    }
}

#[test]
fn a_slow_client_leaves_the_rest_in_a_file_and_the_connection_free() {
    // More than two sockets hold.
    const MEGABYTES: usize = 24;
    let origin = serving(|h2, asked| match asked.path() {
        "/large" => {
            let length = (MEGABYTES << 20).to_string();
            h2.head(asked.stream, &[(":status", "200"), ("content-length", &length)], false)?;
            let body = pattern(1 << 20).repeat(MEGABYTES);
            body.chunks(16_000).try_for_each(|part| h2.data(asked.stream, part, false))?;
            h2.data(asked.stream, b"", true)
        }
        _ => h2.ok(asked.stream, h2.conn.number().to_string().as_bytes()),
    });
    let http = format!("upstream o {{ server {}; keepalive 4; }}", origin.addr());
    let server = super::with(&http, "");
    let mut slow = client(&server);
    slow.send(&get("/large")).expect("send");
    origin.wait_requests(1);
    // The origin is done with it while the client has not begun to read.
    assert!(wait_for(|| ask(server.addr(), &get("/")) == "200 0", LIMIT));
    let got = slow.read_to_end().expect("the rest");
    let body = &got[got.len() - (MEGABYTES << 20)..];
    assert!(body.chunks(1 << 20).all(|part| part == pattern(1 << 20)));
    wait_logged(&server, "an upstream response is buffered to a temporary file");
}

#[test]
fn trailers_are_passed_on_where_that_is_wanted() {
    let origin = serving(|h2, asked| {
        h2.head(asked.stream, &[(":status", "200"), ("trailer", "x-sum")], false)?;
        h2.data(asked.stream, b"hello", false)?;
        if asked.path() == "/late" {
            h2.conn.wait_read()?;
        }
        h2.head(asked.stream, &[("x-sum", "5"), ("content-length", "9")], true)
    });
    for (on, trailer) in [("on", true), ("off", false)] {
        let server = proxy(origin.addr(), &format!("proxy_pass_trailers {on};"));
        for path in ["/", "/late"] {
            let mut asking = client(&server);
            let head = "Host: test\r\nConnection: close, TE\r\nTE: trailers";
            let request = format!("GET {path} HTTP/1.1\r\n{head}\r\n\r\n");
            asking.send(request.as_bytes()).expect("send");
            let bytes = asking.read_to_end().expect("a response");
            let text = String::from_utf8_lossy(&bytes);
            assert_eq!(text.contains("\r\n0\r\nx-sum: 5\r\n\r\n"), trailer, "{on} {path}: {text}");
            assert!(!text.contains("content-length: 9"), "{text}");
        }
    }
}

#[test]
fn early_hints_come_through() {
    let seen = Gate::new();
    let wait = seen.clone();
    let origin = serving(move |h2, asked| {
        h2.head(asked.stream, &[(":status", "103"), ("link", "</a>")], false)?;
        wait.wait();
        h2.ok(asked.stream, b"ok")
    });
    let http = format!("upstream o {{ server {}; }}", origin.addr());
    let inside = "location / { early_hints 1; proxy_pass http://o; proxy_http_version 2; }";
    let server = start(Kind::Forebay, &http, inside);
    let mut asking = std::net::TcpStream::connect(server.addr()).expect("connect");
    std::io::Write::write_all(&mut asking, &get("/")).expect("send");
    let mut first = [0; 12];
    asking.read_exact(&mut first).expect("a hint");
    assert_eq!(&first, b"HTTP/1.1 103");
    seen.open();
    let mut rest = String::new();
    asking.read_to_string(&mut rest).expect("an answer");
    assert!(rest.contains("link: </a>") && rest.contains("200 OK"), "{rest}");
}
