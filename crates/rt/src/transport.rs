//! The byte streams that protocols are spoken on: TCP and unix sockets (TLS brings its own).
//!
//! Everything is poll-shaped and generic, so the hot path is one inlined system call each for reading
//! and writing. Hot path: no allocation.
//!
//! Invariant: no peer, however fast, keeps a thread to itself: who has moved much in one turn is told to
//! wait, and woken at once to go on behind the others.

use std::{
    cell::Cell,
    future::poll_fn,
    io::{self, IoSlice},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, recv, send, sendmsg},
};

use crate::event_loop::{self, HandedOver, MUCH, Watch};

/// A connected byte stream.
pub trait Transport: 'static {
    /// Reads into the spare room of `buf` (at most once); 0: the peer has closed its side.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>>;

    /// Ready when a read is worth a try; who has no buffer yet asks this first.
    fn poll_readable(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Writes what it can of the slices with one system call. `more`: further bytes follow at once,
    /// so a last packet that is not full may wait for them.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>>;

    /// Writes as [`Transport::poll_write`] does what ends a message. It may wait until the tasks that are ready
    /// have had their turn, so that what ends many messages leaves together; then it counts as written, and
    /// what goes wrong with it the next call tells.
    fn poll_hand_over(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write(cx, slices, false)
    }

    /// Sends up to `count` bytes of a file from `offset`, in the kernel where it can; 0: the file is
    /// shorter than that. For those that [send files](Transport::sends_files).
    fn poll_send_file(
        &mut self,
        _cx: &mut Context<'_>,
        _file: BorrowedFd<'_>,
        _offset: u64,
        _count: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// As [`Transport::poll_hand_over`], of the first bytes of a file that nobody changes any more.
    fn poll_hand_over_file(
        &mut self,
        cx: &mut Context<'_>,
        file: &Rc<dyn AsFd>,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_send_file(cx, file.as_fd(), 0, count)
    }

    /// Ready once the peer has closed its side or the connection broke, whether or not bytes that it
    /// sent before still wait to be read. Without a system call as long as nothing comes.
    fn poll_peer_closed(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// What broke the connection, where the kernel has not told it yet (`SO_ERROR`); it tells once.
    fn take_error(&self) -> Option<io::Error> {
        None
    }

    /// Sends FIN; what was written before still goes out.
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Makes the closing that follows a reset (`reset_timedout_connection`): unsent data is freed.
    fn reset_on_close(&self);

    /// Says that what is written from now on precedes a file, or that it does no longer: a transport that
    /// seals lets both leave together. A socket needs not know: whoever writes says that more follows, and
    /// of all but the last page of a file the kernel does. `TCP_CORK` around a large one costs the kernel
    /// up to twice the time (docs/speed.md).
    fn file_follows(&self, _yes: bool) {}

    /// Whether files go out without passing through the process.
    fn sends_files(&self) -> bool {
        false
    }

    /// The number of the socket, for questions about it ([`crate::tcp_info`]).
    fn socket(&self) -> Option<RawFd> {
        None
    }
}

/// Whether sockets of this thread, closed ones among them, have something on its way for which there was no
/// room when it was [handed over](Transport::poll_hand_over): lost, if the thread ends now. Who does not read
/// it within a minute does not get it.
pub fn is_output_late() -> bool {
    event_loop::is_output_late()
}

/// A TCP or unix socket.
///
/// It is made known to the event loop when it first has to wait. A request that has arrived with its
/// connection, and is the only one on it, is answered without that: a system call less. From then on it
/// belongs to that thread; only [`Socket::into_fd`] and dropping it work everywhere, and only if it is
/// [at rest](Socket::is_at_rest).
pub struct Socket {
    // First of all: what it has left to say.
    handed_over: HandedOver,
    // Before the descriptor: its number may be given out again as soon as it is closed.
    watch: Watch,
    fd: OwnedFd,
}

impl Socket {
    /// A connected, non-blocking socket, or one that is being connected.
    pub fn new(fd: OwnedFd) -> Socket {
        Socket { handed_over: HandedOver::default(), watch: Watch::NONE, fd }
    }

    /// Whether all that was handed over is known to have left, as it is when something was read since: only
    /// then another thread may have the socket.
    pub fn is_at_rest(&self) -> bool {
        !self.handed_over.is_some()
    }

    /// The descriptor, taken off the event loop: for another thread. From any thread, if it is
    /// [at rest](Socket::is_at_rest). `None`: not all that was handed over could be sent.
    pub fn into_fd(mut self) -> Option<OwnedFd> {
        if !self.handed_over.has_left(&self.watch) {
            return None;
        }
        if self.watch.is_some() {
            self.watch.leave(self.fd.as_fd());
        }
        Some(self.fd)
    }

    /// Ready when the socket takes output: for a connection under way that it is established, or has
    /// failed (`SO_ERROR` says which).
    pub fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.watch.is_some() {
            self.watch = Watch::full(self.fd.as_fd())?;
        }
        self.watch.poll_writable(cx)
    }

    /// What went wrong with a connection under way (`SO_ERROR`), once it is writable.
    pub fn pending_error(&self) -> io::Result<()> {
        Ok(rustix::net::sockopt::socket_error(&self.fd)??)
    }

    /// Our end of it, if it is TCP.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getsockname(&self.fd).ok()?).ok()
    }

    fn watched(&mut self) -> io::Result<&Watch> {
        if !self.watch.is_some() {
            self.watch = Watch::stream(self.fd.as_fd())?;
        }
        Ok(&self.watch)
    }

    /// The first read of a connection, before the event loop is told of it.
    fn read_fresh(&mut self, buf: &mut Vec<u8>) -> Option<io::Result<usize>> {
        if self.watch.is_some() || !Arrival::worth_a_try() {
            return None;
        }
        let read = retry(|| receive(self.fd.as_fd(), buf));
        let is_there = !matches!(&read, Err(error) if would_block(error));
        Arrival::learn(is_there);
        // Nor is it told as long as each further read finds something.
        event_loop::moved(*read.as_ref().unwrap_or(&0));
        is_there.then_some(read)
    }

    /// Writes, or learns that there is no room. `whole`: how much is to be written; less says that the
    /// socket is full now.
    fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
        whole: usize,
        f: impl Fn(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.handed_over.forget_room();
        loop {
            if self.watch.is_some() {
                ready!(self.handed_over.poll_left(&self.watch, cx))?;
                ready!(self.watch.poll_writable(cx))?;
            }
            if event_loop::is_turn_over(cx) {
                return Poll::Pending;
            }
            let fd = self.fd.as_fd();
            let written = retry(|| f(fd));
            let is_full = match &written {
                Ok(written) => *written < whole,
                Err(error) => would_block(error),
            };
            if is_full && self.watch.is_some() {
                self.watch.full_now(fd)?;
            } else if is_full {
                self.watch = Watch::full(fd)?;
            }
            match written {
                Err(error) if would_block(&error) => {}
                // Less than that is bounded by what is asked for.
                Ok(written) if written >= MUCH => {
                    event_loop::moved(written);
                    return Poll::Ready(Ok(written));
                }
                written => return Poll::Ready(written),
            }
        }
    }
}

