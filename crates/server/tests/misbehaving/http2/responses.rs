//! Responses that break a rule, or are not worth their bytes.

use std::io;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use forebay_testkit::origin::Origin;
use forebay_testkit::origin_h2::H2;
use forebay_testkit::{Kind, Server};
use forebay_wire::h2::{
    ErrorCode,
    frame::{flag, kind},
    settings::id,
};

use super::{proxy, serving};
use crate::{LIMIT, ask, get, is_held, pass, start, wait_for};

/// How far a flood goes before the test says that it is not stopped.
const ENDLESS: usize = 64 << 20;

struct Row {
    name: &'static str,
    script: fn(&mut H2<'_>, u32) -> io::Result<()>,
    /// What the client sees.
    seen: &'static str,
    /// What the log says.
    log: &'static str,
    /// Whether nginx 1.22 does the same where it speaks HTTP/2 to upstreams: with `grpc_pass`.
    nginx: bool,
}

impl Row {
    /// nginx is more trusting, or says it otherwise.
    fn only_here(self) -> Row {
        Row { nginx: false, ..self }
    }
}

const OK: &[(&str, &str)] = &[(":status", "200")];

const fn row(
    name: &'static str,
    script: fn(&mut H2<'_>, u32) -> io::Result<()>,
    seen: &'static str,
    log: &'static str,
) -> Row {
    Row { name, script, seen, log, nginx: true }
}

fn flood(h2: &mut H2<'_>, bytes: &[u8]) -> io::Result<()> {
    let many = bytes.repeat((32 << 10) / bytes.len() + 1);
    let sent = h2.conn.flood(&many, ENDLESS)?;
    assert!(sent < ENDLESS, "nobody stopped it");
    Ok(())
}

fn rows() -> Vec<Row> {
    const HEAD: &str = "while reading response header from upstream";
    const EARLY: &str = "upstream prematurely closed connection";
    const LONGER: &str = "upstream sent response body larger than indicated content length";
    const SHORTER: &str = "upstream prematurely closed stream";
    const INVALID: &str = "upstream sent invalid header";
    const NO_USE: &str = "upstream sent too many frames of no use";
    vec![
        row("all well", |h2, id| h2.ok(id, b"hello"), "200 hello", ""),
        row("no answer", |h2, _| h2.conn.shutdown_write(), "502", EARLY),
        row(
            "a reset connection",
            |h2, _| h2.conn.reset(),
            "502",
            "(104: Connection reset by peer)",
        ),
        row(
            "no :status",
            |h2, id| h2.head(id, &[("a", "b")], true),
            "502",
            "upstream sent no :status header while reading response header from upstream",
        ),
        row(
            "a :status that is none",
            |h2, id| h2.head(id, &[(":status", "2x0")], true),
            "502",
            "upstream sent invalid :status \"2x0\" while reading",
        ),
        row(
            "101",
            |h2, id| h2.head(id, &[(":status", "101")], true),
            "502",
            "upstream sent unexpected :status \"101\"",
        ),
        row(
            "an upper-case name",
            |h2, id| h2.head(id, &[(":status", "200"), ("A", "b")], true),
            "502",
            "upstream sent invalid header: \"A: b\"",
        ),
        row(
            "a line break in a value",
            |h2, id| h2.head(id, &[(":status", "200"), ("a", "b\r\nset-cookie: c")], true),
            "502",
            INVALID,
        ),
        row(
            "a line break in a name",
            |h2, id| h2.head(id, &[(":status", "200"), ("a: b\r\nc", "d")], true),
            "502",
            INVALID,
        ),
        row(
            "Connection",
            |h2, id| h2.head(id, &[(":status", "200"), ("connection", "close")], true),
            "502",
            INVALID,
        )
        .only_here(),
        row(
            "Transfer-Encoding",
            |h2, id| h2.head(id, &[(":status", "200"), ("transfer-encoding", "chunked")], true),
            "502",
            INVALID,
        )
        .only_here(),
        row(
            "two lengths",
            |h2, id| {
                let lengths = [("content-length", "1"), ("content-length", "2")];
                h2.head(id, &[OK, &lengths].concat(), false)
            },
            "502",
            "duplicate header line: \"content-length: 2\", previous value: \"content-length: 1\" while",
        )
        .only_here(),
        row(
            "a large head",
            |h2, id| {
                let long = "x".repeat(5000);
                h2.head(id, &[(":status", "200"), ("a", &long)], true)
            },
            "502",
            "upstream sent too big header while reading response header from upstream",
        ),
        row(
            "a block that is none",
            |h2, id| h2.frame(kind::HEADERS, flag::END_HEADERS, id, &[0xff; 20]),
            "502",
            "upstream sent invalid encoded header",
        )
        .only_here(),
        row(
            "data without a head",
            |h2, id| h2.data(id, b"x", true),
            "502",
            "upstream sent unexpected http2 frame: 0",
        ),
        row(
            "another stream",
            |h2, id| h2.head(id + 2, OK, true),
            "502",
            "upstream sent frame for unknown stream 3",
        ),
        row(
            "a promise",
            |h2, id| h2.frame(kind::PUSH_PROMISE, flag::END_HEADERS, id, b"\0\0\0\x02\x82"),
            "502",
            "upstream sent unexpected push promise frame",
        ),
        row(
            "a large frame",
            |h2, id| h2.data(id, &[0; 16_385], true),
            "502",
            "upstream sent too large http2 frame: 16385",
        ),
        row(
            "refused",
            |h2, id| h2.reset(id, ErrorCode::RefusedStream),
            "502",
            "upstream rejected request with error 7",
        ),
        row(
            "cancelled",
            |h2, id| h2.reset(id, ErrorCode::Cancel),
            "502",
            "upstream rejected request with error 8",
        ),
        row(
            "goes away",
            |h2, _| h2.goaway(0, ErrorCode::EnhanceYourCalm),
            "502",
            "upstream sent goaway with error 11",
        ),
        row(
            "goes away after this",
            |h2, id| {
                h2.goaway(id, ErrorCode::NoError)?;
                h2.ok(id, b"last")
            },
            "200 last",
            "",
        ),
        row(
            "a window that is too large",
            |h2, _| h2.window(0, 0x7fff_ffff),
            "502",
            "upstream sent too large window update",
        ),
        row(
            "a setting that is out of bounds",
            |h2, _| h2.settings(&[(id::MAX_FRAME_SIZE, 1)]),
            "502",
            "upstream sent SETTINGS frame with incorrect MAX_FRAME_SIZE",
        )
        .only_here(),
        row(
            "too short",
            |h2, id| {
                h2.head(id, &[(":status", "200"), ("content-length", "5")], false)?;
                h2.conn.wait_read()?;
                h2.data(id, b"hell", true)
            },
            "200 cut",
            SHORTER,
        ),
        row(
            "too short, told by the head",
            |h2, id| h2.head(id, &[(":status", "200"), ("content-length", "5")], true),
            "502",
            SHORTER,
        )
        .only_here(),
        row(
            "too long",
            |h2, id| {
                h2.head(id, &[(":status", "200"), ("content-length", "2")], false)?;
                h2.data(id, b"ab", false)?;
                h2.conn.wait_read()?;
                h2.data(id, b"c", true)
            },
            "200 ab",
            LONGER,
        ),
        row(
            "a body where there is none",
            |h2, id| {
                h2.head(id, &[(":status", "204")], false)?;
                h2.data(id, b"x", true)
            },
            "204",
            "",
        ),
        row(
            "cut off",
            |h2, id| {
                h2.head(id, OK, false)?;
                h2.data(id, b"so far", false)?;
                h2.conn.wait_read()?;
                h2.conn.shutdown_write()
            },
            "200 cut so far",
            EARLY,
        ),
        row(
            "reset in the body",
            |h2, id| {
                h2.head(id, OK, false)?;
                h2.data(id, b"so far", false)?;
                h2.conn.wait_read()?;
                h2.reset(id, ErrorCode::NoError)
            },
            "200 cut so far",
            "upstream rejected request with error 0",
        ),
        row(
            "another response behind it",
            |h2, id| {
                // At once: else the next request may come between them, and be the one that fails.
                let mut all = H2::section(id, OK, false);
                all.extend(H2::bytes(kind::DATA, flag::END_STREAM, id, b"one"));
                all.extend(H2::section(id, OK, true));
                h2.send(&all)
            },
            "200 one",
            "upstream sent frame for closed stream 1 after its response",
        )
        .only_here(),
        row(
            "interim responses without end",
            |h2, id| {
                for _ in 0..40 {
                    h2.head(id, &[(":status", "103"), ("link", "x")], false)?;
                }
                Ok(())
            },
            "103, 103",
            "upstream sent too many interim responses",
        )
        .only_here(),
        row(
            "an interim response that is all",
            |h2, id| h2.head(id, &[(":status", "103")], true),
            "502",
            SHORTER,
        )
        .only_here(),
        row(
            "a flood of settings",
            |h2, _| flood(h2, &H2::bytes(kind::SETTINGS, 0, 0, &[])),
            "502",
            "upstream sent too many settings frames",
        ),
        row(
            "a flood of pings",
            |h2, _| flood(h2, &H2::bytes(kind::PING, 0, 0, &[7; 8])),
            "502",
            "upstream sent too many",
        )
        .only_here(),
        row(
            "a flood of windows",
            |h2, id| flood(h2, &H2::bytes(kind::WINDOW_UPDATE, 0, id, &[0, 0, 0, 1])),
            "502",
            NO_USE,
        )
        .only_here(),
        row(
            "a flood of what nobody knows",
            |h2, _| flood(h2, &H2::bytes(0x99, 0, 0, &[0; 1000])),
            "502",
            NO_USE,
        )
        .only_here(),
        row(
            "a flood of empty data",
            |h2, id| {
                h2.head(id, OK, false)?;
                flood(h2, &H2::bytes(kind::DATA, 0, id, &[]))
            },
            "200 cut",
            NO_USE,
        )
        .only_here(),
        row(
            "a flood of CONTINUATION",
            |h2, id| {
                h2.frame(kind::HEADERS, 0, id, b"\x88")?;
                flood(h2, &H2::bytes(kind::CONTINUATION, 0, id, &[]))
            },
            "502",
            NO_USE,
        )
        .only_here(),
        row(
            "a head without end",
            |h2, id| {
                h2.frame(kind::HEADERS, 0, id, b"\x88")?;
                flood(h2, &H2::bytes(kind::CONTINUATION, 0, id, &[0x40; 4000]))
            },
            "502",
            "upstream sent too big header",
        ),
        row(
            "a bomb of fields",
            |h2, id| {
                let mut block = vec![0x88, 0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
                block.extend(vec![b'x'; 4000]);
                block.extend(vec![0xbe; 8000]);
                h2.frame(kind::HEADERS, flag::END_HEADERS, id, &block)
            },
            "502",
            "upstream sent too big header",
        )
        .only_here(),
        row("nothing at all", |h2, _| h2.conn.wait_closed(), "504", HEAD),
    ]
}

/// Both ways of passing a response on.
const BUFFERINGS: [&str; 2] = ["", "proxy_buffering off;"];

#[test]
fn bad_responses_are_refused_or_cut_and_told() {
    let origin = serving(|h2, asked| {
        let number: usize = asked.path()[1..].parse().expect("a number");
        (rows()[number].script)(h2, asked.stream)
    });
    let mut servers: Vec<_> = BUFFERINGS
        .iter()
        .map(|buffering| {
            // Long enough for what does come.
            let hints = "early_hints 1; proxy_read_timeout 1s;";
            proxy(origin.addr(), &format!("{hints} {buffering}"))
        })
        .collect();
    if is_held(Kind::Nginx) {
        let pass = format!("grpc_read_timeout 1s; grpc_pass grpc://{};", origin.addr());
        servers.push(start(Kind::Nginx, "", &format!("location / {{ {pass} }}")));
    }
    for server in servers {
        let is_nginx = server.kind() == Kind::Nginx;
        for (number, row) in rows().iter().enumerate().filter(|(_, row)| !is_nginx || row.nginx) {
            let what = format!("{} {}", server.kind(), row.name);
            let before = server.error_log().len();
            let got = ask(server.addr(), &get(&format!("/{number}")));
            assert!(got.starts_with(row.seen), "{what}: {got}\n{}", server.error_log());
            let told = || server.error_log()[before..].contains(row.log);
            assert!(wait_for(told, LIMIT), "{what}: {}", &server.error_log()[before..]);
        }
        assert_alive(&server);
    }
}

fn assert_alive(server: &Server) {
    assert_eq!(ask(server.addr(), &get("/0")), "200 hello");
}

#[test]
fn what_came_before_a_fault_reaches_the_client() {
    let origin = serving(|h2, asked| {
        let id = asked.stream;
        let mut all = H2::section(id, OK, false);
        all.extend(H2::bytes(kind::DATA, 0, id, b"so far"));
        let at_once = asked.path() == "/1";
        if !at_once {
            h2.send(&std::mem::take(&mut all))?;
            h2.conn.wait_read()?;
            all.extend(H2::bytes(kind::DATA, 0, id, b", more"));
        }
        all.extend(H2::bytes(kind::PUSH_PROMISE, flag::END_HEADERS, id, b"\0\0\0\x02\x82"));
        h2.send(&all)
    });
    for more in ["", "proxy_buffering off;", "proxy_buffers 3 4k; proxy_max_temp_file_size 0;"] {
        let server = proxy(origin.addr(), more);
        for (path, want) in [("/1", "200 cut so far"), ("/2", "200 cut so far, more")] {
            assert_eq!(ask(server.addr(), &get(path)), want, "{more}");
        }
        let text = "upstream sent unexpected push promise frame while reading upstream";
        assert!(wait_for(|| server.error_log().contains(text), LIMIT), "{}", server.error_log());
    }
}

#[test]
fn a_response_without_body_whose_end_comes_later_keeps_its_connection() {
    let ended = Arc::new(AtomicUsize::new(0));
    let counter = ended.clone();
    let origin = serving(move |h2, asked| {
        let status = if asked.path() == "/head" { "200" } else { &asked.path()[1..] };
        h2.head(asked.stream, &[(":status", status)], false)?;
        h2.conn.wait_read()?;
        h2.data(asked.stream, b"", true)?;
        h2.conn.wait_read()?;
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let server = proxy(origin.addr(), "");
    let head = b"HEAD /head HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_vec();
    for (number, request) in [get("/204"), head, get("/304"), get("/204")].iter().enumerate() {
        ask(server.addr(), request);
        let come = || ended.load(Ordering::SeqCst) == number + 1;
        assert!(wait_for(come, LIMIT), "{number}: {}", server.error_log());
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_server_of_http_1_is_told_apart() {
    let origin = Origin::start(|conn| {
        conn.take(24)?;
        conn.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    });
    let server = proxy(origin.addr(), "");
    assert_eq!(ask(server.addr(), &get("/")), "502");
    let text = "upstream sent HTTP/1 response to HTTP/2 request while reading response header";
    assert!(wait_for(|| server.error_log().contains(text), LIMIT), "{}", server.error_log());
}

#[test]
fn a_response_may_come_in_any_pieces() {
    let origin = serving(|h2, asked| {
        let id = asked.stream;
        let mut all = H2::bytes(kind::PING, 0, 0, &[1; 8]);
        all.extend(H2::section(id, &[(":status", "103"), ("link", "x")], false));
        all.extend(H2::section(id, &[(":status", "200"), ("content-length", "10")], false));
        all.extend(H2::bytes(kind::DATA, flag::PADDED, id, b"\x04hello...."));
        all.extend(H2::bytes(kind::DATA, flag::END_STREAM, id, b"world"));
        let at: usize = asked.path()[1..].parse().expect("a number");
        match at {
            0 => h2.conn.send_pieces(&all.chunks(1).collect::<Vec<_>>()),
            at => h2.conn.send_pieces(&[&all[..at.min(all.len())], &all[at.min(all.len())..]]),
        }
    });
    for buffering in BUFFERINGS {
        let server = proxy(origin.addr(), buffering);
        for at in 0..80 {
            let got = ask(server.addr(), &get(&format!("/{at}")));
            assert_eq!(got, "200 helloworld", "{buffering} {at}\n{}", server.error_log());
        }
    }
}

#[test]
fn both_versions_are_spoken_to_one_group_and_never_mixed() {
    // A server that tells by the first byte what is spoken to it.
    let origin = Origin::start(|conn| {
        let mut first = true;
        if conn.number() % 2 == 0 {
            while conn.request()?.is_some() {
                conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none")?;
            }
            return Ok(());
        }
        let Some(mut h2) = H2::serve(conn, &[])? else { return Ok(()) };
        while let Some(asked) = h2.request()? {
            assert!(std::mem::take(&mut first) || asked.stream > 1);
            h2.ok(asked.stream, b"two")?;
        }
        Ok(())
    });
    let http = format!("upstream o {{ server {}; keepalive 8; }}", origin.addr());
    let inside = format!(
        "location /1 {{ proxy_pass http://o; }} location /2 {{ proxy_pass http://o; \
         proxy_http_version 2; }} {}",
        pass(origin.addr(), "").replace("location /", "location /none")
    );
    let server = start(Kind::Forebay, &http, &inside);
    for _ in 0..3 {
        assert_eq!(ask(server.addr(), &get("/1")), "200 one");
        assert_eq!(ask(server.addr(), &get("/2")), "200 two");
    }
    assert_eq!(origin.connections(), 2);
}
