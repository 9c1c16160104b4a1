//! The compressor: its state is kept by the thread, and it never works for long at a time.
//!
//! Invariant: no response is looked at here, only bytes.

use std::cell::RefCell;

use flate2::{Compress, Compression, FlushCompress, Status};

use crate::{
    body::Fault,
    coding::{Coder, Finish, Progress},
};

/// How to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `gzip_comp_level`, 1 to 9.
    pub level: u32,
    /// The binary logarithm of `gzip_window`, 9 to 15.
    pub window_bits: u8,
}

/// How many idle compressors a thread keeps, of some 300 kB each.
const IDLE: usize = 16;

thread_local! {
    static POOL: RefCell<Vec<(Settings, Compress)>> = const { RefCell::new(Vec::new()) };
}

/// A compressor out of the thread's pool.
pub struct Encoder {
    settings: Settings,
    state: Option<Compress>,
}

impl Encoder {
    /// One that is idle, or a new one.
    pub fn new(settings: Settings) -> Encoder {
        let pooled = POOL.with_borrow_mut(|pool| {
            let at = pool.iter().rposition(|(known, _)| *known == settings)?;
            Some(pool.swap_remove(at).1)
        });
        let state = match pooled {
            Some(mut state) => {
                state.reset();
                state
            }
            None => {
                // What zlib-rs does at 1 leaves the result a third larger than zlib's level 1; its
                // level 2 is smaller than that and takes half of zlib's time.
                let level = Compression::new(settings.level.max(2));
                Compress::new_gzip(level, settings.window_bits)
            }
        };
        Encoder { settings, state: Some(state) }
    }

    fn state(&mut self) -> &mut Compress {
        self.state.as_mut().expect("taken on drop only")
    }

    /// Compresses some of the input to the end of `out`, which grows as needed; how much of the input,
    /// and whether all that was asked for is done.
    fn compress(
        &mut self,
        input: &[u8],
        flush: FlushCompress,
        out: &mut Vec<u8>,
    ) -> Result<(usize, bool), Fault> {
        let state = self.state();
        let mut used = 0;
        loop {
            if out.capacity() - out.len() < 64 {
                out.reserve(out.len().max(4096));
            }
            let before = state.total_in();
            let status = state.compress_vec(&input[used..], out, flush);
            used += (state.total_in() - before) as usize;
            match status.map_err(|_| Fault::Filter)? {
                Status::StreamEnd => return Ok((used, true)),
                // Room was left: there is no more to write.
                _ if out.len() < out.capacity() && used == input.len() => {
                    return Ok((used, !matches!(flush, FlushCompress::Finish)));
                }
                _ => {}
            }
        }
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        // The thread may be ending; then the pool is gone already.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < IDLE {
                pool.push((self.settings, state));
            }
        });
    }
}

impl Coder for Encoder {
    fn run(&mut self, input: &[u8], finish: Finish, out: &mut Vec<u8>) -> Result<Progress, Fault> {
        let flush = match finish {
            Finish::No => FlushCompress::None,
            Finish::Flush => FlushCompress::Sync,
            Finish::End => FlushCompress::Finish,
        };
        let (used, done) = self.compress(input, flush, out)?;
        Ok(Progress { used, done })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        io::Read as _,
        task::{Context, Poll, Waker},
    };

    use bytes::Bytes;

    use super::*;
    use crate::{
        body::{Body, Chunk, Source},
        coding::{STEP, Sizes, Stream, whole},
        testing,
    };

    const SETTINGS: Settings = Settings { level: 1, window_bits: 15 };

    fn decode(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap();
        out
    }

