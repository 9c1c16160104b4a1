//! Responses on their way to clients that are slow, old or picky.

use std::time::Duration;

use forebay_testkit::origin::Origin;
use forebay_testkit::{Kind, process};

use crate::{ask, client, get, of_both, pass, start};

const MEGABYTES: usize = 10;

/// An origin that answers with as many bytes as the path says megabytes, whose every byte tells its
/// place.
fn big() -> Origin {
    Origin::start(|conn| {
        while let Some(request) = conn.request()? {
            let path = request.line();
            let path = path.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
            let length = path.parse::<usize>().unwrap_or_default() << 20;
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
            let piece = piece();
            for _ in 0..length >> 20 {
                conn.send(&piece)?;
            }
        }
        Ok(())
    })
}

fn piece() -> Vec<u8> {
    (0..1u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

#[test]
fn a_stalled_download_takes_its_buffers_and_no_more() {
    const STALLED: u64 = 50;
    let origin = big();
    let more = "proxy_max_temp_file_size 0;";
    let server = start(Kind::Forebay, "", &pass(origin.addr(), more));
    let worker = *server.worker_pids().first().unwrap_or(&server.pid());
    let memory = || process::anonymous_bytes(&[worker]).expect("a process");
    let stall = || {
        let mut client = client(&server);
        client.send(format!("GET /{MEGABYTES} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        // The head has come, so that the rest is on its way.
        client.read_exactly(15).unwrap();
        client
    };
    drop(stall());
    let before = memory();
    let clients: Vec<_> = (0..STALLED).map(|_| stall()).collect();
    // Nothing moves any more when the memory stays as it is.
    let mut last = memory();
    let is_still = || {
        let now = memory();
        std::mem::replace(&mut last, now) == now
    };
    assert!(forebay_testkit::wait_for(is_still, crate::LIMIT));
    let each = memory().saturating_sub(before) / clients.len() as u64;
    // Nine buffers of 4 kB, two connections and a request; allocators round.
    assert!(each < 64 << 10, "{each} bytes each");
    // And they all come to their end, whole.
    for mut client in clients.into_iter().take(2) {
        let rest = client.read_response_after(b"HTTP/1.1 200 OK").unwrap();
        assert!(rest.body.chunks(1 << 20).all(|got| got == piece()), "not what was sent");
        assert_eq!(rest.body.len(), MEGABYTES << 20);
    }
}

#[test]
fn a_temporary_file_frees_the_upstream_of_a_stalled_client() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", MEGABYTES << 20).as_bytes(),
        )?;
        let piece = piece();
        for _ in 0..MEGABYTES {
            conn.send(&piece)?;
        }
        Ok(())
    });
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), ""));
        let closed = origin.connections();
        let mut client = client(&server);
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        // Before the client has read anything.
        origin.wait_closed(closed + 1);
        let response = client.read_response(false).unwrap();
        assert_eq!(response.body.len(), MEGABYTES << 20, "{kind}");
        assert!(
            response.body.chunks(1 << 20).all(|got| got == piece()),
            "{kind}: not what was sent"
        );
    });
}

