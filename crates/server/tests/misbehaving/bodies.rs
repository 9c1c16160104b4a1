//! Request bodies on their way: buffered or not, any length, answered early, broken off.

use std::os::fd::AsRawFd;
use std::sync::Mutex;

use forebay_testkit::origin::{Gate, Origin};
use forebay_testkit::{Kind, process, wait_for};

use crate::{LIMIT, ask, client, last_access, of_both, pass, start, wait_logged};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
const UNBUFFERED: &str = "proxy_request_buffering off;";

/// A body whose bytes tell their place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + (at / 7 % 26) as u8).collect()
}

fn post(body: &[u8], chunked: bool) -> Vec<u8> {
    let mut request = b"POST / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n".to_vec();
    match chunked {
        false => {
            request.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
            request.extend(body);
        }
        true => {
            request.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            for piece in body.chunks(3000) {
                request.extend(format!("{:x}\r\n", piece.len()).bytes());
                request.extend(piece);
                request.extend(b"\r\n");
            }
            request.extend(b"0\r\n\r\n");
        }
    }
    request
}

#[test]
fn a_body_arrives_as_it_was_sent() {
    of_both(|kind| {
        let origin = Origin::answering(OK);
        for buffering in
            ["", UNBUFFERED, "client_body_buffer_size 1k;", "client_body_in_file_only clean;"]
        {
            let more = format!("client_max_body_size 0; {buffering}");
            let server = start(kind, "", &pass(origin.addr(), &more));
            for len in [0, 1, 100, 4_096, 8_191, 8_192, 8_193, 65_536, 1_000_000] {
                for chunked in [false, true] {
                    let (before, body) = (origin.requests().len(), pattern(len));
                    let what = format!("{kind} {buffering} {len} {chunked}");
                    assert_eq!(ask(server.addr(), &post(&body, chunked)), "200 ok", "{what}");
                    let request = origin.requests().remove(before);
                    assert!(request.body == body, "{what}: {} bytes", request.body.len());
                    let framed =
                        (request.value("content-length"), request.value("transfer-encoding"));
                    let is_one = match framed {
                        (Some(length), None) => length == len.to_string(),
                        (None, Some(coding)) => {
                            coding == "chunked" && chunked && buffering == UNBUFFERED
                        }
                        _ => false,
                    };
                    assert!(is_one, "{what}: {request:?}");
                }
            }
        }
    });
}

#[test]
fn an_unbuffered_body_goes_on_before_it_is_whole() {
    // A connection for each, so that bytes are told apart.
    let origin = Origin::answering(CLOSE);
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), UNBUFFERED));
        for chunked in [false, true] {
            let (seen, mut client) = (origin.connections(), client(&server));
            let (head, pieces): (&str, [&str; 3]) = match chunked {
                false => ("Content-Length: 9", ["abc", "def", "ghi"]),
                true => (
                    "Transfer-Encoding: chunked",
                    ["3\r\nabc\r\n", "3\r\ndef\r\n", "3\r\nghi\r\n0\r\n\r\n"],
                ),
            };
            client
                .send(format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n").as_bytes())
                .unwrap();
            for (n, piece) in pieces.iter().enumerate() {
                client.send(piece.as_bytes()).unwrap();
                let marks = &["abc", "def", "ghi"][..=n];
                let is_there = || {
                    let text = String::from_utf8_lossy(&origin.bytes(seen)).into_owned();
                    marks.iter().all(|mark| text.contains(mark))
                };
                assert!(wait_for(is_there, LIMIT), "{kind} {chunked}: piece {n}");
            }
            assert_eq!(client.read_response(false).unwrap().body, b"ok", "{kind} {chunked}");
        }
    });
}

#[test]
fn what_is_at_hand_leaves_in_full_segments() {
    // Tengine's pitfalls: a body slightly longer than the buffer that waits for a delayed
    // acknowledgement, and, once Nagle is off, a flood of tiny packets.
    for len in [4_000, 8_000, 8_200, 10_000, 12_000, 16_000, 64_000] {
        let segments = std::sync::Arc::new(Mutex::new(0));
        let count = segments.clone();
        let origin = Origin::start(move |conn| {
            conn.request()?;
            let info = forebay_rt::tcp_info::tcp_info(conn.stream()?.as_raw_fd()).expect("TCP");
            *count.lock().unwrap() = info.data_segments_in;
            conn.send(OK)
        });
        let more = format!("{UNBUFFERED} client_body_buffer_size 8k;");
        let server = start(Kind::Forebay, "", &pass(origin.addr(), &more));
        assert_eq!(ask(server.addr(), &post(&pattern(len), false)), "200 ok");
        // A segment of the loopback takes 64 kB; each read of the client's may end one.
        let most = 2 + len.div_ceil(8_000) as u32;
        let segments = *segments.lock().unwrap();
        assert!(segments <= most, "{len} bytes in {segments} segments, not {most}");
    }
}

