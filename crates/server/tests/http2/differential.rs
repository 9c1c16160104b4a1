//! The same frames to nginx and to Forebay: statuses, fields in their order, bodies, ends and log lines.
//!
//! A case that names a row of `docs/differences.md` must differ, any other must not.

use std::{collections::BTreeMap, net::Ipv4Addr};

use forebay_testkit::{
    Kind, Server,
    case::FileSpec,
    origin::{Origin, Received},
    server::binary,
};
use forebay_wire::h2::{
    frame::{flag, kind},
    settings::id,
};
use nix::sys::signal::Signal;

use crate::{
    LIMIT,
    client::{Peer, code},
    pattern,
};

type Fields = Vec<(&'static str, String)>;

/// A request: its fields, and frames behind them.
#[derive(Clone, Default)]
struct Ask {
    fields: Fields,
    /// Payloads of DATA frames.
    data: Vec<Vec<u8>>,
    /// Whether the stream is left open.
    open: bool,
}

/// Requests on one connection.
struct Case {
    name: &'static str,
    settings: Vec<(u16, u32)>,
    asks: Vec<Ask>,
    /// Whether each waits for the end of the one before.
    in_turn: bool,
    unlogged: bool,
    /// Whether it ends with the connection.
    until_closed: bool,
    /// Which `{port}`.
    port: usize,
    why: Why,
}

/// Why answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// They do not.
    Same,
    /// On purpose: a row of `docs/differences.md`.
    Row(&'static str),
    /// Because nginx does that since.
    Newer(&'static str),
}

fn ask(method: &str, path: &str) -> Ask {
    let fields = vec![
        (":method", method.to_owned()),
        (":scheme", "http".to_owned()),
        (":authority", "test".to_owned()),
        (":path", path.to_owned()),
    ];
    Ask { fields, ..Ask::default() }
}

fn get(path: &str) -> Ask {
    ask("GET", path)
}

impl Ask {
    fn with(mut self, name: &'static str, value: &str) -> Ask {
        self.fields.push((name, value.to_owned()));
        self
    }

    /// Replaces a field.
    fn but(mut self, name: &'static str, value: &str) -> Ask {
        self.fields.iter_mut().filter(|(known, _)| *known == name).for_each(|(_, old)| {
            old.clear();
            old.push_str(value);
        });
        self
    }

    fn without(mut self, name: &'static str) -> Ask {
        self.fields.retain(|(known, _)| *known != name);
        self
    }

    fn body(mut self, pieces: &[&[u8]]) -> Ask {
        self.data = pieces.iter().map(|piece| piece.to_vec()).collect();
        self
    }

    fn left_open(mut self) -> Ask {
        self.open = true;
        self
    }
}

fn case(name: &'static str, asks: Vec<Ask>) -> Case {
    Case {
        name,
        settings: Vec::new(),
        asks,
        in_turn: false,
        unlogged: false,
        until_closed: false,
        port: 0,
        why: Why::Same,
    }
}

impl Case {
    fn differs(mut self, row: &'static str) -> Case {
        self.why = Why::Row(row);
        self
    }

    fn since(mut self, version: &'static str) -> Case {
        self.why = Why::Newer(version);
        self
    }

    /// Compressors differ in how well they do.
    fn unlogged(mut self) -> Case {
        self.unlogged = true;
        self
    }

    fn until_closed(mut self) -> Case {
        self.until_closed = true;
        self
    }

    fn on_port(mut self, port: usize) -> Case {
        self.port = port;
        self
    }

    fn in_turn(mut self) -> Case {
        self.in_turn = true;
        self
    }

    fn settings(mut self, settings: &[(u16, u32)]) -> Case {
        self.settings = settings.to_vec();
        self
    }
}

fn files_and_heads() -> Vec<Case> {
    let long = "x".repeat(9000);
    vec![
        case("a file", vec![get("/file"), get("/page.html"), get("/empty")]),
        case(
            "arguments and escapes",
            vec![get("/file?a=%20b&c"), get("/%66ile"), get("/a/../file")],
        ),
        case("HEAD", vec![ask("HEAD", "/file"), ask("HEAD", "/none"), ask("HEAD", "/text")]),
        case(
            "ranges",
            ["bytes=0-9", "bytes=-5", "bytes=0-1,5-6", "bytes=5000-", "lines=1-2"]
                .map(|range| get("/file").with("range", range))
                .to_vec(),
        ),
        case("redirects", vec![get("/dir"), get("/moved"), get("/moved-far")]),
        case(
            "error pages",
            vec![get("/none"), get("/own/none"), get("/denied"), get("/status/503")],
        ),
        case(
            "conditions",
            vec![
                get("/file").with("if-modified-since", "Tue, 14 Nov 2023 22:13:20 GMT"),
                get("/file").with("if-none-match", "\"6553f100-3e8\""),
            ],
        ),
        case("no body", vec![get("/status/204"), get("/status/304")]),
        case(
            "gzip",
            vec![
                get("/page.html").with("accept-encoding", "gzip"),
                get("/page.html").with("accept-encoding", "gzip;q=0"),
                ask("HEAD", "/page.html").with("accept-encoding", "gzip"),
            ],
        )
        .unlogged(),
        case("limit_rate", vec![get("/slow/page.html")]),
        case(
            "cookies in several fields",
            vec![
                get("/cookie")
                    .with("cookie", "a=1")
                    .with("x", "y")
                    .with("cookie", "b=2; c=3")
                    .with("cookie", "d=4"),
            ],
        ),
        case(
            "empty crumbs of a cookie",
            vec![
                get("/cookie").with("cookie", "").with("cookie", "b=1"),
                get("/cookie").with("cookie", "b=1").with("cookie", ""),
                get("/cookie").with("cookie", "").with("cookie", ""),
            ],
        ),
        case(
            "hosts",
            vec![
                get("/host").without(":authority").with("host", "Other:81"),
                get("/host").but(":authority", "Other:81"),
            ],
        ),
        case("Host beside :authority", vec![get("/host").with("host", "test")]).since("1.29.1"),
        case("another Host than :authority", vec![get("/host").with("host", "other")]),
        case("no host", vec![get("/host").without(":authority")]),
        case(
            "a bad host",
            vec![get("/host").but(":authority", "a/b"), get("/host").but(":authority", "..")],
        ),
        case(
            "empty values and many fields",
            vec![
                get("/echo")
                    .with("x-a", "")
                    .with("x-b", "1")
                    .with("user-agent", "me")
                    .with("referer", "you"),
            ],
        ),
        case(
            "invalid header names",
            vec![
                get("/echo").with("a_b", "1").with("x-b", "2"),
                get("/echo").with("a(b", "1").with("x-b", "2"),
            ],
        ),
        case("a field beyond its limit", vec![get("/echo").with("x-long", &long)])
            .differs("h2-head-limits"),
        case("a long field within it", vec![get("/echo").with("x-b", &long[..4000])]),
        case(
            "methods",
            vec![
                ask("OPTIONS", "/file"),
                ask("POST", "/file"),
                ask("PUT", "/text"),
                ask("FOO", "/text"),
                ask("TRACE", "/text"),
                ask("TRACE", "/text").but(":authority", "other"),
            ],
        ),
        case("schemes", vec![get("/host").but(":scheme", "https")]),
        case("trailing slash and index", vec![get("/dir/"), get("/")]),
        case(
            "authentication",
            vec![get("/private"), get("/private").with("authorization", "Basic YTpi")],
        ),
    ]
}

fn malformed() -> Vec<Case> {
    vec![
        case("an upper-case name", vec![get("/text").with("X-Upper", "1")])
            .differs("h2-malformed-reset"),
        case("a value with a line end", vec![get("/text").with("x", "a\r\nb: c")])
            .differs("h2-malformed-reset"),
        case("a value with NUL", vec![get("/text").with("x", "a\0b")])
            .differs("h2-malformed-reset"),
        case("no :path", vec![get("/text").without(":path")]),
        case("no :method", vec![get("/text").without(":method")]),
        case("no :scheme", vec![get("/text").without(":scheme")]),
        case("a path that is none", vec![get("/text").but(":path", "text")]),
        case("an empty path", vec![get("/text").but(":path", "")]),
        case("two paths", vec![get("/text").with(":path", "/file")]),
        case("an unknown pseudo-header", vec![get("/text").with(":what", "1")]),
        case(
            "a pseudo-header behind others",
            vec![get("/text").without(":authority").with("x", "y").with(":authority", "test")],
        )
        .differs("h2-malformed-reset"),
        case("a bad method", vec![get("/text").but(":method", "G T")]),
        case("connection fields", vec![get("/text").with("connection", "close")])
            .differs("h2-malformed-reset"),
        case("a transfer coding", vec![get("/text").with("transfer-encoding", "chunked")])
            .differs("h2-malformed-reset"),
        case("a bad te", vec![get("/text").with("te", "gzip")]).differs("h2-malformed-reset"),
        case("a space before a value", vec![get("/text").with("x", " a")])
            .differs("h2-malformed-reset"),
        case("escapes out of the root", vec![get("/../etc/passwd"), get("/%"), get("/%00")]),
        case("a length that is none", vec![get("/text").with("content-length", "x")]),
        case(
            "CONNECT",
            vec![
                ask("CONNECT", "/").without(":path").without(":scheme").but(":authority", "test:1"),
            ],
        ),
    ]
}

fn bodies() -> Vec<Case> {
    let big = vec![b'x'; 3000];
    vec![
        case(
            "POST with a length",
            vec![ask("POST", "/up/a").with("content-length", "5").body(&[b"ab", b"cde"])],
        ),
        case("POST without a length", vec![ask("POST", "/up/a").body(&[b"ab", b"", b"cde"])]),
        case(
            "POST of nothing",
            vec![
                ask("POST", "/up/a"),
                ask("POST", "/up/a").body(&[b""]),
                ask("POST", "/up/a").with("content-length", "0").body(&[b""]),
            ],
        )
        .in_turn(),
        case(
            "unbuffered with a length",
            vec![ask("POST", "/stream/a").with("content-length", "5").body(&[b"ab", b"cde"])],
        ),
        case("unbuffered without a length", vec![ask("POST", "/stream/a").body(&[b"ab", b"cde"])]),
        case(
            "413 by its length",
            vec![ask("POST", "/small").with("content-length", "3000").body(&[&big])],
        ),
        case("413 as it comes", vec![ask("POST", "/small").body(&[&big])]),
        case(
            "more than was said",
            vec![ask("POST", "/up/a").with("content-length", "3").body(&[b"abcde"])],
        )
        .differs("h2-malformed-reset"),
        case(
            "less than was said",
            vec![ask("POST", "/up/a").with("content-length", "9").body(&[b"abcde"])],
        )
        .differs("h2-malformed-reset"),
        case(
            "Expect",
            vec![
                ask("POST", "/up/a")
                    .with("expect", "100-continue")
                    .with("content-length", "2")
                    .body(&[b"ab"]),
            ],
        )
        .differs("h2-continue"),
        case(
            "a body that nobody reads",
            vec![ask("POST", "/text").with("content-length", "3").body(&[b"abc"])],
        ),
        case("an origin's errors", vec![get("/up/broken"), get("/nobody")]).in_turn(),
        case("an origin's redirect and cookies", vec![get("/up/redirect")]),
    ]
}

fn connections() -> Vec<Case> {
    vec![
        case("windows", vec![get("/page.html"), get("/file")])
            .settings(&[(id::INITIAL_WINDOW_SIZE, 100)]),
        case("small tables", vec![get("/file"), get("/file")])
            .settings(&[(id::HEADER_TABLE_SIZE, 0)])
            .in_turn(),
        case(
            "streams beyond the limit",
            vec![
                ask("POST", "/up/a").left_open(),
                ask("POST", "/up/a").left_open(),
                ask("POST", "/up/a").left_open(),
                get("/text"),
            ],
        )
        .on_port(1),
        case("a worn connection", (0..3).map(|_| get("/text")).collect())
            .in_turn()
            .until_closed()
            .on_port(2),
    ]
}

fn conf(origin: &Origin, dead: u16) -> String {
    let addr = origin.addr();
    format!(
        "user root; worker_processes 1;
        error_log {{prefix}}/error.log info;
        events {{ worker_connections 1024; }}
        http {{
            {{temp_paths}}
            server_tokens off;
            types {{ text/html html; }}
            default_type text/plain;
            log_format h2 '$remote_addr|$request|$status|$body_bytes_sent|$server_protocol|$http2|'
                '$request_completion|$scheme|$host|$http_host|$request_length|$content_length';
            access_log {{prefix}}/access.log h2;
            server {{
                listen 127.0.0.1:{{port}} http2;
                server_name test;
                root {{root}};
                error_page 403 /page.html;
                location = /text {{ return 200 \"alive\"; }}
                location = /cookie {{ return 200 \"$http_cookie|$cookie_b|$cookie_d\"; }}
                location = /host {{ return 200 \"$host|$http_host|$scheme|$server_name|$server_port\"; }}
                location = /echo {{
                    return 200 \"$http_x_a|$http_x_b|$http_a_b|$http_user_agent|$http_referer\";
                }}
                location = /moved {{ return 302 /file; }}
                location = /moved-far {{ return 301 https://other/x; }}
                location = /denied {{ deny all; }}
                location /status/503 {{ return 503; }}
                location /status/204 {{ return 204; }}
                location /status/304 {{ return 304; }}
                location /own/ {{ error_page 404 =410 /page.html; }}
                location = /page.html {{ gzip on; gzip_min_length 1; gzip_vary on; }}
                location /slow/ {{ alias {{root}}/; limit_rate 100k; limit_rate_after 1; }}
                location /private {{ auth_basic x; auth_basic_user_file {{root}}/none; }}
                location /up/ {{ proxy_pass http://{addr}/; proxy_http_version 1.1; \
                    proxy_set_header Connection \"\"; \
                    proxy_set_header X-Length $request_length; }}
                location /stream/ {{ proxy_pass http://{addr}/; proxy_http_version 1.1; \
                    proxy_set_header Connection \"\"; proxy_request_buffering off; }}
                location /small {{ client_max_body_size 1k; proxy_pass http://{addr}; }}
                location /nobody {{ proxy_pass http://127.0.0.1:{dead}; }}
            }}
            server {{
                listen 127.0.0.1:{{port2}} http2;
                http2_max_concurrent_streams 3;
                location = /text {{ return 200 \"alive\"; }}
                location / {{ proxy_pass http://{addr}; }}
            }}
            server {{
                listen 127.0.0.1:{{port3}} http2;
                keepalive_requests 3;
                location = /text {{ return 200 \"alive\"; }}
            }}
        }}"
    )
}

/// Says what it got.
fn answer(request: &Received) -> Vec<u8> {
    let line = request.line();
    if line.contains("broken") {
        return b"HTTP/1.1 200 OK\r\nX: \0\r\n\r\n".to_vec();
    }
    if line.contains("redirect") {
        return b"HTTP/1.1 302 Found\r\nLocation: http://else/x\r\nSet-Cookie: a=1\r\n\
                 Set-Cookie: b=2\r\nContent-Length: 0\r\n\r\n"
            .to_vec();
    }
    let mut lines = request.lines();
    lines.retain(|line| !line.starts_with("Host"));
    let text = format!("{}\n{}\n", lines.join("\n"), request.body.escape_ascii());
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    )
    .into_bytes()
}

/// What came on one stream.
#[derive(Default)]
struct Got {
    lines: Vec<String>,
    body: Vec<u8>,
    over: bool,
}

/// Runs a case from an address of its own; what came, in words.
fn run(server: &Server, case: &Case, from: Ipv4Addr) -> String {
    let mut peer = Peer::connect_from(from, server.addr_of(case.port), &case.settings);
    let mut got: BTreeMap<u32, Got> = BTreeMap::new();
    let mut goaway = String::new();
    let mut stream = 1;
    let mut bytes = Vec::new();
    for ask in &case.asks {
        let fields: Vec<(&str, &str)> =
            ask.fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let ends = ask.data.is_empty() && !ask.open;
        bytes.extend(peer.request(stream, &fields, ends));
        for (at, data) in ask.data.iter().enumerate() {
            let end = at + 1 == ask.data.len() && !ask.open;
            let flags = if end { flag::END_STREAM } else { 0 };
            bytes.extend(Peer::frame(kind::DATA, flags, stream, data));
        }
        if !ask.open {
            got.insert(stream, Got::default());
        }
        stream += 2;
        if case.in_turn {
            if !peer.try_send(&std::mem::take(&mut bytes)) {
                break;
            }
            listen(&mut peer, &mut got, &mut goaway);
        }
    }
    if !case.in_turn {
        peer.try_send(&bytes);
        listen(&mut peer, &mut got, &mut goaway);
    }
    if case.until_closed {
        got.entry(u32::MAX).or_default();
        listen(&mut peer, &mut got, &mut goaway);
    }
    let mut text = String::new();
    for (stream, Got { mut lines, body, .. }) in got {
        lines.push(shown(&body));
        text += &format!("stream {stream}\n  {}\n", lines.join("\n  "));
    }
    for (at, port) in server.ports().iter().enumerate() {
        text = text.replace(&port.to_string(), &format!("{{port{at}}}"));
    }
    text + &goaway
}

/// Reads until every stream has ended, or the connection has.
fn listen(peer: &mut Peer, got: &mut BTreeMap<u32, Got>, goaway: &mut String) {
    while got.values().any(|got| !got.over) {
        let Ok(Some((head, payload))) = peer.try_next() else {
            goaway.push_str("no more\n");
            got.values_mut().for_each(|got| got.over = true);
            return;
        };
        if head.kind == kind::GOAWAY {
            *goaway = format!("goaway {}\n", code(&payload[4..]));
        }
        if head.kind == kind::SETTINGS && head.flags & flag::ACK == 0 {
            peer.try_send(&Peer::frame(kind::SETTINGS, flag::ACK, 0, b""));
        }
        if head.kind == kind::PING && head.flags & flag::ACK == 0 {
            peer.try_send(&Peer::frame(kind::PING, flag::ACK, 0, &payload));
        }
        let fields = match head.kind {
            kind::HEADERS => peer.fields(&payload),
            _ => Vec::new(),
        };
        if head.kind == kind::DATA && !payload.is_empty() {
            let update = (payload.len() as u32).to_be_bytes();
            for stream in [0, head.stream] {
                peer.try_send(&Peer::frame(kind::WINDOW_UPDATE, 0, stream, &update));
            }
        }
        // Streams that were left open are answered, or not, as it comes.
        let Some(stream) = got.get_mut(&head.stream).filter(|got| !got.over) else { continue };
        match head.kind {
            kind::HEADERS => {
                stream.lines.extend(fields.iter().map(|(name, value)| match &name[..] {
                    "date" => "date".to_owned(),
                    "content-length" if value.len() > 3 => format!("{name}: many"),
                    _ => format!("{name}: {value}"),
                }))
            }
            kind::DATA => stream.body.extend_from_slice(&payload),
            kind::RST_STREAM => {
                stream.lines.push(format!("reset {}", code(&payload)));
                stream.over = true;
            }
            _ => continue,
        }
        if matches!(head.kind, kind::HEADERS | kind::DATA) && head.flags & flag::END_STREAM != 0 {
            stream.over = true;
        }
    }
}

fn shown(body: &[u8]) -> String {
    if body.starts_with(&[0x1f, 0x8b]) {
        return "gzip".to_owned();
    }
    if body.len() > 400 {
        let sum = body.iter().fold(7u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
        return format!("{} bytes, {sum:x}", body.len());
    }
    body.escape_ascii().to_string()
}

/// What came of a case.
struct Outcome {
    text: String,
    /// The lines that it left in the access log, and those in the error log up to the client's address.
    lines: String,
    errors: String,
}

/// Runs all cases.
fn run_all(kind: Kind, cases: &[Case]) -> Vec<Outcome> {
    let origin = Origin::start(|conn| {
        while let Some(request) = conn.request()? {
            conn.send(&answer(&request))?;
        }
        Ok(())
    });
    let dead = forebay_testkit::ports::Port::reserve().expect("a port");
    let mut page = b"<p>hello, hello, hello</p>\n".repeat(2000);
    page.truncate(40_000);
    let files = [
        FileSpec::new("file", pattern(1000)),
        FileSpec::new("page.html", page),
        FileSpec::new("empty", Vec::new()),
        FileSpec::new("dir/index.html", b"index".to_vec()),
        FileSpec::new("a/b", b"b".to_vec()),
    ];
    let builder = Server::builder(kind, &conf(&origin, dead.number())).files(&files);
    let mut server = builder.start().unwrap_or_else(|e| panic!("{e}"));
    // By its address, and not by its port: the system may give that to another case again.
    let address =
        |index: usize| Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + index as u32);
    let cases = cases.iter().enumerate();
    let texts: Vec<String> =
        cases.map(|(index, case)| run(&server, case, address(index))).collect();
    server.signal(Signal::SIGQUIT);
    assert!(server.wait_exit(LIMIT).is_some(), "{}", server.error_log());
    let log = server.access_log();
    let lines = |from: Ipv4Addr| {
        let prefix = format!("{from}|");
        let mut lines: Vec<&str> =
            log.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    let error_log = server.error_log();
    let errors = |from: Ipv4Addr| {
        let client = format!(", client: {from}, ");
        let lines = error_log.lines().filter_map(|line| {
            let (what, who) = line.split_once(&client)?;
            // Behind time, process and connection.
            Some(format!("{}, {who}\n", what.split_once(" *")?.1.split_once(' ')?.1))
        });
        lines.collect()
    };
    let texts = texts.into_iter().enumerate();
    let outcome = |(index, text)| {
        let from = address(index);
        Outcome { text, lines: lines(from), errors: errors(from) }
    };
    texts.map(outcome).collect()
}

#[test]
fn nginx_and_forebay_answer_the_same_frames_alike() {
    if binary(Kind::Nginx).is_none() {
        assert!(std::env::var_os("CI").is_none(), "nginx is missing");
        return println!("no nginx: skipped");
    }
    let cases: Vec<Case> =
        [files_and_heads(), malformed(), bodies(), connections()].into_iter().flatten().collect();
    let (nginx, forebay) = (run_all(Kind::Nginx, &cases), run_all(Kind::Forebay, &cases));
    let mut wrong = String::new();
    for ((case, mut theirs), mut ours) in cases.iter().zip(nginx).zip(forebay) {
        if case.unlogged {
            theirs.lines.clear();
            ours.lines.clear();
        }
        let name = case.name;
        let same = (&theirs.text, &theirs.lines) == (&ours.text, &ours.lines);
        match (same, case.why) {
            (true, Why::Same) | (false, Why::Row(_) | Why::Newer(_)) => {}
            (true, why) => wrong += &format!("--- {name}: the same, in spite of {why:?}\n"),
            (false, Why::Same) => {
                wrong += &format!("--- {name}\n");
                for (theirs, ours) in [(theirs.text, ours.text), (theirs.lines, ours.lines)] {
                    if theirs != ours {
                        wrong += &format!("nginx:\n{theirs}\nForebay:\n{ours}\n");
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn what_is_wrong_with_a_request_is_told_in_nginx_s_words() {
    if binary(Kind::Nginx).is_none() {
        assert!(std::env::var_os("CI").is_none(), "nginx is missing");
        return println!("no nginx: skipped");
    }
    let text = || get("/text");
    let asks = [
        text().with("A", "b"),
        text().with("a b", "c"),
        text().with("a_b", "c"),
        text().with("a", "b\rc"),
        text().with(":x", "b"),
        text().with(":path", "/"),
        text().with(":method", "GET"),
        text().with(":scheme", "http"),
        text().without(":path"),
        text().without(":method"),
        text().without(":scheme"),
        text().without(":authority"),
        text().but(":path", "x"),
        text().but(":path", ""),
        text().but(":path", "/\u{1}"),
        text().but(":path", "/%zz"),
        text().but(":authority", "a b"),
        text().but(":method", "G(T"),
        text().but(":method", "TRACE"),
        text().but(":scheme", "1"),
        text().with("host", "test").with("host", "test"),
        text().with("if-range", "x").with("if-range", ""),
        text().with("content-length", "1").with("content-length", "1"),
        text().with("content-length", "x"),
    ];
    let cases: Vec<Case> = asks.into_iter().map(|ask| case("", vec![ask])).collect();
    let (nginx, forebay) = (run_all(Kind::Nginx, &cases), run_all(Kind::Forebay, &cases));
    for ((case, theirs), ours) in cases.iter().zip(nginx).zip(forebay) {
        assert!(!theirs.errors.is_empty(), "{:?}", case.asks[0].fields);
        // As of the row `error-log-controls`.
        let theirs = theirs.errors.replace('\r', "\\x0D").replace('\u{1}', "\\x01");
        assert_eq!(theirs, ours.errors, "{:?}", case.asks[0].fields);
    }
}
