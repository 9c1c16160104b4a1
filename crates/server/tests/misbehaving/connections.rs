//! Connections to upstreams: kept, found closed, refused, hanging, tried elsewhere, left.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use forebay_testkit::origin::{Blackhole, Gate, Origin};
use forebay_testkit::ports::Port;
use forebay_testkit::{Kind, Signal, wait_for};

use crate::{LIMIT, ask, ask_on, client, get, last_access, of_both, pass, start, wait_logged};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc";

#[test]
fn connections_are_kept_and_used_again() {
    of_both(|kind| {
        let origin = Origin::answering(OK);
        let http = format!("upstream o {{ server {}; keepalive 2; }}", origin.addr());
        let server = start(kind, &http, "location / { proxy_pass http://o; }");
        for _ in 0..10 {
            assert_eq!(ask(server.addr(), &get("/")), "200 ok", "{kind}");
        }
        assert_eq!(origin.connections(), 1, "{kind}");
    });
}

#[test]
fn a_connection_is_kept_for_as_many_requests_as_keepalive_requests_says() {
    of_both(|kind| {
        let origin = Origin::answering(OK);
        let http = format!(
            "upstream o {{ server {}; keepalive 2; keepalive_requests 3; }}",
            origin.addr()
        );
        let server = start(kind, &http, "location / { proxy_pass http://o; }");
        let mut client = client(&server);
        for _ in 0..9 {
            assert_eq!(ask_on(&mut client, GET), (200, "ok".to_owned()), "{kind}");
        }
        assert_eq!(origin.connections(), 3, "{kind}");
    });
}

#[test]
fn who_authenticates_a_connection_has_it_alone() {
    // Says on which connection of which server a request came.
    let origin = |name: &'static str| {
        Origin::start(move |conn| {
            while conn.request()?.is_some() {
                let text = format!("{name}{}", conn.number());
                let length = text.len();
                conn.send(
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}").as_bytes(),
                )?;
            }
            Ok(())
        })
    };
    let (a, b) = (origin("a"), origin("b"));
    let http =
        format!("upstream o {{ server {}; server {}; keepalive 9; ntlm; }}", a.addr(), b.addr());
    let server = start(Kind::Forebay, &http, "location / { proxy_pass http://o; }");
    let authorized =
        |scheme: &str| format!("GET / HTTP/1.1\r\nHost: t\r\nAuthorization: {scheme} x\r\n\r\n");
    let plain = "GET / HTTP/1.1\r\nHost: t\r\n\r\n".to_owned();
    let mut others = client(&server);
    let shared: Vec<String> = (0..4).map(|_| ask_on(&mut others, &plain).1).collect();
    assert_eq!(shared, ["a0", "b0", "a0", "b0"]);
    // Other schemes are of requests.
    assert_eq!(ask_on(&mut others, &authorized("Basic")).1, "a0");
    let mut seen: Vec<String> = shared;
    for scheme in ["NTLM", "negotiate"] {
        let mut own = client(&server);
        assert!(seen.contains(&ask_on(&mut own, &plain).1), "not bound yet");
        let bound = ask_on(&mut own, &authorized(scheme)).1;
        assert!(!seen.contains(&bound), "{bound} is another's: {seen:?}");
        for request in [authorized(scheme), plain.clone(), plain.clone(), authorized("Basic")] {
            assert_eq!(ask_on(&mut own, &request).1, bound, "{scheme}");
            assert_ne!(ask_on(&mut others, &plain).1, bound, "{scheme}");
        }
        seen.push(bound);
    }
}

