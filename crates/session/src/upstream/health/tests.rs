//! Checks of servers that answer in every way.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use forebay_conf::{Diagnostics, Span};
use forebay_rt::task::{block_on, yield_now};

use super::{probe::ask, *};
use crate::{
    testing::{Text, nodes},
    upstream::{Group, Server, Settings, Upstreams, address::Target},
    var::Registry,
};

/// For checks that ask for no variables.
const NO_VARIABLES: fn(&[VarId], &Answer<'_>) -> bool = |_, _| false;

fn tests(text: &str) -> Result<Match, String> {
    let mut registry = Registry::<Text>::default();
    let node = &nodes(&format!("match m {{ {text} }}"))[0];
    let mut diags = Diagnostics::new();
    let tests = directives::match_block(node, &mut registry, &mut diags);
    let error = diags.iter().next().map(|error| error.message.clone());
    error.map_or_else(|| tests.map_err(|error| error.message), Err)
}

fn plus(arguments: &str, tests: &str) -> Check {
    let node = &nodes(&format!("health_check {arguments};"))[0];
    let tests = (!tests.is_empty()).then(|| Arc::new(self::tests(tests).unwrap()));
    let check = directives::health_check(node).unwrap();
    check.finish(check.http("backend", tests), None, 1000)
}

fn tengine(text: &str) -> Check {
    let mut settings = Settings::default();
    for node in nodes(text) {
        match node.name() {
            "check" => directives::check(&mut settings, &node),
            "check_http_send" => directives::check_http_send(&mut settings, &node),
            "check_keepalive_requests" => {
                directives::check_keepalive_requests(&mut settings, &node)
            }
            _ => directives::check_http_expect_alive(&mut settings, &node),
        }
        .unwrap();
    }
    settings.check.finish().unwrap()
}

/// A server that answers each connection's requests with the same bytes; how many connections came,
/// and what they sent.
struct Backend {
    addr: Addr,
    connections: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<u8>>>,
}

/// `close`: after one answer.
fn backend(answer: &'static [u8], close: bool) -> Backend {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = Addr::Tcp(listener.local_addr().unwrap());
    let (connections, asked) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<u8>>>::default());
    let (count, heard) = (connections.clone(), asked.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            count.fetch_add(1, SeqCst);
            let mut buf = [0; 1024];
            // A MySQL server speaks first.
            if answer.starts_with(b"\x4a") {
                let _ = stream.write_all(answer);
            }
            while let Ok(read @ 1..) = stream.read(&mut buf) {
                heard.lock().unwrap().extend_from_slice(&buf[..read]);
                if stream.write_all(answer).is_err() || close {
                    break;
                }
            }
        }
    });
    Backend { addr, connections, asked }
}

fn verdict(check: &Check, answer: &'static [u8]) -> String {
    let backend = backend(answer, true);
    let result = block_on(ask(check, &backend.addr, &mut None, &NO_VARIABLES));
    result.map_or_else(|failure| failure.stage.to_owned(), |()| "passed".to_owned())
}

