//! Connections that are kept, given up, and asked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use forebay_testkit::origin::{Gate, Origin};
use forebay_testkit::origin_h2::H2;
use forebay_wire::h2::{ErrorCode, frame::kind, settings::id};

use super::{counting, with};
use crate::{ask, get, last_access, wait_logged};

fn post(path: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
    )
    .into_bytes()
}

fn group(origin: &Origin) -> String {
    format!("upstream o {{ server {}; keepalive 4; }}", origin.addr())
}

#[test]
fn a_connection_carries_one_stream_after_another() {
    let origin = counting();
    let server = with(&group(&origin), "");
    for stream in ["0/1", "0/3", "0/5"] {
        assert_eq!(ask(server.addr(), &get("/")), format!("200 {stream}"));
    }
    assert_eq!(ask(server.addr(), &post("/")), "200 0/7");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn without_keepalive_each_request_has_a_connection() {
    let origin = counting();
    let server = with(&format!("upstream o {{ server {}; keepalive 0; }}", origin.addr()), "");
    for answer in ["200 0/1", "200 1/1"] {
        assert_eq!(ask(server.addr(), &get("/")), answer);
    }
    origin.wait_closed(2);
}

#[test]
fn an_idle_connection_answers_pings_and_settings() {
    let answered = Gate::new();
    let tell = answered.clone();
    let origin = Origin::start(move |conn| {
        let Some(mut h2) = H2::serve(conn, &[])? else { return Ok(()) };
        while let Some(asked) = h2.request()? {
            h2.ok(asked.stream, asked.stream.to_string().as_bytes())?;
            if asked.stream > 1 {
                continue;
            }
            h2.frame(kind::PING, 0, 0, b"are you?")?;
            h2.settings(&[(id::INITIAL_WINDOW_SIZE, 1)])?;
            while let Some((head, payload)) = h2.next_of(kind::PING)? {
                if head.flags == 1 && payload == b"are you?" {
                    break;
                }
            }
            h2.next_of(kind::SETTINGS)?;
            tell.open();
        }
        Ok(())
    });
    let server = with(&group(&origin), "");
    assert_eq!(ask(server.addr(), &get("/")), "200 1");
    assert!(answered.wait());
    // What was set meanwhile holds: the body of this goes byte by byte.
    assert_eq!(ask(server.addr(), &post("/")), "200 3");
    assert_eq!((origin.connections(), &origin.requests()[1].body[..]), (1, &b"hi"[..]));
}

#[test]
fn a_connection_that_ends_or_is_full_is_not_used_again() {
    let cases: [fn(&mut H2<'_>, u32) -> std::io::Result<()>; 5] = [
        |h2, id| h2.goaway(id, ErrorCode::NoError),
        |h2, _| h2.settings(&[(id::MAX_CONCURRENT_STREAMS, 0)]),
        |h2, id| h2.data(id, b"more", true),
        |h2, id| h2.head(id + 2, &[(":status", "200")], true),
        |h2, _| h2.frame(kind::PUSH_PROMISE, 4, 1, b"\0\0\0\x02\x82"),
    ];
    // With the response, and behind it.
    for at_once in [true, false] {
        for (number, ends) in cases.into_iter().enumerate() {
            let origin = Origin::start(move |conn| {
                let name = conn.number().to_string();
                let Some(mut h2) = H2::serve(conn, &[])? else { return Ok(()) };
                let Some(asked) = h2.request()? else { return Ok(()) };
                h2.ok(asked.stream, name.as_bytes())?;
                if !at_once {
                    h2.conn.wait_read()?;
                }
                ends(&mut h2, asked.stream)?;
                while let Some(asked) = h2.request()? {
                    h2.ok(asked.stream, b"again")?;
                }
                Ok(())
            });
            let server = with(&group(&origin), "");
            assert_eq!(ask(server.addr(), &get("/")), "200 0", "{at_once} {number}");
            origin.wait_closed(1);
            assert_eq!(ask(server.addr(), &get("/")), "200 1", "{at_once} {number}");
        }
    }
}

#[test]
fn what_a_kept_connection_did_not_look_at_is_sent_over_a_new_one() {
    let cases: [fn(&mut H2<'_>, u32) -> std::io::Result<()>; 3] = [
        |h2, id| h2.goaway(id - 2, ErrorCode::NoError),
        |h2, id| h2.reset(id, ErrorCode::RefusedStream),
        |h2, id| {
            h2.goaway(id - 2, ErrorCode::NoError)?;
            h2.conn.shutdown_write()
        },
    ];
    for (number, refuses) in cases.into_iter().enumerate() {
        let origin = Origin::start(move |conn| {
            let name = conn.number().to_string();
            let Some(mut h2) = H2::serve(conn, &[])? else { return Ok(()) };
            while let Some(asked) = h2.request()? {
                match asked.stream {
                    1 => h2.ok(1, name.as_bytes())?,
                    other => refuses(&mut h2, other)?,
                }
            }
            Ok(())
        });
        let server = with(&group(&origin), "");
        assert_eq!(ask(server.addr(), &get("/")), "200 0");
        // Also one that may not be repeated: it was not looked at.
        assert_eq!(ask(server.addr(), &post("/")), "200 1", "{number}: {}", server.error_log());
        let one = origin.addr();
        assert_eq!(last_access(&server, 2), format!("/ 200 [{one}] [200]"));
    }
}

#[test]
fn a_request_that_was_not_looked_at_goes_to_the_next_server() {
    for code in [None, Some(ErrorCode::RefusedStream)] {
        let refusing = super::serving(move |h2, asked| match code {
            None => h2.goaway(0, ErrorCode::NoError),
            Some(code) => h2.reset(asked.stream, code),
        });
        let good = counting();
        let (one, other) = (refusing.addr(), good.addr());
        let http = format!("upstream o {{ server {one}; server {other}; }}");
        let server = with(&http, "");
        assert_eq!(ask(server.addr(), &post("/")), "200 0/1", "{}", server.error_log());
        assert_eq!(last_access(&server, 1), format!("/ 200 [{one}, {other}] [502, 200]"));
    }
}

#[test]
fn a_request_that_was_looked_at_goes_nowhere_else_unless_told() {
    let tries = Arc::new(AtomicUsize::new(0));
    let count = tries.clone();
    let bad = super::serving(move |h2, asked| {
        count.fetch_add(1, SeqCst);
        h2.reset(asked.stream, ErrorCode::InternalError)
    });
    let good = counting();
    let http = format!("upstream o {{ server {}; server {}; }}", bad.addr(), good.addr());
    let server = with(&http, "");
    assert_eq!(ask(server.addr(), &get("/")), "502");
    assert_eq!(tries.load(SeqCst), 1);
    let server = with(&http, "proxy_next_upstream invalid_header;");
    assert_eq!(ask(server.addr(), &get("/")), "200 0/1");
    wait_logged(&server, "upstream rejected request with error 2");
    // A POST may have been acted on.
    let server = with(&http, "proxy_next_upstream invalid_header;");
    assert_eq!(ask(server.addr(), &post("/")), "502");
}

#[test]
fn a_client_that_leaves_takes_the_stream_with_it() {
    let origin = super::serving(|h2, _| h2.conn.wait_closed());
    let server = with(&group(&origin), "");
    let mut client = crate::client(&server);
    client.send(&get("/")).expect("send");
    origin.wait_requests(1);
    drop(client);
    origin.wait_closed(1);
    wait_logged(&server, "client prematurely closed connection");
}

#[test]
fn a_connection_is_kept_when_the_end_comes_late() {
    let origin = super::serving(|h2, asked| {
        let length = if asked.path() == "/empty" { "0" } else { "5" };
        h2.head(asked.stream, &[(":status", "200"), ("content-length", length)], false)?;
        if length == "5" {
            h2.data(asked.stream, b"hello", false)?;
        }
        h2.conn.wait_read()?;
        h2.data(asked.stream, b"", true)
    });
    let mut before = 0;
    for buffering in ["", "proxy_buffering off;"] {
        for (path, want) in [("/empty", "200 "), ("/", "200 hello")] {
            let server = with(&group(&origin), buffering);
            for _ in 0..3 {
                assert_eq!(ask(server.addr(), &get(path)), want);
            }
            before += 1;
            assert_eq!(origin.connections(), before, "{path} {buffering}");
        }
    }
}
