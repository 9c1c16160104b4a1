//! The files that a thread keeps: `open_file_cache`, and the contents of small files without it.
//!
//! Answers nginx's `ngx_open_file_cache.c`, whose rules decide when a file is looked at again; what is
//! in memory obeys the same rules. Without `open_file_cache` a file is looked at in every request, and
//! its contents are used again only when it is the same file, unchanged to the nanosecond.
//!
//! Invariant: no system call here but the looking, and the making of a mirror.

use std::{
    cell::RefCell,
    rc::{Rc, Weak},
    sync::Arc,
};

use forebay_rt::clock;

use super::{
    Found, KERNEL_BYTES, OpenFile,
    lru::Lru,
    open::{self, Call, Failed, Kind, Links, Opened, SMALL_BYTES, Stat},
};
use crate::core::FileCacheConf;

/// How many bytes of contents a thread keeps, for each `open_file_cache` and without one.
const CONTENT_BYTES: usize = 32 << 20;
/// What an entry weighs beside its contents.
const ENTRY_BYTES: usize = 256;
/// How many contents a thread keeps as files in memory: each is a descriptor.
const MAX_MIRRORS: usize = 128;

/// What a location wants of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// `open_file_cache_valid`, milliseconds.
    pub valid_ms: u64,
    /// `open_file_cache_min_uses`.
    pub min_uses: u32,
    /// `open_file_cache_errors`.
    pub errors: bool,
    /// `disable_symlinks`.
    pub links: Links,
}

/// What a cache knows of a path.
pub enum Known {
    /// This, for sure.
    Valid(Result<Found, Failed>),
    /// This, some time ago.
    Stale(Opened),
    /// Nothing that helps.
    Nothing,
}

enum State {
    Dir,
    /// Used often enough to stay open.
    Kept(Rc<OpenFile>),
    /// Open as long as somebody uses it.
    InUse(Weak<OpenFile>),
    Failed(Failed),
}

struct Entry {
    state: State,
    uses: u32,
    created_ms: u64,
    accessed_ms: u64,
    links: Links,
    /// It is small, and its contents are to be read when it is old enough for that.
    unread: bool,
}

/// One `open_file_cache` of a thread.
pub struct FileCache {
    conf: FileCacheConf,
    entries: Lru<Entry>,
    /// The entries that hold contents, and how many bytes.
    loaded: Lru<usize>,
    loaded_bytes: usize,
}

impl FileCache {
    /// An empty one.
    pub fn new(conf: FileCacheConf) -> FileCache {
        FileCache { conf, entries: Lru::default(), loaded: Lru::default(), loaded_bytes: 0 }
    }

    /// Looks a path up, and counts the use.
    pub fn find(&mut self, path: &[u8], rules: &Rules) -> Known {
        let now_ms = clock::now_ms();
        self.expire(now_ms, 2);
        let Some(entry) = self.entries.touch(path) else { return Known::Nothing };
        entry.uses = entry.uses.saturating_add(1);
        entry.accessed_ms = now_ms;
        let valid = now_ms - entry.created_ms < rules.valid_ms && entry.links == rules.links;
        let file = match &entry.state {
            State::Kept(file) => file.clone(),
            State::InUse(file) => match file.upgrade() {
                Some(file) => file,
                // Not used often enough to stay open.
                None => return Known::Nothing,
            },
            State::Dir if valid => return Known::Valid(Ok(Found::Dir)),
            State::Dir => return Known::Stale(Opened::DIR),
            State::Failed(failed) if valid => {
                let call = if rules.links == Links::Follow { Call::Open } else { Call::OpenAt };
                return Known::Valid(Err(Failed { call, ..*failed }));
            }
            State::Failed(_) => return Known::Nothing,
        };
        let can_be_read = entry.unread && file.stat.is_settled();
        if !valid || can_be_read {
            return Known::Stale(file.opened());
        }
        if matches!(entry.state, State::InUse(_)) && entry.uses >= rules.min_uses {
            entry.state = State::Kept(file.clone());
            self.count(path, &file);
        }
        Known::Valid(Ok(Found::File(file)))
    }

    /// Takes in what looking at the file brought.
    pub fn store(&mut self, path: &[u8], rules: &Rules, result: &Result<Found, Failed>) {
        self.uncount(path);
        if result.is_err() && !rules.errors {
            self.entries.remove(path);
            return;
        }
        let now_ms = clock::now_ms();
        if self.entries.peek(path).is_none() && self.entries.len() >= self.conf.max {
            self.drop_oldest();
            self.expire(now_ms, 2);
        }
        let uses = self.entries.peek(path).map_or(1, |entry| entry.uses);
        let state = match result {
            Ok(Found::Dir) => State::Dir,
            Ok(Found::File(file)) if uses >= rules.min_uses => {
                self.count(path, file);
                State::Kept(file.clone())
            }
            Ok(Found::File(file)) => State::InUse(Rc::downgrade(file)),
            Err(failed) => State::Failed(*failed),
        };
        let unread = matches!(result, Ok(Found::File(file)) if file.is_too_young());
        let links = rules.links;
        let entry = Entry { state, uses, created_ms: now_ms, accessed_ms: now_ms, links, unread };
        self.entries.insert(path, entry);
    }

    fn drop_oldest(&mut self) {
        if let Some((path, _)) = self.entries.pop_oldest() {
            self.uncount(&path);
        }
    }

