//! Claims about access logs: the bytes of lines, which log gets them, what is refused.

use std::{fs::File, net::UdpSocket, path::Path, sync::Arc};

use forebay_session::log::flush_batch;
use forebay_testkit::tempdir::TempDir;

use crate::{
    plan::Plan,
    request::Request,
    testing::{conf_error, plan, request_of},
};

/// A plan whose logs are open.
fn opened(http: &str) -> Arc<Plan> {
    let plan = plan(http).unwrap();
    for log in plan.logs.iter() {
        log.install(File::options().append(true).create(true).open(log.path()).unwrap());
    }
    Arc::new(plan)
}

fn log(r: &Request) {
    for logger in &r.plan.location(r.location).loggers {
        logger.log(r);
    }
    flush_batch();
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// What `log_format x FORMAT` writes of a request.
fn line(format: &str, head: &str, prepare: impl FnOnce(&mut Request)) -> String {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a");
    let conf = format!(
        "log_format x {format}; server {{ listen 127.0.0.1:1; access_log {} x; }}",
        path.display()
    );
    let mut r = request_of(opened(&conf), head);
    prepare(&mut r);
    log(&r);
    text(&path)
}

const HEAD: &str = "GET /a?b HTTP/1.1\r\nHost: h\r\nUser-Agent: a \"b\" \\ \x01 é\r\n\
    X-Empty:\r\nX-Two: 1\r\nX-Two: 2\r\n\r\n";

#[test]
fn combined_is_what_nginx_writes() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a");
    let conf = format!("server {{ listen 127.0.0.1:1; access_log {}; }}", path.display());
    let mut r = request_of(opened(&conf), HEAD);
    r.response.status = 200;
    (r.bytes_sent, r.head_sent) = (1234, 234);
    log(&r);
    let line = text(&path);
    let (before, rest) = line.split_once('[').unwrap();
    let (time, after) = rest.split_once(']').unwrap();
    assert_eq!(before, "127.0.0.1 - - ");
    assert_eq!(time.len(), "21/Nov/2026:09:00:00 +0000".len());
    let agent = r"a \x22b\x22 \x5C \x01 \xC3\xA9";
    assert_eq!(after, format!(" \"GET /a?b HTTP/1.1\" 200 1000 \"-\" \"{agent}\"\n"));
}

#[test]
fn formats_write_and_escape_as_nginx() {
    for (format, expected) in [
        ("'$http_user_agent'", r"a \x22b\x22 \x5C \x01 \xC3\xA9"),
        ("escape=default '$http_user_agent'", r"a \x22b\x22 \x5C \x01 \xC3\xA9"),
        ("escape=json '$http_user_agent'", "a \\\"b\\\" \\\\ \\u0001 é"),
        ("escape=none '$http_user_agent'", "a \"b\" \\ \x01 é"),
        // By way of the registry.
        ("'$args$arg_x'", "b-"),
        // Not found, and found empty.
        ("'$http_referer|$http_x_empty|$http_x_none|$remote_user'", "-||-|-"),
        ("escape=json '$http_referer|$http_x_empty|$http_x_none|$remote_user'", "|||"),
        ("escape=none '$http_referer|$http_x_empty|$http_x_none|$remote_user'", "|||"),
        ("'$http_x_two'", "1, 2"),
        ("'${status}x' '$bytes_sent $body_bytes_sent $request_length'", "000x0 0 0"),
        ("'\"' $remote_addr '\"'", "\"127.0.0.1\""),
        ("'$request' \" $host\"", "GET /a?b HTTP/1.1 h"),
    ] {
        assert_eq!(
            line(format, HEAD, |r| r.input_mut().host = b"h".to_vec()),
            format!("{expected}\n"),
            "{format}"
        );
    }
}

#[test]
fn json_lines_are_utf_8_whatever_comes_in() {
    let shown = line("escape=json '{\"a\":\"$uri\"}'", HEAD, |r| r.uri = b"/\xff\"\n\xc3".to_vec());
    assert_eq!(shown, "{\"a\":\"/\u{fffd}\\\"\\n\u{fffd}\"}\n");
}

#[test]
fn credentials_show_their_user() {
    let head = "GET / HTTP/1.1\r\nAuthorization: Basic dXMiZXI6cGFzcw==\r\n\r\n";
    assert_eq!(line("'$remote_user'", head, |_| {}), "us\\x22er\n");
}

