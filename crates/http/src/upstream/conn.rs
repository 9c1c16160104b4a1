//! A connection to an upstream server, whatever it is spoken over, and what is kept of it.
//!
//! Hot path: each call is one match and one system call.
//!
//! Invariant: a connection is used again only when nothing is left over on it.

use std::{
    io::{self, IoSlice},
    os::fd::{BorrowedFd, RawFd},
    task::{Context, Poll},
};

use forebay_rt::{
    pool,
    transport::{Socket, Transport},
};
use forebay_session::upstream::keepalive::Idle;
use forebay_tls::TlsStream;

use super::Session;

/// What a connection is spoken over.
pub enum Stream {
    /// TCP or a unix socket.
    Plain(Socket),
    /// TLS over it: apart, as a connection is moved a few times a request.
    Tls(Box<TlsStream<Socket>>),
}

impl Stream {
    /// Whether another thread may have it: see [`Socket::is_at_rest`]. TLS hands nothing over.
    pub fn is_at_rest(&self) -> bool {
        match self {
            Stream::Plain(socket) => socket.is_at_rest(),
            Stream::Tls(_) => true,
        }
    }

    /// Makes a connection of another thread one of this thread; `None`: it cannot be, or there is
    /// something on it that nobody asked for.
    pub fn adopt(self) -> Option<Stream> {
        match self {
            Stream::Plain(socket) => adopt(socket).map(Stream::Plain),
            Stream::Tls(stream) => {
                let (socket, state) = stream.into_parts()?;
                let socket = adopt(socket).filter(|_| state.is_idle())?;
                Some(Stream::Tls(Box::new(TlsStream::from_parts(socket, state))))
            }
        }
    }
}

/// Takes a socket over from another event loop, if nothing has come on it.
fn adopt(socket: Socket) -> Option<Socket> {
    let fd = socket.into_fd()?;
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    let mut byte = [0u8; 1];
    match rustix::net::recv(&fd, &mut byte[..], flags) {
        Err(rustix::io::Errno::AGAIN) => Some(Socket::new(fd)),
        _ => None,
    }
}

/// A connection without a request.
pub struct Connection {
    /// What it is spoken over.
    pub stream: Stream,
    /// What the protocol keeps of it.
    pub session: Option<Box<Session>>,
}

impl Connection {
    /// See [`Stream::adopt`].
    pub fn adopt(self) -> Option<Connection> {
        let Connection { stream, session } = self;
        // What has to be answered is for the thread that has read it.
        let quiet = session.as_ref().is_none_or(|session| !session.has_output());
        let stream = stream.adopt().filter(|_| quiet)?;
        Some(Connection { stream, session })
    }
}

/// How often an idle connection is read at once.
const IDLE_READS: usize = 16;

impl Idle for Connection {
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let talks = self.session.as_ref().is_some_and(|session| session.has_output());
        if !talks && self.stream.poll_readable(cx).is_pending() {
            return Poll::Pending;
        }
        let mut buf = pool::buffer();
        let closed = match &mut self.session {
            // Whatever comes, there is no request that it could answer.
            None => self.stream.poll_read(cx, &mut buf).map(drop),
            Some(session) => poll_idle(&mut self.stream, session, &mut buf, cx),
        };
        pool::recycle(buf);
        closed
    }
}

/// Answers what a protocol asks between two requests; ready: the connection is of no use any more.
fn poll_idle(
    stream: &mut Stream,
    session: &mut Session,
    buf: &mut Vec<u8>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    for _ in 0..IDLE_READS {
        if session.has_output() {
            let output = session.take_output();
            // A server that talks and does not listen is not worth keeping.
            match stream.poll_write(cx, &[IoSlice::new(&output)], false) {
                Poll::Ready(Ok(written)) if written == output.len() => {}
                _ => return Poll::Ready(()),
            }
        }
        buf.clear();
        match stream.poll_read(cx, buf) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(1..)) if session.idle(buf).is_ok() => {}
            Poll::Ready(_) => return Poll::Ready(()),
        }
    }
    Poll::Ready(())
}

macro_rules! each {
    ($self:ident, $io:ident => $call:expr) => {
        match $self {
            Stream::Plain($io) => $call,
            Stream::Tls($io) => $call,
        }
    };
}

impl Transport for Stream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        each!(self, io => io.poll_read(cx, buf))
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        each!(self, io => io.poll_readable(cx))
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        each!(self, io => io.poll_write(cx, slices, more))
    }

    fn poll_hand_over(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, io => io.poll_hand_over(cx, slices))
    }

    fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        each!(self, io => io.poll_send_file(cx, file, offset, count))
    }

    fn poll_peer_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        each!(self, io => io.poll_peer_closed(cx))
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, io => io.poll_shutdown(cx))
    }

    fn reset_on_close(&self) {
        each!(self, io => io.reset_on_close())
    }

    fn sends_files(&self) -> bool {
        each!(self, io => io.sends_files())
    }

    fn socket(&self) -> Option<RawFd> {
        each!(self, io => io.socket())
    }
}