#[test]
fn what_a_client_has_authenticated_is_closed_with_its_connection() {
    let gate = Gate::new();
    let behind = gate.clone();
    let origin = Origin::start(move |conn| {
        while let Some(request) = conn.request()? {
            if request.head.starts_with(b"GET /late") {
                behind.wait();
            }
            conn.send(OK)?;
        }
        Ok(())
    });
    let http = format!("upstream o {{ server {}; keepalive 9; ntlm; }}", origin.addr());
    let location = "location / { proxy_pass http://o; proxy_ignore_client_abort on; }";
    let server = start(Kind::Forebay, &http, location);
    let mut others = client(&server);
    ask_on(&mut others, GET);
    let mut own = client(&server);
    let asks =
        |path: &str| format!("GET {path} HTTP/1.1\r\nHost: t\r\nAuthorization: NTLM x\r\n\r\n");
    ask_on(&mut own, &asks("/"));
    assert_eq!(origin.open(), 2);
    drop(own);
    assert!(wait_for(|| origin.open() == 1, LIMIT), "{} open", origin.open());
    // Nor is one kept that was in use when its client left.
    let mut own = client(&server);
    own.send(asks("/late").as_bytes()).unwrap();
    origin.wait_requests(3);
    drop(own);
    gate.open();
    assert!(wait_for(|| origin.open() == 1, LIMIT), "{} open", origin.open());
    assert_eq!(ask_on(&mut others, GET).0, 200, "what is nobody's stays");
    assert_eq!(origin.connections(), 3);
}

#[test]
fn no_more_connections_stay_idle_than_keepalive_says() {
    of_both(|kind| {
        let gate = Gate::new();
        let behind = gate.clone();
        let origin = Origin::start(move |conn| {
            while conn.request()?.is_some() {
                behind.wait();
                conn.send(OK)?;
            }
            Ok(())
        });
        let http = format!("upstream o {{ server {}; keepalive 2; }}", origin.addr());
        let server = start(kind, &http, "location / { proxy_pass http://o; }");
        let mut clients: Vec<_> = (0..5).map(|_| client(&server)).collect();
        for client in &mut clients {
            client.send(GET.as_bytes()).unwrap();
        }
        origin.wait_requests(5);
        gate.open();
        for client in &mut clients {
            assert_eq!(client.read_response(false).unwrap().body, b"ok", "{kind}");
        }
        assert!(wait_for(|| origin.open() == 2, LIMIT), "{kind}: {} open", origin.open());
    });
}

#[test]
fn a_steady_load_opens_no_new_connections() {
    let origin = Origin::answering(OK);
    let http = format!("upstream o {{ server {}; keepalive 32; }}", origin.addr());
    let server = start(Kind::Forebay, &http, "location / { proxy_pass http://o; }");
    // The pool is one for all threads: whoever answers the client finds the connection.
    let text = server.read("nginx.conf").replace("worker_processes 1", "worker_processes 4");
    server.rewrite_conf(&text).unwrap();
    server.signal(Signal::SIGHUP);
    // Others may have used the port a moment ago.
    let before = waiting_for_the_end_of_time(origin.addr().port());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let mut client = client(&server);
                    for _ in 0..10 {
                        assert_eq!(ask_on(&mut client, GET), (200, "ok".to_owned()));
                    }
                }
            });
        }
    });
    // A client may ask again before its last connection is back in the pool.
    assert!(origin.connections() <= 32, "{} connections", origin.connections());
    assert!(waiting_for_the_end_of_time(origin.addr().port()) <= before);
}

/// How many sockets of this machine are in TIME_WAIT with that port at one end.
fn waiting_for_the_end_of_time(port: u16) -> usize {
    const TIME_WAIT: &str = "06";
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table of sockets");
    let end = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().take(4).collect();
        matches!(words[..], [_, from, to, TIME_WAIT] if from.ends_with(&end) || to.ends_with(&end))
    };
    table.lines().filter(is_one).count()
}

/// Each of its connections answers once, and ends when the next request has come.
fn answering_once() -> Origin {
    Origin::start(|conn| {
        conn.request()?;
        conn.send(OK)?;
        conn.request()?;
        Ok(())
    })
}

