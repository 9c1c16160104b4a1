//! Writing: plaintext is sealed into a buffer of the thread, and what the socket does not take is kept.
//! Hot path: no allocation but for what a full socket leaves over.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    os::fd::BorrowedFd,
    task::{Context, Poll, ready},
};

use forebay_rt::{pool, transport::Transport};

use super::{EXHAUSTED, State};
use crate::records::kind;

/// How much plaintext is sealed for one system call.
pub(super) const BATCH_BYTES: usize = 64 << 10;
/// Room for that in records of the largest size, and for what is sent before it.
const SCRATCH_BYTES: usize = BATCH_BYTES + (16 << 10);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Sealed bytes that the socket has not taken.
#[derive(Default)]
pub(super) struct Output {
    pub(super) bytes: Vec<u8>,
    pub(super) at: usize,
    /// How many bytes of the batch the socket took before `bytes[0]`.
    pub(super) gone: usize,
    /// How many bytes stand in the batch before its first record of data.
    pub(super) front: usize,
    /// How much plaintext the batch holds, and how much of it the caller knows as written.
    pub(super) plain: usize,
    pub(super) reported: usize,
    /// Never tried yet: it may leave together with what follows.
    pub(super) deferred: bool,
    /// Where in the batch a `KeyUpdate` of ours ends; 0: none is in it.
    pub(super) update_ends: usize,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Whether a `KeyUpdate` of ours has not left yet.
    pub(super) fn has_update(&self) -> bool {
        self.update_ends > self.gone + self.at
    }

    /// How much of the plaintext is in records that left whole, and was not reported yet.
    fn progress(&self, record_plain: usize, overhead: usize) -> usize {
        let sent = (self.gone + self.at).saturating_sub(self.front);
        let whole = match self.is_empty() {
            true => self.plain,
            false => (sent / (record_plain + overhead) * record_plain).min(self.plain),
        };
        whole - self.reported
    }
}

impl State {
    /// Seals what leaves with the next batch.
    pub(super) fn hold(&mut self, mut plain: impl Plain, total: usize) -> io::Result<usize> {
        let mut scratch = SCRATCH.take();
        let sealed = seal_into(&mut scratch, self, &mut plain, total);
        let mut bytes = match self.output.bytes.capacity() {
            0 => pool::buffer(),
            _ => std::mem::take(&mut self.output.bytes),
        };
        bytes.clear();
        let (len, update_ends) =
            sealed.as_ref().map_or((0, 0), |sealed| (sealed.len, sealed.update_ends));
        bytes.extend_from_slice(&scratch[..len]);
        SCRATCH.set(scratch);
        self.output =
            Output { bytes, front: len, deferred: true, update_ends, ..Output::default() };
        sealed.map(|sealed| sealed.plain)
    }
}

/// Sends all that waits.
pub(super) fn poll_flush<T: Transport>(
    io: &mut T,
    output: &mut Output,
    cx: &mut Context<'_>,
    more: bool,
) -> Poll<io::Result<()>> {
    output.deferred = false;
    while output.at < output.bytes.len() {
        let slices = [IoSlice::new(&output.bytes[output.at..])];
        match ready!(io.poll_write(cx, &slices, more))? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            sent => output.at += sent,
        }
    }
    Poll::Ready(Ok(()))
}

/// Sends what waits, and says how much more of the caller's bytes is written; 0: nothing waits.
pub(super) fn poll_earlier<T: Transport>(
    io: &mut T,
    state: &mut State,
    offered: usize,
    cx: &mut Context<'_>,
    more: bool,
) -> Poll<io::Result<usize>> {
    let flushed = poll_flush(io, &mut state.output, cx, more)?;
    let progress = state.output.progress(state.record_bytes, state.sealing.overhead());
    let progress = progress.min(offered);
    state.output.reported += progress;
    if flushed.is_pending() {
        return if progress > 0 { Poll::Ready(Ok(progress)) } else { Poll::Pending };
    }
    if state.output.reported == state.output.plain {
        pool::recycle(std::mem::take(&mut state.output).bytes);
    }
    Poll::Ready(Ok(progress))
}

/// Bytes to be sealed: where they come from.
pub(super) trait Plain {
    /// Fills the whole of `room`, or less at the end of what there is.
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize>;
}

pub(super) struct Slices<'a, 'b> {
    pub(super) slices: &'a [IoSlice<'b>],
    pub(super) at: usize,
}

