//! Files that are truncated, replaced or removed while they are sent.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use forebay_testkit::{Server, wait_for};

use crate::{LIMIT, ask_new, conf, narrow, pattern, request, start};

/// More than all socket buffers between server and client hold.
const LEN: usize = 16 << 20;

/// The ways of sending a file that differ in what they see of a change.
const WAYS: &[&str] = &[
    "sendfile on;",
    "sendfile off;",
    "sendfile on; tcp_nopush on; open_file_cache max=10;",
    "sendfile on; gzip off; sendfile_max_chunk 64k;",
];

/// Asks for a big file and reads the beginning of the answer.
fn begin(server: &Server) -> TcpStream {
    let mut stream = narrow(server.addr());
    stream.write_all(&request("/big")).expect("send");
    let mut start = [0; 15];
    stream.read_exact(&mut start).expect("response");
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    stream
}

/// The rest of the answer; the body begins after its head.
fn body(mut stream: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let mut piece = vec![0; 1 << 16];
    let mut wanted = None;
    while wanted.is_none_or(|wanted| rest.len() < wanted) {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(n) => rest.extend_from_slice(&piece[..n]),
        }
        let end = rest.windows(4).take(2048).position(|window| window == b"\r\n\r\n");
        wanted = end.map(|end| end + 4 + LEN);
    }
    let end = rest.windows(4).position(|window| window == b"\r\n\r\n").expect("head");
    rest.split_off(end + 4)
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("file");
}

#[test]
fn a_file_that_is_removed_is_sent_to_its_end() {
    for way in WAYS {
        let server = start(&conf("", way));
        let path = server.root().join("big");
        write(&path, &pattern(LEN));
        let stream = begin(&server);
        fs::remove_file(&path).expect("remove");
        assert!(body(stream) == pattern(LEN), "{way}");
        ask_new(server.addr(), "/text");
    }
}

#[test]
fn a_file_that_is_replaced_is_sent_as_it_was() {
    for way in WAYS {
        let server = start(&conf("", way));
        let path = server.root().join("big");
        write(&path, &pattern(LEN));
        let stream = begin(&server);
        write(&server.root().join("new"), b"new");
        fs::rename(server.root().join("new"), &path).expect("rename");
        assert!(body(stream) == pattern(LEN), "{way}");
        if !way.contains("open_file_cache") {
            assert_eq!(ask_new(server.addr(), "/big").body, b"new");
        }
    }
}

#[test]
fn a_file_that_is_truncated_ends_the_connection_and_nothing_else() {
    for way in WAYS {
        let server = start(&conf("", way));
        let path = server.root().join("big");
        write(&path, &pattern(LEN));
        let stream = begin(&server);
        let worker = server.worker_pids();
        let file = fs::File::options().write(true).open(&path).expect("open");
        // To nothing: of a page that is cut in two (it may be as large as 2 MB), the kernel blanks the
        // rest even where it waits to be sent.
        file.set_len(0).expect("truncate");
        let got = body(stream);
        // What had left came as it was; no byte stands for one that is no longer there.
        assert!(got.len() < LEN && pattern(LEN).starts_with(&got), "{way}: {} bytes", got.len());
        let path = path.display();
        // ngx_linux_sendfile and ngx_output_chain_copy_buf.
        let told = || {
            let log = server.error_log();
            log.contains(&format!("sendfile() reported that \"{path}\" was truncated at "))
                || log.contains(&format!("pread() read only 0 of 32768 from \"{path}\""))
        };
        assert!(wait_for(told, LIMIT), "{way}: {}", server.error_log());
        ask_new(server.addr(), "/text");
        if !way.contains("open_file_cache") {
            assert_eq!(ask_new(server.addr(), "/big").body, b"", "{way}");
        }
        assert_eq!(server.worker_pids(), worker);
    }
}

#[test]
fn a_small_file_that_changes_is_answered_old_or_new_but_never_mixed() {
    let server = start(&conf("", "open_file_cache max=10; open_file_cache_valid 1s;"));
    let (old, new) = (vec![b'o'; 600], vec![b'n'; 900]);
    let path = server.root().join("small");
    write(&path, &old);
    assert_eq!(ask_new(server.addr(), "/small").body, old);
    let other = server.root().join("other");
    let mut last = Vec::new();
    let fresh = wait_for(
        || {
            write(&other, &new);
            fs::rename(&other, &path).expect("rename");
            last = ask_new(server.addr(), "/small").body;
            assert!(last == old || last == new, "{}", last.escape_ascii());
            last == new
        },
        LIMIT,
    );
    assert!(fresh);
}