#[test]
fn responses_are_judged_by_the_match() {
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX: a\r\n\r\nWelcome to nginx";
    const MOVED: &[u8] = b"HTTP/1.1 301 Moved\r\n\r\n";
    const ERROR: &[u8] = b"HTTP/1.1 500 Error\r\n\r\nWelcome";
    const STATUS: &str = "checking status code";
    let cases: [(&str, &'static [u8], &str); 24] = [
        ("", OK, "passed"),
        ("", MOVED, "passed"),
        ("", ERROR, STATUS),
        ("", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", "passed"),
        ("", b"SSH-2.0-x\r\n", "reading response"),
        ("", b"HTTP/1.1 200 OK\r\nA: b\r\n", "reading response"),
        ("", b"", "reading response"),
        ("status 200;", MOVED, STATUS),
        ("status 200-399;", MOVED, "passed"),
        ("status 200 301-303;", MOVED, "passed"),
        ("status ! 500;", OK, "passed"),
        ("status ! 400-599;", ERROR, STATUS),
        ("status 500;", ERROR, "passed"),
        ("header X;", OK, "passed"),
        ("header ! X;", OK, "checking header"),
        ("header x = a;", OK, "passed"),
        ("header X != a;", OK, "checking header"),
        ("header Content-Type ~ html$;", OK, "passed"),
        ("header Content-Type !~ html;", OK, "checking header"),
        ("header Y !~ html;", OK, "passed"),
        ("body ~ \"Welcome to\";", OK, "passed"),
        ("body ~ Goodbye;", OK, "checking body"),
        ("body !~ Welcome;", OK, "checking body"),
        ("status 500; body ~ Welcome;", ERROR, "passed"),
    ];
    for (text, answer, want) in cases {
        assert_eq!(verdict(&plus("", text), answer), want, "{text}");
    }
}

#[test]
fn tengine_s_checks_judge_as_it_does() {
    const HTTP: &str = "check type=http;";
    let cases: [(&str, &'static [u8], &str); 14] = [
        (HTTP, b"HTTP/1.0 200 OK\r\n\r\n", "passed"),
        (HTTP, b"HTTP/1.0 302 Found\r\n\r\n", "passed"),
        (HTTP, b"HTTP/1.0 404 No\r\n\r\n", "checking status code"),
        (HTTP, b"HTTP/1.0 500 No\r\n\r\n", "checking status code"),
        (
            "check type=http; check_http_expect_alive http_2xx http_4xx;",
            b"HTTP/1.0 404 No\r\n\r\n",
            "passed",
        ),
        (
            "check type=http; check_http_expect_alive http_2xx http_4xx;",
            b"HTTP/1.0 302 No\r\n\r\n",
            "checking status code",
        ),
        ("check;", b"", "passed"),
        ("check type=ssl_hello;", b"\x16\x03\x03\x00\x01", "passed"),
        ("check type=ssl_hello;", b"\x15\x03\x01\x00\x02\x02\x46", "passed"),
        ("check type=ssl_hello;", b"HTTP/1.0 400 Bad\r\n\r\n", "reading response"),
        ("check type=ajp;", b"\x41\x42\x00\x01\x09", "passed"),
        ("check type=ajp;", b"HTTP/", "reading response"),
        ("check type=mysql;", b"\x4a\x00\x00\x00\x0a5.7", "passed"),
        ("check type=mysql;", b"\x4a\x00\x00\x00\xff5.7", "reading response"),
    ];
    for (text, answer, want) in cases {
        assert_eq!(verdict(&tengine(text), answer), want, "{text}");
    }
}

#[test]
fn a_server_that_is_not_there_or_says_nothing_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = Addr::Tcp(listener.local_addr().unwrap());
    let quick = Check { timeout_ms: 20, ..plus("", "") };
    let silent = block_on(ask(&quick, &addr, &mut None, &NO_VARIABLES)).unwrap_err();
    assert_eq!((silent.stage, silent.timed_out), ("reading response", true));
    drop(listener);
    let gone = block_on(ask(&plus("", ""), &addr, &mut None, &NO_VARIABLES)).unwrap_err();
    assert_eq!((gone.stage, gone.timed_out), ("connecting to upstream", false));
}

#[test]
fn the_request_is_what_the_directive_says() {
    let cases = [
        (
            plus("uri=/$uri?${a}", ""),
            "GET /$uri?${a} HTTP/1.0\r\nHost: backend\r\nConnection: close\r\n\r\n",
        ),
        (plus("uri=/x?y", ""), "GET /x?y HTTP/1.0\r\nHost: backend\r\nConnection: close\r\n\r\n"),
        (tengine("check type=http;"), "GET / HTTP/1.0\r\n\r\n"),
        (
            tengine(
                "check type=http; check_http_send \"HEAD /s HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n\";",
            ),
            "HEAD /s HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
    ];
    for (check, want) in cases {
        let backend = backend(b"HTTP/1.0 200 OK\r\n\r\n", true);
        block_on(ask(&check, &backend.addr, &mut None, &NO_VARIABLES)).unwrap();
        assert_eq!(String::from_utf8_lossy(&backend.asked.lock().unwrap()), want);
    }
}

#[test]
fn a_connection_is_asked_again_as_often_as_it_may() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    for (text, close, want) in [
        ("check type=http;", false, 4),
        ("check type=http; check_keepalive_requests 2;", false, 2),
        ("check type=http; check_keepalive_requests 9;", false, 1),
        // One that turns out closed is no failure.
        ("check type=http; check_keepalive_requests 9;", true, 4),
    ] {
        let (check, backend) = (tengine(text), backend(answer, close));
        block_on(async {
            let mut kept = None;
            for _ in 0..4 {
                ask(&check, &backend.addr, &mut kept, &NO_VARIABLES).await.unwrap();
            }
        });
        assert_eq!(backend.connections.load(SeqCst), want, "{text} {close}");
    }
}

#[test]
fn a_server_that_says_no_on_a_kept_connection_is_not_asked_twice() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = Addr::Tcp(listener.local_addr().unwrap());
    let asked = Arc::<AtomicUsize>::default();
    let count = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut buf = [0; 1024];
            while let Ok(1..) = stream.read(&mut buf) {
                let status = if count.fetch_add(1, SeqCst) == 0 { "200 OK" } else { "500 Ill" };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                if stream.write_all(answer.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    let check = plus("keepalive_time=1h", "");
    block_on(async {
        let mut kept = None;
        ask(&check, &addr, &mut kept, &NO_VARIABLES).await.unwrap();
        let failure = ask(&check, &addr, &mut kept, &NO_VARIABLES).await.unwrap_err();
        assert_eq!(failure.stage, "checking status code");
    });
    assert_eq!(asked.load(SeqCst), 2);
}

fn server(addr: &Addr) -> Server {
    Server::new(Target::of(addr.clone()), Span::default())
}

fn group(check: Check) -> Group {
    let servers = [1, 2].map(|last| server(&Addr::Tcp(([10, 0, 0, last], 81).into())));
    let checks = vec![Arc::new(check)];
    Group::new("u", Settings { servers: servers.into(), checks, ..Settings::default() })
}

/// What is decided after each check: `+` up, `-` down.
fn story(check: Check, results: &str) -> String {
    let group = group(check);
    let peer = group.peers()[0].clone();
    let sign = |up| if up { '+' } else { '-' };
    let mut out = String::from(sign(peer.is_healthy()));
    for result in results.chars() {
        let changed = note(&group.settings.checks[0], 0, &peer, result == 'p', 1000);
        assert_eq!(changed.is_some(), out.ends_with(sign(!peer.is_healthy())));
        out.push(sign(peer.is_healthy()));
    }
    out
}

#[test]
fn so_many_checks_in_a_row_change_a_server_s_state() {
    let cases = [
        (plus("", ""), "pfpfp", "++-+-+"),
        (plus("fails=3 passes=2", ""), "ffpfffpfpp", "++++++----+"),
        (plus("mandatory", ""), "fp", "--+"),
        // The first check decides.
        (plus("mandatory passes=3", ""), "pfpp", "-+---"),
        (tengine("check fall=2 rise=2;"), "pppffpp", "--+++--+"),
        (tengine("check fall=2 rise=2 default_down=false;"), "ffp", "++--"),
    ];
    for (check, results, want) in cases {
        let shown = format!("{check:?}");
        assert_eq!(story(check, results), want, "{shown}");
    }
}

#[test]
fn unhealthy_servers_get_no_requests_and_come_back_without_failures() {
    let group = group(plus("", ""));
    let (check, peers) = (&group.settings.checks[0], group.peers());
    note(check, 0, &peers[0], false, 1000);
    assert!(peers[0].is_out(1000, true) && !peers[1].is_out(1000, false));
    assert_eq!(peers[0].health(0).unwrap().unhealthy, 1);
    note(check, 0, &peers[0], true, 1000);
    assert!(!peers[0].is_out(1000, false));
}

#[test]
fn a_reload_goes_on_with_what_is_known() {
    for (arguments, want) in [
        ("", [false, true]),
        ("mandatory", [false, false]),
        ("mandatory persistent", [false, true]),
    ] {
        let old = group(plus(arguments, ""));
        let check = &old.settings.checks[0];
        old.peers().iter().enumerate().for_each(|(n, peer)| {
            note(check, 0, peer, n == 1, 1000);
        });
        let new = group(plus(arguments, ""));
        new.take_over(&old);
        let healthy: Vec<_> = new.peers().iter().map(|peer| peer.is_healthy()).collect();
        assert_eq!(healthy, want, "{arguments}");
    }
    let (old, new) = (group(tengine("check;")), group(plus("", "")));
    assert!(old.peers().iter().all(|peer| !peer.is_healthy()));
    new.take_over(&old);
    assert!(new.peers().iter().all(|peer| peer.is_healthy()), "another check knows nothing yet");
}

#[test]
fn how_many_checks_say_down_is_counted_anew_with_each_note_and_reload() {
    let group = group(plus("", ""));
    let (checks, peer) = (&group.settings.checks, &group.peers()[0]);
    let agrees = || peer.health(0).unwrap().up == peer.is_healthy();
    for passed in [true, false, false, true] {
        // Whatever somebody else may have left.
        for wrong in [0, 1, u32::MAX] {
            peer.state.checks.say_down(wrong);
            note(&checks[0], 0, peer, passed, 1000);
            assert!(agrees(), "{passed} {wrong}");
            peer.state.checks.say_down(wrong);
            peer.state.checks.prepare(checks);
            assert!(agrees(), "reload, {passed} {wrong}");
        }
    }
}

#[test]
fn a_reload_and_a_check_at_the_same_moment_agree() {
    const ROUNDS: usize = 5000;
    let group = group(plus("", ""));
    let (check, peer) = (&group.settings.checks[0], &group.peers()[0]);
    let round = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                round.wait();
                // One of them falls among the notes, and none comes after them.
                (0..3).for_each(|_| peer.state.checks.prepare(&group.settings.checks));
                round.wait();
            }
        });
        let mut agree = 0;
        for _ in 0..ROUNDS {
            round.wait();
            for n in 0..300 {
                note(check, 0, peer, n % 2 == 1, 1000);
            }
            round.wait();
            agree += usize::from(peer.health(0).unwrap().up == peer.is_healthy());
            peer.state.checks.prepare(&group.settings.checks);
        }
        assert_eq!(agree, ROUNDS);
    });
}

