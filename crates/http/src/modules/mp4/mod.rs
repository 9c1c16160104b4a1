//! `mp4`: videos from the middle, as `?start=` and `?end=` say (`ngx_http_mp4_module.c`).
//!
//! The tables of the `moov` atom are cut to the samples asked for, and sent before their bytes.
//!
//! Leaves out: `mp4_limit_rate`, which is not in the open nginx.
//!
//! Invariant: no length in a file is believed before it is compared with what there is; no more of
//! a file than its `moov` atom is in memory, which `mp4_max_buffer_size` bounds.

mod boxes;
pub(super) mod file;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fixture;
mod moov;
mod trak;

use std::rc::Rc;

use forebay_conf::{Arity, Contexts, Error, value};
use forebay_session::log::{Severity, Shown};
use forebay_wire::h1::Method;

use self::file::{Cut, Part};
use super::{
    flv::{argument, set_length},
    static_files::{refuse, respond, status_of},
};
use crate::{
    body::{Body, Chunk, FileSlice},
    client::Client,
    files::{self, Found, OpenFile},
    handler::{Flow, Handler},
    module::{self, ANY, Builder, Directive, Module, set},
    request::Request,
};

/// `ngx_http_mp4_module`.
pub struct Mp4;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    buffer_size: Option<u64>,
    max_buffer_size: Option<u64>,
    start_key_frame: Option<bool>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; buffer_size, max_buffer_size, start_key_frame);
    }
}

impl Module for Mp4 {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_mp4_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "mp4",
            &[""],
            "",
            Contexts::LOCATION,
            Arity::NONE,
            "Serves videos from where ?start= says to where ?end= does.",
            |_, _, cx| {
                cx.serves = true;
                Ok(())
            },
        ),
        set(
            "mp4_buffer_size",
            &["size"],
            "512K",
            ANY,
            Arity::ONE,
            "How large a moov atom may be without a look at mp4_max_buffer_size.",
            |c, n, _| value::set_size(&mut c.buffer_size, n),
        ),
        set(
            "mp4_max_buffer_size",
            &["size"],
            "10M",
            ANY,
            Arity::ONE,
            "How large a moov atom may be.",
            |c, n, _| value::set_size(&mut c.max_buffer_size, n),
        ),
        set(
            "mp4_start_key_frame",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether a video begins with the key frame before the start.",
            |c, n, _| value::set_flag(&mut c.start_key_frame, n),
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if b.serves() {
            let buffer_size = conf.buffer_size.unwrap_or(512 << 10);
            b.sole_content(Video {
                max_moov: conf.max_buffer_size.unwrap_or(10 << 20).max(buffer_size),
                start_key_frame: conf.start_key_frame.unwrap_or(false),
            });
        }
        Ok(())
    }
}

struct Video {
    /// Bytes.
    max_moov: u64,
    start_key_frame: bool,
}

impl Handler for Video {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        if !matches!(r.method, Method::Get | Method::Head) {
            return Flow::Deny(405);
        }
        if r.uri.ends_with(b"/") {
            return Flow::Decline;
        }
        // The body is thrown away before anybody looks for the file.
        r.asks_for_body.get_or_insert(true);
        Flow::later(|| self.serve(r))
    }
}

impl Video {
    async fn serve<'f>(&self, r: &mut Request) -> Flow<'f> {
        let mut path = Vec::with_capacity(256);
        if files::map_path(r, &mut path).is_err() {
            return refuse(r, &path);
        }
        let video = match files::open(r, &path).await {
            Ok(Found::File(file)) if file.is_regular() => file,
            Ok(_) => return Flow::Decline,
            Err(failed) => return Flow::Deny(status_of(r, &path, failed)),
        };
        let part = part_of(&r.args).map(|(start_ms, length_ms)| Part {
            start_ms,
            length_ms,
            start_key_frame: self.start_key_frame,
            max_moov: self.max_moov,
        });
        let cut = match part {
            None => None,
            Some(part) => match file::cut(&video, &part).await {
                Ok(cut) => cut,
                Err(broken) => {
                    let path = Shown(&path).to_string();
                    r.log_error(Severity::Error, format_args!("{}", broken.message(&path)));
                    return Flow::Deny(500);
                }
            },
        };
        send(r, video, cut);
        Flow::Done
    }
}

fn send(r: &mut Request, video: Rc<OpenFile>, cut: Option<Cut>) {
    respond(r, video.clone());
    let Some(cut) = cut else { return };
    set_length(r, video.modified, cut.head.len() as u64 + (cut.end - cut.start));
    let rest = Chunk::File(FileSlice { file: video, start: cut.start, end: cut.end });
    r.response.body = Body::Chunks([Chunk::Bytes(cut.head.into()), rest].into());
}

/// Start and length in milliseconds; length 0: to the end. `None`: the whole file.
fn part_of(args: &[u8]) -> Option<(u64, u64)> {
    let start = argument(args, b"start").and_then(milliseconds);
    let end = argument(args, b"end").and_then(milliseconds).filter(|end| *end > 0);
    match (start, end) {
        (None, None) => None,
        (start, end) => {
            let start = start.unwrap_or(0);
            Some((start, end.map_or(0, |end| end.saturating_sub(start))))
        }
    }
}

/// Seconds with a fraction, of which three digits count (`ngx_http_mp4_atofp`).
fn milliseconds(text: &[u8]) -> Option<u64> {
    let (mut value, mut places, mut dot) = (0u64, 3, false);
    if text.is_empty() {
        return None;
    }
    for &byte in text {
        match byte {
            b'.' if dot => return None,
            b'.' => dot = true,
            b'0'..=b'9' if places == 0 => {}
            b'0'..=b'9' => {
                value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
                places -= u32::from(dot);
            }
            _ => return None,
        }
    }
    // Beyond a signed number nginx sees an error.
    let value = value.checked_mul(10u64.pow(places))?;
    i64::try_from(value).ok().map(|_| value)
}

#[cfg(test)]
mod tests;
