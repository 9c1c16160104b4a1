//! Names that are looked up while the server runs.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use forebay_testkit::dns::{A, DnsServer, Record, Reply, SRV};
use forebay_testkit::origin::{Gate, Origin};
use forebay_testkit::{Kind, Server, Signal, wait_for};

use crate::{ask, client, get, of_both, start, wait_logged};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Knows `good.test`, of which nobody listens at the first address, and the answers to other names.
fn dns() -> DnsServer {
    DnsServer::start(|query| match (query.name.as_str(), query.kind) {
        ("good.test", A) => {
            vec![Reply::records(query, &[Record::addr("good.test", 60, "127.0.0.1")])]
        }
        ("good.test", _) => vec![Reply::records(query, &[])],
        ("refused.test", _) => vec![Reply::code(query, 5)],
        ("silent.test", _) => Vec::new(),
        _ => vec![Reply::code(query, 3)],
    })
}

#[test]
fn names_in_variables_are_looked_up_and_failures_are_502() {
    let (dns, origin) = (dns(), Origin::answering(OK));
    of_both(|kind| {
        let inside = format!(
            "resolver {} ipv6=off; resolver_timeout 300ms;
             location / {{ proxy_pass http://$arg_h:{}; }}",
            dns.addr(),
            origin.addr().port()
        );
        let server = start(kind, "", &inside);
        for (name, want, log) in [
            ("good.test", "200 ok", ""),
            ("GOOD.test.", "200 ok", ""),
            ("127.0.0.1", "200 ok", ""),
            ("none.test", "502", "none.test could not be resolved (3: Host not found)"),
            ("refused.test", "502", "refused.test could not be resolved (5: Operation refused)"),
            ("silent.test", "502", "silent.test could not be resolved (110: Operation timed out)"),
        ] {
            let got = ask(server.addr(), &get(&format!("/?h={name}")));
            assert_eq!(got, want, "{kind} {name}: {}", server.error_log());
            wait_logged(&server, log);
        }
    });
}

#[test]
fn a_server_that_is_looked_up_again_does_not_stop_the_start() {
    let (dns, origin) = (dns(), Origin::answering(OK));
    let port = origin.addr().port();
    let http = format!(
        "resolver {} ipv6=off;
         upstream good {{ zone good 64k; server good.test:{port} resolve; }}
         upstream none {{ zone none 64k; server none.test:{port} resolve; }}
         upstream both {{ zone both 64k; server none.test:{port} resolve; server good.test:{port} resolve; }}",
        dns.addr()
    );
    let inside =
        "location /good { proxy_pass http://good; } location /none { proxy_pass http://none; }
                  location /both { proxy_pass http://both; }";
    let server = start(Kind::Forebay, &http, inside);
    for (path, want) in [("/good", "200 ok"), ("/both", "200 ok"), ("/none", "502")] {
        until(&server, path, want);
    }
    wait_logged(&server, "no live upstreams while connecting to upstream");
}

#[test]
fn a_service_gives_ports() {
    let origin = Origin::answering(OK);
    let port = origin.addr().port();
    let dns = DnsServer::start(move |query| match (query.name.as_str(), query.kind) {
        ("_http._tcp.a.test", SRV) => {
            vec![Reply::records(query, &[Record::srv(&query.name, 60, 1, 1, port, "one.test")])]
        }
        ("one.test", A) => {
            vec![Reply::records(query, &[Record::addr("one.test", 60, "127.0.0.1")])]
        }
        _ => vec![Reply::code(query, 3)],
    });
    let http = format!(
        "resolver {} ipv6=off; upstream o {{ zone o 64k; server a.test service=http resolve; }}",
        dns.addr()
    );
    let server = start(Kind::Forebay, &http, "location / { proxy_pass http://o; }");
    until(&server, "/", "200 ok");
}

/// An origin that answers with a name.
fn named(name: &'static str) -> Origin {
    let length = name.len();
    Origin::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}"))
}

/// Asks until the answer is that, which it must be soon.
fn until(server: &Server, path: &str, want: &str) {
    let met = || ask(server.addr(), &get(path)) == want;
    assert!(wait_for(met, crate::LIMIT), "{path} {want}: {}", server.error_log());
}

#[test]
fn the_next_priority_of_a_service_is_asked_when_the_first_is_down_or_unknown() {
    let (one, two) = (named("one"), named("two"));
    let ports = [one.addr().port(), two.addr().port()];
    // Nobody listens there.
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let stage = Arc::new(AtomicUsize::new(0));
    let at = stage.clone();
    let dns = DnsServer::start(move |query| match (query.name.as_str(), query.kind) {
        ("_http._tcp.a.test", SRV) => {
            let name = "_http._tcp.a.test";
            let srv = |priority, port, host| Record::srv(name, 0, priority, 1, port, host);
            let (first, host) = match at.load(SeqCst) {
                0 => (ports[0], "one.test"),
                1 => (dead, "one.test"),
                _ => (ports[0], "gone.test"),
            };
            vec![Reply::records(query, &[srv(20, ports[1], "one.test"), srv(10, first, host)])]
        }
        ("one.test", A) => vec![
            // In pieces: an alias first.
            Reply::records(query, &[Record::cname("one.test", 0, "two.test")]),
        ],
        ("two.test", A) => {
            vec![Reply::records(query, &[Record::addr("two.test", 0, "127.0.0.1")])]
        }
        _ => vec![Reply::code(query, 3)],
    });
    let http = format!(
        "resolver {} ipv6=off; upstream o {{ server a.test service=http resolve; }}",
        dns.addr()
    );
    let server = start(Kind::Forebay, &http, "location / { proxy_pass http://o; }");
    until(&server, "/", "200 one");
    for next in [1, 2] {
        stage.store(next, SeqCst);
        until(&server, "/", "200 two");
        stage.store(0, SeqCst);
        until(&server, "/", "200 one");
    }
    wait_logged(
        &server,
        "gone.test could not be resolved (3: Host not found) while resolving service http of a.test",
    );
}

#[test]
fn only_a_name_that_is_no_more_loses_its_servers() {
    const KNOWN: usize = 0;
    const GONE: usize = 3;
    let origin = named("here");
    let port = origin.addr().port();
    let code = Arc::new(AtomicUsize::new(KNOWN));
    let now = code.clone();
    let dns = DnsServer::start(move |query| match now.load(SeqCst) {
        KNOWN => vec![Reply::records(query, &[Record::addr("a.test", 0, "127.0.0.1")])],
        code @ 1..=5 => vec![Reply::code(query, code as u16)],
        // Silence.
        _ => Vec::new(),
    });
    let conf = |more: &str| {
        let http = format!(
            "resolver {} ipv6=off; resolver_timeout 300ms; {more} \
             upstream o {{ server a.test:{port} resolve; }}",
            dns.addr()
        );
        crate::conf(&http, "location / { proxy_pass http://o; }")
    };
    let server = crate::run(Kind::Forebay, &conf(""));
    until(&server, "/", "200 here");
    let asks = |more: usize| {
        let before = dns.queries().len();
        assert!(wait_for(|| dns.queries().len() >= before + more, crate::LIMIT));
    };
    for (answer, want) in [(2, "200 here"), (9, "200 here"), (GONE, "502"), (5, "502")] {
        code.store(answer, SeqCst);
        asks(2);
        until(&server, "/", want);
        assert_eq!(ask(server.addr(), &get("/")), want);
    }
    code.store(KNOWN, SeqCst);
    until(&server, "/", "200 here");
    // A reload goes on with what was found, whether anybody answers or not.
    code.store(9, SeqCst);
    asks(2);
    server.rewrite_conf(&conf("server_tokens off;")).unwrap();
    server.signal(Signal::SIGHUP);
    wait_logged(&server, "reconfiguring");
    asks(2);
    assert_eq!(ask(server.addr(), &get("/")), "200 here");
}

#[test]
fn a_request_waits_for_the_first_answer_about_a_name() {
    let origin = Origin::answering(OK);
    let port = origin.addr().port();
    let gate = Gate::new();
    let behind = gate.clone();
    let dns = DnsServer::start(move |query| {
        behind.wait();
        match (query.name.as_str(), query.kind) {
            ("late.test", A) => {
                vec![Reply::records(query, &[Record::addr("late.test", 60, "127.0.0.1")])]
            }
            _ => vec![Reply::code(query, 3)],
        }
    });
    let http = format!(
        "resolver {} ipv6=off; upstream late {{ server late.test:{port} resolve; }}
         upstream none {{ server none.test:{port} resolve; }}
         upstream some {{ server none.test:{port} resolve; server {}; }}",
        dns.addr(),
        origin.addr()
    );
    let inside =
        "location /late { proxy_pass http://late; } location /none { proxy_pass http://none; }
                  location /some { proxy_pass http://some; } location /here { return 204; }";
    let server = start(Kind::Forebay, &http, inside);
    let mut waiting: Vec<_> = ["/late", "/none"]
        .map(|path| {
            let mut client = client(&server);
            client.send(&get(path)).unwrap();
            client
        })
        .into();
    // By then both were looked at; who has another server does not wait.
    assert!(ask(server.addr(), &get("/here")).starts_with("204"));
    assert_eq!(ask(server.addr(), &get("/some")), "200 ok");
    assert_eq!(origin.requests().len(), 1);
    gate.open();
    assert_eq!(waiting[0].read_response(false).unwrap().body, b"ok");
    assert_eq!(waiting[1].read_response(false).unwrap().status, 502);
    // From now on nobody waits.
    assert_eq!(ask(server.addr(), &get("/none")), "502");
}

#[test]
fn nobody_waits_for_a_name_longer_than_the_resolver_does() {
    let dns = DnsServer::start(|_| Vec::new());
    let http = format!(
        "resolver {} ipv6=off; resolver_timeout 300ms;
         upstream silent {{ server silent.test:80 resolve; }}",
        dns.addr()
    );
    let server = start(Kind::Forebay, &http, "location / { proxy_pass http://silent; }");
    assert_eq!(ask(server.addr(), &get("/")), "502");
}

#[test]
fn idle_connections_to_addresses_that_are_gone_are_closed() {
    let origin = Origin::answering(OK);
    let port = origin.addr().port();
    let gone = Gate::new();
    let is_gone = gone.clone();
    let dns = DnsServer::start(move |query| match (query.kind, is_gone.is_open()) {
        (A, false) => vec![Reply::records(query, &[Record::addr("a.test", 0, "127.0.0.1")])],
        (A, true) => vec![Reply::records(query, &[Record::addr("a.test", 60, "127.0.0.2")])],
        _ => vec![Reply::records(query, &[])],
    });
    let http = format!(
        "upstream a {{ resolver {} valid=1s ipv6=off; server a.test:{port} resolve; keepalive 8; }}",
        dns.addr()
    );
    let server = start(Kind::Forebay, &http, "location / { proxy_pass http://a; }");
    assert_eq!(ask(server.addr(), &get("/")), "200 ok");
    assert_eq!(origin.open(), 1);
    gone.open();
    origin.wait_closed(1);
}