#[test]
fn servers_are_checked_again_and_again_until_the_checks_end() {
    let good = backend(b"HTTP/1.0 200 OK\r\n\r\n", true);
    let bad = backend(b"HTTP/1.0 500 Error\r\n\r\n", true);
    let mut upstreams = Upstreams::default();
    let (target, _) = Target::parse("u", 80, false).unwrap();
    let upstream = upstreams.used(&target, Span::default()).unwrap();
    let servers = vec![server(&good.addr), server(&bad.addr)];
    *upstream.draft() = Some(Settings { servers, ..Settings::default() });
    upstream.add_check(plus("interval=10ms", ""));
    crate::testing::loading(|loader| upstreams.finish(loader));
    let peers = upstream.group().peers();
    block_on(async {
        let log = ErrorLog::to_stderr(Severity::Emerg);
        let require: Require = Rc::new(|_: &[VarId], _: &Asked<'_>, _: &Answer<'_>| false);
        let checks = start(upstreams.iter(), &log, &require);
        while peers[1].is_healthy() || peers[0].health(0).unwrap().checks < 3 {
            yield_now().await;
        }
        assert!(peers[0].is_healthy());
        drop(checks);
    });
}

#[test]
fn a_check_that_panics_is_not_the_last_one() {
    let good = backend(b"HTTP/1.0 200 OK\r\n\r\n", true);
    let mut upstreams = Upstreams::default();
    let (target, _) = Target::parse("u", 80, false).unwrap();
    let upstream = upstreams.used(&target, Span::default()).unwrap();
    let servers = vec![server(&good.addr)];
    *upstream.draft() = Some(Settings { servers, ..Settings::default() });
    upstream.add_check(plus("interval=10ms", "status 200; require $a;"));
    crate::testing::loading(|loader| upstreams.finish(loader));
    let peers = upstream.group().peers();
    block_on(async {
        let log = ErrorLog::to_stderr(Severity::Emerg);
        let asked = Rc::new(std::cell::Cell::new(0));
        let count = asked.clone();
        let require: Require = Rc::new(move |_: &[VarId], _: &Asked<'_>, _: &Answer<'_>| {
            count.set(count.get() + 1);
            assert!(count.get() > 2, "on purpose");
            true
        });
        let checks = start(upstreams.iter(), &log, &require);
        for _ in 0..500 {
            forebay_rt::timer::sleep(10).await;
            if peers[0].health(0).unwrap().checks >= 2 {
                break;
            }
        }
        assert_eq!(peers[0].health(0).unwrap().checks, 2, "asked {} times", asked.get());
        drop(checks);
    });
}

