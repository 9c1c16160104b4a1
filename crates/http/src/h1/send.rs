//! Sends a response: head and body leave together, what is ready leaves at once, and a slow client
//! slows the source.
//!
//! Hot path: a body in memory is one system call with its head.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::IoSlice,
    os::fd::AsFd,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use forebay_rt::{pool, timer::Timer, transport::Transport};
use forebay_wire::h1::encode::write_chunk_size;

use super::{
    body::{BodyReader, H1Client},
    head::Framing,
};
use crate::{
    body::{Body, Chunk, Fault, FileSlice},
    core::Settings,
    files,
    pace::Pace,
    request::Request,
    response::{Ahead, LateTrailers},
    upstream::body::Upload,
};

/// Why a response could not be sent whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The client closed or reset the connection.
    Gone,
    /// It did while there was nothing to send.
    Left,
    /// It took nothing for `send_timeout`.
    TimedOut,
    /// The body ended before its end; the client sees the connection close.
    Truncated(Fault),
    /// The file of the body did: the kernel sent nothing from this offset.
    FileEnded(u64),
    /// The same, where the file is read: it gave nothing of so many bytes.
    FileUnread(usize),
}

/// Bodies up to that size are copied behind their head: cheaper than to name two pieces to the kernel.
const JOINED_BYTES: usize = 4096;
/// How much is gathered before a write: enough for the kernel to fill its packets.
const GATHER_BYTES: u64 = 128 << 10;
/// What sendfile answers for files that the kernel cannot send itself.
const EINVAL: i32 = 22;
/// How many slices one system call takes.
const MAX_SLICES: usize = 32;

/// Sends the head and `r.response.body`.
///
/// Where the connection ends with the response, its last packet waits for the FIN that the caller sends
/// at once: one packet less for both ends.
pub async fn send<T: Transport>(
    io: &mut T,
    timer: &Timer,
    r: &mut Request,
    framing: Framing,
    head: Vec<u8>,
) -> Result<(), SendError> {
    let (timeout_ms, body, pace) = begin(timer, r, framing, &head);
    let fin_follows = !framing.keep_alive && r.response.tunnel.is_none();
    let core = &r.location().core;
    let whole = match pace.is_none() && !framing.chunked {
        true => whole(body, core.sendfile && io.sends_files()),
        false => Err(body),
    };
    let body = match whole {
        Ok(whole) => {
            let sent = &mut r.bytes_sent;
            return send_whole(io, timer, (timeout_ms, fin_follows), head, whole, sent).await;
        }
        Err(body) => body,
    };
    let mut output = Output::new(r, framing, head, body, pace, io.sends_files());
    output.fin_follows = fin_follows;
    let result = poll_fn(|cx| output.poll(io, timer, timeout_ms, cx)).await;
    output.count(r);
    result
}

fn begin(
    timer: &Timer,
    r: &mut Request,
    framing: Framing,
    head: &[u8],
) -> (u64, Body, Option<Pace>) {
    let body = if framing.bodiless { Body::Empty } else { std::mem::take(&mut r.response.body) };
    timer.disarm();
    r.head_sent = head.len() as u64;
    (r.location().core.send_timeout_ms, body, Pace::of(r))
}

/// The same while the request body goes on to whom the response comes from.
pub async fn send_while_uploading<T: Transport>(
    io: &mut T,
    timer: &Timer,
    r: &mut Request,
    framing: Framing,
    head: Vec<u8>,
    (request_body, upload): (&mut BodyReader, &dyn Upload),
) -> Result<(), SendError> {
    let (timeout_ms, body, pace) = begin(timer, r, framing, &head);
    let mut output = Output::new(r, framing, head, body, pace, io.sends_files());
    // Both sides of the connection are waited for at the same time.
    let reading = Timer::new();
    let (mut interim, mut armed, mut goes_on) = (&b""[..], false, true);
    let result = poll_fn(|cx| {
        if goes_on {
            let (timer, body) = (&reading, &mut *request_body);
            let mut client = H1Client { io: &mut *io, timer, body, interim, armed };
            goes_on = upload.poll_upload(&mut client, cx).is_pending();
            (interim, armed) = (client.interim, client.armed);
        }
        output.poll(io, timer, timeout_ms, cx)
    })
    .await;
    output.count(r);
    result
}