fn receive(fd: BorrowedFd<'_>, buf: &mut Vec<u8>) -> io::Result<usize> {
    Ok(recv(fd, spare_capacity(buf), RecvFlags::empty())?.0)
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
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

    /// Whether this connection is tried; what comes of that is to be [learned](Arrival::learn).
    fn worth_a_try() -> bool {
        let left = ARRIVED.get();
        if left > Self::SURE {
            // Those that are not tried count down to the next one that is, alone.
            ARRIVED.set(if left == Self::SURE + 1 { 1 } else { left - 1 });
        }
        left <= Self::SURE
    }

    fn learn(arrived: bool) {
        ARRIVED.set(match (arrived, ARRIVED.get()) {
            (true, _) => Self::SURE,
            (false, left @ 2..) => left - 1,
            (false, _) => Self::SURE + Self::RARELY,
        });
    }
}

fn retry(mut f: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match f() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

impl Transport for Socket {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        if event_loop::is_turn_over(cx) {
            return Poll::Pending;
        }
        if let Some(read) = self.read_fresh(buf) {
            return Poll::Ready(read);
        }
        self.watched()?;
        loop {
            ready!(self.watch.poll_readable(cx))?;
            self.handed_over.check(&self.watch)?;
            let room = buf.capacity() - buf.len();
            let read = retry(|| receive(self.fd.as_fd(), buf));
            // A socket that gave less than there was room for is empty: the next question waits for an
            // event, and need not be asked in vain. What the kernel said about closing is kept.
            if !matches!(read, Ok(0)) && !matches!(read, Ok(read) if read == room) {
                self.watch.drained();
            }
            match read {
                Err(error) if would_block(&error) => {}
                // There is more.
                Ok(read) if read == room => {
                    event_loop::moved(read);
                    return Poll::Ready(Ok(read));
                }
                read => return Poll::Ready(read),
            }
        }
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // What is not watched yet, or went wrong, the read will tell.
        if self.watch.is_some() {
            self.watch.poll_readable(cx).map(|_| ())
        } else {
            Poll::Ready(())
        }
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
        if let [one] = slices {
            return self.poll_output(cx, one.len(), |fd| Ok(send(fd, one, flags)?));
        }
        let whole = slices.iter().map(|slice| slice.len()).sum();
        self.poll_output(cx, whole, |fd| {
            Ok(sendmsg(fd, slices, &mut SendAncillaryBuffer::default(), flags)?)
        })
    }

    fn poll_hand_over(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.handed_over.take(&self.watch, self.fd.as_fd(), slices) {
            Some(whole) => Poll::Ready(Ok(whole)),
            None => self.poll_write(cx, slices, false),
        }
    }

    fn poll_hand_over_file(
        &mut self,
        cx: &mut Context<'_>,
        file: &Rc<dyn AsFd>,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        match self.handed_over.take_file(&self.watch, self.fd.as_fd(), file, count) {
            true => Poll::Ready(Ok(count)),
            false => self.poll_send_file(cx, file.as_fd(), 0, count),
        }
    }

    fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        // Less than asked for may be all that the file has.
        self.poll_output(cx, 0, |fd| {
            let mut offset = offset;
            Ok(rustix::fs::sendfile(fd, file, Some(&mut offset), count)?)
        })
    }

    fn poll_peer_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.watched() {
            Ok(watch) => watch.poll_closed(cx).map(|_| ()),
            Err(_) => Poll::Ready(()),
        }
    }

    fn take_error(&self) -> Option<io::Error> {
        let pending = rustix::net::sockopt::socket_error(&self.fd).ok()?;
        pending.err().map(io::Error::from)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.handed_over.poll_left(&self.watch, cx))?;
        Poll::Ready(Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?))
    }

    fn reset_on_close(&self) {
        // A socket that is gone already needs no reset.
        let _ = socket2::SockRef::from(&self.fd).set_linger(Some(Duration::ZERO));
        self.handed_over.give_up(&self.watch);
    }

    fn sends_files(&self) -> bool {
        true
    }

    fn socket(&self) -> Option<RawFd> {
        Some(self.fd.as_raw_fd())
    }
}

