//! The atoms of a file: finds `ftyp`, `moov` and `mdat`, and puts the new head together
//! (`ngx_http_mp4_process`).
//!
//! Invariant: reads headers and the `moov` atom only.

use std::{future::poll_fn, rc::Rc};

use forebay_rt::task;

use super::{
    boxes::{Broken, MAX_HEADER, header, write},
    moov::Moov,
};
use crate::{
    body::FileSlice,
    files::{self, OpenFile},
};

/// What is asked for.
pub struct Part {
    /// Where to begin, in milliseconds.
    pub start_ms: u64,
    /// How long; 0: to the end.
    pub length_ms: u64,
    /// `mp4_start_key_frame`.
    pub start_key_frame: bool,
    /// How large `moov` may be, in bytes.
    pub max_moov: u64,
}

/// What is sent: a head, and a part of the file.
#[derive(Debug)]
pub struct Cut {
    /// `ftyp`, `moov`, and the header of `mdat`.
    pub head: Vec<u8>,
    /// The first byte of the file's part.
    pub start: u64,
    /// The byte after its last.
    pub end: u64,
}

/// Reads a file a window at a time.
struct Window {
    file: Rc<OpenFile>,
    reader: files::Reader,
    start: u64,
    bytes: Vec<u8>,
}

const WINDOW: u64 = 64 << 10;
const MAX_FTYP: u64 = 1024;

impl Window {
    /// Some bytes from there on: as many as asked for, unless the file ends.
    async fn at(&mut self, offset: u64, want: u64) -> Result<&[u8], Broken> {
        let want = want.min(self.file.size.saturating_sub(offset));
        let end = self.start + self.bytes.len() as u64;
        if offset < self.start || offset + want > end {
            let len = want.max(WINDOW).min(self.file.size - offset);
            self.bytes = self.read(offset, len).await?;
            self.start = offset;
            // A file of nothing but atoms must not hold up others.
            task::yield_now().await;
        }
        let from = (offset - self.start) as usize;
        self.bytes.get(from..from + want as usize).ok_or(Broken::Truncated)
    }

    async fn read(&mut self, start: u64, len: u64) -> Result<Vec<u8>, Broken> {
        let mut slice = FileSlice { file: self.file.clone(), start, end: start + len };
        if let Some(bytes) = slice.in_memory() {
            return Ok(bytes.to_vec());
        }
        let mut all = Vec::with_capacity(len as usize);
        while !slice.is_empty() {
            let want = slice.len() as usize;
            let read = poll_fn(|cx| self.reader.poll_read(&slice, want, cx)).await;
            match read {
                Ok(bytes) if !bytes.is_empty() => {
                    slice.start += bytes.len() as u64;
                    all.extend_from_slice(&bytes);
                }
                _ => return Err(Broken::Read),
            }
        }
        Ok(all)
    }
}

/// Cuts a video; `None`: it is to be sent as it is.
pub async fn cut(file: &Rc<OpenFile>, part: &Part) -> Result<Option<Cut>, Broken> {
    let end = file.size;
    let mut window =
        Window { file: file.clone(), reader: Default::default(), start: 0, bytes: Vec::new() };
    let (mut ftyp, mut moov, mut mdat) = (None, None, None);
    let mut offset = 0;
    while offset < end {
        let bytes = window.at(offset, MAX_HEADER).await?;
        let Some(atom) = header(bytes, end - offset)? else { break };
        let data = (offset + atom.len, atom.size - atom.len);
        match &atom.name {
            b"ftyp" if data.1 > MAX_FTYP => return Err(Broken::FtypTooLarge(data.1)),
            b"ftyp" if ftyp.is_some() => return Err(Broken::Duplicate("ftyp")),
            b"ftyp" => ftyp = Some(window.at(data.0, data.1).await?.to_vec()),
            // The whole, in the order that players want.
            b"moov" if mdat.is_none() && part.start_ms == 0 && part.length_ms == 0 => {
                return Ok(None);
            }
            b"moov" if moov.is_some() => return Err(Broken::Duplicate("moov")),
            b"moov" if data.1 > part.max_moov => return Err(Broken::MoovTooLarge(data.1)),
            b"moov" => {
                let bytes = window.read(data.0, data.1).await?;
                moov = Some(Moov::parse(bytes, part)?);
            }
            b"mdat" => mdat = Some(data.0 + data.1),
            _ => {}
        }
        offset += atom.size;
    }
    let Some(moov) = moov.filter(Moov::has_traks) else { return Err(Broken::Missing("trak")) };
    let mdat_end = mdat.ok_or(Broken::NoMdat)?;
    join(ftyp, moov, mdat_end, part, end).map(Some)
}

fn join(
    ftyp: Option<Vec<u8>>,
    mut moov: Moov,
    mdat_end: u64,
    part: &Part,
    file_end: u64,
) -> Result<Cut, Broken> {
    let (start, end) = moov.crop(part, mdat_end, file_end)?;
    let end = end.max(start);
    if start > mdat_end {
        return Err(Broken::Out("start time is out mp4 mdat atom"));
    }
    // DIFFERS(mp4-end-in-file): nginx does not look, and promises bytes that the file has not.
    if end > file_end {
        return Err(Broken::Out("end time is out mp4 mdat atom"));
    }
    let mut head = Vec::new();
    if let Some(ftyp) = ftyp {
        write(&mut head, b"ftyp", |out| out.extend_from_slice(&ftyp));
    }
    let offsets = moov.write(&mut head);
    let size = end - start;
    match u32::try_from(size + 8) {
        Ok(size) => {
            head.extend_from_slice(&size.to_be_bytes());
            head.extend_from_slice(b"mdat");
        }
        Err(_) => {
            head.extend_from_slice(&1u32.to_be_bytes());
            head.extend_from_slice(b"mdat");
            head.extend_from_slice(&(size + 16).to_be_bytes());
        }
    }
    offsets.shift(&mut head, start);
    Ok(Cut { head, start, end })
}
