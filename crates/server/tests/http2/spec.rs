//! h2spec, all of it, where it is installed.

use std::{path::PathBuf, process::Command};

use forebay_testkit::{Kind, Server, certs, tempdir::TempDir};

use crate::{conf, start};

/// `$H2SPEC`, on the path, or where `go install` puts it.
fn h2spec() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("H2SPEC") {
        return Some(path.into());
    }
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join("go/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.extend(home);
    dirs.into_iter().map(|dir| dir.join("h2spec")).find(|file| file.is_file())
}

/// Runs it against a port; whether it is there at all.
fn run(server: &Server, more: &[&str]) -> bool {
    let Some(h2spec) = h2spec() else {
        // No package of Debian's has it, so no machine must.
        eprintln!("skipped: h2spec is not installed");
        return false;
    };
    let port = server.addr().port().to_string();
    let mut command = Command::new(h2spec);
    command.args(["-S", "-h", "127.0.0.1", "-o", "5", "-p", &port]).args(more);
    let run = command.output().expect("h2spec runs");
    let text = String::from_utf8_lossy(&run.stdout);
    let failures = text.split("Failures:").nth(1).unwrap_or_default();
    assert!(run.status.success(), "{failures}");
    true
}

#[test]
fn h2spec_passes_whole() {
    run(&start(""), &[]);
}

#[test]
fn h2spec_passes_whole_over_tls() {
    let dir = TempDir::new().expect("a directory");
    certs::write(dir.path()).expect("certificates");
    let certs = dir.path().display();
    let tls = format!("ssl_certificate {certs}/ec.pem; ssl_certificate_key {certs}/ec.key;");
    let conf = conf(&tls).replace("listen 127.0.0.1:{port};", "listen 127.0.0.1:{port} ssl;");
    let server = Server::start(Kind::Forebay, &conf);
    if run(&server, &["-t", "-k"]) {
        let log = server.access_log();
        assert!(log.contains(" HTTP/2.0 h2 "), "{log}");
    }
}