#[test]
fn an_upload_without_end_takes_no_memory() {
    const LENGTH: u64 = 2 << 30;
    let origin = Origin::start(|conn| {
        while let Some(request) = conn.head()? {
            let length = request.value("content-length").and_then(|text| text.parse().ok());
            conn.skip(length.unwrap_or(0))?;
            conn.record(&request);
            conn.send(OK)?;
        }
        Ok(())
    });
    let more = format!("{UNBUFFERED} client_max_body_size 0;");
    let server = start(Kind::Forebay, "", &pass(origin.addr(), &more));
    let upload = |length: u64| {
        let mut client = client(&server);
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        client.send(head.as_bytes()).unwrap();
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..length >> 20 {
            client.send(&piece).unwrap();
        }
        assert_eq!(client.read_response(false).unwrap().body, b"ok");
    };
    let worker = *server.worker_pids().first().unwrap_or(&server.pid());
    let peak = || process::status_kb(worker, "VmHWM").expect("a process");
    upload(1 << 20);
    let before = peak();
    upload(LENGTH);
    let grown_kb = peak().saturating_sub(before);
    assert!(grown_kb < 2 << 10, "{grown_kb} kB more for {LENGTH} bytes");
    let files = std::fs::read_dir(server.prefix().join("tmp/body")).map_or(0, Iterator::count);
    assert_eq!(files, 0);
}

#[test]
fn an_upstream_may_answer_before_the_body_is_there() {
    // It does not read on; what it does with its side afterwards varies.
    for closes in [false, true] {
        let origin = Origin::start(move |conn| {
            conn.head()?;
            conn.send(
                b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig",
            )?;
            match closes {
                true => conn.shutdown_write(),
                false => conn.wait_closed(),
            }
        });
        of_both(|kind| {
            let more = format!("{UNBUFFERED} client_max_body_size 0;");
            let server = start(kind, "", &pass(origin.addr(), &more));
            let mut client = client(&server);
            client
                .send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\nabc")
                .unwrap();
            // Without sending more.
            let response = client.read_response(false).unwrap();
            assert_eq!(
                (response.status, &response.body[..]),
                (413, &b"big"[..]),
                "{kind} {closes}"
            );
        });
    }
}

#[test]
fn an_upstream_may_answer_and_go_while_the_body_comes() {
    let origin = Origin::start(|conn| {
        conn.head()?;
        conn.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")?;
        conn.wait_read()
    });
    of_both(|kind| {
        let more = format!("{UNBUFFERED} client_max_body_size 0;");
        let server = start(kind, "", &pass(origin.addr(), &more));
        let got = ask(server.addr(), &post(&pattern(3_000_000), false));
        // The rest of the body meets a closed connection; the answer was there first.
        assert!(got == "413 big" || (kind == Kind::Nginx && got == "502"), "{kind}: {got}");
    });
}

#[test]
fn an_upstream_that_goes_while_the_body_comes_is_a_502() {
    let origin = Origin::start(|conn| {
        conn.head()?;
        conn.take(1000)?;
        conn.reset()
    });
    of_both(|kind| {
        let more = format!("{UNBUFFERED} client_max_body_size 0;");
        let server = start(kind, "", &pass(origin.addr(), &more));
        assert_eq!(ask(server.addr(), &post(&pattern(3_000_000), false)), "502", "{kind}");
    });
}

#[test]
fn a_client_that_breaks_off_its_body_frees_the_upstream() {
    let origin = Origin::answering(OK);
    of_both(|kind| {
        for buffering in ["", UNBUFFERED] {
            let server = start(kind, "", &pass(origin.addr(), buffering));
            let (seen, closed) = (origin.connections(), origin.connections() - origin.open());
            let requests = origin.requests().len();
            let mut client = client(&server);
            client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc").unwrap();
            if buffering == UNBUFFERED {
                let is_there = || origin.bytes(seen).ends_with(b"abc");
                assert!(wait_for(is_there, LIMIT), "{kind}");
                drop(client);
                origin.wait_closed(closed + 1);
            } else {
                drop(client);
            }
            wait_logged(&server, "client prematurely closed connection");
            let status = if kind == Kind::Nginx { "/ 400" } else { "/ 499" };
            let line = last_access(&server, 1);
            assert!(line.starts_with(status), "{kind}: {line}");
            // A whole request never came of it.
            assert_eq!(origin.requests().len(), requests, "{kind}");
        }
    });
}