impl Plain for Slices<'_, '_> {
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(slice) = self.slices.first()
            && filled < room.len()
        {
            let rest = &slice[self.at..];
            let len = rest.len().min(room.len() - filled);
            room[filled..filled + len].copy_from_slice(&rest[..len]);
            filled += len;
            self.at += len;
            if self.at == slice.len() {
                (self.slices, self.at) = (&self.slices[1..], 0);
            }
        }
        Ok(filled)
    }
}

pub(super) struct File<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) offset: u64,
}

impl Plain for File<'_> {
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < room.len() {
            match rustix::io::pread(self.fd, &mut room[filled..], self.offset) {
                Ok(0) => break,
                Ok(read) => (filled, self.offset) = (filled + read, self.offset + read as u64),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(filled)
    }
}

/// Seals up to `total` bytes into the thread's buffer and sends them; what the socket does not take
/// is kept with the connection.
pub(super) fn poll_seal<T: Transport>(
    io: &mut T,
    state: &mut State,
    cx: &mut Context<'_>,
    mut plain: impl Plain,
    total: usize,
    more: bool,
) -> Poll<io::Result<usize>> {
    if state.closed || state.broken {
        return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
    }
    let records = total.div_ceil(state.record_bytes) as u64;
    if state.sealing.left() <= records {
        state.renew_sealing()?;
    }
    let mut scratch = SCRATCH.take();
    let result = seal_into(&mut scratch, state, &mut plain, total)
        .and_then(|sealed| send_sealed(io, state, cx, &scratch, sealed, more));
    SCRATCH.set(scratch);
    let front_only = result?;
    if front_only == 0 {
        // What the file lacks is the caller's to notice.
        return Poll::Ready(Ok(0));
    }
    match state.output.is_empty() {
        true => {
            state.output = Output::default();
            Poll::Ready(Ok(front_only))
        }
        false => poll_earlier(io, state, total, cx, more),
    }
}

/// How the batch is laid out that was sealed.
struct Sealed {
    front: usize,
    plain: usize,
    len: usize,
    update_ends: usize,
}

fn seal_into(
    scratch: &mut Vec<u8>,
    state: &mut State,
    plain: &mut impl Plain,
    total: usize,
) -> io::Result<Sealed> {
    let overhead = state.sealing.overhead();
    let front = state.output.bytes.len() - state.output.at;
    let update_ends = state.output.update_ends.saturating_sub(state.output.gone + state.output.at);
    let records = total.div_ceil(state.record_bytes);
    let room = front + total + records * overhead;
    if scratch.len() < room {
        scratch.resize(room.max(SCRATCH_BYTES), 0);
    }
    scratch[..front].copy_from_slice(&state.output.bytes[state.output.at..]);
    let mut at = front;
    let mut sealed = 0;
    while sealed < total {
        let start = at + state.sealing.prefix();
        let want = state.record_bytes.min(total - sealed);
        let len = plain.fill(&mut scratch[start..start + want])?;
        if len == 0 {
            break;
        }
        let record = &mut scratch[at..at + len + overhead];
        state.sealing.seal(kind::DATA, record).map_err(|_| state.fail(EXHAUSTED))?;
        at += record.len();
        sealed += len;
        if len < want {
            break;
        }
    }
    Ok(Sealed { front, plain: sealed, len: at, update_ends })
}

/// Sends the batch as far as the socket takes it at once; the plaintext in it.
fn send_sealed<T: Transport>(
    io: &mut T,
    state: &mut State,
    cx: &mut Context<'_>,
    scratch: &[u8],
    sealed: Sealed,
    more: bool,
) -> io::Result<usize> {
    let batch = &scratch[..sealed.len];
    let sent = match io.poll_write(cx, &[IoSlice::new(batch)], more) {
        Poll::Ready(sent) => sent?,
        Poll::Pending => 0,
    };
    let mut bytes = std::mem::take(&mut state.output.bytes);
    bytes.clear();
    if sent < batch.len() {
        bytes.extend_from_slice(&batch[sent..]);
    } else if bytes.capacity() > 0 {
        pool::recycle(std::mem::take(&mut bytes));
    }
    state.output = Output {
        bytes,
        at: 0,
        gone: sent,
        front: sealed.front,
        plain: sealed.plain,
        reported: 0,
        deferred: false,
        update_ends: sealed.update_ends,
    };
    Ok(sealed.plain)
}
