//! The atoms of an MP4 file: headers, numbers, ranges of bytes.
//!
//! Invariant: every access is checked; a file can be anything.

use std::ops::Range;

/// Why a file cannot be cut; in nginx's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The file ends before an atom does.
    Truncated,
    /// An atom's size is less than its header's.
    AtomTooSmall(u64),
    /// An atom ends behind the one that it is in.
    AtomTooLarge(u64),
    /// An atom of that name is shorter than what must be in it.
    TooSmall(&'static str),
    /// `ftyp`, of more than 1,024 bytes.
    FtypTooLarge(u64),
    /// `moov`, of more than `mp4_max_buffer_size`.
    MoovTooLarge(u64),
    /// There are two of that name.
    Duplicate(&'static str),
    /// More tracks than any film has.
    TooManyTraks,
    /// There is none of that name: `trak`, or what it must have.
    Missing(&'static str),
    /// `mdat` is missing.
    NoMdat,
    /// `cmov`.
    Compressed,
    /// `start` is after the end.
    StartExceedsDuration,
    /// The start or end is not in these samples or chunks.
    Out(&'static str),
    /// A table that must not be empty is.
    Zero(&'static str),
    /// More samples in a chunk than there are before its end.
    TooManySamples,
    /// The file cannot be read.
    Read,
}

impl Broken {
    /// The line for the log.
    pub fn message(&self, path: &str) -> String {
        match self {
            Broken::Truncated => format!("\"{path}\" mp4 file truncated"),
            Broken::AtomTooSmall(size) => format!("\"{path}\" mp4 atom is too small:{size}"),
            Broken::AtomTooLarge(size) => format!("\"{path}\" mp4 atom too large:{size}"),
            Broken::TooSmall(name) => format!("\"{path}\" mp4 {name} atom too small"),
            Broken::FtypTooLarge(size) => {
                format!("\"{path}\" mp4 ftyp atom is too large:{size}")
            }
            Broken::MoovTooLarge(size) => format!(
                "\"{path}\" mp4 moov atom is too large:{size}, you may want to increase \
                 mp4_max_buffer_size"
            ),
            Broken::Duplicate(name) => format!("duplicate mp4 {name} atom in \"{path}\""),
            Broken::Missing(name) => format!("no mp4 {name} atoms were found in \"{path}\""),
            Broken::TooManyTraks => format!("too many mp4 trak atoms in \"{path}\""),
            Broken::NoMdat => format!("no mp4 mdat atom was found in \"{path}\""),
            Broken::Compressed => {
                format!("\"{path}\" mp4 compressed moov atom (cmov) is not supported")
            }
            Broken::StartExceedsDuration => {
                format!("\"{path}\" mp4 start time exceeds file duration")
            }
            Broken::Out(what) => format!("{what} in \"{path}\""),
            Broken::Zero(what) => format!("zero number of {what} in \"{path}\""),
            Broken::TooManySamples => format!("too many mp4 samples in chunk in \"{path}\""),
            Broken::Read => format!("\"{path}\" could not be read"),
        }
    }
}

/// The name of an atom.
pub type Name = [u8; 4];

/// The number at a place; 0 behind the end.
pub fn get32(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |number| u32::from_be_bytes(*number))
}

/// The number at a place; 0 behind the end.
pub fn get64(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |number| u64::from_be_bytes(*number))
}

/// Writes a number at a place; nothing behind the end.
pub fn set32(bytes: &mut [u8], at: usize, number: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&number.to_be_bytes());
    }
}

/// Writes a number at a place; nothing behind the end.
pub fn set64(bytes: &mut [u8], at: usize, number: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&number.to_be_bytes());
    }
}

/// The header of an atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: Name,
    /// Bytes of the header.
    pub len: u64,
    /// Bytes of all.
    pub size: u64,
}

/// How much of an atom must be at hand to read its header.
pub const MAX_HEADER: u64 = 16;

/// Reads the header of an atom that ends at most `room` bytes from here; `None`: the list of atoms
/// ends here.
pub fn header(bytes: &[u8], room: u64) -> Result<Option<Header>, Broken> {
    if bytes.len() < 4 {
        return Err(Broken::Truncated);
    }
    let (len, size) = match get32(bytes, 0) {
        0 => return Ok(None),
        1 if bytes.len() < 16 => return Err(Broken::Truncated),
        1 => (16, get64(bytes, 8)),
        size => (8, u64::from(size)),
    };
    if size < len {
        return Err(Broken::AtomTooSmall(size));
    }
    let Some(name) = bytes.get(4..8) else { return Err(Broken::Truncated) };
    if size > room {
        return Err(Broken::AtomTooLarge(size));
    }
    let name = [name[0], name[1], name[2], name[3]];
    Ok(Some(Header { name, len, size }))
}

/// Goes through the atoms within a part of a buffer.
pub struct Atoms(pub Range<usize>);

impl Atoms {
    /// The next one: its name, and where what it holds stands.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Option<(Name, Range<usize>)>, Broken> {
        let Range { start, end } = self.0.clone();
        let rest = bytes.get(start..end).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let Some(header) = header(rest, rest.len() as u64)? else { return Ok(None) };
        // They fit the buffer, so they fit `usize`.
        self.0.start = start + header.size as usize;
        Ok(Some((header.name, start + header.len as usize..self.0.start)))
    }
}

/// Writes an atom: the header, then what `content` writes.
pub fn write(out: &mut Vec<u8>, name: &Name, content: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    content(out);
    // Smaller than `mp4_max_buffer_size` and some more.
    let size = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    set32(out, start, size);
}
