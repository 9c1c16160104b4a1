//! The life of one HTTP/1 connection.

use std::{cell::RefCell, future::poll_fn, io, mem, rc::Rc, task::Poll};

use forebay_rt::{
    clock, memory,
    pool::{self, Pooled},
    task,
    timer::{Idle, Timer},
    transport::Transport,
};
use forebay_session::log::Severity;
use forebay_wire::{
    Reject,
    h1::{self, BodyLength, FieldId, Method, Parser, Progress, Version},
};

use super::{
    ahead::Ahead,
    body::{BodyReader, H1Client},
    close::{self, Patience},
    complain,
    head::{self, Framing},
    refused,
    send::{self, SendError},
};
use crate::{
    client::{BodyError, Client},
    core::Lingering,
    engine, files,
    names::Names,
    plan::Plan,
    request::{Connection, Input, LOGGING, Parts, Request},
    response::Response,
    special, target,
    worker::{Counters, Listening},
};

/// What follows a request.
enum Next {
    /// Wait for the next one, that long.
    Wait { keepalive_ms: u64 },
    /// The next one has arrived already, at least in part.
    Ready(Ahead),
    /// The connection ends.
    Close,
}

/// Serves a connection to its end.
///
/// `first`: what was read already. `open` lives as long as the connection does.
// An `async fn` would keep each argument twice, as it came and as it is used: a third of what an idle
// connection weighs.
#[allow(clippy::manual_async_fn)]
pub fn serve<T: Transport, G: 'static>(
    open: G,
    mut io: T,
    connection: Rc<Connection>,
    listening: Rc<Listening>,
    mut first: Option<Box<[u8]>>,
) -> impl Future<Output = ()> {
    async move {
        let _open = &open;
        let timer = Timer::new();
        timer.arm(first_timeout_ms(&connection, &listening));
        loop {
            let buf = match first.take() {
                Some(buf) => buf.into_vec(),
                None => match wait(&mut io, &timer, &connection).await {
                    Arrived::Bytes(buf) => buf,
                    Arrived::Closed => return complain::gone_idle(&connection, &listening.addr),
                    Arrived::Broken(error) => {
                        return complain::broken_idle(&connection, &listening.addr, &error);
                    }
                    Arrived::TimedOut => {
                        return complain::timed_out_idle(&connection, &listening.addr);
                    }
                    Arrived::Shed => return,
                },
            };
            let ahead = Ahead::from(buf);
            match Pooled::new(|| active(&mut io, &timer, &connection, &listening, ahead)).await {
                Some(keepalive_ms) => timer.arm(keepalive_ms),
                None => return,
            }
        }
    }
}

/// How long a client may take for the head of its first request, counted from its connecting.
fn first_timeout_ms(connection: &Connection, listening: &Listening) -> u64 {
    let (plan, index) = listening.plan(&connection.worker);
    let listener = &plan.listeners[index];
    plan.server(listener.names.default).settings.client_header_timeout_ms
}

/// What one request leaves for the next one to use.
struct Warm {
    parser: Parser,
    parts: Option<Parts>,
}

thread_local! {
    // The one that was used last is taken first: it is still in the caches.
    #[expect(clippy::vec_box, reason = "to take one is not to move it")]
    static WARM: RefCell<Vec<Box<Warm>>> = const { RefCell::new(Vec::new()) };
}

/// How many sets of request memory a thread keeps for connections that wake up.
const KEPT: usize = 256;
/// How many are left when a crowd of connections has gone.
const KEPT_QUIET: usize = 16;

/// Gives back most of what this thread keeps for requests.
pub fn shrink() {
    WARM.with_borrow_mut(|kept| kept.truncate(KEPT_QUIET));
}

/// How many requests that follow each other without a pause are answered before other connections have
/// their turn: few, so that thousands who send without a pause leave the others a chance; in nginx it is
/// one (`ngx_http_set_keepalive_handler`).
const MAX_IN_TURN: u32 = 4;

