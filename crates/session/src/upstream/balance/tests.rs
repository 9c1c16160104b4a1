//! The choices of nginx 1.22, request by request, and those that it documents but does not have.

use std::net::IpAddr;

use super::*;
use crate::{
    testing::Text,
    upstream::{Outcome, Server, Settings, Time, Timings, Weights, address::Target},
    var::Template,
};

const NOW_MS: u64 = 1_000_000;

/// A group, and what its servers do.
struct Fixture {
    scope: Text,
    group: Group,
}

impl Fixture {
    /// Servers are `weight=N max_fails=N fail_timeout=N max_conns=N slow_start=N down drain backup`,
    /// and how they answer: `DEAD`, `E500`, `E404`. Their ports are those that nginx was tried with.
    fn new(servers: &[&str], method: &str) -> Fixture {
        let mut scope = Text::new();
        let servers = servers.iter().enumerate().map(|(n, words)| server(n, words)).collect();
        let key = Template::parse(b"$text", Default::default(), &mut scope.registry).unwrap();
        let time = Time { last_byte: false, inflight: false };
        let method = match method {
            "" => Method::RoundRobin,
            "least_conn" => Method::LeastConn,
            "least_time" => Method::LeastTime(time),
            "inflight" => Method::LeastTime(Time { inflight: true, ..time }),
            "ip_hash" => Method::IpHash { full: false },
            "ip_hash full" => Method::IpHash { full: true },
            "hash" => Method::Hash(key),
            "consistent" => Method::Consistent(key),
            "random" => Method::Random,
            "random two" => Method::RandomTwo(None),
            other => panic!("{other}"),
        };
        let settings = Settings { servers, method: Some(method), ..Settings::default() };
        Fixture { scope, group: Group::new("x", settings) }
    }

    fn begin(&mut self, key: &str) -> Selection {
        self.scope.store.reset();
        self.scope.text = key.as_bytes().to_vec();
        let client = key.parse::<IpAddr>().ok();
        self.group.begin(&self.scope, client)
    }

    /// A whole request: who was asked, one after the other; `-`: nobody was there.
    fn request(&mut self, key: &str, now_ms: u64) -> String {
        let mut selection = self.begin(key);
        let mut asked = String::new();
        loop {
            let Pick::Peer(lease) = self.group.pick(&mut selection, now_ms) else {
                return asked + "-";
            };
            let (digit, outcome) = of(&lease);
            asked.push(digit);
            lease.finish_at(&mut selection, outcome, Timings::default(), now_ms);
            if outcome == Outcome::Good || selection.tries() == 0 {
                return asked;
            }
        }
    }

    fn pick(&mut self, key: &str, now_ms: u64) -> Option<Lease> {
        let mut selection = self.begin(key);
        match self.group.pick(&mut selection, now_ms) {
            Pick::Peer(lease) => Some(lease),
            _ => None,
        }
    }
}

/// Ports of good servers begin here; of dead ones, of those that answer 500 and 404, by tens above.
const PORT: u16 = 29001;

fn server(n: usize, words: &str) -> Server {
    let mut port = PORT + n as u16;
    let (mut weights, mut backup) = (Weights::default(), false);
    for word in words.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, "0"));
        let value: u64 = value.parse().unwrap();
        match name {
            "weight" => weights.weight = value as i64,
            "max_fails" => weights.max_fails = value as u32,
            "fail_timeout" => weights.fail_timeout_s = value,
            "max_conns" => weights.max_conns = value as u32,
            "slow_start" => weights.slow_start_ms = value,
            "down" => weights.down = true,
            "drain" => weights.drain = true,
            "backup" => backup = true,
            "DEAD" => port += 10,
            "E500" => port += 20,
            "E404" => port += 30,
            other => panic!("{other}"),
        }
    }
    let (target, _) = Target::parse(&format!("127.0.0.1:{port}"), 80, false).unwrap();
    Server { weights, backup, ..Server::new(target, Default::default()) }
}

