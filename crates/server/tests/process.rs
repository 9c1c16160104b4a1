//! The processes, from outside: signals, reload, restart, drain. Each test has servers of its own.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_rt::{affinity, privileges};
use forebay_testkit::raw::Client;
use forebay_testkit::server::binary;
use forebay_testkit::{Kind, Server, Signal, process, wait_for};

const LIMIT: Duration = Duration::from_secs(20);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";

/// A configuration that is told from others by the header field `X-Conf`.
fn conf(main: &str, name: &str) -> String {
    format!(
        "{main}
        error_log {{prefix}}/error.log notice;
        events {{ }}
        http {{
            {{temp_paths}}
            server {{
                listen 127.0.0.1:{{port}};
                add_header X-Conf {name} always;
            }}
        }}"
    )
}

fn start(text: &str) -> Server {
    Server::builder(Kind::Forebay, text).binary(env!("CARGO_BIN_EXE_forebay")).start().unwrap()
}

fn ask(client: &mut Client) -> String {
    client.send(REQUEST).unwrap();
    let response = client.read_response(false).unwrap();
    String::from_utf8_lossy(response.header("X-Conf").unwrap_or(b"none")).into_owned()
}

fn ask_new(addr: SocketAddr) -> String {
    ask(&mut Client::connect(addr).unwrap())
}

fn is_refused(addr: SocketAddr) -> bool {
    TcpStream::connect(addr).is_err_and(|err| err.kind() == ErrorKind::ConnectionRefused)
}

fn worker(server: &Server) -> process::Pid {
    let mut found = Vec::new();
    let is_alone = || {
        found = server.worker_pids();
        found.len() == 1
    };
    assert!(wait_for(is_alone, LIMIT), "{}", server.error_log());
    found[0]
}

fn kill(pid: process::Pid, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

fn title(pid: process::Pid) -> String {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&text).trim_end_matches('\0').replace('\0', " ")
}

/// Runs the binary on a server's files, as an operator does.
fn control(server: &Server, args: &[&str]) -> Output {
    let prefix = server.prefix().display().to_string();
    let globals = format!("pid {};", server.pid_file().display());
    Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["-p", &prefix, "-c", "nginx.conf", "-e", "error.log", "-g", &globals])
        .args(args)
        .output()
        .unwrap()
}

fn reload(server: &Server, text: &str) {
    server.rewrite_conf(text).unwrap();
    server.signal(Signal::SIGHUP);
}

fn until(addr: SocketAddr, name: &str) {
    assert!(wait_for(|| ask_new(addr) == name, LIMIT), "{name} is not in force");
}

#[test]
fn reload_changes_the_living_worker_and_keeps_its_connections() {
    let server = start(&conf("worker_processes 2;", "one"));
    let (addr, pid) = (server.addr(), worker(&server));
    let mut old = Client::connect(addr).unwrap();
    assert_eq!(ask(&mut old), "one");
    reload(&server, &conf("worker_processes 2;", "two"));
    until(addr, "two");
    // Its thread may hear of it a moment after the one that was asked.
    assert!(wait_for(|| ask(&mut old) == "two", LIMIT), "the old connection has the old one");
    assert_eq!(worker(&server), pid);
}

/// What a server logs of its start, a reload and its end, by its master and its workers.
fn notices(kind: Kind) -> [Vec<String>; 2] {
    let builder = Server::builder(kind, &conf("user root;", "one"));
    let mut server = builder.binary(env!("CARGO_BIN_EXE_forebay")).start().unwrap();
    let count = |text: &str| server.error_log().matches(text).count();
    assert!(wait_for(|| count("start worker process ") == 1, LIMIT));
    server.rewrite_conf(&conf("user root;", "two")).unwrap();
    server.signal(Signal::SIGHUP);
    until(server.addr(), "two");
    server.signal(Signal::SIGQUIT);
    assert!(server.wait_exit(LIMIT).is_some(), "{}", server.error_log());
    let log = server.error_log();
    let mut masters = Vec::new();
    let mut workers = Vec::new();
    for line in log.lines().filter(|line| line.contains("[notice]")) {
        let (head, text) = line.split_once(": ").unwrap();
        let pid = head.rsplit_once('#').unwrap().1;
        let is_worker = log.contains(&format!("start worker process {pid}\n"));
        let text: String = match text.strip_prefix("getrlimit") {
            Some(_) => text.into(),
            None => text.split(|c: char| c.is_ascii_digit()).collect::<Vec<_>>().join(""),
        };
        if is_worker { &mut workers } else { &mut masters }.push(text);
    }
    [masters, workers]
}

