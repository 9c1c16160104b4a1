//! Responses that are cut, broken or hostile.

use std::io;
use std::sync::Arc;

use forebay_testkit::Kind;
use forebay_testkit::origin::{Conn, Origin};

use crate::{ask, ask_on, client, get, last_access, of_both, pass, seen, start, wait_logged};

/// How an origin's connection ends after its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Close,
    Reset,
    Hang,
}

fn finish(conn: &mut Conn, end: End) -> io::Result<()> {
    match end {
        End::Close => Ok(()),
        End::Reset => {
            // Else the reset overtakes what was sent.
            conn.wait_read()?;
            conn.reset()
        }
        End::Hang => conn.wait_closed(),
    }
}

/// The number in a path `/12`.
fn number(line: &str) -> usize {
    let path = line.split(' ').nth(1).unwrap_or_default();
    path.trim_start_matches('/').parse().unwrap_or_default()
}

/// An origin that answers `/n` with the `n`th bytes and end, one request a connection.
fn origin_of(replies: Vec<(Vec<u8>, End)>) -> Origin {
    let replies = Arc::new(replies);
    Origin::start(move |conn| {
        let Some(request) = conn.request()? else { return Ok(()) };
        let (bytes, end) = &replies[number(&request.line())];
        conn.send(bytes)?;
        finish(conn, *end)
    })
}

/// Both ways of passing a response on.
const BUFFERINGS: [&str; 2] = ["", "proxy_buffering off;"];

const SIZED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello";
const CHUNKED: &[u8] =
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: v\r\n\r\n";

fn head_len(response: &[u8]) -> usize {
    response.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4
}

#[test]
fn an_upstream_may_close_or_reset_at_every_byte() {
    for response in [SIZED, CHUNKED] {
        let mut replies = Vec::new();
        for at in 0..=response.len() {
            replies.push((response[..at].to_vec(), End::Close));
            replies.push((response[..at].to_vec(), End::Reset));
        }
        let count = replies.len();
        let origin = origin_of(replies);
        of_both(|kind| {
            for buffering in BUFFERINGS {
                let server = start(kind, "", &pass(origin.addr(), buffering));
                for n in 0..count {
                    let (at, reset) = (n / 2, n % 2 == 1);
                    let what = format!("{kind} {buffering} {at} {reset}");
                    let got = ask(server.addr(), &get(&format!("/{n}")));
                    if at < head_len(response) {
                        assert_eq!(got, "502", "{what}");
                    } else if at == response.len() {
                        assert_eq!(got, "200 hello", "{what}");
                    } else {
                        // How much of the body comes before the cut is a matter of time.
                        assert!(got.starts_with("200 cut"), "{what}: {got}");
                        let body = got.strip_prefix("200 cut ").unwrap_or_default();
                        assert!("hello".starts_with(body), "{what}: {got}");
                    }
                }
                wait_logged(&server, "upstream prematurely closed connection");
                wait_logged(
                    &server,
                    "(104: Connection reset by peer) while reading response header",
                );
            }
        });
    }
}

#[test]
fn a_response_may_come_in_any_pieces() {
    let origin = Origin::start(|conn| {
        while let Some(request) = conn.request()? {
            let (which, at) = (number(&request.line()) / 1000, number(&request.line()) % 1000);
            let response = if which == 0 { SIZED } else { CHUNKED };
            match at {
                0 => conn.send_pieces(&response.chunks(1).collect::<Vec<_>>())?,
                at => conn.send_pieces(&[&response[..at], &response[at..]])?,
            }
        }
        Ok(())
    });
    let http = format!("upstream o {{ server {}; keepalive 4; }}", origin.addr());
    of_both(|kind| {
        for buffering in BUFFERINGS {
            let inside = format!("location / {{ proxy_pass http://o; {buffering} }}");
            let server = start(kind, &http, &inside);
            for (which, response) in [SIZED, CHUNKED].into_iter().enumerate() {
                for at in 0..response.len() {
                    let got = ask(server.addr(), &get(&format!("/{}", which * 1000 + at)));
                    assert_eq!(got, "200 hello", "{kind} {buffering} {which} {at}");
                }
            }
        }
    });
}

/// What one of the two servers makes of a broken response.
struct Row {
    name: &'static str,
    sent: Vec<u8>,
    end: End,
    /// What nginx's client sees, one of several where time decides; `None`: not compared, as nginx 1.22
    /// is more trusting.
    nginx: Option<&'static str>,
    forebay: &'static str,
    /// What Forebay's error log says.
    log: &'static str,
}

