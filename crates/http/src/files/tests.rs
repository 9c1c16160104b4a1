//! Caches, symbolic links, traversal and files that change, on real files.

use std::{
    fs,
    future::Future,
    os::unix::fs::symlink,
    path::Path,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use forebay_rt::clock;
use forebay_testkit::tempdir::TempDir;

use super::*;
use crate::{
    files::cache::Contents,
    testing::{self, request},
};

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("files are opened inline here"),
    }
}

fn temp() -> TempDir {
    TempDir::new().expect("a temporary directory")
}

fn put(dir: &TempDir, name: &str, text: &str) -> Vec<u8> {
    let path = dir.path().join(name);
    fs::write(&path, text).expect("written");
    path.into_os_string().into_encoded_bytes()
}

fn under(dir: &TempDir, conf: &str) -> Request {
    request(&format!("root {}; {conf}", dir.path().display()), "GET / HTTP/1.1\r\n\r\n")
}

fn file(r: &Request, path: &[u8]) -> Rc<OpenFile> {
    match now(open(r, path)) {
        Ok(Found::File(file)) => file,
        Ok(Found::Dir) => panic!("a directory"),
        Err(failed) => panic!("{} {failed}", failed.call),
    }
}

fn text(file: Rc<OpenFile>) -> String {
    let end = file.size;
    let slice = FileSlice { file, start: 0, end };
    let bytes = testing::read(slice, &mut Context::from_waker(Waker::noop()));
    String::from_utf8(bytes).expect("text")
}

/// Puts another file in its place, as editors and deployments do.
fn replace(dir: &TempDir, name: &str, text: &str) {
    put(dir, "new", text);
    fs::rename(dir.path().join("new"), dir.path().join(name)).expect("renamed");
}

#[test]
fn a_cached_file_stays_what_it_was_as_long_as_it_is_valid() {
    let dir = temp();
    let path = put(&dir, "a", "old");
    let r = under(&dir, "open_file_cache max=10; open_file_cache_valid 1h;");
    assert_eq!(text(file(&r, &path)), "old");
    replace(&dir, "a", "newer");
    assert_eq!(text(file(&r, &path)), "old");
    fs::remove_file(dir.path().join("a")).expect("removed");
    assert_eq!(text(file(&r, &path)), "old");
}

#[test]
fn a_change_is_noticed_when_the_time_of_validity_is_over() {
    let dir = temp();
    let path = put(&dir, "a", "old");
    let r = under(&dir, "open_file_cache max=10; open_file_cache_valid 0;");
    let (first, second) = (file(&r, &path), file(&r, &path));
    let same = |a: &OpenFile, b: &OpenFile| match (&a.fd, &b.fd) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    };
    assert!(same(&first, &second), "nothing changed: the descriptor serves on");
    replace(&dir, "a", "newer");
    assert_eq!(text(file(&r, &path)), "newer");
    put(&dir, "a", "changed in place");
    assert_eq!(text(file(&r, &path)), "changed in place");
    fs::remove_file(dir.path().join("a")).expect("removed");
    let gone = now(open(&r, &path)).err().expect("gone");
    assert!(gone.is_missing());
    assert_eq!(gone.to_string(), "2: No such file or directory");
}

#[test]
fn a_file_used_less_often_than_min_uses_is_opened_each_time() {
    let dir = temp();
    let path = put(&dir, "a", "one");
    let conf = "open_file_cache max=10; open_file_cache_valid 1h; open_file_cache_min_uses 3;";
    let r = under(&dir, conf);
    let table = [("one", "one"), ("two", "two"), ("three", "three"), ("four", "three")];
    for (written, served) in table {
        replace(&dir, "a", written);
        assert_eq!(text(file(&r, &path)), served);
    }
}

#[test]
fn a_file_in_use_is_shared_before_min_uses() {
    let dir = temp();
    let path = put(&dir, "a", "one");
    let conf = "open_file_cache max=10; open_file_cache_valid 1h; open_file_cache_min_uses 9;";
    let r = under(&dir, conf);
    let in_use = file(&r, &path);
    replace(&dir, "a", "two");
    assert!(Rc::ptr_eq(&in_use, &file(&r, &path)));
    drop(in_use);
    assert_eq!(text(file(&r, &path)), "two");
}

