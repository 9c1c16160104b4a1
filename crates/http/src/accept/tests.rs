//! Connections on a real thread and real sockets.

use std::{
    io::{IoSlice, Read, Write},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
};

use forebay_rt::{task, worker};
use forebay_testkit::raw::Client;
use forebay_wire::h2::{
    Head,
    frame::{flag, kind},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::*;
use crate::{
    client,
    handler::{Flow, Handler},
    request::Request,
    testing,
};

/// What goes wrong where nobody thought of it: at once, or when the request has waited for something.
struct Panics;

impl Handler for Panics {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn client::Client) -> Flow<'a> {
        if r.uri == b"/at-once" {
            return go_wrong();
        }
        Flow::later(|| async {
            task::yield_now().await;
            go_wrong()
        })
    }
}

fn go_wrong<'a>() -> Flow<'a> {
    std::panic::panic_any("on purpose")
}

type Site = (SocketAddr, Arc<Shared>, Arc<Plan>, Vec<(Addr, OwnedFd)>);

fn site() -> Site {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let addr = listener.local_addr().unwrap();
    let text = format!(
        "access_log off; error_log stderr emerg; server {{ listen {addr}; http2 on;
         location / {{ return 200 well; }} location /at-once {{ }} location /later {{ }} }}"
    );
    let mut plan = testing::plan(&text).unwrap();
    for location in &mut plan.locations {
        if matches!(&location.name[..], b"/at-once" | b"/later") {
            location.access.push(Box::new(Panics));
        }
    }
    let sockets = vec![(Addr::Tcp(addr), OwnedFd::from(listener))];
    (addr, Arc::new(Shared::new(16)), Arc::new(plan), sockets)
}

fn start_worker() -> (SocketAddr, Arc<Shared>, UnboundedSender<Command>) {
    let (addr, shared, plan, sockets) = site();
    let (commands, receiver) = unbounded_channel();
    let theirs = shared.clone();
    let main = move || run(theirs, plan, sockets, receiver);
    worker::spawn("worker".to_owned(), None, || {}, main).unwrap();
    (addr, shared, commands)
}

fn served(client: &mut Client) -> bool {
    ask(client);
    is_served(client)
}

fn ask(client: &mut Client) {
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
}

fn is_served(client: &mut Client) -> bool {
    client.read_response(false).is_ok_and(|response| response.body == b"well")
}

#[test]
fn a_panic_costs_one_connection() {
    let (addr, shared, _commands) = start_worker();
    let mut bystander = Client::connect(addr).unwrap();
    assert!(served(&mut bystander));
    for path in ["/at-once", "/later"] {
        let mut client = Client::connect(addr).unwrap();
        assert!(served(&mut client));
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        assert_eq!(client.read_to_end().unwrap(), b"", "{path}: no answer, the connection ends");
        assert!(served(&mut bystander), "{path}: who was connected is served");
        assert!(served(&mut Client::connect(addr).unwrap()), "{path}: who comes is served");
    }
    assert_eq!(shared.total(|counters| &counters.panics), 2);
}

#[test]
fn a_panic_under_http2_leaves_no_number_behind() {
    let (addr, shared, _commands) = start_worker();
    for path in [&b"/at-once"[..], b"/later"] {
        let mut client = Client::connect(addr).unwrap();
        let mut input = [&PREFACE[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
        let block = [b"\x82\x86\x41\x01a\x44", &[path.len() as u8][..], path].concat();
        let whole = flag::END_STREAM | flag::END_HEADERS;
        Head { len: block.len(), kind: kind::HEADERS, flags: whole, stream: 1 }.write(&mut input);
        input.extend(block);
        client.send(&input).unwrap();
        client.read_to_end().unwrap();
        assert_eq!(shared.total(|counters| &counters.writing), 0);
    }
}

/// A thread whose time stands still, with a client that has had one answer.
async fn start_still() -> (Client, UnboundedSender<Command>) {
    clock::pause();
    let (addr, shared, plan, sockets) = site();
    let (commands, receiver) = unbounded_channel();
    task::spawn_local(run(shared, plan, sockets, receiver));
    let mut client = Client::connect(addr).unwrap();
    ask(&mut client);
    turns().await;
    assert!(is_served(&mut client));
    (client, commands)
}

/// Whether the answer is there, and the end of the connection behind it.
fn is_served_and_left(mut client: Client) -> bool {
    is_served(&mut client) && client.is_at_end().unwrap()
}

/// Lets the thread do all that there is to do.
async fn turns() {
    for _ in 0..16 {
        task::yield_now().await;
    }
}

#[test]
fn a_request_that_came_before_the_thread_looked_is_answered() {
    task::block_on(async {
        let (mut client, commands) = start_still().await;
        clock::advance(10 * BUSY_MS);
        ask(&mut client);
        assert!(commands.send(Command::Quit).is_ok());
        turns().await;
        assert!(is_served_and_left(client));
    });
}

#[test]
fn a_machine_that_stood_still_makes_nobody_idle() {
    task::block_on(async {
        let (mut client, commands) = start_still().await;
        assert!(commands.send(Command::Quit).is_ok());
        turns().await;
        clock::advance(10 * BUSY_MS);
        turns().await;
        ask(&mut client);
        turns().await;
        assert!(is_served_and_left(client));
    });
}

#[test]
fn a_thread_that_quits_closes_who_is_idle() {
    task::block_on(async {
        for (before_ms, looks) in [(0, BUSY_LOOKS), (BUSY_MS, 0)] {
            let (client, commands) = start_still().await;
            clock::advance(before_ms);
            assert!(commands.send(Command::Quit).is_ok());
            turns().await;
            for _ in 0..looks {
                assert!(!commands.is_closed(), "{before_ms}");
                clock::advance(LOOK_MS);
                turns().await;
            }
            assert!(commands.is_closed(), "{before_ms}");
            assert!({ client }.is_at_end().unwrap());
        }
    });
}

/// Hands over what the other end, which is given back, has to make room for first.
async fn leave_late_output() -> UnixStream {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut socket = Socket::new(ours.try_clone().unwrap().into());
    let mut buf = Vec::with_capacity(1);
    let is_new = poll_fn(|cx| Poll::Ready(socket.poll_read(cx, &mut buf).is_pending()));
    assert!(is_new.await);
    while ours.write(&[b'.'; 4096]).is_ok() {}
    // Who is not alone hands over.
    task::spawn_local(async {});
    let handed_over = poll_fn(|cx| socket.poll_hand_over(cx, &[IoSlice::new(b"late")])).await;
    assert_eq!(handed_over.unwrap(), 4);
    theirs
}

#[test]
fn a_thread_that_quits_waits_for_what_is_late() {
    task::block_on(async {
        let (client, commands) = start_still().await;
        drop(client);
        let mut late = leave_late_output().await;
        assert!(commands.send(Command::Quit).is_ok());
        turns().await;
        assert!(!commands.is_closed() && is_output_late());
        let mut all = vec![0; 1 << 20];
        let len = late.read(&mut all).unwrap();
        assert!(len > 0);
        turns().await;
        clock::advance(LOOK_MS);
        turns().await;
        assert!(commands.is_closed());
        all.clear();
        late.read_to_end(&mut all).unwrap();
        assert!(all.ends_with(b"late"));
    });
}