fn row(name: &'static str, sent: impl AsRef<[u8]>, same: &'static str, log: &'static str) -> Row {
    Row {
        name,
        sent: sent.as_ref().to_vec(),
        end: End::Close,
        nginx: Some(same),
        forebay: same,
        log,
    }
}

impl Row {
    /// nginx sees something else.
    fn nginx(self, nginx: &'static str) -> Row {
        Row { nginx: Some(nginx), ..self }
    }

    /// nginx's view does not matter.
    fn only_here(self) -> Row {
        Row { nginx: None, ..self }
    }

    fn end(self, end: End) -> Row {
        Row { end, ..self }
    }
}

/// A response with these header lines and this body.
fn ok(fields: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}").into_bytes()
}

fn rows() -> Vec<Row> {
    const NOT_HTTP: &str = "upstream sent no valid HTTP/1.0 header";
    const INVALID: &str = "upstream sent invalid header";
    const BIG: &str = "upstream sent too big header";
    const CHUNK: &str = "upstream sent invalid chunked response";
    const EARLY: &str = "upstream prematurely closed connection";
    const MORE: &str = "upstream sent more data than specified in \"Content-Length\" header";
    let long = "x".repeat(5000);
    let many = "X: y\r\n".repeat(2000);
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
    vec![
        row("nothing at all", "", "502", EARLY),
        row("not HTTP", "ready\r\n", "502", NOT_HTTP).only_here(),
        row("another protocol", "SSH-2.0-OpenSSH\r\n", "502", NOT_HTTP).only_here(),
        row("zeros", [0u8; 64], "502", NOT_HTTP).only_here(),
        row("lower case", "http/1.1 200 OK\r\n\r\n", "502", NOT_HTTP).only_here(),
        row("HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", "502", NOT_HTTP).only_here(),
        row("status of two digits", "HTTP/1.1 20 OK\r\n\r\n", "502", NOT_HTTP).only_here(),
        row("status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", "502", NOT_HTTP).only_here(),
        row("status of letters", "HTTP/1.1 abc OK\r\n\r\n", "502", NOT_HTTP).only_here(),
        row("status below 100", "HTTP/1.1 099 OK\r\n\r\n", "502", NOT_HTTP).only_here(),
        row("no reason", "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", "200 ok", "").only_here(),
        row("line feeds alone", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "200 ok", ""),
        row("HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\nok", "200 ok", ""),
        row("a long line", ok(&format!("A: {long}\r\n"), ""), "502", BIG),
        row("many lines", ok(&many, ""), "502", BIG),
        row("a long status line", format!("HTTP/1.1 200 {long}\r\n\r\n"), "502", BIG),
        row("no colon", ok("NoColon\r\nContent-Length: 2\r\n", "ok"), "502", INVALID)
            .nginx("200 ok"),
        row("no name", ok(": x\r\n", ""), "502", INVALID),
        row("NUL in a value", ok("A: b\0c\r\n", ""), "502", INVALID),
        row("NUL in a name", ok("A\0: b\r\n", ""), "502", INVALID),
        row("CR in a value", ok("A: b\rc\r\nContent-Length: 2\r\n", "ok"), "502", INVALID)
            .only_here(),
        row("a folded line", ok("A: b\r\n c\r\n", ""), "502", INVALID),
        row("a folded line at once", ok(" A: b\r\n", ""), "502", INVALID),
        row("space before the colon", ok("A : b\r\nContent-Length: 2\r\n", "ok"), "502", INVALID),
        row(
            "both lengths",
            ok("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n"),
            "502",
            "\"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
        )
        .only_here(),
        row(
            "two lengths",
            ok("Content-Length: 2\r\nContent-Length: 3\r\n", "oki"),
            "502",
            "duplicate header line: \"Content-Length: 3\", previous value: \"Content-Length: 2\" while",
        )
        .only_here(),
        row(
            "the same length twice",
            ok("Content-Length: 2\r\nContent-Length: 2\r\n", "ok"),
            "502",
            "duplicate header line: \"Content-Length: 2\", previous value: \"Content-Length: 2\" while",
        )
        .only_here(),
        row(
            "a list of lengths",
            ok("Content-Length: 2, 2\r\n", "ok"),
            "502",
            "invalid \"Content-Length\"",
        )
        .only_here(),
        row(
            "a negative length",
            ok("Content-Length: -2\r\n", "ok"),
            "502",
            "invalid \"Content-Length\"",
        )
        .only_here(),
        row(
            "a length beyond all numbers",
            ok("Content-Length: 99999999999999999999\r\n", "ok"),
            "502",
            "invalid \"Content-Length\"",
        )
        .only_here(),
        row(
            "an empty length",
            ok("Content-Length:\r\n", "ok"),
            "502",
            "invalid \"Content-Length\"",
        )
        .only_here(),
        row(
            "a coding nobody knows",
            ok("Transfer-Encoding: gzip\r\n", "ok"),
            "502",
            "upstream sent unknown \"Transfer-Encoding\": \"gzip\" while",
        )
        .only_here(),
        row(
            "two codings",
            ok("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
            "502",
            "upstream sent duplicate header line: \"Transfer-Encoding: chunked\", previous value:",
        )
        .only_here(),
        row(
            "a coding before chunked",
            ok("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
            "502",
            "upstream sent unknown \"Transfer-Encoding\": \"gzip, chunked\" while",
        )
        .only_here(),
        row("a body that is too long", ok("Content-Length: 2\r\n", "okay"), "200 ok", MORE),
        row(
            "more than the last chunk",
            ok("Transfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\nmore"),
            "200 ok",
            "upstream sent data after final chunk",
        ),
        row(
            "a field of one value twice",
            ok("Server: a\r\nServer: b\r\nContent-Length: 2\r\n", "ok"),
            "200 ok",
            "upstream sent duplicate header line: \"Server: b\", previous value: \"Server: a\", ignored",
        )
        .only_here(),
        row(
            "a body that is too short",
            ok("Content-Length: 9\r\n", "ok"),
            "200 cut |200 cut ok",
            EARLY,
        ),
        row("a body to a status without one", "HTTP/1.1 204 No Content\r\n\r\nextra", "204 ", "")
            .only_here(),
        row(
            "no chunk size",
            ok("Transfer-Encoding: chunked\r\n", "\r\nok\r\n"),
            "nothing|200 cut |200 cut ok|502",
            CHUNK,
        ),
        row(
            "a chunk size of letters",
            ok("Transfer-Encoding: chunked\r\n", "2\r\nok\r\nxx\r\n"),
            "nothing|200 cut |200 cut ok|502",
            CHUNK,
        ),
        row(
            "a chunk longer than its size",
            ok("Transfer-Encoding: chunked\r\n", "2\r\nokay\r\n0\r\n\r\n"),
            "nothing|200 cut |200 cut ok|502",
            CHUNK,
        ),
        row(
            "a chunk shorter than its size",
            ok("Transfer-Encoding: chunked\r\n", "9\r\nok\r\n0\r\n\r\n"),
            "200 cut |200 cut ok\\r\\n0\\r\\n\\r\\n",
            EARLY,
        ),
        row(
            "a chunk size beyond all numbers",
            ok("Transfer-Encoding: chunked\r\n", "FFFFFFFFFFFFFFFFFF\r\nok"),
            "nothing|200 cut |200 cut ok|502",
            CHUNK,
        ),
        row(
            "a negative chunk size",
            ok("Transfer-Encoding: chunked\r\n", "-2\r\nok\r\n0\r\n\r\n"),
            "nothing|200 cut |200 cut ok|502",
            CHUNK,
        ),
        row(
            "an interim response",
            format!(
                "{}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                "HTTP/1.1 100 Continue\r\n\r\n"
            ),
            "200 ok",
            "",
        )
        .only_here(),
        row(
            "a few interim responses",
            format!("{}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", interim.repeat(5)),
            "200 ok",
            "",
        )
        .only_here(),
        row(
            "a flood of interim responses",
            interim.repeat(10_000),
            "502",
            "upstream sent too many interim responses",
        )
        .only_here(),
        row("an interim response that ends it", "HTTP/1.1 100 Continue\r\n\r\n", "502", EARLY)
            .only_here(),
        row(
            "101 that nobody asked for",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nbytes",
            "502",
            "upstream sent unexpected status code 101",
        )
        .only_here(),
        row("two responses", [SIZED, SIZED].concat(), "200 hello", MORE),
        row(
            "silence",
            "",
            "504",
            "upstream timed out (110: Connection timed out) while reading response header",
        )
        .end(End::Hang),
        row("half a head", "HTTP/1.1 200 OK\r\nA: b", "504", "upstream timed out").end(End::Hang),
        row(
            "half a body",
            ok("Content-Length: 9\r\n", "ok"),
            "200 cut |200 cut ok",
            "upstream timed out",
        )
        .end(End::Hang),
        row(
            "half a chunk",
            ok("Transfer-Encoding: chunked\r\n", "9\r\nok"),
            "200 cut |200 cut ok",
            "upstream timed out",
        )
        .end(End::Hang),
        row("a body without end", ok("", "ok"), "200 cut |200 cut ok", "upstream timed out")
            .end(End::Hang),
    ]
}

#[test]
fn broken_responses_are_refused_or_cut_so_that_the_client_can_tell() {
    let rows = rows();
    let origin = origin_of(rows.iter().map(|row| (row.sent.clone(), row.end)).collect());
    of_both(|kind| {
        let mut wrong = Vec::new();
        for buffering in BUFFERINGS {
            let more = format!("{buffering} proxy_read_timeout 300ms;");
            let server = start(kind, "", &pass(origin.addr(), &more));
            for (n, row) in rows.iter().enumerate() {
                let Some(want) = (if kind == Kind::Nginx { row.nginx } else { Some(row.forebay) })
                else {
                    continue;
                };
                let before = server.error_log().len();
                let got = ask(server.addr(), &get(&format!("/{n}")));
                if !want.split('|').any(|want| got == want) {
                    wrong.push(format!("{} ({buffering}): {got}, not {want}", row.name));
                }
                let logged = || server.error_log()[before..].contains(row.log);
                if want == row.forebay
                    && !forebay_testkit::wait_for(logged, std::time::Duration::from_secs(2))
                {
                    let log = server.error_log()[before..].to_owned();
                    wrong.push(format!("{} ({buffering}) logs {log}, not {}", row.name, row.log));
                }
            }
        }
        assert!(wrong.is_empty(), "{kind}:\n{}", wrong.join("\n"));
    });
}

#[test]
fn a_head_without_end_is_refused_while_it_comes() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(b"HTTP/1.1 200 OK\r\n")?;
        // Forever, that is.
        conn.flood(&b"X-Line: and another one\r\n".repeat(100), 1 << 30)?;
        Ok(())
    });
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), ""));
        assert_eq!(ask(server.addr(), &get("/")), "502", "{kind}");
        wait_logged(&server, "upstream sent too big header");
    });
}