#[test]
fn errors_are_kept_only_where_that_is_asked_for() {
    for (conf, kept) in [("on", true), ("off", false)] {
        let dir = temp();
        let r = under(&dir, &format!("open_file_cache max=10; open_file_cache_errors {conf};"));
        let path = dir.path().join("a").into_os_string().into_encoded_bytes();
        assert!(now(open(&r, &path)).is_err());
        put(&dir, "a", "here");
        assert_eq!(now(open(&r, &path)).is_err(), kept, "{conf}");
    }
}

#[test]
fn the_file_used_longest_ago_makes_room() {
    let dir = temp();
    let (a, b, c) = (put(&dir, "a", "a"), put(&dir, "b", "b"), put(&dir, "c", "c"));
    let r = under(&dir, "open_file_cache max=2; open_file_cache_valid 1h;");
    for path in [&a, &b, &a, &c] {
        file(&r, path);
    }
    for name in ["a", "b", "c"] {
        replace(&dir, name, "new");
    }
    assert_eq!(text(file(&r, &a)), "a");
    assert_eq!(text(file(&r, &c)), "c");
    assert_eq!(text(file(&r, &b)), "new");
}

#[test]
fn directories_are_kept_too() {
    let dir = temp();
    let path = dir.path().join("d");
    fs::create_dir(&path).expect("made");
    let bytes = path.as_os_str().as_encoded_bytes();
    let r = under(&dir, "open_file_cache max=10; open_file_cache_valid 1h;");
    assert_eq!(now(test(&r, bytes)), Ok(Kind::Dir));
    fs::remove_dir(&path).expect("removed");
    assert_eq!(now(test(&r, bytes)), Ok(Kind::Dir));
}

#[test]
fn caches_outlive_a_reload_that_does_not_change_them() {
    let dir = temp();
    let path = put(&dir, "a", "old");
    let r = under(&dir, "open_file_cache max=10; open_file_cache_valid 1h;");
    file(&r, &path);
    replace(&dir, "a", "new");
    let files = &r.connection.worker.files;
    files.retain(&r.plan.file_caches);
    assert_eq!(text(file(&r, &path)), "old");
    files.retain(&[]);
    assert_eq!(text(file(&r, &path)), "new");
}

#[test]
fn an_open_file_goes_on_when_its_name_is_gone() {
    let dir = temp();
    let path = put(&dir, "a", "still here");
    let r = under(&dir, "");
    let open = file(&r, &path);
    fs::remove_file(dir.path().join("a")).expect("removed");
    assert_eq!(text(open), "still here");
}

#[test]
fn a_file_that_was_cut_short_ends_early() {
    let dir = temp();
    let path = put(&dir, "a", "long enough");
    let r = under(&dir, "");
    let open = file(&r, &path);
    put(&dir, "a", "long");
    assert_eq!((open.size, text(open)), (11, "long".to_owned()));
}

#[test]
fn contents_are_used_again_only_for_the_very_same_file() {
    let dir = temp();
    let path = put(&dir, "a", "text");
    let r = under(&dir, "");
    let mut opened = open::open(&path, How::default()).expect("there");
    opened.contents = Some(Bytes::from_static(b"text"));
    let file = Rc::new(OpenFile::new(opened, &r));
    let same = file.stat;
    let differing = [
        Stat { dev: same.dev + 1, ..same },
        Stat { ino: same.ino + 1, ..same },
        Stat { size: same.size + 1, ..same },
        Stat { modified_ns: same.modified_ns + 1, ..same },
        Stat { changed_ns: same.changed_ns + 1, ..same },
        Stat { kind: Kind::Other, ..same },
    ];
    for other in differing.map(Some).into_iter().chain([None]) {
        let mut contents = Contents::default();
        contents.store(&path, &file, true);
        assert!(contents.find(&path, |_| Some(same)).is_some_and(|kept| kept.fd.is_none()));
        assert!(contents.find(&path, |_| other).is_none(), "{other:?}");
        assert!(contents.find(&path, |_| Some(same)).is_none(), "forgotten");
    }
}

