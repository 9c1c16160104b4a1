//! Opens and describes files, by the thread that asks: the system calls of `ngx_open_and_stat_file`,
//! `ngx_open_file_wrapper` and `ngx_file_info_wrapper`.
//!
//! Invariant: no cache and no request here, so that a thread of a pool can do it as well.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use bytes::Bytes;
use forebay_rt::errno::Errno;
use rustix::{
    fs::{
        Advice, AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, ResolveFlags, StatxFlags,
        fadvise, fcntl_getfl, fcntl_setfl, fstat, memfd_create, openat, openat2, stat, statat,
        statx,
    },
    io::Errno as Code,
};

/// Files of at most that many bytes are kept in memory.
pub const SMALL_BYTES: u64 = 64 << 10;
/// Files of more than that many bytes are read ahead of (`NGX_MIN_READ_AHEAD`).
const MIN_READ_AHEAD: u64 = 128 << 10;
/// Younger files are not kept in memory: two changes within one tick of the file system's clock would
/// look like one.
const SETTLED_NS: i128 = 1_000_000_000;

/// A system call that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Call {
    Open,
    OpenAt,
    Stat,
    Fstat,
    Lstat,
    OpenDir,
    ReadDir,
    /// None: it was to be made by another thread.
    Pool,
}

/// As messages name it (`open()`).
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Call::Open => "open()",
            Call::OpenAt => "openat()",
            Call::Stat => "stat()",
            Call::Fstat => "fstat()",
            Call::Lstat => "lstat()",
            Call::OpenDir => "opendir()",
            Call::ReadDir => "readdir()",
            Call::Pool => "thread pool",
        })
    }
}

/// What went wrong: nginx's `of.failed` and `of.err`. Small, as each file that is found passes through where
/// this might be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The system call.
    pub call: Call,
    /// Why.
    pub code: Code,
}

impl Failed {
    /// The thread pool did not do it; the pool's overflow is logged on its own.
    pub const POOL: Failed = Failed { call: Call::Pool, code: Code::CANCELED };

    /// Whether there is no such file (`ENOENT`, `ENOTDIR`, `ENAMETOOLONG`).
    pub fn is_missing(&self) -> bool {
        matches!(self.code, Code::NOENT | Code::NOTDIR | Code::NAMETOOLONG)
    }

    /// Whether a symbolic link was refused.
    pub fn is_link(&self) -> bool {
        matches!(self.code, Code::MLINK | Code::LOOP)
    }

    /// Whether the file may not be looked at: no permission, or a symbolic link that is refused.
    pub fn is_forbidden(&self) -> bool {
        self.code == Code::ACCESS || self.is_link()
    }
}

/// Shows `2: No such file or directory`.
impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Errno(&io::Error::from(self.code)).fmt(f)
    }
}

/// Which symbolic links are refused on the way to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// None.
    #[default]
    Follow,
    /// All, after the first `from` bytes of the path.
    Refuse {
        /// What is not checked.
        from: usize,
    },
    /// Those whose owner is not their target's.
    SameOwner {
        /// What is not checked.
        from: usize,
    },
}

/// How to open: settings of the location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// `disable_symlinks`.
    pub links: Links,
    /// `read_ahead` is on.
    pub read_ahead: bool,
    /// `directio`: from that size on the page cache is bypassed.
    pub directio: Option<u64>,
    /// Whether the contents of a small file are wanted.
    pub contents: bool,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A FIFO, a socket, a device.
    Other,
}

/// Which file it is and when it changed last. Two equal ones stand for the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// Whether its owner may execute it.
    pub executable: bool,
    /// The file system.
    pub dev: u64,
    /// The number in it.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// When its bytes changed, nanoseconds since 1970.
    pub modified_ns: i128,
    /// When anything of it changed, nanoseconds since 1970.
    pub changed_ns: i128,
}

impl Stat {
    /// Of a file that nobody looks for.
    pub const UNKNOWN: Stat = Stat {
        kind: Kind::File,
        executable: false,
        dev: 0,
        ino: 0,
        size: 0,
        modified_ns: 0,
        changed_ns: 0,
    };