#[test]
fn what_is_there_of_an_unbuffered_body_is_looked_at_before_a_server_is_asked() {
    let chunked =
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let origin = Origin::answering(OK);
    of_both(|kind| {
        for (body, want, length) in [
            ("3\r\nabc\r\n0\r\n\r\n", "200 ok", Some("3")),
            ("0\r\n\r\n", "200 ok", Some("0")),
            ("9\r\nabcdefghi\r\n0\r\n\r\n", "413", None),
            ("3\r\nabcd\r\n0\r\n\r\n", "400", None),
        ] {
            let more = format!("{UNBUFFERED} client_max_body_size 5;");
            let server = start(kind, "", &pass(origin.addr(), &more));
            let (connections, requests) = (origin.connections(), origin.requests().len());
            let got = ask(server.addr(), format!("{chunked}{body}").as_bytes());
            assert_eq!(got, want, "{kind} {body:?}");
            match length {
                None => {
                    assert_eq!(origin.connections(), connections, "{kind} {body:?}");
                    assert!(last_access(&server, 1).ends_with("[-] [-]"), "{kind} {body:?}");
                }
                Some(_) => {
                    let request = origin.requests().remove(requests);
                    assert_eq!(request.value("content-length").as_deref(), length, "{kind}");
                    assert_eq!(request.value("transfer-encoding"), None, "{kind}");
                }
            }
        }
    });
}

#[test]
fn a_slow_upstream_slows_the_client_and_not_the_memory() {
    let gate = Gate::new();
    let behind = gate.clone();
    let origin = Origin::start(move |conn| {
        let Some(request) = conn.head()? else { return Ok(()) };
        behind.wait();
        let length = request.value("content-length").and_then(|text| text.parse().ok());
        conn.skip(length.unwrap_or(0))?;
        conn.send(OK)
    });
    let more = format!("{UNBUFFERED} client_max_body_size 0;");
    let server = start(Kind::Forebay, "", &pass(origin.addr(), &more));
    let mut client = client(&server);
    client.set_timeout(std::time::Duration::from_secs(1)).unwrap();
    let length = 1u64 << 30;
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    client.send(head.as_bytes()).unwrap();
    // As much as all socket buffers on the way take, and no more.
    let (piece, mut sent) = (vec![b'x'; 1 << 20], 0u64);
    while client.send(&piece).is_ok() {
        sent += piece.len() as u64;
        assert!(sent < length / 2, "somebody stores the body");
    }
    gate.open();
}

#[test]
fn a_buffered_body_goes_whole_to_the_next_server() {
    let closing = Origin::start(|conn| conn.request().map(|_| ()));
    let good = Origin::answering(OK);
    of_both(|kind| {
        for len in [10, 100_000] {
            let http = format!(
                "upstream o {{ server {} max_fails=0; server {} backup; }}",
                closing.addr(),
                good.addr()
            );
            let inside =
                "location / { proxy_pass http://o; proxy_next_upstream error non_idempotent; }";
            let server = start(kind, &http, inside);
            let (before, body) = (good.requests().len(), pattern(len));
            assert_eq!(ask(server.addr(), &post(&body, false)), "200 ok", "{kind} {len}");
            assert!(good.requests()[before].body == body, "{kind} {len}");
        }
    });
}

#[test]
fn an_unbuffered_body_goes_to_the_next_server_only_whole() {
    let refusing = forebay_testkit::ports::Port::reserve().unwrap();
    let resetting = Origin::start(|conn| {
        conn.head()?;
        conn.take(1_000)?;
        conn.reset()
    });
    let good = Origin::answering(OK);
    of_both(|kind| {
        for (first, want, reached) in [
            (format!("127.0.0.1:{}", refusing.number()), "200 ok", 1),
            (resetting.addr().to_string(), "502", 0),
        ] {
            let http = format!(
                "upstream o {{ server {first} max_fails=0; server {} backup; }}",
                good.addr()
            );
            let inside = format!(
                "location / {{ proxy_pass http://o; proxy_next_upstream error non_idempotent; {UNBUFFERED} }}"
            );
            let server = start(kind, &http, &inside);
            let (before, body) = (good.requests().len(), pattern(300_000));
            assert_eq!(ask(server.addr(), &post(&body, false)), want, "{kind} {first}");
            assert_eq!(good.requests().len() - before, reached, "{kind} {first}");
        }
    });
}

#[test]
fn an_upstream_that_does_not_read_times_out() {
    let origin = Origin::start(|conn| {
        conn.head()?;
        conn.hang()
    });
    of_both(|kind| {
        for buffering in ["", UNBUFFERED] {
            let more = format!("{buffering} client_max_body_size 0; proxy_send_timeout 300ms;");
            let server = start(kind, "", &pass(origin.addr(), &more));
            let mut client = client(&server);
            let length = 64 << 20;
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
            client.send(head.as_bytes()).unwrap();
            // Unbuffered, the server stops taking it in, and then closes.
            let _ = client.send(&vec![b'x'; length]);
            assert_eq!(client.read_response(false).unwrap().status, 504, "{kind} {buffering}");
            wait_logged(
                &server,
                "upstream timed out (110: Connection timed out) while sending request",
            );
        }
    });
}

