//! Claims about logs as a whole: nothing lost, nothing torn, failures told, destinations right.

use std::{
    fmt,
    fs::{self, File},
    io::Read,
    net::UdpSocket,
    os::unix::net::UnixDatagram,
    path::Path,
    sync::Arc,
    thread,
};

use flate2::read::MultiGzDecoder;
use forebay_conf::{
    Diagnostics, Loader, Node, Sources,
    files::Memory,
    parse::{ParseOptions, parse_text},
};
use forebay_rt::{clock, task, timer};
use forebay_testkit::tempdir::TempDir;

use super::*;

fn open(path: &Path) -> File {
    File::options().append(true).create(true).open(path).unwrap()
}

fn log_at(path: &Path) -> Arc<LogFile> {
    let log = Arc::new(LogFile::new(path.to_path_buf()));
    log.install(open(path));
    log
}

fn buffered(path: &Path, buffering: Buffering) -> Arc<LogFile> {
    let log = log_at(path);
    log.buffer(buffering).unwrap();
    log
}

const SMALL: Buffering = Buffering { size: 16, flush_ms: None, gzip: None };

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn no_line_is_lost_or_torn_under_rotation() {
    const THREADS: usize = 4;
    const LINES: usize = 4000;
    for buffering in [None, Some(Buffering { size: 500, ..SMALL })] {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("access.log");
        let log = log_at(&path);
        if let Some(buffering) = buffering {
            log.buffer(buffering).unwrap();
        }
        let writer = |thread: usize| {
            let log = log.clone();
            move || {
                for i in 0..LINES {
                    append(&log, format!("{thread} {i} {}\n", "x".repeat(i % 90)).as_bytes());
                    if i % 7 == 0 {
                        flush_batch();
                    }
                }
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|t| thread::spawn(writer(t))).collect();
        let mut rotations = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            rotations += 1;
            fs::rename(&path, dir.path().join(format!("{rotations}"))).unwrap();
            log.install(open(&path));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let mut next = [0; THREADS];
        let mut all = String::new();
        for rotation in 1..=rotations {
            all += &text(&dir.path().join(format!("{rotation}")));
        }
        all += &text(&path);
        for line in all.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (thread, i): (usize, usize) =
                (words[0].parse().unwrap(), words[1].parse().unwrap());
            assert_eq!((i, words[2].len()), (next[thread], i % 90), "{line}");
            next[thread] += 1;
        }
        assert_eq!(next, [LINES; THREADS], "after {rotations} rotations");
    }
}

#[test]
fn a_full_disk_is_told_once() {
    let dir = TempDir::new().unwrap();
    let errors = log_at(&dir.path().join("error.log"));
    let path = dir.path().join("access.log");
    let log = Arc::new(LogFile::new(path.clone()));
    log.complain_to(&ErrorLog::to_file(errors.clone(), Severity::Error));
    log.install(File::options().append(true).open("/dev/full").unwrap());
    for _ in 0..3 {
        append(&log, b"lost\n");
        flush_batch();
    }
    let told = text(errors.path());
    let told: Vec<&str> = told.lines().collect();
    let expected =
        format!("write() to \"{}\" failed (28: No space left on device)", path.display());
    assert!(told.len() == 1 && told[0].ends_with(&expected), "{told:?}");
    assert!(told[0].contains(" [alert] "), "{told:?}");
    // Another file, another disk: no second is waited.
    log.install(open(&path));
    append(&log, b"kept\n");
    flush_batch();
    assert_eq!(text(&path), "kept\n");
}

#[test]
fn an_error_log_may_complain_about_itself_and_is_freed() {
    let dir = TempDir::new().unwrap();
    let log = log_at(&dir.path().join("both.log"));
    log.complain_to(&ErrorLog::to_file(log.clone(), Severity::Error));
    let gone = Arc::downgrade(&log);
    drop(log);
    assert!(gone.upgrade().is_none());
}

