//! The socket of a client, and questions about it.
//!
//! What works for a request may outlive its connection: a copy that `mirror` sends, the streams of an
//! HTTP/2 connection whose client has left. The number of a socket that is closed may be another
//! connection's by then.
//!
//! Invariant: the number is known exactly as long as the socket is open. [`ClientSocket`] alone sets it,
//! and is the only way to close the socket.

use std::{
    cell::Cell,
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, RawFd},
    rc::Rc,
    task::{Context, Poll},
};

use forebay_rt::transport::Transport;

use crate::request::Connection;

/// The number of a socket while that is open.
#[derive(Default)]
pub struct Number(Cell<Option<RawFd>>);

impl Number {
    /// What somebody knows about the socket; nothing once it is closed.
    pub fn ask<R>(&self, question: fn(RawFd) -> Option<R>) -> Option<R> {
        self.0.get().and_then(question)
    }

    /// As it is now: for a copy of the connection that answers a few questions and is dropped before
    /// anything else happens.
    pub(crate) fn snapshot(&self) -> Number {
        Number(self.0.clone())
    }
}

/// The byte stream of a client.
pub struct ClientSocket<T> {
    connection: Rc<Connection>,
    // Closed after it is forgotten.
    io: T,
}

impl<T: Transport> ClientSocket<T> {
    /// From now on the connection knows its socket.
    pub fn new(io: T, connection: Rc<Connection>) -> ClientSocket<T> {
        connection.socket.0.set(io.socket());
        ClientSocket { connection, io }
    }
}

impl<T> Drop for ClientSocket<T> {
    fn drop(&mut self) {
        self.connection.socket.0.set(None);
        if let Some(bound) = self.connection.bound.get() {
            bound.client_gone();
        }
    }
}

impl<T: Transport> Transport for ClientSocket<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        self.io.poll_read(cx, buf)
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.poll_readable(cx)
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        self.io.poll_write(cx, slices, more)
    }

    fn poll_hand_over(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.poll_hand_over(cx, slices)
    }

    fn poll_hand_over_file(
        &mut self,
        cx: &mut Context<'_>,
        file: &Rc<dyn AsFd>,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        self.io.poll_hand_over_file(cx, file, count)
    }

    fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        self.io.poll_send_file(cx, file, offset, count)
    }

    fn poll_peer_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.poll_peer_closed(cx)
    }

    fn take_error(&self) -> Option<io::Error> {
        self.io.take_error()
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_shutdown(cx)
    }

    fn reset_on_close(&self) {
        self.io.reset_on_close();
    }

    fn file_follows(&self, yes: bool) {
        self.io.file_follows(yes);
    }

    fn sends_files(&self) -> bool {
        self.io.sends_files()
    }

    fn socket(&self) -> Option<RawFd> {
        self.io.socket()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use forebay_rt::transport::Socket;

    use super::*;
    use crate::testing;

    #[test]
    fn nobody_asks_a_socket_that_is_closed() {
        let connection = testing::request("", "GET / HTTP/1.1\r\n\r\n").connection.clone();
        assert_eq!(connection.socket.ask(Some), None, "none yet");
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let io = ClientSocket::new(Socket::new(ours.into()), connection.clone());
        let number = connection.socket.ask(Some);
        assert!(number.is_some() && number == io.socket());
        drop(io);
        assert_eq!(connection.socket.ask(Some), None, "it may be another's by now");
    }
}