#[test]
fn no_byte_of_one_response_reaches_another_s_client() {
    // What follows a response in the same piece, or later on the idle connection, belongs to nobody.
    let origin = Origin::start(|conn| {
        while let Some(request) = conn.request()? {
            let path = request.line().split(' ').nth(1).unwrap_or_default().to_owned();
            let good = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
            conn.send(good.as_bytes())?;
            match path.as_str() {
                "/extra" => conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")?,
                "/later" => {
                    conn.wait_read()?;
                    conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")?;
                }
                "/bytes" => conn.send(b"x")?,
                _ => {}
            }
        }
        Ok(())
    });
    let http = format!("upstream o {{ server {}; keepalive 8; }}", origin.addr());
    of_both(|kind| {
        for buffering in BUFFERINGS {
            let inside = format!("location / {{ proxy_pass http://o; {buffering} }}");
            let server = start(kind, &http, &inside);
            let mut kept = client(&server);
            let mut closed = origin.connections() - origin.open();
            for bad in ["/extra", "/later", "/bytes"] {
                for _ in 0..5 {
                    let request = |path| format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
                    assert_eq!(ask_on(&mut kept, &request(bad)), (200, bad.to_owned()), "{kind}");
                    // Nobody can tell before those bytes have come: the connection ends then.
                    closed += 1;
                    origin.wait_closed(closed);
                    let others =
                        [ask(server.addr(), &get("/good")), ask(server.addr(), &get("/good2"))];
                    assert_eq!(
                        others,
                        ["200 /good", "200 /good2"],
                        "{kind} {buffering} after {bad}"
                    );
                }
            }
        }
    });
}

