//! The resolver against a scripted DNS server.

use std::{
    collections::HashSet,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use forebay_testkit::dns::{A, AAAA, DnsServer, Query, Record, Reply, SRV};

use super::*;

/// Long enough never to matter.
const LONG_MS: u64 = 30_000;
/// Short, for lookups that must fail so.
const SHORT_MS: u64 = 120;

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

fn settings(servers: &[SocketAddr]) -> Settings {
    Settings { servers: servers.into(), ..Settings::default() }
}

fn resolver(server: &DnsServer) -> Arc<Resolver> {
    Resolver::of(settings(&[server.addr()]))
}

fn found(resolver: &Arc<Resolver>, name: &str) -> Result<Vec<String>, ResolveError> {
    let answer = block_on(resolver.lookup(Target::host(name), LONG_MS))?;
    Ok(answer.endpoints.iter().map(|e| e.ip.to_string()).collect())
}

/// A server that knows the names of the table for all record types, and no others.
fn server_of(table: &'static [(&str, &str)]) -> DnsServer {
    DnsServer::start(move |query| vec![from_table(query, table)])
}

fn from_table(query: &Query, table: &[(&str, &str)]) -> Reply {
    let mut records = Vec::new();
    for (name, value) in table.iter().filter(|(name, _)| *name == query.name) {
        let words: Vec<&str> = value.split(' ').collect();
        match words[..] {
            ["CNAME", target] => records.push(Record::cname(name, 60, target)),
            ["SRV", priority, weight, port, host] if query.kind == SRV => {
                let number = |text: &str| text.parse().unwrap();
                let (priority, weight, port) = (number(priority), number(weight), number(port));
                records.push(Record::srv(name, 60, priority, weight, port, host));
            }
            [ip] if ip.contains(':') == (query.kind == AAAA) && query.kind != SRV => {
                records.push(Record::addr(name, 60, ip));
            }
            _ => {}
        }
    }
    match table.iter().any(|(name, _)| *name == query.name) {
        true => Reply::records(query, &records),
        false => Reply::code(query, 3),
    }
}

#[test]
fn both_families_are_asked_and_ipv4_comes_first() {
    let server = server_of(&[("a.test", "::1"), ("a.test", "10.0.0.1"), ("a.test", "10.0.0.2")]);
    let all = resolver(&server);
    assert_eq!(found(&all, "A.test.").unwrap(), ["10.0.0.1", "10.0.0.2", "::1"]);
    let mut asked: Vec<_> = server.queries().iter().map(|q| (q.name.clone(), q.kind)).collect();
    asked.sort();
    assert_eq!(asked, [("a.test".to_owned(), A), ("a.test".to_owned(), AAAA)]);
    for (ipv4, ipv6, want) in
        [(true, false, vec!["10.0.0.1", "10.0.0.2"]), (false, true, vec!["::1"])]
    {
        let one = Resolver::of(Settings { ipv4, ipv6, ..settings(&[server.addr()]) });
        assert_eq!(found(&one, "a.test").unwrap(), want);
    }
    // Every use begins at another address; an address needs no server.
    let firsts: HashSet<_> =
        (0..64).map(|_| block_on(all.resolve("a.test", LONG_MS)).unwrap()[0]).collect();
    assert_eq!(firsts.len(), 3);
    for (name, ip) in [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1")] {
        assert_eq!(block_on(all.resolve(name, 0)).unwrap()[0].to_string(), ip);
    }
}

#[test]
fn failures_have_nginx_s_numbers_and_texts() {
    for (code, text) in [
        (1, "1: Format error"),
        (2, "2: Server failure"),
        (3, "3: Host not found"),
        (4, "4: Unimplemented"),
        (5, "5: Operation refused"),
        (9, "9: Unknown error"),
    ] {
        let server = DnsServer::start(move |query| vec![Reply::code(query, code)]);
        assert_eq!(found(&resolver(&server), "a.test").unwrap_err().to_string(), text);
    }
    let silent = DnsServer::start(|_| Vec::new());
    let outcome = block_on(resolver(&silent).lookup(Target::host("a.test"), SHORT_MS));
    assert_eq!(outcome.unwrap_err().to_string(), "110: Operation timed out");
    let empty = DnsServer::start(|query| vec![Reply::records(query, &[])]);
    assert_eq!(found(&resolver(&empty), "a.test"), Err(ResolveError::NotFound));
}

#[test]
fn what_cannot_be_a_name_is_not_asked_for() {
    let server = server_of(&[]);
    let long = "a".repeat(64);
    for name in ["", ".", "a..b", "a b", "a\\046b", "ü.test", "a\"b", &long, &"a.".repeat(200)] {
        assert_eq!(found(&resolver(&server), name), Err(ResolveError::NotFound), "{name}");
    }
    assert_eq!(server.queries(), []);
}

#[test]
fn one_family_is_enough() {
    let server = DnsServer::start(|query| match query.kind {
        A => vec![Reply::code(query, 2)],
        _ => vec![Reply::records(query, &[Record::addr("a.test", 60, "::7")])],
    });
    assert_eq!(found(&resolver(&server), "a.test").unwrap(), ["::7"]);
}

#[test]
fn aliases_are_followed_within_answers_and_over_them() {
    let server = DnsServer::start(|query| {
        let records: &[Record] = match (query.name.as_str(), query.kind) {
            ("in.test", A) => &[
                Record::addr("other.test", 60, "10.9.9.9"),
                Record::cname("in.test", 60, "b.test"),
                Record::cname("b.test", 60, "c.test"),
                Record::addr("c.test", 60, "10.0.0.1"),
            ],
            ("over.test", _) => &[Record::cname("over.test", 60, "next.test")],
            ("next.test", A) => &[Record::addr("next.test", 60, "10.0.0.2")],
            ("loop.test", _) => &[
                Record::cname("loop.test", 60, "pool.test"),
                Record::cname("pool.test", 60, "loop.test"),
            ],
            ("l1.test", _) => &[Record::cname("l1.test", 60, "l2.test")],
            ("l2.test", _) => &[Record::cname("l2.test", 60, "l1.test")],
            _ => &[],
        };
        vec![Reply::records(query, records)]
    });
    let r = resolver(&server);
    assert_eq!(found(&r, "in.test").unwrap(), ["10.0.0.1"], "and not what is about another name");
    assert_eq!(found(&r, "over.test").unwrap(), ["10.0.0.2"]);
    assert_eq!(found(&r, "loop.test"), Err(ResolveError::NotFound));
    let before = server.queries().len();
    assert_eq!(found(&r, "l1.test"), Err(ResolveError::NotFound));
    let asked = server.queries().len() - before;
    assert!(asked <= 2 * (message::MAX_CNAMES + 1), "{asked} queries");
}

#[test]
fn services_give_ports_priorities_and_weights() {
    let server = server_of(&[
        ("_http._tcp.a.test", "SRV 20 1 81 two.test"),
        ("_http._tcp.a.test", "SRV 10 5 80 one.test"),
        ("_http._tcp.a.test", "SRV 10 5 82 none.test"),
        ("one.test", "10.0.0.1"),
        ("one.test", "10.0.0.3"),
        ("two.test", "::2"),
        ("my.service.a.test", "SRV 0 0 9 one.test"),
    ]);
    let r = resolver(&server);
    let look = |service| {
        let answer = block_on(r.lookup(Target::service(service, "A.test"), LONG_MS))?;
        let shown = |e: &Endpoint| {
            let (ip, port, priority, weight) = (e.ip, e.port, e.priority, e.weight);
            format!("{ip} {port} {priority} {weight} {}", e.host.as_deref().unwrap_or("-"))
        };
        Ok(answer.endpoints.iter().map(shown).collect::<Vec<_>>())
    };
    let want = ["10.0.0.1 80 10 5 one.test", "10.0.0.3 80 10 5 one.test", "::2 81 20 1 two.test"];
    assert_eq!(look("http").unwrap(), want);
    assert_eq!(look("my.service").unwrap()[0], "10.0.0.1 9 0 0 one.test");
    assert_eq!(look("none"), Err(ResolveError::NotFound));
}

#[test]
fn a_service_does_without_the_servers_that_nobody_knows() {
    let server = DnsServer::start(|query| match query.name.as_str() {
        "silent.test" => Vec::new(),
        "good.test" => vec![Reply::records(query, &[Record::addr("good.test", 9, "10.0.0.1")])],
        name => {
            let host = |host| Record::srv(name, 9, 1, 1, 80, host);
            vec![Reply::records(query, &[host("silent.test"), host("good.test")])]
        }
    });
    // Whether they are asked again and again, or those who wait have no more time.
    for (resend_ms, timeout_ms) in [(30, LONG_MS), (5_000, 500)] {
        let r = Resolver::of(Settings { ipv6: false, resend_ms, ..settings(&[server.addr()]) });
        let answer = block_on(r.lookup(Target::service("http", "a.test"), timeout_ms)).unwrap();
        assert_eq!(answer.endpoints.len(), 1);
        let silent = Missing { host: "silent.test".into(), error: ResolveError::TimedOut };
        assert_eq!(answer.missing, [silent]);
    }
}

#[test]
fn answers_hold_for_their_time_or_that_of_valid() {
    for (ttl, valid_ms, queries) in
        [(60, None, 1), (0, None, 2), (0, Some(60_000), 1), (60, Some(0), 2)]
    {
        let server = DnsServer::start(move |query| {
            vec![Reply::records(query, &[Record::addr(&query.name, ttl, "10.0.0.1")])]
        });
        let r = Resolver::of(Settings { ipv6: false, valid_ms, ..settings(&[server.addr()]) });
        assert_eq!(found(&r, "a.test"), found(&r, "a.test"));
        assert_eq!(server.queries().len(), queries, "{ttl} {valid_ms:?}");
    }
}

#[test]
fn failures_are_not_kept() {
    let asked = AtomicU32::new(0);
    let server = DnsServer::start(move |query| match asked.fetch_add(1, Relaxed) {
        0 => vec![Reply::code(query, 3)],
        _ => vec![Reply::records(query, &[Record::addr("a.test", 60, "10.0.0.1")])],
    });
    let r = Resolver::of(Settings { ipv6: false, ..settings(&[server.addr()]) });
    assert_eq!(found(&r, "a.test"), Err(ResolveError::NotFound));
    assert_eq!(found(&r, "a.test").unwrap(), ["10.0.0.1"]);
}

#[test]
fn those_who_wait_for_one_name_share_a_lookup() {
    let (release, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let server = DnsServer::start(move |query| {
        let _ = gate.lock().unwrap().recv();
        vec![Reply::records(query, &[Record::addr("a.test", 60, "10.0.0.1")])]
    });
    let r = Resolver::of(Settings { ipv6: false, ..settings(&[server.addr()]) });
    let mut waiting: Vec<_> = (0..50).map(|_| r.lookup(Target::host("a.test"), LONG_MS)).collect();
    // Some are forgotten meanwhile.
    waiting.truncate(40);
    release.send(()).unwrap();
    for lookup in waiting {
        assert!(block_on(lookup).is_ok());
    }
    assert_eq!(server.queries().len(), 1);
}

#[test]
fn what_does_not_fit_is_asked_over_tcp() {
    for with_records in [true, false] {
        let server = DnsServer::start(move |query| {
            let whole: Vec<_> =
                (0..60).map(|n| Record::addr("a.test", 60, &format!("10.0.0.{n}"))).collect();
            let part = if with_records { &whole[..10] } else { &[] };
            match query.tcp {
                true => vec![Reply::records(query, &whole)],
                false => vec![Reply::records(query, part).truncated()],
            }
        });
        let r = Resolver::of(Settings { ipv6: false, ..settings(&[server.addr()]) });
        assert_eq!(found(&r, "a.test").unwrap().len(), 60);
        let tcp: Vec<_> = server.queries().iter().map(|query| query.tcp).collect();
        assert_eq!(tcp, [false, true]);
    }
}

#[test]
fn only_the_answer_to_the_question_counts() {
    let server = DnsServer::start(|query| {
        let good = Reply::records(query, &[Record::addr("a.test", 60, "10.0.0.1")]);
        let bad = Reply::records(query, &[Record::addr("a.test", 60, "10.6.6.6")]);
        let mut echo = vec![0; 12];
        echo[..2].copy_from_slice(&query.id.to_be_bytes());
        vec![
            bad.clone().with_id(query.id.wrapping_add(1)),
            bad.about("b.test"),
            Reply::raw(b""),
            Reply::raw(&query.id.to_be_bytes()),
            Reply::raw(&echo),
            good,
        ]
    });
    let r = Resolver::of(Settings { ipv6: false, ..settings(&[server.addr()]) });
    assert_eq!(found(&r, "a.test").unwrap(), ["10.0.0.1"]);
}

#[test]
fn a_flood_of_guesses_turns_the_question_to_tcp() {
    let server = DnsServer::start(|query| {
        let bad = Reply::records(query, &[Record::addr("a.test", 60, "10.6.6.6")]);
        match query.tcp {
            true => vec![Reply::records(query, &[Record::addr("a.test", 60, "10.0.0.1")])],
            false => (1..200).map(|n| bad.clone().with_id(query.id.wrapping_add(n))).collect(),
        }
    });
    let r = Resolver::of(Settings { ipv6: false, ..settings(&[server.addr()]) });
    assert_eq!(found(&r, "a.test").unwrap(), ["10.0.0.1"]);
}

#[test]
fn another_source_is_not_heard() {
    let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = DnsServer::start(move |query| {
        // The kernel lets nothing of this through to a socket that is connected elsewhere.
        for _ in 0..10 {
            let _ = forger.send_to(b"forged", query.from);
        }
        vec![Reply::records(query, &[Record::addr("a.test", 60, "10.0.0.1")])]
    });
    let r = Resolver::of(Settings { ipv6: false, ..settings(&[server.addr()]) });
    assert_eq!(found(&r, "a.test").unwrap(), ["10.0.0.1"]);
    assert!(server.queries().iter().all(|query| !query.tcp), "as if nothing had come");
}

#[test]
fn numbers_and_source_ports_are_random() {
    let server = server_of(&[]);
    let r = Resolver::of(Settings { ipv6: false, ..settings(&[server.addr()]) });
    for n in 0..100 {
        let _ = found(&r, &format!("{n}.test"));
    }
    let queries = server.queries();
    let ids: HashSet<_> = queries.iter().map(|q| q.id).collect();
    let ports: HashSet<_> = queries.iter().map(|q| q.from.port()).collect();
    assert!(ids.len() > 90 && ports.len() > 90, "{} ids, {} ports", ids.len(), ports.len());
    let steps: HashSet<_> = queries.windows(2).map(|q| q[1].id.wrapping_sub(q[0].id)).collect();
    assert!(steps.len() > 90, "no pattern");
}

#[test]
fn a_server_that_fails_is_not_the_last_word() {
    let good = server_of(&[("a.test", "10.0.0.1")]);
    let failing = DnsServer::start(|query| vec![Reply::code(query, 2)]);
    let silent = DnsServer::start(|_| Vec::new());
    // Nobody listens at the port of a socket that is closed.
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let servers = [failing.addr(), gone, silent.addr(), good.addr()];
    let r = Resolver::of(Settings { resend_ms: 50, valid_ms: Some(0), ..settings(&servers) });
    for _ in 0..8 {
        assert_eq!(found(&r, "a.test").unwrap(), ["10.0.0.1"]);
    }
    let two = [failing.addr(), failing.addr()];
    assert_eq!(found(&Resolver::of(settings(&two)), "a.test"), Err(ResolveError::Server));
}

#[test]
fn an_answer_that_comes_in_the_next_one_s_turn_counts() {
    let asked = AtomicU32::new(0);
    // Each answer takes longer than a turn; the one that is waited for is the first.
    let server = DnsServer::start(move |query| {
        let number = asked.fetch_add(1, Relaxed);
        std::thread::sleep(Duration::from_millis(1_500));
        vec![Reply::records(query, &[Record::addr("a.test", 60, &format!("10.0.0.{number}"))])]
    });
    let r = Resolver::of(Settings { ipv6: false, resend_ms: 1_000, ..settings(&[server.addr()]) });
    assert_eq!(found(&r, "a.test").unwrap(), ["10.0.0.0"]);
}

#[test]
fn a_watched_name_is_told_again_when_it_changes() {
    let asked = AtomicU32::new(0);
    let server = DnsServer::start(move |query| match asked.fetch_add(1, Relaxed) {
        1 => vec![Reply::code(query, 3)],
        n => vec![Reply::records(query, &[Record::addr("a.test", 0, &format!("10.0.0.{n}"))])],
    });
    let r = Resolver::of(Settings { ipv6: false, ..settings(&[server.addr()]) });
    let (tell, told) = mpsc::channel();
    let watch = r.watch(Target::host("a.test"), 1_000, move |outcome| {
        let _ = tell.send(outcome.clone().map(|answer| answer.endpoints[0].ip.to_string()));
    });
    let next = || told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(next(), Ok("10.0.0.0".to_owned()));
    assert_eq!(next(), Err(ResolveError::NotFound));
    assert_eq!(next(), Ok("10.0.0.2".to_owned()));
    drop(watch);
    // The end of the watch drops what it told to.
    while told.recv_timeout(Duration::from_secs(20)).is_ok() {}
}

#[test]
fn queries_and_answers_are_counted_by_zone() {
    let server = server_of(&[("a.test", "10.0.0.1")]);
    let zone = Some("counted".into());
    let r = Resolver::of(Settings { status_zone: zone, ipv6: false, ..settings(&[server.addr()]) });
    let _ = (found(&r, "a.test"), found(&r, "a.test"), found(&r, "b.test"));
    let _ = block_on(r.lookup(Target::service("http", "a.test"), LONG_MS));
    let zones = status_zones();
    let (_, zone) = zones.iter().find(|(name, _)| &**name == "counted").unwrap();
    let counted: Vec<_> = zone.values().filter(|(_, value)| *value > 0).collect();
    assert_eq!(counted, [("name", 2), ("srv", 1), ("noerror", 1), ("nxdomain", 2)]);
}

#[test]
fn the_system_s_servers_are_asked_by_default() {
    let system = Resolver::system();
    assert!(system.settings().servers.is_empty());
    assert!(!thread::system_servers().is_empty());
    assert!(Arc::ptr_eq(&system, &Resolver::system()));
}