/// A body that needs no queue.
enum Whole {
    Memory(Bytes),
    /// In memory, and sent by the kernel from the pages that it has.
    File(FileSlice),
}

fn whole(body: Body, by_kernel: bool) -> Result<Whole, Body> {
    Ok(match body {
        Body::Empty => Whole::Memory(Bytes::new()),
        Body::Bytes(bytes) => Whole::Memory(bytes),
        Body::File(slice) if by_kernel && slice.in_kernel().is_some() => Whole::File(slice),
        Body::File(slice) => match slice.in_memory() {
            Some(bytes) => Whole::Memory(bytes),
            None => return Err(Body::File(slice)),
        },
        body => return Err(body),
    })
}

async fn send_whole<T: Transport>(
    io: &mut T,
    timer: &Timer,
    (timeout_ms, fin_follows): (u64, bool),
    mut head: Vec<u8>,
    body: Whole,
    sent: &mut u64,
) -> Result<(), SendError> {
    let result = match body {
        Whole::Memory(mut bytes) => {
            if bytes.len() <= JOINED_BYTES {
                head.extend_from_slice(&bytes);
                bytes = Bytes::new();
            }
            send_pair(io, timer, (timeout_ms, fin_follows), &head, &bytes, sent).await
        }
        Whole::File(slice) => send_file(io, timer, timeout_ms, &head, &slice, sent).await,
    };
    pool::recycle(head);
    result
}

/// Sends a head, and behind it in the same packets a file that is in memory: in one piece with it, where
/// there is such a thing.
async fn send_file<T: Transport>(
    io: &mut T,
    timer: &Timer,
    timeout_ms: u64,
    head: &[u8],
    slice: &FileSlice,
    sent: &mut u64,
) -> Result<(), SendError> {
    let mut at = 0_usize;
    let whole = slice.behind(head);
    let left = poll_fn(|cx| {
        loop {
            let offset = at.saturating_sub(head.len()) as u64;
            let left = (slice.len() - offset) as usize;
            let Some(fd) = slice.in_kernel().filter(|_| left > 0) else {
                return Poll::Ready(Ok(left));
            };
            let head_left = head.get(at..).filter(|head| !head.is_empty());
            let result = match (&whole, head_left) {
                (Some(whole), _) if at == 0 => {
                    io.poll_hand_over_file(cx, whole, head.len() + slice.len() as usize)
                }
                (Some(whole), _) => {
                    let all = head.len() + slice.len() as usize;
                    io.poll_send_file(cx, whole.as_fd(), at as u64, all - at)
                }
                (None, Some(head)) => io.poll_write(cx, &[IoSlice::new(head)], true),
                (None, None) => io.poll_send_file(cx, fd, slice.start + offset, left),
            };
            match result {
                // The file was cut short, or its file system cannot: what is in memory is whole.
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(left)),
                Poll::Ready(Err(error)) if error.raw_os_error() == Some(EINVAL) => {
                    return Poll::Ready(Ok(left));
                }
                Poll::Ready(Ok(written)) => {
                    at += written;
                    *sent += written as u64;
                    timer.arm(timeout_ms);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(SendError::Gone)),
                Poll::Pending => {
                    ready!(timer.poll_expired_after(timeout_ms, cx));
                    return Poll::Ready(Err(SendError::TimedOut));
                }
            }
        }
    })
    .await?;
    match slice.in_memory() {
        Some(bytes) if left > 0 => {
            let rest = bytes.slice(bytes.len() - left..);
            let head = &head[at.min(head.len())..];
            send_pair(io, timer, (timeout_ms, false), head, &rest, sent).await
        }
        _ => Ok(()),
    }
}

