//! The Huffman code of HPACK (RFC 7541 §5.2 and appendix B).
//!
//! Hot path: decodes four bits a step by a table that the compiler works out; encodes by shifting.

/// The code of each byte, and its length in bits: they are all that is written down, the rest follows.
#[rustfmt::skip]
const CODES: [u32; 256] = [
    0x1ff8, 0x7fffd8, 0xfffffe2, 0xfffffe3, 0xfffffe4, 0xfffffe5, 0xfffffe6, 0xfffffe7,
    0xfffffe8, 0xffffea, 0x3ffffffc, 0xfffffe9, 0xfffffea, 0x3ffffffd, 0xfffffeb, 0xfffffec,
    0xfffffed, 0xfffffee, 0xfffffef, 0xffffff0, 0xffffff1, 0xffffff2, 0x3ffffffe, 0xffffff3,
    0xffffff4, 0xffffff5, 0xffffff6, 0xffffff7, 0xffffff8, 0xffffff9, 0xffffffa, 0xffffffb,
    0x14, 0x3f8, 0x3f9, 0xffa, 0x1ff9, 0x15, 0xf8, 0x7fa, 0x3fa, 0x3fb, 0xf9, 0x7fb, 0xfa, 0x16,
    0x17, 0x18, 0x0, 0x1, 0x2, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x5c, 0xfb, 0x7ffc,
    0x20, 0xffb, 0x3fc, 0x1ffa, 0x21, 0x5d, 0x5e, 0x5f, 0x60, 0x61, 0x62, 0x63, 0x64, 0x65,
    0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x6f, 0x70, 0x71, 0x72, 0xfc, 0x73,
    0xfd, 0x1ffb, 0x7fff0, 0x1ffc, 0x3ffc, 0x22, 0x7ffd, 0x3, 0x23, 0x4, 0x24, 0x5, 0x25, 0x26,
    0x27, 0x6, 0x74, 0x75, 0x28, 0x29, 0x2a, 0x7, 0x2b, 0x76, 0x2c, 0x8, 0x9, 0x2d, 0x77, 0x78,
    0x79, 0x7a, 0x7b, 0x7ffe, 0x7fc, 0x3ffd, 0x1ffd, 0xffffffc, 0xfffe6, 0x3fffd2, 0xfffe7,
    0xfffe8, 0x3fffd3, 0x3fffd4, 0x3fffd5, 0x7fffd9, 0x3fffd6, 0x7fffda, 0x7fffdb, 0x7fffdc,
    0x7fffdd, 0x7fffde, 0xffffeb, 0x7fffdf, 0xffffec, 0xffffed, 0x3fffd7, 0x7fffe0, 0xffffee,
    0x7fffe1, 0x7fffe2, 0x7fffe3, 0x7fffe4, 0x1fffdc, 0x3fffd8, 0x7fffe5, 0x3fffd9, 0x7fffe6,
    0x7fffe7, 0xffffef, 0x3fffda, 0x1fffdd, 0xfffe9, 0x3fffdb, 0x3fffdc, 0x7fffe8, 0x7fffe9,
    0x1fffde, 0x7fffea, 0x3fffdd, 0x3fffde, 0xfffff0, 0x1fffdf, 0x3fffdf, 0x7fffeb, 0x7fffec,
    0x1fffe0, 0x1fffe1, 0x3fffe0, 0x1fffe2, 0x7fffed, 0x3fffe1, 0x7fffee, 0x7fffef, 0xfffea,
    0x3fffe2, 0x3fffe3, 0x3fffe4, 0x7ffff0, 0x3fffe5, 0x3fffe6, 0x7ffff1, 0x3ffffe0, 0x3ffffe1,
    0xfffeb, 0x7fff1, 0x3fffe7, 0x7ffff2, 0x3fffe8, 0x1ffffec, 0x3ffffe2, 0x3ffffe3, 0x3ffffe4,
    0x7ffffde, 0x7ffffdf, 0x3ffffe5, 0xfffff1, 0x1ffffed, 0x7fff2, 0x1fffe3, 0x3ffffe6,
    0x7ffffe0, 0x7ffffe1, 0x3ffffe7, 0x7ffffe2, 0xfffff2, 0x1fffe4, 0x1fffe5, 0x3ffffe8,
    0x3ffffe9, 0xffffffd, 0x7ffffe3, 0x7ffffe4, 0x7ffffe5, 0xfffec, 0xfffff3, 0xfffed, 0x1fffe6,
    0x3fffe9, 0x1fffe7, 0x1fffe8, 0x7ffff3, 0x3fffea, 0x3fffeb, 0x1ffffee, 0x1ffffef, 0xfffff4,
    0xfffff5, 0x3ffffea, 0x7ffff4, 0x3ffffeb, 0x7ffffe6, 0x3ffffec, 0x3ffffed, 0x7ffffe7,
    0x7ffffe8, 0x7ffffe9, 0x7ffffea, 0x7ffffeb, 0xffffffe, 0x7ffffec, 0x7ffffed, 0x7ffffee,
    0x7ffffef, 0x7fffff0, 0x3ffffee,
];
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30,
    28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5,
    7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22,
    22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23,
    22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22,
    21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26,
    26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20,
    24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27,
    27, 28, 27, 27, 27, 27, 27, 26,
];
/// The end of a string is never written: its first bits are the padding.
const EOS: u32 = 0x3fff_ffff;
const EOS_LENGTH: u8 = 30;

