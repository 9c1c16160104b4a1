//! One track: its tables of samples and chunks, and how they are cut
//! (`ngx_http_mp4_update_stts_atom` and its like).
//!
//! Invariant: tables are cut in place; a table never grows but by the two entries of `stsc` that are
//! kept beside it.

use std::ops::Range;

use super::{
    boxes::{Atoms, Broken, Name, get32, get64, set32, set64, write},
    file::Part,
    moov::{Layout, Offsets, scaled, shortened},
};

const TKHD: Layout = Layout { name: "tkhd", len: [84, 96], timescale: None, duration: [20, 28] };
const MDHD: Layout =
    Layout { name: "mdhd", len: [24, 36], timescale: Some([12, 20]), duration: [16, 24] };

/// A table: the bytes before its entries, and these.
#[derive(Clone, Debug)]
struct Table {
    /// Version and flags, and of `stsz` the size that all have.
    head: Range<usize>,
    /// The number of entries, where nothing else says it (`stsz` of one size).
    count: u32,
    data: Range<usize>,
}

/// What a track has but tables: as they stand in the file.
#[derive(Clone, Copy)]
enum Raw {
    Tkhd,
    Mdhd,
    Hdlr,
    Vmhd,
    Smhd,
    Dinf,
    Stsd,
}

/// A track.
#[derive(Default)]
pub struct Trak {
    raw: [Option<Range<usize>>; 7],
    stts: Option<Table>,
    stss: Option<Table>,
    ctts: Option<Table>,
    stsc: Option<Table>,
    stsz: Option<Table>,
    stco: Option<Table>,
    co64: Option<Table>,
    timescale: u32,
    duration: u64,
    movie_duration: u64,
    /// How many units before the start the key frame is that it begins with.
    prefix: u64,
    start_sample: u64,
    end_sample: u64,
    chunks: u64,
    start_chunk: u64,
    end_chunk: u64,
    start_chunk_samples: u64,
    end_chunk_samples: u64,
    start_chunk_samples_size: u64,
    end_chunk_samples_size: u64,
    /// An entry of `stsc` before, and one behind the others.
    stsc_ends: [Option<[u32; 3]>; 2],
    /// The first byte of its samples in the file.
    pub start_offset: u64,
    /// The byte after their last.
    pub end_offset: u64,
}

fn put<T>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), Broken> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Broken::Duplicate(name)),
    }
}

impl Table {
    /// A table whose entries have `size` bytes and stand behind `head` bytes and their number.
    fn parse(
        bytes: &[u8],
        at: Range<usize>,
        name: &'static str,
        head: usize,
        size: usize,
    ) -> Result<Table, Broken> {
        if at.len() < head + 4 {
            return Err(Broken::TooSmall(name));
        }
        let start = at.start + head + 4;
        let count = get32(bytes, at.start + head);
        let len = u64::from(count) * size as u64;
        if len > (at.end - start) as u64 {
            return Err(Broken::TooSmall(name));
        }
        // It fits the atom, so it fits `usize`.
        Ok(Table { head: at.start..at.start + head, count, data: start..start + len as usize })
    }

    fn write(&self, bytes: &[u8], name: &Name, size: usize, out: &mut Vec<u8>) {
        write(out, name, |out| {
            out.extend_from_slice(&bytes[self.head.clone()]);
            let count = (self.data.len() / size) as u32;
            out.extend_from_slice(&count.to_be_bytes());
            out.extend_from_slice(&bytes[self.data.clone()]);
        });
    }
}

impl Trak {
    /// Reads a track, and shortens its durations. `None`: it ends before the start.
    pub fn parse(
        bytes: &mut [u8],
        at: Range<usize>,
        part: &Part,
        movie_timescale: u32,
    ) -> Result<Option<Trak>, Broken> {
        let mut trak = Trak::default();
        let mut atoms = Atoms(at);
        while let Some((name, at)) = atoms.next(bytes)? {
            match &name {
                b"tkhd" => {
                    let (_, duration) = TKHD.read(bytes, &at)?;
                    let Some(left) = shortened(duration, part, movie_timescale)
                        .filter(|_| duration > scaled(part.start_ms, movie_timescale))
                    else {
                        return Ok(None);
                    };
                    TKHD.set(bytes, &at, left)?;
                    trak.movie_duration = left;
                    trak.keep(Raw::Tkhd, "tkhd", at)?;
                }
                b"mdia" if !trak.mdia(bytes, at, part)? => return Ok(None),
                _ => {}
            }
        }
        Ok(Some(trak))
    }

