//! Full disks: under logs requests are served, and the error log is not filled with it; under request
//! bodies the request that needs the room gets 500, and no other.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::origin::Origin;
use forebay_testkit::raw::Client;
use forebay_testkit::tempdir::TempDir;
use forebay_testkit::wait_for;

use crate::{LIMIT, ask, ask_new, conf, is_nginx, pattern, start};

#[test]
fn a_full_disk_under_the_access_log_fails_no_request() {
    let server = start(&conf("", "access_log /dev/full;"));
    for _ in 0..200 {
        assert_eq!(ask_new(server.addr(), "/text").body, b"alive");
    }
    let text = "write() to \"/dev/full\" failed (28: No space left on device)";
    let count = || server.error_log().matches(text).count();
    assert!(wait_for(|| count() > 0, LIMIT), "{}", server.error_log());
    // Once a minute for each log (ngx_http_log_write).
    assert!(count() <= 3, "told {} times", count());
}

#[test]
fn a_full_disk_under_a_buffered_access_log_fails_no_request() {
    let server = start(&conf("", "access_log /dev/full combined buffer=4k flush=1s;"));
    for _ in 0..200 {
        assert_eq!(ask_new(server.addr(), "/text").body, b"alive");
    }
    let text = "write() to \"/dev/full\" failed (28: No space left on device)";
    assert!(wait_for(|| server.error_log().contains(text), LIMIT), "{}", server.error_log());
}

#[test]
fn a_full_disk_under_the_error_log_fails_no_request() {
    let text = conf("", "location /missing { return 404; }");
    let server = start(&text.replace("{prefix}/error.log notice", "/dev/full info"));
    for _ in 0..100 {
        ask_new(server.addr(), "/text");
    }
}

#[test]
fn a_log_that_is_a_pipe_without_a_reader_holds_up_nobody() {
    if is_nginx() {
        return;
    }
    let server = start(&conf("", "location /log { access_log {prefix}/$arg_to.log; return 204; }"));
    let pipe = server.prefix().join("pipe.log");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).expect("mkfifo");
    // Whatever the mask: the worker may be somebody else.
    std::fs::set_permissions(&pipe, Permissions::from_mode(0o666)).expect("chmod");
    let mut client = Client::connect(server.addr()).expect("connect");
    assert_eq!(ask(&mut client, "/log?to=pipe").expect("response").status, 204);
    assert_eq!(ask_new(server.addr(), "/text").body, b"alive");
    let text = "pipe.log\" failed (6: No such device or address) while logging request";
    assert!(wait_for(|| server.error_log().contains(text), LIMIT), "{}", server.error_log());
}

#[test]
fn temporary_directories_are_made_with_their_parents() {
    if is_nginx() {
        return;
    }
    let server = start(&conf("", "client_body_temp_path {prefix}/a/b/c 1 2;"));
    ask_new(server.addr(), "/text");
    // Whatever the workers' user is, it gets there.
    for (path, mode) in [("a", 0o755), ("a/b", 0o755), ("a/b/c", 0o700)] {
        let found = std::fs::metadata(server.prefix().join(path)).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, mode, "{path}");
    }
}

/// A disk of 64 kB, where this process may mount one.
struct SmallDisk {
    path: PathBuf,
    _dir: TempDir,
}

impl SmallDisk {
    fn mount() -> Option<SmallDisk> {
        let dir = TempDir::new().expect("directory");
        let path = dir.path().join("disk");
        std::fs::create_dir(&path).expect("directory");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=64k,mode=0777", "tmpfs"]).arg(&path);
        if !command.output().is_ok_and(|output| output.status.success()) {
            println!("SKIPPED: a small disk cannot be mounted here");
            return None;
        }
        Some(SmallDisk { path, _dir: dir })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

fn post(client: &mut Client, len: usize) -> u16 {
    let head = format!("POST /upload HTTP/1.1\r\nHost: test\r\nContent-Length: {len}\r\n\r\n");
    client.send(head.as_bytes()).expect("send");
    // The server may answer and close before it has read everything.
    let _ = client.send(&pattern(len));
    client.read_response(false).expect("response").status
}

#[test]
fn a_full_disk_under_a_request_body_fails_that_request_only() {
    let Some(disk) = SmallDisk::mount() else { return };
    let inside = format!(
        "client_body_temp_path {}; client_body_buffer_size 8k; client_max_body_size 10m;
        location = /upload {{ mirror /copy; error_page 405 =200 /text; }}
        location = /copy {{ internal; }}",
        disk.path().display()
    );
    let server = start(&conf("", &inside));
    std::fs::write(server.root().join("upload"), "x").expect("file");
    for _ in 0..3 {
        // What fits is taken, before and after.
        let mut client = Client::connect(server.addr()).expect("connect");
        assert_eq!(post(&mut client, 20_000), 200, "{}", server.error_log());
        let mut client = Client::connect(server.addr()).expect("connect");
        assert_eq!(post(&mut client, 1_000_000), 500, "{}", server.error_log());
        ask_new(server.addr(), "/text");
    }
    let text = " failed (28: No space left on device)";
    assert!(wait_for(|| server.error_log().contains(text), LIMIT), "{}", server.error_log());
    // Nothing stays behind.
    let left = || files_below(disk.path());
    assert!(wait_for(|| left() == 0, LIMIT), "{} files are left", left());
}

fn files_below(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.map(|path| if path.is_dir() { files_below(&path) } else { 1 }).sum()
}

/// Blocks that are free.
fn free(disk: &Path) -> u64 {
    let output = Command::new("stat").args(["-f", "-c", "%a"]).arg(disk).output().expect("stat");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

#[test]
fn a_full_disk_under_a_response_slows_its_server_and_loses_nothing() {
    // nginx breaks such a response off.
    let Some(disk) = SmallDisk::mount().filter(|_| !is_nginx()) else { return };
    let body = pattern(8 << 20);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let origin = Origin::answering([head.as_bytes(), &body].concat());
    let inside = format!(
        "location = /big {{ proxy_pass http://{}; proxy_temp_path {}; }}",
        origin.addr(),
        disk.path().display()
    );
    let server = start(&conf("", &inside));
    for _ in 0..2 {
        let mut client = Client::connect(server.addr()).expect("connect");
        client.send(b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n").expect("send");
        assert!(wait_for(|| free(disk.path()) == 0, LIMIT), "{}", server.error_log());
        ask_new(server.addr(), "/text");
        assert!(client.read_response(false).expect("response").body == body);
        // Its room is free again.
        assert!(wait_for(|| free(disk.path()) > 0, LIMIT));
    }
    let text = " failed (28: No space left on device) while reading upstream";
    assert!(wait_for(|| server.error_log().contains(text), LIMIT), "{}", server.error_log());
}
