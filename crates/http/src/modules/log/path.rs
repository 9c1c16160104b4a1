//! Logs whose name holds variables: opened by the worker for each line, or kept open by
//! `open_log_file_cache`.
//!
//! Answers `ngx_http_log_script_write` and what `ngx_open_file_cache.c` does for logs. Each thread has
//! its own cache, of the whole size.
//!
//! Invariant: what a path is made of is the operator's choice; what clients put in only names a file below
//! what the operator wrote.

use std::{
    cell::{Cell, RefCell},
    fs::File,
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    rc::Rc,
    sync::{Arc, Weak},
};

use forebay_conf::{Error, Node, value};
use forebay_rt::{clock, errno::Errno};
use forebay_session::{
    log::{Severity, Shown, Trouble},
    var::Template,
};

use crate::{
    files::{self, Lru},
    request::Request,
};

/// `open_log_file_cache`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConf {
    max: usize,
    inactive_ms: u64,
    min_uses: u64,
    valid_ms: u64,
}

impl CacheConf {
    /// Reads the directive; `None` is `off`.
    ///
    /// Errors: nginx's `invalid "open_log_file_cache" parameter "x"`,
    /// `"open_log_file_cache" must have "max" parameter`.
    pub fn parse(node: &Node) -> Result<Option<CacheConf>, Error> {
        let mut conf = CacheConf { max: 0, inactive_ms: 10_000, min_uses: 1, valid_ms: 60_000 };
        let mut off = false;
        for arg in &node.args {
            let number = |prefix| arg.after(prefix).and_then(value::number);
            let seconds = |prefix| arg.after(prefix).and_then(value::sec);
            if arg.is("off") {
                off = true;
            } else if let Some(max) = number("max=") {
                conf.max = usize::try_from(max).unwrap_or(usize::MAX);
            } else if let Some(inactive) = seconds("inactive=") {
                conf.inactive_ms = inactive.saturating_mul(1000);
            } else if let Some(min_uses) = number("min_uses=") {
                conf.min_uses = min_uses;
            } else if let Some(valid) = seconds("valid=") {
                conf.valid_ms = valid.saturating_mul(1000);
            } else {
                let text = arg.lossy();
                let text = format!("invalid \"open_log_file_cache\" parameter \"{text}\"");
                return Err(Error::emerg(arg.span, text));
            }
        }
        if off {
            return Ok(None);
        }
        if conf.max == 0 {
            let text = "\"open_log_file_cache\" must have \"max\" parameter".to_owned();
            return Err(Error::emerg(node.span, text));
        }
        Ok(Some(conf))
    }
}

/// A log whose name holds variables.
pub struct LogPath {
    /// The whole name, the prefix included.
    pub name: Template,
    /// Of whatever file the last line went to, as in nginx.
    pub trouble: Trouble,
}

