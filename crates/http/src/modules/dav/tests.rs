use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use forebay_testkit::tempdir::TempDir;

use super::*;
use crate::{engine, testing};

/// The client of a request whose body is this.
struct Sender(Option<&'static str>);

impl Client for Sender {
    fn poll_body(
        &mut self,
        _limit: u64,
        _timeout_ms: u64,
        _cx: &mut Context<'_>,
    ) -> Poll<Result<Option<bytes::Bytes>, crate::client::BodyError>> {
        Poll::Ready(Ok(self.0.take().map(bytes::Bytes::from)))
    }
}

/// A folder with `a`, `d/b`, `d/e/c`, and a link in `d` to a file outside.
fn folder() -> TempDir {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("d/e")).unwrap();
    for name in ["a", "d/b", "d/e/c"] {
        fs::write(root.join(name), name).unwrap();
    }
    fs::write(dir.path().join("outside"), "outside").unwrap();
    std::os::unix::fs::symlink(dir.path().join("outside"), root.join("d/link")).unwrap();
    fs::create_dir(dir.path().join("temp")).unwrap();
    dir
}

fn answer(dir: &TempDir, conf: &str, line: &str, fields: &str, body: Option<&'static str>) -> u16 {
    let path = dir.path().display();
    let conf = format!(
        "root {path}/root; client_body_temp_path {path}/temp; \
         location / {{ dav_methods PUT DELETE MKCOL COPY MOVE; {conf} }}"
    );
    let head = format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    let mut r = testing::request(&conf, &head);
    r.method = Method::of(line.split(' ').next().unwrap().as_bytes());
    let input = r.input_mut();
    input.host = b"h".to_vec();
    if let Some(body) = body {
        input.framing.body = BodyLength::Length(body.len() as u64);
    }
    let mut client = Sender(body);
    {
        let mut future = pin!(engine::answer(&mut r, &mut client));
        while future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {}
    }
    r.response.status
}

/// All that is in the folder, one a word.
fn list(dir: &TempDir) -> String {
    let mut names = Vec::new();
    let mut dirs = vec![dir.path().join("root")];
    while let Some(at) = dirs.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            let name = path.strip_prefix(dir.path().join("root")).unwrap().display().to_string();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(path);
            } else {
                names.push(name);
            }
        }
    }
    names.sort();
    names.join(" ")
}