/// Serves a request, and those that follow it without a pause; how long the connection may be idle then,
/// `None` where it ends.
async fn active<T: Transport>(
    io: &mut T,
    timer: &Timer,
    connection: &Rc<Connection>,
    listening: &Listening,
    mut ahead: Ahead,
) -> Option<u64> {
    let mut warm = WARM.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
        Box::new(Warm { parser: Parser::default(), parts: Some(Parts::default()) })
    });
    // What a PROXY header left over is not a request behind another.
    let mut pipelined = false;
    let mut in_turn = 0;
    let idle = loop {
        let next = exchange(io, timer, connection, listening, &mut warm, ahead, pipelined).await;
        match next {
            Next::Close => break None,
            Next::Ready(more) => {
                (ahead, pipelined) = (more, true);
                in_turn = (in_turn + 1) % MAX_IN_TURN;
                if in_turn == 0 {
                    task::yield_now().await;
                }
            }
            // A thread that quits closes it in a moment.
            Next::Wait { .. } if listening.is_gone() => break None,
            Next::Wait { keepalive_ms } => break Some(keepalive_ms),
        }
    };
    WARM.with_borrow_mut(|kept| {
        if kept.len() < KEPT && warm.parts.is_some() {
            kept.push(warm);
        }
    });
    idle
}

/// What came of waiting for a request.
enum Arrived {
    Bytes(Vec<u8>),
    /// The client left.
    Closed,
    /// Nothing can be read any more.
    Broken(io::Error),
    /// It was told to make room.
    Shed,
    TimedOut,
}

async fn wait<T: Transport>(io: &mut T, timer: &Timer, connection: &Connection) -> Arrived {
    timer.set_idle(if connection.requests.get() == 0 { Idle::First } else { Idle::Kept });
    let arrived = poll_fn(|cx| {
        if io.poll_readable(cx).is_ready() {
            memory::prefetch(connection);
            let mut buf = pool::buffer();
            match io.poll_read(cx, &mut buf) {
                Poll::Ready(Ok(read)) if read > 0 => return Poll::Ready(Arrived::Bytes(buf)),
                Poll::Ready(ended) => {
                    pool::recycle(buf);
                    return Poll::Ready(ended.map_or_else(Arrived::Broken, |_| Arrived::Closed));
                }
                Poll::Pending => pool::recycle(buf),
            }
        }
        let shed = timer.is_shed();
        let ended = if shed { Arrived::Shed } else { Arrived::TimedOut };
        timer.poll_expired(cx).map(|()| ended)
    })
    .await;
    timer.set_idle(Idle::No);
    arrived
}

/// Counts a request in one of its states, and no longer when it leaves it, however it leaves.
struct Counted<'a>(&'a std::sync::atomic::AtomicU64);