#[test]
fn status_is_the_error_that_a_page_is_shown_for() {
    for (status, error, expected) in [(200, 0, "200"), (200, 404, "404"), (0, 0, "000")] {
        let shown = line("'$status'", "GET / HTTP/1.1\r\n\r\n", |r| {
            r.response.status = status;
            r.error_status = error;
        });
        assert_eq!(shown, format!("{expected}\n"));
    }
    assert_eq!(line("'$status'", "GET /\r\n\r\n", |_| {}), "009\n");
}

#[test]
fn the_logs_of_a_level_replace_those_around_it() {
    let conf = |outer: &str, inner: &str| {
        let plan = plan(&format!("{outer} server {{ listen 127.0.0.1:1; {inner} }}")).unwrap();
        let loggers = plan.location(plan.server(Default::default()).location).loggers.len();
        let paths: Vec<String> =
            plan.log_paths().iter().map(|path| path.display().to_string()).collect();
        (loggers, paths.join(" "))
    };
    for (outer, inner, loggers, paths) in [
        ("", "", 1, "/nowhere/logs/access.log"),
        ("access_log off;", "", 0, ""),
        ("", "access_log off;", 0, ""),
        ("access_log /a;", "access_log off;", 0, "/a"),
        ("access_log off;", "access_log b; access_log c;", 1, "/nowhere/b /nowhere/c"),
        ("access_log /a;", "", 1, "/a"),
        ("access_log /a;", "access_log off; access_log /b;", 0, "/a /b"),
    ] {
        assert_eq!(conf(outer, inner), (loggers, paths.into()), "{outer} {inner}");
    }
}

#[test]
fn conditions_choose_lines() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a");
    let conf = format!(
        "log_format x '$arg_n'; server {{ listen 127.0.0.1:1;
         access_log {} x if=$arg_log; }}",
        path.display()
    );
    let plan = opened(&conf);
    for query in ["n=1", "n=2&log=", "n=3&log=0", "n=4&log=00", "n=5&log=1"] {
        log(&request_of(plan.clone(), &format!("GET /?{query} HTTP/1.1\r\n\r\n")));
    }
    assert_eq!(text(&path), "4\n5\n");
}

#[test]
fn names_may_hold_variables() {
    for cache in ["", "open_log_file_cache max=2 min_uses=1;"] {
        let dir = TempDir::new().unwrap();
        let at = dir.path().display();
        let conf = format!(
            "log_format x '$arg_n'; server {{ listen 127.0.0.1:1; {cache}
             root {at}; access_log {at}/$arg_to.log x;
             location /none/ {{ root {at}/none; }} }}"
        );
        let plan = opened(&conf);
        for query in ["n=1&to=a", "n=2&to=b", "n=3&to=a", "n=4&to=none/a"] {
            log(&request_of(plan.clone(), &format!("GET /?{query} HTTP/1.1\r\n\r\n")));
        }
        assert_eq!(text(&dir.path().join("a.log")), "1\n3\n");
        assert_eq!(text(&dir.path().join("b.log")), "2\n");
        // As in nginx, a root that is not there keeps the log from being made.
        let mut r = request_of(plan.clone(), "GET /?n=5&to=c HTTP/1.1\r\n\r\n");
        let inner = plan.locations.iter().find(|location| &location.name[..] == b"/none/");
        r.location = inner.unwrap().id;
        log(&r);
        assert!(!dir.path().join("c.log").exists());
    }
}

#[test]
fn a_log_stays_below_what_is_written_of_its_name() {
    let dir = TempDir::new().unwrap();
    let at = dir.path().display();
    std::fs::create_dir(dir.path().join("in")).unwrap();
    let conf = format!(
        "log_format x '$arg_n'; server {{ listen 127.0.0.1:1; root {at}; access_log {at}/in/$arg_to.log x; }}"
    );
    let plan = opened(&conf);
    for query in ["n=1&to=../out", "n=2&to=../in/a", "n=3&to=a", "n=4&to=..b"] {
        log(&request_of(plan.clone(), &format!("GET /?{query} HTTP/1.1\r\n\r\n")));
    }
    assert!(!dir.path().join("out.log").exists());
    assert_eq!(text(&dir.path().join("in/a.log")), "3\n");
    assert_eq!(text(&dir.path().join("in/..b.log")), "4\n");
}