#[test]
fn files_are_put() {
    for (conf, uri, want, names) in [
        ("", "/new", 201, "a d/b d/e/c d/link new"),
        ("", "/a", 204, "a d/b d/e/c d/link"),
        ("", "/d", 409, "a d/b d/e/c d/link"),
        ("", "/d/", 409, "a d/b d/e/c d/link"),
        ("", "/x/y/z", 500, "a d/b d/e/c d/link"),
        ("create_full_put_path on;", "/x/y/z", 201, "a d/b d/e/c d/link x/y/z"),
        ("dav_methods DELETE;", "/new", 201, "a d/b d/e/c d/link new"),
    ] {
        let dir = folder();
        let status = answer(&dir, conf, &format!("PUT {uri}"), "", Some("text"));
        assert_eq!((status, &*list(&dir)), (want, names), "{conf} {uri}");
        assert_eq!(fs::read_dir(dir.path().join("temp")).unwrap().count(), 0, "{uri}");
    }
    let dir = folder();
    let conf = "dav_access group:rw all:r;";
    let date = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    assert_eq!(answer(&dir, conf, "PUT /a", date, Some("")), 204);
    let stat = fs::metadata(dir.path().join("root/a")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((stat.mode() & 0o777, stat.mtime(), stat.len()), (0o664, 784_111_777, 0));
}

#[test]
fn files_are_deleted() {
    for (conf, uri, fields, want, names) in [
        ("", "/a", "", 204, "d/b d/e/c d/link"),
        ("", "/d/", "", 204, "a"),
        ("", "/d/link", "", 204, "a d/b d/e/c"),
        ("", "/d", "", 409, "a d/b d/e/c d/link"),
        ("", "/a/", "", 409, "a d/b d/e/c d/link"),
        ("", "/none", "", 404, "a d/b d/e/c d/link"),
        ("", "/d/", "Depth: 0\r\n", 400, "a d/b d/e/c d/link"),
        ("", "/a", "Depth: 1\r\n", 400, "a d/b d/e/c d/link"),
        ("", "/a", "Depth: 0\r\n", 204, "d/b d/e/c d/link"),
        ("", "/a", "Depth: x\r\n", 400, "a d/b d/e/c d/link"),
        ("min_delete_depth 2;", "/a", "", 409, "a d/b d/e/c d/link"),
        ("min_delete_depth 2;", "/d/", "", 409, "a d/b d/e/c d/link"),
        ("min_delete_depth 2;", "/d/b", "", 204, "a d/e/c d/link"),
    ] {
        let dir = folder();
        let status = answer(&dir, conf, &format!("DELETE {uri}"), fields, None);
        assert_eq!((status, &*list(&dir)), (want, names), "{conf} {uri} {fields}");
        assert!(dir.path().join("outside").exists());
    }
    assert_eq!(answer(&folder(), "", "DELETE /a", "", Some("x")), 415);
}

#[test]
fn collections_are_made() {
    for (uri, want) in [("/n/", 201), ("/n", 409), ("/d/", 405), ("/x/y/", 409), ("/a/b/", 409)] {
        assert_eq!(answer(&folder(), "", &format!("MKCOL {uri}"), "", None), want, "{uri}");
    }
}

#[test]
fn files_and_collections_are_copied_and_moved() {
    const ALL: &str = "a d/b d/e/c d/link";
    for (line, to, fields, want, names) in [
        ("COPY /a", "/n", "", 204, "a d/b d/e/c d/link n"),
        ("COPY /a", "http://h/n", "", 204, "a d/b d/e/c d/link n"),
        ("COPY /a", "http://h:80/n?x", "", 204, "a d/b d/e/c d/link n"),
        ("COPY /a", "/d/b", "", 204, ALL),
        ("COPY /a", "/d/b", "Overwrite: F\r\n", 412, ALL),
        ("COPY /a", "/d/b", "Overwrite: x\r\n", 400, ALL),
        ("COPY /a", "/n/m", "", 500, ALL),
        ("COPY /a", "/d", "", 409, ALL),
        ("MOVE /a", "/d", "Overwrite: F\r\n", 409, ALL),
        ("COPY /none", "/d", "", 409, ALL),
        ("COPY /d/", "/n/", "", 201, "a d/b d/e/c d/link n/b n/e/c"),
        ("MOVE /a", "/n", "", 204, "d/b d/e/c d/link n"),
        ("MOVE /a", "/n/m", "", 204, "d/b d/e/c d/link n/m"),
        ("MOVE /d/", "/n/", "", 201, "a n/b n/e/c n/link"),
        ("MOVE /d/e/", "/n/", "", 201, "a d/b d/link n/c"),
        ("COPY /d/", "/n/", "Depth: 1\r\n", 400, ALL),
        ("MOVE /a", "/n", "Depth: 0\r\n", 400, ALL),
        ("COPY /d", "/n", "", 400, ALL),
        ("COPY /none", "/n", "", 404, ALL),
        ("COPY /d/", "/n", "", 409, ALL),
        ("COPY /a", "/n/", "", 409, ALL),
    ] {
        let dir = folder();
        let fields = format!("Destination: {to}\r\n{fields}");
        let status = answer(&dir, "", line, &fields, None);
        assert_eq!((status, &*list(&dir)), (want, names), "{line} {fields}");
    }
}

#[test]
fn nothing_is_written_outside_or_onto_itself() {
    const ALL: &str = "a d/b d/e/c d/link";
    for (line, to, want) in [
        ("COPY /a", "", 400),
        ("COPY /a", "n", 400),
        ("COPY /a", "https://h/n", 400),
        ("COPY /a", "http://other/n", 400),
        ("COPY /a", "http://h", 400),
        ("COPY /a", "/../n", 400),
        ("COPY /a", "/d/../../n", 400),
        ("COPY /a", "/%2e%2e/n", 400),
        ("COPY /a", "http://h/..%2fn", 400),
        ("COPY /a", "/n%00", 400),
        ("COPY /a", "/n%2f", 409),
        ("COPY /a", "/a", 403),
        ("MOVE /a", "/a", 403),
        ("COPY /a", "/d/../a", 400),
        ("COPY /a", "/./a", 403),
        ("COPY /d/", "/d/", 403),
        ("MOVE /d/", "/d/", 403),
        ("COPY /d/", "/d/x/", 403),
        ("COPY /d/e/", "/d/", 403),
        ("MOVE /d/e/", "/d/", 403),
    ] {
        let dir = folder();
        let status = answer(&dir, "", line, &format!("Destination: {to}\r\n"), None);
        assert_eq!((status, &*list(&dir)), (want, ALL), "{line} {to}");
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 3, "{line} {to}");
        assert_eq!(fs::read_to_string(dir.path().join("root/a")).unwrap(), "a");
    }
    assert_eq!(answer(&folder(), "", "COPY /a", "", None), 400);
}

#[test]
fn a_destination_is_within_the_alias() {
    let dir = folder();
    let path = dir.path().display();
    let head = "COPY /up/b HTTP/1.1\r\nHost: h\r\nDestination: /u\r\n\r\n";
    let conf = format!("location /up/ {{ alias {path}/root/d/; dav_methods COPY; }}");
    let mut r = testing::request(&conf, head);
    r.method = Method::Copy;
    testing::answer(&mut r);
    assert_eq!((r.response.status, &*list(&dir)), (400, "a d/b d/e/c d/link"));
}

#[test]
fn mistakes_are_told_in_nginx_words() {
    for (conf, want) in [
        ("dav_methods GET;", "invalid value \"GET\""),
        ("dav_access user;", "invalid value \"user\""),
        ("dav_access user:x;", "invalid value \"user:x\""),
        ("dav_access others:r;", "invalid value \"others:r\""),
        ("min_delete_depth x;", "\"min_delete_depth\" directive invalid number"),
    ] {
        let error = testing::conf_error(conf);
        assert!(error.contains(want), "{conf}: {error}");
    }
}

#[test]
fn a_copy_waits_for_nobody_and_has_an_end() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let dir = folder();
    let root = dir.path().join("root");
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::os::unix::fs::symlink("/dev/zero", root.join("zero")).unwrap();
    for (from, to, want) in [("pipe", "new", 204), ("zero", "new", 204), ("a", "pipe", 500)] {
        let fields = format!("Destination: /{to}\r\n");
        assert_eq!(answer(&dir, "", &format!("COPY /{from}"), &fields, None), want, "{from} {to}");
    }
    assert_eq!(fs::read(root.join("new")).unwrap(), b"");
}