impl<'a> Counted<'a> {
    fn new(counter: &'a std::sync::atomic::AtomicU64) -> Self {
        Counters::up(counter);
        Counted(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        Counters::down(self.0);
    }
}

/// One request and its response.
async fn exchange<T: Transport>(
    io: &mut T,
    timer: &Timer,
    connection: &Rc<Connection>,
    listening: &Listening,
    warm: &mut Warm,
    mut ahead: Ahead,
    pipelined: bool,
) -> Next {
    let worker = &connection.worker;
    let (plan, index) = listening.plan(worker);
    let names = plan.listeners[index].names_of(connection);
    let default = match connection.tls.get() {
        None => names.default,
        Some(tls) => tls.default_server(names),
    };
    let counters = worker.counters();
    Counters::up(&counters.requests);
    connection.requests.set(connection.requests.get() + 1);
    let Some(mut parts) = warm.parts.take() else { return Next::Close };
    let input = parts.input();
    input.begin(ahead.begin_head(), pipelined);
    let settings = &plan.server(default).settings;
    let parsed = {
        let _reading = Counted::new(&counters.reading);
        timer.arm(settings.client_header_timeout_ms);
        warm.parser.reset();
        if names.heads_differ {
            warm.parser.stop_at_host();
        }
        let by_host = |sent: &[u8]| Some(&names.settings_for(sent, &plan)?.head);
        let options = &settings.head;
        read_head(io, timer, &mut warm.parser, input, &mut ahead, options, by_host).await
    };
    timer.disarm();
    warm.parser.swap_head(&mut input.head);
    let _writing = Counted::new(&counters.writing);
    let mut r = Request::new(plan.clone(), connection.clone(), default, parts);
    let next = match parsed {
        Ok(consumed) => {
            ahead.end_head(&mut r.input_mut().buf, consumed);
            // Empty lines before a request are none of it.
            r.bytes_read = consumed as u64 - u64::from(r.input.head.request_line.start);
            let verdict = prepare(&mut r, &plan, names);
            // Nobody would answer the next one.
            r.keep_alive &= !listening.is_gone();
            complain::skipped_lines(&mut r, verdict.err());
            converse(io, timer, &plan, &mut r, ahead, verdict).await
        }
        Err(HeadError::Rejected(reject)) => {
            // The line that the log shows may be longer than what was looked at.
            ahead.more_of_head(&mut r.input_mut().buf, usize::MAX);
            let unknown = r.version() == Version::Http09 && reject != Reject::Invalid09Method;
            if unknown || reject == Reject::UriTooLong {
                // Which version it would have been is not known: the answer has a head.
                r.input_mut().head.version = Version::Http10;
            }
            r.bytes_read = warm.parser.lines_bytes();
            let reject = refused::settle(&mut r, &plan, names, reject);
            complain::skipped_lines(&mut r, Some(reject));
            converse(io, timer, &plan, &mut r, Ahead::default(), Err(reject)).await
        }
        Err(HeadError::Gone(error)) => {
            refused::cut_short(&mut r, &plan, names, &warm.parser);
            complain::gone(&r, error.as_ref());
            unanswered(&plan, &mut r, 400)
        }
        Err(HeadError::TimedOut) => {
            refused::cut_short(&mut r, &plan, names, &warm.parser);
            complain::head_timed_out(&r);
            if default_resets(&plan, &r) {
                io.reset_on_close();
            }
            unanswered(&plan, &mut r, 408)
        }
    };
    warm.parts = Some(r.into_parts());
    next
}

/// Lets the engine answer, sends what it answered, writes it down.
async fn converse<T: Transport>(
    io: &mut T,
    timer: &Timer,
    plan: &Plan,
    r: &mut Request,
    ahead: Ahead,
    verdict: Result<(), Reject>,
) -> Next {
    let framing = match verdict {
        Ok(()) => r.input.framing,
        Err(_) => h1::Framing::default(),
    };
    let mut body = BodyReader::new(framing.body, ahead, framing.expect_continue);
    let mut client = H1Client { io: &mut *io, timer, body: &mut body, interim: b"", armed: false };
    let mut verdict = verdict;
    if verdict.is_ok() {
        engine::answer(r, &mut client).await;
        // As in nginx, a body that is only thrown away does not count as `$request_length`.
        r.bytes_read += client.take_wire_bytes();
        // What has come of a body that nobody read must be one, or the next request is anything.
        if !client.body.broken() && client.body.discard_ahead().is_err() {
            verdict = chunks_are_broken(r);
        }
        if r.input.head.method == Method::Connect && r.is_refusal_in_disguise() {
            verdict = Err(Reject::Connect);
        }
    }
    if let Err(reject) = verdict {
        r.keep_alive = false;
        complain::reject(r, reject);
        let status = reject.status();
        match reject {
            Reject::InvalidChunked => engine::refuse(r, &mut client, status).await,
            _ => engine::reject(r, &mut client, status).await,
        }
    }
    let next = respond(io, timer, plan, r, &mut body, verdict.is_err()).await;
    r.end_upstream();
    r.bytes_sent += body.interim_bytes;
    if !r.location().core.post_action.is_empty() {
        engine::post_action(r).await;
    }
    log(plan, r);
    next
}

enum HeadError {
    Rejected(Reject),
    Gone(Option<io::Error>),
    TimedOut,
}

/// Reads until the head is complete; how many bytes it has. `by_host`: the options of the server that is
/// called so, by which what follows the host is judged (`ngx_http_set_virtual_server`).
async fn read_head<'a, T: Transport>(
    io: &mut T,
    timer: &Timer,
    parser: &mut Parser,
    input: &mut Input,
    ahead: &mut Ahead,
    mut options: &'a h1::Options,
    by_host: impl Fn(&[u8]) -> Option<&'a h1::Options>,
) -> Result<usize, HeadError> {
    loop {
        match parser.advance(&input.buf, options) {
            Ok(Some(Progress::Complete { consumed })) => return Ok(consumed),
            Ok(Some(Progress::Partial)) => {}
            Ok(None) => {
                let host = h1::named_host(parser.head(), &input.buf);
                options = host.and_then(|host| by_host(host.of(&input.buf))).unwrap_or(options);
                continue;
            }
            Err(reject) => return Err(HeadError::Rejected(reject)),
        }
        let twice = input.buf.len();
        if ahead.more_of_head(&mut input.buf, twice) {
            continue;
        }
        // What comes from here on is in the one buffer alone.
        *ahead = Ahead::default();
        if input.buf.capacity() - input.buf.len() < 1024 {
            input.buf.reserve(input.buf.len());
        }
        let read = poll_fn(|cx| {
            if let Poll::Ready(read) = io.poll_read(cx, &mut input.buf) {
                return Poll::Ready(read.map_err(|error| HeadError::Gone(Some(error))));
            }
            timer.poll_expired(cx).map(|()| Err(HeadError::TimedOut))
        })
        .await?;
        if read == 0 {
            return Err(HeadError::Gone(None));
        }
    }
}