#[test]
fn starting_reloading_and_ending_are_told_as_by_nginx() {
    let [ours, of_worker] = notices(Kind::Forebay);
    let start = [
        "using the \"epoll\" event method",
        "start worker processes",
        "start worker process ",
        "signal  (SIGHUP) received from , reconfiguring",
        "reconfiguring",
        "signal  (SIGQUIT) received from , shutting down",
        "worker process  exited with code ",
        "exit",
    ];
    assert!(start.iter().all(|text| ours.iter().any(|line| line == text)), "{ours:?}");
    assert!(
        of_worker.ends_with(&["gracefully shutting down", "exiting", "exit"].map(String::from))
    );
    assert!(ours.iter().any(|line| line.starts_with("built by rustc ")), "{ours:?}");
    if binary(Kind::Nginx).is_none() {
        assert!(std::env::var_os("CI").is_none(), "nginx is missing");
        return println!("no nginx: skipped");
    }
    let [theirs, of_workers] = notices(Kind::Nginx);
    // How it was built and its version differ; so does what says that it replaces workers.
    let common = |lines: &[String], end: &str| {
        let own = ["nginx/", "built by "];
        let lines = lines.iter().filter(|line| !own.iter().any(|own| line.starts_with(own)));
        let to = lines.clone().position(|line| line == end).unwrap();
        lines.take(to + 1).cloned().collect::<Vec<_>>()
    };
    assert_eq!(common(&ours, "reconfiguring"), common(&theirs, "reconfiguring"));
    let after = |lines: &[String]| {
        let at = lines.iter().position(|line| line == "reconfiguring").unwrap();
        lines[at + 1].clone()
    };
    assert_eq!(after(&ours), after(&theirs));
    assert!(ours.iter().chain(&of_worker).all(|line| {
        let is_own = line.starts_with("nginx/") || line.starts_with("built by ");
        // A worker is told by a signal to quit, and not by a channel.
        let is_signal = line.starts_with("signal  (SIGQUIT)");
        is_own || is_signal || theirs.contains(line) || of_workers.contains(line)
    }));
}

#[test]
fn bad_configuration_changes_nothing_and_its_sender_learns_why() {
    let server = start(&conf("", "one"));
    let (addr, pid) = (server.addr(), worker(&server));
    let bad = conf("", "two").replace("add_header", "add_haeder");
    server.rewrite_conf(&bad).unwrap();
    let told = control(&server, &["-s", "reload"]);
    let text = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(told.status.code(), Some(1));
    assert!(text.contains("nginx: [emerg] unknown directive \"add_haeder\" in "), "{text}");
    assert!(!server.error_log().contains("signal process started"));
    server.signal(Signal::SIGHUP);
    let logged = || server.error_log().matches("unknown directive \"add_haeder\" in ").count();
    assert!(wait_for(|| logged() >= 2, LIMIT), "{}", server.error_log());
    assert_eq!((ask_new(addr).as_str(), worker(&server)), ("one", pid));
}