#[test]
fn a_client_that_waits_for_100_is_told_to_go_on() {
    let origin = Origin::answering(OK);
    of_both(|kind| {
        for buffering in ["", UNBUFFERED] {
            let server = start(kind, "", &pass(origin.addr(), buffering));
            let (before, mut client) = (origin.requests().len(), client(&server));
            let head =
                "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
            client.send(head.as_bytes()).unwrap();
            assert_eq!(client.read_response(false).unwrap().status, 100, "{kind} {buffering}");
            client.send(b"abc").unwrap();
            assert_eq!(client.read_response(false).unwrap().body, b"ok", "{kind} {buffering}");
            let request = origin.requests().remove(before);
            assert_eq!((request.value("expect"), &request.body[..]), (None, &b"abc"[..]), "{kind}");
        }
    });
}

/// Passes uploads on unbuffered; a page for an error is asked of the origin, too.
fn with_page(first: &str, origin: &str, page: &str) -> String {
    format!(
        "location / {{ proxy_pass http://{first}; {UNBUFFERED} proxy_intercept_errors on; \
         error_page 500 502 = @page; }} location @page {{ proxy_pass http://{origin}; {page} }}"
    )
}

#[test]
fn a_body_that_went_to_one_server_does_not_go_to_the_page_for_its_error() {
    const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    let refusing = |page: &'static str| {
        Origin::start(move |conn| {
            let Some(mut request) = conn.head()? else { return Ok(()) };
            if conn.number() == 0 {
                return conn
                    .send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            }
            conn.body(&mut request)?;
            conn.record(&request);
            conn.send(page.as_bytes())
        })
    };
    let page = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage";
    // One that came whole is one that was read.
    of_both(|kind| {
        let origin = refusing(page);
        let addr = origin.addr().to_string();
        let server = start(kind, "", &with_page(&addr, &addr, UNBUFFERED));
        let mut client = client(&server);
        client.send(&[HEAD, b"abcde"].concat()).unwrap();
        assert_eq!(client.read_response(false).unwrap().body, b"page", "{kind}");
        assert_eq!(origin.requests()[0].body, b"abcde", "{kind}");
    });
    let origin = refusing(page);
    let addr = origin.addr().to_string();
    let server = start(Kind::Forebay, "", &with_page(&addr, &addr, UNBUFFERED));
    let mut client = client(&server);
    client.send(&[HEAD, b"ab"].concat()).unwrap();
    assert_eq!(client.read_response(false).unwrap().body, b"page");
    let request = origin.requests().remove(0);
    assert_eq!(
        (request.value("content-length").as_deref(), &request.body[..]),
        (Some("0"), &b""[..])
    );
    // What is left of it is not the next request.
    client.send(b"cde").unwrap();
    assert_eq!(client.read_to_end().unwrap_or_default(), b"");
}

#[test]
fn a_body_that_no_server_took_goes_to_the_page_for_the_error() {
    let origin = Origin::answering(OK);
    let addr = origin.addr().to_string();
    // nginx waits for the rest without reading it.
    for page in [UNBUFFERED, ""] {
        let server = start(Kind::Forebay, "", &with_page("127.0.0.1:1", &addr, page));
        let (before, mut client) = (origin.requests().len(), client(&server));
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab";
        client.send(head.as_bytes()).unwrap();
        wait_logged(&server, "connect() failed (111: Connection refused)");
        client.send(b"cde").unwrap();
        assert_eq!(client.read_response(false).unwrap().body, b"ok", "{page}");
        assert_eq!(origin.requests().remove(before).body, b"abcde", "{page}");
    }
}

#[test]
fn what_is_wrong_first_is_told_of_a_body_that_came_at_once() {
    let origin = Origin::answering(OK);
    of_both(|kind| {
        for buffering in ["", UNBUFFERED] {
            let more = format!("client_max_body_size 4; {buffering}");
            let server = start(kind, "", &pass(origin.addr(), &more));
            for (chunks, status) in [
                ("5\r\nabcde\r\nzz\r\n", 413),
                ("5\r\nabcdeXX", 413),
                ("3\r\nabc\r\n3\r\nabc\r\nzz", 413),
                ("3\r\nabc\r\nzz", 400),
            ] {
                let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
                let mut client = client(&server);
                client.send(format!("{head}{chunks}").as_bytes()).unwrap();
                let response = client.read_response(false).unwrap();
                assert_eq!(response.status, status, "{kind} {buffering} {chunks:?}");
            }
        }
    });
}