#[test]
fn syslog_gets_a_datagram_without_line_feed() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let conf = format!(
        "log_format x '$arg_n'; server {{ listen 127.0.0.1:1;
         access_log syslog:server={},nohostname,tag=t,severity=notice x; }}",
        server.local_addr().unwrap()
    );
    log(&request_of(opened(&conf), "GET /?n=1 HTTP/1.1\r\n\r\n"));
    let mut buf = [0; 256];
    let len = server.recv(&mut buf).unwrap();
    let line = std::str::from_utf8(&buf[..len]).unwrap();
    assert!(line.starts_with("<189>") && line.ends_with(" t: 1"), "{line}");
}

#[test]
fn it_stands_where_it_does_in_nginx() {
    let conf = "server { listen 127.0.0.1:1; location / {
        if ($arg_x) { access_log /b; } limit_except GET { access_log off; } } }";
    assert!(plan(conf).is_ok());
    assert!(conf_error("server { if ($arg_x) { access_log off; } }").contains("not allowed here"));
    assert!(conf_error("server { log_format x y; }").contains("not allowed here"));
}

#[test]
fn errors_have_the_texts_of_nginx() {
    for (conf, message) in [
        ("access_log /a x;", "unknown log format \"x\""),
        ("access_log /a x; log_format x y;", "unknown log format \"x\""),
        ("log_format x y; log_format x z;", "duplicate \"log_format\" name \"x\""),
        ("log_format combined y;", "duplicate \"log_format\" name \"combined\""),
        ("log_format x escape=xml y;", "unknown log format escaping \"xml\""),
        ("log_format x a$;", "invalid parameter \"$\""),
        ("log_format x 'a$-b';", "invalid parameter \"$-b\""),
        ("log_format x '${}';", "invalid parameter \"${}\""),
        ("log_format x '${';", "invalid parameter \"${\""),
        ("log_format x '${a-b';", "the closing bracket in \"a\" variable is missing"),
        ("log_format x '$nothing';", "unknown \"nothing\" variable"),
        ("log_format x '$1';", "unknown \"1\" variable"),
        ("access_log off combined;", "invalid parameter \"combined\""),
        ("access_log /a combined x=1;", "invalid parameter \"x=1\""),
        ("access_log /a combined gzipped;", "invalid parameter \"gzipped\""),
        ("access_log /a combined buffer=0;", "invalid buffer size \"0\""),
        ("access_log /a combined buffer=1k flush=x;", "invalid flush time \"x\""),
        ("access_log /a combined gzip=10;", "invalid compression level \"10\""),
        ("access_log /a combined flush=1;", "no buffer is defined for access_log \"/a\""),
        ("access_log /$host combined gzip;", "buffered logs cannot have variables in name"),
        (
            "access_log syslog:server=127.0.0.1 combined buffer=1k;",
            "logs to syslog cannot be buffered",
        ),
        (
            "access_log /a combined buffer=1k; access_log /a combined buffer=2k;",
            "access_log \"/a\" already defined with conflicting parameters",
        ),
        ("open_log_file_cache inactive=1;", "\"open_log_file_cache\" must have \"max\" parameter"),
        ("open_log_file_cache max=x;", "invalid \"open_log_file_cache\" parameter \"max=x\""),
        (
            "open_log_file_cache off; open_log_file_cache off;",
            "\"open_log_file_cache\" directive is duplicate",
        ),
    ] {
        let error = conf_error(conf);
        assert!(error.contains(message), "{conf}: {error}");
    }
}

#[test]
fn what_is_right_loads() {
    for conf in [
        "log_format Mine a; access_log /a mine; access_log /b COMBINED;",
        "access_log /a combined buffer=1k flush=1m gzip=9 if=$arg_x;",
        "access_log /a combined gzip; access_log /a combined; access_log /a combined gzip;",
        "open_log_file_cache max=10 inactive=1m min_uses=2 valid=1m;",
        "access_log /a combined buffer=1k; access_log /a combined buffer=1024;",
    ] {
        assert_eq!(plan(conf).err(), None, "{conf}");
    }
}

#[test]
fn a_long_line_leaves_no_memory_behind() {
    let kept = || {
        let line = super::LINE.take();
        let capacity = line.capacity();
        super::LINE.set(line);
        capacity
    };
    let long = |bytes: usize| {
        line("$http_x", &format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(bytes)), |_| {})
    };
    assert_eq!(long(100).len(), 101);
    assert!((101..1000).contains(&kept()));
    assert_eq!(long(100_000).len(), 100_001);
    assert!(kept() < 1000);
}
