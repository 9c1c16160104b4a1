//! The temporary file of a response that its client takes slower than it comes
//! (`ngx_event_pipe_write_chain_to_temp_file`).
//!
//! DIFFERS(temp-file-threads): nginx writes in the event loop unless `aio threads` and `aio_write on`
//! are set; here the thread pool writes unless `aio_write off` is.
//!
//! Invariant: one write at a time, and what follows it waits until it is done, so that pieces stay in
//! order and a disk that stands still holds one piece of a response in memory, and no event loop.

use std::{
    future::Future,
    io,
    path::Path,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

use forebay_rt::{
    errno::Errno,
    threads::{Pool, Task},
};
use forebay_session::log::{Severity, Shown};

use super::{Settings, State};
use crate::{body::FileSlice, body_in::TempFile, core::TempPath, files::OpenFile};

/// The file, and what is being written to it.
pub(super) struct Spill {
    path: Arc<TempPath>,
    max_bytes: u64,
    pool: Option<Arc<Pool>>,
    /// Who reads it, unless the event loop does.
    read_pool: Option<Arc<Pool>>,
    file: Option<(TempFile, Rc<OpenFile>)>,
    /// What is being written, and the file's other descriptor.
    writing: Option<(Task<Written>, Option<Rc<OpenFile>>)>,
    failed: bool,
}

/// What came of a write.
pub(super) enum Landed {
    /// It is in the file, and the buffer is free.
    File(FileSlice, Vec<u8>),
    /// There is no file for it: it stays in memory.
    Memory(Vec<u8>),
    /// Nobody knows.
    Lost,
}

/// What a write brings back from where it ran.
struct Written {
    result: Result<TempFile, Failed>,
    buf: Vec<u8>,
}

struct Failed {
    call: &'static str,
    path: std::path::PathBuf,
    error: io::Error,
}

impl Failed {
    fn new(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failed {
        move |error| Failed { call, path: path.to_owned(), error }
    }

    fn tell(self, state: &State) {
        let Failed { call, path, error } = self;
        let (path, cause) = (Shown::path(&path), Errno(&error));
        let text = format!("{call} \"{path}\" failed ({cause}) while reading upstream");
        state.complain(Severity::Crit, text);
    }
}

/// Adds to the file, which is made if there is none.
fn write(file: Option<TempFile>, path: &TempPath, buf: Vec<u8>) -> Written {
    let add = || {
        let mut file = match file {
            Some(file) => file,
            None => {
                let mut file =
                    TempFile::create(path, false).map_err(Failed::new("open()", &path.path))?;
                file.unlink();
                file
            }
        };
        file.append(&buf).map_err(Failed::new("pwrite()", &file.path))?;
        Ok(file)
    };
    Written { result: add(), buf }
}

impl Spill {
    /// No file yet.
    pub(super) fn new(settings: &Settings) -> Spill {
        Spill {
            path: settings.temp_path.clone(),
            max_bytes: settings.max_temp_file_size,
            pool: settings.write_pool.clone(),
            read_pool: settings.read_pool.clone(),
            file: None,
            writing: None,
            failed: false,
        }
    }

    /// Whether there is room in it; `waiting`: whether the client has not taken all that is in it.
    pub(super) fn has_room(&mut self, waiting: bool) -> bool {
        match &self.file {
            _ if self.failed || self.writing.is_some() => false,
            None => true,
            Some((file, _)) if file.len < self.max_bytes => true,
            // The file is full: when the client has taken all of it, another begins.
            Some(_) if waiting => false,
            Some(_) => {
                self.file = None;
                true
            }
        }
    }

    /// Writes a piece; [`Spill::poll_landed`] says what came of it.
    pub(super) fn write(&mut self, buf: Vec<u8>) {
        let (file, open) = self.file.take().unzip();
        let path = self.path.clone();
        let work = move || write(file, &path, buf);
        let task = match &self.pool {
            Some(pool) => pool.run_or_here(work),
            None => Task::done(work()),
        };
        self.writing = Some((task, open));
    }

    /// Waits for what is being written; `None`: there is nothing.
    pub(super) fn poll_landed(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Landed>> {
        let Some((task, _)) = &mut self.writing else { return Poll::Ready(None) };
        let written = ready!(Pin::new(task).poll(cx));
        let open = self.writing.take().and_then(|(_, open)| open);
        Poll::Ready(Some(match written {
            Some(written) => self.land(written, open, state),
            None => {
                state.complain(Severity::Alert, "the writing thread panicked".to_owned());
                Landed::Lost
            }
        }))
    }

    fn land(&mut self, written: Written, open: Option<Rc<OpenFile>>, state: &State) -> Landed {
        let Written { result, buf } = written;
        let landed = result.and_then(|file| {
            let open = match open {
                Some(open) => open,
                None => self.begin(&file, state)?,
            };
            Ok((file, open))
        });
        match landed {
            Ok((file, open)) => {
                let start = file.len - buf.len() as u64;
                let slice = FileSlice { file: open.clone(), start, end: file.len };
                self.file = Some((file, open));
                Landed::File(slice, buf)
            }
            Err(failed) => {
                failed.tell(state);
                self.failed = true;
                Landed::Memory(buf)
            }
        }
    }

    /// The file is new.
    fn begin(&self, file: &TempFile, state: &State) -> Result<Rc<OpenFile>, Failed> {
        let copy = file.file.try_clone().map_err(Failed::new("dup()", &file.path))?;
        let path = Shown::path(&file.path);
        let text = format!(
            "an upstream response is buffered to a temporary file {path} while reading upstream"
        );
        state.complain(Severity::Warn, text);
        let open = OpenFile::temporary(copy.into(), self.read_pool.clone(), self.pool.clone());
        Ok(Rc::new(open))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, task::Waker};

    use forebay_rt::{task::block_on, threads};

    use super::*;
    use std::future::poll_fn;

    fn spill(path: &Path, pool: Option<Arc<Pool>>, max_bytes: u64) -> Spill {
        let path = Arc::new(TempPath { path: path.to_owned(), levels: [1, 0, 0] });
        Spill { path, max_bytes, pool, read_pool: None, file: None, writing: None, failed: false }
    }

    fn land(spill: &mut Spill) -> Landed {
        let state = State::default();
        block_on(poll_fn(|cx| spill.poll_landed(&state, cx))).expect("something is written")
    }

    #[test]
    fn a_disk_that_stands_still_holds_up_nobody_and_nothing_is_lost() {
        threads::configure("still", 1, 1);
        let pool = threads::pool("still");
        let (release, released) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel();
        let busy = pool.run(move || started.send(()).is_ok() && released.recv().is_ok()).unwrap();
        running.recv().unwrap();
        let dir = forebay_testkit::tempdir::TempDir::new().unwrap();
        let mut spill = spill(dir.path(), Some(pool.clone()), 10);
        spill.write(b"hello ".to_vec());
        let (state, mut cx) = (State::default(), Context::from_waker(Waker::noop()));
        assert!(spill.poll_landed(&state, &mut cx).is_pending());
        assert!(!spill.has_room(true));
        release.send(()).unwrap();
        assert_eq!(block_on(busy), Some(true));
        let Landed::File(first, _) = land(&mut spill) else { panic!("it fits") };
        assert_eq!((first.start, first.end, spill.has_room(true)), (0, 6, true));
        spill.write(b"world".to_vec());
        let Landed::File(second, _) = land(&mut spill) else { panic!("it fits") };
        assert_eq!((second.start, second.end), (6, 11));
        assert!(Rc::ptr_eq(&first.file, &second.file));
        // Full: until the client has all of it, and another begins.
        assert!(!spill.has_room(true) && spill.has_room(false));
        spill.write(b"!".to_vec());
        let Landed::File(third, _) = land(&mut spill) else { panic!("it fits") };
        assert!(third.start == 0 && !Rc::ptr_eq(&first.file, &third.file));
    }

    #[test]
    fn a_name_is_gone_as_soon_as_the_file_is_there() {
        let dir = forebay_testkit::tempdir::TempDir::new().unwrap();
        let mut spill = spill(dir.path(), None, 10);
        spill.write(b"x".to_vec());
        assert!(matches!(land(&mut spill), Landed::File(..)));
        let (file, _) = spill.file.as_ref().unwrap();
        assert!(!file.path.exists());
    }

    #[test]
    fn what_cannot_be_written_comes_back() {
        let mut spill = spill(Path::new("/dev/null/none"), None, 10);
        spill.write(b"x".to_vec());
        assert!(matches!(land(&mut spill), Landed::Memory(buf) if buf == b"x"));
        assert!(!spill.has_room(false));
    }
}