fn of(lease: &Lease) -> (char, Outcome) {
    let port: u16 = lease.peer().name.rsplit(':').next().unwrap().parse().unwrap();
    let offset = u32::from(port - PORT);
    let outcome = match offset / 10 {
        0 => Outcome::Good,
        3 => Outcome::Next,
        _ => Outcome::Failed,
    };
    (char::from_digit(offset % 10 + 1, 10).unwrap(), outcome)
}

/// As many requests as there are words in `want`, their keys made from the request's number.
fn check(servers: &[&str], method: &str, key: impl Fn(usize) -> String, want: &str) {
    let mut fixture = Fixture::new(servers, method);
    let count = want.split(' ').count();
    let got: Vec<_> = (0..count).map(|n| fixture.request(&key(n), NOW_MS)).collect();
    assert_eq!(got.join(" "), want, "{servers:?} {method}");
}

#[test]
fn round_robin_goes_nginx_s_rounds() {
    let cases: [(&[&str], &str); 8] = [
        (&["weight=5", "", ""], "1 1 2 1 3 1 1 1 1 2 1 3 1 1 1 1 2 1 3 1 1"),
        (&["weight=3", "weight=2", "weight=1"], "1 2 1 3 2 1 1 2 1 3 2 1"),
        (&["", "down", "weight=2"], "3 1 3 3 1 3 3 1 3"),
        (&["", "", "backup"], "1 2 1 2 1 2"),
        (&["", "DEAD", "weight=2"], "3 1 23 3 1 3 3 1 3"),
        (&["", "DEAD max_fails=2", "weight=2"], "3 1 23 3 1 3 23 1 3 3 1 3"),
        (&["", "DEAD weight=4 max_fails=2", ""], "21 3 21 1 3 1 3 1 3 1 3 1"),
        (&["", "DEAD weight=4 max_fails=0", ""], "21 3 21 21 1 23 23 3 21 21 1 23"),
    ];
    for (servers, want) in cases {
        check(servers, "", |_| String::new(), want);
    }
}

#[test]
fn failures_lower_weights_as_in_nginx() {
    let cases: [(&[&str], &str); 7] = [
        (&["DEAD", "DEAD"], "12 - - -"),
        (&["DEAD", "DEAD", "backup"], "123 3 3 3"),
        (&["DEAD", "DEAD backup"], "12 - - -"),
        // The only server is never failed.
        (&["DEAD"], "1 1 1 1"),
        (&["", "E500 max_fails=3", "weight=2"], "3 1 23 3 1 3 23 1 3 23 3 1 3 3"),
        // A status that another server may better is no failure.
        (&["", "E404", "weight=2"], "3 1 23 3 1 3 23 1 3 23 3 1 3 23"),
        (
            &["weight=2 max_fails=3 DEAD", "weight=5 max_fails=2 DEAD", "weight=3", ""],
            "23 13 24 3 13 3 4 3 13 3 3 4 3 3 3 4 3 3 3 4 3 3 3 4 3 3 3 4 3 3",
        ),
    ];
    for (servers, want) in cases {
        check(servers, "", |_| String::new(), want);
    }
}

#[test]
fn a_failed_server_is_tried_again_after_its_time() {
    let mut fixture = Fixture::new(&["", "DEAD fail_timeout=1", ""], "");
    let before: Vec<_> = (0..4).map(|_| fixture.request("", NOW_MS)).collect();
    let after: Vec<_> = (0..4).map(|_| fixture.request("", NOW_MS + 2200)).collect();
    assert_eq!((before.join(" ").as_str(), after.join(" ").as_str()), ("1 23 3 1", "3 1 3 21"));
}

