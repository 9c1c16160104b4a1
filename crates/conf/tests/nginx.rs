//! The same texts to a real nginx and to this crate: what is refused must be refused with the same
//! first message. Skipped, saying so, where nginx is not installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_conf::value;
use forebay_conf::{Diagnostics, Direct, ParseOptions, Sources, dump, parse, parse_command_line};

const NGINX: &str = "/usr/sbin/nginx";

/// A directory of this test's own, gone when dropped.
struct Dir(PathBuf);

impl Dir {
    /// `None` when there is no nginx to compare with.
    fn new(name: &str) -> Option<Dir> {
        if !Path::new(NGINX).exists() {
            eprintln!("skipped: {NGINX} is not installed");
            return None;
        }
        let path = std::env::temp_dir().join(format!("forebay-conf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Some(Dir(path))
    }

    fn write(&self, name: &str, text: &[u8]) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn nginx(&self, args: &[&str]) -> std::process::Output {
        let mut command = Command::new(NGINX);
        command.arg("-p").arg(format!("{}/", self.0.display())).args(["-e", "e.log"]);
        command.args(args).output().unwrap()
    }

    /// nginx's first message about `nginx.conf`, without `nginx: `; empty when it is right.
    fn judged_by_nginx(&self, args: &[&str]) -> String {
        let output = self.nginx(&[&["-t", "-c", "nginx.conf"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused = |l: &&str| l.contains("[emerg]") || l.contains("[crit]");
        let line = text.lines().find(refused).unwrap_or("");
        line.trim_start_matches("nginx: ").to_owned()
    }

    fn judged_by_us(&self) -> String {
        let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
        let opts = ParseOptions { conf_prefix: self.0.clone() };
        let main = self.0.join("nginx.conf");
        parse(&main, &mut Direct, &opts, &mut sources, &mut diags);
        diags.sort(&sources);
        diags.iter().next().map(|e| e.nginx_line(&sources)).unwrap_or_default()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn wrong_texts_get_nginx_message_and_line() {
    let Some(dir) = Dir::new("texts") else { return };
    let long = "x".repeat(4096);
    let fits = "x".repeat(4095);
    let texts = [
        "events {}".to_owned(),
        ";".into(),
        "events {}\n{}".into(),
        "events {}\n}".into(),
        "events {}\nhttp {".into(),
        "events {}\nhttp {\n server {\n listen 80\n }\n}".into(),
        "events {}\nhttp".into(),
        "events {}\nhttp { root \"a\"b; }".into(),
        "events {}\nhttp { root 'a\n\n".into(),
        "events {}\nhttp { root a\\".into(),
        "events {}\nhttp { root ${uri}; }".into(),
        "events {}\nhttp { default_type ${a; }".into(),
        "events {}\nhttp { root a}b; } # end".into(),
        "events {}\nhttp { root a#b; }".into(),
        "events {}\r\nhttp { root a; }\r\n".into(),
        format!("events {{}}\nhttp {{ root {fits}; }}"),
        format!("events {{}}\nhttp {{\n root {long}; }}"),
        format!("events {{}}\nhttp {{ root '{fits}'; }}"),
        format!("events {{}}\nhttp {{ root '{}'; }}", &fits[1..]),
        format!("events {{}}\nhttp {{ root \"{long}\"; }}"),
        format!("events {{}}\nhttp {{ root '{long}"),
        format!("events {{}}\nhttp {{ root {long}"),
        format!("events {{}}\nhttp {{ root {long}x"),
        "events {}\nhttp { include; }".into(),
        "events {}\nhttp { include a b; }".into(),
        "events {}\nhttp { include a {} }".into(),
        "events {}\nhttp { include none; }".into(),
        "events {}\nhttp { include none*; include d/[*; include [; }".into(),
        "events {}\nhttp { include d/*.conf; }".into(),
        "events {}\nhttp { include d/wr[n-p]ng; }".into(),
        "events {}\nhttp { types { include d/types; } }".into(),
        "events {}\nhttp { types { include d/none; } }".into(),
        "events {}\nhttp { map $uri $a { include d/types; } }".into(),
    ];
    dir.write("d/good.conf", b"root a;\n");
    dir.write("d/.hidden.conf", b"}");
    dir.write("d/wrong", b"\n\n}");
    dir.write("d/types", b"text/html html;");
    for text in texts {
        dir.write("nginx.conf", text.as_bytes());
        assert_eq!(dir.judged_by_us(), dir.judged_by_nginx(&[]), "{text:.60}");
    }
}

/// A `types` block takes any words, so that what is wrong can only be the syntax.
#[test]
fn random_texts_are_refused_as_nginx_refuses_them() {
    const PIECES: [&str; 16] =
        ["a", "b", "c", "$", "${", "}", ";", "; ", "\"", "'", "\\", "#", " ", "\n", ")", "\r\n"];
    let Some(dir) = Dir::new("random") else { return };
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 8) % n as u64) as usize
    };
    for _ in 0..CASES {
        let text: String = (0..random(14)).map(|_| PIECES[random(PIECES.len())]).collect();
        dir.write("nginx.conf", format!("events {{}} http {{ types {{ {text} }} }}").as_bytes());
        let by_nginx = dir.judged_by_nginx(&[]);
        // Errors of what directives mean are for the crates above.
        let of_meaning = ["unexpected \"{\"", "unknown directive", "not allowed here"];
        if !of_meaning.iter().any(|m| by_nginx.contains(m)) {
            assert_eq!(dir.judged_by_us(), by_nginx, "{text:?}");
        }
    }
}

/// Texts that a run tries; each costs a start of nginx.
const CASES: usize = 100;

/// nginx shows what it takes a word for when it does not know the directive.
#[test]
fn words_mean_what_they_mean_to_nginx() {
    let Some(dir) = Dir::new("words") else { return };
    let words = [
        r"plain",
        r"a\ b",
        r"a\;b",
        r"a\{b",
        r#""a b""#,
        r#"'a "b"'"#,
        r#""a\"b""#,
        r"'a\'b'",
        r"a\\b",
        r"\d+\.x\$",
        r#"a"b"#,
        r"a'b",
        r"a}b",
        r"a#b",
        r"${a}b",
        r"a${b}{",
        r"$a$b",
        r"a\tb",
        r"'a\\'",
        r#""${a}{""#,
        r#""a;b{c}#d""#,
        r"\}",
        r"\#x",
        r"\'a",
        "caf\u{e9}",
        r"a)b",
        r")",
        r"(",
        r"a\qb",
    ];
    for word in words {
        let text = format!("{word} x;");
        dir.write("nginx.conf", text.as_bytes());
        let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
        let opts = ParseOptions { conf_prefix: dir.0.clone() };
        let main = dir.0.join("nginx.conf");
        let nodes = parse(&main, &mut Direct, &opts, &mut sources, &mut diags);
        let by_us = match nodes.first() {
            Some(n) if n.block.is_none() || n.args.is_empty() => {
                let place = format!("{}:{}", main.display(), n.span.line);
                format!("[emerg] unknown directive \"{}\" in {place}", n.name.lossy())
            }
            _ => dir.judged_by_us(),
        };
        assert_eq!(by_us, dir.judged_by_nginx(&[]), "{word}");
    }
}

#[test]
fn values_are_taken_and_refused_as_nginx_does() {
    let Some(dir) = Dir::new("values") else { return };
    type Parse = fn(&[u8]) -> Option<u64>;
    let times = [
        "0",
        "5",
        "5s",
        "1m",
        "1h",
        "1d 12h",
        "1d12h30m5s",
        "500ms",
        "1M",
        "1y",
        "1y 1M 1w",
        "1h 1d",
        "1m 1m",
        "10 5",
        "5 ",
        " 5",
        "5  5",
        "s5",
        "s",
        "",
        "5q",
        "-1",
        "1.5s",
        "1s1ms",
        "1ms 1",
        "1ms1s",
        "1ms1ms",
        "9223372036854775807",
        "9223372036854775808",
        "9223372036854775ms",
        "300000000000y",
        "1S",
        "1w1w",
    ];
    let sizes = [
        "0", "1", "8k", "8K", "1m", "1M", "1g", "1G", "k", "", "1kk", "1.5m", "-1", "+1", " 1",
        "1 ",
    ];
    let cases: [(&str, Parse, &[&str]); 4] = [
        ("client_header_timeout", value::msec, &times),
        ("ssl_session_timeout", value::sec, &times),
        ("client_max_body_size", value::offset, &sizes),
        ("client_header_buffer_size", |t| value::size(t).filter(|n| *n > 0), &sizes[1..]),
    ];
    for (directive, parse, values) in cases {
        for value in values {
            let text = format!("events {{}}\nhttp {{ {directive} \"{value}\"; }}");
            dir.write("nginx.conf", text.as_bytes());
            let place = format!("{}:2", dir.0.join("nginx.conf").display());
            let by_us = match parse(value.as_bytes()) {
                Some(_) => String::new(),
                None => format!("[emerg] \"{directive}\" directive invalid value in {place}"),
            };
            assert_eq!(by_us, dir.judged_by_nginx(&[]), "{directive} {value:?}");
        }
    }
}

#[test]
fn the_command_line_gets_nginx_message() {
    let Some(dir) = Dir::new("global") else { return };
    dir.write("nginx.conf", b"events {}");
    for text in ["daemon off;", "daemon off", "events {}", "user 'a", "}", ";", "include none;"] {
        let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
        let opts = ParseOptions { conf_prefix: dir.0.clone() };
        parse_command_line(text.as_bytes(), &mut Direct, &opts, &mut sources, &mut diags);
        let by_us = diags.iter().next().map(|e| e.nginx_line(&sources)).unwrap_or_default();
        assert_eq!(by_us, dir.judged_by_nginx(&["-g", text]), "{text}");
    }
}

#[test]
fn the_dump_is_the_same() {
    let Some(dir) = Dir::new("dump") else { return };
    dir.write("nginx.conf", b"include d/*;\nevents { }\nhttp {\n  include e; include e;\n}");
    dir.write("d/2", b"# two\n");
    dir.write("d/1", b"worker_processes 1; # no line feed");
    dir.write("e", b"");
    let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
    let opts = ParseOptions { conf_prefix: dir.0.clone() };
    parse(&dir.0.join("nginx.conf"), &mut Direct, &opts, &mut sources, &mut diags);
    let by_nginx = dir.nginx(&["-q", "-T", "-c", "nginx.conf"]).stdout;
    let by_us = dump::dump(&sources);
    assert_eq!(String::from_utf8_lossy(&by_us), String::from_utf8_lossy(&by_nginx));
}
