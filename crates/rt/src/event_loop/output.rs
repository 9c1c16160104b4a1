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
//! Hot path: a copy, or of a file its name, and no allocation.
//!
//! Invariant: the bytes of a socket leave in order, and before it is closed or given to another thread.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::poll_fn,
    io::{self, IoSlice},
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use rustix::{
    event::epoll::EventFlags,
    fs::sendfile,
    io::Errno,
    net::{SendFlags, send},
};

use super::{LOCAL, TaskKey, Watch, key::Key};
use crate::timer::Timer;

/// More than that is not worth the copy.
const MOST_BYTES: usize = 2 << 10;
/// A file is taken only where the socket has so many times its size of room, whatever else is on its way: packets
/// weigh up to three times what is in them.
const ROOM_FOR_FILE: usize = 4;
/// So many sockets are kept waiting at the most.
const MOST_SOCKETS: usize = 32;
/// So many may have a rest on its way: as each has filled the room that the kernel has for it before, they
/// are many only if somebody wants them to be. Then nothing is taken that might not fit.
const MOST_LATE: usize = 256;
/// How long the rest of what did not fit may stand still; nobody else waits for it.
const LATE_MS: u64 = 60_000;

/// What a socket has handed over.
#[derive(Debug, Default)]
pub(crate) struct HandedOver {
    /// In which turn it did last; 0: all is known to have left. They begin anew after 65,535: taken for one that
    /// waits, a socket sends what there is.
    turn: u16,
    /// So many kilobytes of files are sure to fit, as far as was asked; the kernel is not asked for each.
    sure_kb: u16,
}

struct Waiting {
    source: Key,
    fd: RawFd,
    piece: Piece,
}

enum Piece {
    /// So many, behind those of the ones before.
    Bytes(usize),
    /// So many from the beginning of a file that nobody changes any more.
    File(Rc<dyn AsFd>, usize),
}

/// Why a socket has not sent all that it had handed over.
enum Trouble {
    /// The connection broke, as the next call says.
    Broken(Errno),
    /// The task that sends the rest; who wants to write more.
    Late(TaskKey, Option<Waker>),
}

struct Output {
    turn: u16,
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
        self.forget_room();
        if whole > MOST_BYTES || !others_are_ready(watch) {
            return None;
        }
        let is_full = OUTPUT.with_borrow_mut(|output| {
            if self.turn != output.turn {
                self.begin(output, watch.0, fd, Piece::Bytes(whole))?;
            } else {
                // Answers to requests that came together.
                match output.waiting.last_mut().filter(|last| last.source == watch.0)?.piece {
                    Piece::Bytes(ref mut len) => *len += whole,
                    Piece::File(..) => return None,
                }
            }
            slices.iter().for_each(|slice| output.bytes.extend_from_slice(slice));
            Some(output.is_full())
        })?;
        if is_full {
            flush();
        }
        Some(whole)
    }

    /// The same of the first bytes of a file that nobody changes any more; whether it did.
    pub fn take_file(
        &mut self,
        watch: &Watch,
        fd: BorrowedFd<'_>,
        file: &Rc<dyn AsFd>,
        count: usize,
    ) -> bool {
        let Ok(needed) = u16::try_from(count.div_ceil(1024)) else { return false };
        if !others_are_ready(watch) {
            return false;
        }
        if self.sure_kb < needed {
            self.sure_kb = u16::try_from(room(fd) / ROOM_FOR_FILE / 1024).unwrap_or(u16::MAX);
        }
        if self.sure_kb < needed {
            return false;
        }
        let is_full = OUTPUT.with_borrow_mut(|output| {
            // What waits already may take the room.
            if self.turn == output.turn {
                return None;
            }
            self.begin(output, watch.0, fd, Piece::File(file.clone(), count))?;
            self.sure_kb -= needed;
            Some(output.is_full())
        });
        if is_full == Some(true) {
            flush();
        }
        is_full.is_some()
    }

    /// The first that waits of this socket.
    fn begin(
        &mut self,
        output: &mut Output,
        source: Key,
        fd: BorrowedFd<'_>,
        piece: Piece,
    ) -> Option<()> {
        if !output.is_untroubled(source) || output.late + output.waiting.len() >= MOST_LATE {
            return None;
        }
        output.waiting.push(Waiting { source, fd: fd.as_raw_fd(), piece });
        self.turn = output.turn;
        Some(())
    }

    /// Other bytes go out: how much room there is has to be asked for anew.
    pub fn forget_room(&mut self) {
        self.sure_kb = 0;
    }

    /// Whether something was handed over of which nobody knows yet that it has left.
    pub fn is_some(&self) -> bool {
        self.turn != 0
    }

    /// Sends what waits.
    fn send(&self) {
        if self.is_some() && OUTPUT.try_with(|output| output.borrow().turn == self.turn) == Ok(true)
        {
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
                self.turn = 0;
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

/// Whether something that did not fit is still on its way.
pub(crate) fn is_late() -> bool {
    OUTPUT.with_borrow(|output| output.late > 0)
}

/// Whether a socket can be written to, and others have their turn anyway.
fn others_are_ready(watch: &Watch) -> bool {
    watch.is_some()
        && LOCAL.with(|local| {
            local.tasks.borrow().has_waiting() && local.sources.borrow().takes_output(watch.0)
        })
}

/// How much more the kernel takes for a socket at the moment (`SO_MEMINFO`).
fn room(fd: BorrowedFd<'_>) -> usize {
    let mut info = [0_u32; 16];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes no more than `len` bytes.
    #[allow(unsafe_code)]
    let asked = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if asked != 0 {
        return 0;
    }
    let at = |place: libc::c_int| info[place as usize] as usize;
    let used = at(libc::SK_MEMINFO_WMEM_ALLOC).max(at(libc::SK_MEMINFO_WMEM_QUEUED));
    at(libc::SK_MEMINFO_SNDBUF).saturating_sub(used)
}

/// Sends all that waits.
pub(super) fn flush() {
    if OUTPUT.with_borrow(|output| output.waiting.is_empty()) {
        return;
    }
    let (mut waiting, bytes) = OUTPUT.with_borrow_mut(|output| {
        // 0 is nobody's turn.
        output.turn = output.turn.checked_add(1).unwrap_or(1);
        (mem::take(&mut output.waiting), mem::take(&mut output.bytes))
    });
    let mut left = &bytes[..];
    for Waiting { source, fd, piece } in waiting.drain(..) {
        // SAFETY: the socket is open: had it been closed since it handed this over, it would have been
        // flushed before, as its `HandedOver` is dropped first. That is of this thread: another one is given
        // only sockets that are at rest (`Socket::is_at_rest`).
        #[allow(unsafe_code)]
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let rest = match piece {
            Piece::Bytes(len) => {
                let (bytes, behind) = left.split_at(len);
                left = behind;
                write(fd, bytes).map(|sent| {
                    (sent < len).then(|| Rest::Bytes { bytes: bytes[sent..].to_vec(), sent: 0 })
                })
            }
            Piece::File(file, len) => write_file(fd, &*file, 0, len)
                .map(|sent| (sent < len).then(|| Rest::File { file, sent, len })),
        };
        match rest {
            Ok(None) => {}
            Ok(Some(rest)) => end_later(source, fd, rest),
            Err(errno) => break_off(source, errno),
        }
    }
    OUTPUT.with_borrow_mut(|output| {
        // Nothing can have come meanwhile: who writes is not asked to take its turn here.
        (output.waiting, output.bytes) = (waiting, bytes);
        output.bytes.clear();
    });
}

/// How much the socket takes now.
fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    retry(|| send(fd, bytes, SendFlags::NOSIGNAL))
}

/// The same of a file, from an offset on.
fn write_file(fd: BorrowedFd<'_>, file: &dyn AsFd, at: usize, len: usize) -> Result<usize, Errno> {
    retry(|| sendfile(fd, file.as_fd(), Some(&mut (at as u64)), len - at))
}

fn retry(mut f: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    loop {
        match f() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            result => return result,
        }
    }
}

