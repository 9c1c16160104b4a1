//! Chunked bodies, decoded in place: RFC 9112 §7.1. Answers ngx_http_parse_chunked.
//! Hot path: the decoder holds a few words and says where in the input the data lies.
//!
//! A line ends with CRLF and nothing less (nginx since 1.29.4); a size is hexadecimal digits and
//! nothing more. Trailers are checked as headers are, and kept apart (RFC 9110 §6.5.1).
//!
//! DIFFERS(chunk-extension-strict): white space after the size must lead to `;` or the line's end,
//! and an extension has no control bytes; nginx skips anything up to the CR.
//! DIFFERS(chunk-overhead-bound): extensions and trailers have bounds for the whole body; nginx
//! reads them for ever.
//!
//! *Invariant:* no byte of a chunk's frame or of a trailer is ever passed on as data.

use std::ops::Range;

use crate::Reject;
use crate::class::{TOKEN, hex_value};

/// Bytes of chunk extensions, and of zeros before sizes, that a body may have in total.
pub const MAX_EXTENSIONS: u32 = 16 * 1024;

/// Bytes that a trailer section may have: as much as nginx's default header buffers.
pub const MAX_TRAILERS: u32 = 32 * 1024;

/// A size of more digits than this, zeros before it included, counts as extension.
const SIZE_DIGITS: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
enum State {
    /// Before a size's first digit.
    #[default]
    SizeStart,
    Size {
        digits: u32,
    },
    /// White space after a size (RFC 9112 §7.1.1, BWS).
    SizeSpace,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the first byte of a trailer line, or of the end.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

/// What one call of [`Decoder::decode`] came to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Step {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// Where in the input the body's next bytes are; may be empty.
    pub data: Range<usize>,
    /// Where in the input lines of the trailer section are, the empty one that ends it included.
    pub trailers: Range<usize>,
    /// The body is complete; what follows `consumed` is the next message.
    pub done: bool,
}

/// A decoder between two reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Decoder {
    state: State,
    /// Bytes left of the chunk.
    left: u64,
    /// Bytes of the chunk.
    size: u64,
    extensions: u32,
    trailers: u32,
}

impl Decoder {
    /// A decoder before the first chunk.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// How long the last chunk is of which the size is known, and how much of it is still to come.
    pub fn chunk(&self) -> (u64, u64) {
        (self.size, if self.state == State::Data { self.left } else { 0 })
    }