async fn send_pair<T: Transport>(
    io: &mut T,
    timer: &Timer,
    (timeout_ms, fin_follows): (u64, bool),
    head: &[u8],
    body: &[u8],
    sent: &mut u64,
) -> Result<(), SendError> {
    let mut at = 0;
    poll_fn(|cx| {
        while at < head.len() + body.len() {
            let head_left = &head[at.min(head.len())..];
            let body_left = &body[at.saturating_sub(head.len())..];
            let slices = [IoSlice::new(head_left), IoSlice::new(body_left)];
            let slices = match (head_left.is_empty(), body_left.is_empty()) {
                (true, _) => &slices[1..],
                (_, true) => &slices[..1],
                _ => &slices[..],
            };
            let written = match fin_follows {
                true => io.poll_write(cx, slices, true),
                false => io.poll_hand_over(cx, slices),
            };
            match written {
                Poll::Ready(Ok(written)) => {
                    at += written;
                    *sent += written as u64;
                    if at < head.len() + body.len() {
                        timer.arm(timeout_ms);
                    }
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(SendError::Gone)),
                Poll::Pending => {
                    ready!(timer.poll_expired_after(timeout_ms, cx));
                    return Poll::Ready(Err(SendError::TimedOut));
                }
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

fn trailers(r: &Request, framing: Framing) -> Bytes {
    let mut out = Vec::new();
    if framing.chunked {
        out.extend_from_slice(b"0\r\n");
        for field in r.response.trailers.iter().filter(|field| !field.value.is_empty()) {
            forebay_wire::h1::encode::write_field(&mut out, &field.name, &field.value);
        }
        out.extend_from_slice(b"\r\n");
    }
    out.into()
}

impl LateTrailers {
    /// The end of a chunked body with what has come since its beginning.
    fn add_to(&self, trailers: Bytes) -> Bytes {
        let Some(state) = &self.0 else { return trailers };
        let mut out = trailers.strip_suffix(b"\r\n").unwrap_or(&trailers).to_vec();
        state.each_trailer(|field| {
            forebay_wire::h1::encode::write_field(&mut out, &field.name, &field.value);
        });
        out.extend_from_slice(b"\r\n");
        out.into()
    }
}

fn max_file_chunk(core: &Settings) -> u64 {
    match core.sendfile_max_chunk {
        0 => u64::from(u32::MAX),
        limit => limit,
    }
}

struct Output {
    queue: VecDeque<Chunk>,
    queued: u64,
    body: Option<Body>,
    chunked: bool,
    trailers: Bytes,
    sendfile: bool,
    max_file_chunk: u64,
    read_bytes: usize,
    reader: files::Reader,
    pace: Option<Pace>,
    sent: u64,
    truncated: Option<Fault>,
    /// Whether the connection has been told that a file follows.
    file_follows: bool,
    /// What to read while the client takes nothing.
    ahead: Ahead,
    ends_with_client: bool,
    /// Trailers that come with the end of the body.
    late: LateTrailers,
    /// Whether the connection ends with the response.
    fin_follows: bool,
}

impl Output {
    fn new(
        r: &mut Request,
        framing: Framing,
        head: Vec<u8>,
        body: Body,
        pace: Option<Pace>,
        sends_files: bool,
    ) -> Output {
        let core = &r.location().core;
        Output {
            queue: VecDeque::from([Chunk::Bytes(head.into())]),
            queued: 0,
            body: Some(body),
            chunked: framing.chunked,
            trailers: trailers(r, framing),
            sendfile: core.sendfile && sends_files,
            max_file_chunk: max_file_chunk(core),
            read_bytes: core.output_buffers.1.max(4096),
            reader: files::Reader::default(),
            pace,
            sent: 0,
            truncated: None,
            file_follows: false,
            ahead: std::mem::take(&mut r.response.ahead),
            ends_with_client: r.response.ends_with_client,
            late: std::mem::take(&mut r.response.late_trailers),
            fin_follows: false,
        }
    }

    /// What was sent, head and all.
    fn count(&self, r: &mut Request) {
        r.bytes_sent += self.sent;
        r.head_sent = r.head_sent.min(r.bytes_sent);
    }

    fn poll<T: Transport>(
        &mut self,
        io: &mut T,
        timer: &Timer,
        timeout_ms: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let mut waiting = false;
        let sent_before = self.sent;
        loop {
            // A source that said "later" in this turn is not asked again: one that gives other
            // connections their turn (a compressor) would never get to do so.
            waiting = waiting || self.gather(cx).is_pending();
            let Some(_) = self.queue.front() else {
                self.no_file_follows(io);
                if let Some(fault) = self.truncated {
                    return Poll::Ready(Err(SendError::Truncated(fault)));
                }
                if waiting {
                    if self.ends_with_client && io.poll_peer_closed(cx).is_ready() {
                        return Poll::Ready(Err(SendError::Left));
                    }
                    timer.disarm();
                    return Poll::Pending;
                }
                return Poll::Ready(Ok(()));
            };
            if self.sent - sent_before >= self.max_file_chunk {
                // A client that takes it all lets others have their turn (`ngx_http_write_filter`).
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let allowance = match &self.pace {
                None => u64::MAX,
                Some(pace) => match pace.allowance(self.sent) {
                    0 => {
                        timer.disarm();
                        self.read_ahead(cx);
                        ready!(pace.timer.poll_expired(cx));
                        continue;
                    }
                    allowance => allowance,
                },
            };
            match self.write(io, allowance, waiting, cx) {
                Poll::Ready(Ok(())) => timer.arm(timeout_ms),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.read_ahead(cx);
                    ready!(timer.poll_expired_after(timeout_ms, cx));
                    return Poll::Ready(Err(SendError::TimedOut));
                }
            }
        }
    }

    /// The client takes nothing now: its source need not wait for it.
    fn read_ahead(&self, cx: &mut Context<'_>) {
        if let Some(ahead) = &self.ahead.0 {
            ahead.read_ahead(cx);
        }
    }

    /// Pulls chunks until there is enough, or no more at the moment (`Pending`), or none at all.
    fn gather(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.queued < GATHER_BYTES && self.queue.len() < MAX_SLICES {
            let Some(body) = &mut self.body else { return Poll::Ready(()) };
            match ready!(body.poll_next(cx)) {
                Some(Ok(chunk)) if chunk.is_empty() => {}
                Some(Ok(chunk)) => self.push(chunk),
                Some(Err(fault)) => {
                    self.truncated = Some(fault);
                    self.body = None;
                    if fault != Fault::Upstream && self.sent == 0 && self.queue.len() == 1 {
                        // As in nginx, a head does not leave for a body of which nothing can be made.
                        self.queue.clear();
                    }
                }
                None => {
                    self.body = None;
                    if !self.trailers.is_empty() {
                        let trailers = std::mem::take(&mut self.trailers);
                        self.queue.push_back(Chunk::Bytes(self.late.add_to(trailers)));
                    }
                }
            }
        }
        Poll::Ready(())
    }

    fn push(&mut self, chunk: Chunk) {
        let len = chunk.len();
        self.queued += len;
        if !self.chunked {
            self.queue.push_back(chunk);
            return;
        }
        let mut size = Vec::with_capacity(20);
        write_chunk_size(&mut size, len);
        self.queue.push_back(Chunk::Bytes(size.into()));
        self.queue.push_back(chunk);
        self.queue.push_back(Chunk::Bytes(Bytes::from_static(b"\r\n")));
    }

    fn write<T: Transport>(
        &mut self,
        io: &mut T,
        allowance: u64,
        waiting: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        if let Some(Chunk::File(slice)) = self.queue.front() {
            if self.sendfile && slice.in_memory().is_none() && slice.file.fd().is_some() {
                return self.write_file(io, allowance, cx);
            }
            let slice = slice.clone();
            if let Err(error) = ready!(self.load(&slice, cx)) {
                return Poll::Ready(Err(error));
            }
        }
        self.write_bytes(io, allowance, waiting, cx)
    }

    /// Replaces the file slice in front by bytes read from it.
    fn load(&mut self, slice: &FileSlice, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let (bytes, whole) = match slice.in_memory() {
            Some(bytes) => (bytes, true),
            None => {
                let want = slice.len().min(self.read_bytes as u64) as usize;
                let read = ready!(self.reader.poll_read(slice, want, cx));
                let Some(bytes) = read.ok().filter(|bytes| !bytes.is_empty()) else {
                    return Poll::Ready(Err(SendError::FileUnread(want)));
                };
                let whole = bytes.len() as u64 == slice.len();
                (bytes, whole)
            }
        };
        self.queue.pop_front();
        if !whole {
            let rest = FileSlice { start: slice.start + bytes.len() as u64, ..slice.clone() };
            self.queue.push_front(Chunk::File(rest));
        }
        self.queue.push_front(Chunk::Bytes(bytes));
        Poll::Ready(Ok(()))
    }

    /// Whatever follows, it is no file: nothing waits for one.
    fn no_file_follows<T: Transport>(&mut self, io: &T) {
        if std::mem::take(&mut self.file_follows) {
            io.file_follows(false);
        }
    }

    fn write_file<T: Transport>(
        &mut self,
        io: &mut T,
        allowance: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let Some(Chunk::File(slice)) = self.queue.front_mut() else {
            return Poll::Ready(Ok(()));
        };
        let Some(fd) = slice.file.fd() else {
            return Poll::Ready(Err(SendError::Truncated(Fault::File)));
        };
        let count = slice.len().min(self.max_file_chunk).min(allowance) as usize;
        ready!(self.reader.poll_warm(slice, count as u64, cx));
        let result = io.poll_send_file(cx, fd, slice.start, count);
        let written = match ready!(result) {
            Ok(0) => return Poll::Ready(Err(SendError::FileEnded(slice.start))),
            Ok(written) => written as u64,
            Err(error) if error.raw_os_error() == Some(EINVAL) => {
                // A file system that cannot: read it instead.
                self.sendfile = false;
                self.no_file_follows(io);
                return Poll::Ready(Ok(()));
            }
            Err(_) => return Poll::Ready(Err(SendError::Gone)),
        };
        slice.start += written;
        if slice.is_empty() {
            self.reader.next_slice();
            self.queue.pop_front();
            self.no_file_follows(io);
        }
        self.sent += written;
        self.queued = self.queued.saturating_sub(written);
        Poll::Ready(Ok(()))
    }

    fn write_bytes<T: Transport>(
        &mut self,
        io: &mut T,
        allowance: u64,
        waiting: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut count = 0;
        let mut left = allowance;
        let mut more = match self.body {
            Some(_) => !waiting,
            None => self.fin_follows && self.truncated.is_none(),
        };
        for chunk in &self.queue {
            let Chunk::Bytes(bytes) = chunk else {
                // The file follows at once, in the same packets.
                more = left > 0;
                let by_kernel = matches!(chunk, Chunk::File(f) if f.in_memory().is_none());
                if more && self.sendfile && by_kernel && !self.file_follows {
                    self.file_follows = true;
                    io.file_follows(true);
                }
                break;
            };
            if count == MAX_SLICES || left == 0 {
                break;
            }
            let take = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            slices[count] = IoSlice::new(&bytes[..take]);
            count += 1;
            left -= take as u64;
        }
        let ends = self.body.is_none() && count == self.queue.len();
        let written = match ends && !more {
            true => io.poll_hand_over(cx, &slices[..count]),
            false => io.poll_write(cx, &slices[..count], more && left > 0),
        };
        let written = match ready!(written) {
            Ok(written) => written,
            Err(_) => return Poll::Ready(Err(SendError::Gone)),
        };
        self.sent += written as u64;
        self.queued = self.queued.saturating_sub(written as u64);
        self.advance(written);
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(Chunk::Bytes(bytes)) = self.queue.front_mut() {
            let take = written.min(bytes.len());
            bytes.advance(take);
            written -= take;
            if !bytes.is_empty() {
                return;
            }
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        body::Source,
        files::OpenFile,
        testing::{self, Line},
    };
    use forebay_rt::{clock, task::block_on, transport::Socket};
    use std::{future::Future, io::Read, os::unix::net::UnixStream, pin::pin, rc::Rc, task::Waker};

    /// What arrives of a file, and what is counted.
    fn sent(head: &[u8], contents: &[u8], mirror: &[u8], start: u64) -> (Vec<u8>, u64) {
        let file = OpenFile::of_contents_and_mirror(contents.to_vec().into(), mirror);
        sent_of(&FileSlice { file: Rc::new(file), start, end: contents.len() as u64 }, head)
    }

    fn sent_of(slice: &FileSlice, head: &[u8]) -> (Vec<u8>, u64) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            all
        });
        let mut count = 0;
        block_on(async {
            let (mut io, timer) = (Socket::new(ours.into()), Timer::new());
            let body = whole(Body::File(slice.clone()), true).ok().unwrap();
            assert!(matches!(body, Whole::File(_)));
            let how = (60_000, false);
            send_whole(&mut io, &timer, how, head.to_vec(), body, &mut count).await.unwrap();
        });
        (reader.join().unwrap(), count)
    }

    #[test]
    fn a_file_in_memory_follows_its_head_even_where_the_kernel_has_less_of_it() {
        let contents: Vec<u8> = (0..400_000_u32).map(|n| n as u8).collect();
        for (head, mirrored, start) in [
            (&b"head"[..], 400_000, 0),
            (b"", 400_000, 5),
            (b"head", 100_000, 0),
            (b"head", 0, 399_000 - 5000),
            (b"head", 100, 7),
        ] {
            let (all, count) = sent(head, &contents, &contents[..mirrored], start);
            let want = [head, &contents[start as usize..]].concat();
            assert!(all == want, "{mirrored} from {start}");
            assert_eq!(count, want.len() as u64);
        }
    }

    #[test]
    fn what_goes_out_often_is_the_same_each_time_and_for_each_head() {
        let contents: Vec<u8> = (0..30_000_u32).map(|n| n as u8).collect();
        let file = OpenFile::of_contents_and_mirror(contents.clone().into(), &contents);
        let slice = FileSlice { file: Rc::new(file), start: 0, end: contents.len() as u64 };
        let part = FileSlice { start: 5, ..slice.clone() };
        for head in [&b"head"[..], b"another head"] {
            for _ in 0..40 {
                let (all, count) = sent_of(&slice, head);
                assert!(all == [head, &contents].concat() && count == all.len() as u64);
            }
            assert!(slice.behind(head).is_some() && part.behind(head).is_none());
            assert!(sent_of(&part, head).0 == [head, &contents[5..]].concat());
        }
    }

    const PLAIN: Framing = Framing { chunked: false, keep_alive: true, bodiless: false };

    /// Says "later" once.
    struct Late(bool);

    impl Source for Late {
        fn poll_next(&mut self, _cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
            match std::mem::replace(&mut self.0, true) {
                false => Poll::Pending,
                true => Poll::Ready(Some(Ok(Chunk::Bytes("x".into())))),
            }
        }
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up_whatever_it_took_before() {
        clock::pause();
        let piece = || Chunk::Bytes("x".into());
        for (body, takes_head) in [
            (Body::Bytes("x".into()), false),
            (Body::Chunks([piece()].into()), false),
            (Body::Stream(Box::new(Late(false))), true),
        ] {
            let name = format!("{body:?}");
            let mut r = testing::request("send_timeout 5s;", "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            r.response.body = body;
            let (line, timer) = (Line::default(), Timer::new());
            let mut io = line.clone();
            let mut sending = pin!(send(&mut io, &timer, &mut r, PLAIN, b"head".to_vec()));
            let mut poll = |sends: bool| {
                line.0.is_full.set(!sends);
                sending.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            };
            if takes_head {
                assert!(poll(true).is_pending(), "{name}");
                // While nothing was to be sent, nobody waited for the client.
                clock::advance(60_000);
            }
            assert!(poll(false).is_pending(), "{name}");
            clock::advance(4_000);
            assert!(poll(false).is_pending(), "{name}");
            clock::advance(1_000);
            assert_eq!(poll(false), Poll::Ready(Err(SendError::TimedOut)), "{name}");
        }
    }

    #[test]
    fn a_client_that_takes_everything_lets_others_have_their_turn() {
        let mut r = testing::request("", "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        r.response.body = Body::Chunks((0..8).map(|_| Chunk::Bytes(piece.clone())).collect());
        let (line, timer) = (Line::default(), Timer::new());
        let mut io = line.clone();
        let mut sending = pin!(send(&mut io, &timer, &mut r, PLAIN, b"head".to_vec()));
        let mut turns = 1;
        while sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            turns += 1;
        }
        assert_eq!((turns, line.0.told.borrow().len()), (4, (8 << 20) + 4));
    }
}
