//! Clients that send or read a byte a second: timeouts hold to the second, and nobody else waits.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use forebay_testkit::{Server, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{LIMIT, ask_new, conf, narrow, pattern, request, start};

/// How many slow clients there are at once.
const CROWD: usize = 50;

/// Connects and sends the first bytes.
fn begin(addr: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = narrow(addr);
    stream.write_all(bytes).expect("send");
    stream
}

/// Sends the bytes one a second until the server ends the connection, and answers when that was.
fn drip(mut stream: TcpStream, bytes: &[u8]) -> (Vec<u8>, Duration) {
    let started = Instant::now();
    let mut got = Vec::new();
    let mut rest = bytes.iter();
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("timeout");
    loop {
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => got.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(started.elapsed() < LIMIT, "the connection is never closed");
                let byte = rest.next().unwrap_or(&b'x');
                // The end is seen by the next read.
                let _ = stream.write_all(&[*byte]);
            }
            Err(_) => break,
        }
    }
    (got, started.elapsed())
}

/// Others are served while a crowd is slow.
fn others_are_served(server: &Server) {
    for _ in 0..100 {
        ask_new(server.addr(), "/text");
    }
}

fn is_about(elapsed: Duration, seconds: u64) {
    // The timer's own second, and the one in which `drip` looks up.
    let at_least = Duration::from_secs(seconds) - Duration::from_millis(100);
    let at_most = Duration::from_secs(seconds + 1);
    assert!(elapsed >= at_least && elapsed <= at_most, "{elapsed:?} for a timeout of {seconds} s");
}

fn statuses(server: &Server, status: &str) -> usize {
    server.access_log().lines().filter(|line| line.contains(&format!("\" {status} "))).count()
}