    /// Reads on, up to and with the next run of data. Call it again with what follows `consumed`
    /// until the input is used up or the body is done.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, Reject> {
        let mut step = Step::default();
        while let Some(&ch) = input.get(step.consumed) {
            if self.state == State::Done {
                break;
            }
            if self.state != State::Data {
                let of_trailers = self.state >= State::TrailerStart;
                self.state = match self.frame(ch) {
                    Ok(state) => state,
                    // What came before the fault is data; the next call tells.
                    Err(_) if !step.data.is_empty() => break,
                    Err(reject) => return Err(reject),
                };
                if of_trailers {
                    if step.trailers.is_empty() {
                        step.trailers.start = step.consumed;
                    }
                    step.trailers.end = step.consumed + 1;
                }
                step.consumed += 1;
                continue;
            }
            if !step.data.is_empty() {
                break;
            }
            let here = input.len() - step.consumed;
            let len = usize::try_from(self.left).map_or(here, |left| left.min(here));
            step.data = step.consumed..step.consumed + len;
            step.consumed += len;
            self.left -= len as u64;
            if self.left == 0 {
                self.state = State::DataCr;
            }
        }
        step.done = self.is_done();
        Ok(step)
    }

    /// One byte outside of the data.
    fn frame(&mut self, ch: u8) -> Result<State, Reject> {
        match (self.state, ch) {
            (State::SizeStart, _) => self.digit(ch, 1),
            (State::Size { digits }, ch) if ch.is_ascii_hexdigit() => self.digit(ch, digits + 1),
            (State::Size { .. } | State::SizeSpace, b';') => self.extension(State::Extension),
            (State::Size { .. } | State::SizeSpace, b' ' | b'\t') => {
                self.extension(State::SizeSpace)
            }
            (State::Size { .. } | State::SizeSpace | State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Extension, ch) if ch == b'\t' || (ch >= 0x20 && ch != 0x7f) => {
                self.extension(State::Extension)
            }
            (State::SizeLf, b'\n') if self.left == 0 => Ok(State::TrailerStart),
            (State::SizeLf, b'\n') => {
                self.size = self.left;
                Ok(State::Data)
            }
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::SizeStart),
            _ => self.trailer(ch),
        }
    }

    fn digit(&mut self, ch: u8, digits: u32) -> Result<State, Reject> {
        let digit = hex_value(ch).ok_or(Reject::InvalidChunked)?;
        // Sizes are file offsets elsewhere: below 2^63, as in nginx (NGX_MAX_OFF_T_VALUE / 16).
        if self.left > i64::MAX as u64 / 16 {
            return Err(Reject::InvalidChunked);
        }
        self.left = self.left << 4 | u64::from(digit);
        if digits > SIZE_DIGITS {
            // Only zeros before it can make a size this long.
            return self.extension(State::Size { digits: SIZE_DIGITS });
        }
        Ok(State::Size { digits })
    }

    fn extension(&mut self, next: State) -> Result<State, Reject> {
        if self.extensions == MAX_EXTENSIONS {
            return Err(Reject::InvalidChunked);
        }
        self.extensions += 1;
        Ok(next)
    }

    fn trailer(&mut self, ch: u8) -> Result<State, Reject> {
        if self.trailers == MAX_TRAILERS {
            return Err(Reject::InvalidChunked);
        }
        self.trailers += 1;
        match (self.state, ch) {
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::EndLf, b'\n') => Ok(State::Done),
            (State::TrailerStart | State::TrailerName, ch) if TOKEN[usize::from(ch)] => {
                Ok(State::TrailerName)
            }
            (State::TrailerName, b':') => Ok(State::TrailerValue),
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, ch) if ch != b'\n' && ch != 0 => Ok(State::TrailerValue),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            _ => Err(Reject::InvalidChunked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole body and what was left over; `None` if it is not complete.
    fn decode(pieces: &[&[u8]]) -> Result<Option<(Vec<u8>, usize)>, Reject> {
        let (mut decoder, mut body) = (Decoder::new(), Vec::new());
        for (index, piece) in pieces.iter().enumerate() {
            let mut rest = *piece;
            while !rest.is_empty() {
                let step = decoder.decode(rest)?;
                assert!(step.consumed > 0 && step.data.end <= step.consumed);
                body.extend_from_slice(&rest[step.data.clone()]);
                rest = &rest[step.consumed..];
                if step.done {
                    let after: usize = pieces[index + 1..].iter().map(|piece| piece.len()).sum();
                    return Ok(Some((body, rest.len() + after)));
                }
            }
        }
        Ok(None)
    }

    /// The body and how much was left over; `None` for a body that goes on.
    type Want = Result<Option<(&'static [u8], usize)>, Reject>;

    const BODIES: &[(&[u8], Want)] = {
        const BAD: Want = Err(Reject::InvalidChunked);
        &[
            (b"0\r\n\r\n", Ok(Some((b"", 0)))),
            (b"0\r\n\r\nGET", Ok(Some((b"", 3)))),
            (b"5\r\nhello\r\n0\r\n\r\n", Ok(Some((b"hello", 0)))),
            (b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", Ok(Some((b"abc0123456789", 0)))),
            (b"00005\r\nhello\r\n000\r\n\r\n", Ok(Some((b"hello", 0)))),
            (b"1;a=b;c=\"d e\"\r\nx\r\n0;z\r\n\r\n", Ok(Some((b"x", 0)))),
            (b"1 \t;a\r\nx\r\n0 \r\n\r\n", Ok(Some((b"x", 0)))),
            (b"0\r\nA: b\r\nC:\r\n\r\n", Ok(Some((b"", 0)))),
            (b"5\r\nhel", Ok(None)),
            (b"5\r\nhello\r\n", Ok(None)),
            (b"0\r\n", Ok(None)),
            // RFC 9112 §2.2 allows a bare LF in start-line and fields only.
            (b"0\n\r\n", BAD),
            (b"5\r\nhello\n0\r\n\r\n", BAD),
            (b"5;a\nhello\r\n0\r\n\r\n", BAD),
            (b"0\r\n\n", BAD),
            (b"0\r\nA: b\n\r\n", BAD),
            (b"0\r\nA: b\rc\r\n\r\n", BAD),
            (b"5\rhello", BAD),
            (b"5\r\rhello", BAD),
            // Sizes are 1*HEXDIG.
            (b"\r\n0\r\n\r\n", BAD),
            (b" 5\r\nhello", BAD),
            (b"+5\r\nhello", BAD),
            (b"-5\r\nhello", BAD),
            (b"0x5\r\nhello", BAD),
            (b"5_0\r\n", BAD),
            (b"5 5\r\nhello", BAD),
            (b"g\r\n", BAD),
            (b";a\r\n", BAD),
            (b"8000000000000000\r\n", BAD),
            (b"10000000000000000\r\n", BAD),
            (b"ffffffffffffffff\r\n", BAD),
            (b"7fffffffffffffff\r\nx", Ok(None)),
            // Data is as long as its size says.
            (b"4\r\nhello\r\n0\r\n\r\n", BAD),
            (b"6\r\nhello\r\n0\r\n\r\n", BAD),
            // Extensions and trailers are text.
            (b"1;\0\r\nx", BAD),
            (b"1;a\x7f\r\nx", BAD),
            (b"0\r\n: b\r\n\r\n", BAD),
            (b"0\r\nA b\r\n\r\n", BAD),
            (b"0\r\nA : b\r\n\r\n", BAD),
            (b"0\r\nA\r\n\r\n", BAD),
            (b"0\r\nA: b\r\n c\r\n\r\n", BAD),
            (b"0\r\nA: \0\r\n\r\n", BAD),
        ]
    };

    #[test]
    fn bodies_are_decoded_strictly() {
        for (input, want) in BODIES {
            let want = want.map(|got| got.map(|(body, left)| (body.to_vec(), left)));
            assert_eq!(decode(&[input]), want, "{}", input.escape_ascii());
        }
    }

    #[test]
    fn a_split_at_any_byte_changes_nothing() {
        for (input, _) in BODIES {
            let whole = decode(&[input]);
            for at in 0..=input.len() {
                let (first, second) = input.split_at(at);
                assert_eq!(decode(&[first, second]), whole, "{} at {at}", input.escape_ascii());
            }
            let bytes: Vec<&[u8]> = input.chunks(1).collect();
            assert_eq!(decode(&bytes), whole, "{}", input.escape_ascii());
        }
    }

    #[test]
    fn trailers_are_told_apart_from_data() {
        let input = b"1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\nnext";
        for split in 0..input.len() {
            let (mut decoder, mut trailers) = (Decoder::new(), Vec::new());
            for piece in [&input[..split], &input[split..]] {
                let mut rest = piece;
                while !rest.is_empty() && !decoder.is_done() {
                    let step = decoder.decode(rest).unwrap();
                    trailers.extend_from_slice(&rest[step.trailers]);
                    rest = &rest[step.consumed..];
                }
            }
            assert_eq!(trailers, b"A: b\r\nC: d\r\n\r\n", "{split}");
        }
    }

    #[test]
    fn extensions_are_bounded_over_the_whole_body() {
        let chunk = b"1;aaaaaaaa\r\nx\r\n";
        let fits = MAX_EXTENSIONS as usize / 9;
        let body = |chunks: usize| [chunk.repeat(chunks), b"0\r\n\r\n".to_vec()].concat();
        assert_eq!(decode(&[&body(fits)]), Ok(Some((vec![b'x'; fits], 0))));
        assert_eq!(decode(&[&body(fits + 1)]), Err(Reject::InvalidChunked));
        let zeros = vec![b'0'; MAX_EXTENSIONS as usize + SIZE_DIGITS as usize];
        assert_eq!(decode(&[&zeros]), Ok(None));
        assert_eq!(decode(&[&zeros, b"0"]), Err(Reject::InvalidChunked));
    }

    #[test]
    fn trailers_are_bounded() {
        let trailers = vec![b'a'; MAX_TRAILERS as usize];
        assert_eq!(decode(&[b"0\r\n", &trailers]), Ok(None));
        assert_eq!(decode(&[b"0\r\n", &trailers, b"a"]), Err(Reject::InvalidChunked));
    }
}
