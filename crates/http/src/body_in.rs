//! Request bodies: read whole, into memory or a temporary file, before a handler goes on
//! (`ngx_http_request_body.c`).

use std::{
    fs::File,
    future::poll_fn,
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use forebay_rt::threads::{Pool, Refused, Task};
use forebay_session::log::{Severity, Shown};
use forebay_wire::h1::BodyLength;

use crate::{
    client::{self, Client},
    core::{BodyInFile, TempPath},
    files,
    request::Request,
};

/// What became of the request body. Copies share it.
#[derive(Clone, Default)]
pub enum RequestBody {
    /// Nobody asked for it: what comes is thrown away.
    #[default]
    Unread,
    /// Thrown away before anybody asked for it: who does finds that there is none.
    Discarded,
    /// This much of it was read to be sent on as it comes, which nobody took.
    Begun(Bytes),
    /// It was sent on as it came, and nobody has it.
    Gone,
    /// In memory (empty, if there is none).
    Memory(Bytes),
    /// In a file.
    File(Rc<TempFile>),
}

impl RequestBody {
    /// Whether it is still to be read, or the rest of it.
    pub fn is_unread(&self) -> bool {
        matches!(self, RequestBody::Unread | RequestBody::Begun(_))
    }

    /// What was read of it, for whoever reads the rest.
    pub fn take_begun(&mut self) -> Bytes {
        match self {
            RequestBody::Begun(begun) => std::mem::take(begun),
            _ => Bytes::new(),
        }
    }

    /// The file that it is in.
    pub fn path(&self) -> Option<&Path> {
        match self {
            RequestBody::File(file) => Some(&file.path),
            _ => None,
        }
    }
}

/// A body in a file, which goes with the request unless it is to stay.
pub struct TempFile {
    /// Where it is.
    pub path: PathBuf,
    /// The open file, written to its end.
    pub file: Arc<File>,
    /// Its bytes.
    pub len: u64,
    keep: bool,
    /// Who writes it and removes it, where that is not the event loop (`aio_write`).
    pool: Option<Arc<Pool>>,
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let path = std::mem::take(&mut self.path);
        let unwanted = Unwanted { path, _file: self.file.clone() };
        if let Some(pool) = &self.pool {
            // Where there is no room for a task it is dropped at once, and the file with it.
            let _ = pool.run(move || drop(unwanted));
        }
    }
}

/// A file that goes when this does: its name, and then, with the last descriptor, its blocks, for which
/// the kernel may wait for the disk.
struct Unwanted {
    path: PathBuf,
    _file: Arc<File>,
}

