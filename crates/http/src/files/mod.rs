//! Files as they are served: found, opened, described, cached, read.
//!
//! Answers nginx's `ngx_open_file_cache.c`, `ngx_http_map_uri_to_path` and `ngx_http_set_disable_symlinks`.
//!
//! Invariant: what a missing or forbidden file means for a request is its module's to say.

mod cache;
mod encoded;
mod lru;
mod open;
mod path;
mod read;
mod ready;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    future::Future,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use forebay_rt::threads::Pool;
use forebay_session::log::{Severity, Shown};
use rustix::fs::OFlags;

use self::{
    cache::{Known, Rules},
    encoded::Encoded,
    open::{How, Links, Opened, Stat},
    ready::Ready,
};
use crate::{
    body::FileSlice,
    coding::Form,
    core::{Aio, Symlinks},
    handler::Flow,
    request::Request,
};

pub use cache::FileCaches;
pub(crate) use lru::Lru;
pub use open::{Call, Failed, Kind};
pub use path::{
    Outside, check_written, document_root, is_alias_lost, map_name, map_path, realpath_root,
    request_filename, shown_path, tell_alias_is_lost,
};
pub use read::Reader;

/// An open file. What is not a regular file is open too, and nothing to be served.
#[derive(Clone)]
pub struct OpenFile {
    /// `None` where the contents are all that is needed.
    fd: Option<Arc<OwnedFd>>,
    /// Which file it is.
    stat: Stat,
    /// Whether it is read around the page cache.
    directio: bool,
    /// `directio_alignment`, bytes.
    alignment: u64,
    /// Who reads it, where that is not the event loop (`aio threads`).
    pool: Option<Arc<Pool>>,
    /// Its size when it was opened, in bytes.
    pub size: u64,
    /// Its modification time, seconds since 1970.
    pub modified: i64,
    /// The validator that stands for its time and size, quotes included (`ngx_http_set_etag`).
    pub etag: Bytes,
    /// All of it, where it is small and kept in memory.
    pub contents: Option<Bytes>,
    /// The contents once more, as a file in memory: to be sent by the kernel where no descriptor of
    /// the file itself is kept.
    mirror: Option<Arc<OwnedFd>>,
    /// The contents behind the head that they go out with.
    ready: Ready,
    /// The contents, compressed.
    encoded: Encoded,
    /// The descriptor once more, of files that have no name: with the last of them their blocks go.
    _last: Option<Arc<ClosedBy>>,
}

/// A descriptor that is closed by another thread: the kernel may wait for the disk meanwhile.
struct ClosedBy(Arc<Pool>, Option<Arc<OwnedFd>>);

impl Drop for ClosedBy {
    fn drop(&mut self) {
        let last = self.1.take();
        drop(self.0.run_or_here(move || drop(last)));
    }
}

/// From that size on the kernel sends a file that is in memory with less effort than it copies it:
/// the pages that it has are what leaves.
const KERNEL_BYTES: u64 = 4096;

impl OpenFile {
    fn new(opened: Opened, r: &Request) -> OpenFile {
        let Opened { stat, fd, contents, directio } = opened;
        let (size, modified) = (stat.size, stat.modified());
        let etag = Bytes::from(format!("\"{modified:x}-{size:x}\""));
        let alignment = r.location().core.directio_alignment;
        let pool = pool(r);
        OpenFile {
            fd,
            stat,
            directio,
            alignment,
            pool,
            size,
            modified,
            etag,
            contents,
            mirror: None,
            ready: Ready::default(),
            encoded: Encoded::default(),
            _last: None,
        }
    }

