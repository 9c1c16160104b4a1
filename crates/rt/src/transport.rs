//! The byte streams that protocols are spoken on: TCP and unix sockets (TLS brings its own).
//!
//! Everything is poll-shaped and generic, so the hot path is one inlined system call each for reading
//! and writing. Hot path: no allocation.

use std::{
    cell::Cell,
    io::{self, IoSlice},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, recv, send, sendmsg},
};
use tokio::io::{Interest, unix::AsyncFd};

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

    /// Ready once the peer has closed its side or the connection broke, whether or not bytes that it
    /// sent before still wait to be read. Without a system call as long as nothing comes.
    fn poll_peer_closed(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Sends FIN; what was written before still goes out.
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Makes the closing that follows a reset (`reset_timedout_connection`): unsent data is freed.
    fn reset_on_close(&self);

    /// Holds back packets that are not full (`TCP_CORK`), or lets what is held back go. Around a file
    /// it costs less than saying of each piece that more follows.
    fn cork(&self, _on: bool) {}

    /// Whether files go out without passing through the process.
    fn sends_files(&self) -> bool;

    /// The number of the socket, for questions about it ([`crate::tcp_info`]).
    fn socket(&self) -> Option<RawFd> {
        None
    }
}

/// A TCP or unix socket.
///
/// It is made known to the event loop when it first has to wait. A request that has arrived with its
/// connection, and is the only one on it, is answered without that: two system calls less.
pub struct Socket(State);

enum State {
    /// Accepted, and never waited for.
    Fresh(OwnedFd),
    /// Known to the event loop.
    Watched(AsyncFd<OwnedFd>),
    /// Could not be made known to the event loop.
    Lost,
}

impl Socket {
    /// A connected, non-blocking socket.
    pub fn new(fd: OwnedFd) -> Socket {
        Socket(State::Fresh(fd))
    }

    /// The descriptor, taken off the event loop: for another thread. From any thread.
    pub fn into_fd(self) -> Option<OwnedFd> {
        match self.0 {
            State::Fresh(fd) => Some(fd),
            State::Watched(fd) => Some(fd.into_inner()),
            State::Lost => None,
        }
    }

    /// Ready when the socket takes output: for a connection under way that it is established, or has
    /// failed (`SO_ERROR` says which).
    pub fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch()?;
        let State::Watched(fd) = &self.0 else { return Poll::Ready(Err(lost())) };
        fd.poll_write_ready(cx).map_ok(|mut guard| guard.retain_ready())
    }

    /// What went wrong with a connection under way (`SO_ERROR`), once it is writable.
    pub fn pending_error(&self) -> io::Result<()> {
        let fd = self.fd().ok_or_else(lost)?;
        Ok(rustix::net::sockopt::socket_error(fd)??)
    }

    /// Our end of it, if it is TCP.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getsockname(self.fd()?).ok()?).ok()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            State::Fresh(fd) => Some(fd.as_fd()),
            State::Watched(fd) => Some(fd.get_ref().as_fd()),
            State::Lost => None,
        }
    }

    /// Tries what may have to wait; the first time that it has to, the event loop is told.
    fn poll_io(
        &mut self,
        cx: &mut Context<'_>,
        interest: Interest,
        mut f: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
        drained: impl Fn(usize) -> bool,
    ) -> Poll<io::Result<usize>> {
        if let State::Fresh(fd) = &self.0 {
            let result = match Arrival::worth_a_try() {
                true => retry(|| f(fd.as_fd())),
                false => Err(io::ErrorKind::WouldBlock.into()),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    Arrival::learn(false);
                    self.watch()?;
                }
                result => {
                    Arrival::learn(true);
                    return Poll::Ready(result);
                }
            }
        }
        let State::Watched(fd) = &self.0 else { return Poll::Ready(Err(lost())) };
        loop {
            let mut guard = ready!(match interest {
                Interest::READABLE => fd.poll_read_ready(cx),
                _ => fd.poll_write_ready(cx),
            })?;
            match retry(|| f(fd.get_ref().as_fd())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Ok(done) => {
                    // The socket is empty (or full): the next question waits for an event, and need
                    // not be asked in vain. What the kernel said about closing is kept.
                    if drained(done) {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(done));
                }
                result => return Poll::Ready(result),
            }
        }
    }

    fn watch(&mut self) -> io::Result<()> {
        if !matches!(self.0, State::Fresh(_)) {
            return Ok(());
        }
        if let State::Fresh(fd) = std::mem::replace(&mut self.0, State::Lost) {
            self.0 = State::Watched(watched(fd, Interest::READABLE.add(Interest::WRITABLE))?);
        }
        Ok(())
    }

    fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
        f: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Interest::WRITABLE, f, |_| false)
    }
}

/// Whether requests arrive together with their connections on this thread: where they never do, a try
/// costs a system call and gains nothing.
struct Arrival;

thread_local! {
    static ARRIVED: Cell<u8> = const { Cell::new(Arrival::SURE) };
}

impl Arrival {
    /// After so many vain tries in a row, only every so many-th connection is tried.
    const SURE: u8 = 8;
    const RARELY: u8 = 32;

    fn worth_a_try() -> bool {
        let left = ARRIVED.get();
        left > 0 && left <= Self::SURE
    }

    fn learn(arrived: bool) {
        ARRIVED.set(match (arrived, ARRIVED.get()) {
            (true, _) => Self::SURE,
            // Beyond `SURE` it counts down to the next try, which is then the only one.
            (false, 0 | 1) => Self::SURE + Self::RARELY,
            (false, left) if left == Self::SURE + 1 => 1,
            (false, left) => left - 1,
        });
    }
}

fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names one open descriptor for all of its life, and AsyncFd takes it from the
    // event loop before it drops it.
    #[allow(unsafe_code)]
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    Ok(registered?)
}