impl Drop for Unwanted {
    fn drop(&mut self) {
        // Somebody may have moved it away (`dav`), which is how such a file is meant to end.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl TempFile {
    /// Makes a file of a new name below the directory: ten digits, and its last digits as
    /// subdirectories (`ngx_create_hashed_filename`).
    pub fn create(at: &TempPath, keep: bool) -> std::io::Result<TempFile> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Names left over from another run are passed over.
        for _ in 0..10_000 {
            let number = NEXT.fetch_add(1, Relaxed) % 10_000_000_000;
            let name = format!("{number:010}");
            let mut path = at.path.clone();
            let mut end = name.len();
            for level in at.levels.iter().filter(|level| **level > 0) {
                let start = end - usize::from(*level);
                path.push(&name[start..end]);
                end = start;
            }
            let directory = path.clone();
            path.push(&name);
            let mut options = File::options();
            options.read(true).write(true).create_new(true).mode(0o600);
            let mut opened = options.open(&path);
            if matches!(&opened, Err(e) if e.kind() == std::io::ErrorKind::NotFound) {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
                opened = options.open(&path);
            }
            match opened {
                Ok(file) => {
                    let file = Arc::new(file);
                    return Ok(TempFile { path, file, len: 0, keep, pool: None });
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(std::io::ErrorKind::AlreadyExists.into())
    }

    /// Takes its name away: it is there as long as it is open.
    pub fn unlink(&mut self) {
        if !self.keep && std::fs::remove_file(&self.path).is_ok() {
            self.keep = true;
        }
    }

    /// Adds bytes at its end.
    pub fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// The same by a thread of the pool, from now on that of the file; the bytes count as written when
    /// the task is done.
    pub fn append_in(
        &mut self,
        pool: &Arc<Pool>,
        bytes: Bytes,
    ) -> std::io::Result<Task<std::io::Result<()>>> {
        let (file, at) = (self.file.clone(), self.len);
        self.pool.get_or_insert_with(|| pool.clone());
        self.len += bytes.len() as u64;
        pool.run(move || file.write_all_at(&bytes, at)).map_err(std::io::Error::other)
    }
}

/// Reads the whole body into `r.body`. Errors are statuses to finish the request with.
pub async fn read(r: &mut Request, client: &mut dyn Client) -> Result<(), u16> {
    let mode = r.location().core.client_body_in_file_only;
    let told = match mode {
        BodyInFile::Off => Severity::Warn,
        // As it should be (`r->request_body_file_log_level`).
        BodyInFile::On | BodyInFile::Clean => Severity::Notice,
    };
    read_as(r, client, mode, Some(told)).await
}

/// The same as `client_body_in_file_only` with that value; a body that is announced and empty has a
/// file, too, unless it is `off`. `told` is how the log is told of a file, if it is.
pub async fn read_as(
    r: &mut Request,
    client: &mut dyn Client,
    mode: BodyInFile,
    told: Option<Severity>,
) -> Result<(), u16> {
    if !r.body.is_unread() {
        return Ok(());
    }
    let read = read_whole(r, client, mode, told).await;
    r.bytes_read += client.take_wire_bytes();
    read
}

async fn read_whole(
    r: &mut Request,
    client: &mut dyn Client,
    mode: BodyInFile,
    told: Option<Severity>,
) -> Result<(), u16> {
    let core = &r.location().core;
    let (limit, timeout_ms) = (r.body_limit(), core.client_body_timeout_ms);
    // DIFFERS(body-that-came-with-the-head): nginx has the buffer of the head for bodies as well.
    let in_memory = core.client_body_buffer_size;
    let temp_path = core.client_body_temp_path.clone();
    let mut memory = Vec::from(r.body.take_begun());
    let whole = match r.input.framing.body {
        BodyLength::Length(length) => Some(length),
        _ => None,
    };
    let mut file: Option<TempFile> = None;
    loop {
        let next = poll_fn(|cx| client.poll_body(limit, timeout_ms, cx)).await;
        let piece = next.map_err(|error| {
            client::complain(r, error);
            error.status()
        })?;
        let end = piece.is_none();
        let piece = piece.unwrap_or_default();
        let all = whole == Some(piece.len() as u64) && piece.len() <= in_memory;
        if all && mode == BodyInFile::Off && memory.is_empty() && !piece.is_empty() {
            r.body = RequestBody::Memory(piece);
            return Ok(());
        }
        let spill = memory.len() + piece.len() > in_memory || (end && mode != BodyInFile::Off);
        let empty = end && memory.is_empty() && r.input.framing.body == BodyLength::None;
        if file.is_none() && spill && !empty {
            file = Some(spill_into(r, &temp_path, mode, told).await?);
        }
        match &mut file {
            None => memory.extend_from_slice(&piece),
            Some(file) => {
                write(r, file, std::mem::take(&mut memory).into()).await?;
                write(r, file, piece).await?;
            }
        }
        if end {
            break;
        }
    }
    r.body = match file {
        Some(file) => RequestBody::File(Rc::new(file)),
        None => RequestBody::Memory(memory.into()),
    };
    Ok(())
}

async fn spill_into(
    r: &Request,
    at: &Arc<TempPath>,
    mode: BodyInFile,
    told: Option<Severity>,
) -> Result<TempFile, u16> {
    let (below, keep) = (at.clone(), mode == BodyInFile::On);
    let made = match files::write_pool(r) {
        None => TempFile::create(at, keep),
        Some(pool) => wait(pool.run(move || TempFile::create(&below, keep))).await,
    };
    let file = made.map_err(|error| write_failed(r, &at.path, &error))?;
    if let Some(severity) = told {
        r.log_error(
            severity,
            format_args!(
                "a client request body is buffered to a temporary file {}",
                Shown::path(&file.path)
            ),
        );
    }
    Ok(file)
}

/// Adds a piece to the file, in the thread pool if that is configured.
///
/// DIFFERS(aio-write-bodies): nginx writes request bodies in its event loop all the same.
async fn write(r: &Request, file: &mut TempFile, piece: Bytes) -> Result<(), u16> {
    if piece.is_empty() {
        return Ok(());
    }
    let written = match files::write_pool(r) {
        None => file.append(&piece),
        Some(pool) => match file.append_in(&pool, piece) {
            Ok(task) => done(task.await),
            Err(error) => Err(error),
        },
    };
    written.map_err(|error| write_failed(r, &file.path, &error))
}

/// What became of a task, if there was room for it.
async fn wait<T>(task: Result<Task<std::io::Result<T>>, Refused>) -> std::io::Result<T> {
    done(task.map_err(std::io::Error::other)?.await)
}

fn done<T>(result: Option<std::io::Result<T>>) -> std::io::Result<T> {
    result.unwrap_or_else(|| Err(std::io::Error::other("the writing thread panicked")))
}

fn write_failed(r: &Request, path: &Path, error: &std::io::Error) -> u16 {
    let cause = forebay_conf::error::errno_text(error);
    r.log_error(
        Severity::Crit,
        format_args!("pwrite() \"{}\" failed ({cause})", Shown::path(path)),
    );
    500
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        future::Future,
        pin::pin,
        sync::mpsc,
        task::{Context, Poll},
    };

    use forebay_rt::{task::block_on, threads};
    use forebay_testkit::tempdir::TempDir;

    use super::*;
    use crate::{client::BodyError, testing};

    /// A client that sends these pieces.
    struct Pieces(VecDeque<&'static str>);

    impl Client for Pieces {
        fn poll_body(
            &mut self,
            _limit: u64,
            _timeout_ms: u64,
            _cx: &mut Context<'_>,
        ) -> Poll<Result<Option<Bytes>, BodyError>> {
            Poll::Ready(Ok(self.0.pop_front().map(Bytes::from)))
        }
    }

    /// A request with a body of 12 bytes, of which two fit into memory.
    fn posted(dir: &TempDir, conf: &str) -> (Request, Pieces) {
        let path = dir.path().display();
        let conf = format!("client_body_buffer_size 2; client_body_temp_path {path}; {conf}");
        let mut r = testing::request(&conf, "POST / HTTP/1.1\r\nHost: h\r\n\r\n");
        r.input_mut().framing.body = BodyLength::Length(12);
        (r, Pieces(["a", "bc", "def", "ghij", "kl"].into()))
    }

    fn files(dir: &TempDir) -> Vec<String> {
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(entry.unwrap().path()).unwrap()
        };
        std::fs::read_dir(dir.path()).unwrap().map(read).collect()
    }

    #[test]
    fn what_does_not_fit_goes_to_a_file_whoever_writes_it() {
        for conf in ["", "aio threads; aio_write on;", "aio_write on;"] {
            let dir = TempDir::new().unwrap();
            let (mut r, mut client) = posted(&dir, conf);
            block_on(read(&mut r, &mut client)).unwrap();
            assert_eq!(files(&dir), ["abcdefghijkl"], "{conf}");
            drop(r);
            // A thread of the pool may still be about to remove it.
            while !files(&dir).is_empty() {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_disk_that_stands_still_does_not_hold_up_the_event_loop() {
        threads::configure("stuck_disk", 1, 100);
        let (release, released) = mpsc::channel::<()>();
        let stuck = threads::pool("stuck_disk").run(move || released.recv()).expect("room");
        let dir = TempDir::new().unwrap();
        let (mut r, mut client) = posted(&dir, "aio threads=stuck_disk; aio_write on;");
        block_on(async {
            let mut reading = pin!(read(&mut r, &mut client));
            let polled = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await;
            assert!(polled.is_pending() && files(&dir).is_empty());
            release.send(()).expect("the thread waits");
            assert_eq!(reading.await, Ok(()));
        });
        assert!(block_on(stuck).is_some());
        assert_eq!(files(&dir), ["abcdefghijkl"]);
    }

    #[test]
    fn without_room_in_the_pool_the_request_ends_with_500() {
        threads::configure("no_room_to_write", 1, 0);
        let dir = TempDir::new().unwrap();
        let (mut r, mut client) = posted(&dir, "aio threads=no_room_to_write; aio_write on;");
        assert_eq!(block_on(read(&mut r, &mut client)), Err(500));
    }
}
