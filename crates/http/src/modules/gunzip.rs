//! `gunzip`: decompresses responses for clients that do not take gzip
//! (`ngx_http_gunzip_filter_module.c`).
//!
//! Whether a client takes gzip is decided by the rules of the gzip module.
//!
//! Invariant: however much comes out of a few bytes, some 64 kB of it are in memory at a time.

use std::{fmt, mem};

use flate2::{Decompress, FlushDecompress, Status};
use forebay_conf::{
    Arity, Error,
    value::{self, Bufs},
};
use forebay_session::log::Severity;

use super::gzip::{Accept, no_meaning};
use crate::{
    body::{Body, Fault},
    coding::{Coder, Finish, Progress, STEP, Sizes, Stream},
    handler::{Filter, Filtered},
    module::{self, ANY, Builder, Directive, Module, set},
    request::Request,
};

/// `ngx_http_gunzip_filter_module`.
pub struct Gunzip;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    on: Option<bool>,
    buffers: Option<Bufs>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; on, buffers);
    }
}

impl Module for Gunzip {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_gunzip_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "gunzip",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Decompresses responses for clients that do not take gzip.",
            |c, n, _| value::set_flag(&mut c.on, n),
        ),
        set(
            "gunzip_buffers",
            &["number size"],
            "32 4k|16 8k",
            ANY,
            Arity::TWO,
            "The buffers of a decompressed response; here they are of 64 kB.",
            |c, n, cx| {
                value::set_bufs(&mut c.buffers, n)?;
                no_meaning(n, cx, "decompressed bytes are sent as they come")
            },
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if conf.on == Some(true) {
            let accept = Accept::here(b);
            b.filter(GunzipFilter { accept });
        }
        Ok(())
    }
}

struct GunzipFilter {
    accept: Accept,
}

impl Filter for GunzipFilter {
    fn filter(&self, r: &mut Request) -> Filtered {
        // ngx_http_gunzip_header_filter looks at `headers_out.content_encoding`, where `add_header` puts
        // nothing: who writes the field by hand knows best what the body is.
        if r.response.coding_is_added {
            return Filtered::Continue;
        }
        let coding = r.response.field("Content-Encoding");
        if !coding.is_some_and(|coding| coding.eq_ignore_ascii_case(b"gzip")) {
            return Filtered::Continue;
        }
        r.response.vary_accept_encoding = self.accept.vary;
        if self.accept.allows(r) {
            return Filtered::Continue;
        }
        r.response.body_will_change();
        r.response.remove("Content-Encoding");
        if r.response.header_only || matches!(r.response.status, 204 | 304) {
            // DIFFERS(gunzip-no-content): nginx takes the body that there is none of for a broken one.
            return Filtered::Continue;
        }
        let body = mem::take(&mut r.response.body);
        let decoder = Decoder { state: new_state(), ended: false, request: Box::new(r.twin()) };
        r.response.body = Body::Stream(Box::new(Stream::new(decoder, body, Sizes::default())));
        Filtered::Continue
    }
}

fn new_state() -> Decompress {
    Decompress::new_gzip(15)
}

struct Decoder {
    state: Decompress,
    /// Whether a member has ended, and nothing of another has come.
    ended: bool,
    /// Whose body it is, for the log.
    request: Box<Request>,
}

impl Decoder {
    fn complain(&self, text: fmt::Arguments<'_>) {
        let doing = self.request.main.doing.get();
        self.request.log_error(Severity::Error, format_args!("{text}{doing}"));
    }
}