fn retry(mut f: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match f() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn lost() -> io::Error {
    io::Error::from(io::ErrorKind::NotConnected)
}

impl Transport for Socket {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let room = buf.capacity() - buf.len();
        self.poll_io(
            cx,
            Interest::READABLE,
            |fd| Ok(recv(fd, spare_capacity(buf), RecvFlags::empty())?.0),
            |read| read > 0 && read < room,
        )
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        // The plainest call that will do: the kernel reads a message header more slowly.
        self.poll_output(cx, |fd| match slices {
            [one] => Ok(send(fd, one, flags)?),
            _ => {
                let mut control = SendAncillaryBuffer::default();
                Ok(sendmsg(fd, slices, &mut control, flags)?)
            }
        })
    }

    fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_output(cx, |fd| {
            let mut offset = offset;
            Ok(rustix::fs::sendfile(fd, file, Some(&mut offset), count)?)
        })
    }

    fn poll_peer_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.watch().is_err() {
            return Poll::Ready(());
        }
        let State::Watched(fd) = &self.0 else { return Poll::Ready(()) };
        match ready!(fd.poll_read_ready(cx)) {
            // Bytes that nobody reads now: behind them, a closing is not seen.
            Ok(guard) if !guard.ready().is_read_closed() => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    fn poll_shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(fd) = self.fd() else { return Poll::Ready(Err(lost())) };
        Poll::Ready(Ok(rustix::net::shutdown(fd, Shutdown::Write)?))
    }

    fn reset_on_close(&self) {
        if let Some(fd) = self.fd() {
            // A socket that is gone already needs no reset.
            let _ = socket2::SockRef::from(&fd).set_linger(Some(Duration::ZERO));
        }
    }

    fn cork(&self, on: bool) {
        if let Some(fd) = self.fd() {
            // Unix sockets have no packets to fill.
            let _ = rustix::net::sockopt::set_tcp_cork(fd, on);
        }
    }

    fn sends_files(&self) -> bool {
        true
    }

    fn socket(&self) -> Option<RawFd> {
        Some(self.fd()?.as_raw_fd())
    }
}

/// A listening socket that connections are taken from.
pub struct Acceptor(AsyncFd<OwnedFd>);

impl Acceptor {
    /// Of a non-blocking listening socket; within an event loop.
    pub fn new(fd: OwnedFd) -> io::Result<Acceptor> {
        Ok(Acceptor(watched(fd, Interest::READABLE)?))
    }

    /// The next connection, and its other end, if that has an address.
    pub async fn accept(&self) -> io::Result<(Socket, Option<SocketAddr>)> {
        loop {
            let mut guard = self.0.readable().await?;
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let accepted = guard.try_io(|fd| Ok(rustix::net::acceptfrom_with(fd, flags)?));
            match accepted {
                Ok(Ok((fd, peer))) => {
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    return Ok((Socket::new(fd), peer));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::poll_fn,
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(future)
    }

    fn pair() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Socket::new(ours.into()), theirs)
    }

    async fn read(socket: &mut Socket) -> io::Result<Vec<u8>> {
        let mut buf = Vec::with_capacity(16);
        poll_fn(|cx| socket.poll_read(cx, &mut buf)).await?;
        Ok(buf)
    }

    #[test]
    fn what_is_there_already_is_read_without_the_event_loop() {
        run(async {
            let (mut socket, mut peer) = pair();
            peer.write_all(b"hello").unwrap();
            assert_eq!(read(&mut socket).await.unwrap(), b"hello");
            let slices = [IoSlice::new(b"wor"), IoSlice::new(b"ld")];
            assert_eq!(poll_fn(|cx| socket.poll_write(cx, &slices, false)).await.unwrap(), 5);
            assert!(matches!(socket.0, State::Fresh(_)));
            let mut buf = [0; 5];
            peer.read_exact(&mut buf).unwrap();
            assert_eq!(&buf, b"world");
        });
    }

    #[test]
    fn vain_tries_become_rare_and_one_that_succeeds_is_learned_from() {
        ARRIVED.set(Arrival::SURE);
        let tries = (0..400).filter(|_| {
            let tried = Arrival::worth_a_try();
            Arrival::learn(false);
            tried
        });
        assert!((15..=30).contains(&tries.count()));
        Arrival::learn(true);
        assert!(Arrival::worth_a_try());
    }

    #[test]
    fn an_end_that_came_with_the_last_bytes_is_not_missed() {
        run(async {
            let (mut socket, mut peer) = pair();
            // Nothing there yet: from now on the event loop watches.
            let pending = poll_fn(|cx| {
                let mut buf = Vec::with_capacity(16);
                Poll::Ready(socket.poll_read(cx, &mut buf).is_pending())
            });
            assert!(pending.await);
            peer.write_all(b"bye").unwrap();
            drop(peer);
            assert_eq!(read(&mut socket).await.unwrap(), b"bye");
            assert_eq!(read(&mut socket).await.unwrap(), b"");
        });
    }

    #[test]
    fn a_full_socket_waits_for_its_reader() {
        run(async {
            let (mut socket, mut peer) = pair();
            let block = vec![7; 64 << 10];
            let mut sent = 0;
            let full = poll_fn(|cx| {
                loop {
                    match socket.poll_write(cx, &[IoSlice::new(&block)], false) {
                        Poll::Ready(written) => sent += written.unwrap(),
                        Poll::Pending => return Poll::Ready(sent),
                    }
                }
            });
            let total = full.await;
            let mut buf = vec![0; total];
            peer.read_exact(&mut buf).unwrap();
            let written = poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(b"x")], false)).await;
            assert_eq!(written.unwrap(), 1);
        });
    }
}