#[test]
fn a_server_that_holds_again_has_no_failures() {
    let mut fixture = Fixture::new(&["", "max_fails=2 fail_timeout=1"], "");
    let flaky = fixture.group.peers()[1].clone();
    let ask = |fixture: &mut Fixture, outcome, now_ms| {
        let mut selection = fixture.begin("");
        let Pick::Peer(lease) = fixture.group.pick(&mut selection, now_ms) else { panic!() };
        let is_it = lease.peer().id == flaky.id;
        let outcome = if is_it { outcome } else { Outcome::Good };
        lease.finish_at(&mut selection, outcome, Timings::default(), now_ms);
        is_it
    };
    while flaky.fails() < 2 {
        ask(&mut fixture, Outcome::Failed, NOW_MS);
    }
    assert!((0..9).all(|_| !ask(&mut fixture, Outcome::Good, NOW_MS)), "it is disabled");
    while !ask(&mut fixture, Outcome::Good, NOW_MS + 3000) {}
    assert_eq!(flaky.fails(), 0);
}

#[test]
fn least_conn_goes_by_turns_among_equals() {
    let cases: [(&[&str], &str); 3] = [
        (&["weight=3", "weight=2", "weight=1"], "1 2 1 3 2 1 1 2 1 3 2 1"),
        (&["", "weight=2 DEAD", "", ""], "21 3 4 1 3 4 1 3 4 1 3 4"),
        (
            &["weight=2", "weight=5 DEAD max_fails=2", "weight=3", ""],
            "23 1 3 24 1 3 3 1 3 4 1 3 3 1 3 4 1 3 3 1 3 4 1 3 3 1 3 4 1 3",
        ),
    ];
    for (servers, want) in cases {
        check(servers, "least_conn", |_| String::new(), want);
    }
}

#[test]
fn least_conn_follows_the_connections() {
    let mut fixture = Fixture::new(&["weight=2", "", "backup"], "least_conn");
    let held: Vec<_> = (0..6).filter_map(|_| fixture.pick("", NOW_MS)).collect();
    let peers = fixture.group.peers();
    assert_eq!((peers[0].connections(), peers[1].connections()), (4, 2));
    drop(held);
    assert_eq!((peers[0].connections(), peers[1].connections()), (0, 0));
}

#[test]
fn hash_finds_nginx_s_servers() {
    let number = |n: usize| n.to_string();
    let cases: [(&[&str], &str); 5] = [
        (
            &["", "weight=2", ""],
            "3 1 2 2 2 2 1 3 1 3 2 2 3 1 1 3 2 2 2 2 1 3 2 2 2 2 3 1 3 1 3 1 2 2 2 2 1 3 1 3",
        ),
        (
            &["", "weight=2 down", "", ""],
            "1 3 4 4 3 1 3 1 3 1 1 1 4 1 3 1 4 1 4 1 4 4 3 1 3 3 3 1 1 3 4 3 1 3 3 1 1 3 1 4",
        ),
        (
            &["", "weight=2 DEAD", "", ""],
            "1 3 4 4 23 1 3 1 3 1 1 1 4 1 3 1 4 1 4 1 4 4 3 1 3 3 3 1 1 3",
        ),
        (&["DEAD", "DEAD", "DEAD"], "321 - - -"),
        (
            &["E500 max_fails=0", "E500 max_fails=0", "E500 max_fails=0", ""],
            "4 1324 2134 34 34 2134 1324 4 1324 4 24 324",
        ),
    ];
    for (servers, want) in cases {
        check(servers, "hash", number, want);
    }
    let weights = ["weight=3", "", "weight=2 DEAD", "", ""];
    let want = "35 2 1 5 1 4 5 1 5 1 1 1 4 2 5 1 1 4 1 4 5 1 1 4 1 1 4 2 4 2 4 2 1 1 1 4 5 1 5 1 1 \
                1 2 4 1 5 4 1 4 1";
    check(&weights, "hash", |n| format!("abc{n}"), want);
}