impl Coder for Decoder {
    fn run(&mut self, input: &[u8], finish: Finish, out: &mut Vec<u8>) -> Result<Progress, Fault> {
        let mut used = 0;
        loop {
            if self.ended && used < input.len() {
                self.state = new_state();
                self.ended = false;
            }
            if self.ended {
                return Ok(Progress { used, done: true });
            }
            if out.len() >= STEP {
                return Ok(Progress { used, done: false });
            }
            out.reserve((STEP - out.len()).min(out.len().max(4096)));
            let before = self.state.total_in();
            let status = self.state.decompress_vec(&input[used..], out, FlushDecompress::None);
            used += (self.state.total_in() - before) as usize;
            match status {
                Err(_) => {
                    // `ctx->flush` and the code of zlib's.
                    let flush = if finish == Finish::End { 4 } else { 0 };
                    self.complain(format_args!("inflate() failed: {flush}, -3"));
                    return Err(Fault::Filter);
                }
                Ok(Status::StreamEnd) => self.ended = true,
                // Room was left: there is no more to come of it.
                Ok(_) if used == input.len() && out.len() < out.capacity() => {
                    if finish != Finish::End {
                        return Ok(Progress { used, done: true });
                    }
                    self.complain(format_args!("inflate() returned -5 on response end"));
                    return Err(Fault::Filter);
                }
                Ok(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::{body::Chunk, testing};

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        writer.write_all(text).unwrap();
        writer.finish().unwrap()
    }

    fn answer(conf: &str, accept: &str, pieces: &[&[u8]]) -> Request {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accept}\r\n\r\n");
        let mut r = testing::request(conf, &head);
        r.respond(200, "text/html".into(), "".into());
        r.response.add("Content-Encoding", "gzip");
        r.response.add("ETag", "\"a\"");
        let chunks = pieces.iter().map(|piece| Chunk::Bytes(piece.to_vec().into()));
        r.response.body = Body::Chunks(chunks.collect());
        testing::filter(&mut r);
        r
    }

    fn decode(pieces: &[&[u8]]) -> Result<Vec<u8>, Fault> {
        testing::drain(&mut answer("gunzip on;", "", pieces).response.body)
    }

    #[test]
    fn clients_without_gzip_get_it_plain() {
        for (conf, accept, want) in [
            ("gunzip on;", "", "ETag: W/\"a\"\n"),
            ("gunzip on;", "gzip;q=0", "ETag: W/\"a\"\n"),
            ("gunzip on;", "gzip", "Content-Encoding: gzip\nETag: \"a\"\n"),
            ("", "", "Content-Encoding: gzip\nETag: \"a\"\n"),
        ] {
            let r = answer(conf, accept, &[&gzip(b"x")]);
            assert_eq!(testing::fields(&r), want, "{conf} {accept}");
        }
    }

    #[test]
    fn it_comes_out_whole_wherever_it_is_cut() {
        let text = b"hello, hello, hello".repeat(3);
        let twice = [gzip(&text), gzip(b"more")].concat();
        let want = [&text[..], b"more"].concat();
        assert_eq!(decode(&[&twice]).unwrap(), want);
        for at in 1..twice.len() {
            assert_eq!(decode(&[&twice[..at], &twice[at..]]).unwrap(), want, "{at}");
        }
        let bytes: Vec<&[u8]> = twice.chunks(1).collect();
        assert_eq!(decode(&bytes).unwrap(), want);
    }

    #[test]
    fn what_is_broken_breaks_off() {
        let good = gzip(b"hello, hello, hello, hello");
        for bad in [&b""[..], b"x", b"\x1f\x8b", &good[..good.len() - 1], &good[1..]] {
            assert_eq!(decode(&[bad]), Err(Fault::Filter), "{bad:x?}");
        }
        let garbage = [&good[..], b"garbage after it all"].concat();
        assert_eq!(decode(&[&garbage]), Err(Fault::Filter));
        let mut state = 3u64;
        for _ in 0..3000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut bad = good.clone();
            let at = (state >> 33) as usize % bad.len();
            bad[at] ^= 1 << (state >> 60 & 7);
            // Whatever it becomes, it ends.
            drop(decode(&[&bad]));
        }
    }

    #[test]
    fn a_bomb_goes_off_slowly() {
        let bomb = gzip(&vec![0; 20 << 20]);
        let mut r = answer("gunzip on;", "", &[&bomb]);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let mut total = 0;
        loop {
            match r.response.body.poll_next(&mut cx) {
                std::task::Poll::Ready(Some(Ok(chunk))) => {
                    assert!(chunk.len() <= 2 * STEP as u64);
                    total += chunk.len();
                }
                std::task::Poll::Ready(None) => break,
                std::task::Poll::Ready(Some(Err(fault))) => panic!("{fault:?}"),
                std::task::Poll::Pending => {}
            }
        }
        assert_eq!(total, 20 << 20);
    }
}
