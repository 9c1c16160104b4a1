//! The command line beside nginx's: what both say to the same arguments and the same mistakes in
//! the directives outside `http`.

use std::path::Path;
use std::process::{Command, Output};

use forebay_testkit::server::binary;
use forebay_testkit::tempdir::TempDir;
use forebay_testkit::{Kind, wait_for};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

fn run(program: &Path, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn mistakes_in_options_are_answered_as_by_nginx() {
    let Some(nginx) = binary(Kind::Nginx) else {
        eprintln!("skipped: no nginx here");
        return;
    };
    for args in [
        &["-x"][..],
        &["-hx"],
        &["-t", "foo"],
        &["-c"],
        &["-tc"],
        &["-p"],
        &["-e"],
        &["-g"],
        &["-s"],
        &["-s", "foo"],
        &["-sfoo"],
        &["-"],
        &["--foo"],
    ] {
        // A lone "-" starts the server with its own files; only its neighbours can be compared.
        if args == ["-"] {
            continue;
        }
        let (ours, theirs) = (run(Path::new(FOREBAY), args), run(&nginx, args));
        assert_eq!(stderr(&ours), stderr(&theirs), "{args:?}");
        assert_eq!(ours.status.code(), theirs.status.code(), "{args:?}");
        assert!(ours.stdout.is_empty() && theirs.stdout.is_empty());
    }
}

#[test]
fn version_and_help_have_nginx_s_form() {
    let version = run(Path::new(FOREBAY), &["-v"]);
    let line = stderr(&version);
    assert!(line.starts_with("nginx version: nginx/1.31.5 (forebay/"), "{line}");
    assert!(line.ends_with(")\n") && line.lines().count() == 1 && version.status.success());
    let configure = stderr(&run(Path::new(FOREBAY), &["-V"]));
    let mut lines = configure.lines();
    assert_eq!(lines.next(), line.lines().next());
    assert!(lines.next().unwrap().starts_with("built with rustc "));
    assert!(lines.next().unwrap().starts_with("built with "));
    assert_eq!(lines.next(), Some("TLS SNI support enabled"));
    assert!(lines.next().unwrap().starts_with("configure arguments: --prefix="));
    let Some(nginx) = binary(Kind::Nginx) else {
        eprintln!("skipped: no nginx here");
        return;
    };
    // But for the version and the paths, which are those of a package.
    let without_paths = |text: String| {
        let lines = text.lines().skip(1).map(|line| line.split("(default: ").next().unwrap_or(""));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let ours = without_paths(stderr(&run(Path::new(FOREBAY), &["-h"])));
    assert_eq!(ours, without_paths(stderr(&run(&nginx, &["-h"]))));
}

/// Runs `-t` on a configuration, in a directory of its own; answers nginx's lines, without the
/// place in the file and without what only we say.
fn tested(program: &Path, text: &str) -> (Vec<String>, Option<i32>) {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("nginx.conf"), text).unwrap();
    let globals = format!("pid {};", path("pid"));
    let prefix = format!("{}/", dir.path().display());
    let args = ["-t", "-p", &prefix, "-c", "nginx.conf", "-e", "error.log", "-g", &globals];
    let output = run(program, &args);
    let lines = stderr(&output);
    let lines =
        lines.lines().filter(|line| line.starts_with("nginx: ") && !line.contains("[info]"));
    let lines = lines.map(|line| line.replace(&prefix, "PREFIX/")).collect();
    (lines, output.status.code())
}

#[test]
fn mistakes_in_core_directives_are_told_as_by_nginx() {
    let Some(nginx) = binary(Kind::Nginx) else {
        eprintln!("skipped: no nginx here");
        return;
    };
    for text in [
        "events {}",
        "",
        "foo",
        "foo;",
        "events {} foo bar;",
        "daemon x; events {}",
        "daemon on; daemon on; events {}",
        "events {} events {}",
        "events { use kqueue; }",
        "events { worker_connections x; }",
        "events { worker_connections 1; worker_connections 2; }",
        "events { multi_accept maybe; }",
        "events { daemon on; }",
        "multi_accept on; events {}",
        "thread_pool x; events {}",
        "thread_pool x threads=0; events {}",
        "thread_pool x threads=2 max_queue=x; events {}",
        "thread_pool x max_queue=3; events {}",
        "thread_pool x threads=1; thread_pool x threads=1; events {}",
        "worker_processes x; events {}",
        "worker_processes -1; events {}",
        "worker_processes auto; worker_processes 1; events {}",
        "worker_priority x; events {}",
        "worker_priority -x; events {}",
        "worker_cpu_affinity 01a; events {}",
        "worker_cpu_affinity auto 01 01; events {}",
        "worker_cpu_affinity; events {}",
        "worker_processes 2; worker_cpu_affinity 01 10 11; events {}",
        "worker_rlimit_core x; events {}",
        "worker_rlimit_nofile x; events {}",
        "worker_shutdown_timeout x; events {}",
        "worker_shutdown_timeout 1x; events {}",
        "timer_resolution x; events {}",
        "user no-such-user; events {}",
        "user root no-such-group; events {}",
        "user root root; user root; events {}",
        "error_log e foo; events {}",
        "error_log missing/e; events {}",
        "error_log e info; events {}",
        "pid x; events {}",
        "env A=1; env B; events {}",
        "lock_file x; lock_file y; events {}",
        "working_directory /nonexistent; events {}",
        "debug_points foo bar; events {}",
        "http {} http {} events {}",
        "http {",
        "events {} }",
        "worker_rlimit_nofile 10; events { worker_connections 11; }",
        "include missing.conf; events {}",
        "include missing/*.conf; events {}",
    ] {
        let ((ours, code), (theirs, their_code)) =
            (tested(Path::new(FOREBAY), text), tested(&nginx, text));
        assert_eq!(code, their_code, "{text}: {ours:?} {theirs:?}");
        // nginx stops at the first error, where we go on.
        let first = |lines: &[String]| {
            let error = lines.iter().find(|line| line.contains("[emerg]"));
            let line = error.or(lines.iter().find(|line| line.contains("[warn]"))).cloned();
            line.unwrap_or_else(|| lines.join("\n"))
        };
        assert_eq!(first(&ours), first(&theirs), "{text}");
    }
}

#[test]
fn dump_is_nginx_s() {
    let dir = TempDir::new().unwrap();
    let prefix = format!("{}/", dir.path().display());
    std::fs::write(dir.path().join("nginx.conf"), "events {}\ninclude more.conf;\n").unwrap();
    std::fs::write(dir.path().join("more.conf"), "worker_processes 1;\n").unwrap();
    let globals = format!("pid {prefix}pid;");
    let args = ["-T", "-q", "-p", &prefix, "-c", "nginx.conf", "-e", "e", "-g", &globals];
    let ours = run(Path::new(FOREBAY), &args);
    assert_eq!((stderr(&ours).as_str(), ours.status.code()), ("", Some(0)));
    if let Some(nginx) = binary(Kind::Nginx) {
        let text = |output: Output| String::from_utf8(output.stdout).unwrap();
        assert_eq!(text(ours), text(run(&nginx, &args)));
    }
}

#[test]
fn folder_is_served_until_interrupted() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("a.txt"), "text\n").unwrap();
    let out = dir.path().join("out");
    let mut child = Command::new(FOREBAY)
        .arg("serve")
        .arg(dir.path())
        .stdout(std::fs::File::create(&out).unwrap())
        .spawn()
        .unwrap();
    let url = || {
        let text = std::fs::read_to_string(&out).unwrap_or_default();
        text.lines().find_map(|line| line.trim().strip_prefix("http://").map(str::to_owned))
    };
    let limit = std::time::Duration::from_secs(20);
    let ready = wait_for(|| url().is_some() || child.try_wait().unwrap().is_some(), limit);
    let addr = url().filter(|_| ready).expect("a banner with the URL");
    let addr = addr.trim_end_matches('/').parse().unwrap();
    let mut client = forebay_testkit::raw::Client::connect(addr).unwrap();
    client.send(b"GET /a.txt HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let response = client.read_response(false).unwrap();
    assert_eq!((response.status, response.body.as_slice()), (200, &b"text\n"[..]));
    assert_eq!(response.header("Content-Type"), Some(&b"text/plain"[..]));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}