#[test]
fn variables_are_asked_for_when_all_else_is_right() {
    let check = plus("", "status 200; require $a $b;");
    for (answer, set, want) in [
        (&b"HTTP/1.1 200 OK\r\n\r\nbody"[..], true, Ok(())),
        (b"HTTP/1.1 200 OK\r\n\r\nbody", false, Err("checking variables")),
        (b"HTTP/1.1 404 No\r\n\r\nbody", true, Err("checking status code")),
    ] {
        let backend = backend(answer, true);
        let holds = move |vars: &[VarId], answer: &Answer<'_>| {
            assert_eq!((vars.len(), answer.head.status), (2, 200));
            set
        };
        let result = block_on(ask(&check, &backend.addr, &mut None, &holds));
        assert_eq!(result.map_err(|failure| failure.stage), want);
    }
}

#[test]
fn wrong_matches_are_told() {
    let cases = [
        ("status;", "invalid number of arguments in \"status\" directive"),
        ("status 20;", "invalid status \"20\""),
        ("status 300-200;", "invalid status \"300-200\""),
        ("header a is b;", "invalid parameter \"is\""),
        ("body = x;", "invalid parameter \"=\""),
        ("require;", "invalid number of arguments in \"require\" directive"),
        ("require $x y;", "invalid variable name \"y\""),
        ("require $;", "invalid variable name \"$\""),
        ("send x;", "unknown directive \"send\""),
    ];
    for (text, want) in cases {
        assert_eq!(tests(text).unwrap_err(), want, "{text}");
    }
}
