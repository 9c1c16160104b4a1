//! Reloads, kills, upgrades and ends under load, and starts that fail.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_testkit::raw::Client;
use forebay_testkit::server::binary;
use forebay_testkit::tempdir::TempDir;
use forebay_testkit::{Kind, Server, Signal, process, wait_for};

use crate::load::Load;
use crate::{LIMIT, ask, ask_new, conf, is_nginx, narrow, pattern, request, start, start_to_weigh};

fn text_load(server: &Server) -> Load {
    Load::start(server.addr(), 2, 2, |_, _| "/text".to_owned())
}

/// A configuration that says its version in `X-Version`.
fn versioned(main: &str, version: usize) -> String {
    conf(main, &format!("add_header X-Version {version};"))
}

fn version(server: &Server) -> Option<String> {
    let response = ask_new(server.addr(), "/text");
    response.header("X-Version").map(|value| String::from_utf8_lossy(value).into_owned())
}

fn reload_to(server: &Server, text: &str, number: usize) {
    server.rewrite_conf(text).expect("configuration");
    server.signal(Signal::SIGHUP);
    let wanted = Some(number.to_string());
    assert!(wait_for(|| version(server) == wanted, LIMIT), "{number}: {}", server.error_log());
}

fn kill_worker(pid: process::Pid) {
    let status = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    assert!(status.expect("kill").success());
}

#[test]
fn a_hundred_reloads_under_load_fail_no_request_and_keep_memory_flat() {
    let main = "worker_processes 2;";
    let server = start_to_weigh(&versioned(main, 0));
    std::fs::write(server.root().join("file"), pattern(612)).expect("file");
    let load = Load::start(server.addr(), 2, 2, |client, _| {
        if client % 2 == 0 { "/text".to_owned() } else { "/file".to_owned() }
    });
    let memory = || process::anonymous_bytes(&server.process_tree()).unwrap_or(u64::MAX);
    let mut before = 0;
    for number in 1..=100 {
        reload_to(&server, &versioned(main, number), number);
        if number == 30 {
            load.wait_for_more(200);
            before = memory();
        }
    }
    load.wait_for_more(200);
    let settled = || server.process_tree().len() <= if is_nginx() { 3 } else { 2 };
    assert!(wait_for(settled, LIMIT), "old workers are left");
    let after = memory();
    let tally = load.stop();
    assert_eq!((tally.failed.len(), tally.refused), (0, 0), "{:?}", tally.failed.first());
    // nginx closes idle connections, which a client tries again; here they stay.
    assert!(is_nginx() || tally.retried == 0, "{} kept connections were closed", tally.retried);
    let growth = after.saturating_sub(before);
    println!("{growth} bytes more after 70 reloads");
    assert!(growth < 1 << 20, "{growth} bytes more after 70 reloads: {before} -> {after}");
}

#[test]
fn a_new_number_of_threads_fails_no_request() {
    let server = start(&versioned("worker_processes 1;", 0));
    let load = text_load(&server);
    for number in 1..=6 {
        let main = format!("worker_processes {};", number % 3 + 1);
        reload_to(&server, &versioned(&main, number), number);
        load.wait_for_more(100);
    }
    let tally = load.stop();
    assert_eq!((tally.failed.len(), tally.refused), (0, 0), "{:?}", tally.failed.first());
}

#[test]
fn ports_come_and_go_with_reloads_and_the_others_do_not_notice() {
    let server = start(&versioned("", 0));
    let load = text_load(&server);
    let with = |number| {
        let listen =
            "listen 127.0.0.1:{port2}; listen unix:{prefix}/sock; listen 127.0.0.1:{port};";
        versioned("", number).replace("listen 127.0.0.1:{port};", listen)
    };
    let second = server.addr_of(1);
    for number in (1..10).step_by(2) {
        reload_to(&server, &with(number), number);
        ask_new(second, "/text");
        assert!(Client::connect_unix(&server.prefix().join("sock")).is_ok());
        reload_to(&server, &versioned("", number + 1), number + 1);
        assert!(wait_for(|| Client::connect(second).is_err(), LIMIT), "{second} still accepts");
    }
    let tally = load.stop();
    assert_eq!((tally.failed.len(), tally.refused), (0, 0), "{:?}", tally.failed.first());
}

#[test]
fn a_bad_configuration_keeps_the_old_one_serving_under_load() {
    let server = start(&versioned("", 1));
    let load = text_load(&server);
    let bad = versioned("", 2).replace("return 200", "retrun 200");
    server.rewrite_conf(&bad).expect("configuration");
    let line = 1 + bad.lines().position(|line| line.contains("retrun")).expect("a bad line");
    let path = server.prefix().join("nginx.conf");
    let text = format!("unknown directive \"retrun\" in {}:{line}", path.display());
    server.signal(Signal::SIGHUP);
    assert!(wait_for(|| server.error_log().contains(&text), LIMIT), "{}", server.error_log());
    let told = Command::new(binary(Kind::Forebay).expect("binary"))
        .arg("-p")
        .arg(server.prefix())
        .arg("-c")
        .arg(&path)
        .args(["-e", "error.log", "-s", "reload"])
        .args(["-g", &format!("pid {};", server.pid_file().display())])
        .output()
        .expect("run");
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(told.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("nginx: [emerg] {text}")), "{said}");
    load.wait_for_more(100);
    assert_eq!(version(&server).as_deref(), Some("1"));
    let tally = load.stop();
    assert_eq!((tally.failed.len(), tally.refused, tally.retried), (0, 0, 0));
}