    /// Drops up to `most` entries that nobody asked for in `inactive`.
    fn expire(&mut self, now_ms: u64, most: usize) {
        for _ in 0..most {
            match self.entries.oldest() {
                Some(entry) if now_ms - entry.accessed_ms > self.conf.inactive_ms => {
                    self.drop_oldest();
                }
                _ => return,
            }
        }
    }

    /// Counts the contents of an entry; others lose theirs where it becomes too much.
    fn count(&mut self, path: &[u8], file: &Rc<OpenFile>) {
        let Some(contents) = &file.contents else { return };
        self.loaded_bytes += contents.len();
        if let Some(before) = self.loaded.insert(path, contents.len()) {
            self.loaded_bytes -= before;
        }
        while self.loaded_bytes > CONTENT_BYTES {
            let Some((other, bytes)) = self.loaded.pop_oldest() else { return };
            self.loaded_bytes -= bytes;
            if let Some(Entry { state: State::Kept(file), .. }) = self.entries.peek(&other) {
                *file = Rc::new(file.without_contents());
            }
        }
    }

    fn uncount(&mut self, path: &[u8]) {
        if let Some(bytes) = self.loaded.remove(path) {
            self.loaded_bytes -= bytes;
        }
    }
}

/// The contents of small files, for where there is no `open_file_cache`.
#[derive(Default)]
pub struct Contents {
    files: Lru<Rc<OpenFile>>,
    bytes: usize,
    mirrors: usize,
}

impl Contents {
    /// The file at that path, if it is one that is kept and did not change.
    /// `look` tells what is there now.
    pub fn find(
        &mut self,
        path: &[u8],
        look: impl FnOnce(&[u8]) -> Option<Stat>,
    ) -> Option<Rc<OpenFile>> {
        let file = self.files.touch(path)?;
        if look(path) == Some(file.stat) {
            return Some(file.clone());
        }
        self.remove(path);
        None
    }

    /// Keeps a file whose contents were read, for as long as there is room; `mirrored`: for the
    /// kernel, too.
    pub fn store(&mut self, path: &[u8], file: &Rc<OpenFile>, mirrored: bool) {
        let Some(contents) = &file.contents else { return };
        let large = contents.len() as u64 > KERNEL_BYTES && self.mirrors < MAX_MIRRORS;
        let mirror = if mirrored && large { open::in_memory(&[contents]) } else { None };
        let mirror = mirror.map(Arc::new);
        let kept = Rc::new(OpenFile { fd: None, mirror, ..(**file).clone() });
        self.bytes += weight(path, &kept);
        self.mirrors += usize::from(kept.mirror.is_some());
        if let Some(before) = self.files.insert(path, kept) {
            self.uncount(path, &before);
        }
        while self.bytes > CONTENT_BYTES {
            let Some((path, file)) = self.files.pop_oldest() else { return };
            self.uncount(&path, &file);
        }
    }

    fn remove(&mut self, path: &[u8]) {
        if let Some(file) = self.files.remove(path) {
            self.uncount(path, &file);
        }
    }

    fn uncount(&mut self, path: &[u8], file: &OpenFile) {
        self.bytes -= weight(path, file);
        self.mirrors -= usize::from(file.mirror.is_some());
    }
}

fn weight(path: &[u8], file: &OpenFile) -> usize {
    let copies = 1 + usize::from(file.mirror.is_some());
    ENTRY_BYTES + 2 * path.len() + copies * file.size as usize
}

/// The file caches of a thread.
#[derive(Default)]
pub struct FileCaches {
    named: RefCell<Vec<(usize, FileCache)>>,
    contents: RefCell<Contents>,
}

impl FileCaches {
    /// Does something with the cache of that number, which is made on its first use.
    pub fn with<R>(
        &self,
        number: usize,
        conf: FileCacheConf,
        f: impl FnOnce(&mut FileCache) -> R,
    ) -> R {
        let mut named = self.named.borrow_mut();
        let is_it = |(n, cache): &(usize, FileCache)| *n == number && cache.conf == conf;
        let index = named.iter().position(is_it).unwrap_or_else(|| {
            named.push((number, FileCache::new(conf)));
            named.len() - 1
        });
        f(&mut named[index].1)
    }

    /// The contents kept without `open_file_cache`.
    pub fn contents(&self) -> std::cell::RefMut<'_, Contents> {
        self.contents.borrow_mut()
    }

    /// A new configuration holds: caches that it does not have are closed.
    pub fn retain(&self, confs: &[FileCacheConf]) {
        self.named.borrow_mut().retain(|(number, cache)| confs.get(*number) == Some(&cache.conf));
    }
}

impl OpenFile {
    fn without_contents(&self) -> OpenFile {
        OpenFile { contents: None, ..self.clone() }
    }

    /// Whether only that it has just changed keeps its contents out of memory.
    fn is_too_young(&self) -> bool {
        self.contents.is_none()
            && !self.directio
            && self.is_regular()
            && self.size <= SMALL_BYTES
            && !self.stat.is_settled()
    }

    /// What [`super::open::reopen`] needs to know of it.
    fn opened(&self) -> Opened {
        Opened {
            stat: self.stat,
            fd: self.fd.clone(),
            contents: self.contents.clone(),
            directio: self.directio,
        }
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.stat.kind == Kind::File
    }
}