#[test]
fn a_stale_connection_is_no_failure_of_its_server() {
    let stale = answering_once();
    let other = Origin::answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother");
    let http = format!(
        "upstream o {{ server {}; server {} backup; keepalive 2; }}",
        stale.addr(),
        other.addr()
    );
    let server = start(Kind::Forebay, &http, "location / { proxy_pass http://o; }");
    let mut client = client(&server);
    for _ in 0..4 {
        assert_eq!(ask_on(&mut client, GET), (200, "ok".to_owned()));
    }
    let want = format!("/ 200 [{}] [200]", stale.addr());
    assert_eq!(crate::last_access(&server, 4), want);
    assert_eq!(other.connections(), 0);
}

#[test]
fn a_kept_connection_that_turns_out_closed_is_replaced() {
    of_both(|kind| {
        let origin = answering_once();
        let http = format!("upstream o {{ server {}; keepalive 2; }}", origin.addr());
        let server = start(kind, &http, "location / { proxy_pass http://o; }");
        let mut client = client(&server);
        for _ in 0..4 {
            assert_eq!(ask_on(&mut client, GET), (200, "ok".to_owned()), "{kind}");
        }
        assert!(!server.error_log().contains("no live upstreams"), "{kind}");
    });
}

#[test]
fn a_post_is_not_sent_twice_unless_allowed() {
    of_both(|kind| {
        let origin = answering_once();
        let http = format!("upstream o {{ server {}; keepalive 2; }}", origin.addr());
        for (more, want) in [("", 502), ("proxy_next_upstream error timeout non_idempotent;", 200)]
        {
            let inside = format!("location / {{ proxy_pass http://o; {more} }}");
            let server = start(kind, &http, &inside);
            let mut client = client(&server);
            assert_eq!(ask_on(&mut client, GET).0, 200, "{kind}");
            assert_eq!(ask_on(&mut client, POST).0, want, "{kind} {more}");
        }
    });
}

#[test]
fn a_connection_that_closed_while_idle_is_noticed() {
    of_both(|kind| {
        let origin = Origin::start(|conn| {
            conn.request()?;
            conn.send(OK)?;
            conn.wait_read()
        });
        let http = format!("upstream o {{ server {}; keepalive 2; }}", origin.addr());
        let server = start(kind, &http, "location / { proxy_pass http://o; }");
        let mut client = client(&server);
        for n in 1..5 {
            // Also for a POST, of which nothing has been sent when that is seen.
            assert_eq!(ask_on(&mut client, POST), (200, "ok".to_owned()), "{kind}");
            origin.wait_closed(n);
        }
    });
}

