//! What requests take from the heap: a keep-alive request of HTTP/1 for `return` or a cached file takes
//! nothing, one of HTTP/2 next to nothing, and no client of HTTP/2 makes a connection hold more than its
//! bound. Counted in a worker thread that serves real sockets.
//!
//! Invariant: only the worker thread is counted, so that the client may do as it likes.

// A counting allocator cannot be had otherwise; it is linked into this test only.
#![allow(unsafe_code)]

mod http2;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_conf::files::Memory;
use forebay_conf::parse::{ParseOptions, parse_text};
use forebay_conf::{Diagnostics, Loader, Sources};
use forebay_http::plan::Plan;
use forebay_http::worker::Shared;
use forebay_http::{Command, load, modules};
use forebay_rt::listen::Addr;
use forebay_rt::worker;
use forebay_session::log::{ErrorLog, Severity, flush_batch};
use forebay_testkit::raw::Client;
use forebay_testkit::tempdir::TempDir;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const WARM_UP: usize = 100;
const REQUESTS: usize = 1_000;
/// Time brings allocations too, not with a request but once in many ticks, when a list of the timer
/// wheel grows: one round of so many must be without any.
const ROUNDS: usize = 4;

/// Counts what threads that say so take from the heap.
struct Counting;

static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Bytes that are held, and the most that were.
static HELD: AtomicI64 = AtomicI64::new(0);
static MOST: AtomicI64 = AtomicI64::new(0);
/// One test at a time, so that no other worker of this process is counted with it.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// So many more bytes, or fewer, are held.
fn count(bytes: i64) {
    // A thread that is ending has no such value any more, and is not counted.
    if !IS_COUNTED.try_with(Cell::get).unwrap_or(false) {
        return;
    }
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if bytes > 0 {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        MOST.fetch_max(held, Ordering::Relaxed);
    }
}

// SAFETY: everything is passed on to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn plan(http: &str, prefix: &Path) -> Plan {
    let text = format!("http {{ {http} }}");
    let (mut files, mut sources, mut diags) =
        (Memory::default(), Sources::new(), Diagnostics::new());
    let options = ParseOptions::default();
    let nodes = parse_text("test", text.as_bytes(), &mut files, &options, &mut sources, &mut diags);
    let mut loader = Loader {
        files: &mut files,
        sources: &mut sources,
        diags: &mut diags,
        prefix: prefix.to_owned(),
        conf_prefix: prefix.to_owned(),
    };
    let log = ErrorLog::to_stderr(Severity::Emerg);
    let plan = load(&nodes[0], &modules::all(), &mut loader, &log, false);
    let plan = plan.filter(|_| !diags.has_errors());
    plan.unwrap_or_else(|| panic!("{}", diags.render(&sources, false)))
}

/// A worker thread; it ends when this is dropped.
struct Worker {
    addr: SocketAddr,
    _commands: UnboundedSender<Command>,
}

/// Starts a worker thread for the inside of a `server` block.
fn start(inside: &str, dir: &Path) -> Worker {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.set_nonblocking(true).expect("nonblocking");
    let addr = listener.local_addr().expect("addr");
    let text = format!("server {{ listen {addr}; keepalive_requests 100000; {inside} }}");
    let plan = plan(&text, dir);
    for log in plan.logs.iter() {
        let file = File::options().create(true).append(true).open(log.path());
        log.install(file.expect("log"));
    }
    let (commands, receiver) = unbounded_channel();
    let sockets = vec![(Addr::Tcp(addr), OwnedFd::from(listener))];
    let main = move || async move {
        IS_COUNTED.set(true);
        let shared = Arc::new(Shared::new(512));
        forebay_http::run(shared, Arc::new(plan), sockets, receiver).await;
        IS_COUNTED.set(false);
    };
    worker::spawn("worker".to_owned(), None, flush_batch, main).expect("thread");
    Worker { addr, _commands: commands }
}

/// What a thousand requests on one connection take from the heap, in the best of the rounds.
fn taken(worker: &Worker, request: &[u8], body: &[u8]) -> u64 {
    let mut client = Client::connect(worker.addr).expect("connect");
    let mut ask = |times: usize| {
        for _ in 0..times {
            client.send(request).expect("send");
            let response = client.read_response(false).expect("response");
            assert!(response.status == 200 && response.body == body && !response.closes());
        }
    };
    ask(WARM_UP);
    best_round(|| ask(REQUESTS))
}

/// What one of several rounds takes from the heap, the best of them.
fn best_round(mut round: impl FnMut()) -> u64 {
    let mut taken = || {
        let before = TAKEN.load(Ordering::Relaxed);
        round();
        TAKEN.load(Ordering::Relaxed) - before
    };
    (0..ROUNDS).map(|_| taken()).min().unwrap_or(u64::MAX)
}

#[test]
fn a_keepalive_request_takes_nothing_from_the_heap() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("directory");
    // One that has been there for a while: what has just changed is not kept in memory.
    let root = env!("CARGO_MANIFEST_DIR");
    let file = std::fs::read(format!("{root}/Cargo.toml")).expect("file");
    let types = "types { text/plain toml; } gzip off;";
    let cached = "open_file_cache max=100 inactive=60s; open_file_cache_valid 60s;";
    // Larger than what is copied behind its head.
    let large = std::fs::read(format!("{root}/src/engine.rs")).expect("file");
    assert!((8_000..32_000).contains(&large.len()), "{}", large.len());
    let plain = |name: &str| format!("GET /{name} HTTP/1.1\r\nHost: test\r\n\r\n");
    let browser = |name: &str| {
        format!(
            "GET /{name}?a=b HTTP/1.1\r\nHost: test:8080\r\n\
             User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\r\n\
             Accept: text/html,application/xhtml+xml\r\nAccept-Encoding: gzip, br\r\n\
             Accept-Language: en\r\nReferer: http://test/\r\nConnection: keep-alive\r\n\r\n"
        )
    };
    let returns = "location / { return 200 \"a short text\"; }";
    let logged = format!("access_log {}/access.log;", dir.path().display());
    let files = format!("root {root}; {types} {cached}");
    let table: &[(&str, String, &str, &[u8])] = &[
        ("return", format!("access_log off; {returns}"), "a", b"a short text"),
        ("return, logged", format!("{logged} {returns}"), "a", b"a short text"),
        ("cached file", format!("access_log off; {files}"), "Cargo.toml", &file),
        ("cached file, logged", format!("{logged} {files}"), "Cargo.toml", &file),
        ("large cached file", format!("access_log off; {files}"), "src/engine.rs", &large),
    ];
    let mut wrong = Vec::new();
    for (name, inside, path, body) in table {
        let worker = start(inside, dir.path());
        for (kind, request) in [("plain", plain(path)), ("browser", browser(path))] {
            let taken = taken(&worker, request.as_bytes(), body);
            if taken > 0 {
                wrong.push(format!("{name}, {kind}: {taken} in {REQUESTS} requests"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