/// A listening socket that connections are taken from.
///
/// All that wait are taken at once, so that their requests can come together, too. Where connections
/// come one by one, it is not asked in vain for a second one: the event loop tells of it anew.
pub struct Acceptor {
    watch: Watch,
    fd: OwnedFd,
    /// How many connections this event has brought, if it may have brought more.
    taken: Option<u32>,
    /// How many events in a row have brought a single one.
    alone: u32,
}

impl Acceptor {
    /// How many connections are taken at once at the most: others want their turn.
    const MOST: u32 = 64;
    /// After so many that came alone, only every so many-th is asked whether another came with it.
    const SURE: u32 = 8;

    /// Of a non-blocking listening socket; within an event loop.
    pub fn new(fd: OwnedFd) -> io::Result<Acceptor> {
        let watch = Watch::listener(fd.as_fd())?;
        Ok(Acceptor { watch, fd, taken: None, alone: 0 })
    }

    /// The next connection, and its other end, if that has an address.
    pub async fn accept(&mut self) -> io::Result<(Socket, Option<SocketAddr>)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// The same, for those who share the acceptor.
    pub fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(Socket, Option<SocketAddr>)>> {
        if !self.watch.is_some() {
            self.watch = Watch::listener(self.fd.as_fd())?;
        }
        loop {
            let taken = match self.taken {
                Some(taken) => taken,
                None => {
                    ready!(self.watch.poll_readable(cx))?;
                    self.watch.drained();
                    0
                }
            };
            match self.take() {
                Ok(accepted) => {
                    self.taken = self.goes_on(taken + 1).then_some(taken + 1);
                    return Poll::Ready(Ok(accepted));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.alone = if taken == 1 { self.alone + 1 } else { 0 };
                    self.taken = None;
                }
                Err(error) => {
                    self.taken = None;
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
    }

    fn take(&self) -> Result<(Socket, Option<SocketAddr>), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (fd, peer) = rustix::net::acceptfrom_with(&self.fd, flags)?;
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        Ok((Socket::new(fd), peer))
    }

    /// For a thread that accepts no more: a connection that nobody else has heard of, as this thread was
    /// woken for it alone. `None`: all others are told to those who share the socket.
    pub fn take_last(&mut self) -> Option<(Socket, Option<SocketAddr>)> {
        self.rest();
        self.take().ok()
    }

    /// Whether there may be more than these.
    fn goes_on(&mut self, taken: u32) -> bool {
        if taken == 1 && self.alone >= Self::SURE {
            // Counts on, to the next one that is asked.
            self.alone = if self.alone == 2 * Self::SURE { Self::SURE - 1 } else { self.alone + 1 };
            return false;
        }
        taken < Self::MOST
    }

    /// Leaves connections in the queue until the next [`Acceptor::poll_accept`].
    pub fn rest(&mut self) {
        if self.watch.is_some() {
            std::mem::replace(&mut self.watch, Watch::NONE).leave(self.fd.as_fd());
        }
        self.taken = None;
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // The master has it open too, so that closing it here would not take it off the event loop.
        self.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::block_on as run;
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

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
            assert!(!socket.watch.is_some());
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
            if tried {
                Arrival::learn(false);
            }
            tried
        });
        assert!((15..=30).contains(&tries.count()));
        Arrival::learn(true);
        assert!((0..8).all(|_| Arrival::worth_a_try()));
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
    fn connections_are_accepted_alone_in_crowds_and_after_a_rest() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        run(async {
            let mut acceptor = Acceptor::new(listener.into()).unwrap();
            for crowd in [40, 1, 100].into_iter().chain([1; 50]).chain([100, 1]) {
                let clients: Vec<_> =
                    (0..crowd).map(|_| std::net::TcpStream::connect(addr).unwrap()).collect();
                for client in &clients {
                    let (_socket, peer) = acceptor.accept().await.unwrap();
                    assert_eq!(peer, client.local_addr().ok());
                }
                if crowd == 40 {
                    acceptor.rest();
                }
            }
        });
    }

    #[test]
    fn a_connection_is_not_lost_with_the_thread_that_was_woken_for_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        run(async {
            let mut acceptor = Acceptor::new(listener.into()).unwrap();
            let clients = [(); 3].map(|()| std::net::TcpStream::connect(addr).unwrap());
            poll_fn(|cx| acceptor.watch.poll_readable(cx)).await.unwrap();
            for client in clients {
                let (_socket, peer) = acceptor.take_last().unwrap();
                assert_eq!(peer, Some(client.local_addr().unwrap()));
            }
            assert!(acceptor.take_last().is_none());
        });
    }

    #[test]
    fn who_comes_alone_is_seldom_asked_for_company() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        run(async {
            let mut acceptor = Acceptor::new(listener.into()).unwrap();
            let mut asked = 0;
            for _ in 0..90 {
                if acceptor.goes_on(1) {
                    asked += 1;
                    acceptor.alone += 1;
                }
            }
            assert!((15..=20).contains(&asked), "{asked}");
            assert!(acceptor.goes_on(2) && !acceptor.goes_on(Acceptor::MOST));
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
