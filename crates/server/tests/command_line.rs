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
    std::fs::create_dir(path("logs")).unwrap();
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
fn mistakes_in_directives_are_told_as_by_nginx() {
    let Some(nginx) = binary(Kind::Nginx) else {
        eprintln!("skipped: no nginx here");
        return;
    };
    let mut failures = String::new();
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
        "events { debug_connection no-such-host.invalid; }",
        "events { debug_connection 10.0.0.0/8; debug_connection unix:; debug_connection ::1; }",
        "events {} http { worker_processes 1; }",
        "events {} http { server { daemon on; events {} } }",
        "events {} http { server { location / { http {} } } }",
        "events {} http { types_hash_max_size x; }",
        "events {} http { variables_hash_bucket_size 1k; }",
        "events {} http { server_names_hash_max_size on; }",
        "events {} http { map_hash_max_size 1k; }",
        "events {} http { connection_pool_size x; }",
        "events {} http { request_pool_size -1; }",
        "events {} http { send_lowat x; }",
        "events {} http { aio 1; }",
        "events {} http { aio threads=; }",
        "events {} http { client_body_temp_path a b c; }",
        "events {} http { client_max_body_size 1g; directio 2G; directio_alignment 1g; }",
        "events {} http { client_max_body_size 1t; }",
        "events {} http { client_body_buffer_size 1g; }",
        "events {} http { keepalive_timeout x; }",
        "events {} http { keepalive_timeout 1 x; }",
        "events {} http { keepalive_disable msie6 safari none; }",
        "events {} http { keepalive_disable none msie6; }",
        "events {} http { keepalive_disable msie6 msie6; }",
        "events {} http { keepalive_disable msie6; keepalive_disable safari; }",
        "events {} http { keepalive_disable lynx; }",
        "events {} http { keepalive_requests 9223372036854775807; }",
        "events {} http { keepalive_requests 9223372036854775808; }",
        "events {} http { open_file_cache off off; }",
        "events {} http { open_file_cache off max=1; }",
        "events {} http { open_file_cache off max=x; }",
        "events {} http { ssl_session_cache off; ssl_session_cache shared:a:1m builtin; }",
        "events {} http { ssl_session_cache builtin:x; }",
        "events {} http { http2_max_concurrent_streams 0; }",
        "events {} http { access_log ''; error_log ''; }",
        "events {} http { access_log '' combined buffer=1k; }",
        "events {} http { access_log '' foo; }",
        "events {} http { resolver unix:; }",
        "error_log ''; events {}",
        "events {} http { limit_rate x; }",
        "events {} http { limit_rate_after 1g; }",
        "events {} http { open_file_cache_valid 1M; }",
        "events {} http { open_file_cache_valid 500ms; }",
        "events {} http { open_file_cache max=+1; }",
        "events {} http { ssi_value_length 1k; }",
        "events {} http { ssi_value_length 1g; }",
        "events {} http { expires 1h 2h; }",
        "events {} http { error_page = /x; }",
        "events {} http { error_page =200 /x; }",
        "events {} http { error_page +404 /x; }",
        "events {} http { server { listen +1; } }",
        "events {} http { server { listen a/b; } }",
        "events {} http { server { listen 127.0.0.1:+80; } }",
        "events {} http { server { listen 127.0.0.1:1 fastopen=-1; } }",
        "events {} http { server { listen 127.0.0.1:1 backlog=-1; } }",
        "events {} http { server { listen 127.0.0.1:1 backlog=0; } }",
        "events {} http { server { listen 127.0.0.1:1 so_keepalive=1:2:+3; } }",
        "events {} http { server { listen 127.0.0.1:1 rcvbuf=x; } }",
        "events {} http { server { listen 127.0.0.1:1 sndbuf=1g; } }",
        "events {} http { server { listen 127.0.0.1:1 ipv6only=x; } }",
        "events {} http { server { listen 127.0.0.1:1 ipv6only=on; } }",
        "events {} http { server { listen [::1]:1 ipv6only=on reuseport; } }",
        "events {} http { server { listen 127.0.0.1:1 so_keepalive=; } }",
        "events {} http { server { listen 127.0.0.1:1 so_keepalive=::; } }",
        "events {} http { server { listen 127.0.0.1:1 so_keepalive=1:2; } }",
        "events {} http { server { listen 127.0.0.1:1 setfib=1; } }",
        "events {} http { server { listen 127.0.0.1:1 default_server; } \
         server { listen 127.0.0.1:1 default_server; } }",
        "events {} http { server { listen 127.0.0.1:1; listen 127.0.0.1:1; } }",
        "events {} http { server { listen 127.0.0.1:1 backlog=5; } \
         server { listen 127.0.0.1:1 backlog=6; } }",
        "events {} http { server { listen unix:; } }",
        "events {} http { server { listen [::1; } }",
        "events {} http { server { listen [::1]x; } }",
        "events {} http { server { listen [:::1]:1; } }",
        "events {} http { server { listen :80; } }",
        "events {} http { server { listen 127.0.0.1:0; } }",
        "events {} http { server { listen 127.0.0.1:65536; } }",
        "events {} http { server { listen 0; } }",
        "events {} http { server { listen x/y z; } }",
        "events {} http { server { listen 127.0.0.1:1; server_name a/b ~/c; } }",
        "events {} http { server { server_name *; } }",
        "events {} http { server { server_name .; } }",
        "events {} http { server { server_name *.; } }",
        "events {} http { server { listen 127.0.0.1:1; server_name a.*.b a..b; } }",
        "events {} http { server { listen 127.0.0.1:1; server_name a.*.b; } \
         server { listen 127.0.0.1:1; } }",
        "events {} http { server { listen 127.0.0.1:1; } \
         server { listen 127.0.0.1:1; server_name a..b; } }",
        "events {} http { server { location ~ a { location /b { } } } }",
        "events {} http { server { location ~ /a { location /a/b { } } } }",
        "events {} http { server { server_name ~; } }",
        "events {} http { error_page 499 /x; }",
        "events {} http { types_hash_max_size 512; types_hash_max_size 512; }",
        "events {} http { types_hash_max_size 512; server { types_hash_max_size 512; } }",
        "events {} http { request_pool_size 1k; request_pool_size 1k; }",
        "events {} http { request_pool_size 111; }",
        "events {} http { request_pool_size 112; }",
        "events {} http { request_pool_size 120; }",
        "events {} http { connection_pool_size 8; }",
        "events {} http { server { location @x { } location @x { } } }",
        "events {} http { split_clients $uri $a { 10% a b; * c; } }",
        "events {} http { server { proxy_cookie_flags on; } }",
        "events {} http { server { proxy_cookie_flags off; } }",
        "events {} http { proxy_busy_buffers_size 2k; }",
        "events {} http { proxy_busy_buffers_size 2k; server { } }",
        "events {} http { proxy_busy_buffers_size 2k; server { proxy_busy_buffers_size 8k; } }",
        "events {} http { server { proxy_buffers 1 4k; } }",
        "events {} http { server { location / { proxy_buffers 8 1k; } } }",
        "events {} http { server { location / { proxy_buffer_size 64k; } } }",
        "events {} http { server { location / { if ($uri) { proxy_buffers 8 1k; } } } }",
        "events {} http { server { proxy_busy_buffers_size 32k; location / { } } }",
        "events {} http { server { proxy_temp_file_write_size 2k; location / { } } }",
        "events {} http { server { proxy_max_temp_file_size 2k; location / { } } }",
        "events {} http { server { proxy_max_temp_file_size 0; location / { } } }",
        "events {} http { proxy_buffer_size 64k; server { proxy_buffers 16 16k; } }",
        "events {} http { open_file_cache_events on; open_file_cache_events on; }",
        "events {} http { disable_symlinks off from=$document_root; }",
        "events {} http { types { text/html html; text/plain Html; } }",
        "events {} http { server { return 200 ${; } }",
        "events {} http { server { return 200 ${a; } }",
        "events {} http { server { return 200 ${}; } }",
        "events {} http { server { location ~ ( { } } }",
        "events {} http { server { location ~ [a { } } }",
        "events { worker_connections 0; } http { server { listen 127.0.0.1:1; } }",
        "events { worker_connections 1; } http { server { listen 127.0.0.1:1; } }",
        "events {} http { modern_browser_value a; modern_browser_value b; }",
        "events {} http { ancient_browser_value a; ancient_browser_value b; }",
        "events {} http { modern_browser lynx x; }",
        "events {} http { userid_flags off off off off; }",
        "events {} http { userid_mark on; }",
        "events {} http { client_body_temp_path b 5 5; }",
        "events {} http { client_body_temp_path b 5 6; }",
        "events {} http { client_body_temp_path b 0; }",
        "events {} http { client_body_temp_path b 1 x; }",
        "events {} http { proxy_temp_path p 10; }",
        "events {} http { proxy_temp_path p 3 1.5; }",
        "events {} http { proxy_bind a 1.5; }",
        "events {} http { proxy_bind 127.0.0.1 1.5; }",
        "events {} http { http2_recv_buffer_size 5; }",
        "events {} http { server { http2_body_preread_size 2147483648; } }",
        "events {} http { server { listen 127.0.0.1:1; server_name a a; } }",
        "events {} http { server { listen 127.0.0.1:3-1; } }",
        "events {} http { server { listen 3-1; } }",
        "events {} http { server { listen [::1]:1-x; } }",
        "events {} http { server { listen *:1-0; } }",
        "events {} http { server { listen *:-2; } }",
        "events {} http { server { listen 1-65536; } }",
        "events {} http { server { listen 1-; } }",
        "events {} http { server { listen 127.0.0.1:1-3; listen 127.0.0.1:2; } }",
        "events {} http { map $uri $x { ~(a 1; } }",
        "events {} http { server { if ($uri ~ '(?<n>a') { } } }",
        "events {} http { disable_symlinks on from=; }",
        "events {} http { disable_symlinks on off; }",
        "events {} http { disable_symlinks off from=; }",
        "events {} http { disable_symlinks from=x; }",
        "events {} http { send_lowat 1; }",
        "events {} http { proxy_send_lowat 1; }",
        "events {} http { server { connection_pool_size 8208; } }",
        "events {} http { server { large_client_header_buffers 4 511; } }",
        "events {} http { server { large_client_header_buffers 4 512; } }",
        "events {} http { server { listen UNIX:x; } }",
        "events {} http { server { listen 99999999999999999999; } }",
        "events {} http { upstream u { server ::1; } }",
        "events {} http { upstream u { server []:x; } }",
        "events {} http { upstream u { server [::1]x; } }",
        "events {} http { upstream u { server []; } }",
        "events {} http { resolver http://x/; }",
        "events {} http { resolver 10.0.0.0/33; }",
        "events { debug_connection 10.0.0.1/8; }",
        "events {} http { proxy_bind [::1]; }",
        "events {} http { client_body_temp_path p 1 2; proxy_temp_path p; }",
        "events {} http { client_body_temp_path p 1 2; proxy_temp_path p 1 2; }",
        "events {} http { client_body_temp_path nginx.conf; }",
        "pid ''; events {}",
        "pid ''; pid x; events {}",
        "events {} http { geo $x x { } }",
        "events {} http { map $nosuch $x { ~( 1; } }",
        "events {} http { log_format a $nosuch; log_format a b; }",
        "events {} http { limit_req_zone $nosuch zone=a:x rate=y; }",
        "events {} http { server { if ($nosuch ~ '(') { } } }",
        "events {} http { proxy_busy_buffers_size 2k; server { foo; } }",
        "worker_processes x; events {} http { server { return 200 $nosuch; } }",
        "events {} http { server { location ~ a** { } } }",
        "events {} http { server { location ~ x+{2}y { } } }",
        "events {} http { server { location ~* '^/[[:foo:]]' { } } }",
        "events {} http { map $uri $x { '~(?P<1>a)' 1; } }",
        "events {} http { server { server_name ~^a)b$; } }",
        "events {} http { server { if ($uri ~ '[z-a]x') { } } }",
        r"events {} http { server { if ($uri ~ 'a\ib') { } } }",
        r"events {} http { server { rewrite '(a)\2b' /; } }",
        "events {} http { server { location ~ 'a{99999}b' { } } }",
        "events {} http { server { location ~ 'é(?z)é' { } } }",
    ] {
        let ((ours, code), (theirs, their_code)) =
            (tested(Path::new(FOREBAY), text), tested(&nginx, text));
        // nginx stops at the first error, where we go on.
        let first = |lines: &[String]| {
            let error = lines.iter().find(|line| line.contains("[emerg]"));
            let line = error.or(lines.iter().find(|line| line.contains("[warn]"))).cloned();
            line.unwrap_or_else(|| lines.join("\n"))
        };
        let (ours, theirs) = (first(&ours), first(&theirs));
        if (&ours, code) != (&theirs, their_code) {
            failures.push_str(&format!(
                "{text}\n  forebay {code:?} {ours}\n  nginx {their_code:?} {theirs}\n"
            ));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn a_configuration_file_that_is_a_directory_is_critical() {
    let dir = TempDir::new().unwrap();
    let prefix = format!("{}/", dir.path().display());
    std::fs::create_dir(dir.path().join("d")).unwrap();
    let told = |program: &Path| {
        let output = run(program, &["-t", "-p", &prefix, "-c", "d", "-e", "e"]);
        let lines = stderr(&output);
        let line = lines.lines().find(|line| line.contains("pread")).map(str::to_owned);
        (line, output.status.code())
    };
    let expected = format!("nginx: [crit] pread() \"{prefix}d\" failed (21: Is a directory)");
    assert_eq!(told(Path::new(FOREBAY)), (Some(expected), Some(1)));
    if let Some(nginx) = binary(Kind::Nginx) {
        assert_eq!(told(&nginx), told(Path::new(FOREBAY)));
    }
}

#[test]
fn findings_about_the_whole_have_a_place() {
    for (inside, finding) in [
        ("server { return 200 $nobody; }", "unknown \"nobody\" variable"),
        (
            "variables_hash_bucket_size 0;",
            "could not build variables_hash, you should increase variables_hash_bucket_size: 0",
        ),
        (
            "variables_hash_bucket_size 65473;",
            "could not build variables_hash, too large variables_hash_bucket_size: 65536",
        ),
        (
            "variables_hash_max_size 0;",
            "could not build variables_hash, you should increase variables_hash_max_size: 0",
        ),
        ("server { } server { }", "conflicting server name \"\" on 0.0.0.0:80, ignored"),
    ] {
        let text = format!("events {{}} http {{ {inside} }}");
        let told = |program: &Path| tested(program, &text).0.into_iter().next().unwrap_or_default();
        let ours = told(Path::new(FOREBAY));
        let without_place = ours.strip_suffix(" in PREFIX/nginx.conf:1").expect(&ours);
        assert!(without_place.ends_with(&format!("] {finding}")), "{ours}");
        if let Some(nginx) = binary(Kind::Nginx) {
            assert_eq!(told(&nginx), without_place);
        }
    }
}

#[test]
fn of_an_unquoted_brace_only_the_cause_is_told() {
    let Some(nginx) = binary(Kind::Nginx) else {
        eprintln!("skipped: no nginx here");
        return;
    };
    for inside in [
        "location / { rewrite ^/a{2}$ /b; }",
        "location / { if ($uri ~ ^/a{2}) { return 200; } }",
        "location ~ ^/[a-z]{3}$ { return 200 x; }",
        r"rewrite ^/(\d{4})/ /y last;",
        "if ($uri ~ a{2,3}b) { return 403; }",
        "location / { return 200 }x; }",
        "location / { return 200 {x}; }",
        "set $x {; return 200 x;",
        "set $x }; return 200 x;",
        "location / { root /a }",
    ] {
        let text = format!("events {{}}\nhttp {{\nserver {{\n{inside}\n}}\n}}\n");
        let errors = |program: &Path| {
            let (lines, code) = tested(program, &text);
            let errors: Vec<_> =
                lines.into_iter().filter(|line| line.contains("[emerg]")).collect();
            (errors, code)
        };
        assert_eq!(errors(Path::new(FOREBAY)), errors(&nginx), "{inside}");
    }
}

#[test]
fn dump_is_nginx_s() {
    let dir = TempDir::new().unwrap();
    let prefix = format!("{}/", dir.path().display());
    std::fs::write(dir.path().join("nginx.conf"), "events { use epoll; }\ninclude more.conf;\n")
        .unwrap();
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
fn a_test_sends_no_signal() {
    let dir = TempDir::new().unwrap();
    let prefix = format!("{}/", dir.path().display());
    std::fs::write(dir.path().join("nginx.conf"), "events {}\n").unwrap();
    let globals = format!("pid {prefix}pid;");
    let args =
        ["-t", "-q", "-s", "stop", "-p", &prefix, "-c", "nginx.conf", "-e", "e", "-g", &globals];
    for program in [Some(Path::new(FOREBAY).to_owned()), binary(Kind::Nginx)].iter().flatten() {
        let output = run(program, &args);
        assert_eq!((stderr(&output).as_str(), output.status.code()), ("", Some(0)));
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