/// From the parsed head to a request that the engine can take: framing, host, server, path.
fn prepare(r: &mut Request, plan: &Plan, names: &Names) -> Result<(), Reject> {
    let input = r.input_mut();
    match h1::framing(&input.head, &input.buf, input.known.as_sent()) {
        Ok(framing) => input.framing = framing,
        Err(reject) => return Err(refused::settle(r, plan, names, reject)),
    }
    let default = (r.server, r.location);
    if let Err(reject) = target::resolve(r, plan, names) {
        if reject.in_request_line() {
            refused::forget_target(r, default);
        }
        refused::forget_the_rest(r, reject);
        // Nor is its length known to the page that is shown for it.
        r.input_mut().framing.body = BodyLength::None;
        return Err(reject);
    }
    let takes_connect = plan.server(r.server).settings.takes_connect;
    h1::check_connect(&r.input.head, &r.input.framing, takes_connect)
}

/// There was an answer already when the chunks behind it turned out to be none.
#[cold]
fn chunks_are_broken(r: &mut Request) -> Result<(), Reject> {
    if r.asks_for_body == Some(false) && !r.showing_error_page {
        // A built-in page is sent all the same (`ngx_http_special_response_handler`).
        r.keep_alive = false;
        complain::reject(r, Reject::InvalidChunked);
        return Ok(());
    }
    // nginx finds that out before it makes the answer.
    *r.response = Response::default();
    Err(Reject::InvalidChunked)
}

fn default_resets(plan: &Plan, r: &Request) -> bool {
    plan.location(r.location).core.reset_timedout_connection
}

/// A request that gets no answer: nobody is there to read it.
fn unanswered(plan: &Plan, r: &mut Request, status: u16) -> Next {
    r.response.status = status;
    log(plan, r);
    Next::Close
}

fn log(plan: &Plan, r: &Request) {
    r.main.doing.set(LOGGING);
    for logger in &plan.location(r.location).loggers {
        logger.log(r);
    }
}

/// Sends the response and brings the connection to where the next request can begin.
async fn respond<T: Transport>(
    io: &mut T,
    timer: &Timer,
    plan: &Plan,
    r: &mut Request,
    body: &mut BodyReader,
    rejected: bool,
) -> Next {
    if r.ends_without_answer() || body.gone() {
        // `return 408` alone is no time that ran out (ngx_http_finalize_request).
        if (body.timed_out() || r.response.status == 444) && default_resets(plan, r) {
            io.reset_on_close();
        }
        return Next::Close;
    }
    let core = &plan.location(r.location).core;
    if body.expects_continue() && r.asks_for_body != Some(false) {
        // nginx asks for a body even to throw it away, so that the connection can be kept.
        let mut client =
            H1Client { io: &mut *io, timer, body: &mut *body, interim: b"", armed: false };
        if client.send_continue(core.send_timeout_ms).await.is_err() {
            return Next::Close;
        }
    }
    if body.broken() || body.awaits_continue() {
        // DIFFERS(expect-unread): nginx takes for the body what comes next. Whether it is one cannot
        // be known.
        r.keep_alive = false;
    }
    let framing = frame(plan, r);
    let mut out = pool::buffer();
    if r.version() > Version::Http09 {
        head::write(plan, r, framing, &mut out);
    }
    let sent = match r.response.uploading.0.take() {
        None => send::send(io, timer, r, framing, out).await,
        Some(upload) => {
            let uploading = (&mut *body, &*upload);
            send::send_while_uploading(io, timer, r, framing, out, uploading).await
        }
    };
    // DIFFERS(completion-is-whole): nginx calls a response complete that its upstream broke off.
    r.completed = sent.is_ok();
    if let Err(error) = sent {
        return broken(io, plan, r, error);
    }
    if let Some(tunnel) = r.response.tunnel.take() {
        let ahead = mem::take(&mut body.ahead);
        let moved = tunnel.run(io, timer, ahead.into_vec()).await;
        r.bytes_sent += moved.sent;
        return Next::Close;
    }
    if framing.keep_alive {
        return keep(io, timer, plan, r, body).await;
    }
    let unread = !body.finished() || !body.ahead.is_empty() || rejected;
    let linger = match core.lingering_close {
        Lingering::Off => false,
        // The rest of a body that is too large is on its way, and the client hears the answer only if
        // that is read (ngx_http_request_body_chunked_filter).
        Lingering::On => unread && (!body.broken() || body.too_large()),
        Lingering::Always => true,
    };
    if linger {
        let (time_ms, timeout_ms) = (core.lingering_time_ms, core.lingering_timeout_ms);
        close::linger(io, timer, Patience { time_ms, timeout_ms, bytes: u64::MAX }).await;
    } else {
        // Nothing can be done for a client that is gone.
        let _ = close::shut_down(io, timer).await;
    }
    Next::Close
}