    fn of(stat: &rustix::fs::Stat) -> Stat {
        Stat {
            kind: kind(FileType::from_raw_mode(stat.st_mode)),
            executable: Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR),
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec.into()),
            changed_ns: nanoseconds(stat.st_ctime, stat.st_ctime_nsec.into()),
        }
    }

    fn of_statx(stat: &rustix::fs::Statx) -> Stat {
        let (modified, changed) = (&stat.stx_mtime, &stat.stx_ctime);
        Stat {
            kind: kind(FileType::from_raw_mode(stat.stx_mode.into())),
            executable: Mode::from_raw_mode(stat.stx_mode.into()).contains(Mode::XUSR),
            dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
            size: stat.stx_size,
            modified_ns: nanoseconds(modified.tv_sec, modified.tv_nsec.into()),
            changed_ns: nanoseconds(changed.tv_sec, changed.tv_nsec.into()),
        }
    }

    /// Seconds since 1970 of the last modification.
    pub fn modified(&self) -> i64 {
        self.modified_ns.div_euclid(1_000_000_000) as i64
    }

    /// Whether a later change is sure to show in the times.
    pub fn is_settled(&self) -> bool {
        let now_ns = i128::from(forebay_rt::clock::wall_ms()) * 1_000_000;
        now_ns - self.modified_ns.max(self.changed_ns) > SETTLED_NS
    }
}

fn nanoseconds(seconds: i64, nanoseconds: i128) -> i128 {
    i128::from(seconds) * 1_000_000_000 + nanoseconds
}

fn kind(file_type: FileType) -> Kind {
    match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        _ => Kind::Other,
    }
}

/// A file that was opened, or at least looked at.
#[derive(Clone, Debug)]
pub struct Opened {
    /// What it is.
    pub stat: Stat,
    /// Its descriptor; `None` for directories and what was only looked at.
    pub fd: Option<Arc<OwnedFd>>,
    /// All of it, where that was asked for and can be kept.
    pub contents: Option<Bytes>,
    /// Whether it is read around the page cache.
    pub directio: bool,
}

impl Opened {
    /// Some directory: all that is remembered of one.
    pub const DIR: Opened = Opened {
        stat: Stat {
            kind: Kind::Dir,
            executable: false,
            dev: 0,
            ino: 0,
            size: 0,
            modified_ns: 0,
            changed_ns: 0,
        },
        fd: None,
        contents: None,
        directio: false,
    };
}

/// Opens a file and describes it; directories are only described.
pub fn open(path: &[u8], how: How) -> Result<Opened, Failed> {
    // Non-blocking: a FIFO must not hang the thread. It means nothing for regular files.
    let fd = open_checked(path, how.links, OFlags::RDONLY | OFlags::NONBLOCK)?;
    let stat = describe(&fd)?;
    let mut opened = Opened { stat, fd: None, contents: None, directio: false };
    if stat.kind == Kind::Dir {
        return Ok(opened);
    }
    if how.read_ahead && stat.size > MIN_READ_AHEAD {
        // Advice that is not taken costs speed only.
        let _ = fadvise(&fd, 0, None, Advice::Sequential);
    }
    if stat.kind == Kind::File && how.directio.is_some_and(|from| from <= stat.size) {
        opened.directio =
            fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::DIRECT)).is_ok();
    }
    if how.contents && !opened.directio {
        opened.contents = contents(fd.as_fd(), &stat);
    }
    opened.fd = Some(Arc::new(fd));
    Ok(opened)
}

/// Opens a file of which an earlier state is known: a descriptor of the same file serves on.
pub fn reopen(path: &[u8], how: How, known: &Opened) -> Result<Opened, Failed> {
    // What was a directory most probably is one still: one system call instead of three.
    let stat = look(path, how.links)?;
    if stat.kind == Kind::Dir {
        return Ok(Opened { stat, fd: None, contents: None, directio: false });
    }
    let (Some(fd), true) = (&known.fd, (stat.dev, stat.ino) == (known.stat.dev, known.stat.ino))
    else {
        return open(path, how);
    };
    let contents = match &known.contents {
        Some(bytes) if stat == known.stat => Some(bytes.clone()),
        _ if how.contents && !known.directio => contents(fd.as_fd(), &stat),
        _ => None,
    };
    Ok(Opened { stat, fd: Some(fd.clone()), contents, directio: known.directio })
}

/// Describes a file without opening it.
pub fn look(path: &[u8], links: Links) -> Result<Stat, Failed> {
    if links == Links::Follow {
        return match stat(path) {
            Ok(stat) => Ok(Stat::of(&stat)),
            Err(code) => Err(Failed { call: Call::Stat, code: no_nul(code) }),
        };
    }
    describe(open_checked(path, links, OFlags::RDONLY | OFlags::NONBLOCK)?)
}