#[test]
fn servers_that_fail_are_passed_over() {
    let good = Origin::answering(OK);
    let refusing = Port::reserve().unwrap();
    let refusing = format!("127.0.0.1:{}", refusing.number());
    let closing = Origin::start(|conn| conn.request().map(|_| ()));
    let resetting = Origin::start(|conn| {
        conn.request()?;
        conn.reset()
    });
    let silent = Origin::start(|conn| {
        conn.request()?;
        conn.wait_closed()
    });
    let broken = Origin::answering("HTTP/1.1 200 OK\r\nA\0: b\r\n\r\n");
    let busy = Origin::answering("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
    let hole = Blackhole::new().unwrap();
    let table = [
        (refusing, "", "502"),
        (closing.addr().to_string(), "", "502"),
        (resetting.addr().to_string(), "", "502"),
        (silent.addr().to_string(), "", "504"),
        (hole.addr().to_string(), "", "504"),
        (broken.addr().to_string(), "proxy_next_upstream invalid_header;", "502"),
        (busy.addr().to_string(), "proxy_next_upstream http_503;", "503"),
    ];
    of_both(|kind| {
        for (bad, more, status) in &table {
            // Who does answer has the time to, on a busy machine as well.
            let patience = if *status == "504" { "1s" } else { "20s" };
            let http = format!(
                "upstream o {{ server {bad} max_fails=0; server {} backup; }}
                 proxy_connect_timeout {patience}; proxy_read_timeout {patience};",
                good.addr()
            );
            let inside = format!(
                "location / {{ proxy_pass http://o; {more} }}
                 location /off {{ proxy_pass http://o; proxy_next_upstream off; }}"
            );
            let server = start(kind, &http, &inside);
            assert_eq!(ask(server.addr(), &get("/")), "200 ok", "{kind} {bad} {more}");
            let want = format!("/ 200 [{bad}, {}] [{status}, 200]", good.addr());
            assert_eq!(last_access(&server, 1), want, "{kind} {more}");
            let off = ask(server.addr(), &get("/off"));
            assert!(off.starts_with(status), "{kind} {bad} {more}: {off}");
        }
    });
}

#[test]
fn failures_to_connect_are_told() {
    let refusing = Port::reserve().unwrap();
    let hole = Blackhole::new().unwrap();
    of_both(|kind| {
        let server = start(kind, "", &pass(([127, 0, 0, 1], refusing.number()).into(), ""));
        assert_eq!(ask(server.addr(), &get("/")), "502", "{kind}");
        let text = "connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1";
        wait_logged(&server, text);
        let server = start(kind, "", &pass(hole.addr(), "proxy_connect_timeout 300ms;"));
        assert_eq!(ask(server.addr(), &get("/")), "504", "{kind}");
        wait_logged(
            &server,
            "upstream timed out (110: Connection timed out) while connecting to upstream",
        );
    });
}

#[test]
fn a_client_that_goes_frees_its_upstream() {
    of_both(|kind| {
        let gate = Gate::new();
        let behind = gate.clone();
        let origin = Origin::start(move |conn| {
            let request = conn.request()?.unwrap();
            if request.line().contains("/ignored") {
                behind.wait();
                conn.send(OK)?;
                // Nobody is there for it, and still it is read.
                return conn.wait_read();
            }
            conn.wait_closed()
        });
        let more = format!(
            "location /ignored {{ proxy_pass http://{}; proxy_ignore_client_abort on; }}",
            origin.addr()
        );
        let server = start(kind, "", &(pass(origin.addr(), "") + &more));
        let mut gone = client(&server);
        gone.send(GET.as_bytes()).unwrap();
        origin.wait_requests(1);
        drop(gone);
        origin.wait_closed(1);
        assert!(last_access(&server, 1).starts_with("/ 499"), "{kind}: {}", server.access_log());
        let mut gone = client(&server);
        gone.send(b"GET /ignored HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        origin.wait_requests(2);
        drop(gone);
        gate.open();
        origin.wait_closed(2);
        assert!(
            last_access(&server, 2).starts_with("/ignored 200"),
            "{kind}: {}",
            server.access_log()
        );
    });
}

/// How far an upstream comes before a client goes.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Connecting,
    Silent,
    InHead,
}

const GONE: &str = "epoll_wait() reported that client prematurely closed connection, so upstream connection is closed too";
const RESET: &str = " (104: Connection reset by peer)";

/// What logs say of a client that goes while a server is being asked.
struct Leaving<'a> {
    request: &'a str,
    more: &'a str,
    stage: Stage,
    /// With what the status begins; of a client in the middle of its body nginx says 400.
    status: &'a str,
    upstream_status: &'a str,
    told: &'a str,
    doing: &'a str,
}

impl Leaving<'_> {
    fn check(&self, kind: Kind, hole: &Blackhole, resets: bool) {
        let stage = self.stage;
        let origin = Origin::start(move |conn| {
            let Some(head) = conn.head()? else { return Ok(()) };
            if stage == Stage::InHead {
                conn.send(b"HTTP/1.1 200 OK\r\nX: ")?;
                conn.wait_read()?;
            }
            conn.record(&head);
            conn.wait_closed()
        });
        let addr = if stage == Stage::Connecting { hole.addr() } else { origin.addr() };
        let ok = "location /ok { access_log off; return 200 ok; }";
        let server = start(kind, "", &(pass(addr, self.more) + ok));
        let mut gone = client(&server);
        gone.send(self.request.as_bytes()).unwrap();
        if stage != Stage::Connecting {
            origin.wait_requests(1);
            let begun = |bytes: &[u8]| bytes.windows(3).any(|window| window == b"abc");
            let is_get = self.request == GET;
            let all = wait_for(|| is_get || begun(&origin.bytes(0)), LIMIT);
            assert!(all, "{kind} {:?} {}", self.request, origin.bytes(0).escape_ascii());
        }
        // One thread serves both: what came first has been looked at when this is answered.
        assert_eq!(ask(server.addr(), &get("/ok")), "200 ok");
        if resets {
            gone.reset().unwrap()
        } else {
            drop(gone)
        }
        let line = last_access(&server, 1);
        let case = format!(
            "{kind} {:?} {} {resets}: {line} {}",
            self.request,
            self.more,
            server.error_log()
        );
        assert!(line.starts_with(&format!("/ {}", self.status)), "{case}");
        assert!(line.ends_with(&format!("[{addr}] [{}]", self.upstream_status)), "{case}");
        let told = match (self.told, resets) {
            ("", false) => "client prematurely closed connection".to_owned(),
            ("", true) => format!("recv() failed{RESET}"),
            (text, false) => text.to_owned(),
            (text, true) => format!("{text}{RESET}"),
        };
        assert!(server.error_log().contains(&format!("{told} while {}", self.doing)), "{case}");
    }
}

#[test]
fn what_a_server_was_asked_is_told_of_a_client_that_goes() {
    const UNBUFFERED: &str = "proxy_request_buffering off;";
    const SENDING: &str = "sending request to upstream";
    const READING: &str = "reading response header from upstream";
    const CONNECTING: &str = "connecting to upstream";
    let begun = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\nabc";
    let chunked =
        "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let begun_chunks =
        "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    let hole = Blackhole::new().unwrap();
    use Stage::{Connecting, InHead, Silent};
    for (request, more, stage, status, upstream_status, told, doing) in [
        (GET, "", Connecting, "499", "-", GONE, CONNECTING),
        (POST, UNBUFFERED, Connecting, "499", "-", GONE, CONNECTING),
        (begun, UNBUFFERED, Connecting, "499", "-", GONE, CONNECTING),
        (GET, "", Silent, "499", "-", GONE, SENDING),
        (POST, "", Silent, "499", "-", GONE, SENDING),
        (POST, UNBUFFERED, Silent, "499", "-", GONE, SENDING),
        (chunked, UNBUFFERED, Silent, "499", "-", GONE, SENDING),
        (begun, UNBUFFERED, Silent, "4", "-", "", SENDING),
        (begun_chunks, UNBUFFERED, Silent, "4", "-", "", SENDING),
        (GET, "", InHead, "499", "200", GONE, READING),
        (begun, UNBUFFERED, InHead, "4", "200", "", SENDING),
    ] {
        let leaving = Leaving { request, more, stage, status, upstream_status, told, doing };
        of_both(|kind| [false, true].iter().for_each(|resets| leaving.check(kind, &hole, *resets)));
    }
}

#[test]
fn a_client_that_goes_is_noticed_behind_a_server_that_does_not_read() {
    // nginx notices nothing as long as its buffers are full.
    for more in ["", "proxy_request_buffering off;"] {
        for chunked in [false, true] {
            for resets in [false, true] {
                let origin = Origin::start(|conn| {
                    conn.stream()?;
                    conn.hang()
                });
                let more = format!("{more} client_max_body_size 0; proxy_send_timeout 1h;");
                let server = start(Kind::Forebay, "", &pass(origin.addr(), &more));
                let mut gone = client(&server);
                let (framing, size) = match chunked {
                    true => ("Transfer-Encoding: chunked", "ffffff\r\n"),
                    false => ("Content-Length: 16777215", ""),
                };
                let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{size}");
                gone.send(head.as_bytes()).unwrap();
                let body = vec![b'x'; 0xff_ffff];
                if more.starts_with("proxy") {
                    // More than the server takes, and less than all.
                    gone.set_timeout(Duration::from_millis(500)).unwrap();
                    let _ = gone.send(&body);
                    if !resets {
                        // What it has sent stands before its end, which cannot come.
                        continue;
                    }
                } else {
                    gone.send(&body).unwrap();
                    if chunked {
                        gone.send(b"\r\n0\r\n\r\n").unwrap();
                    }
                    assert!(wait_for(|| origin.connections() == 1, LIMIT));
                }
                if resets {
                    gone.reset().unwrap()
                } else {
                    drop(gone)
                }
                wait_logged(&server, &format!("{GONE}{}", if resets { RESET } else { "" }));
                let line = last_access(&server, 1);
                assert!(line.starts_with("/ 499") && line.ends_with("[-]"), "{more} {line}");
            }
        }
    }
}

#[test]
fn a_client_that_goes_during_the_response_frees_its_upstream() {
    of_both(|kind| {
        for buffering in ["", "proxy_buffering off;", "proxy_max_temp_file_size 0;"] {
            let origin = Origin::start(|conn| {
                conn.request()?;
                conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")?;
                conn.flood(&vec![b'x'; 1 << 16], 1_000_000_000).map(|_| ())
            });
            let server = start(kind, "", &pass(origin.addr(), buffering));
            let mut gone = client(&server);
            gone.send(GET.as_bytes()).unwrap();
            origin.wait_requests(1);
            drop(gone);
            origin.wait_closed(1);
        }
    });
}

#[test]
fn unix_sockets_are_upstreams() {
    of_both(|kind| {
        let dir = forebay_testkit::tempdir::TempDir::new().unwrap();
        let path = dir.path().join("origin");
        let listener = UnixListener::bind(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).ok();
        let inside = format!("location / {{ proxy_pass http://unix:{}:/base/; }}", path.display());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                head.push(byte[0]);
            }
            stream.write_all(OK).unwrap();
            String::from_utf8(head).unwrap()
        });
        let server = start(kind, "", &inside);
        assert_eq!(ask(server.addr(), &get("/x")), "200 ok", "{kind}: {}", server.error_log());
        let head = thread.join().unwrap();
        assert!(head.starts_with("GET /base/x HTTP/1.1\r\nHost: localhost\r\n"), "{kind}: {head}");
    });
}

