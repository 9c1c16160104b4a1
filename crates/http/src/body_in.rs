//! Request bodies: read whole, into memory or a temporary file, before a handler goes on
//! (`ngx_http_request_body.c`).

use std::{
    fs::File,
    future::poll_fn,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use forebay_session::log::Severity;
use forebay_wire::h1::BodyLength;

use crate::{
    client::{self, Client},
    core::{BodyInFile, TempPath},
    request::Request,
};

/// What became of the request body. Copies share it.
#[derive(Clone, Default)]
pub enum RequestBody {
    /// Nobody asked for it: what comes is thrown away.
    #[default]
    Unread,
    /// In memory (empty, if there is none).
    Memory(Bytes),
    /// In a file.
    File(Rc<TempFile>),
}

impl RequestBody {
    /// Whether nobody asked for it yet.
    pub fn is_unread(&self) -> bool {
        matches!(self, RequestBody::Unread)
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
    pub file: File,
    /// Its bytes.
    pub len: u64,
    keep: bool,
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.keep {
            // Somebody may have moved it away (`dav`), which is how such a file is meant to end.
            let _ = std::fs::remove_file(&self.path);
        }
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
                Ok(file) => return Ok(TempFile { path, file, len: 0, keep }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(std::io::ErrorKind::AlreadyExists.into())
    }

    /// Adds bytes at its end.
    pub fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        self.len += bytes.len() as u64;
        Ok(())
    }
}

/// Reads the whole body into `r.body`. Errors are statuses to finish the request with.
pub async fn read(r: &mut Request, client: &mut dyn Client) -> Result<(), u16> {
    let mode = r.location().core.client_body_in_file_only;
    read_as(r, client, mode).await
}

/// The same as `client_body_in_file_only` with that value; a body that is announced and empty has a
/// file, too, unless it is `off`.
pub async fn read_as(
    r: &mut Request,
    client: &mut dyn Client,
    mode: BodyInFile,
) -> Result<(), u16> {
    if !r.body.is_unread() {
        return Ok(());
    }
    let core = &r.location().core;
    let (limit, timeout_ms) = (core.client_max_body_size, core.client_body_timeout_ms);
    let in_memory = core.client_body_buffer_size;
    let temp_path = core.client_body_temp_path.clone();
    let mut memory = Vec::new();
    let whole = match r.input.framing.body {
        BodyLength::Length(length) => Some(length),
        _ => None,
    };
    let mut file: Option<TempFile> = None;
    loop {
        let next = poll_fn(|cx| client.poll_body(limit, timeout_ms, cx)).await;
        let piece = next.map_err(|error| {
            client::log_gone(r, error);
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
            file = Some(spill_into(r, &temp_path, mode)?);
        }
        match &mut file {
            None => memory.extend_from_slice(&piece),
            Some(file) => {
                let kept = std::mem::take(&mut memory);
                if let Err(error) = file.append(&kept).and_then(|()| file.append(&piece)) {
                    return Err(write_failed(r, &file.path, &error));
                }
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

fn spill_into(r: &Request, at: &TempPath, mode: BodyInFile) -> Result<TempFile, u16> {
    let file = TempFile::create(at, mode == BodyInFile::On)
        .map_err(|error| write_failed(r, &at.path, &error))?;
    if mode == BodyInFile::Off {
        r.log_error(
            Severity::Warn,
            format_args!(
                "a client request body is buffered to a temporary file {}",
                file.path.display()
            ),
        );
    }
    Ok(file)
}

fn write_failed(r: &Request, path: &Path, error: &std::io::Error) -> u16 {
    let cause = forebay_conf::error::errno_text(error);
    r.log_error(Severity::Crit, format_args!("pwrite() \"{}\" failed ({cause})", path.display()));
    500
}