#[test]
fn an_empty_key_goes_round() {
    check(&["", "weight=2", ""], "hash", |_| String::new(), "2 1 3 2 2 1 3 2");
    check(&["", "weight=2", ""], "consistent", |_| String::new(), "2 1 3 2 2 1 3 2");
}

#[test]
fn the_ring_is_nginx_s() {
    let number = |n: usize| n.to_string();
    let cases: [(&[&str], &str); 5] = [
        (
            &["", "weight=2", ""],
            "1 1 1 3 2 1 2 2 3 2 2 3 2 2 3 2 2 3 2 2 2 1 3 3 2 1 1 2 3 2 1 2 2 1 1 2 2 3 2 2",
        ),
        (
            &["", "weight=2 down", "", ""],
            "4 4 1 3 3 1 4 4 3 4 4 3 4 4 3 4 4 3 1 1 1 4 4 3 4 1 1 1 4 3 1 4 3 1 4 4 1 3 3 4",
        ),
        (
            &["", "weight=2 DEAD", "", ""],
            "4 4 1 3 23 1 4 4 3 4 4 3 4 4 3 4 4 3 1 1 1 4 4 3 4 1 1 1 4 3",
        ),
        (&["DEAD", "DEAD", "DEAD"], "123 - - -"),
        (
            &["E500 max_fails=0", "E500 max_fails=0", "E500 max_fails=0", ""],
            "4 4 1234 2134 234 1324 4 4 3214 4 124 324",
        ),
    ];
    for (servers, want) in cases {
        check(servers, "consistent", number, want);
    }
    let want = "5 5 2 5 2 5 5 2 3 1 4 5 1 2 3 2 4 5 4 4 1 2 3 1 5 3 3 1 1 3 3 3 5 5 3 4 4 3 2 4 5 1 2 \
                2 5 5 5 5 5 4 2 3 1 1 5 4 3 2 5 3";
    check(&["", "", "", "", ""], "consistent", |n| format!("key-{n}"), want);
    let want = "4 2 2 4 2 3 4 2 2 2 2 4 2 2 2 4 2 4 2 2 4 2 1 2 4 1 1 3 2 3 2 2 2 3 2 4 3 1 2 1 3 2 2 \
                4 2 1 4 4 3 4";
    let weights = ["", "weight=3", "", "weight=2"];
    check(&weights, "consistent", |n| (n * 7919).to_string(), want);
}

#[test]
fn a_ring_moves_few_requests_when_a_server_goes() {
    let mut whole = Fixture::new(&["", "", "", "", ""], "consistent");
    let mut less = Fixture::new(&["", "", "down", "", ""], "consistent");
    for n in 0..1000 {
        let (before, after) = (whole.request(&n.to_string(), 0), less.request(&n.to_string(), 0));
        assert!(before == after || before == "3", "{n}: {before} {after}");
    }
}

#[test]
fn ip_hash_finds_nginx_s_servers() {
    let v4 = |i: usize| format!("{}.{}.{}.{}", i * 53 % 223 + 1, i * 7 % 256, i * 91 % 256, i);
    let cases: [(&[&str], &str); 3] = [
        (
            &["", "weight=2", ""],
            "2 2 1 3 2 1 3 2 2 3 2 2 1 2 2 1 3 2 1 3 2 2 3 2 2 1 2 2 1 3 2 1 1 3 2 1 3 2 3 2",
        ),
        (
            &["", "weight=2 down", "", ""],
            "4 3 4 4 1 3 3 4 1 3 3 4 4 3 3 3 4 3 3 3 3 4 4 3 3 4 3 1 3 3 1 3 1 3 4 1 3 3 3 3",
        ),
        (
            &["", "weight=2 DEAD", "", ""],
            "24 3 4 4 1 3 3 4 1 3 3 4 4 3 3 3 4 3 3 3 3 4 4 3 3 4 3 1 3 3",
        ),
    ];
    for (servers, want) in cases {
        check(servers, "ip_hash", v4, want);
    }
    let v6 = |i: usize| format!("2001:db8::{:x}", i * 37);
    let want = "3 1 2 2 3 1 2 3 1 2 2 3 1 2 3 1 2 2 3 1 2 3 1 2 2 3 1 2 3 1";
    check(&["", "weight=2", ""], "ip_hash", v6, want);
    let bad = ["E500 max_fails=0", "E500 max_fails=0", "E500 max_fails=0", ""];
    check(&bad, "ip_hash", |i| format!("{}.2.3.4", i * 41 + 1), "4 4 1324 124 214 24");
}