#[test]
fn address_in_use_fails_a_reload_whole() {
    let server = start(&conf("", "one"));
    let other = std::net::TcpListener::bind(("127.0.0.1", server.ports()[1])).unwrap();
    let more = "listen 127.0.0.1:{port2}; listen 127.0.0.1:{port3};";
    reload(&server, &conf("", "two").replace("listen ", &format!("{more} listen ")));
    let log = || server.error_log();
    assert!(wait_for(|| log().contains("still could not bind()"), LIMIT), "{}", log());
    let addr = other.local_addr().unwrap();
    let text = format!("bind() to {addr} failed (98: Address already in use)");
    assert_eq!(log().matches(&text).count(), 5);
    assert_eq!(ask_new(server.addr()), "one");
    assert!(is_refused(server.addr_of(2)));
}

#[test]
fn reload_opens_new_addresses_and_closes_old_ones() {
    let server = start(&conf("", "one"));
    let pid = worker(&server);
    let moved = "listen 127.0.0.1:{port2}; listen unix:{prefix}/sock;";
    reload(&server, &conf("", "two").replace("listen 127.0.0.1:{port};", moved));
    assert!(wait_for(|| !is_refused(server.addr_of(1)), LIMIT), "{}", server.error_log());
    assert_eq!(ask_new(server.addr_of(1)), "two");
    let sock = server.prefix().join("sock");
    assert_eq!(ask(&mut Client::connect_unix(&sock).unwrap()), "two");
    assert!(wait_for(|| is_refused(server.addr()), LIMIT));
    reload(&server, &conf("", "three"));
    assert!(wait_for(|| !is_refused(server.addr()), LIMIT));
    assert_eq!(ask_new(server.addr()), "three");
    assert!(wait_for(|| is_refused(server.addr_of(1)) && !sock.exists(), LIMIT));
    assert_eq!(worker(&server), pid);
}

#[test]
fn what_a_process_cannot_change_takes_a_new_worker() {
    let server = start(&conf("env FOREBAY_TEST_C=1;", "1"));
    for value in ["3", "2"] {
        let old = worker(&server);
        let mut kept = Client::connect(server.addr()).unwrap();
        ask(&mut kept);
        reload(&server, &conf(&format!("env FOREBAY_TEST_C={value};"), value));
        until(server.addr(), value);
        // The idle connection is closed, with which the old worker has nothing left.
        assert!(kept.is_at_end().unwrap());
        assert!(wait_for(|| !server.worker_pids().contains(&old), LIMIT));
        (0..50).for_each(|_| assert_eq!(ask_new(server.addr()), value));
    }
    assert!(server.error_log().contains("gracefully shutting down"));
}

#[test]
fn priority_cpus_and_directory_change_in_the_living_worker() {
    if !privileges::is_root() {
        eprintln!("skipped: needs root to take a priority back");
        return;
    }
    let cpus = affinity::allowed().unwrap();
    let mask = |cpu: usize| format!("1{}", "0".repeat(cpu));
    let with = |text: &str| conf(&format!("worker_processes 2; {text}"), "x");
    let server = start(&with(""));
    let pid = worker(&server);
    // Of each event loop its nice value and its CPUs; of the process its directory.
    let state = || {
        let mut threads = Vec::new();
        for thread in process::threads(pid) {
            let read = |name: &str| {
                std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/{name}")).unwrap()
            };
            if read("comm").starts_with("worker ") {
                let stat = read("stat");
                let nice = stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap();
                let status = read("status");
                let cpus = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"));
                threads.push((nice.to_owned(), cpus.unwrap()[18..].trim().to_owned()));
            }
        }
        (threads, std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap())
    };
    ask_new(server.addr());
    let (before, home) = state();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let (own, all) = before[0].clone();
    let own: i32 = own.parse().unwrap();
    let nice = |more: i32, cpu: &str| ((own + more).min(19).to_string(), cpu.to_owned());
    let (first_cpu, last_cpu) = (first.to_string(), last.to_string());
    for (text, threads, directory) in [
        (format!("worker_priority {};", own + 1), [nice(1, &all), nice(1, &all)], home.as_path()),
        (
            format!(
                "worker_priority {}; worker_cpu_affinity {} {};",
                own + 2,
                mask(first),
                mask(last)
            ),
            [nice(2, &first_cpu), nice(2, &last_cpu)],
            &home,
        ),
        (
            format!("worker_cpu_affinity {}; working_directory /proc;", mask(last)),
            [nice(0, &last_cpu), nice(0, &last_cpu)],
            Path::new("/proc"),
        ),
        (String::new(), [nice(0, &all), nice(0, &all)], &home),
    ] {
        reload(&server, &with(&text));
        let want = (threads.to_vec(), directory.to_owned());
        assert!(wait_for(|| state() == want, LIMIT), "{text} {:?} {}", state(), server.error_log());
        assert_eq!((worker(&server), ask_new(server.addr()).as_str()), (pid, "x"));
    }
    reload(&server, &with("working_directory /nonexistent;"));
    let told = || server.error_log().contains("chdir(\"/nonexistent\") failed (2: No such file");
    assert!(wait_for(told, LIMIT), "{}", server.error_log());
    assert_eq!((worker(&server), state().1), (pid, home));
}