    /// One that is in memory, whatever it is called and wherever it comes from.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn of_contents(contents: Bytes) -> OpenFile {
        OpenFile {
            fd: None,
            stat: Stat {
                kind: open::Kind::File,
                executable: false,
                dev: 0,
                ino: 0,
                size: contents.len() as u64,
                modified_ns: 0,
                changed_ns: 0,
            },
            directio: false,
            alignment: 512,
            pool: None,
            size: contents.len() as u64,
            modified: 0,
            etag: Bytes::new(),
            contents: Some(contents),
            mirror: None,
            ready: Ready::default(),
            encoded: Encoded::default(),
            _last: None,
        }
    }

    /// One that is in memory, and for the kernel so, too.
    #[cfg(test)]
    pub fn of_contents_and_mirror(contents: Bytes, mirror: &[u8]) -> OpenFile {
        let mirror = open::in_memory(&[mirror]).map(Arc::new);
        OpenFile { mirror, ..OpenFile::of_contents(contents) }
    }

    /// A temporary file without a name, which grows while it is sent. `closer`: who closes it.
    pub(crate) fn temporary(
        fd: OwnedFd,
        pool: Option<Arc<Pool>>,
        closer: Option<Arc<Pool>>,
    ) -> OpenFile {
        let fd = Arc::new(fd);
        OpenFile {
            _last: closer.map(|closer| Arc::new(ClosedBy(closer, Some(fd.clone())))),
            fd: Some(fd),
            stat: Stat::UNKNOWN,
            directio: false,
            alignment: 512,
            pool,
            size: 0,
            modified: 0,
            etag: Bytes::new(),
            contents: None,
            mirror: None,
            ready: Ready::default(),
            encoded: Encoded::default(),
        }
    }

    /// The descriptor, where the kernel may send the file; `None`: it is in memory, or is to be read.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        if self.directio { None } else { self.fd.as_ref().map(|fd| fd.as_fd()) }
    }
}

impl FileSlice {
    /// What the kernel can send it from without waiting for a disk, where that is worth it.
    pub fn in_kernel(&self) -> Option<BorrowedFd<'_>> {
        let OpenFile { contents, mirror, pool, .. } = &*self.file;
        if contents.is_none() || self.len() <= KERNEL_BYTES {
            return None;
        }
        match (mirror, pool) {
            (Some(mirror), _) => Some(mirror.as_fd()),
            (None, None) => self.file.fd(),
            // Whether the page cache has it still, only a read would tell.
            (None, Some(_)) => None,
        }
    }

    /// What is sent in one piece with that head, if it is all of a file that goes out often with it.
    pub fn behind(&self, head: &[u8]) -> Option<Rc<dyn AsFd>> {
        let OpenFile { contents, size, ready, .. } = &*self.file;
        let contents = contents.as_ref().filter(|_| self.start == 0 && self.end == *size)?;
        Some(ready.of(head, contents)?)
    }

    /// What the file is in that form, if this is all of it and it is kept in memory. `make` compresses it.
    pub fn encoded(&self, form: Form, make: impl FnOnce(&[u8]) -> Option<Bytes>) -> Option<Bytes> {
        let OpenFile { contents, size, encoded, .. } = &*self.file;
        let contents = contents.as_ref().filter(|_| self.start == 0 && self.end == *size)?;
        encoded.of(form, || make(contents))
    }

    /// The bytes, where the file is in memory.
    pub fn in_memory(&self) -> Option<Bytes> {
        let contents = self.file.contents.as_ref()?;
        Some(contents.slice(self.start as usize..self.end as usize))
    }
}

/// What stands at a path.
#[derive(Clone)]
pub enum Found {
    /// A file, open.
    File(Rc<OpenFile>),
    /// A directory.
    Dir,
}

/// Opens the file at a path, or remembers that it is open, as the location's settings say.
pub async fn open(r: &Request, path: &[u8]) -> Result<Found, Failed> {
    let (how, rules) = (how(r, path), rules(r, path));
    let Some((number, conf)) = cache_of(r) else { return open_each_time(r, path, how).await };
    let caches = &r.connection.worker.files;
    let known = match caches.with(number, conf, |cache| cache.find(path, &rules)) {
        Known::Valid(result) => return result,
        Known::Nothing => None,
        Known::Stale(opened) => Some(opened),
    };
    let result = bring(r, path, how, known).await;
    caches.with(number, conf, |cache| cache.store(path, &rules, &result));
    result
}

/// Looks what stands at a path, without a need to have it open.
pub async fn test(r: &Request, path: &[u8]) -> Result<Kind, Failed> {
    if cache_of(r).is_some() {
        return match open(r, path).await? {
            Found::Dir => Ok(Kind::Dir),
            Found::File(file) => Ok(file.stat.kind),
        };
    }
    let links = how(r, path).links;
    let stat = if waits(r) {
        let path = path.to_vec();
        inline_or_pool(r, move || open::look(&path, links)).await?
    } else {
        open::look(path, links)
    };
    stat.map(|stat| stat.kind)
}