#[test]
fn head_requests_take_no_body() {
    let origin = Origin::answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    let http = format!("upstream o {{ server {}; keepalive 1; }}", origin.addr());
    of_both(|kind| {
        let server = start(kind, &http, "location / { proxy_pass http://o; }");
        let before = origin.connections();
        for _ in 0..3 {
            let head = b"HEAD / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
            assert_eq!(ask(server.addr(), head), "200 ", "{kind}");
        }
        assert_eq!(origin.connections() - before, 1, "{kind}");
    });
}

#[test]
fn a_part_that_breaks_off_is_not_the_end_of_its_page() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
    });
    of_both(|kind| {
        let page = "default_type text/html;
            location /after { add_after_body /part; return 200 page; }
            location /before { add_before_body /part; add_after_body /end; return 200 page; }
            location /end { return 200 end; }";
        let part = format!("location /part {{ proxy_pass http://{}; }}", origin.addr());
        let server = start(kind, "", &format!("{page} {part}"));
        let mut client = client(&server);
        for (path, want) in [("/after", "pagepart"), ("/before", "partpageend")] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
            assert_eq!(ask_on(&mut client, &request), (200, want.to_owned()), "{kind}");
        }
    });
}

#[test]
fn seen_tells_whole_from_cut() {
    for (bytes, want) in [
        ("", "nothing"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "200 ok"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", "200 cut ok"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nok", "200 too long ok"),
        ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok", "200 until close ok"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "200 ok"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "200 cut ok"),
        ("HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\n<html>", "502"),
        ("HTTP/1.1 103 Hi\r\n\r\nHTTP/1.1 204 No\r\n\r\n", "103, 204 "),
    ] {
        assert_eq!(seen(bytes.as_bytes(), false), want);
    }
}