#[test]
fn a_refused_reload_leaves_the_worker_where_it_is() {
    let with = |main: &str, key: &str| {
        let zone = format!("limit_req_zone {key} zone=z:1m rate=1r/m; server {{");
        conf(main, "x").replacen("server {", &zone, 1)
    };
    let server = start(&with("", "$uri"));
    let pid = worker(&server);
    until(server.addr(), "x");
    let directory = || std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    let home = directory();
    reload(&server, &with("working_directory /proc;", "$host"));
    let told = || server.error_log().contains("uses the \"$host\" key while previously");
    assert!(wait_for(told, LIMIT), "{}", server.error_log());
    assert_eq!((worker(&server), directory()), (pid, home));
}

#[test]
fn a_working_directory_without_a_name_is_none() {
    let server = start(&conf("working_directory '';", "x"));
    assert_eq!(ask_new(server.addr()), "x", "{}", server.error_log());
}

/// The limits of open files of a process, soft and hard.
fn open_files(pid: process::Pid) -> (u64, u64) {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn limits_of_the_worker_follow_a_reload() {
    let with = |files: &str| conf(&format!("worker_processes 2; {files}"), "x");
    let server = start(&with(""));
    let free = open_files(worker(&server));
    let limited = |files| (files, files);
    for (text, want) in [
        ("worker_rlimit_nofile 200;", limited(400)),
        ("worker_rlimit_nofile 100;", limited(200)),
        ("", free),
        ("worker_rlimit_nofile 150; worker_rlimit_core 0;", limited(300)),
    ] {
        reload(&server, &with(text));
        let pids = || server.worker_pids();
        let taken = || matches!(pids()[..], [pid] if open_files(pid) == want);
        assert!(wait_for(taken, LIMIT), "{text} {}", server.error_log());
        assert_eq!(ask_new(server.addr()), "x");
    }
}

#[test]
fn threads_come_and_go_in_the_living_worker() {
    let with = |threads: &str| {
        let limited = "limit_req_zone $uri zone=z:1m rate=1r/m; limit_req_status 429;
            server { location = /limited { limit_req zone=z; empty_gif; }";
        conf(&format!("worker_processes {threads};"), threads).replacen("server {", limited, 1)
    };
    let server = start(&with("1"));
    let pid = worker(&server);
    let event_loops = || {
        let names = process::threads(pid).into_iter().map(|thread| {
            std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default()
        });
        names.filter(|name| name.starts_with("worker ")).count().to_string()
    };
    let limited = || {
        let mut client = Client::connect(server.addr()).unwrap();
        client.send(b"GET /limited HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        client.read_response(false).unwrap().status
    };
    assert_eq!((limited(), limited()), (200, 429));
    let mut kept = Client::connect(server.addr()).unwrap();
    ask(&mut kept);
    for threads in ["3", "2", "4", "1"] {
        reload(&server, &with(threads));
        until(server.addr(), threads);
        assert_eq!((worker(&server), limited()), (pid, 429));
        assert!(wait_for(|| event_loops() == threads, LIMIT), "{}", event_loops());
        let ((soft, hard), each) = (open_files(server.pid()), threads.parse::<u64>().unwrap());
        assert_eq!(open_files(pid), ((soft * each).min(hard), hard), "{}", server.error_log());
        // Its thread is the first, which stays, and may hear of it after the one that was asked.
        assert!(
            wait_for(|| ask(&mut kept) == threads, LIMIT),
            "the old connection has the old one"
        );
        // The queue of every socket of the group is served, also when there are more than threads.
        let all_new = || (0..50).all(|_| ask_new(server.addr()) == threads);
        assert!(wait_for(all_new, LIMIT), "a thread has the old one");
    }
}

#[test]
fn a_connection_outlives_the_thread_and_the_address_that_took_it() {
    let server = start(&conf("worker_processes 4;", "one"));
    let connect = || Client::connect(server.addr()).unwrap();
    let mut kept: Vec<Client> = (0..20).map(|_| connect()).collect();
    kept.iter_mut().for_each(|client| assert_eq!(ask(client), "one"));
    let mut silent: Vec<Client> = (0..20).map(|_| connect()).collect();
    let moved = conf("worker_processes 1;", "two").replace("{port}", "{port2}");
    reload(&server, &moved);
    assert!(wait_for(|| is_refused(server.addr()), LIMIT), "{}", server.error_log());
    until(server.addr_of(1), "two");
    // They were accepted by a configuration that has the address, and end with it.
    for client in kept.iter_mut().chain(&mut silent) {
        client.send(REQUEST).unwrap();
        let response = client.read_response(false).unwrap();
        assert_eq!((response.header("X-Conf"), response.closes()), (Some(&b"one"[..]), true));
    }
}

#[test]
fn hundred_reloads_under_load_fail_no_request_and_leak_nothing() {
    let server = start(&conf("worker_processes 2;", "x"));
    let (addr, pid) = (server.addr(), worker(&server));
    let done = AtomicBool::new(false);
    let files = || process::open_files(pid) + process::open_files(server.pid());
    let heard = || server.error_log().matches(", reconfiguring").count();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(ask_new(addr), "x");
            }
        });
        scope.spawn(|| {
            let mut kept = Client::connect(addr).unwrap();
            // Fewer than keepalive_requests.
            for _ in 0..900 {
                assert_eq!(ask(&mut kept), "x");
            }
        });
        for round in 1..=100 {
            server.signal(Signal::SIGHUP);
            assert!(wait_for(|| heard() >= round, LIMIT));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(worker(&server), pid);
    let before = files();
    for name in ["a", "b", "c"] {
        reload(&server, &conf("worker_processes 2;", name));
        until(addr, name);
    }
    assert!(wait_for(|| files() <= before, LIMIT), "{before} -> {}", files());
}

#[test]
fn killed_worker_is_replaced_and_nobody_is_refused() {
    let server = start(&conf("worker_processes 2;", "x"));
    let addr = server.addr();
    for _ in 0..5 {
        let old = worker(&server);
        kill(old, "-KILL");
        assert!(!is_refused(addr));
        // What was in the old worker's hands is lost, as with nginx; the next one is served.
        let served = || {
            Client::connect(addr).is_ok_and(|mut client| {
                client.send(REQUEST).is_ok() && client.read_response(false).is_ok()
            })
        };
        assert!(wait_for(served, LIMIT), "{}", server.error_log());
        assert_ne!(worker(&server), old);
        let text = format!("worker process {old} exited on signal 9");
        assert!(server.error_log().contains(&text), "{}", server.error_log());
    }
}

#[test]
fn a_worker_passes_over_signals_that_mean_nothing_to_it() {
    let server = start(&conf("", "x"));
    let pid = worker(&server);
    for signal in ["PIPE", "SYS", "ALRM", "IO", "CHLD", "HUP", "USR1", "USR2", "WINCH"] {
        kill(pid, &format!("-{signal}"));
    }
    for signal in ["ALRM", "IO"] {
        kill(server.pid(), &format!("-{signal}"));
    }
    let heard = |line: &str| {
        let log = server.error_log();
        log.lines().filter(|text| text.contains(line)).count()
    };
    for (line, count) in [
        ("(SIGALRM) received", 2),
        ("(SIGIO) received", 2),
        ("(SIGHUP) received", 1),
        ("(SIGUSR1) received", 1),
        ("(SIGUSR2) received", 1),
        ("(SIGWINCH) received", 1),
        (", ignoring", 5),
    ] {
        assert!(wait_for(|| heard(line) == count, LIMIT), "{line}: {}", server.error_log());
    }
    until(server.addr(), "x");
    assert_eq!(worker(&server), pid);
}

#[test]
fn worker_has_no_privileges_and_the_titles_are_nginx_s() {
    let server = start(&conf("env FOREBAY_TEST_B=2; working_directory {prefix}/root;", "x"));
    let pid = worker(&server);
    assert!(title(server.pid()).starts_with("forebay: master process /"), "{}", title(pid));
    assert!(wait_for(|| title(pid) == "forebay: worker process", LIMIT), "{}", title(pid));
    until(server.addr(), "x");
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    assert_eq!(cwd, server.root().canonicalize().unwrap());
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let root = std::fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t");
    if root {
        assert!(field("Uid:").iter().all(|uid| uid != "0"));
        assert!(field("Gid:").iter().all(|gid| gid != "0"));
        assert!(field("Groups:").iter().all(|gid| gid != "0"));
        assert_eq!(field("CapEff:"), ["0000000000000000"]);
    }
}

#[test]
fn standard_error_stays_itself_where_any_level_logs_to_it() {
    let text = conf("", "old").replace("add_header", "error_log stderr; add_header");
    let server = start(&text);
    assert_eq!(ask_new(server.addr()), "old");
    let line = "request: \"GET / HTTP/1.1\"";
    assert!(wait_for(|| server.output().contains(line), LIMIT), "{}", server.error_log());
    assert!(!server.error_log().contains(line), "{}", server.error_log());
}

#[test]
fn reopened_logs_are_new_files_and_no_line_is_lost() {
    let server = start(&conf("", "x"));
    let (old, log) = (server.prefix().join("error.1"), server.prefix().join("error.log"));
    until(server.addr(), "x");
    std::fs::rename(&log, &old).unwrap();
    // Without a reopen lines go to the renamed file.
    let lines = |path: &Path, text: &str| {
        std::fs::read_to_string(path).unwrap_or_default().matches(text).count()
    };
    ask_new(server.addr());
    let before = lines(&old, "] ");
    server.signal(Signal::SIGUSR1);
    assert!(wait_for(|| log.exists() && lines(&old, "reopening logs") == 2, LIMIT));
    // The worker gets its file a moment later.
    let missing = b"GET /missing HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut sent = 0;
    let reached = wait_for(
        || {
            let mut client = Client::connect(server.addr()).unwrap();
            client.send(missing).unwrap();
            client.read_response(false).unwrap();
            sent += 1;
            lines(&log, "/missing") > 0
        },
        LIMIT,
    );
    assert!(reached && before > 0);
    assert_eq!(lines(&old, "GET /missing") + lines(&log, "GET /missing"), sent);
}

#[test]
fn quit_finishes_what_is_under_way_and_cleans_up() {
    let sock = "listen unix:{prefix}/sock; listen ";
    let mut server = start(&conf("", "x").replace("listen ", sock));
    let pid = worker(&server);
    let mut idle = Client::connect(server.addr()).unwrap();
    ask(&mut idle);
    let mut busy = Client::connect(server.addr()).unwrap();
    busy.send(&REQUEST[..10]).unwrap();
    // The worker has read the first half before it hears the signal.
    ask_new(server.addr());
    assert!(server.pid_file().exists() && server.prefix().join("sock").exists());
    server.signal(Signal::SIGQUIT);
    assert!(idle.is_at_end().unwrap());
    let leaving = "forebay: worker process is shutting down";
    assert!(wait_for(|| title(pid) == leaving, LIMIT), "{}", title(pid));
    assert!(wait_for(|| is_refused(server.addr()), LIMIT));
    busy.send(&REQUEST[10..]).unwrap();
    let response = busy.read_response(false).unwrap();
    assert!(response.closes() && busy.is_at_end().unwrap());
    assert_eq!(server.wait_exit(LIMIT), Some(0), "{}", server.error_log());
    assert!(!server.pid_file().exists() && !server.prefix().join("sock").exists());
    for line in ["gracefully shutting down", "exiting", "exit", "exited with code 0"] {
        assert!(server.error_log().contains(line), "{line}: {}", server.error_log());
    }
}

#[test]
fn who_has_just_connected_is_served_by_a_worker_that_quits() {
    let mut server = start(&conf("", "x"));
    let mut fresh = Client::connect(server.addr()).unwrap();
    // Accepted after it, so that it is accepted too.
    let mut idle = Client::connect(server.addr()).unwrap();
    ask(&mut idle);
    server.signal(Signal::SIGQUIT);
    assert!(idle.is_at_end().unwrap());
    fresh.send(REQUEST).unwrap();
    assert!(fresh.read_response(false).unwrap().closes());
    assert_eq!(server.wait_exit(LIMIT), Some(0));
}

#[test]
fn shutdown_timeout_ends_connections_that_are_left() {
    let mut server = start(&conf("worker_shutdown_timeout 50ms;", "x"));
    let mut busy = Client::connect(server.addr()).unwrap();
    busy.send(&REQUEST[..10]).unwrap();
    ask_new(server.addr());
    server.signal(Signal::SIGQUIT);
    assert!(busy.read_to_end().is_ok_and(|rest| rest.is_empty()));
    assert_eq!(server.wait_exit(LIMIT), Some(0));
}

#[test]
fn terminate_ends_at_once() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = start(&conf("", "x"));
        let mut busy = Client::connect(server.addr()).unwrap();
        busy.send(&REQUEST[..10]).unwrap();
        ask_new(server.addr());
        server.signal(signal);
        assert_eq!(server.wait_exit(LIMIT), Some(0));
        assert!(busy.read_to_end().map_or(true, |rest| rest.is_empty()));
        assert!(!server.pid_file().exists());
    }
}