/// A string that is not one: it holds the end symbol, or is padded with something else than a part of
/// it, or with a whole byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// Where four more bits lead from a node of the tree.
#[derive(Clone, Copy)]
struct Step {
    next: u8,
    /// The byte that they complete, if they do.
    byte: u8,
    flags: u8,
}

const COMPLETES: u8 = 1;
/// The string may end there: what has come of the next code is padding.
const MAY_END: u8 = 2;
const FAILS: u8 = 4;

const LEAF: u16 = 0x8000;
/// The code of the end of the string, as a leaf.
const END: u16 = LEAF | 256;

/// The tree: 256 nodes, for each bit the next node or a leaf.
const fn tree() -> [[u16; 2]; 256] {
    let mut nodes = [[0u16; 2]; 256];
    let mut used = 1;
    let mut symbol = 0;
    while symbol <= 256 {
        let (code, len, leaf) = if symbol == 256 {
            (EOS, EOS_LENGTH, END)
        } else {
            (CODES[symbol], LENGTHS[symbol], LEAF | symbol as u16)
        };
        let mut node = 0;
        let mut bit = len;
        while bit > 1 {
            bit -= 1;
            let side = (code >> bit & 1) as usize;
            if nodes[node][side] == 0 {
                nodes[node][side] = used;
                used += 1;
            }
            node = nodes[node][side] as usize;
        }
        nodes[node][(code & 1) as usize] = leaf;
        symbol += 1;
    }
    nodes
}

const fn steps() -> [[Step; 16]; 256] {
    let nodes = tree();
    let mut may_end = [false; 256];
    let (mut node, mut depth) = (0, 0);
    // The root, and up to seven bits of the end symbol.
    while depth <= 7 {
        may_end[node] = true;
        node = nodes[node][1] as usize;
        depth += 1;
    }
    let mut steps = [[Step { next: 0, byte: 0, flags: 0 }; 16]; 256];
    let mut from = 0;
    while from < 256 {
        let mut bits = 0;
        while bits < 16 {
            let mut step = Step { next: 0, byte: 0, flags: 0 };
            let mut at = from;
            let mut bit = 4;
            while bit > 0 {
                bit -= 1;
                let to = nodes[at][bits >> bit & 1];
                if to == END {
                    step.flags |= FAILS;
                    at = 0;
                } else if to & LEAF != 0 {
                    step.flags |= COMPLETES;
                    step.byte = (to & 0xff) as u8;
                    at = 0;
                } else {
                    at = to as usize;
                }
            }
            step.next = at as u8;
            if may_end[at] {
                step.flags |= MAY_END;
            }
            steps[from][bits] = step;
            bits += 1;
        }
        from += 1;
    }
    steps
}

static STEPS: [[Step; 16]; 256] = steps();

/// Appends the bytes that a string stands for: at most 8/5 of its own.
pub fn decode(text: &[u8], out: &mut Vec<u8>) -> Result<(), Invalid> {
    out.reserve(text.len() * 8 / 5);
    let mut node = 0;
    let mut flags = MAY_END;
    for byte in text {
        for bits in [byte >> 4, byte & 15] {
            let step = STEPS[usize::from(node)][usize::from(bits)];
            flags = step.flags;
            if flags & COMPLETES != 0 {
                out.push(step.byte);
            }
            if flags & FAILS != 0 {
                return Err(Invalid);
            }
            node = step.next;
        }
    }
    if flags & MAY_END == 0 { Err(Invalid) } else { Ok(()) }
}

/// How many bytes the code of a text takes.
pub fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|byte| usize::from(LENGTHS[usize::from(*byte)])).sum();
    bits.div_ceil(8)
}

/// Appends the code of a text, padded.
pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut count) = (0u64, 0u32);
    for byte in text {
        let len = u32::from(LENGTHS[usize::from(*byte)]);
        bits = bits << len | u64::from(CODES[usize::from(*byte)]);
        count += len;
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        let padding = 8 - count;
        out.push((bits << padding) as u8 | (0xff >> count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &[u8]) -> Result<Vec<u8>, Invalid> {
        let mut out = Vec::new();
        decode(text, &mut out)?;
        Ok(out)
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let mut code = Vec::new();
        encode(&all, &mut code);
        assert_eq!(code.len(), encoded_len(&all));
        assert_eq!(decoded(&code), Ok(all));
        for byte in 0..=255 {
            let mut code = Vec::new();
            encode(&[byte, byte], &mut code);
            assert_eq!(decoded(&code), Ok(vec![byte, byte]));
        }
    }

    #[test]
    fn examples_of_the_rfc() {
        // RFC 7541 C.4.1, C.4.3.
        for (text, code) in [
            ("www.example.com", &b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..]),
            ("custom-value", b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf"),
            ("", b""),
        ] {
            let mut out = Vec::new();
            encode(text.as_bytes(), &mut out);
            assert_eq!(out, code);
            assert_eq!(decoded(code), Ok(text.into()));
        }
    }

    #[test]
    fn padding_is_the_beginning_of_the_end_symbol_and_shorter_than_a_byte() {
        // "a" is 00011.
        assert_eq!(decoded(b"\x1f"), Ok(b"a".to_vec()));
        for wrong in [&b"\x1e"[..], b"\x18", b"\x1f\xff", b"\xff", b"\xff\xff\xff\xff"] {
            assert_eq!(decoded(wrong), Err(Invalid), "{wrong:x?}");
        }
    }
}
