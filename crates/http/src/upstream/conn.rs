//! A connection to an upstream server, whatever it is spoken over.
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

/// What a connection is spoken over.
pub enum Stream {
    /// TCP or a unix socket.
    Plain(Socket),
    /// TLS over it.
    Tls(TlsStream<Socket>),
}

impl Stream {
    /// Makes a connection of another thread one of this thread; `None`: it cannot be, or there is
    /// something on it that nobody asked for.
    pub fn adopt(self) -> Option<Stream> {
        match self {
            Stream::Plain(socket) => adopt(socket).map(Stream::Plain),
            Stream::Tls(stream) => {
                let (socket, state) = stream.into_parts()?;
                let socket = adopt(socket).filter(|_| state.is_idle())?;
                Some(Stream::Tls(TlsStream::from_parts(socket, state)))
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

impl Idle for Stream {
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Whatever comes, there is no request that it could answer.
        let mut buf = pool::buffer();
        let read = self.poll_read(cx, &mut buf).map(drop);
        pool::recycle(buf);
        read
    }
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

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        each!(self, io => io.poll_write(cx, slices, more))
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

    fn cork(&self, on: bool) {
        each!(self, io => io.cork(on))
    }

    fn sends_files(&self) -> bool {
        each!(self, io => io.sends_files())
    }

    fn socket(&self) -> Option<RawFd> {
        each!(self, io => io.socket())
    }
}
