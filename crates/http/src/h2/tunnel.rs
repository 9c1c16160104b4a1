//! A stream that is a tunnel: CONNECT (RFC 9113 §8.5), or CONNECT with `:protocol` (RFC 8441), granted
//! by a server behind us.
//!
//! What the client asked for has become an `Upgrade` of HTTP/1 (`wire::h2::request`), and the 101 that
//! answers it becomes a 200. From then on the stream is a [`Transport`], for the same tunnel that HTTP/1
//! connections become: its bytes are those of DATA frames, its end is END_STREAM, its breaking off
//! RST_STREAM with CANCEL (RFC 8441 §5).
//!
//! *Invariant:* what waits to be sent is never more than [`OUT_BYTES`]: a slow client slows the server.

use std::{
    cell::{Cell, RefCell},
    io::{self, IoSlice},
    rc::Rc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use forebay_rt::{timer::Timer, transport::Transport};
use forebay_wire::{
    base64,
    h1::{Field, FieldId},
};
use sha1::{Digest, Sha1};

use super::client::Inbox;
use crate::{
    request::{Input, Request},
    upstream::upgrade::Tunnel,
};

/// How much of what the server said may wait for the client's window.
const OUT_BYTES: usize = 64 << 10;

/// What the server has said and the client has not got.
#[derive(Default)]
pub struct Outbox {
    data: RefCell<BytesMut>,
    /// Whether nothing more will come.
    ended: Cell<bool>,
    /// Whether it broke off.
    broken: Cell<bool>,
}

impl Outbox {
    /// How much lies here.
    pub fn len(&self) -> usize {
        self.data.borrow().len()
    }

    /// Whether all has been said.
    pub fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Whether the client is to see that it broke off.
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Takes up to so many bytes. An empty box weighs nothing.
    pub fn take(&self, most: usize) -> Bytes {
        let mut data = self.data.borrow_mut();
        let len = data.len().min(most);
        let taken = data.split_to(len).freeze();
        if data.is_empty() {
            *data = BytesMut::new();
        }
        taken
    }
}

/// A stream as a byte stream.
pub struct StreamIo {
    inbox: Rc<Inbox>,
    outbox: Rc<Outbox>,
}

impl StreamIo {
    /// What the client says lies in `inbox`; what it is to get, in `outbox`.
    pub fn new(inbox: Rc<Inbox>, outbox: Rc<Outbox>) -> StreamIo {
        StreamIo { inbox, outbox }
    }
}

impl Transport for StreamIo {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        self.inbox.poll_read(buf, cx)
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        _more: bool,
    ) -> Poll<io::Result<usize>> {
        if self.inbox.is_gone() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let mut data = self.outbox.data.borrow_mut();
        let mut room = OUT_BYTES.saturating_sub(data.len());
        if room == 0 {
            self.inbox.register(cx);
            return Poll::Pending;
        }
        let before = data.len();
        for slice in slices {
            let len = slice.len().min(room);
            data.extend_from_slice(&slice[..len]);
            room -= len;
        }
        Poll::Ready(Ok(data.len() - before))
    }

    fn poll_shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.ended.set(true);
        Poll::Ready(Ok(()))
    }

    fn reset_on_close(&self) {}
}

/// Runs the tunnel of a request to its end.
pub async fn run(r: &mut Request, tunnel: Tunnel, inbox: Rc<Inbox>, outbox: Rc<Outbox>) {
    let mut io = StreamIo::new(inbox, outbox.clone());
    let over = tunnel.run(&mut io, &Timer::new(), Vec::new()).await;
    r.completed = over.whole;
    outbox.broken.set(!over.whole);
}

/// The key that a WebSocket server of HTTP/1 answers to, which clients of HTTP/2 do not send
/// (RFC 8441 §5). Other protocols have none.
pub fn offer(input: &mut Input) {
    let upgrade = input.field(FieldId::Upgrade).unwrap_or_default();
    if !upgrade.eq_ignore_ascii_case(b"websocket") || key(input).is_some() {
        return;
    }
    let start = input.buf.len();
    input.buf.extend_from_slice(KEY);
    let middle = input.buf.len();
    base64::encode(&rand::random::<[u8; 16]>(), &mut input.buf);
    let end = input.buf.len();
    let span = |start: usize, end: usize| forebay_wire::Span::new(start, end);
    let (name, value) = (span(start, middle), span(middle, end));
    input.head.headers.push(Field { name, value, id: FieldId::Other });
}

