//! One worker thread: accepts connections, serves them, and obeys the process.
//!
//! Answers nginx's `ngx_event_accept.c` and the worker half of `ngx_process_cycle.c`.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::poll_fn,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    pin::pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Poll,
};

use forebay_rt::{
    affinity, clock,
    listen::Addr,
    memory, pool,
    task::{self, AbortHandle, can_spawn, spawn_local},
    timer,
    transport::{Acceptor, Socket, Transport, is_output_late},
};
use forebay_session::log::Severity;
use forebay_wire::h2::PREFACE;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    background::Background,
    h1, h2,
    plan::{Plan, PlanHandle},
    proxied,
    request::{Connection, Peer},
    socket::ClientSocket,
    tls::{self, Shaken},
    worker::{Counters, Listening, Shared, Worker},
};

/// How long accepting pauses when descriptors or memory run out (nginx's `accept_mutex_delay`).
const ACCEPT_PAUSE_MS: u64 = 500;

/// How many connections a thread takes at the most of each socket when it ends: who comes later wakes those
/// that share it.
const LAST: usize = 1024;

/// So many connections of a thread are a crowd: fewer leave nothing behind that is worth looking for.
const CROWD: usize = 64;

/// How long after half of a crowd has left its memory is given back, in milliseconds.
const GIVE_BACK_MS: u64 = 100;

/// Who had an answer that short a time before the thread quits is busy: the next request may be on its way,
/// and is waited for. In milliseconds.
const BUSY_MS: u64 = 1000;
/// After so many looks without a request nobody is busy any more. They are counted, as time that the machine
/// takes from the thread, or from all of its clients, says nothing about them.
const BUSY_LOOKS: usize = 2;
/// How often a thread that quits looks for connections to close, in milliseconds.
const LOOK_MS: u64 = 50;

/// What the process tells its threads.
pub enum Command {
    /// Run under this plan from now on. The sockets are this thread's, by address, in place of those
    /// that it has of the same addresses; addresses that are not in the plan are no longer accepted
    /// on.
    Reload {
        /// The plan.
        plan: Arc<Plan>,
        /// Sockets.
        sockets: Vec<(Addr, OwnedFd)>,
    },
    /// Run on these CPUs from now on.
    Pin(Vec<usize>),
    /// Stop accepting, and end when the last connection is done: each ends with its next request, or
    /// when it has been idle for as long as it may.
    Leave,
    /// The same, and close idle connections.
    Quit,
}

struct Accepting {
    listening: Rc<Listening>,
    /// One a socket: several after a reload to fewer threads, as every queue must be served.
    queues: Vec<Queue>,
}

/// Connections that wait on a socket, and the task that takes them.
struct Queue {
    acceptor: Rc<RefCell<Acceptor>>,
    task: AbortHandle,
}

impl Accepting {
    fn stop(&mut self) {
        self.queues.drain(..).for_each(|queue| queue.task.abort());
    }

    /// Stops, after those that wait: the socket may be served by others, but for what this thread was
    /// woken for they were not.
    fn finish(&mut self, thread: &Rc<Thread>) {
        for Queue { acceptor, task } in self.queues.drain(..) {
            task.abort();
            let mut acceptor = acceptor.borrow_mut();
            for (socket, remote) in std::iter::from_fn(|| acceptor.take_last()).take(LAST) {
                accepted(thread, &self.listening, socket, remote);
            }
        }
    }
}

/// A thread's state, shared by its tasks.
struct Thread {
    worker: Rc<Worker>,
    accepting: RefCell<HashMap<Addr, Accepting>>,
    open: Cell<usize>,
    /// The most that were open since memory was given back.
    crowd: Cell<usize>,
    ended: tokio::sync::Notify,
}

/// Runs a worker thread until it is told to quit and its last connection has ended, or the channel of
/// commands closes (a fast stop).
pub async fn run(
    shared: Arc<Shared>,
    plan: Arc<Plan>,
    sockets: Vec<(Addr, OwnedFd)>,
    mut commands: UnboundedReceiver<Command>,
) {
    let worker = Rc::new(Worker::new(shared, plan.clone()));
    let mut background = Background::start(&plan, &worker);
    drop(plan);
    let thread = Rc::new(Thread {
        worker,
        accepting: RefCell::default(),
        open: Cell::new(0),
        crowd: Cell::new(0),
        ended: tokio::sync::Notify::new(),
    });
    thread.listen(sockets);
    let close_idle = loop {
        match commands.recv().await {
            Some(Command::Reload { plan, sockets }) => {
                drop(background.take());
                background = Background::start(&plan, &thread.worker);
                let before = thread.worker.swap(plan);
                thread.relisten(sockets, &before);
            }
            Some(Command::Pin(cpus)) => {
                // An affinity that the machine does not have costs speed, not service.
                let _ = affinity::pin(&cpus);
            }
            Some(Command::Leave) => break false,
            Some(Command::Quit) => break true,
            None => return,
        }
    };
    drop(background);
    thread.quit(close_idle, &mut commands).await;
}