#[test]
fn a_line_feed_in_a_message_does_not_begin_a_line() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("error.log");
    let log = ErrorLog::to_file(log_at(&path), Severity::Error);
    log.write(Severity::Error, None, format_args!("open() \"a\nb\r\" failed"));
    let text = text(&path);
    assert!(text.ends_with("open() \"a b \" failed\n") && text.lines().count() == 1, "{text}");
}

#[test]
fn a_line_that_was_cut_off_ends_before_the_next() {
    // A socket's write may be cut off anywhere.
    let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let log = LogFile::new("/nowhere/torn".into());
    log.install(File::from(std::os::fd::OwnedFd::from(far)));
    let long = [vec![b'x'; 16 << 20], b"\n".to_vec()].concat();
    assert!(log.write(&long).is_err());
    near.set_nonblocking(true).unwrap();
    let mut seen = Vec::new();
    let _ = near.read_to_end(&mut seen);
    assert!(!seen.is_empty() && seen.len() < long.len());
    log.write(b"whole\n").unwrap();
    seen.clear();
    let _ = near.read_to_end(&mut seen);
    assert_eq!(seen, b"\nwhole\n");
}

#[test]
fn buffers_are_written_when_full_and_hold_whole_lines() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("access.log");
    let log = buffered(&path, SMALL);
    for (line, expected) in [
        ("12345\n", ""),
        ("67890\n", ""),
        // It no longer fits: those before go first.
        ("abcde\n", "12345\n67890\n"),
        // Longer than the buffer.
        ("a very long line it is\n", "12345\n67890\nabcde\na very long line it is\n"),
        ("x\n", "12345\n67890\nabcde\na very long line it is\n"),
    ] {
        append(&log, line.as_bytes());
        flush_batch();
        assert_eq!(text(&path), expected, "after {line}");
    }
    drop(log);
    assert!(text(&path).ends_with("is\nx\n"), "the end of its configuration writes it");
}

#[test]
fn buffers_go_to_the_file_before_the_rotation() {
    let dir = TempDir::new().unwrap();
    let (path, old) = (dir.path().join("access.log"), dir.path().join("old"));
    let log = buffered(&path, SMALL);
    append(&log, b"before\n");
    fs::rename(&path, &old).unwrap();
    log.install(open(&path));
    append(&log, b"after\n");
    log.flush();
    assert_eq!((text(&old), text(&path)), ("before\n".into(), "after\n".into()));
}

#[test]
fn a_thread_that_ends_writes_its_lines() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("access.log");
    for log in [buffered(&path, SMALL), log_at(&path)] {
        fs::write(&path, "").unwrap();
        let theirs = log.clone();
        thread::spawn(move || append(&theirs, b"line\n")).join().unwrap();
        assert_eq!(text(&path), "line\n");
    }
}

#[test]
fn a_replaced_configuration_keeps_nothing_back() {
    let dir = TempDir::new().unwrap();
    let (path, moved) = (dir.path().join("access.log"), dir.path().join("moved"));
    let mut old = LogSet::default();
    let log = old.file(path.clone());
    log.install(open(&path));
    log.buffer(SMALL).unwrap();
    append(&log, b"one\n");
    let new = buffered(&path, SMALL);
    old.retire();
    append(&log, b"two\n");
    flush_batch();
    assert_eq!(text(&path), "one\ntwo\n");
    // A rotation that only the new configuration hears of reaches the old one.
    fs::rename(&path, &moved).unwrap();
    new.install(open(&path));
    append(&log, b"three\n");
    flush_batch();
    assert_eq!((text(&moved), text(&path)), ("one\ntwo\n".into(), "three\n".into()));
}

#[test]
fn buffering_is_the_same_for_all_users_of_a_file() {
    let log = LogFile::new("/nowhere/same".into());
    assert_eq!(log.buffer(SMALL), Ok(()));
    assert_eq!(log.buffer(SMALL), Ok(()));
    assert_eq!(log.buffer(Buffering { gzip: Some(1), ..SMALL }), Err(SMALL));
}