#[test]
fn larger_contents_are_kept_for_the_kernel_too_up_to_a_number_of_descriptors() {
    let dir = temp();
    let path = put(&dir, "a", "text");
    let r = under(&dir, "");
    let mut opened = open::open(&path, How::default()).expect("there");
    let mut file = |contents: Vec<u8>| {
        opened.contents = Some(contents.into());
        Rc::new(OpenFile::new(opened.clone(), &r))
    };
    let (small, large) = (file(vec![7; 4096]), file(vec![7; 4097]));
    let mut contents = Contents::default();
    let mut mirrored = |path: &[u8], file: &Rc<OpenFile>, wanted| {
        contents.store(path, file, wanted);
        let kept = contents.find(path, |_| Some(file.stat)).expect("kept");
        let end = kept.contents.as_ref().map_or(0, |bytes| bytes.len() as u64);
        FileSlice { file: kept, start: 0, end }.in_kernel().is_some()
    };
    assert!(!mirrored(b"small", &small, true) && !mirrored(b"not wanted", &large, false));
    for number in 0..200_u8 {
        assert_eq!(mirrored(&[number], &large, true), number < 128, "{number}");
    }
    // Kept anew, the place of the old one is free.
    assert!(!mirrored(&[0], &large, true) && mirrored(&[1], &large, true));
}

#[test]
fn all_ways_to_look_at_a_file_agree() {
    let dir = temp();
    let path = put(&dir, "a", "text");
    let stat = open::look(&path, Links::Follow).expect("there");
    assert_eq!(open::look_again(&path), Some(stat));
    assert!(open::look_if_cached(&path).is_none_or(|cached| cached == stat));
    assert_eq!(open::open(&path, How::default()).expect("there").stat, stat);
}

#[test]
fn a_file_that_changed_just_now_is_not_kept_in_memory() {
    let dir = temp();
    let path = put(&dir, "a", "text");
    let how = How { contents: true, ..How::default() };
    assert_eq!(open::open(&path, how).expect("there").contents, None);
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let opened = open::open(old.as_os_str().as_encoded_bytes(), how).expect("there");
    assert_eq!(opened.contents.expect("kept"), fs::read(old).expect("read"));
}

#[test]
fn a_cached_file_comes_into_memory_when_it_is_old_enough() {
    clock::pause();
    let dir = temp();
    let path = put(&dir, "a", "text");
    let r = under(&dir, "open_file_cache max=10; open_file_cache_valid 1h;");
    let in_memory = || file(&r, &path).contents.is_some();
    assert_eq!((in_memory(), in_memory()), (false, false));
    clock::advance(5000);
    assert_eq!((in_memory(), in_memory()), (true, true));
    // What changed in between counts as soon as it is looked at.
    put(&dir, "a", "more");
    assert_eq!(text(file(&r, &path)), "text");
}

#[test]
fn directio_reads_any_part_of_a_file() {
    let dir = temp();
    let content: String = (0..3000).map(|n| format!("{n:5}")).collect();
    let path = put(&dir, "a", &content);
    let r = under(&dir, "directio 1k; directio_alignment 512;");
    let file = file(&r, &path);
    let mut cx = Context::from_waker(Waker::noop());
    for (start, end) in [(0, 15_000), (1, 2), (511, 513), (4095, 8193), (14_999, 15_000)] {
        let slice = FileSlice { file: file.clone(), start, end };
        let part = &content.as_bytes()[start as usize..end as usize];
        assert_eq!(testing::read(slice, &mut cx), part, "{start} {end}");
    }
}

#[test]
fn symbolic_links_are_refused_as_told() {
    let dir = temp();
    let root = dir.path();
    fs::create_dir(root.join("real")).expect("made");
    let plain = put(&dir, "real/a", "a");
    symlink("real/a", root.join("link")).expect("linked");
    symlink("real", root.join("dir")).expect("linked");
    let (link, through) = (root.join("link"), root.join("dir/a"));
    let (link, through) =
        (link.as_os_str().as_encoded_bytes(), through.as_os_str().as_encoded_bytes());
    let all = under(&dir, "disable_symlinks on;");
    assert_eq!(text(file(&all, &plain)), "a");
    let refused = now(open(&all, link)).err().expect("refused");
    assert_eq!((refused.call, refused.is_link()), (Call::OpenAt, true));
    // O_DIRECTORY sees the link before O_NOFOLLOW does: nginx answers 404 here as well.
    assert!(now(open(&all, through)).is_err());
    let from = under(&dir, &format!("disable_symlinks on from={}/dir;", root.display()));
    assert_eq!(text(file(&from, through)), "a");
    assert!(now(open(&from, link)).is_err());
    let owner = under(&dir, "disable_symlinks if_not_owner;");
    assert_eq!(text(file(&owner, link)), "a");
    assert_eq!(text(file(&owner, through)), "a");
}