impl Thread {
    fn listen(self: &Rc<Self>, sockets: Vec<(Addr, OwnedFd)>) {
        let plan = self.worker.plan();
        let mut accepting = self.accepting.borrow_mut();
        for (addr, _) in &sockets {
            accepting.get_mut(addr).into_iter().for_each(Accepting::stop);
        }
        for (addr, socket) in sockets {
            let index = plan.listeners.iter().position(|listener| listener.addr == addr);
            let Some(index) = index else { continue };
            let here = accepting.entry(addr.clone()).or_insert_with(|| {
                let listening = Rc::new(Listening::new(addr, index));
                Accepting { listening, queues: Vec::new() }
            });
            let acceptor = match Acceptor::new(socket) {
                Ok(acceptor) => Rc::new(RefCell::new(acceptor)),
                Err(error) => {
                    let addr = &here.listening.addr;
                    let text = format_args!("cannot accept on {addr}: {error}");
                    self.error_log(Severity::Alert, text);
                    continue;
                }
            };
            let accepting = accept_on(self.clone(), here.listening.clone(), acceptor.clone());
            here.queues.push(Queue { acceptor, task: spawn_local(accepting) });
        }
    }

    fn relisten(self: &Rc<Self>, sockets: Vec<(Addr, OwnedFd)>, before: &PlanHandle) {
        let plan = self.worker.plan();
        self.accepting.borrow_mut().retain(|addr, accepting| {
            let index = plan.listeners.iter().position(|listener| listener.addr == *addr);
            accepting.listening.renumber(index, before);
            if index.is_none() {
                accepting.stop();
            }
            index.is_some()
        });
        self.listen(sockets);
    }

    async fn quit(self: Rc<Self>, mut close_idle: bool, commands: &mut UnboundedReceiver<Command>) {
        self.worker.quitting.set(true);
        self.accepting.borrow_mut().drain().for_each(|(_, mut accepting)| accepting.finish(&self));
        // A request that is on its way on a kept connection is answered; see keepalive_min_timeout.
        // DIFFERS(quit-busy): nginx, unless told otherwise, closes what has been busy until now.
        let plan = self.worker.plan();
        let min_idle_ms = plan.location(Default::default()).core.keepalive_min_timeout_ms;
        let mut looks = [clock::now_ms().saturating_sub(BUSY_MS); BUSY_LOOKS];
        loop {
            if close_idle {
                let now = clock::now_ms();
                // Who has asked by now is not idle, though nobody may have seen it yet.
                task::yield_now().await;
                timer::close_idle(looks[0].min(now.saturating_sub(min_idle_ms)));
                looks.rotate_left(1);
                looks[BUSY_LOOKS - 1] = now;
            }
            let mut look = pin!(timer::sleep(LOOK_MS));
            loop {
                if self.open.get() == 0 && !is_output_late() {
                    return;
                }
                tokio::select! {
                    () = self.ended.notified() => {}
                    () = &mut look => break,
                    command = commands.recv() => match command {
                        Some(Command::Quit) => close_idle = true,
                        // It goes on under the configuration that it was told to leave with.
                        Some(Command::Reload { .. } | Command::Pin(_) | Command::Leave) => {}
                        None => return,
                    },
                }
            }
        }
    }

    /// Room for one more connection: the ones idle longest go first.
    fn make_room(&self) {
        let max = self.worker.shared.max_connections.load(Relaxed);
        if self.open.get() < max {
            return;
        }
        // nginx frees up to 32 at once (ngx_drain_connections), so that not every accept has to.
        let shed = timer::shed_idle((max / 8).clamp(1, 32));
        let counters = self.worker.counters();
        for _ in 0..shed {
            Counters::up(&counters.shed);
        }
        if shed == 0 {
            self.error_log(
                Severity::Alert,
                format_args!("{max} worker_connections are not enough"),
            );
        }
    }

