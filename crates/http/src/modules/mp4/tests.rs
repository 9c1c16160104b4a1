use forebay_testkit::tempdir::TempDir;

use super::{boxes::*, file::Part, fixture::*, moov::Moov, *};
use crate::testing;

/// What stands in an atom that is nested like that.
fn find<'b>(bytes: &'b [u8], path: &[&Name]) -> Option<&'b [u8]> {
    let mut within = 0..bytes.len();
    for wanted in path {
        let mut atoms = Atoms(within);
        within = loop {
            let (name, at) = atoms.next(bytes).unwrap()?;
            if name == **wanted {
                break at;
            }
        };
    }
    Some(&bytes[within])
}

fn table<'b>(bytes: &'b [u8], name: &Name) -> Option<&'b [u8]> {
    find(bytes, &[b"moov", b"trak", b"mdia", b"minf", b"stbl", name])
}

/// The samples that a player finds in a file: by chunk, and in them one after the other.
fn samples(bytes: &[u8]) -> Vec<Vec<u8>> {
    let stsz = table(bytes, b"stsz").unwrap();
    let stsc = table(bytes, b"stsc").unwrap();
    let long = table(bytes, b"co64");
    let offsets = long.or(table(bytes, b"stco")).unwrap();
    let (mut out, mut n) = (Vec::new(), 0);
    for chunk in 0..get32(offsets, 4) as usize {
        let mut at = match long {
            Some(_) => get64(offsets, 8 + chunk * 8) as usize,
            None => get32(offsets, 8 + chunk * 4) as usize,
        };
        let mut runs = (0..get32(stsc, 4) as usize).map(|run| 8 + run * 12);
        let run = runs.rfind(|run| get32(stsc, *run) as usize <= chunk + 1).unwrap();
        for _ in 0..get32(stsc, run + 4) {
            if n == get32(stsz, 8) as usize {
                break;
            }
            let len = get32(stsz, 12 + n * 4) as usize;
            out.push(bytes[at..at + len].to_vec());
            at += len;
            n += 1;
        }
    }
    assert_eq!(n, get32(stsz, 8) as usize, "all samples are in chunks");
    out
}

fn sum_of_counts(bytes: &[u8], name: &Name) -> u32 {
    table(bytes, name)
        .map_or(0, |table| (0..get32(table, 4) as usize).map(|n| get32(table, 8 + n * 8)).sum())
}

/// What is answered to a request for such a file.
fn answer(conf: &str, bytes: &[u8], args: &str) -> (u16, Vec<u8>) {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("v.mp4"), bytes).unwrap();
    let conf = format!("root {}; location / {{ mp4; {conf} }}", dir.path().display());
    let head = format!("GET /v.mp4?{args} HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut r = testing::request(&conf, &head);
    testing::answer_waiting(&mut r);
    let length = r.response.content_length;
    let body = testing::drain(&mut r.response.body).unwrap();
    assert_eq!(length, Some(body.len() as u64));
    (r.response.status, body)
}

#[test]
fn a_part_has_the_samples_that_were_asked_for() {
    let likes = [
        PLAIN,
        Like { moov_first: false, ..PLAIN },
        Like { long_offsets: true, ..PLAIN },
        Like { version: 1, ..PLAIN },
        Like { runs: &[(2, 3), (1, 1), (2, 7), (100, 5)], ..PLAIN },
        Like { runs: &[(100, 1)], samples: 7, ..PLAIN },
        Like { runs: &[(1, 40)], ..PLAIN },
    ];
    for (which, like) in likes.iter().enumerate() {
        let bytes = video(like);
        assert_eq!(samples(&bytes).len(), like.samples as usize);
        let all = like.samples;
        for start in (0..all).step_by(3) {
            for end in (start + 1..=all + 1).step_by(2).chain([0]) {
                if start == 0 && end == 0 {
                    continue;
                }
                let ms = |n: u32| format!("{}.{}", n / 10, n % 10);
                let args = match end {
                    0 => format!("start={}", ms(start)),
                    end => format!("start={}&end={}", ms(start), ms(end)),
                };
                let (status, cut) = answer("", &bytes, &args);
                assert_eq!(status, 200, "{which} {args}");
                let last = if end == 0 { all } else { end.min(all) };
                let want: Vec<Vec<u8>> = (start..last).map(sample).collect();
                assert_eq!(samples(&cut), want, "{which} {args}");
                assert_eq!(sum_of_counts(&cut, b"stts"), last - start, "{which} {args}");
                assert_eq!(sum_of_counts(&cut, b"ctts"), last - start, "{which} {args}");
                let duration = get32(find(&cut, &[b"moov", b"mvhd"]).unwrap(), 16);
                if like.version == 0 {
                    assert_eq!(duration, (last - start) * 100, "{which} {args}");
                }
                assert_eq!(find(&cut, &[b"ftyp"]), find(&bytes, &[b"ftyp"]));
                assert_eq!(find(&cut, &[b"moov", b"udta"]), None);
            }
        }
    }
}

#[test]
fn a_part_may_begin_with_the_key_frame_before_it() {
    let bytes = video(&PLAIN);
    for (start, first) in [("0.9", 8), ("1.5", 8), ("1.6", 16), ("3.9", 32), ("0.3", 0)] {
        let args = format!("start={start}&end=3.99");
        let (status, cut) = answer("mp4_start_key_frame on;", &bytes, &args);
        assert_eq!(status, 200);
        let want: Vec<Vec<u8>> = (first..39).map(sample).collect();
        assert_eq!(samples(&cut), want, "{start}");
        let edit = find(&cut, &[b"moov", b"trak", b"edts", b"elst"]);
        let exact = start == "1.6";
        assert_eq!(edit.is_none(), exact, "{start}");
        let stss = table(&cut, b"stss").unwrap();
        assert_eq!(get32(stss, 8), 1, "it is a key frame");
    }
}