    /// Bytes that do not compress well, the same each time.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn what_is_in_memory_comes_back_whole() {
        for length in [0, 1, 100, 4096, 65_536] {
            for input in [noise(length), b"ab".repeat(length / 2)] {
                for level in 1..=9 {
                    let mut encoder = Encoder::new(Settings { level, window_bits: 15 });
                    assert_eq!(decode(&whole(&mut encoder, &input).unwrap()), input);
                }
            }
        }
    }

    #[test]
    fn what_comes_at_once_leaves_in_one_piece() {
        let chunks = ["hello", ", ", "hello"].map(|text| Chunk::Bytes(text.into()));
        let mut body = pieces(SETTINGS, chunks.into(), &Sizes::default());
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(Ok(Chunk::Bytes(out)))) = body.poll_next(&mut cx) else {
            panic!("nothing came");
        };
        assert_eq!(decode(&out), b"hello, hello");
        assert!(matches!(body.poll_next(&mut cx), Poll::Ready(None)));
    }

    #[test]
    fn all_windows_work() {
        for window_bits in 9..=15 {
            let input = b"hello, ".repeat(20_000);
            let settings = Settings { level: 6, window_bits };
            let mut body =
                pieces(settings, vec![Chunk::Bytes(input.clone().into())], &Sizes::default());
            assert_eq!(decode(&testing::drain(&mut body).unwrap()), input);
        }
    }

    fn stream(settings: Settings, body: Body, sizes: &Sizes) -> Body {
        Body::Stream(Box::new(Stream::new(Encoder::new(settings), body, sizes.clone())))
    }

    fn pieces(settings: Settings, chunks: Vec<Chunk>, sizes: &Sizes) -> Body {
        let body = Body::Chunks(VecDeque::from(chunks));
        stream(settings, body, sizes)
    }

    #[test]
    fn a_stream_comes_back_whole_whatever_its_chunks() {
        for input in [noise(300_000), b"hello, ".repeat(70_000), Vec::new()] {
            for size in [1000, 65_536, 1_000_000] {
                let chunks = input.chunks(size).map(|c| Chunk::Bytes(Bytes::copy_from_slice(c)));
                let sizes = Sizes::default();
                let mut body = pieces(SETTINGS, chunks.collect(), &sizes);
                let out = testing::drain(&mut body).unwrap();
                assert_eq!(decode(&out), input);
                assert_eq!(sizes.get(), (input.len() as u64, out.len() as u64));
            }
        }
    }

    #[test]
    fn other_connections_get_their_turn_every_64_kb() {
        let input = noise(1_000_000);
        let mut body = pieces(SETTINGS, vec![Chunk::Bytes(input.into())], &Sizes::default());
        let mut cx = Context::from_waker(Waker::noop());
        let (mut turns, mut in_turn) = (0, 0);
        loop {
            match body.poll_next(&mut cx) {
                Poll::Pending => {
                    turns += 1;
                    in_turn = 0;
                }
                Poll::Ready(Some(chunk)) => in_turn += chunk.unwrap().len(),
                Poll::Ready(None) => break,
            }
            assert!(in_turn <= 2 * STEP as u64);
        }
        assert_eq!(turns, 1_000_000 / STEP);
    }

    #[test]
    fn a_flush_lets_the_client_decode_all_that_came_before() {
        let chunks = vec![Chunk::Bytes("first".into()), Chunk::Flush, Chunk::Bytes("last".into())];
        let mut body = pieces(SETTINGS, chunks, &Sizes::default());
        let mut cx = Context::from_waker(Waker::noop());
        let mut sent = Vec::new();
        loop {
            match body.poll_next(&mut cx) {
                Poll::Ready(Some(Ok(Chunk::Bytes(bytes)))) => sent.extend_from_slice(&bytes),
                Poll::Ready(Some(Ok(Chunk::Flush))) => break,
                _ => panic!("the flush must come before the end"),
            }
        }
        let mut decoder = flate2::read::GzDecoder::new(&sent[..]);
        let mut text = [0; 5];
        decoder.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"first");
        sent.extend(testing::drain(&mut body).unwrap());
        assert_eq!(decode(&sent), b"firstlast");
    }

    #[test]
    fn compressors_are_used_again_and_their_number_is_bounded() {
        let idle = || POOL.with_borrow(Vec::len);
        let settings = Settings { level: 3, window_bits: 12 };
        let before = idle();
        for _ in 0..3 {
            whole(&mut Encoder::new(settings), b"text").unwrap();
            assert_eq!(idle(), before + 1);
        }
        let many: Vec<_> = (0..IDLE * 2).map(|_| Encoder::new(settings)).collect();
        drop(many);
        assert_eq!(idle(), IDLE);
    }

    #[test]
    fn a_fault_ends_the_stream() {
        struct Broken;
        impl Source for Broken {
            fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
                Poll::Ready(Some(Err(Fault::Upstream)))
            }
        }
        let mut body = stream(SETTINGS, Body::Stream(Box::new(Broken)), &Sizes::default());
        let mut cx = Context::from_waker(Waker::noop());
        let first = body.poll_next(&mut cx);
        assert!(matches!(first, Poll::Ready(Some(Err(Fault::Upstream)))));
        assert!(matches!(body.poll_next(&mut cx), Poll::Ready(None)));
    }
}