#[test]
fn server_and_date_of_a_response_without_them_are_empty() {
    let told = |kind, response: &'static str| {
        let origin = Origin::answering(response);
        let format =
            "log_format had '[$upstream_http_server] [$upstream_http_date] [$upstream_http_x]';";
        let more = "access_log {prefix}/access.log had; proxy_next_upstream off;";
        let server = start(kind, format, &pass(origin.addr(), more));
        ask(server.addr(), &get("/"));
        last_access(&server, 1)
    };
    of_both(|kind| {
        let bare = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(told(kind, bare), "[] [] [-]", "{kind}");
        let named = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nServer: a\r\nX: b\r\n\r\n";
        assert_eq!(told(kind, named), "[a] [] [b]", "{kind}");
        assert_eq!(told(kind, "HTTP/1.1 200 OK\r\nX y\0\r\n\r\n"), "[-] [-] [-]", "{kind}");
    });
}

/// What `format` says in the log of a request that was answered so.
fn logged(kind: Kind, response: &'static str, format: &str) -> String {
    let origin = Origin::answering(response);
    let format = format!("log_format it '{format}';");
    let server = start(kind, &format, &pass(origin.addr(), "access_log {prefix}/access.log it;"));
    ask(server.addr(), &get("/"));
    last_access(&server, 1)
}

#[test]
fn fields_without_a_proper_name_are_left_out() {
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX@A: b\r\n(y): c\r\nX_Y: d\r\n\r\n";
    let origin = Origin::answering(response);
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), ""));
        let mut client = client(&server);
        client.send(&get("/")).unwrap();
        let got = client.read_to_end().unwrap();
        let has = |line: &str| got.windows(line.len()).any(|it| it == line.as_bytes());
        let found = (has("X@A: b"), has("(y): c"), has("X_Y: d"));
        assert_eq!(found, (kind == Kind::Nginx, kind == Kind::Nginx, true), "{kind}");
        if kind == Kind::Forebay {
            wait_logged(&server, "upstream sent invalid header line: \"X@A: b\", ignored while");
        }
    });
}

#[test]
fn a_head_that_is_broken_tells_nothing() {
    of_both(|kind| {
        let broken = "HTTP/1.1 200 OK\r\nX-A: b\r\nX y\0\r\n\r\n";
        let want = if kind == Kind::Nginx { "502 b" } else { "502 -" };
        assert_eq!(logged(kind, broken, "$status $upstream_http_x_a"), want);
    });
}

#[test]
fn what_came_behind_a_body_is_told() {
    of_both(|kind| {
        let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-T: v\r\n\r\n";
        let want = if kind == Kind::Nginx { "200 -" } else { "200 v" };
        assert_eq!(logged(kind, response, "$status $upstream_trailer_x_t"), want);
    });
}