#[test]
fn the_whole_is_sent_where_nothing_else_is_asked_for() {
    let bytes = video(&PLAIN);
    for args in ["", "start=", "start=x", "start=-1", "start=1.2.3", "end=0", "end=x", "start=0"] {
        assert_eq!(answer("", &bytes, args), (200, bytes.clone()), "{args}");
    }
    // What begins at the beginning is put into the order that players want.
    let last = video(&Like { moov_first: false, ..PLAIN });
    let (_, cut) = answer("", &last, "start=0");
    assert_eq!(samples(&cut).len(), 40);
    assert_ne!(cut, last);
}

#[test]
fn broken_files_are_refused() {
    let good = video(&PLAIN);
    let moov_at = 24;
    let with = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        bad
    };
    let huge = [good.clone(), vec![0xff, 0xff, 0xff, 0xff, b'f', b'r', b'e', b'e']].concat();
    for (what, bad) in [
        ("empty", vec![]),
        ("short", b"\0\0".to_vec()),
        ("cut", good[..good.len() - 1].to_vec()),
        ("cut in moov", good[..300].to_vec()),
        ("an atom of 7 bytes", with(0, &[0, 0, 0, 7])),
        ("an atom of 64 bits, too small", with(0, &[0, 0, 0, 1])),
        ("an atom too large", huge),
        ("no moov", with(moov_at + 4, b"free")),
        ("compressed", with(moov_at + 12, b"cmov")),
        ("twice", [&good[..], &moov(&PLAIN, 0)].concat()),
        ("text", b"this is no video at all".to_vec()),
    ] {
        assert_eq!(answer("", &bad, "start=1").0, 500, "{what}");
        assert_ne!(answer("", &bad, "").0, 500, "{what}: as it is");
    }
    assert_eq!(answer("", &good, "start=4.1").0, 500, "behind the end");
    let small = "mp4_buffer_size 100; mp4_max_buffer_size 200;";
    assert_eq!(answer(small, &good, "start=1").0, 500, "moov is too large");
    assert_eq!(answer("mp4_max_buffer_size 200;", &good, "start=1").0, 200);
}

#[test]
fn chunks_outside_the_file_are_refused() {
    let mut bad = video(&PLAIN);
    let stco = table(&bad, b"stco").unwrap();
    let last = stco.as_ptr() as usize - bad.as_ptr() as usize + stco.len() - 4;
    set32(&mut bad, last, 0x7fff_ffff);
    assert_eq!(answer("", &bad, "start=1&end=3.95").0, 500);
    assert_eq!(answer("", &bad, "start=1&end=2").0, 200);
}

#[test]
fn any_moov_is_read_to_its_end() {
    let likes = [PLAIN, Like { long_offsets: true, version: 1, ..PLAIN }];
    let moovs = likes.map(|like| moov(&like, 1000)[8..].to_vec());
    let mut state = 5u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    let edges = [0u32, 1, 2, 7, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xffff_fff0];
    let mut read = 0;
    for round in 0..40_000 {
        let mut bytes = moovs[round % 2].clone();
        for _ in 0..next() % 3 + 1 {
            let at = next() % (bytes.len() / 4) * 4;
            match next() % 4 {
                0 => set32(&mut bytes, at, edges[next() % edges.len()]),
                1 => bytes[at + next() % 4] ^= 1 << (next() % 8),
                2 => set32(&mut bytes, at, next() as u32 % 64),
                _ => bytes.truncate(at.max(8)),
            }
            if bytes.len() < 8 {
                break;
            }
        }
        let part = Part {
            start_ms: (next() % 5000) as u64,
            length_ms: (next() % 3 * 700) as u64,
            start_key_frame: next() % 2 == 0,
            max_moov: 1 << 20,
        };
        let len = bytes.len();
        if let Ok(mut moov) = Moov::parse(bytes, &part)
            && moov.crop(&part, 2000, 3000).is_ok()
        {
            let mut out = Vec::new();
            let offsets = moov.write(&mut out);
            offsets.shift(&mut out, 1500);
            assert!(out.len() <= len + 200);
            read += 1;
        }
    }
    assert!(read > 1000, "most are near enough to be read: {read}");
}

#[test]
fn times_have_three_digits_behind_the_point() {
    for (text, want) in [
        ("1", Some(1000)),
        ("1.5", Some(1500)),
        ("1.2345678901234567890123", Some(1234)),
        (".5", Some(500)),
        (".", Some(0)),
        ("0", Some(0)),
        ("", None),
        ("-1", None),
        ("1e3", None),
        ("1..2", None),
        ("99999999999999999999", None),
        ("9223372036854775", Some(9_223_372_036_854_775_000)),
        ("9223372036854776", None),
    ] {
        assert_eq!(milliseconds(text.as_bytes()), want, "{text}");
    }
    assert_eq!(part_of(b"start=1&end=3"), Some((1000, 2000)));
    assert_eq!(part_of(b"end=3"), Some((0, 3000)));
    assert_eq!(part_of(b"start=3&end=1"), Some((3000, 0)));
    assert_eq!(part_of(b"end=0"), None);
}

#[test]
fn tracks_are_bounded() {
    for (traks, want) in [(1024, None), (1025, Some(Broken::TooManyTraks))] {
        let part = Part { start_ms: 1, length_ms: 0, start_key_frame: false, max_moov: 1 << 20 };
        let moov = [0, 0, 0, 8, b't', b'r', b'a', b'k'].repeat(traks);
        assert_eq!(Moov::parse(moov, &part).err(), want, "{traks}");
    }
}
