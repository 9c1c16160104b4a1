//! HTTPS from outside, by programs that are not ours: curl and openssl against Forebay, and, where the
//! two are to agree, against nginx. What needs a program that is not installed says so.

mod configuration;
mod failures;
mod handshakes;
mod hostile;
mod http2;
mod ocsp;
mod records;
mod requests;
mod sessions;
mod upstream;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use forebay_testkit::server::binary;
use forebay_testkit::{Kind, Server, certs, wait_for};

const LIMIT: Duration = Duration::from_secs(20);

/// Where the certificates of [`certs::write`] are.
fn certificates() -> &'static PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let name = format!("{}/tls-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        let dir = PathBuf::from(name);
        fs::create_dir_all(&dir).unwrap();
        certs::write(&dir).unwrap();
        fs::write(dir.join("ticket48"), [7; 48]).unwrap();
        fs::write(dir.join("ticket80"), [8; 80]).unwrap();
        dir
    })
}

/// A configuration with `{certs}` filled in; the inside of `http`.
fn conf(http: &str) -> String {
    // Debian's nginx knows TLS 1.3, but does not speak it unless told.
    let versions = if http.split_whitespace().any(|word| word == "ssl_protocols") {
        ""
    } else {
        "ssl_protocols TLSv1.2 TLSv1.3;"
    };
    let text = format!(
        "worker_processes 2; error_log {{prefix}}/error.log info; events {{ }}
        http {{ {{temp_paths}} {versions} access_log {{prefix}}/access.log; {http} }}"
    );
    text.replace("{certs}", &certificates().display().to_string())
}

/// A server of those that speak TLS, with the P-256 certificate; `more` may say otherwise.
fn server(more: &str) -> String {
    let own = if more.contains("ssl_certificate ") {
        ""
    } else {
        "ssl_certificate {certs}/ec.pem; ssl_certificate_key {certs}/ec.key;"
    };
    format!("server {{ listen 127.0.0.1:{{port}} ssl; {own} {more} }}")
}

fn builder(kind: Kind, http: &str) -> forebay_testkit::server::Builder {
    let builder = Server::builder(kind, &conf(http));
    match kind {
        Kind::Forebay => builder.binary(env!("CARGO_BIN_EXE_forebay")),
        Kind::Nginx => builder,
    }
}

fn forebay(http: &str) -> Server {
    builder(Kind::Forebay, http).start().unwrap_or_else(|error| panic!("{error}"))
}

/// Whether a program is there; what needs one that is not is left out, but not where all must be.
fn have(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok()
        || program == "nginx" && binary(Kind::Nginx).is_some();
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{program} is not installed");
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// What both servers do under one configuration; without nginx only Forebay is asked.
fn both(http: &str, play: impl Fn(&Server) -> String) -> [String; 2] {
    let ours = play(&forebay(http));
    let theirs = match have("nginx") {
        true => play(&builder(Kind::Nginx, http).start().unwrap_or_else(|error| panic!("{error}"))),
        false => ours.clone(),
    };
    [ours, theirs]
}

/// Asks with curl: what came, and in which words it failed if it did. `{port}` and `{certs}` in the
/// words are filled in.
fn curl(server: &Server, words: &[&str]) -> String {
    let port = server.addr().port().to_string();
    let certs = certificates().display().to_string();
    let hosts = ["localhost", "a.test", "b.test", "c.test", "d.test", "other.example"];
    let mut command = Command::new("curl");
    command.args(["-s", "-S", "--max-time", "20"]);
    for host in hosts {
        command.args(["--resolve", &format!("{host}:{port}:127.0.0.1")]);
    }
    for word in words {
        command.arg(word.replace("{port}", &port).replace("{certs}", &certs));
    }
    let Output { stdout, stderr, .. } = command.output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned();
    match text.is_empty() {
        true => String::from_utf8_lossy(&stderr).replace(&port, "{port}"),
        false => text.replace(&port, "{port}"),
    }
}

/// Runs `openssl s_client` against the server with some text on its input; what it printed.
fn s_client(server: &Server, words: &[&str], input: &str) -> String {
    let certs = certificates().display().to_string();
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", &server.addr().to_string()])
        .args(words.iter().map(|word| word.replace("{certs}", &certs)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(mut stdin) = child.stdin.take() {
        // It may have ended already.
        let _ = stdin.write_all(input.as_bytes());
        if !input.is_empty() {
            // It ends with its input, answered or not: the server closes first.
            let _ = stdin.flush();
            let output = wait_closed(child, stdin);
            return output;
        }
    }
    let Output { stdout, stderr, .. } = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
}

fn wait_closed(child: std::process::Child, stdin: std::process::ChildStdin) -> String {
    let Output { stdout, stderr, .. } = child.wait_with_output().unwrap();
    drop(stdin);
    String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
}

/// A request after which the server closes.
fn request(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

/// Waits for a line of the error log that holds a text, and answers what stands in it from there on to
/// the next comma.
fn logged(server: &Server, text: &str) -> String {
    let found = wait_for(|| server.error_log().contains(text), LIMIT);
    assert!(found, "{text}: {}", server.error_log());
    let log = server.error_log();
    let line = log.lines().find(|line| line.contains(text)).unwrap_or_default();
    line[line.find(text).unwrap_or(0)..].to_owned()
}