#[test]
fn one_process_serves_reloads_and_quits() {
    let mut server = start(&conf("master_process off;", "one"));
    assert_eq!(server.worker_pids(), []);
    until(server.addr(), "one");
    reload(&server, &conf("master_process off;", "two"));
    until(server.addr(), "two");
    reload(&server, "nonsense");
    assert!(wait_for(|| server.error_log().contains("unexpected end of file"), LIMIT));
    assert_eq!(ask_new(server.addr()), "two");
    let log = server.prefix().join("error.log");
    std::fs::rename(&log, server.prefix().join("error.1")).unwrap();
    server.signal(Signal::SIGUSR1);
    assert!(wait_for(|| log.exists(), LIMIT));
    assert!(server.stop() && !server.pid_file().exists());
}

#[test]
fn options_control_a_running_server() {
    let mut server = start(&conf("", "one"));
    server.rewrite_conf(&conf("", "two")).unwrap();
    assert!(control(&server, &["-t", "-q"]).status.success());
    assert!(control(&server, &["-s", "reload"]).status.success());
    until(server.addr(), "two");
    assert!(control(&server, &["-s", "reopen"]).status.success());
    assert!(control(&server, &["-s", "quit"]).status.success());
    assert_eq!(server.wait_exit(LIMIT), Some(0));
    let gone = control(&server, &["-s", "stop"]);
    let text = String::from_utf8_lossy(&gone.stderr).into_owned();
    let expected = format!(
        "nginx: [error] open() \"{}\" failed (2: No such file or directory)\n",
        server.pid_file().display()
    );
    assert_eq!((gone.status.code(), text), (Some(1), expected));
}

