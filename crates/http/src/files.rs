//! Files as they are served: opened, described, cached, read.
//!
//! Answers nginx's `ngx_open_file_cache.c` and `ngx_http_map_uri_to_path`.

use std::{
    cell::RefCell,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    task::{Context, Poll},
};

use bytes::Bytes;

use crate::{body::FileSlice, core::Alias, request::Request};

/// An open regular file.
pub struct OpenFile {
    file: File,
    /// Its size when it was opened, in bytes.
    pub size: u64,
    /// Its modification time, seconds since 1970.
    pub modified: i64,
    /// All of it, where it is small and kept in memory.
    pub contents: Option<Bytes>,
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl FileSlice {
    /// The bytes, where the file is in memory.
    pub fn in_memory(&self) -> Option<Bytes> {
        let contents = self.file.contents.as_ref()?;
        Some(contents.slice(self.start as usize..self.end as usize))
    }
}

/// Reads up to `want` bytes of a slice's beginning. Fewer: the file is shorter than it was.
pub fn poll_read(slice: &FileSlice, want: usize, _cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
    let mut bytes = vec![0; want];
    let read = slice.file.file.read_at(&mut bytes, slice.start)?;
    bytes.truncate(read);
    Poll::Ready(Ok(bytes.into()))
}

/// The file caches of a thread.
#[derive(Default)]
pub struct FileCaches {
    _caches: RefCell<Vec<()>>,
}

/// The path of the file that a request's URI stands for.
pub fn map_path(r: &Request, out: &mut Vec<u8>) {
    let root = &r.location().core.root;
    root.path.write(r, out);
    match root.alias {
        None => out.extend_from_slice(&r.uri),
        Some(Alias::Prefix(len)) => out.extend_from_slice(r.uri.get(len..).unwrap_or_default()),
        Some(Alias::Whole) => {}
    }
}

/// The same for messages.
pub fn shown_path(r: &Request) -> String {
    let mut path = Vec::new();
    map_path(r, &mut path);
    String::from_utf8_lossy(&path).into_owned()
}