#[test]
fn each_write_is_a_gzip_member() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("access.log.gz");
    let log = buffered(&path, Buffering { gzip: Some(6), ..SMALL });
    for line in ["1234567890\n", "abcdefghij\n", "longer than the buffer\n"] {
        append(&log, line.as_bytes());
    }
    let bytes = fs::read(&path).unwrap();
    let members = bytes.windows(3).filter(|w| *w == [0x1f, 0x8b, 8]).count();
    let mut lines = String::new();
    MultiGzDecoder::new(&bytes[..]).read_to_string(&mut lines).unwrap();
    assert_eq!((members, &*lines), (3, "1234567890\nabcdefghij\nlonger than the buffer\n"));
}

#[test]
fn a_line_waits_no_longer_than_flush() {
    clock::pause();
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("access.log");
    let log = buffered(&path, Buffering { flush_ms: Some(1000), ..SMALL });
    // Time passes when nothing else is to be done.
    let after = async |ms| {
        timer::sleep(ms).await;
        text(&path)
    };
    task::block_on(async {
        append(&log, b"1\n");
        assert_eq!(after(990).await, "");
        append(&log, b"2\n");
        assert_eq!(after(20).await, "1\n2\n");
        append(&log, b"3\n");
        assert_eq!(after(500).await, "1\n2\n");
        // Full in between: the time counts from the first line of the buffer anew.
        append(&log, b"0123456789abcde\n");
        assert_eq!(after(510).await, "1\n2\n3\n");
        assert_eq!(after(500).await, "1\n2\n3\n0123456789abcde\n");
    });
}

fn node(directive: &str) -> Node {
    let (mut files, mut sources, mut diags) =
        (Memory::default(), Sources::new(), Diagnostics::new());
    let options = ParseOptions::default();
    let bytes = directive.as_bytes();
    parse_text("test", bytes, &mut files, &options, &mut sources, &mut diags).remove(0)
}

fn error_log(directive: &str) -> Result<ErrorLog, String> {
    let (mut files, mut sources, mut diags) =
        (Memory::default(), Sources::new(), Diagnostics::new());
    let mut loader = Loader {
        files: &mut files,
        sources: &mut sources,
        diags: &mut diags,
        prefix: "/nowhere".into(),
        conf_prefix: "/nowhere".into(),
    };
    let mut log = None;
    LogSet::default()
        .error_log(&mut log, &node(directive), &mut loader)
        .map_err(|error| error.message)?;
    Ok(log.unwrap())
}

#[test]
fn error_log_levels_are_those_of_nginx() {
    for (directive, mildest) in [
        ("error_log a;", Severity::Error),
        ("error_log a emerg;", Severity::Emerg),
        ("error_log stderr info;", Severity::Info),
        ("error_log '' info;", Severity::Info),
        ("error_log a debug;", Severity::Debug),
        ("error_log a debug_http debug_core;", Severity::Debug),
        ("error_log syslog:server=127.0.0.1 warn;", Severity::Warn),
    ] {
        let log = error_log(directive).unwrap();
        assert!(log.wants(mildest), "{directive}");
        assert!(!log.wants(Severity::Debug) || mildest == Severity::Debug, "{directive}");
    }
    for (directive, message) in [
        ("error_log a foo;", "invalid log level \"foo\""),
        ("error_log a stderr;", "invalid log level \"stderr\""),
        ("error_log a warn error;", "duplicate log level \"error\""),
        ("error_log a warn debug_http;", "invalid log level \"debug_http\""),
        ("error_log a debug_http warn;", "duplicate log level \"warn\""),
        ("error_log memory:32m debug;", "nginx was built without debug support"),
    ] {
        assert_eq!(error_log(directive).unwrap_err(), message, "{directive}");
    }
}