#[test]
fn worker_that_cannot_start_is_not_started_again() {
    let text = conf("working_directory /nonexistent;", "x").replace("{port}", "{port2}");
    let mut server = start(&text);
    let log = || server.error_log();
    let fatal = "exited with fatal code 2 and cannot be respawned";
    assert!(wait_for(|| log().contains(fatal), LIMIT), "{}", log());
    let why = "chdir(\"/nonexistent\") failed (2: No such file or directory)";
    assert!(log().lines().any(|line| line.contains("[alert]") && line.contains(why)), "{}", log());
    assert_eq!(log().matches("start worker process ").count(), 1);
    assert!(server.stop());
}

#[test]
fn service_manager_hears_of_each_state() {
    let dir = forebay_testkit::tempdir::TempDir::new().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let next = || {
        let mut buf = [0; 200];
        let len = manager.recv(&mut buf).unwrap();
        String::from_utf8_lossy(&buf[..len]).into_owned()
    };
    let mut server = Server::builder(Kind::Forebay, &conf("", "x"))
        .binary(env!("CARGO_BIN_EXE_forebay"))
        .env("NOTIFY_SOCKET", path.to_str().unwrap())
        .start()
        .unwrap();
    assert_eq!(next(), "READY=1\n");
    server.signal(Signal::SIGHUP);
    assert!(next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(next(), "READY=1\n");
    assert!(server.stop());
    assert_eq!(next(), "STOPPING=1\n");
}

/// The lines of the error log about requests, without what differs from run to run, and how long each
/// was before.
fn long_lines(kind: Kind) -> Vec<(usize, String)> {
    let text = "error_log {prefix}/error.log info; events {} http { access_log off; {temp_paths}
        large_client_header_buffers 4 32k;
        server { listen 127.0.0.1:{port}; root {root}; location /d { deny all; } } }";
    let builder = Server::builder(kind, text);
    let server = match kind {
        Kind::Forebay => builder.binary(env!("CARGO_BIN_EXE_forebay")).start().unwrap(),
        Kind::Nginx => builder.start().unwrap(),
    };
    let lens = (1850..2000).step_by(7).chain([2500, 20_000]);
    for (len, path) in lens.flat_map(|len| [(len, "/d"), (len, "/f")]) {
        let mut client = Client::connect(server.addr()).unwrap();
        let target = format!("{path}{}", "a".repeat(len));
        let head = format!("GET {target}?q HTTP/1.0\r\nHost: h\r\nReferer: http://r/\r\n\r\n");
        client.send(head.as_bytes()).unwrap();
        client.read_response(false).unwrap();
    }
    let (log, root) = (server.error_log(), server.root().display().to_string());
    let requests = log.lines().filter(|line| line.contains("aaaa"));
    requests
        .map(|line| {
            let (_, message) = line.split_once(" *").unwrap();
            let (_, message) = message.split_once(' ').unwrap();
            (line.len(), message.replace(&root, "ROOT"))
        })
        .collect()
}

#[test]
fn lines_of_the_error_log_are_cut_as_by_nginx() {
    if binary(Kind::Nginx).is_none() {
        eprintln!("skipped: no nginx here");
        return;
    }
    let (ours, theirs) = (long_lines(Kind::Forebay), long_lines(Kind::Nginx));
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.iter().any(|(len, _)| *len == 2047));
    for ((len, our), (their_len, their)) in ours.into_iter().zip(theirs) {
        // Where a line is cut, numbers of processes of other lengths leave more or less of it.
        let (cut, their_cut) = (len == 2047, their_len == 2047);
        let common = our.len().min(their.len());
        assert!(len <= 2047 && our[..common] == their[..common], "{our}\n{their}");
        assert!(our.len() == their.len() || cut && their_cut, "{our}\n{their}");
    }
}