#[test]
fn a_head_sent_byte_by_byte_ends_at_the_header_timeout() {
    let server = start(&conf("", "client_header_timeout 2s;"));
    let crowd: Vec<_> = (0..CROWD).map(|_| begin(server.addr(), b"GET /text")).collect();
    others_are_served(&server);
    // The time is that of the whole head: bytes that keep coming do not prolong it.
    let probe = begin(server.addr(), b"GET /text");
    let (got, elapsed) = drip(probe, b" HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(got, b"");
    is_about(elapsed, 2);
    for mut stream in crowd {
        assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    }
    assert!(wait_for(|| statuses(&server, "408") == CROWD + 1, LIMIT), "{}", server.access_log());
}

#[test]
fn a_connection_without_a_byte_ends_at_the_header_timeout() {
    let server = start(&conf("", "client_header_timeout 1s;"));
    let started = Instant::now();
    let mut stream = begin(server.addr(), b"");
    assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    is_about(started.elapsed(), 1);
}

#[test]
fn an_idle_connection_ends_at_the_keepalive_timeout() {
    let server = start(&conf("", "keepalive_timeout 1s;"));
    let mut stream = begin(server.addr(), b"GET /text HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut answer = [0; 4096];
    let n = stream.read(&mut answer).expect("response");
    assert!(answer[..n].ends_with(b"\r\n\r\nalive"));
    let started = Instant::now();
    assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    is_about(started.elapsed(), 1);
}

#[test]
fn a_body_that_nobody_wants_is_read_for_the_lingering_time_only() {
    let server =
        start(&conf("", "lingering_time 2s; lingering_timeout 5s; keepalive_timeout 60s;"));
    let head = b"POST /text HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n";
    let crowd: Vec<_> = (0..CROWD).map(|_| begin(server.addr(), head)).collect();
    others_are_served(&server);
    let (got, elapsed) = drip(begin(server.addr(), head), b"x");
    assert!(got.starts_with(b"HTTP/1.1 200 "), "{}", got.escape_ascii());
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    drop(crowd);
}

#[test]
fn the_answer_to_a_body_that_is_too_large_is_heard() {
    let server = start(&conf("", "client_max_body_size 1k; dav_methods PUT;"));
    let head = b"PUT /new HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n30000\r\n";
    let mut stream = begin(server.addr(), head);
    stream.write_all(&pattern(0x30000)).expect("send");
    stream.write_all(b"\r\n0\r\n\r\n").expect("send");
    let mut got = Vec::new();
    // The system resets a connection that is closed with something unread.
    stream.read_to_end(&mut got).expect("an end and no reset");
    assert!(got.starts_with(b"HTTP/1.1 413 "), "{}", got.escape_ascii());
}

#[test]
fn a_reader_that_does_not_read_ends_at_the_send_timeout() {
    let server = start(&conf("", "send_timeout 1s;"));
    let len = 8 << 20;
    std::fs::write(server.root().join("big"), pattern(len)).expect("file");
    let head = b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut crowd: Vec<_> = (0..CROWD).map(|_| begin(server.addr(), head)).collect();
    others_are_served(&server);
    let tell = || server.access_log().lines().filter(|line| line.contains("GET /big")).count();
    assert!(wait_for(|| tell() == CROWD, LIMIT), "{} of {CROWD} ended", tell());
    for stream in &mut crowd {
        let mut got = Vec::new();
        // Closed or reset: what the system had taken still comes, the rest does not.
        let _ = stream.read_to_end(&mut got);
        assert!(got.len() < len);
    }
}

#[test]
fn a_reader_of_a_byte_a_second_delays_nobody() {
    let server = start(&conf("", "send_timeout 30s;"));
    std::fs::write(server.root().join("big"), pattern(8 << 20)).expect("file");
    let head = b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut crowd: Vec<_> = (0..CROWD).map(|_| begin(server.addr(), head)).collect();
    for _ in 0..2 {
        for stream in &mut crowd {
            assert_eq!(stream.read(&mut [0]).expect("a byte"), 1);
        }
        others_are_served(&server);
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn a_body_that_a_handler_reads_ends_at_the_body_timeout() {
    let server = start(&conf("", "location /put/ { dav_methods PUT; client_body_timeout 1s; }"));
    let head = b"PUT /put/a HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nsome";
    let crowd: Vec<_> = (0..CROWD).map(|_| begin(server.addr(), head)).collect();
    others_are_served(&server);
    let started = Instant::now();
    let mut probe = begin(server.addr(), head);
    // As in nginx, nobody is told: who does not send does not listen either.
    assert_eq!(probe.read(&mut [0; 16]).unwrap_or(0), 0);
    is_about(started.elapsed(), 1);
    assert!(wait_for(|| statuses(&server, "408") == CROWD + 1, LIMIT), "{}", server.access_log());
    assert!(!server.root().join("put").exists());
    drop(crowd);
}

#[test]
fn who_leaves_while_held_up_is_noticed_at_once() {
    let limited = "limit_req_zone $uri zone=z:1m rate=1r/m; server { listen 127.0.0.1:{port};
        location /limited { limit_req zone=z burst=9; }
        location /guarded { auth_basic x; auth_basic_user_file users; auth_delay 60s; }";
    let text = conf("", "").replace("server {\n", &format!("{limited}\n"));
    let text = text.replacen("listen 127.0.0.1:{port};\n                root", "root", 1);
    let server = start(&text);
    let ask = |path: &str| {
        begin(server.addr(), format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes())
    };
    drop(ask("/limited"));
    assert!(wait_for(|| server.access_log().contains("/limited"), LIMIT));
    let held = [ask("/limited"), ask("/guarded")];
    let is_held = |text: &str| wait_for(|| server.error_log().contains(text), LIMIT);
    assert!(is_held("delaying request, excess: "), "{}", server.error_log());
    drop(held);
    assert!(wait_for(|| statuses(&server, "499") == 2, LIMIT), "{}", server.access_log());
}

/// What does not fit into the socket follows when there is room, while there is more to answer.
#[test]
fn who_asks_ahead_and_reads_late_gets_every_byte() {
    let conf = conf("worker_processes 1;", "open_file_cache max=10;");
    let server = start(&conf.replace("{port};", "{port} sndbuf=4k;"));
    let files =
        [("/small", pattern(700)), ("/middle", pattern(10_000)), ("/large", pattern(30_000))];
    for (name, body) in &files {
        fs::write(server.root().join(&name[1..]), body).expect("file");
    }
    let mut ahead = files.iter().flat_map(|(name, _)| request(name)).collect::<Vec<u8>>().repeat(8);
    ahead.extend_from_slice(b"GET /small HTTP/1.0\r\n\r\n");
    // There may be connections before there is a worker.
    ask_new(server.addr(), "/text");
    let worker = Pid::from_raw(server.worker_pids()[0]);
    let mut clients: Vec<_> = (0..60).map(|_| (begin(server.addr(), &ahead), Vec::new())).collect();
    let mut piece = [0; 3000];
    let started = Instant::now();
    let mut open: Vec<&mut (TcpStream, Vec<u8>)> = clients.iter_mut().collect();
    while !open.is_empty() {
        assert!(started.elapsed() < LIMIT, "{} have no end", open.len());
        // All read while the server sleeps: then there is room for all at once.
        kill(worker, Signal::SIGSTOP).expect("stop");
        open.retain_mut(|(stream, got)| {
            stream.set_nonblocking(true).expect("mode");
            match stream.read(&mut piece) {
                Ok(0) => return false,
                Ok(n) => got.extend_from_slice(&piece[..n]),
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
            true
        });
        kill(worker, Signal::SIGCONT).expect("go on");
        if let Some((stream, _)) = open.last_mut() {
            stream.set_nonblocking(false).expect("mode");
            stream.peek(&mut [0]).expect("more, or the end");
        }
    }
    for (number, (_, got)) in clients.iter().enumerate() {
        let mut rest = &got[..];
        for (at, (name, body)) in files.iter().cycle().take(8 * files.len() + 1).enumerate() {
            let head = rest.windows(4).position(|end| end == b"\r\n\r\n");
            let head = head.unwrap_or_else(|| panic!("client {number} has no {at}th answer"));
            rest = rest[head + 4..].strip_prefix(&body[..]).unwrap_or_else(|| {
                panic!("{name} of client {number} came wrong, {at} answers before it well")
            });
        }
        assert!(rest.is_empty());
    }
}