    /// One connection less. When half of a crowd has gone, what it held goes back to the kernel.
    fn left(self: &Rc<Self>) {
        let open = self.open.get() - 1;
        self.open.set(open);
        let crowd = self.crowd.get();
        if crowd < CROWD || open >= crowd / 2 || !can_spawn() {
            return;
        }
        self.crowd.set(0);
        let thread = self.clone();
        spawn_local(async move {
            timer::sleep(GIVE_BACK_MS).await;
            if thread.open.get() < crowd / 2 {
                h1::shrink();
                memory::give_back();
            }
            thread.crowd.set(thread.open.get());
        });
    }

    fn error_log(&self, severity: Severity, message: std::fmt::Arguments<'_>) {
        self.worker.plan().location(Default::default()).error_log.write(severity, None, message);
    }
}

async fn accept_on(thread: Rc<Thread>, listening: Rc<Listening>, acceptor: Rc<RefCell<Acceptor>>) {
    loop {
        match poll_fn(|cx| acceptor.borrow_mut().poll_accept(cx)).await {
            Ok((socket, remote)) => accepted(&thread, &listening, socket, remote),
            Err(error) => pause(&thread, &acceptor, &error).await,
        }
    }
}

fn accepted(
    thread: &Rc<Thread>,
    listening: &Rc<Listening>,
    socket: Socket,
    remote: Option<SocketAddr>,
) {
    let local = local_addr(&socket, &listening.addr);
    start(thread, listening, socket, remote.map_or(Peer::Unix, Peer::Inet), local);
}

fn local_addr(socket: &Socket, listening: &Addr) -> Peer {
    match listening {
        Addr::Tcp(addr) if !addr.ip().is_unspecified() => Peer::Inet(*addr),
        _ => socket.local_addr().map_or(Peer::Unix, Peer::Inet),
    }
}

/// After a failed accept. Running out of descriptors is no reason to spin.
async fn pause(thread: &Thread, acceptor: &RefCell<Acceptor>, error: &io::Error) {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    const ENOBUFS: i32 = 105;
    const ENOMEM: i32 = 12;
    const ENOSPC: i32 = 28;
    let cause = forebay_conf::error::errno_text(error);
    match error.raw_os_error() {
        Some(EMFILE | ENFILE | ENOBUFS | ENOMEM | ENOSPC) => {
            thread.error_log(Severity::Crit, format_args!("accept4() failed ({cause})"));
            timer::shed_idle(32);
            acceptor.borrow_mut().rest();
            timer::sleep(ACCEPT_PAUSE_MS).await;
        }
        // The client was gone before it was accepted.
        _ => thread.error_log(Severity::Info, format_args!("accept4() failed ({cause})")),
    }
}

/// Counts a connection as open for as long as its task lives, however it ends.
struct Open(Rc<Thread>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.left();
        Counters::down(&self.0.worker.counters().active);
        if self.0.worker.quitting.get() {
            self.0.ended.notify_one();
        }
        if std::thread::panicking() {
            // What went wrong, and where, the panic has said on standard error.
            Counters::up(&self.0.worker.counters().panics);
            let text = format_args!("serving a connection panicked; the connection is closed");
            self.0.error_log(Severity::Alert, text);
        }
    }
}

fn start<T: Transport>(
    thread: &Rc<Thread>,
    listening: &Rc<Listening>,
    io: T,
    remote: Peer,
    local: Peer,
) {
    let worker = &thread.worker;
    let counters = worker.counters();
    Counters::up(&counters.accepted);
    thread.make_room();
    // Those that were shed go a moment later; a few more than the limit are open until then.
    if thread.open.get() >= worker.shared.max_connections.load(Relaxed) + 32 {
        return;
    }
    Counters::up(&counters.handled);
    Counters::up(&counters.active);
    thread.open.set(thread.open.get() + 1);
    thread.crowd.set(thread.crowd.get().max(thread.open.get()));
    let open = Open(thread.clone());
    let connection = Rc::new(Connection {
        number: worker.next_connection(),
        socket: Default::default(),
        remote,
        local,
        requests: Cell::new(0),
        started_ms: clock::now_ms(),
        bound: Default::default(),
        proxied: Default::default(),
        tls: Default::default(),
        worker: worker.clone(),
    });
    let io = ClientSocket::new(io, connection.clone());
    let listening = listening.clone();
    let (plan, index) = listening.plan(worker);
    let listener = &plan.listeners[index];
    // Each is spawned as it is: what wraps a future makes every idle connection larger.
    if listener.proxy_protocol {
        spawn_local(serve_proxied(open, io, connection, listening));
    } else if listener.ssl {
        spawn_local(serve_tls(open, io, connection, listening, Vec::new()));
    } else if h2::is_on(&plan, listener, listener.names_of(&connection).default) {
        spawn_local(serve_either(open, io, connection, listening, Vec::new()));
    } else {
        spawn_local(h1::serve(open, io, connection, listening, None));
    }
}