    fn keep(&mut self, raw: Raw, name: &'static str, at: Range<usize>) -> Result<(), Broken> {
        put(&mut self.raw[raw as usize], name, at)
    }

    fn mdia(&mut self, bytes: &mut [u8], at: Range<usize>, part: &Part) -> Result<bool, Broken> {
        let mut atoms = Atoms(at);
        while let Some((name, at)) = atoms.next(bytes)? {
            match &name {
                b"mdhd" => {
                    let (timescale, duration) = MDHD.read(bytes, &at)?;
                    let Some(left) = shortened(duration, part, timescale)
                        .filter(|_| duration > scaled(part.start_ms, timescale))
                    else {
                        return Ok(false);
                    };
                    (self.timescale, self.duration) = (timescale, left);
                    self.keep(Raw::Mdhd, "mdhd", at)?;
                }
                b"hdlr" => self.keep(Raw::Hdlr, "hdlr", at)?,
                b"minf" => {
                    let mut atoms = Atoms(at);
                    while let Some((name, at)) = atoms.next(bytes)? {
                        match &name {
                            b"vmhd" => self.keep(Raw::Vmhd, "vmhd", at)?,
                            b"smhd" => self.keep(Raw::Smhd, "smhd", at)?,
                            b"dinf" => self.keep(Raw::Dinf, "dinf", at)?,
                            b"stbl" => self.stbl(bytes, at)?,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(true)
    }

    fn stbl(&mut self, bytes: &[u8], at: Range<usize>) -> Result<(), Broken> {
        let mut atoms = Atoms(at);
        while let Some((name, at)) = atoms.next(bytes)? {
            let table = |name, size| Table::parse(bytes, at.clone(), name, 4, size);
            match &name {
                b"stsd" if at.len() < 16 => return Err(Broken::TooSmall("stsd")),
                b"stsd" => self.keep(Raw::Stsd, "stsd", at)?,
                b"stts" => put(&mut self.stts, "stts", table("stts", 8)?)?,
                b"stss" => put(&mut self.stss, "stss", table("stss", 4)?)?,
                b"ctts" => put(&mut self.ctts, "ctts", table("ctts", 8)?)?,
                b"stsc" => put(&mut self.stsc, "stsc", table("stsc", 12)?)?,
                b"stsz" => {
                    let uniform = at.len() >= 8 && get32(bytes, at.start + 4) != 0;
                    let size = if uniform { 0 } else { 4 };
                    let table = Table::parse(bytes, at.clone(), "stsz", 8, size)?;
                    put(&mut self.stsz, "stsz", table)?;
                }
                b"stco" => {
                    let table = table("stco", 4)?;
                    self.chunks = table.count.into();
                    put(&mut self.stco, "stco", table)?;
                }
                b"co64" => {
                    let table = table("co64", 8)?;
                    self.chunks = table.count.into();
                    put(&mut self.co64, "co64", table)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Cuts its tables.
    pub fn crop(
        &mut self,
        bytes: &mut [u8],
        part: &Part,
        mdat_end: u64,
        file_end: u64,
    ) -> Result<(), Broken> {
        let to_end = part.length_ms == 0;
        self.crop_times(bytes, part)?;
        self.crop_key_frames(bytes, to_end);
        self.crop_offsets(bytes, to_end);
        self.crop_chunks(bytes, to_end)?;
        self.crop_sizes(bytes, to_end)?;
        self.crop_chunk_offsets(bytes, to_end, mdat_end, file_end)?;
        if let Some(at) = self.raw[Raw::Mdhd as usize].clone() {
            MDHD.set(bytes, &at, self.duration)?;
        }
        Ok(())
    }

    /// `stts`: how long samples last. Finds the first sample and the one after the last.
    fn crop_times(&mut self, bytes: &mut [u8], part: &Part) -> Result<(), Broken> {
        let mut table = self.stts.take().ok_or(Broken::Missing("stts"))?;
        let start = scaled(part.start_ms, self.timescale);
        let found = find_time(bytes, &table.data, start);
        let Ok((mut at, before, mut rest)) = found else {
            return Err(Broken::Out("start time is out mp4 stts samples"));
        };
        let mut key_prefix = match part.start_key_frame {
            true => self.key_prefix(bytes, before + rest),
            false => 0,
        };
        self.start_sample = before + rest - key_prefix;
        // Back to the key frame, entry by entry.
        while rest < key_prefix && at > table.data.start {
            let duration = u64::from(get32(bytes, at + 4));
            self.prefix = self.prefix.saturating_add(rest.saturating_mul(duration));
            key_prefix -= rest;
            at -= 8;
            rest = get32(bytes, at).into();
        }
        let (count, duration) = (get32(bytes, at), u64::from(get32(bytes, at + 4)));
        self.prefix = self.prefix.saturating_add(key_prefix.saturating_mul(duration));
        self.duration = self.duration.saturating_add(self.prefix);
        rest = rest.saturating_sub(key_prefix);
        set32(bytes, at, count.saturating_sub(rest as u32));
        table.data.start = at;
        if part.length_ms > 0 {
            let end = scaled(part.length_ms, self.timescale).saturating_add(self.prefix);
            match find_time(bytes, &table.data, end) {
                Ok((at, before, rest)) => {
                    set32(bytes, at, rest as u32);
                    table.data.end = at + 8;
                    self.end_sample = self.start_sample + before + rest;
                }
                Err(samples) => self.end_sample = self.start_sample + samples,
            }
        }
        self.stts = Some(table);
        Ok(())
    }

    /// How many samples before this one (counted from 0) the last key frame is.
    fn key_prefix(&self, bytes: &[u8], sample: u64) -> u64 {
        let Some(table) = &self.stss else { return 0 };
        // They are counted from 1.
        let sample = sample + 1;
        let frames = table.data.clone().step_by(4).map(|at| u64::from(get32(bytes, at)));
        let before = frames.take_while(|frame| *frame <= sample);
        before.last().map_or(0, |frame| (sample - frame).min(sample - 1))
    }

    /// `stss`: which samples are key frames, counted from 1.
    fn crop_key_frames(&mut self, bytes: &mut [u8], to_end: bool) {
        let Some(table) = &mut self.stss else { return };
        let find = |table: &Table, bytes: &[u8], sample: u64| {
            let mut places = table.data.clone().step_by(4);
            places.find(|at| u64::from(get32(bytes, *at)) >= sample).unwrap_or(table.data.end)
        };
        table.data.start = find(table, bytes, self.start_sample + 1);
        if !to_end {
            table.data.end = find(table, bytes, self.end_sample + 1);
        }
        for at in table.data.clone().step_by(4) {
            let sample = get32(bytes, at);
            set32(bytes, at, sample.wrapping_sub(self.start_sample as u32));
        }
    }

    /// `ctts`: by how much later samples are shown.
    fn crop_offsets(&mut self, bytes: &mut [u8], to_end: bool) {
        let Some(table) = &mut self.ctts else { return };
        let find = |table: &Table, bytes: &[u8], mut sample: u64| {
            for at in table.data.clone().step_by(8) {
                let count = u64::from(get32(bytes, at));
                if sample <= count {
                    return Some((at, sample - 1));
                }
                sample -= count;
            }
            None
        };
        match find(table, bytes, self.start_sample + 1) {
            Some((at, rest)) => {
                let count = get32(bytes, at);
                set32(bytes, at, count - rest as u32);
                table.data.start = at;
            }
            None => table.data.start = table.data.end,
        }
        let samples = self.end_sample.saturating_sub(self.start_sample);
        if !to_end && let Some((at, rest)) = find(table, bytes, samples + 1) {
            set32(bytes, at, rest as u32);
            table.data.end = at + 8;
        }
        if table.data.is_empty() {
            self.ctts = None;
        }
    }

    /// `stsc`: how many samples chunks have. Finds the first chunk and the one after the last.
    fn crop_chunks(&mut self, bytes: &mut [u8], to_end: bool) -> Result<(), Broken> {
        let mut table = self.stsc.take().ok_or(Broken::Missing("stsc"))?;
        if table.data.is_empty() {
            return Err(Broken::Zero("entries in stsc atom"));
        }
        self.crop_first_chunk(bytes, &mut table)?;
        if !to_end {
            self.crop_last_chunk(bytes, &mut table)?;
        }
        for at in table.data.clone().step_by(12) {
            let chunk = get32(bytes, at);
            set32(bytes, at, chunk.wrapping_sub(self.start_chunk as u32));
        }
        self.stsc = Some(table);
        Ok(())
    }

    fn crop_first_chunk(&mut self, bytes: &mut [u8], table: &mut Table) -> Result<(), Broken> {
        let out = Broken::Out("start time is out mp4 stsc chunks");
        let run = self.find_run(bytes, &table.data, self.start_sample, 0).ok_or(out)?;
        let Run { at, chunk, next_chunk, samples, id, left, .. } = run;
        if samples == 0 {
            return Err(Broken::Zero("samples"));
        }
        let target = chunk - 1 + left / samples;
        let in_chunk = left % samples;
        table.data.start = at;
        self.start_chunk = target;
        self.start_chunk_samples = in_chunk;
        set32(bytes, at, (target as u32).wrapping_add(1));
        let left_in_chunk = (samples - in_chunk) as u32;
        if in_chunk > 0 && next_chunk == target + 2 {
            set32(bytes, at + 4, left_in_chunk);
        } else if in_chunk > 0 {
            self.stsc_ends[0] = Some([1, left_in_chunk, id]);
            set32(bytes, at, (target as u32).wrapping_add(2));
        }
        Ok(())
    }

    fn crop_last_chunk(&mut self, bytes: &mut [u8], table: &mut Table) -> Result<(), Broken> {
        let mut count = self.end_sample.saturating_sub(self.start_sample);
        let mut before = 0;
        if let Some(first) = &mut self.stsc_ends[0] {
            before = u64::from(first[1]).min(count);
            first[1] = before as u32;
            count -= before;
        }
        let out = Broken::Out("end time is out mp4 stsc chunks");
        let run = self.find_run(bytes, &table.data, count, before).ok_or(out)?;
        let Run { at, chunk, samples, before, id, left, .. } = run;
        if samples == 0 {
            return Err(Broken::Zero("samples"));
        }
        let target = chunk - 1 + left / samples;
        let in_chunk = left % samples;
        if left > 0 {
            table.data.end = at + 12;
            self.end_chunk_samples = samples;
        } else {
            table.data.end = at;
            self.end_chunk_samples = before;
        }
        self.end_chunk = target;
        if in_chunk == 0 {
            return Ok(());
        }
        self.end_chunk = target + 1;
        self.end_chunk_samples = in_chunk;
        if chunk == target + 1 {
            set32(bytes, at + 4, in_chunk as u32);
        } else {
            let number = self.end_chunk.wrapping_sub(self.start_chunk) as u32;
            self.stsc_ends[1] = Some([number, in_chunk as u32, id]);
        }
        Ok(())
    }

    /// The entry of `stsc` in whose run of chunks that sample is, counted from the first entry.
    /// `None`: behind them all.
    fn find_run(
        &self,
        bytes: &[u8],
        data: &Range<usize>,
        mut left: u64,
        mut before: u64,
    ) -> Option<Run> {
        for at in data.clone().step_by(12) {
            let chunk = u64::from(get32(bytes, at)).max(1);
            let samples = u64::from(get32(bytes, at + 4));
            let id = get32(bytes, at + 8);
            let is_last = at + 12 >= data.end;
            let next_chunk = match is_last {
                true => self.chunks + 1,
                false => u64::from(get32(bytes, at + 12)),
            };
            let in_run = next_chunk.saturating_sub(chunk).saturating_mul(samples);
            if left < in_run || (is_last && left == in_run) {
                return Some(Run { at, chunk, next_chunk, samples, before, id, left });
            }
            left -= in_run;
            before = samples;
        }
        None
    }

    /// `stsz`: how many bytes samples have.
    fn crop_sizes(&mut self, bytes: &[u8], to_end: bool) -> Result<(), Broken> {
        // Where all have one size, nginx looks no further.
        let Some(table) = self.stsz.as_mut().filter(|table| !table.data.is_empty()) else {
            return Ok(());
        };
        let sum = |end: usize, samples: u64, first: usize| {
            let len = usize::try_from(samples).ok().and_then(|samples| samples.checked_mul(4));
            let start = len.and_then(|len| end.checked_sub(len)).filter(|start| *start >= first);
            let start = start.ok_or(Broken::TooManySamples)?;
            Ok((start..end).step_by(4).map(|at| u64::from(get32(bytes, at))).sum())
        };
        let (first, entries) = (table.data.start, (table.data.len() / 4) as u64);
        if self.start_sample > entries {
            return Err(Broken::Out("start time is out mp4 stsz samples"));
        }
        table.data.start += self.start_sample as usize * 4;
        self.start_chunk_samples_size = sum(table.data.start, self.start_chunk_samples, first)?;
        if !to_end {
            let samples = self.end_sample.saturating_sub(self.start_sample);
            if samples > entries - self.start_sample {
                return Err(Broken::Out("end time is out mp4 stsz samples"));
            }
            table.data.end = table.data.start + samples as usize * 4;
            self.end_chunk_samples_size = sum(table.data.end, self.end_chunk_samples, first)?;
        }
        table.count = (table.data.len() / 4) as u32;
        Ok(())
    }

    /// `stco` or `co64`: where chunks stand.
    fn crop_chunk_offsets(
        &mut self,
        bytes: &mut [u8],
        to_end: bool,
        mdat_end: u64,
        file_end: u64,
    ) -> Result<(), Broken> {
        let (table, size) = match (&mut self.co64, &mut self.stco) {
            (Some(table), _) => (table, 8),
            (None, Some(table)) => (table, 4),
            (None, None) => return Err(Broken::Missing("stco")),
        };
        let get = |bytes: &[u8], at| match size {
            8 => get64(bytes, at),
            _ => get32(bytes, at).into(),
        };
        let name = |start: bool| match (start, size) {
            (true, 8) => "start time is out mp4 co64 chunks",
            (true, _) => "start time is out mp4 stco chunks",
            (false, 8) => "end time is out mp4 co64 chunks",
            (false, _) => "end time is out mp4 stco chunks",
        };
        let chunks = (table.data.len() / size) as u64;
        if self.start_chunk > chunks {
            return Err(Broken::Out(name(true)));
        }
        table.data.start += self.start_chunk as usize * size;
        if !to_end {
            if self.end_chunk > chunks || self.end_chunk < self.start_chunk {
                return Err(Broken::Out(name(false)));
            }
            let entries = (self.end_chunk - self.start_chunk) as usize;
            table.data.end = table.data.start + entries * size;
        }
        if table.data.is_empty() {
            // It has no byte in this part.
            (self.start_offset, self.end_offset) = (file_end, 0);
            return Ok(());
        }
        // The first chunk may be its own last: its end is counted from where it began.
        let last = get(bytes, table.data.end - size);
        let first = get(bytes, table.data.start);
        self.start_offset = first.saturating_add(self.start_chunk_samples_size);
        match size {
            8 => set64(bytes, table.data.start, self.start_offset),
            _ => set32(bytes, table.data.start, self.start_offset as u32),
        }
        let one_chunk = table.data.len() == size;
        let last = if one_chunk { self.start_offset } else { last };
        self.end_offset = match to_end {
            true => mdat_end,
            false => last.saturating_add(self.end_chunk_samples_size),
        };
        Ok(())
    }

    /// Writes it; adds where the offsets of its chunks stand.
    pub fn write(&self, bytes: &[u8], out: &mut Vec<u8>, offsets: &mut Offsets) {
        let raw = |out: &mut Vec<u8>, raw: Raw, name: &Name| {
            if let Some(at) = &self.raw[raw as usize] {
                write(out, name, |out| out.extend_from_slice(&bytes[at.clone()]));
            }
        };
        write(out, b"trak", |out| {
            raw(out, Raw::Tkhd, b"tkhd");
            if self.prefix > 0 {
                self.write_edit(out);
            }
            write(out, b"mdia", |out| {
                raw(out, Raw::Mdhd, b"mdhd");
                raw(out, Raw::Hdlr, b"hdlr");
                write(out, b"minf", |out| {
                    raw(out, Raw::Vmhd, b"vmhd");
                    raw(out, Raw::Smhd, b"smhd");
                    raw(out, Raw::Dinf, b"dinf");
                    write(out, b"stbl", |out| {
                        raw(out, Raw::Stsd, b"stsd");
                        self.write_tables(bytes, out, offsets);
                    });
                });
            });
        });
    }

    /// An edit list that leaves out what is before the start (`mp4_start_key_frame`).
    fn write_edit(&self, out: &mut Vec<u8>) {
        write(out, b"edts", |out| {
            write(out, b"elst", |out| {
                // Version 1, one entry.
                out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 1]);
                out.extend_from_slice(&self.movie_duration.to_be_bytes());
                out.extend_from_slice(&self.prefix.to_be_bytes());
                out.extend_from_slice(&[0, 1, 0, 0]);
            });
        });
    }

    fn write_tables(&self, bytes: &[u8], out: &mut Vec<u8>, offsets: &mut Offsets) {
        let tables = [(&self.stts, b"stts", 8), (&self.stss, b"stss", 4), (&self.ctts, b"ctts", 8)];
        for (table, name, size) in tables {
            if let Some(table) = table {
                table.write(bytes, name, size, out);
            }
        }
        if let Some(table) = &self.stsc {
            self.write_stsc(table, bytes, out);
        }
        if let Some(table) = &self.stsz {
            write(out, b"stsz", |out| {
                out.extend_from_slice(&bytes[table.head.clone()]);
                out.extend_from_slice(&table.count.to_be_bytes());
                out.extend_from_slice(&bytes[table.data.clone()]);
            });
        }
        match (&self.co64, &self.stco) {
            (Some(table), _) => {
                table.write(bytes, b"co64", 8, out);
                offsets.long.push(out.len() - table.data.len()..out.len());
            }
            (None, Some(table)) => {
                table.write(bytes, b"stco", 4, out);
                offsets.short.push(out.len() - table.data.len()..out.len());
            }
            (None, None) => {}
        }
    }

    fn write_stsc(&self, table: &Table, bytes: &[u8], out: &mut Vec<u8>) {
        let [first, last] = &self.stsc_ends;
        let more = usize::from(first.is_some()) + usize::from(last.is_some());
        write(out, b"stsc", |out| {
            out.extend_from_slice(&bytes[table.head.clone()]);
            let count = (table.data.len() / 12 + more) as u32;
            out.extend_from_slice(&count.to_be_bytes());
            let put = |out: &mut Vec<u8>, entry: &Option<[u32; 3]>| {
                for number in entry.iter().flatten() {
                    out.extend_from_slice(&number.to_be_bytes());
                }
            };
            put(out, first);
            out.extend_from_slice(&bytes[table.data.clone()]);
            put(out, last);
        });
    }
}

/// A run of chunks with the same number of samples: an entry of `stsc`.
struct Run {
    at: usize,
    /// Its first chunk, counted from 1.
    chunk: u64,
    /// The chunk after its last.
    next_chunk: u64,
    /// Samples in each.
    samples: u64,
    /// Samples in each chunk of the run before it.
    before: u64,
    id: u32,
    /// How many samples of it are before the one that was looked for.
    left: u64,
}

/// The entry of `stts` that a time is in: where it stands, how many samples are before it, and how
/// many of its own are before the time. Otherwise how many samples there are in all.
fn find_time(bytes: &[u8], data: &Range<usize>, mut time: u64) -> Result<(usize, u64, u64), u64> {
    let mut samples = 0;
    for at in data.clone().step_by(8) {
        let count = u64::from(get32(bytes, at));
        let duration = u64::from(get32(bytes, at + 4));
        if time < count * duration {
            return Ok((at, samples, time / duration));
        }
        samples += count;
        time -= count * duration;
    }
    Err(samples)
}