#[test]
fn downloads_are_whole_however_they_are_buffered() {
    let origin = big();
    of_both(|kind| {
        for more in [
            "",
            "proxy_buffering off;",
            "proxy_max_temp_file_size 0;",
            "proxy_max_temp_file_size 1m;",
            "proxy_buffer_size 1k; proxy_buffers 4 1k; proxy_busy_buffers_size 2k; proxy_temp_file_write_size 8k;",
        ] {
            let server = start(kind, "", &pass(origin.addr(), more));
            let mut client = client(&server);
            client.set_timeout(Duration::from_secs(20)).unwrap();
            for megabytes in [0, 1, 4] {
                client
                    .send(format!("GET /{megabytes} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())
                    .unwrap();
                let response = client.read_response(false).unwrap();
                assert_eq!(response.body.len(), megabytes << 20, "{kind} {more}");
                assert!(response.body.chunks(1 << 20).all(|got| got == piece()), "{kind} {more}");
            }
        }
    });
}

#[test]
fn a_client_that_leaves_while_nothing_comes_frees_the_upstream() {
    of_both(|kind| {
        let origin = Origin::start(|conn| {
            conn.head()?;
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")?;
            conn.to_end().map(drop)
        });
        let buffered = if kind == Kind::Forebay { "" } else { "proxy_buffering off;" };
        for more in [buffered, "proxy_buffering off;"] {
            let server = start(kind, "", &pass(origin.addr(), more));
            let closed = origin.connections() - origin.open();
            let mut client = client(&server);
            client.send(&get("/")).unwrap();
            client.read_exactly(15).unwrap();
            drop(client);
            origin.wait_closed(closed + 1);
            crate::wait_logged(&server, "so upstream connection is closed too");
        }
    });
}

#[test]
fn a_response_that_breaks_off_is_not_complete() {
    let origin = Origin::start(|conn| {
        let whole = conn.head()?.is_some_and(|request| request.line().contains("/whole"));
        let body = if whole { "complete." } else { "cut" };
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{body}").as_bytes())
    });
    let format = "log_format done '$uri [$request_completion]';";
    let more = "access_log {prefix}/access.log done;";
    let server = start(Kind::Forebay, format, &pass(origin.addr(), more));
    for (lines, path, expected) in [(1, "/whole", "/whole [OK]"), (2, "/cut", "/cut []")] {
        ask(server.addr(), &get(path));
        assert_eq!(crate::last_access(&server, lines), expected);
    }
}

#[test]
fn a_client_of_http_1_0_gets_no_chunks() {
    let origin = Origin::answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), ""));
        let got = ask(server.addr(), b"GET / HTTP/1.0\r\nHost: a\r\n\r\n");
        assert_eq!(got, "200 until close hello", "{kind}");
        assert_eq!(ask(server.addr(), &get("/")), "200 hello", "{kind}");
    });
}

#[test]
fn statuses_without_body_have_none() {
    let origin = Origin::start(|conn| {
        while let Some(request) = conn.request()? {
            let line = request.line();
            conn.send(match line.split(' ').nth(1) {
                Some("/304") => {
                    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\nETag: \"x\"\r\n\r\n"
                }
                Some("/sized") => b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
                _ => b"HTTP/1.1 204 No Content\r\n\r\n",
            })?;
        }
        Ok(())
    });
    let http = format!("upstream o {{ server {}; keepalive 1; }}", origin.addr());
    of_both(|kind| {
        let (server, before) =
            (start(kind, &http, "location / { proxy_pass http://o; }"), origin.connections());
        for _ in 0..2 {
            assert_eq!(ask(server.addr(), &get("/304")), "304 ", "{kind}");
            assert_eq!(ask(server.addr(), &get("/204")), "204 ", "{kind}");
        }
        assert_eq!(origin.connections() - before, 1, "{kind}");
        let mut client = client(&server);
        client.send(b"GET /sized HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let text = String::from_utf8(client.read_to_end().unwrap()).unwrap();
        assert_eq!(text.contains("Content-Length: 5"), kind == Kind::Nginx, "{text}");
    });
}

#[test]
fn subrequests_meet_the_same_upstreams() {
    let origin = Origin::start(|conn| {
        while let Some(request) = conn.request()? {
            let line = request.line();
            if line.contains("/auth") {
                assert!(request.body.is_empty(), "{request:?}");
            }
            match line.split('=').nth(1).map(|rest| rest.split(' ').next().unwrap_or_default()) {
                Some("no") if line.contains("/auth") => {
                    conn.send(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno")?;
                }
                Some("gone") if line.contains("/auth") => return Ok(()),
                _ => conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?,
            }
        }
        Ok(())
    });
    of_both(|kind| {
        let inside = format!(
            "location / {{ auth_request /auth; proxy_pass http://{0}; }}
             location = /auth {{ internal; proxy_pass http://{0}/auth?$request_uri; \
             proxy_pass_request_body off; proxy_set_header Content-Length ''; }}",
            origin.addr()
        );
        let server = start(kind, "", &inside);
        for (query, want) in [("yes", "200 ok"), ("no", "403"), ("gone", "500")] {
            let request = format!(
                "POST /?a={query} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
            );
            assert_eq!(ask(server.addr(), request.as_bytes()), want, "{kind} {query}");
        }
    });
}