#[test]
fn the_last_octet_counts_only_in_full() {
    for (method, want) in [("ip_hash", 1), ("ip_hash full", 3)] {
        let mut fixture = Fixture::new(&["", "", ""], method);
        let mut seen: Vec<_> =
            (0..64).map(|n| fixture.request(&format!("10.0.0.{n}"), 0)).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), want, "{method}");
    }
}

#[test]
fn chance_follows_the_weights() {
    for method in ["random", "random two"] {
        let mut fixture = Fixture::new(&["weight=3", "", "down"], method);
        let picks: String = (0..4000).map(|_| fixture.request("", 0)).collect();
        let first = picks.matches('1').count();
        let fair = if method == "random" { 2700..3300 } else { 1..4000 };
        assert!(fair.contains(&first) && !picks.contains('3'), "{method}: {first}");
    }
}

#[test]
fn the_better_of_two_has_fewer_connections() {
    let mut fixture = Fixture::new(&["", "", "", ""], "random two");
    let held: Vec<_> = (0..400).filter_map(|_| fixture.pick("", NOW_MS)).collect();
    let most = fixture.group.peers().iter().map(|peer| peer.connections()).max().unwrap();
    assert!(held.len() == 400 && most < 115, "{most}");
}

#[test]
fn a_full_server_is_passed_over() {
    for method in ["", "least_conn", "ip_hash", "hash", "consistent", "random", "random two"] {
        let mut fixture = Fixture::new(&["max_conns=2", "max_conns=1"], method);
        let held: Vec<_> = (0..9).filter_map(|_| fixture.pick("10.0.0.1", NOW_MS)).collect();
        assert_eq!(held.len(), 3, "{method}");
        drop(held);
        assert!(fixture.pick("10.0.0.1", NOW_MS).is_some());
    }
    let mut single = Fixture::new(&["max_conns=1"], "");
    let held = single.pick("", NOW_MS);
    assert!(held.is_some() && single.pick("", NOW_MS).is_none());
}

#[test]
fn a_request_that_went_to_the_backups_stays_there() {
    check(&["DEAD", "E500 backup max_fails=0", "backup"], "", |_| String::new(), "123 3 23 3");
    let mut fixture = Fixture::new(&["max_conns=1", "backup", "backup"], "least_conn");
    let held = fixture.pick("", NOW_MS);
    assert!(held.is_some());
    let mut selection = fixture.begin("");
    let mut asked = String::new();
    while let Pick::Peer(lease) = fixture.group.pick(&mut selection, NOW_MS) {
        asked.push(of(&lease).0);
    }
    assert_eq!(asked, "23");
}

#[test]
fn least_time_prefers_who_answers_fast() {
    for (method, times, want) in [
        // The time counts once for each connection and once for the new one.
        ("least_time", [30, 10, 10], [1, 4, 4]),
        ("least_time", [0, 10, 10], [9, 0, 0]),
    ] {
        let mut fixture = Fixture::new(&["", "", ""], method);
        let peers = fixture.group.peers();
        peers.iter().zip(times).for_each(|(peer, ms)| peer.set_times(ms, ms));
        let held: Vec<_> = (0..9).filter_map(|_| fixture.pick("", NOW_MS)).collect();
        let got: Vec<_> = peers.iter().map(|peer| peer.connections()).collect();
        assert_eq!((held.len(), got), (9, want.to_vec()));
    }
}