#[test]
fn syslog_parameters_are_checked_as_in_nginx() {
    for (value, message) in [
        ("", "unknown syslog parameter \"\""),
        ("tag=a", "no syslog server specified"),
        ("server=a.b,", "host not found in syslog server \"a.b\""),
        ("server=127.0.0.1,x=y", "unknown syslog parameter \"x=y\""),
        ("server=127.0.0.1,nohostname=1", "unknown syslog parameter \"nohostname=1\""),
        ("server=127.0.0.1,facility", "unknown syslog parameter \"facility\""),
        ("server=127.0.0.1,server=127.0.0.1", "duplicate syslog \"server\""),
        ("server=127.0.0.1,facility=x", "unknown syslog facility \"x\""),
        ("server=127.0.0.1,facility=kern,facility=user", "duplicate syslog \"facility\""),
        ("server=127.0.0.1,severity=err", "unknown syslog severity \"err\""),
        ("server=127.0.0.1,severity=warn,severity=warn", "duplicate syslog \"severity\""),
        ("server=127.0.0.1,tag=a,tag=b", "duplicate syslog \"tag\""),
        ("server=127.0.0.1,tag=a-b", ONLY_ALPHANUMERIC),
        ("server=127.0.0.1,tag=a123456789012345678901234567890123", TAG_TOO_LONG),
        ("server=127.0.0.1:0", "invalid port in syslog server \"127.0.0.1:0\""),
        ("server=127.0.0.1:x", "invalid port in syslog server \"127.0.0.1:x\""),
        ("server=:514", "no host in syslog server \":514\""),
        ("server=[::1", "invalid host in syslog server \"[::1\""),
        ("server=unix:", "no path in the unix domain socket in syslog server \"unix:\""),
    ] {
        let error =
            Syslog::parse(&node(&format!("a \"syslog:{value}\";")).args[0], &mut Memory::default())
                .unwrap_err();
        assert_eq!(error.message, message, "{value}");
    }
    for value in ["server=[::1]", "server=[::1]:5140,nohostname", "server=localhost:1"] {
        Syslog::parse(&node(&format!("a syslog:{value};")).args[0], &mut Memory::default())
            .unwrap();
    }
}

const ONLY_ALPHANUMERIC: &str = "syslog \"tag\" only allows alphanumeric characters and underscore";
const TAG_TOO_LONG: &str = "syslog tag length exceeds 32";

/// The datagram with the timestamp replaced by `TIME`, which it must have.
fn without_time(datagram: &[u8]) -> String {
    let text = std::str::from_utf8(datagram).unwrap();
    let at = text.find('>').unwrap() + 1;
    let (time, rest) = text[at..].split_at("Nov 21 09:00:00".len());
    let shape: String = time
        .chars()
        .map(|c| match c {
            '0'..='9' => '0',
            c if c.is_ascii_alphabetic() => 'a',
            c => c,
        })
        .collect();
    assert!(["aaa 00 00:00:00", "aaa  0 00:00:00"].contains(&&*shape), "{time}");
    format!("{}TIME{rest}", &text[..at])
}

#[test]
fn syslog_lines_are_datagrams_of_rfc_3164() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("log.socket");
    let local = UnixDatagram::bind(&path).unwrap();
    let mut buf = [0; 4096];
    let port = server.local_addr().unwrap().port();
    let parse = |value: String| {
        Syslog::parse(&node(&format!("a syslog:{value};")).args[0], &mut Memory::default()).unwrap()
    };
    let syslog = parse(format!("server=127.0.0.1:{port},nohostname,tag=web_1,facility=daemon"));
    syslog.send(syslog.severity(), b"GET /").unwrap();
    let len = server.recv(&mut buf).unwrap();
    assert_eq!(without_time(&buf[..len]), "<30>TIME web_1: GET /");
    let syslog = parse(format!("server=unix:{},severity=debug", path.display()));
    syslog.send(syslog.severity(), b"GET /").unwrap();
    let len = local.recv(&mut buf).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().to_lowercase();
    assert_eq!(without_time(&buf[..len]), format!("<191>TIME {} nginx: GET /", host.trim()));
}

