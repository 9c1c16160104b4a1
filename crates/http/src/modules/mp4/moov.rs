//! The `moov` atom: the durations of the movie, and its tracks.
//!
//! Invariant: atoms that nginx does not know are left out, as there.

use std::ops::Range;

use super::{
    boxes::{Atoms, Broken, get32, get64, set32, set64, write},
    file::Part,
    trak::Trak,
};

/// What is known of a track weighs many times what an empty `trak` atom does.
///
/// DIFFERS(mp4-tracks-bound): nginx takes any number; a million of them fit `mp4_max_buffer_size`.
const MAX_TRAKS: usize = 1024;

/// It, in memory.
pub struct Moov {
    /// Its content; tables are cut in place.
    bytes: Vec<u8>,
    mvhd: Option<Range<usize>>,
    traks: Vec<Trak>,
}

/// Where a header that tells a duration has what, behind its own header; of version 0 and 1.
pub struct Layout {
    /// For messages.
    pub name: &'static str,
    /// How long it is at least.
    pub len: [usize; 2],
    /// Where the time scale is, if it has one.
    pub timescale: Option<[usize; 2]>,
    /// Where the duration is: of four bytes, and of eight.
    pub duration: [usize; 2],
}

const MVHD: Layout =
    Layout { name: "mvhd", len: [100, 112], timescale: Some([12, 20]), duration: [16, 24] };

impl Layout {
    /// Whether it is of version 1, if it is long enough.
    fn version(&self, bytes: &[u8], at: &Range<usize>) -> Result<usize, Broken> {
        let long_enough = |version: usize| match at.len() >= self.len[version] {
            true => Ok(version),
            false => Err(Broken::TooSmall(self.name)),
        };
        long_enough(0)?;
        if bytes.get(at.start) == Some(&0) { Ok(0) } else { long_enough(1) }
    }

    /// Time scale (0 if it has none) and duration.
    pub fn read(&self, bytes: &[u8], at: &Range<usize>) -> Result<(u32, u64), Broken> {
        let version = self.version(bytes, at)?;
        let timescale = self.timescale.map_or(0, |places| get32(bytes, at.start + places[version]));
        let place = at.start + self.duration[version];
        let duration = match version {
            0 => u64::from(get32(bytes, place)),
            _ => get64(bytes, place),
        };
        Ok((timescale, duration))
    }

    /// Writes a duration.
    pub fn set(&self, bytes: &mut [u8], at: &Range<usize>, duration: u64) -> Result<(), Broken> {
        let version = self.version(bytes, at)?;
        let place = at.start + self.duration[version];
        match version {
            0 => set32(bytes, place, duration as u32),
            _ => set64(bytes, place, duration),
        }
        Ok(())
    }
}

/// Milliseconds in units of a time scale.
pub fn scaled(ms: u64, timescale: u32) -> u64 {
    u64::try_from(u128::from(ms) * u128::from(timescale) / 1000).unwrap_or(u64::MAX)
}

/// What is left of a duration.
pub fn shortened(duration: u64, part: &Part, timescale: u32) -> Option<u64> {
    let left = duration.checked_sub(scaled(part.start_ms, timescale))?;
    Some(match part.length_ms {
        0 => left,
        length_ms => left.min(scaled(length_ms, timescale)),
    })
}

impl Moov {
    /// Reads it, and shortens its durations.
    pub fn parse(mut bytes: Vec<u8>, part: &Part) -> Result<Moov, Broken> {
        let (mut mvhd, mut traks, mut timescale) = (None, Vec::new(), 0);
        let mut atoms = Atoms(0..bytes.len());
        while let Some((name, at)) = atoms.next(&bytes)? {
            match &name {
                b"mvhd" if mvhd.is_some() => return Err(Broken::Duplicate("mvhd")),
                b"mvhd" => {
                    let duration;
                    (timescale, duration) = MVHD.read(&bytes, &at)?;
                    let left = shortened(duration, part, timescale);
                    let left = left.ok_or(Broken::StartExceedsDuration)?;
                    MVHD.set(&mut bytes, &at, left)?;
                    mvhd = Some(at);
                }
                b"trak" if traks.len() == MAX_TRAKS => return Err(Broken::TooManyTraks),
                b"trak" => traks.extend(Trak::parse(&mut bytes, at, part, timescale)?),
                b"cmov" => return Err(Broken::Compressed),
                _ => {}
            }
        }
        Ok(Moov { bytes, mvhd, traks })
    }

    /// Whether there is any track.
    pub fn has_traks(&self) -> bool {
        !self.traks.is_empty()
    }

    /// Cuts the tables; which bytes of the file the samples are in.
    pub fn crop(
        &mut self,
        part: &Part,
        mdat_end: u64,
        file_end: u64,
    ) -> Result<(u64, u64), Broken> {
        let (mut start, mut end) = (file_end, 0);
        for trak in &mut self.traks {
            trak.crop(&mut self.bytes, part, mdat_end, file_end)?;
            start = start.min(trak.start_offset);
            end = end.max(trak.end_offset);
        }
        Ok((start, end))
    }

    /// Writes it; where the offsets of chunks stand.
    pub fn write(&self, out: &mut Vec<u8>) -> Offsets {
        let mut offsets = Offsets::default();
        write(out, b"moov", |out| {
            if let Some(mvhd) = &self.mvhd {
                write(out, b"mvhd", |out| out.extend_from_slice(&self.bytes[mvhd.clone()]));
            }
            for trak in &self.traks {
                trak.write(&self.bytes, out, &mut offsets);
            }
        });
        offsets
    }
}

/// Where the offsets of chunks stand in what was written, to be moved by what stands before them.
#[derive(Default)]
pub struct Offsets {
    /// Of four bytes each.
    pub short: Vec<Range<usize>>,
    /// Of eight bytes each.
    pub long: Vec<Range<usize>>,
}

impl Offsets {
    /// What was at `start` of the old file is behind the head of the new one.
    pub fn shift(&self, head: &mut [u8], start: u64) {
        let by = (head.len() as u64).wrapping_sub(start);
        for at in self.short.iter().flat_map(|range| range.clone().step_by(4)) {
            let offset = get32(head, at);
            set32(head, at, offset.wrapping_add(by as u32));
        }
        for at in self.long.iter().flat_map(|range| range.clone().step_by(8)) {
            let offset = get64(head, at);
            set64(head, at, offset.wrapping_add(by));
        }
    }
}