/// Describes a file for a comparison, asking servers of network file systems like `open` does.
pub fn look_again(path: &[u8]) -> Option<Stat> {
    let stat = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).ok()?;
    Some(Stat::of_statx(&stat))
}

/// The same as far as the kernel remembers the whole path, so that no disk is waited for.
pub fn look_if_cached(path: &[u8]) -> Option<Stat> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let fd = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(&fd, "", flags, StatxFlags::BASIC_STATS).ok()?;
    Some(Stat::of_statx(&stat))
}

/// All of a small regular file that is sure not to change unseen.
pub fn contents(fd: BorrowedFd<'_>, stat: &Stat) -> Option<Bytes> {
    if stat.kind != Kind::File || stat.size > SMALL_BYTES || !stat.is_settled() {
        return None;
    }
    let mut bytes = vec![0; stat.size as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(fd, &mut bytes[filled..], filled as u64) {
            // Shorter than it was: what is left is nothing to keep.
            Ok(0) => return None,
            Ok(read) => filled += read,
            Err(Code::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(bytes.into())
}

/// A file in memory with these contents, one after the other; `None`: it cannot be had, and need not be.
pub fn in_memory(contents: &[&[u8]]) -> Option<OwnedFd> {
    let fd = memfd_create("forebay contents", MemfdFlags::CLOEXEC).ok()?;
    // Nobody asks when it was read last; a thirtieth of what sending some pages takes.
    let _ = fcntl_setfl(&fd, OFlags::NOATIME);
    for mut piece in contents.iter().copied() {
        while !piece.is_empty() {
            match rustix::io::write(&fd, piece) {
                Ok(0) => return None,
                Ok(bytes) => piece = &piece[bytes..],
                Err(Code::INTR) => {}
                Err(_) => return None,
            }
        }
    }
    Some(fd)
}

fn describe(fd: impl AsFd) -> Result<Stat, Failed> {
    match fstat(fd) {
        Ok(stat) => Ok(Stat::of(&stat)),
        Err(code) => Err(Failed { call: Call::Fstat, code }),
    }
}

/// A path with a NUL in it names no file.
fn no_nul(code: Code) -> Code {
    if code == Code::INVAL { Code::NOENT } else { code }
}

/// The mode of a file that opening creates: nginx's `NGX_FILE_DEFAULT_ACCESS`.
const CREATED: Mode = Mode::from_raw_mode(0o644);

/// Opens a file as `disable_symlinks` says.
pub fn open_checked(path: &[u8], links: Links, flags: OFlags) -> Result<OwnedFd, Failed> {
    let flags = flags | OFlags::CLOEXEC;
    let (from, same_owner) = match links {
        Links::Follow => {
            let opened = openat(CWD, path, flags, CREATED);
            return opened.map_err(|code| Failed { call: Call::Open, code: no_nul(code) });
        }
        Links::Refuse { from } => (from, false),
        Links::SameOwner { from } => (from, true),
    };
    let failed = |code| Failed { call: Call::OpenAt, code: no_nul(code) };
    let search = OFlags::PATH | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let (mut at, mut rest) = match from {
        0 => (openat(CWD, "/", search, Mode::empty()).map_err(failed)?, path),
        from => {
            let base = openat(CWD, &path[..from], search, Mode::empty());
            (base.map_err(|code| Failed { call: Call::Open, code: no_nul(code) })?, &path[from..])
        }
    };
    while let Some(slash) = memchr::memchr(b'/', rest) {
        let (name, after) = (&rest[..slash], &rest[slash + 1..]);
        if !name.is_empty() {
            at = step(&at, name, search, same_owner).map_err(failed)?;
        }
        rest = after;
    }
    if rest.is_empty() {
        // A directory, by its trailing slash: opened once more, as it was meant to be.
        return openat(&at, ".", flags, Mode::empty()).map_err(failed);
    }
    step(&at, rest, flags, same_owner).map_err(failed)
}

/// One component of a path whose links are refused (`ngx_openat_file_owner`).
fn step(at: &OwnedFd, name: &[u8], flags: OFlags, same_owner: bool) -> Result<OwnedFd, Code> {
    if !same_owner {
        return openat(at, name, flags | OFlags::NOFOLLOW, CREATED);
    }
    let fd = openat(at, name, flags, CREATED)?;
    // Compared even where the name is no link now: it may have been one a moment ago.
    let (link, target) = (statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?, fstat(&fd)?);
    if link.st_uid == target.st_uid { Ok(fd) } else { Err(Code::LOOP) }
}
