//! Small writes that wait until the tasks which are ready have had their turn, and then leave together.
//!
//! What a request runs through here, and what its bytes run through in the kernel, are each longer than
//! a processor's first cache of instructions. Of twenty tasks that are ready at once, each would have
//! the other's code fetched anew; so first all of them make their answers, then all answers are sent.
//!
//! A socket whose bytes wait here behaves as one that has taken them: what cannot be sent then goes out
//! as soon as there is room, also when the socket has been closed meanwhile; what breaks the connection,
//! the next call tells.
//!
//! Hot path: a copy, and no allocation.
//!
//! Invariant: the bytes of a socket leave in order, and before it is closed or given to another thread.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::poll_fn,
    io::{self, IoSlice},
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    task::{Context, Poll, Waker},
};

use rustix::{
    event::epoll::EventFlags,
    io::Errno,
    net::{SendFlags, send},
};

use super::{LOCAL, TaskKey, Watch, key::Key};
use crate::timer::Timer;

/// More than that is not worth the copy.
const MOST_BYTES: usize = 2 << 10;
/// So many sockets are kept waiting at the most.
const MOST_SOCKETS: usize = 32;
/// So many may have a rest on its way: as each has filled the room that the kernel has for it before, they
/// are many only if somebody wants them to be.
const MOST_LATE: usize = 256;
/// How long the rest of what did not fit may take; nobody else waits for it.
const LATE_MS: u64 = 60_000;

/// What a socket has handed over last: in which turn; 0: nothing.
#[derive(Debug, Default)]
pub(crate) struct HandedOver(u32);

struct Waiting {
    source: Key,
    fd: RawFd,
    len: usize,
}

/// Why a socket has not sent all that it had handed over.
enum Trouble {
    /// The connection broke, as the next call says.
    Broken(Errno),
    /// The task that sends the rest; who wants to write more.
    Late(TaskKey, Option<Waker>),
}

struct Output {
    turn: u32,
    waiting: Vec<Waiting>,
    bytes: Vec<u8>,
    /// By the bits of the [`Key`].
    troubles: BTreeMap<u64, Trouble>,
    /// How many have a rest on its way, those that are closed included.
    late: usize,
}

thread_local! {
    static OUTPUT: RefCell<Output> = const {
        RefCell::new(Output {
            turn: 1,
            waiting: Vec::new(),
            bytes: Vec::new(),
            troubles: BTreeMap::new(),
            late: 0,
        })
    };
}

