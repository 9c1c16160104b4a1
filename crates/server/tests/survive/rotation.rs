//! Logs that are renamed and opened anew under load: no line is lost, none is torn.

use std::collections::HashSet;
use std::fs;

use forebay_testkit::{Signal, wait_for};

use crate::load::Load;
use crate::{LIMIT, conf, start};

const ROUNDS: usize = 5;

fn rotate_under_load(log: &str) {
    let text = conf("worker_processes 2;", "location /r { return 200; }");
    let format = format!("log_format line 'begin $request_uri end'; access_log {log};");
    let mut server = start(&text.replace("access_log {prefix}/access.log;", &format));
    let path = server.prefix().join("access.log");
    let name = |client: usize, request: u64| format!("/r/{client}/{request}");
    let load = Load::start(server.addr(), 3, 1, name);
    for round in 1..=ROUNDS {
        load.wait_for_more(300);
        fs::rename(&path, server.prefix().join(format!("access.{round}"))).expect("rename");
        load.wait_for_more(100);
        server.signal(Signal::SIGUSR1);
        assert!(wait_for(|| path.exists(), LIMIT), "{}", server.error_log());
    }
    load.wait_for_more(300);
    let tally = load.stop();
    assert_eq!((tally.failed.len(), tally.refused), (0, 0), "{:?}", tally.failed.first());
    // The end writes out what is buffered.
    assert!(server.stop(), "{}", server.error_log());
    let mut seen = HashSet::new();
    let rotated = (1..=ROUNDS).map(|round| format!("access.{round}"));
    for file in rotated.chain(["access.log".to_owned()]) {
        let text = server.read(&file);
        assert!(text.is_empty() || text.ends_with('\n'), "{file} ends inside a line");
        for line in text.lines() {
            let uri = line.strip_prefix("begin ").and_then(|line| line.strip_suffix(" end"));
            let uri = uri.unwrap_or_else(|| panic!("{file}: torn line {line:?}"));
            assert!(seen.insert(uri.to_owned()), "{file}: {uri} is logged twice");
        }
    }
    assert_eq!(seen.len() as u64, tally.answered);
}

#[test]
fn rotation_under_load_loses_and_tears_no_line() {
    rotate_under_load("{prefix}/access.log line");
}

#[test]
fn rotation_of_a_buffered_log_loses_and_tears_no_line() {
    rotate_under_load("{prefix}/access.log line buffer=16k flush=1s");
}

#[test]
fn a_reload_writes_out_what_is_buffered() {
    let text = conf("", "location /r { return 200; }");
    let format = "log_format line '$request_uri'; access_log {prefix}/access.log line buffer=64k;";
    let text = text.replace("access_log {prefix}/access.log;", format);
    let mut server = start(&text);
    let load = Load::start(server.addr(), 2, 1, |client, request| format!("/r/{client}/{request}"));
    for round in 0..10 {
        load.wait_for_more(50);
        // Another file each time, so that the plan holding the buffer really goes.
        let other = text.replace("access.log line", &format!("access.{round} line"));
        server.rewrite_conf(&other).expect("configuration");
        server.signal(Signal::SIGHUP);
        let path = server.prefix().join(format!("access.{round}"));
        assert!(wait_for(|| path.exists(), LIMIT), "{}", server.error_log());
    }
    load.wait_for_more(50);
    let tally = load.stop();
    assert!(server.stop(), "{}", server.error_log());
    let files = (0..10).map(|round| format!("access.{round}"));
    let lines = |file: String| server.read(&file).lines().count() as u64;
    let logged: u64 = files.chain(["access.log".to_owned()]).map(lines).sum();
    assert_eq!(logged, tally.answered);
}
