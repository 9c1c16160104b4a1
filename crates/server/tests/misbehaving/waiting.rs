//! What limits waiting: for the next server (`proxy_next_upstream_timeout`), for a free one (`queue`).

use std::time::{Duration, Instant};

use forebay_testkit::origin::{Gate, Origin};
use forebay_testkit::{Kind, wait_for};

use crate::{LIMIT, ask, client, get, last_access, of_both, seen, start};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";

/// How long the first server takes at least: longer than the short limit, and long enough for the good one
/// to answer in on a busy machine.
const SLOW: Duration = Duration::from_millis(400);

#[test]
fn the_next_server_is_asked_within_its_time_only() {
    of_both(|kind| {
        let silent = Origin::start(|conn| conn.hang());
        let busy = Origin::start(|conn| {
            while conn.request()?.is_some() {
                let asked = Instant::now();
                wait_for(|| asked.elapsed() >= SLOW, LIMIT);
                conn.send(BUSY.as_bytes())?;
            }
            Ok(())
        });
        let good = Origin::answering(OK);
        let (silent, busy, good) = (silent.addr(), busy.addr(), good.addr());
        let next = "proxy_next_upstream error timeout http_503;";
        let dead = "127.0.0.1:1".to_owned();
        let slow = format!("{}ms", SLOW.as_millis());
        for (first, read, limit, want, asked) in [
            (silent.to_string(), &*slow, "0", "200 ok", "[504, 200]"),
            (silent.to_string(), &slow, "1h", "200 ok", "[504, 200]"),
            (silent.to_string(), &slow, "10ms", "504", "[504]"),
            (busy.to_string(), "1h", "1h", "200 ok", "[503, 200]"),
            // Where nobody else may be asked, its own answer is the answer.
            (busy.to_string(), "1h", "10ms", "503 busy", "[503]"),
            (dead, "1h", "1h", "200 ok", "[502, 200]"),
        ] {
            let http =
                format!("upstream o {{ server {first} max_fails=0; server {good} backup; }}");
            let location = format!(
                "location / {{ proxy_pass http://o; {next} proxy_next_upstream_timeout {limit};
                 proxy_read_timeout {read}; }}"
            );
            let server = start(kind, &http, &location);
            assert_eq!(ask(server.addr(), &get("/")), want, "{kind} {first} {limit}");
            let line = last_access(&server, 1);
            assert!(line.ends_with(asked), "{kind} {limit}: {line}");
        }
    });
}

#[test]
fn who_waits_for_a_server_has_asked_none() {
    let gate = Gate::new();
    let behind = gate.clone();
    let origin = Origin::start(move |conn| {
        while conn.request()?.is_some() {
            behind.wait();
            conn.send(OK.as_bytes())?;
        }
        Ok(())
    });
    let addr = origin.addr();
    let http = format!(
        "upstream o {{ server {addr} max_conns=1; queue 1 timeout=1h; }}
         upstream short {{ server {addr} max_conns=1; queue 9 timeout=10ms; }}"
    );
    let inside = "location / { proxy_pass http://o; } location /short { proxy_pass http://short; }";
    let server = start(Kind::Forebay, &http, inside);
    let mut holder = client(&server);
    holder.send(&get("/holds")).unwrap();
    origin.wait_requests(1);
    // The client leaves the queue, whose place is free again.
    let mut leaves = client(&server);
    leaves.send(&get("/left")).unwrap();
    drop(leaves);
    assert_eq!(last_access(&server, 1), "/left 499 [o] [-]");
    // Of two there is room for one.
    let mut two = [client(&server), client(&server)];
    for waits in &mut two {
        waits.send(&get("/waits")).unwrap();
    }
    assert_eq!(last_access(&server, 2), "/waits 502 [o] [502]");
    // As long as it may.
    let mut short = client(&server);
    short.send(&get("/short")).unwrap();
    origin.wait_requests(2);
    assert_eq!(ask(server.addr(), &get("/short")), "502");
    assert_eq!(last_access(&server, 3), "/short 502 [short] [502]");
    gate.open();
    let mut answers: Vec<_> =
        two.iter_mut().map(|waits| seen(&waits.read_to_end().unwrap(), false)).collect();
    answers.sort();
    assert_eq!(answers, ["200 ok", "502"]);
    assert_eq!(seen(&holder.read_to_end().unwrap(), false), "200 ok");
    assert_eq!(seen(&short.read_to_end().unwrap(), false), "200 ok");
    let all = || server.access_log().lines().count() == 6;
    assert!(wait_for(all, LIMIT), "{}", server.access_log());
    let served = format!("/waits 200 [{addr}] [200]");
    assert!(server.access_log().lines().any(|line| line == served), "{}", server.access_log());
}