impl HandedOver {
    /// Takes the bytes, if they are few and others have their turn anyway before they could be sent; how
    /// many.
    pub fn take(
        &mut self,
        watch: &Watch,
        fd: BorrowedFd<'_>,
        slices: &[IoSlice<'_>],
    ) -> Option<usize> {
        let whole = slices.iter().map(|slice| slice.len()).sum();
        if whole > MOST_BYTES || !watch.is_some() {
            return None;
        }
        let has_time = LOCAL.with(|local| {
            local.tasks.borrow().has_waiting() && local.sources.borrow().takes_output(watch.0)
        });
        if !has_time {
            return None;
        }
        let is_full = OUTPUT.with_borrow_mut(|output| {
            let source = watch.0;
            if self.0 != output.turn {
                if !output.is_untroubled(source) {
                    return None;
                }
                output.waiting.push(Waiting { source, fd: fd.as_raw_fd(), len: whole });
                self.0 = output.turn;
            } else {
                // Answers to requests that came together.
                output.waiting.last_mut().filter(|last| last.source == source)?.len += whole;
            }
            slices.iter().for_each(|slice| output.bytes.extend_from_slice(slice));
            Some(output.is_full())
        })?;
        if is_full {
            flush();
        }
        Some(whole)
    }

    /// Whether something was handed over of which nobody knows yet that it has left.
    pub fn is_some(&self) -> bool {
        self.0 != 0
    }

    /// Sends what waits.
    fn send(&self) {
        if self.is_some() && OUTPUT.try_with(|output| output.borrow().turn == self.0) == Ok(true) {
            flush();
        }
    }

    /// What became of it, before more is read. What is late need not be waited for.
    pub fn check(&mut self, watch: &Watch) -> io::Result<()> {
        if !self.is_some() {
            return Ok(());
        }
        self.send();
        OUTPUT.with_borrow_mut(|output| {
            if output.is_untroubled(watch.0) {
                self.0 = 0;
            }
            output.take_broken(watch.0).map_or(Ok(()), |errno| Err(errno.into()))
        })
    }

    /// Ready when all of it has left, so that more may be written.
    pub fn poll_left(&mut self, watch: &Watch, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.check(watch)?;
        if self.is_some() && OUTPUT.with_borrow_mut(|output| output.wait_for_late(watch.0, cx)) {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Whether all of it has left, now that it must.
    pub fn has_left(&mut self, watch: &Watch) -> bool {
        self.send();
        !self.is_some() || OUTPUT.with_borrow(|output| output.is_untroubled(watch.0))
    }

    /// What is still on its way is given up.
    pub fn give_up(&self, watch: &Watch) {
        self.send();
        OUTPUT.with_borrow(|output| {
            if let Some(Trouble::Late(rest, _)) = output.troubles.get(&watch.0.bits()) {
                rest.abort();
            }
        });
    }
}

// Before the descriptor is closed: its number would be another's.
impl Drop for HandedOver {
    fn drop(&mut self) {
        self.send();
    }
}

impl Output {
    fn is_full(&self) -> bool {
        self.waiting.len() >= MOST_SOCKETS || self.bytes.len() > MOST_SOCKETS * MOST_BYTES
    }

    fn is_untroubled(&self, source: Key) -> bool {
        self.troubles.is_empty() || !self.troubles.contains_key(&source.bits())
    }

    fn take_broken(&mut self, source: Key) -> Option<Errno> {
        let Some(&Trouble::Broken(errno)) = self.troubles.get(&source.bits()) else { return None };
        self.troubles.remove(&source.bits());
        Some(errno)
    }

    fn wait_for_late(&mut self, source: Key, cx: &Context<'_>) -> bool {
        let Some(Trouble::Late(_, writer)) = self.troubles.get_mut(&source.bits()) else {
            return false;
        };
        *writer = Some(cx.waker().clone());
        true
    }

    /// Forgets the trouble of a socket, and gives back who waits for its end.
    fn forget(&mut self, source: Key) -> Option<Waker> {
        match self.troubles.remove(&source.bits())? {
            Trouble::Late(_, writer) => writer,
            Trouble::Broken(_) => None,
        }
    }
}

/// The socket is gone: nobody asks about it any more.
pub(super) fn forget(source: Key) {
    let _ = OUTPUT.try_with(|output| output.borrow_mut().forget(source));
}

/// Sends all that waits.
pub(super) fn flush() {
    if OUTPUT.with_borrow(|output| output.waiting.is_empty()) {
        return;
    }
    let (waiting, bytes) = OUTPUT.with_borrow_mut(|output| {
        // 0 is nobody's turn.
        output.turn = output.turn.checked_add(1).unwrap_or(1);
        (mem::take(&mut output.waiting), mem::take(&mut output.bytes))
    });
    let mut at = 0;
    for &Waiting { source, fd, len } in &waiting {
        // SAFETY: the socket is open: had it been closed since it handed this over, it would have been
        // flushed before, as its `HandedOver` is dropped first. That is of this thread: another one is given
        // only sockets that are at rest (`Socket::is_at_rest`).
        #[allow(unsafe_code)]
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let piece = &bytes[at..at + len];
        at += len;
        match write(fd, piece) {
            Ok(written) if written == len => {}
            Ok(written) => end_later(source, fd, piece[written..].to_vec()),
            Err(errno) => break_off(source, errno),
        }
    }
    OUTPUT.with_borrow_mut(|output| {
        // Nothing can have come meanwhile: who writes is not asked to take its turn here.
        (output.waiting, output.bytes) = (waiting, bytes);
        output.waiting.clear();
        output.bytes.clear();
    });
}

/// How much the socket takes now.
fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(fd, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            result => return result,
        }
    }
}

/// The connection broke: who waits for it hears of it as of a reset that came from the network.
#[cold]
fn break_off(source: Key, errno: Errno) {
    let wakers = LOCAL.with(|local| {
        let mut sources = local.sources.borrow_mut();
        sources.has(source).then(|| sources.event(source, EventFlags::ERR))
    });
    if let Some(wakers) = wakers {
        let trouble = Trouble::Broken(errno);
        OUTPUT.with_borrow_mut(|output| output.troubles.insert(source.bits(), trouble));
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Sends the rest when there is room for it, whatever becomes of the socket until then.
#[cold]
fn end_later(source: Key, fd: BorrowedFd<'_>, rest: Vec<u8>) {
    if !super::is_running() {
        return;
    }
    let has_room = OUTPUT.with_borrow(|output| output.late < MOST_LATE);
    let Some(own) = has_room.then(|| fd.try_clone_to_owned().ok()).flatten() else {
        return break_off(source, Errno::NOBUFS);
    };
    let counted = Late::new();
    let rest = super::spawn(async move {
        let _counted = counted;
        let ended = send_rest(own, &rest).await;
        // Who waits to write is woken, and told if that is of no use.
        let writer = OUTPUT.with_borrow_mut(|output| output.forget(source));
        if let Err(errno) = ended {
            break_off(source, errno);
        }
        writer.into_iter().for_each(Waker::wake);
    });
    let trouble = Trouble::Late(rest, None);
    OUTPUT.with_borrow_mut(|output| output.troubles.insert(source.bits(), trouble));
}

/// Counts a rest that is on its way.
struct Late;

impl Late {
    fn new() -> Late {
        OUTPUT.with_borrow_mut(|output| output.late += 1);
        Late
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        OUTPUT.with_borrow_mut(|output| output.late -= 1);
    }
}

async fn send_rest(fd: OwnedFd, mut rest: &[u8]) -> Result<(), Errno> {
    let timer = Timer::new();
    timer.arm(LATE_MS);
    let watch = Watch::full(fd.as_fd()).map_err(|_| Errno::NOBUFS)?;
    poll_fn(|cx| {
        while !rest.is_empty() {
            match watch.poll_writable(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Errno::BADF)),
                Poll::Pending => return timer.poll_expired(cx).map(|()| Err(Errno::TIMEDOUT)),
            }
            rest = &rest[write(fd.as_fd(), rest)?..];
            if !rest.is_empty() {
                watch.full_now(fd.as_fd()).map_err(|_| Errno::NOBUFS)?;
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        task::{self, block_on, spawn_local, yield_now},
        transport::{Socket, Transport},
    };
    use std::{
        cell::Cell,
        fs::File,
        future::Future,
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
        rc::Rc,
    };

    /// A socket that the event loop knows, and another way to it.
    async fn watch(fd: OwnedFd) -> (Socket, File) {
        rustix::io::ioctl_fionbio(&fd, true).unwrap();
        let other = File::from(fd.try_clone().unwrap());
        let mut socket = Socket::new(fd);
        assert!(is_pending(|cx| socket.poll_read(cx, &mut Vec::with_capacity(16))).await);
        (socket, other)
    }

    /// The same, and its other end.
    async fn watched() -> (Socket, File, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (socket, other) = watch(ours.into()).await;
        (socket, other, theirs)
    }

    async fn is_pending<T>(mut f: impl FnMut(&mut Context<'_>) -> Poll<T>) -> bool {
        poll_fn(|cx| Poll::Ready(f(cx).is_pending())).await
    }

    async fn hand_over(socket: &mut Socket, text: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| socket.poll_hand_over(cx, &[IoSlice::new(text)])).await
    }

    async fn write(socket: &mut Socket, text: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(text)], false)).await
    }

    fn arrived(theirs: &mut UnixStream) -> String {
        let mut all = Vec::new();
        let _ = theirs.read_to_end(&mut all);
        String::from_utf8(all).unwrap()
    }

    /// Runs it while another task waits for its turn, and says what that one finds out.
    async fn before<T>(work: impl Future<Output = ()>, look: impl FnOnce() -> T + 'static) -> T
    where
        T: 'static,
    {
        let found = Rc::new(Cell::new(None));
        let place = found.clone();
        spawn_local(async move { place.set(Some(look())) });
        work.await;
        yield_now().await;
        found.take().expect("it had its turn")
    }

    /// Takes all the room that the kernel has for the socket.
    fn fill(mut other: File) {
        while other.write(&[b'.'; 4096]).is_ok() {}
    }

    /// Hands over what does not fit.
    async fn late(socket: &mut Socket, other: File) {
        fill(other);
        before(async { assert_eq!(hand_over(socket, b"late").await.unwrap(), 4) }, || ()).await;
    }

    #[test]
    fn what_is_handed_over_leaves_when_the_others_had_their_turn() {
        block_on(async {
            let (mut socket, _, theirs) = watched().await;
            let mut looking = theirs.try_clone().unwrap();
            let others = before(
                async { assert_eq!(hand_over(&mut socket, b"one").await.unwrap(), 3) },
                move || arrived(&mut looking),
            );
            assert_eq!(others.await, "");
            assert_eq!(arrived(&mut { theirs }), "one");
        });
    }

    #[test]
    fn who_is_alone_or_has_much_to_say_writes_at_once() {
        block_on(async {
            let (mut socket, _, mut theirs) = watched().await;
            hand_over(&mut socket, b"alone").await.unwrap();
            assert_eq!(arrived(&mut theirs), "alone");
            let much = [b'm'; MOST_BYTES + 1];
            let mut looking = theirs.try_clone().unwrap();
            let others = before(
                async { assert_eq!(hand_over(&mut socket, &much).await.unwrap(), much.len()) },
                move || arrived(&mut looking),
            );
            assert_eq!(others.await.len(), much.len());
        });
    }

    #[test]
    fn bytes_keep_their_order_whatever_follows() {
        block_on(async {
            let (mut socket, _, mut theirs) = watched().await;
            let (mut another, _, mut others_end) = watched().await;
            let talk = async {
                hand_over(&mut socket, b"a").await.unwrap();
                hand_over(&mut socket, b"b").await.unwrap();
                hand_over(&mut another, b"x").await.unwrap();
                // Not the last one that waits any more: all is sent.
                hand_over(&mut socket, b"c").await.unwrap();
                write(&mut socket, b"d").await.unwrap();
                hand_over(&mut socket, b"e").await.unwrap();
                poll_fn(|cx| socket.poll_shutdown(cx)).await.unwrap();
            };
            before(talk, || ()).await;
            assert_eq!(arrived(&mut theirs), "abcde");
            assert_eq!(arrived(&mut others_end), "x");
        });
    }

    #[test]
    fn a_socket_that_is_closed_or_given_away_has_said_all() {
        block_on(async {
            let (mut closed, _, mut theirs) = watched().await;
            let (mut given, _, mut others_end) = watched().await;
            let talk = async {
                hand_over(&mut closed, b"bye").await.unwrap();
                drop(closed);
                assert_eq!(arrived(&mut theirs), "bye");
                hand_over(&mut given, b"take").await.unwrap();
                assert!(given.into_fd().is_some());
                assert_eq!(arrived(&mut others_end), "take");
            };
            before(talk, || ()).await;
        });
    }

    #[test]
    fn nobody_waits_for_who_has_much_to_do() {
        block_on(async {
            let (mut socket, _, mut theirs) = watched().await;
            let talk = async {
                hand_over(&mut socket, b"little").await.unwrap();
                task::worked(super::super::MUCH);
                assert_eq!(arrived(&mut theirs), "little");
            };
            before(talk, || ()).await;
        });
    }

    #[test]
    fn many_sockets_are_not_kept_waiting() {
        block_on(async {
            let mut all = Vec::new();
            for _ in 0..MOST_SOCKETS {
                all.push(watched().await);
            }
            let talk = async {
                for (socket, ..) in &mut all {
                    hand_over(socket, b"now").await.unwrap();
                }
                assert!(all.iter_mut().all(|(_, _, theirs)| arrived(theirs) == "now"));
            };
            before(talk, || ()).await;
        });
    }

    #[test]
    fn what_does_not_fit_follows_even_when_the_socket_is_closed() {
        block_on(async {
            let (mut socket, other, mut theirs) = watched().await;
            late(&mut socket, other).await;
            drop(socket);
            let mut all = String::new();
            while !all.ends_with("late") {
                all += &arrived(&mut theirs);
                yield_now().await;
            }
            yield_now().await;
            // And then its end.
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        });
    }

    #[test]
    fn who_writes_behind_what_did_not_fit_waits_for_it() {
        block_on(async {
            let (mut socket, other, mut theirs) = watched().await;
            late(&mut socket, other).await;
            assert!(is_pending(|cx| socket.poll_write(cx, &[IoSlice::new(b"!")], false)).await);
            assert!(is_pending(|cx| socket.poll_shutdown(cx)).await);
            // It reads meanwhile.
            theirs.write_all(b"next").unwrap();
            let mut buf = Vec::with_capacity(16);
            assert_eq!(poll_fn(|cx| socket.poll_read(cx, &mut buf)).await.unwrap(), 4);
            let mut all = String::new();
            let read = async {
                while !all.ends_with("late.") {
                    all += &arrived(&mut theirs);
                    yield_now().await;
                }
            };
            spawn_local(async move {
                write(&mut socket, b".").await.unwrap();
                poll_fn(|cx| socket.poll_shutdown(cx)).await.unwrap();
            });
            read.await;
            assert!(all.ends_with("..late."));
        });
    }

    #[test]
    fn few_may_be_late() {
        block_on(async {
            let mut all = Vec::new();
            for _ in 0..=MOST_LATE {
                let (socket, other, theirs) = watched().await;
                fill(other);
                all.push((socket, theirs));
            }
            let talk = async {
                for (socket, _) in &mut all {
                    hand_over(socket, b"late").await.unwrap();
                }
            };
            before(talk, || ()).await;
            let (last, _) = all.last_mut().unwrap();
            let mut buf = Vec::with_capacity(16);
            let told = poll_fn(|cx| last.poll_read(cx, &mut buf)).await.unwrap_err();
            assert_eq!(told.raw_os_error(), Some(Errno::NOBUFS.raw_os_error()));
            // Their ends do not wait for anybody.
            all.clear();
            while OUTPUT.with_borrow(|output| output.late > 0) {
                yield_now().await;
            }
        });
    }

    #[test]
    fn a_socket_with_something_late_is_not_given_away() {
        block_on(async {
            let (mut socket, other, _theirs) = watched().await;
            late(&mut socket, other).await;
            assert!(!socket.is_at_rest());
            assert!(socket.into_fd().is_none());
        });
    }

    #[test]
    fn who_resets_the_connection_gives_up_what_is_late() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut theirs, _) = listener.accept().unwrap();
            let (mut socket, other) = watch(ours.into()).await;
            late(&mut socket, other).await;
            assert_eq!(OUTPUT.with_borrow(|output| output.late), 1);
            socket.reset_on_close();
            drop(socket);
            yield_now().await;
            assert_eq!(OUTPUT.with_borrow(|output| output.late), 0);
            let ended = theirs.read_to_end(&mut Vec::new()).unwrap_err();
            assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
        });
    }

    #[test]
    fn what_breaks_the_connection_the_next_call_tells() {
        let broken = io::ErrorKind::BrokenPipe;
        block_on(async {
            for writes in [false, true] {
                let (mut socket, _, theirs) = watched().await;
                let mut buf = Vec::with_capacity(16);
                let talk = async {
                    drop(theirs);
                    hand_over(&mut socket, b"lost").await.unwrap();
                };
                before(talk, || ()).await;
                let told = match writes {
                    true => write(&mut socket, b"more").await,
                    false => poll_fn(|cx| socket.poll_read(cx, &mut buf)).await,
                };
                assert_eq!(told.unwrap_err().kind(), broken, "{writes}");
                // Then it is as any socket whose peer has left.
                assert_eq!(poll_fn(|cx| socket.poll_read(cx, &mut buf)).await.unwrap(), 0);
                assert!(OUTPUT.with_borrow(|output| output.troubles.is_empty()));
            }
        });
    }
}