/// What did not fit.
enum Rest {
    Bytes { bytes: Vec<u8>, sent: usize },
    File { file: Rc<dyn AsFd>, sent: usize, len: usize },
}

impl Rest {
    /// Writes what the socket takes; whether that was all.
    fn write(&mut self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        match self {
            Rest::Bytes { bytes, sent } => {
                *sent += write(fd, &bytes[*sent..])?;
                Ok(*sent == bytes.len())
            }
            Rest::File { file, sent, len } => {
                *sent += write_file(fd, &**file, *sent, *len)?;
                Ok(sent == len)
            }
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
fn end_later(source: Key, fd: BorrowedFd<'_>, rest: Rest) {
    if !super::is_running() {
        return;
    }
    let Ok(own) = fd.try_clone_to_owned() else {
        return break_off(source, Errno::NOBUFS);
    };
    let counted = Late::new();
    let rest = super::spawn(async move {
        let _counted = counted;
        let ended = send_rest(own, rest).await;
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

/// A socket under a second number, which is watched by itself.
struct Second {
    watch: Watch,
    fd: OwnedFd,
}

impl Drop for Second {
    /// As long as the first number is open, the kernel would keep the second one watched, and not let it be
    /// watched anew.
    fn drop(&mut self) {
        self.watch.leave(self.fd.as_fd());
    }
}

async fn send_rest(fd: OwnedFd, mut rest: Rest) -> Result<(), Errno> {
    let timer = Timer::new();
    timer.arm(LATE_MS);
    let watch = Watch::full(fd.as_fd()).map_err(|_| Errno::NOBUFS)?;
    let Second { watch, fd } = &Second { watch, fd };
    poll_fn(|cx| {
        loop {
            match watch.poll_writable(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Errno::BADF)),
                Poll::Pending => return timer.poll_expired(cx).map(|()| Err(Errno::TIMEDOUT)),
            }
            if rest.write(fd.as_fd())? {
                return Poll::Ready(Ok(()));
            }
            timer.arm(LATE_MS);
            watch.full_now(fd.as_fd()).map_err(|_| Errno::NOBUFS)?;
        }
    })
    .await
}

#[cfg(test)]
mod tests;