#[test]
fn a_reload_keeps_connections_and_failures() {
    let origin = Origin::answering(OK);
    let refusing = Port::reserve().unwrap();
    let http = format!(
        "upstream o {{ server {}; keepalive 4; }}
         upstream two {{ zone two 64k; server 127.0.0.1:{} fail_timeout=1h; server {}; }}",
        origin.addr(),
        refusing.number(),
        origin.addr()
    );
    let inside = |name: &str| {
        format!(
            "add_header X-Conf {name}; location / {{ proxy_pass http://o; }}
             location /two {{ proxy_pass http://two; }}"
        )
    };
    let server = start(Kind::Forebay, &http, &inside("old"));
    assert_eq!(ask(server.addr(), &get("/")), "200 ok");
    // Both are tried once, and the first is known to fail from then on.
    while !server.error_log().contains("Connection refused") {
        assert_eq!(ask(server.addr(), &get("/two")), "200 ok");
    }
    let failures = || server.error_log().matches("Connection refused").count();
    let (connections, failed) = (origin.connections(), failures());
    let text = server.read("nginx.conf").replace("X-Conf old", "X-Conf new");
    server.rewrite_conf(&text).unwrap();
    server.signal(Signal::SIGHUP);
    let is_new = || {
        let mut client = client(&server);
        client.send(GET.as_bytes()).unwrap();
        client.read_response(false).unwrap().header("X-Conf") == Some(b"new")
    };
    assert!(wait_for(is_new, LIMIT), "{}", server.error_log());
    assert_eq!(origin.connections(), connections, "the kept connection serves on");
    for _ in 0..6 {
        assert_eq!(ask(server.addr(), &get("/two")), "200 ok");
    }
    assert_eq!(failures(), failed, "who failed before the reload is not asked after it");
}
