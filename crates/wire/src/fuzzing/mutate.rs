//! Inputs made from seeds by small changes, the same on every machine: what `cargo test` has in place
//! of a fuzzer.
//!
//! Invariant: no clock and no other source of chance.

/// xorshift64*: the same inputs on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 32) as usize % bound.max(1)
    }
}

/// Bytes that parsers have opinions about.
const PIECES: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"/",
    b"//",
    b"/../",
    b"/..",
    b"/.",
    b"?",
    b"#",
    b"%",
    b"%00",
    b"%2e",
    b"%2F",
    b"%zz",
    b"+",
    b"-",
    b",",
    b";",
    b"=",
    b"0",
    b"1",
    b"9",
    b"ffffffffffffffff",
    b"9223372036854775807",
    b"18446744073709551616",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"HTTP/1.1",
    b"chunked",
    b"gzip;q=0.001",
    b"Host: a\r\n",
    b"\r\n\r\n",
    b"q=1",
];

fn mutate(seed: &[u8], pieces: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut data = seed.to_vec();
    for _ in 0..random.below(4) {
        let at = random.below(data.len() + 1);
        match random.below(6) {
            0 if at < data.len() => data[at] = random.next() as u8,
            1 if at < data.len() => data[at] ^= 1 << random.below(8),
            2 => data.truncate(at),
            3 => {
                let end = (at + random.below(8)).min(data.len());
                data.drain(at..end);
            }
            4 => {
                let end = (at + random.below(64)).min(data.len());
                let copy = data[at..end].to_vec();
                data.splice(at..at, copy);
            }
            _ => {
                let at_piece = random.below(PIECES.len() + pieces.len());
                let piece =
                    PIECES.get(at_piece).unwrap_or_else(|| &pieces[at_piece - PIECES.len()]);
                data.splice(at..at, piece.iter().copied());
            }
        }
    }
    data
}

/// Gives a target the seeds, every beginning of them, and as many mutations of them as `rounds` says.
/// `pieces`: what else than [`PIECES`] is put in.
pub fn run(target: fn(&[u8]), seeds: &[&[u8]], pieces: &[&[u8]], rounds: usize) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in seeds {
        target(seed);
        for len in 0..seed.len() {
            target(&seed[..len]);
        }
    }
    for _ in 0..rounds {
        let seed = seeds[random.below(seeds.len())];
        target(&mutate(seed, pieces, &mut random));
    }
}