thread_local! {
    static CACHES: RefCell<Vec<(Weak<CacheConf>, Cache)>> = const { RefCell::new(Vec::new()) };
    static PATH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl LogPath {
    /// Writes a line; what goes wrong is told in the error log of the request.
    pub fn write(&self, r: &Request, cache: Option<&Arc<CacheConf>>, line: &[u8]) {
        let mut path = PATH.take();
        path.clear();
        files::document_root(r, &mut path);
        match files::test_root(r, &path) {
            Ok(()) => {
                path.clear();
                self.name.write(r, &mut path);
                // DIFFERS(log-stays-inside): nginx appends to whatever file comes out.
                match files::check_written(&self.name, &path) {
                    Ok(()) => self.write_to(r, &path, cache, line),
                    Err(files::Outside) => {
                        let name = Shown(&path);
                        let text = "leads out of its directory while logging request";
                        r.log_error(Severity::Crit, format_args!("\"{name}\" {text}"));
                    }
                }
            }
            Err(failed) => {
                let root = Shown(&path);
                r.log_error(
                    Severity::Error,
                    format_args!(
                        "testing \"{root}\" existence failed ({failed}) while logging request"
                    ),
                );
            }
        }
        PATH.set(path);
    }

    fn write_to(&self, r: &Request, path: &[u8], cache: Option<&Arc<CacheConf>>, line: &[u8]) {
        let open = || files::open_log(r, path);
        let opened = match cache {
            Some(conf) => with_cache(conf, |cache| cache.open(path, conf, clock::now_ms(), open)),
            None => {
                CACHES.with_borrow_mut(forget);
                open().map(Rc::new)
            }
        };
        let name = Shown(path);
        let file = match opened {
            Ok(file) => file,
            Err(failed) => {
                let call = failed.call;
                let message =
                    format_args!("{call} \"{name}\" failed ({failed}) while logging request");
                return r.log_error(Severity::Crit, message);
            }
        };
        if let Err(error) = write_once(&file, line) {
            self.trouble.note(&error);
            if self.trouble.is_news() {
                r.log_error(
                    Severity::Alert,
                    format_args!(
                        "write() to \"{name}\" failed ({}) while logging request",
                        Errno(&error)
                    ),
                );
            }
        }
    }
}

fn write_once(mut file: &File, line: &[u8]) -> io::Result<()> {
    loop {
        match file.write(line) {
            Ok(count) if count == line.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::StorageFull.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Closes the files of configurations that are gone: the last request under one may end long after the
/// first under the next.
fn forget(caches: &mut Vec<(Weak<CacheConf>, Cache)>) {
    caches.retain(|(conf, _)| conf.strong_count() > 0);
}

fn with_cache<T>(conf: &Arc<CacheConf>, use_it: impl FnOnce(&mut Cache) -> T) -> T {
    CACHES.with_borrow_mut(|caches| {
        if caches.len() > 1 {
            forget(caches);
        }
        let known = caches.iter().position(|(weak, _)| Weak::as_ptr(weak) == Arc::as_ptr(conf));
        let index = known.unwrap_or_else(|| {
            forget(caches);
            caches.push((Arc::downgrade(conf), Cache::default()));
            caches.len() - 1
        });
        use_it(&mut caches[index].1)
    })
}

/// Open logs, by name.
#[derive(Default)]
struct Cache {
    files: Lru<Entry>,
}

struct Entry {
    /// Kept open once it was used `min_uses` times.
    file: Option<Rc<File>>,
    uses: u64,
    used_ms: u64,
    /// When the name was last seen to stand for the file.
    checked_ms: u64,
}

impl Cache {
    fn open<E>(
        &mut self,
        path: &[u8],
        conf: &CacheConf,
        now: u64,
        open: impl FnOnce() -> Result<File, E>,
    ) -> Result<Rc<File>, E> {
        self.expire(conf, now);
        let (known, uses) = match self.files.touch(path) {
            Some(entry) => {
                entry.uses += 1;
                entry.used_ms = now;
                if let Some(file) = &entry.file {
                    if now - entry.checked_ms <= conf.valid_ms {
                        return Ok(file.clone());
                    }
                    if is_at(file, path) {
                        entry.checked_ms = now;
                        return Ok(file.clone());
                    }
                }
                (true, entry.uses)
            }
            None => (false, 1),
        };
        let file = Rc::new(open()?);
        if !known && self.files.len() >= conf.max {
            self.files.pop_oldest();
        }
        let kept = (uses >= conf.min_uses).then(|| file.clone());
        self.files.insert(path, Entry { file: kept, uses, used_ms: now, checked_ms: now });
        Ok(file)
    }

    /// As `ngx_expire_old_cached_files`: two at a time.
    fn expire(&mut self, conf: &CacheConf, now: u64) {
        for _ in 0..2 {
            let old = |entry: &Entry| now - entry.used_ms > conf.inactive_ms;
            if !self.files.oldest().is_some_and(old) {
                return;
            }
            self.files.pop_oldest();
        }
    }
}

/// Whether the name still stands for the file.
fn is_at(file: &File, path: &[u8]) -> bool {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const CONF: CacheConf = CacheConf { max: 2, inactive_ms: 10, min_uses: 2, valid_ms: 5 };

    /// Whether it had to be opened.
    fn opens(cache: &mut Cache, path: &[u8], now: u64) -> bool {
        let mut opened = false;
        let file = cache.open(path, &CONF, now, || {
            opened = true;
            Ok::<_, Infallible>(File::open("/dev/null").unwrap())
        });
        drop(file.unwrap());
        opened
    }

    #[test]
    fn a_file_stays_open_from_its_second_use_on_while_it_is_used() {
        let mut cache = Cache::default();
        let path = b"/dev/null";
        for (now, expected) in [(0, true), (1, true), (2, false), (6, false), (7, false)] {
            assert_eq!(opens(&mut cache, path, now), expected, "at {now}");
        }
        // Not used for longer than `inactive`: forgotten, and counted anew.
        for (now, expected) in [(18, true), (19, true), (20, false)] {
            assert_eq!(opens(&mut cache, path, now), expected, "at {now}");
        }
    }

    #[test]
    fn a_name_that_stands_for_another_file_is_opened_again() {
        let mut cache = Cache::default();
        let path = b"/dev/zero";
        for (now, expected) in [(0, true), (1, true), (5, false), (7, true), (8, false)] {
            assert_eq!(opens(&mut cache, path, now), expected, "at {now}");
        }
    }

    #[test]
    fn the_longest_unused_file_makes_room() {
        let mut cache = Cache::default();
        for path in [b"a", b"b", b"a", b"b"] {
            opens(&mut cache, path, 0);
        }
        assert!(!opens(&mut cache, b"a", 0));
        opens(&mut cache, b"c", 0);
        assert!(!opens(&mut cache, b"a", 0));
        assert!(opens(&mut cache, b"b", 0));
    }

    #[test]
    fn files_of_a_configuration_close_when_its_last_request_has_ended() {
        let (old, new) = (Arc::new(CONF), Arc::new(CONF));
        let caches = || CACHES.with_borrow(Vec::len);
        with_cache(&old, |cache| opens(cache, b"/dev/null", 0));
        with_cache(&new, |cache| opens(cache, b"/dev/null", 0));
        assert_eq!(caches(), 2, "requests of both are under way");
        drop(old);
        with_cache(&new, |cache| opens(cache, b"/dev/null", 0));
        assert_eq!(caches(), 1);
        drop(new);
        // Nothing is kept open any more.
        CACHES.with_borrow_mut(forget);
        assert_eq!(caches(), 0);
    }
}