fn broken<T: Transport>(io: &T, plan: &Plan, r: &Request, error: SendError) -> Next {
    match error {
        SendError::Gone => r.log_error(
            Severity::Info,
            format_args!("client prematurely closed connection while sending response to client"),
        ),
        SendError::Left => r.log_error(
            Severity::Info,
            format_args!(
                "epoll_wait() reported that client prematurely closed connection, so upstream \
                 connection is closed too while reading upstream"
            ),
        ),
        SendError::TimedOut => {
            complain::timed_out(r, " while sending response to client");
            if default_resets(plan, r) {
                io.reset_on_close();
            }
        }
        SendError::Truncated(fault) if fault.is_told() => {}
        SendError::Truncated(_) => r.log_error(
            Severity::Alert,
            format_args!("response body was truncated while sending response to client"),
        ),
        SendError::FileEnded(at) => r.log_error(
            Severity::Alert,
            format_args!(
                "sendfile() reported that \"{}\" was truncated at {at} while sending response to \
                 client",
                files::shown_path(r)
            ),
        ),
        SendError::FileUnread(wanted) => r.log_error(
            Severity::Alert,
            format_args!(
                "pread() read only 0 of {wanted} from \"{}\" while sending response to client",
                files::shown_path(r)
            ),
        ),
    }
    Next::Close
}

/// Decides how the end of the body is told and whether the connection stays.
///
/// DIFFERS(no-content-with-1xx): nginx sends what `return 100 text` says as content.
fn frame(plan: &Plan, r: &mut Request) -> Framing {
    let core = &plan.location(r.location).core;
    let status = r.response.status;
    let tunnel = r.response.tunnel.is_some();
    let bodiless = r.version() != Version::Http09
        && (r.method == Method::Head
            || r.response.header_only
            || tunnel
            || matches!(status, 100..=199 | 204 | 304));
    if status == 204 {
        // ngx_http_header_filter. A 304 keeps what it has: a back end may tell the length. So may one
        // the type, with a status line of its own.
        r.response.content_length = None;
        if !r.upstream.leads() || r.error_status != 0 {
            r.response.content_type = None;
        }
    }
    if !matches!(status, 200 | 206 | 304) {
        // The page of an error is not what the client asked for, so neither is its time.
        r.response.last_modified = None;
    }
    // DIFFERS(keep-alive-before-location): nginx looks at these once a location is known.
    let connection = &r.connection;
    let worn = connection.requests.get() >= core.keepalive_requests
        || clock::now_ms() - connection.started_ms > core.keepalive_time_ms;
    let mut keep_alive = r.keep_alive
        && core.keepalive_timeout_ms > 0
        && !worn
        && !connection.worker.quitting.get()
        && !keepalive_disabled(r);
    // ngx_http_chunked_header_filter: nothing is chunked that has no body, HEAD included; trailers
    // need chunks whatever the length.
    let has_length = r.response.content_length.is_some();
    let no_body_at_all =
        tunnel || r.method == Method::Head || matches!(status, 100..=199 | 204 | 304);
    let wants_chunks = !no_body_at_all && (!has_length || !r.response.trailers.is_empty());
    let chunked = wants_chunks && r.version() == Version::Http11 && core.chunked_transfer_encoding;
    if wants_chunks && !chunked && !has_length {
        keep_alive = false;
    }
    r.keep_alive = keep_alive;
    r.response.chunked = chunked;
    Framing { chunked, keep_alive, bodiless }
}