#[test]
fn an_error_log_line_bears_its_own_severity_to_syslog() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("log.socket");
    let server = UnixDatagram::bind(&path).unwrap();
    let directive = format!("error_log syslog:server=unix:{},nohostname info;", path.display());
    let log = error_log(&directive).unwrap();
    log.write(Severity::Crit, Some(7), format_args!("one\ntwo {}", "x".repeat(3000)));
    let mut buf = [0; 4096];
    let len = server.recv(&mut buf).unwrap();
    let line = without_time(&buf[..len]);
    let (head, message) = line.split_once("nginx: ").unwrap();
    assert_eq!(head, "<186>TIME ");
    assert!(message.contains(" [crit] ") && message.contains(": *7 one two xxx"), "{message}");
    // NGX_MAX_ERROR_STR, less the line feed that a datagram does without.
    assert_eq!(message.len(), 2047);
}

#[test]
fn a_long_line_keeps_the_error_that_it_ends_with() {
    let dir = TempDir::new().unwrap();
    let log = log_at(&dir.path().join("log"));
    let error_log = ErrorLog::to_file(log, Severity::Error);
    let long = "x".repeat(3000);
    let enoent = "(2: No such file or directory)";
    let write = |message: fmt::Arguments<'_>, about: fmt::Arguments<'_>| {
        error_log.write_about(Severity::Error, None, message, about);
    };
    write(format_args!("open() \"{long}\" failed {enoent}"), format_args!(", client: c"));
    write(format_args!("open() \"{long}\" failed"), format_args!(", client: c"));
    write(format_args!("open() \"x\" failed {enoent}"), format_args!(", request: \"{long}\""));
    let text = fs::read_to_string(dir.path().join("log")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // ngx_log_errno: fifty bytes for the error, whatever came before.
    assert!(lines[0].ends_with(&format!("xxx... {enoent}, client: c")), "{}", lines[0]);
    assert_eq!(lines[0].find("...").unwrap(), 2048 - 50);
    assert!(lines[1].ends_with("xxx") && lines[1].len() == 2047);
    assert!(lines[2].contains(&format!("\"x\" failed {enoent}, request: \"xxx")));
    assert_eq!(lines[2].len(), 2047);
}

#[test]
fn a_syslog_server_that_is_gone_is_found_again() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("log.socket");
    let value = format!("a syslog:server=unix:{};", path.display());
    let syslog = Syslog::parse(&node(&value).args[0], &mut Memory::default()).unwrap();
    assert!(syslog.send(Severity::Info, b"nobody").is_err());
    assert!(syslog.trouble().is_news() && !syslog.trouble().is_news());
    for line in ["one", "two"] {
        let server = UnixDatagram::bind(&path).unwrap();
        // The first line after the loss finds the old socket dead, the second a new one.
        let _ = syslog.send(Severity::Info, b"");
        syslog.send(Severity::Info, line.as_bytes()).unwrap();
        let mut buf = [0; 256];
        while !buf.windows(3).any(|window| window == line.as_bytes()) {
            server.recv(&mut buf).unwrap();
        }
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_pipe_gets_pieces_of_whole_lines() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let log = Arc::new(LogFile::new("/nowhere/pipe".into()));
    log.install(File::from(std::os::fd::OwnedFd::from(writer)));
    let line = [&[b'x'; 99][..], b"\n"].concat();
    for _ in 0..100 {
        append(&log, &line);
    }
    flush_batch();
    drop(log);
    let mut seen = Vec::new();
    reader.read_to_end(&mut seen).unwrap();
    assert_eq!(seen, line.repeat(100));
}