/// Serves a connection that begins with a PROXY header.
async fn serve_proxied<T: Transport>(
    open: Open,
    mut io: T,
    connection: Rc<Connection>,
    listening: Rc<Listening>,
) {
    let (plan, index) = listening.plan(&connection.worker);
    let read = proxied::read(&mut io, &plan, &plan.listeners[index], &connection);
    let Some((proxied, rest)) = Box::pin(read).await else { return };
    drop(plan);
    // Set once, before anybody looks.
    let _ = connection.proxied.set(Box::new(proxied));
    let (plan, index) = listening.plan(&connection.worker);
    let listener = &plan.listeners[index];
    if listener.ssl {
        spawn_local(serve_tls(open, io, connection, listening, rest));
        return;
    }
    if h2::is_on(&plan, listener, listener.names_of(&connection).default) {
        spawn_local(serve_either(open, io, connection, listening, rest));
        return;
    }
    let preread = (!rest.is_empty()).then(|| rest.into_boxed_slice());
    h1::serve(open, io, connection, listening, preread).await;
}

/// Shakes hands, and leaves what was agreed on to a task of its own: an idle connection is not to
/// weigh what its handshake did.
async fn serve_tls<T: Transport>(
    open: Open,
    io: T,
    connection: Rc<Connection>,
    listening: Rc<Listening>,
    first: Vec<u8>,
) {
    match Box::pin(tls::shake_hands(io, first, &connection, &listening)).await {
        Some(Shaken::Tls(io)) if connection.tls.get().is_some_and(|tls| tls.speaks_http2()) => {
            spawn_local(h2::serve(open, io, connection, listening, None));
        }
        Some(Shaken::Tls(io)) => {
            spawn_local(h1::serve(open, io, connection, listening, None));
        }
        Some(Shaken::Plain(io, read)) => {
            let first = Some(read.into_boxed_slice());
            spawn_local(h1::serve(open, io, connection, listening, first));
        }
        None => {}
    }
}

/// Whether a first line is none of HTTP/1: then it is a broken preface (RFC 9113 §3.4).
///
/// DIFFERS(h2c-broken-preface): nginx answers it with a page of HTTP/1.
fn is_neither(first: &[u8]) -> bool {
    let Some(end) = memchr::memchr(b'\n', first) else { return false };
    let line = &first[..end];
    let words = line.split(|ch| *ch == b' ').count();
    words > 2 && memchr::memmem::find(line, b"HTTP/1").is_none()
}

/// Serves a connection without TLS whose first bytes say which protocol it speaks: HTTP/2 begins with
/// its preface ("prior knowledge", RFC 9113 §3.3), as in nginx since 1.25.1. `first`: what was read
/// already.
async fn serve_either<T: Transport>(
    open: Open,
    mut io: T,
    connection: Rc<Connection>,
    listening: Rc<Listening>,
    mut first: Vec<u8>,
) {
    let timer = timer::Timer::new();
    timer.set_idle(timer::Idle::First);
    let (plan, index) = listening.plan(&connection.worker);
    let default = plan.server(plan.listeners[index].names.default);
    timer.arm(default.settings.client_header_timeout_ms);
    drop(plan);
    while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
        let read = poll_fn(|cx| {
            // Nothing is held while nothing comes.
            let mut buf =
                if first.is_empty() { pool::buffer() } else { std::mem::take(&mut first) };
            if buf.capacity() == buf.len() {
                buf.reserve(1024);
            }
            let read = io.poll_read(cx, &mut buf);
            if buf.is_empty() {
                pool::recycle(buf);
            } else {
                first = buf;
            }
            match read {
                Poll::Ready(read) => Poll::Ready(Some(read.unwrap_or(0))),
                Poll::Pending => timer.poll_expired(cx).map(|()| None),
            }
        });
        match read.await {
            Some(0) => break,
            Some(_) => {}
            None => return,
        }
    }
    drop(timer);
    let is_http2 = first.starts_with(PREFACE) || is_neither(&first);
    let first = (!first.is_empty()).then(|| first.into_boxed_slice());
    // A task of its own, as large as it must be and no larger.
    if is_http2 {
        spawn_local(h2::serve(open, io, connection, listening, first));
    } else {
        spawn_local(h1::serve(open, io, connection, listening, first));
    }
}

#[cfg(test)]
mod tests;