/// Looks at once what stands at a path, and whether its owner may execute it, as `if` does
/// (`ngx_http_script_file_code`).
pub fn look(r: &Request, path: &[u8]) -> Result<(Kind, bool), Failed> {
    let (how, rules) = (how(r, path), rules(r, path));
    let uncached = || open::look(path, how.links).map(|stat| (stat.kind, stat.executable));
    let Some((number, conf)) = cache_of(r) else { return uncached() };
    let caches = &r.connection.worker.files;
    let opened = match caches.with(number, conf, |cache| cache.find(path, &rules)) {
        Known::Valid(result) => Ok(result),
        Known::Nothing => Err(open::open(path, how)),
        Known::Stale(known) => Err(open::reopen(path, how, &known)),
    };
    let result = opened.unwrap_or_else(|opened| {
        let result = opened.map(|opened| found(opened, r));
        caches.with(number, conf, |cache| cache.store(path, &rules, &result));
        result
    });
    match result? {
        Found::File(file) => Ok((file.stat.kind, file.stat.executable)),
        // All that is remembered of one is that it is one.
        Found::Dir => uncached(),
    }
}

/// Opens a log whose name holds variables, to append to it.
pub fn open_log(r: &Request, path: &[u8]) -> Result<File, Failed> {
    // DIFFERS(log-pipe): without a reader, nginx waits for one (NGX_FILE_APPEND).
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK;
    open::open_checked(path, links(r, path), flags).map(File::from)
}

/// Whether the root of the location is a directory, which it must be before a log whose name holds
/// variables is made in it or elsewhere; else why it is not.
pub fn test_root(r: &Request, root: &[u8]) -> Result<(), Failed> {
    let stat = open::look(root, how(r, root).links)?;
    match stat.kind {
        Kind::Dir => Ok(()),
        _ => Err(Failed { call: Call::Stat, code: rustix::io::Errno::NOTDIR }),
    }
}

/// Opens a file, with the help of what is known of it.
async fn bring(r: &Request, path: &[u8], how: How, known: Option<Opened>) -> Result<Found, Failed> {
    let call = move |path: &[u8]| match &known {
        None => open::open(path, how),
        Some(known) => open::reopen(path, how, known),
    };
    let opened = if waits(r) {
        let path = path.to_vec();
        inline_or_pool(r, move || call(&path)).await??
    } else {
        call(path)?
    };
    Ok(found(opened, r))
}

fn found(opened: Opened, r: &Request) -> Found {
    match opened.stat.kind {
        Kind::Dir => Found::Dir,
        _ => Found::File(Rc::new(OpenFile::new(opened, r))),
    }
}

async fn open_each_time(r: &Request, path: &[u8], how: How) -> Result<Found, Failed> {
    let in_memory = how.contents && how.links == Links::Follow;
    let caches = &r.connection.worker.files;
    // Where the disk is not to be waited for, only what the kernel remembers is looked at.
    let look = if waits(r) { open::look_if_cached } else { open::look_again };
    if in_memory && let Some(file) = caches.contents().find(path, look) {
        return Ok(Found::File(file));
    }
    let found = bring(r, path, How { contents: in_memory, ..how }, None).await?;
    if let (true, Found::File(file)) = (in_memory, &found) {
        caches.contents().store(path, file, r.location().core.sendfile);
    }
    Ok(found)
}

fn cache_of(r: &Request) -> Option<(usize, crate::core::FileCacheConf)> {
    let number = r.location().core.open_file_cache?;
    Some((number, *r.plan.file_caches.get(number)?))
}

fn how(r: &Request, path: &[u8]) -> How {
    let core = &r.location().core;
    How {
        links: links(r, path),
        read_ahead: core.read_ahead > 0,
        directio: core.directio,
        contents: core.directio.is_none_or(|from| from > open::SMALL_BYTES),
    }
}

fn rules(r: &Request, path: &[u8]) -> Rules {
    let core = &r.location().core;
    Rules {
        valid_ms: core.open_file_cache_valid_ms,
        min_uses: core.open_file_cache_min_uses,
        errors: core.open_file_cache_errors,
        links: links(r, path),
    }
}

/// `disable_symlinks` for that path (`ngx_http_set_disable_symlinks`).
fn links(r: &Request, path: &[u8]) -> Links {
    let (from, same_owner) = match &*r.location().core.disable_symlinks {
        Symlinks::Off => return Links::Follow,
        Symlinks::Refuse { from } => (from, false),
        Symlinks::IfNotOwner { from } => (from, true),
    };
    let with = |from| if same_owner { Links::SameOwner { from } } else { Links::Refuse { from } };
    let Some(from) = from else { return with(0) };
    let from = from.value(r);
    if from.is_empty() || !path.starts_with(&from) {
        return with(0);
    }
    match path.get(from.len()) {
        None => Links::Follow,
        Some(b'/') => with(from.len()),
        Some(_) if from.ends_with(b"/") => with(from.len() - 1),
        Some(_) => with(0),
    }
}

