//! Full disks under logs: requests are served, and the error log is not filled with it.

use forebay_testkit::wait_for;

use crate::{LIMIT, ask_new, conf, is_nginx, start};

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
fn temporary_directories_are_made_with_their_parents() {
    if is_nginx() {
        return;
    }
    let server = start(&conf("", "client_body_temp_path {prefix}/a/b/c 1 2;"));
    ask_new(server.addr(), "/text");
    assert!(server.prefix().join("a/b/c").is_dir());
}
