//! Many requests on one connection, many connections at once, and what an idle one weighs.

use std::time::Duration;

use forebay_testkit::raw::Client;
use forebay_testkit::{Server, process, wait_for};

use crate::{LIMIT, ask, ask_new, conf, request, start, start_to_weigh};

const IDLE: usize = 5_000;

/// Connections that were used once and now wait for their next request.
fn idle_connections(server: &Server, count: usize) -> Vec<Client> {
    let connect = |_| {
        let mut client = Client::connect(server.addr()).expect("connect");
        assert_eq!(ask(&mut client, "/text").expect("response").status, 200);
        client
    };
    (0..count).map(connect).collect()
}

#[test]
fn ten_thousand_requests_on_one_connection_are_answered() {
    let server = start(&conf("", "keepalive_requests 20000;"));
    let mut client = Client::connect(server.addr()).expect("connect");
    for _ in 0..5_000 {
        assert_eq!(ask(&mut client, "/text").expect("response").body, b"alive");
    }
    // The other half in pipelines.
    let pipeline = request("/text").repeat(100);
    for _ in 0..50 {
        client.send(&pipeline).expect("send");
        for _ in 0..100 {
            let response = client.read_response(false).expect("response");
            assert!(response.body == b"alive" && !response.closes());
        }
    }
    let lines = || server.access_log().lines().count();
    assert!(wait_for(|| lines() == 10_000, LIMIT), "{} lines", lines());
}

#[test]
fn keepalive_requests_ends_a_connection_with_its_last_response() {
    let server = start(&conf("", "keepalive_requests 3;"));
    let mut client = Client::connect(server.addr()).expect("connect");
    for last in [false, false, true] {
        assert_eq!(ask(&mut client, "/text").expect("response").closes(), last);
    }
    assert!(client.is_at_end().expect("end"));
}

#[test]
fn idle_connections_disturb_nobody_and_stay() {
    let server = start(&conf("", ""));
    let mut idle = idle_connections(&server, IDLE);
    for _ in 0..200 {
        ask_new(server.addr(), "/text");
    }
    // Each of them is still good for a request.
    for client in idle.iter_mut().step_by(50) {
        assert_eq!(ask(client, "/text").expect("response").status, 200);
    }
    let worker = server.worker_pids()[0];
    assert!(process::open_files(worker) >= IDLE);
    drop(idle);
    let left = || process::open_files(worker);
    assert!(wait_for(|| left() < 200, LIMIT), "{} descriptors are left", left());
}

#[test]
fn idle_connections_cost_no_processor_time() {
    let server = start(&conf("", ""));
    let _idle = idle_connections(&server, IDLE);
    let tree = server.process_tree();
    let before = process::cpu_time_ns(&tree);
    std::thread::sleep(Duration::from_secs(1));
    let used = Duration::from_nanos(process::cpu_time_ns(&tree) - before);
    assert!(used < Duration::from_millis(50), "{used:?} in a second");
}

#[test]
fn idle_connection_is_small() {
    let server = start_to_weigh(&conf("", ""));
    // What is made once for the first requests is not theirs.
    drop(idle_connections(&server, 50));
    let tree = server.process_tree();
    let settled = || process::open_files(tree[tree.len() - 1]) < 50;
    assert!(wait_for(settled, LIMIT));
    let before = process::anonymous_bytes(&tree).expect("smaps_rollup");
    let _idle = idle_connections(&server, IDLE);
    // The memory of a request stays with its connection for a second, should the next one follow.
    let each = || {
        let now = process::anonymous_bytes(&tree).expect("smaps_rollup");
        now.saturating_sub(before) / IDLE as u64
    };
    let is_small = wait_for(|| each() < 1024, Duration::from_secs(10));
    println!("{} bytes for each idle connection", each());
    assert!(is_small, "{} bytes for each idle connection", each());
}

#[test]
fn what_a_crowd_held_goes_back_when_it_has_left() {
    let server = start_to_weigh(&conf("", ""));
    // What is made once for the first requests is not theirs.
    drop(idle_connections(&server, 50));
    let tree = server.process_tree();
    let open = || process::open_files(tree[tree.len() - 1]);
    let memory = || process::anonymous_bytes(&tree).expect("smaps_rollup");
    assert!(wait_for(|| open() < 50, LIMIT));
    let before = memory();
    // Half a head each: a buffer, and the request that it is to become.
    let mut crowd = Vec::new();
    for _ in 0..1_500 {
        let mut client = Client::connect(server.addr()).expect("connect");
        client.send(&request("/text")[..20]).expect("send");
        crowd.push(client);
    }
    assert!(wait_for(|| memory() > before + 1_500 * 4096, LIMIT), "{}", memory() - before);
    drop(crowd);
    let kept = || memory().saturating_sub(before);
    let went = wait_for(|| open() < 50 && kept() < 2 << 20, Duration::from_secs(10));
    println!("{} bytes stay", kept());
    assert!(went, "{} bytes stay", kept());
}

#[test]
fn connections_beyond_the_limit_take_the_place_of_idle_ones() {
    let text = conf("", "").replace("worker_connections 12000", "worker_connections 64");
    let server = start(&text);
    let mut idle = idle_connections(&server, 200);
    // The ones idle longest were closed, the newest were not.
    assert!(idle[0].is_at_end().expect("end"));
    let last = idle.last_mut().expect("200 of them");
    assert_eq!(ask(last, "/text").expect("response").status, 200);
}