#[test]
fn requests_that_are_not_answered_count_with_inflight() {
    for (method, want) in [("least_time", 2), ("inflight", 1)] {
        let mut fixture = Fixture::new(&["", ""], method);
        let peers = fixture.group.peers();
        peers[0].set_times(100, 100);
        peers[1].set_times(40, 40);
        let slow = fixture.pick("", NOW_MS).unwrap();
        assert_eq!(of(&slow).0, '2');
        let next = fixture.pick("", NOW_MS + 60_000).unwrap();
        assert_eq!(of(&next).0.to_digit(10), Some(want), "{method}");
    }
}

#[test]
fn averages_follow_the_times() {
    let mut fixture = Fixture::new(&["", ""], "least_time");
    for _ in 0..200 {
        let mut selection = fixture.begin("");
        let Pick::Peer(lease) = fixture.group.pick(&mut selection, NOW_MS) else { panic!() };
        let ms = if of(&lease).0 == '1' { 50 } else { 5 };
        let timings = Timings { header_ms: Some(ms), ..Timings::default() };
        lease.finish_at(&mut selection, Outcome::Good, timings, NOW_MS);
    }
    let expected: Vec<_> =
        fixture.group.peers().iter().map(|peer| peer.expected(false, false, 0) >> 8).collect();
    assert_eq!(expected, [50, 5]);
}

#[test]
fn a_server_that_drains_gets_nothing_new() {
    for method in ["", "least_conn", "hash", "consistent", "random"] {
        check(&["drain", ""], method, |n| n.to_string(), "2 2 2 2 2 2");
    }
    check(&["drain"], "", |_| String::new(), "-");
}

#[test]
fn a_server_that_is_well_again_starts_slowly() {
    let mut fixture = Fixture::new(&["slow_start=10000", ""], "");
    let first = fixture.group.peers()[0].clone();
    first.state.checks.say_down(1);
    assert_eq!((0..4).map(|_| fixture.request("", NOW_MS)).collect::<String>(), "2222");
    first.state.checks.say_down(0);
    first.recovered(NOW_MS);
    let mut share = |after_ms: u64| {
        let picks = (0..1000).map(|_| fixture.request("", NOW_MS + after_ms));
        picks.filter(|digit| digit == "1").count()
    };
    assert!(share(0) <= 2);
    assert!((85..=95).contains(&share(1000)));
    assert!((328..=338).contains(&share(5000)));
    assert!((499..=501).contains(&share(10_000)));
}

#[test]
fn all_threads_together_keep_the_weights() {
    let fixture = Fixture::new(&["weight=5", "weight=3", "weight=2", "DEAD"], "");
    let group = &fixture.group;
    let picks = || {
        let scope = Text::new();
        let mut picks = String::new();
        for _ in 0..2500 {
            let mut selection = group.begin(&scope, None);
            while let Pick::Peer(lease) = group.pick(&mut selection, NOW_MS) {
                let (digit, outcome) = of(&lease);
                picks.push(digit);
                lease.finish_at(&mut selection, outcome, Timings::default(), NOW_MS);
                if outcome == Outcome::Good {
                    break;
                }
            }
        }
        picks
    };
    let all: String = std::thread::scope(|threads| {
        let running: Vec<_> = (0..4).map(|_| threads.spawn(picks)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (digit, want) in [('1', 5000), ('2', 3000), ('3', 2000)] {
        let got = all.matches(digit).count();
        assert!(got.abs_diff(want) < 50, "{digit}: {got}");
    }
    // Each of the threads may have been about to ask it when it failed first.
    let peers = group.peers();
    assert!((1..=4).contains(&peers[3].fails()));
    assert!(peers.iter().all(|peer| peer.connections() == 0));
}