/// `keepalive_disable`: browsers that lose data on connections used again.
fn keepalive_disabled(r: &Request) -> bool {
    let disable = r.location().core.keepalive_disable;
    let agent = r.field(FieldId::UserAgent).unwrap_or_default();
    let has = |text: &[u8]| memchr::memmem::find(agent, text).is_some();
    let another = || has(b"Gecko/") || has(b"Chrome/") || has(b"Opera") || special::is_msie(agent);
    let safari = || has(b"Safari/") && has(b"Mac OS X") && !another();
    // As it was asked: a page for an error is got.
    let posted = r.input.head.method == Method::Post;
    (disable.msie6 && posted && special::is_msie6(agent)) || (disable.safari && safari())
}

/// Reads what is left of the request body, then waits for the next request or has it already.
async fn keep<T: Transport>(
    io: &mut T,
    timer: &Timer,
    plan: &Plan,
    r: &Request,
    body: &mut BodyReader,
) -> Next {
    let core = &plan.location(r.location).core;
    if !body.finished() {
        let mut client =
            H1Client { io: &mut *io, timer, body: &mut *body, interim: b"", armed: false };
        // Behind the response, it would be one to the next request.
        client.forgo_continue();
        let end = clock::now_ms().saturating_add(core.lingering_time_ms);
        loop {
            let piece = poll_fn(|cx| client.poll_body(0, core.lingering_timeout_ms, cx)).await;
            match piece {
                Ok(Some(_)) if clock::now_ms() < end => {}
                Ok(None) => break,
                Err(BodyError::Malformed) => {
                    complain::reject(r, Reject::InvalidChunked);
                    return Next::Close;
                }
                _ => return Next::Close,
            }
        }
    }
    let ahead = mem::take(&mut body.ahead);
    if ahead.is_empty() {
        Next::Wait { keepalive_ms: core.keepalive_timeout_ms }
    } else {
        Next::Ready(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        socket::ClientSocket,
        testing::{self, Line},
    };
    use forebay_rt::{listen::Addr, transport::Socket};
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    #[test]
    fn an_idle_connection_is_a_task_of_160_bytes() {
        let connection =
            testing::request("", "GET / HTTP/1.1\r\nHost: a\r\n\r\n").connection.clone();
        let addr = Addr::Unix("/".into());
        let listening = Rc::new(Listening::new(addr, 0));
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = ClientSocket::new(Socket::new(socket.into()), connection.clone());
        let serving = serve(connection.clone(), socket, connection, listening, None);
        // The event loop boxes it as it is.
        assert!(size_of_val(&serving) <= 160, "{}", size_of_val(&serving));
    }

    #[test]
    fn who_asks_without_a_pause_lets_others_have_their_turn() {
        let connection =
            testing::request("return 204;", "GET / HTTP/1.1\r\n\r\n").connection.clone();
        let listening = Rc::new(Listening::new(Addr::Unix("/".into()), 0));
        let line = Line::default();
        let asked = 10_000;
        line.say(&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(asked));
        let mut serving = pin!(serve((), line.clone(), connection.clone(), listening, None));
        assert!(serving.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let answered = connection.requests.get() as usize;
        assert!(answered < 100, "{answered}");
    }

    #[test]
    fn the_last_packet_of_a_connection_goes_with_its_end() {
        let connection_of =
            |conf| testing::request(conf, "GET / HTTP/1.1\r\n\r\n").connection.clone();
        let whole = "return 200 text;";
        let chunked = "return 200 text; sub_filter a b; sub_filter_types *;";
        let ends = [
            (whole, "", (false, false)),
            (whole, "Connection: close\r\n", (true, true)),
            (chunked, "", (false, false)),
            (chunked, "Connection: close\r\n", (true, true)),
            ("return 200 text; lingering_close always;", "Connection: close\r\n", (true, true)),
            ("return 200 text; keepalive_timeout 0;", "", (true, true)),
        ];
        for (conf, fields, want) in ends {
            let connection = connection_of(conf);
            let listening = Rc::new(Listening::new(Addr::Unix("/".into()), 0));
            let line = Line::default();
            line.say(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
            let mut serving = pin!(serve((), line.clone(), connection, listening, None));
            let _ = serving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(line.0.told.borrow().starts_with(b"HTTP/1.1 200"), "{conf}");
            assert_eq!((line.0.more.get(), line.0.ended.get()), want, "{conf} {fields}");
        }
    }
}