/// Runs a handler that waits for nothing but files: at once, unless other threads open them
/// (`waits`, from [`waits`]). It is made where it stays: a move would cost more than the rest.
pub fn run<'a, F: Future<Output = Flow<'a>> + 'a>(
    waits: bool,
    begin: impl FnOnce() -> F,
) -> Flow<'a> {
    if waits {
        return Flow::later(begin);
    }
    match pin!(begin()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(flow) => flow,
        Poll::Pending => unreachable!("files that are opened inline are not waited for"),
    }
}

/// Runs something that waits for a disk: here, or in the thread pool of the location.
pub async fn inline_or_pool<T: Send + 'static>(
    r: &Request,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failed> {
    let Some(pool) = pool(r) else { return Ok(work()) };
    match pool.run(work) {
        Ok(task) => task.await.ok_or(Failed::POOL),
        Err(refused) => {
            r.log_error(Severity::Error, format_args!("{refused}"));
            Err(Failed::POOL)
        }
    }
}

fn pool(r: &Request) -> Option<Arc<Pool>> {
    r.location().core.read_pool()
}

/// Who writes request bodies to files, where that is not the event loop: `aio_write` with `aio threads`.
pub fn write_pool(r: &Request) -> Option<Arc<Pool>> {
    if r.location().core.aio_write { pool(r) } else { None }
}

/// Whether files are opened by other threads (`aio threads`).
pub fn waits(r: &Request) -> bool {
    r.location().core.aio != Aio::Off
}

/// Writes `CALL "PATH" failed (ERROR)` to the error log, as nginx does.
pub fn log_failed(r: &Request, severity: Severity, failed: Failed, path: &[u8]) {
    if failed == Failed::POOL {
        // Logged where it happened.
        return;
    }
    let (path, doing) = (Shown(path), r.main.doing.get());
    r.log_error(severity, format_args!("{} \"{path}\" failed ({failed}){doing}", failed.call));
}

/// The MIME type for the extension of the URI, unless the upstream that sent us here by
/// `X-Accel-Redirect` has named one (`ngx_http_set_content_type`).
pub fn content_type(r: &Request) -> Bytes {
    if let Some(known) = &r.response.content_type {
        return known.clone();
    }
    let core = &r.location().core;
    let extension = if r.is_as_sent { extension_as_sent(&r.uri) } else { extension(&r.uri) };
    let known = extension.and_then(|extension| core.types.find(extension));
    known.unwrap_or(&core.default_type).clone()
}

/// What follows the last slash: names are short, and a search costs more to begin than to look.
fn last_name(uri: &[u8]) -> &[u8] {
    &uri[uri.iter().rposition(|ch| *ch == b'/').map_or(0, |slash| slash + 1)..]
}

/// The extension in a path as a client sent it: of dots that a name begins with, the first two and what
/// follows them begin none (the states of `ngx_http_parse_complex_uri`).
fn extension_as_sent(uri: &[u8]) -> Option<&[u8]> {
    let last = uri.iter().rposition(|ch| matches!(ch, b'.' | b'/'))?;
    // The dot of nearly every name.
    if uri[last] == b'.' && last > 0 && !matches!(uri[last - 1], b'.' | b'/') {
        return Some(&uri[last + 1..]).filter(|extension| !extension.is_empty());
    }
    let name = last_name(uri);
    let passed_over = name.iter().take(2).take_while(|ch| **ch == b'.').count() + 1;
    let rest = name.get(passed_over..)?;
    let dot = rest.iter().rposition(|ch| *ch == b'.')?;
    Some(&rest[dot + 1..]).filter(|extension| !extension.is_empty())
}

/// What follows the last dot of the last name, unless the name begins with it
/// (`ngx_http_set_exten`).
pub fn extension(uri: &[u8]) -> Option<&[u8]> {
    let name = last_name(uri);
    match name.iter().rposition(|ch| *ch == b'.') {
        None | Some(0) => None,
        Some(dot) => Some(&name[dot + 1..]).filter(|extension| !extension.is_empty()),
    }
}
