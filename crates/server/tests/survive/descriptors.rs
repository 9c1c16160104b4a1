//! A server that runs out of descriptors pauses, uses no processor time meanwhile, and goes on when
//! there are some again.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use forebay_testkit::raw::Client;
use forebay_testkit::{process, wait_for};

use crate::{LIMIT, ask_new, conf, is_nginx, request, start};

#[test]
fn without_descriptors_accepting_pauses_and_goes_on() {
    let server = start(&conf("worker_processes 1; worker_rlimit_nofile 64;", ""));
    ask_new(server.addr(), "/text");
    // Half a request each: none of these is idle, so none can be closed in another's favour.
    let half = |_| {
        let mut stream = TcpStream::connect(server.addr()).expect("connect");
        stream.write_all(&request("/text")[..10]).expect("send");
        stream
    };
    let mut busy: Vec<TcpStream> = (0..100).map(half).collect();
    let told = || server.error_log().contains("accept4() failed (24: Too many open files)");
    assert!(wait_for(told, LIMIT), "{}", server.error_log());
    let mut waiting = Client::connect(server.addr()).expect("the queue of the system has room");
    waiting.send(&request("/text")).expect("send");
    let tree = server.process_tree();
    let before = process::cpu_time_ns(&tree);
    std::thread::sleep(Duration::from_secs(1));
    let used = Duration::from_nanos(process::cpu_time_ns(&tree) - before);
    assert!(used < Duration::from_millis(50), "{used:?} in a second");
    let lines = server.error_log().matches("accept4() failed").count();
    assert!(lines < 50, "{lines} lines");
    busy.clear();
    assert_eq!(waiting.read_response(false).expect("response").status, 200);
    for _ in 0..50 {
        ask_new(server.addr(), "/text");
    }
}

#[test]
fn file_limits_are_those_of_each_thread() {
    let server = start(&conf("worker_processes 2; worker_rlimit_nofile 100;", ""));
    ask_new(server.addr(), "/text");
    let path = format!("/proc/{}/limits", server.worker_pids()[0]);
    let limits = std::fs::read_to_string(path).expect("limits");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let soft = line.split_whitespace().nth(3).expect("the soft limit");
    assert_eq!(soft, if is_nginx() { "100" } else { "200" });
}