/// Whether the server has answered to that key (RFC 6455 §4.1).
pub fn is_accepted(r: &Request) -> bool {
    let Some(key) = key(&r.input) else { return true };
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    let mut expected = Vec::new();
    base64::encode(&digest, &mut expected);
    r.response.field(ACCEPT).is_some_and(|accept| accept.trim_ascii() == expected)
}

/// Makes the head of a 101 one of HTTP/2.
pub fn grant(r: &mut Request) {
    if r.response.status == 101 {
        r.response.status = 200;
    }
    r.response.fields.retain(|field| !field.name.eq_ignore_ascii_case(ACCEPT.as_bytes()));
}

fn key(input: &Input) -> Option<&[u8]> {
    let headers = input.head.headers.iter();
    let mut named = headers.filter(|field| field.name.of(&input.buf).eq_ignore_ascii_case(KEY));
    named.next().map(|field| field.value.of(&input.buf))
}

const KEY: &[u8] = b"sec-websocket-key";
const ACCEPT: &str = "Sec-WebSocket-Accept";
/// RFC 6455 §1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{h2::client::Coming, testing};
    use std::task::Waker;

    #[test]
    fn a_stream_is_a_byte_stream_with_bounds_and_ends() {
        let (inbox, outbox) = (Inbox::new(Coming::More), Rc::new(Outbox::default()));
        let mut io = StreamIo::new(inbox.clone(), outbox.clone());
        let cx = &mut Context::from_waker(Waker::noop());
        let mut buf = Vec::with_capacity(3);
        assert!(io.poll_read(cx, &mut buf).is_pending());
        inbox.push(b"abcde");
        assert!(matches!(io.poll_read(cx, &mut buf), Poll::Ready(Ok(3))));
        buf.clear();
        assert!(matches!(io.poll_read(cx, &mut buf), Poll::Ready(Ok(2))));
        assert_eq!((&buf[..], inbox.take_taken()), (&b"de"[..], 5));
        inbox.end(Coming::Nothing);
        assert!(matches!(io.poll_read(cx, &mut buf), Poll::Ready(Ok(0))));
        // It may still be spoken to, as long as it listens.
        let much = vec![b'x'; OUT_BYTES];
        let written = io.poll_write(cx, &[IoSlice::new(b"12"), IoSlice::new(&much)], false);
        assert!(matches!(written, Poll::Ready(Ok(OUT_BYTES))));
        assert!(io.poll_write(cx, &[IoSlice::new(b"3")], false).is_pending());
        assert_eq!((&outbox.take(3)[..], outbox.len()), (&b"12x"[..], OUT_BYTES - 3));
        assert!(io.poll_shutdown(cx).is_ready() && outbox.is_ended());
        inbox.end(Coming::Gone);
        let written = io.poll_write(cx, &[IoSlice::new(b"3")], false);
        assert!(matches!(written, Poll::Ready(Err(_))));
        assert!(matches!(io.poll_read(cx, &mut buf), Poll::Ready(Err(_))));
    }

    #[test]
    fn a_key_is_made_for_a_websocket_and_must_be_answered() {
        // The example of RFC 6455 §1.3.
        let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n";
        let known = format!("{head}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
        let mut r = testing::request("", &known);
        offer(r.input_mut());
        assert!(!is_accepted(&r));
        r.response.add("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(is_accepted(&r));
        r.response.status = 101;
        grant(&mut r);
        assert_eq!((r.response.status, r.response.fields.len()), (200, 0));
        let mut r = testing::request("", &format!("{head}\r\n"));
        offer(r.input_mut());
        assert_eq!(key(&r.input).map(<[u8]>::len), Some(24));
        let mut r = testing::request("", &format!("{}\r\n", head.replace("WebSocket", "other")));
        offer(r.input_mut());
        assert!(key(&r.input).is_none() && is_accepted(&r));
    }
}