#[test]
fn no_request_reads_above_its_root_or_alias() {
    let dir = temp();
    fs::create_dir_all(dir.path().join("pub/sub")).expect("made");
    put(&dir, "secret", "secret");
    put(&dir, "pub/a", "a");
    put(&dir, "pub/sub/b", "b");
    let root = dir.path().display();
    let conf = format!(
        "root {root}/pub; location /img {{ alias {root}/pub/; }}
         location ~ ^/re(.*)$ {{ alias {root}/pub/$1; }}
         location /try {{ root {root}/pub; try_files /$arg_f =404; }}"
    );
    let table = [
        ("/a", 200),
        ("/sub/b", 200),
        ("/../secret", 404),
        ("/sub/../../secret", 404),
        ("/sub/../a", 200),
        ("/img/a", 200),
        ("/img../secret", 404),
        ("/img../pub/a", 404),
        ("/img./a", 200),
        ("/img/../secret", 404),
        ("/re/a", 200),
        ("/re../secret", 404),
        ("/re/../secret", 404),
        ("/re/sub/../a", 200),
        ("/try?f=a", 200),
        ("/try?f=../secret", 404),
        ("/try?f=sub/../../secret", 404),
        ("/a\0", 404),
        ("/a\0.html", 404),
        ("/..\\secret", 404),
        ("/%2e%2e/secret", 404),
    ];
    for (uri, status) in table {
        let mut r = request(&conf, &format!("GET {uri} HTTP/1.1\r\n\r\n"));
        testing::answer(&mut r);
        assert_eq!(r.response.status, status, "{uri:?}");
    }
}

#[test]
fn extensions_are_what_nginx_takes_for_them() {
    let table: [(&str, Option<&str>); 8] = [
        ("/a.html", Some("html")),
        ("/a.tar.gz", Some("gz")),
        ("/.html", None),
        ("/a.b/c", None),
        ("/a.b/", None),
        ("/a.", None),
        ("/a", None),
        ("/a/.b.c", Some("c")),
    ];
    for (uri, expected) in table {
        assert_eq!(extension(uri.as_bytes()), expected.map(str::as_bytes), "{uri}");
    }
    let as_sent: [(&str, Option<&str>); 9] = [
        ("/a.html", Some("html")),
        ("/a.b/c", None),
        ("/a.b/", None),
        ("/a.", None),
        ("/.html", None),
        ("/..html", None),
        ("/...html", None),
        ("/...html", None),
        ("/...html", None),
    ];
    for (uri, expected) in as_sent {
        assert_eq!(extension_as_sent(uri.as_bytes()), expected.map(str::as_bytes), "{uri}");
    }
}

#[test]
fn with_aio_threads_a_pool_opens_and_reads() {
    let dir = temp();
    let content = "0123456789".repeat(20_000);
    let path = put(&dir, "a", &content);
    for conf in [
        "aio threads;",
        "aio on;",
        "aio threads; directio 1;",
        "aio threads; open_file_cache max=1;",
    ] {
        let r = under(&dir, conf);
        let read = forebay_rt::task::block_on(async {
            let found = open(&r, &path).await;
            let Ok(Found::File(file)) = found else { panic!("not there") };
            let slice = FileSlice { file, start: 4000, end: 190_000 };
            let mut reader = Reader::default();
            std::future::poll_fn(|cx| reader.poll_warm(&slice, slice.len(), cx)).await;
            std::future::poll_fn(|cx| reader.poll_read(&slice, 186_000, cx)).await
        });
        let read = read.expect("read");
        assert!(!read.is_empty() && content.as_bytes()[4000..].starts_with(&read), "{conf}");
    }
}

#[test]
fn a_full_thread_pool_answers_500() {
    forebay_rt::threads::configure("no_room", 1, 0);
    let dir = temp();
    put(&dir, "a", "a");
    let conf = format!("root {}; aio threads=no_room; location / {{ }}", dir.path().display());
    for uri in ["/a", "/"] {
        let mut r = request(&conf, &format!("GET {uri} HTTP/1.1\r\n\r\n"));
        testing::answer(&mut r);
        assert_eq!(r.response.status, 500, "{uri}");
    }
}
