//! A small video, for tests and the fuzz target.
//!
//! Invariant: compiled for these only.

use super::boxes::{Name, write};

/// What a test video is like. Its samples last 100 ms each.
#[derive(Clone, Copy)]
pub struct Like {
    pub samples: u32,
    /// Runs of chunks: how many chunks, and of how many samples each; the last run goes on.
    pub runs: &'static [(u32, u32)],
    pub key_every: u32,
    pub long_offsets: bool,
    pub version: u8,
    pub moov_first: bool,
}

pub const PLAIN: Like = Like {
    samples: 40,
    runs: &[(100, 4)],
    key_every: 8,
    long_offsets: false,
    version: 0,
    moov_first: true,
};

/// The bytes of a sample: its number, as often as it is long.
pub fn sample(n: u32) -> Vec<u8> {
    vec![n as u8; 3 + (n as usize * 7) % 11]
}

pub fn numbers(out: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

pub fn times(like: &Like, before: &[u32], duration: u32, len: usize) -> Vec<u8> {
    let mut out = vec![like.version, 0, 0, 0];
    let wide = like.version == 1;
    let number = |out: &mut Vec<u8>, n: u32| {
        if wide {
            numbers(out, &[0]);
        }
        numbers(out, &[n]);
    };
    number(&mut out, 1);
    number(&mut out, 1);
    numbers(&mut out, before);
    number(&mut out, duration);
    out.resize(len + if wide { 12 } else { 0 }, 0);
    out
}

/// Samples in each chunk.
pub fn chunks(like: &Like) -> Vec<u32> {
    let (mut left, mut out) = (like.samples, Vec::new());
    for (index, (count, samples)) in like.runs.iter().enumerate() {
        let last = index + 1 == like.runs.len();
        for _ in 0..*count {
            if left == 0 || (!last && left < *samples) {
                break;
            }
            // nginx reckons with whole chunks; so do well-made files.
            out.push((*samples).min(left));
            left -= (*samples).min(left);
        }
    }
    out
}

pub fn moov(like: &Like, mdat_start: u64) -> Vec<u8> {
    let mut offset = mdat_start;
    let (mut n, mut offsets) = (0, Vec::new());
    for count in chunks(like) {
        offsets.push(offset);
        for _ in 0..count {
            offset += sample(n).len() as u64;
            n += 1;
        }
    }
    let duration = like.samples * 100;
    let mut out = Vec::new();
    write(&mut out, b"moov", |out| {
        write(out, b"mvhd", |out| out.extend(times(like, &[1000], duration, 100)));
        write(out, b"udta", |out| out.extend_from_slice(b"left out"));
        write(out, b"trak", |out| {
            write(out, b"tkhd", |out| out.extend(times(like, &[1, 0], duration, 84)));
            write(out, b"mdia", |out| {
                write(out, b"mdhd", |out| out.extend(times(like, &[1000], duration, 24)));
                write(out, b"hdlr", |out| out.extend_from_slice(b"handler"));
                write(out, b"minf", |out| {
                    write(out, b"vmhd", |out| out.extend_from_slice(b"video"));
                    write(out, b"stbl", |out| tables(like, &offsets, out));
                });
            });
        });
    });
    out
}

pub fn tables(like: &Like, offsets: &[u64], out: &mut Vec<u8>) {
    let n = like.samples;
    let table = |out: &mut Vec<u8>, name: &Name, entries: &[u32], each: usize| {
        write(out, name, |out| {
            numbers(out, &[0, (entries.len() / each) as u32]);
            numbers(out, entries);
        });
    };
    write(out, b"stsd", |out| numbers(out, &[0, 1, 8, 0x6176_6331]));
    table(out, b"stts", &[5, 100, n - 5, 100], 2);
    let keys: Vec<u32> = (1..=n).step_by(like.key_every as usize).collect();
    table(out, b"stss", &keys, 1);
    table(out, b"ctts", &[n / 2, 7, n - n / 2, 9], 2);
    let (mut runs, mut chunk) = (Vec::new(), 1);
    for count in chunks(like).chunk_by(|a, b| a == b) {
        runs.extend([chunk, count[0], 1]);
        chunk += count.len() as u32;
    }
    table(out, b"stsc", &runs, 3);
    write(out, b"stsz", |out| {
        numbers(out, &[0, 0, n]);
        for n in 0..n {
            numbers(out, &[sample(n).len() as u32]);
        }
    });
    if like.long_offsets {
        write(out, b"co64", |out| {
            numbers(out, &[0, offsets.len() as u32]);
            offsets.iter().for_each(|offset| out.extend_from_slice(&offset.to_be_bytes()));
        });
    } else {
        let short: Vec<u32> = offsets.iter().map(|offset| *offset as u32).collect();
        table(out, b"stco", &short, 1);
    }
}

pub fn video(like: &Like) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, b"ftyp", |out| out.extend_from_slice(b"isom\0\0\x02\0isom"));
    let moov_len = moov(like, 0).len();
    if like.moov_first {
        out.extend(moov(like, (out.len() + moov_len + 8) as u64));
    }
    write(&mut out, b"mdat", |out| (0..like.samples).for_each(|n| out.extend(sample(n))));
    if !like.moov_first {
        let start = (out.len() - (0..like.samples).map(|n| sample(n).len()).sum::<usize>()) as u64;
        out.extend(moov(like, start));
    }
    out
}