#[test]
fn a_killed_worker_is_replaced_at_once_and_nobody_is_refused() {
    const CLIENTS: usize = 4;
    const KILLS: usize = 5;
    let server = start(&conf("worker_processes 1;", ""));
    let load = text_load(&server);
    let mut gaps = Vec::new();
    for _ in 0..KILLS {
        load.wait_for_more(100);
        let old = server.worker_pids();
        assert_eq!(old.len(), 1);
        let killed = Instant::now();
        kill_worker(old[0]);
        let served = || {
            let Ok(mut client) = Client::connect(server.addr()) else { return false };
            let sent = client.send(&request("/text"));
            sent.is_ok() && client.read_response(false).is_ok()
        };
        let replaced = || {
            let now = server.worker_pids();
            now.len() == 1 && now != old && served()
        };
        assert!(wait_for(replaced, LIMIT), "{}", server.error_log());
        gaps.push(killed.elapsed());
    }
    let tally = load.stop();
    assert_eq!(tally.refused, 0);
    // A request that the dead worker had in its hands is lost, and no other: one a client and kill.
    assert!(tally.failed.len() <= KILLS * CLIENTS, "{}: {:?}", tally.failed.len(), tally.failed);
    // The best of them: what else runs on the machine is no fault of the server.
    let best = gaps.iter().min().expect("gaps");
    assert!(*best < Duration::from_millis(100), "{gaps:?}");
}

#[test]
fn busy_clients_lose_no_request_to_a_worker_that_quits() {
    if is_nginx() {
        return;
    }
    for _ in 0..4 {
        let mut server = start(&conf("", ""));
        let load = Load::start(server.addr(), 4, 0, |_, _| "/text".to_owned());
        load.wait_for_more(500);
        server.signal(Signal::SIGQUIT);
        assert_eq!(server.wait_exit(LIMIT), Some(0), "{}", server.error_log());
        // New connections find nobody any more.
        assert_eq!(load.stop().retried, 0);
    }
}

#[test]
fn quit_finishes_a_slow_response() {
    let mut server = start(&conf("", ""));
    let len = 16 << 20;
    std::fs::write(server.root().join("big"), pattern(len)).expect("file");
    let mut slow = narrow(server.addr());
    slow.write_all(&request("/big")).expect("send");
    let mut first = [0; 1000];
    slow.read_exact(&mut first).expect("response");
    server.signal(Signal::SIGQUIT);
    assert!(wait_for(|| Client::connect(server.addr()).is_err(), LIMIT), "it still accepts");
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).expect("the rest");
    let whole = [&first[..], &rest].concat();
    let end = whole.windows(4).position(|window| window == b"\r\n\r\n").expect("head") + 4;
    assert!(whole[end..] == pattern(len));
    assert_eq!(server.wait_exit(LIMIT), Some(0), "{}", server.error_log());
    assert!(!server.pid_file().exists());
}

#[test]
fn the_shutdown_timeout_cuts_a_slow_response() {
    let mut server = start(&conf("worker_shutdown_timeout 1s;", ""));
    std::fs::write(server.root().join("big"), pattern(16 << 20)).expect("file");
    let mut slow = narrow(server.addr());
    slow.write_all(&request("/big")).expect("send");
    slow.read_exact(&mut [0; 1000]).expect("response");
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.wait_exit(LIMIT), Some(0), "{}", server.error_log());
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(rest.len() < 16 << 20);
}

#[test]
fn term_cuts_everything_at_once() {
    let mut server = start(&conf("", ""));
    std::fs::write(server.root().join("big"), pattern(16 << 20)).expect("file");
    let mut slow = narrow(server.addr());
    slow.write_all(&request("/big")).expect("send");
    slow.read_exact(&mut [0; 1000]).expect("response");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_exit(Duration::from_secs(5)), Some(0), "{}", server.error_log());
    assert!(!server.pid_file().exists());
}

#[test]
fn a_port_in_use_is_told_and_ends_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = taken.local_addr().expect("addr");
    let dir = TempDir::new().expect("directory");
    let text = format!(
        "pid {0}/pid; error_log {0}/error.log; events {{ }}
        http {{ access_log off; server {{ listen {addr}; }} }}",
        dir.path().display()
    );
    std::fs::write(dir.path().join("nginx.conf"), text).expect("configuration");
    let output = Command::new(binary(Kind::Forebay).expect("binary"))
        .arg("-p")
        .arg(dir.path())
        .arg("-c")
        .arg(dir.path().join("nginx.conf"))
        .args(["-g", "daemon off;", "-e", "stderr"])
        .output()
        .expect("run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let bind = format!("nginx: [emerg] bind() to {addr} failed (98: Address already in use)");
    assert!(said.contains(&bind), "{said}");
    assert!(said.contains("nginx: [emerg] still could not bind()"), "{said}");
    assert!(!dir.path().join("pid").exists());
}

#[test]
fn a_unix_socket_serves_and_goes_with_the_server() {
    let inside = "listen unix:{prefix}/sock;
        location = /who { return 200 \"$remote_addr $remote_port|$server_addr|$server_port\"; }";
    let mut server = start(&conf("", inside));
    let sock = server.prefix().join("sock");
    let mut client = Client::connect_unix(&sock).expect("connect");
    for _ in 0..100 {
        client.send(&request("/text")).expect("send");
        assert_eq!(client.read_response(false).expect("response").body, b"alive");
    }
    let who = ask(&mut client, "/who").expect("response").body;
    assert_eq!(String::from_utf8_lossy(&who), format!("unix: |unix:{}|", sock.display()));
    assert!(server.stop(), "{}", server.error_log());
    assert!(!sock.exists());
}
