//! The byte streams that protocols are spoken on: TCP and unix sockets (TLS brings its own).
//!
//! Everything is poll-shaped and generic, so the hot path is one inlined system call each for reading
//! and writing. Hot path: no allocation.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// A connected byte stream.
pub trait Transport: 'static {
    /// Reads into the spare room of `buf` (at most once); 0: the peer has closed its side.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>>;

    /// Writes what it can of the slices with one system call. `more`: further bytes follow at once,
    /// so a last packet that is not full may wait for them.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>>;

    /// Sends up to `count` bytes of a file from `offset`, in the kernel where it can; 0: the file is
    /// shorter than that.
    fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> Poll<io::Result<usize>>;

    /// Sends FIN; what was written before still goes out.
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Makes the closing that follows a reset (`reset_timedout_connection`): unsent data is freed.
    fn reset_on_close(&self);

    /// Whether files go out without passing through the process.
    fn sends_files(&self) -> bool;

    /// The number of the socket, for questions about it ([`crate::tcp_info`]).
    fn socket(&self) -> Option<RawFd> {
        None
    }
}

/// What TCP and unix streams have in common for [`Socket`].
pub trait Stream: AsyncRead + AsyncWrite + AsFd + Unpin + 'static {
    /// Ready when the socket can be written.
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Runs a write that answers `WouldBlock` when the socket is full.
    fn try_write_with<R>(&self, f: impl FnMut() -> io::Result<R>) -> io::Result<R>;
    /// Sets `SO_LINGER` to zero.
    fn linger_zero(&self);
}

impl Stream for TcpStream {
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        TcpStream::poll_write_ready(self, cx)
    }

    fn try_write_with<R>(&self, f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        self.try_io(Interest::WRITABLE, f)
    }

    fn linger_zero(&self) {
        // A socket that is gone already needs no reset.
        let _ = socket2::SockRef::from(self).set_linger(Some(Duration::ZERO));
    }
}

impl Stream for UnixStream {
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        UnixStream::poll_write_ready(self, cx)
    }

    fn try_write_with<R>(&self, f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        self.try_io(Interest::WRITABLE, f)
    }

    fn linger_zero(&self) {}
}

/// A plain socket.
pub struct Socket<S>(pub S);

impl<S: Stream> Socket<S> {
    fn poll_output<R>(
        &self,
        cx: &mut Context<'_>,
        mut f: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_with(&mut f) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl<S: Stream> Transport for Socket<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let start = buf.len();
        let mut window = ReadBuf::uninit(buf.spare_capacity_mut());
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut window))?;
        let read = window.filled().len();
        // SAFETY: `filled` is what the socket wrote into the spare capacity, from its start.
        #[allow(unsafe_code)]
        unsafe {
            buf.set_len(start + read);
        }
        Poll::Ready(Ok(read))
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        self.poll_output(cx, || {
            let mut control = SendAncillaryBuffer::default();
            Ok(sendmsg(&self.0, slices, &mut control, flags)?)
        })
    }

    fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_output(cx, || {
            let mut offset = offset;
            Ok(rustix::fs::sendfile(&self.0, file, Some(&mut offset), count)?)
        })
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn reset_on_close(&self) {
        self.0.linger_zero();
    }

    fn sends_files(&self) -> bool {
        true
    }

    fn socket(&self) -> Option<RawFd> {
        Some(self.0.as_fd().as_raw_fd())
    }
}
