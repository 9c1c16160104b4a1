//! Reads open files: inline, in a thread pool, around the page cache.
//!
//! Answers nginx's `ngx_read_file`, `ngx_thread_read`, `ngx_linux_sendfile_thread` and the `directio`
//! of `ngx_output_chain.c`.
//!
//! Invariant: with `aio threads` the event loop never waits for a disk: it reads only what is in the
//! page cache already.

use std::{
    future::Future,
    io::{self, IoSliceMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_rt::threads::{Pool, Task};
use rustix::{
    fs::{CWD, Mode, OFlags, openat, sendfile},
    io::{Errno as Code, ReadWriteFlags, pread, preadv2},
};

use crate::body::FileSlice;

/// What disks ask for today; a multiple of every smaller alignment.
const ALIGNMENT: u64 = 4096;

/// Reads slices of files, one at a time; holds the read that is under way.
#[derive(Default)]
pub struct Reader {
    task: Option<Task<io::Result<Bytes>>>,
    /// Up to where the file at hand is known to be in the page cache.
    warm: Option<(u64, Task<()>)>,
    warm_end: u64,
}

impl Reader {
    /// Reads up to `want` bytes of the slice's beginning. None at all: the file is shorter than it
    /// was. The slice and `want` stay the same until the read is done.
    pub fn poll_read(
        &mut self,
        slice: &FileSlice,
        want: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Bytes>> {
        let file = &slice.file;
        let Some(fd) = &file.fd else { return Poll::Ready(Ok(Bytes::new())) };
        let alignment = file.directio.then_some(file.alignment);
        let Some(pool) = &file.pool else {
            return Poll::Ready(read(fd.as_fd(), slice.start, want, alignment));
        };
        if self.task.is_none() {
            if alignment.is_none()
                && let Some(bytes) = read_cached(fd.as_fd(), slice.start, want)
            {
                return Poll::Ready(Ok(bytes));
            }
            let (fd, start) = (fd.clone(), slice.start);
            let task = pool.run(move || read(fd.as_fd(), start, want, alignment));
            self.task = Some(task.map_err(io::Error::other)?);
        }
        let Some(task) = &mut self.task else { return Poll::Pending };
        let done = ready!(Pin::new(task).poll(cx));
        self.task = None;
        Poll::Ready(done.unwrap_or_else(|| Err(io::Error::other("the reading thread panicked"))))
    }

    /// Ready when the kernel can send `count` bytes of the slice's beginning without waiting for a
    /// disk, as far as that can be known.
    pub fn poll_warm(&mut self, slice: &FileSlice, count: u64, cx: &mut Context<'_>) -> Poll<()> {
        let (Some(pool), Some(fd)) = (&slice.file.pool, &slice.file.fd) else {
            return Poll::Ready(());
        };
        loop {
            if let Some((end, task)) = &mut self.warm {
                // A thread that panicked has warmed nothing, which costs time only.
                let _ = ready!(Pin::new(task).poll(cx));
                self.warm_end = *end;
                self.warm = None;
            }
            if slice.start < self.warm_end {
                return Poll::Ready(());
            }
            let (end, start) = (slice.start + count, slice.start);
            match warm(pool, fd, start, count) {
                Some(task) => self.warm = Some((end, task)),
                None => return Poll::Ready(()),
            }
        }
    }

    /// The next slice may be of another file.
    pub fn next_slice(&mut self) {
        self.warm_end = 0;
    }
}

/// Brings a part of a file into the page cache; the bytes go nowhere.
fn warm(pool: &Arc<Pool>, fd: &Arc<OwnedFd>, start: u64, count: u64) -> Option<Task<()>> {
    let fd = fd.clone();
    let work = move || {
        let Ok(nowhere) = openat(CWD, "/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        else {
            return;
        };
        let (mut offset, mut left) = (start, count as usize);
        while left > 0 {
            match sendfile(&nowhere, &fd, Some(&mut offset), left) {
                Ok(0) => return,
                Ok(sent) => left = left.saturating_sub(sent),
                Err(Code::INTR) => {}
                Err(_) => return,
            }
        }
    };
    // A pool that is full: sending waits for the disk then, as it would without `aio`.
    pool.run(work).ok()
}

fn read(fd: BorrowedFd<'_>, start: u64, want: usize, alignment: Option<u64>) -> io::Result<Bytes> {
    if let Some(alignment) = alignment {
        return read_aligned(fd, start, want, alignment);
    }
    let mut bytes = vec![0; want];
    let read = retry(|| pread(fd, &mut bytes, start))?;
    bytes.truncate(read);
    Ok(bytes.into())
}

/// Reads what is in the page cache; `None`: nothing of it is.
fn read_cached(fd: BorrowedFd<'_>, start: u64, want: usize) -> Option<Bytes> {
    let mut bytes = vec![0; want];
    let window = &mut [IoSliceMut::new(&mut bytes)];
    let read = preadv2(fd, window, start, ReadWriteFlags::NOWAIT).ok()?;
    bytes.truncate(read);
    Some(bytes.into())
}

/// Reads around the page cache: place in the file, length and place in memory are all aligned.
fn read_aligned(fd: BorrowedFd<'_>, start: u64, want: usize, alignment: u64) -> io::Result<Bytes> {
    let alignment = alignment.next_power_of_two().max(ALIGNMENT);
    let first = start / alignment * alignment;
    let skip = (start - first) as usize;
    let len = (skip + want).next_multiple_of(alignment as usize);
    let mut bytes = vec![0_u8; len + alignment as usize];
    let pad = bytes.as_ptr().align_offset(alignment as usize);
    let read = retry(|| pread(fd, &mut bytes[pad..pad + len], first))?;
    let end = read.min(skip + want).max(skip);
    Ok(Bytes::from(bytes).slice(pad + skip..pad + end))
}

fn retry(mut f: impl FnMut() -> Result<usize, Code>) -> io::Result<usize> {
    loop {
        match f() {
            Err(Code::INTR) => {}
            result => return Ok(result?),
        }
    }
}
