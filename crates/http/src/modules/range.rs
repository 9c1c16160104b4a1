//! Byte ranges: 206, `multipart/byteranges`, 416, `If-Range` (`ngx_http_range_filter_module.c`,
//! RFC 9110 §14).
//!
//! nginx has a header filter and a body filter; here one filter does both. It must be the last: the
//! body it cuts is the one that is sent.
//!
//! Invariant: the ranges sent never add up to more than the whole (`wire::range`), so a small request
//! does not ask for a large answer many times over.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_wire::{
    date::parse_http_time,
    h1::{FieldId, Version, encode::write_decimal},
    range::{self, RangeResult},
};

use super::not_modified::NoConf;
use crate::{
    body::{Body, Chunk, Fault, FileSlice, Source},
    handler::{Filter, Filtered},
    module::{Builder, Directive, Module},
    request::Request,
};

/// `ngx_http_range_filter_module`; `max_ranges` is the core module's directive.
pub struct Range;

impl Module for Range {
    type Conf = NoConf;
    const NAME: &'static str = "ngx_http_range_filter_module";
    const DIRECTIVES: &'static [Directive<NoConf>] = &[];

    fn build(_conf: &NoConf, b: &mut Builder<'_, '_, '_>) -> Result<(), forebay_conf::Error> {
        if b.location.core.max_ranges != Some(0) {
            b.filter(Ranges);
        }
        Ok(())
    }
}

struct Ranges;

impl Filter for Ranges {
    fn filter(&self, r: &mut Request) -> Filtered {
        let response = &r.response;
        if !response.allow_ranges
            || response.status != 200
            || r.subrequest
            || r.version() < Version::Http10
        {
            return Filtered::Continue;
        }
        let Some(size) = response.content_length else { return Filtered::Continue };
        match asked(r, size) {
            RangeResult::Whole => {
                r.response.add("Accept-Ranges", Bytes::from_static(b"bytes"));
                Filtered::Continue
            }
            RangeResult::NotSatisfiable => {
                let mut value = b"bytes */".to_vec();
                write_decimal(&mut value, size);
                // DIFFERS(one-content-range): nginx adds another where its own page is out of range, or
                // `add_header` has written one.
                r.response.set("Content-Range", value);
                r.response.content_length = None;
                // Which trailers an error has is asked again; chunked it stays, as in nginx.
                for trailer in &mut r.response.trailers {
                    trailer.value = Bytes::new();
                }
                Filtered::Replace(416)
            }
            RangeResult::Ranges(list) => {
                r.response.status = 206;
                match list[..] {
                    [(start, end)] => single(r, start, end, size),
                    _ => multipart(r, &list, size),
                }
                Filtered::Continue
            }
        }
    }
}

/// What the request asks for, if its `If-Range` holds.
fn asked(r: &Request, size: u64) -> RangeResult {
    let Some(value) = r.field(FieldId::Range) else { return RangeResult::Whole };
    if let Some(condition) = r.field(FieldId::IfRange)
        && !holds(condition, r)
    {
        return RangeResult::Whole;
    }
    let max = match r.response.single_range {
        true => 1,
        false => r.location().core.max_ranges.unwrap_or(usize::MAX),
    };
    match range::parse(value, size, max) {
        // DIFFERS(ranges-of-a-stream): a stream (of recoded text) goes one way only. nginx has all of it
        // in one buffer, or breaks the answer off.
        RangeResult::Ranges(list)
            if matches!(r.response.body, Body::Stream(_))
                && list.windows(2).any(|pair| pair[0].1 > pair[1].0) =>
        {
            RangeResult::Whole
        }
        result => result,
    }
}

/// `If-Range`: an entity tag or a date, either exactly that of the response.
fn holds(condition: &[u8], r: &Request) -> bool {
    if condition.len() >= 2 && condition.ends_with(b"\"") {
        return r.response.field("ETag").is_some_and(|etag| etag == condition);
    }
    r.response.last_modified.is_some_and(|modified| parse_http_time(condition) == Some(modified))
}

fn write_content_range(out: &mut Vec<u8>, start: u64, end: u64, size: u64) {
    write_decimal(out, start);
    out.push(b'-');
    write_decimal(out, end - 1);
    out.push(b'/');
    write_decimal(out, size);
}

fn single(r: &mut Request, start: u64, end: u64, size: u64) {
    let mut value = b"bytes ".to_vec();
    write_content_range(&mut value, start, end, size);
    let response = &mut r.response;
    response.set("Content-Range", value);
    response.content_length = Some(end - start);
    response.body = match std::mem::take(&mut response.body) {
        Body::Stream(source) => {
            Body::Stream(Box::new(Window { source, skip: start, left: end - start }))
        }
        body => {
            let mut chunks = VecDeque::new();
            cut(&pieces(body), start, end, &mut chunks);
            one_or_many(chunks)
        }
    };
}

/// `multipart/byteranges` (`ngx_http_range_multipart_header`).
fn multipart(r: &mut Request, ranges: &[(u64, u64)], size: u64) {
    let boundary = next_boundary();
    let response = &mut r.response;
    let part_head = part_head(&boundary, response.content_type.as_ref(), response.charset.as_ref());
    let mut parts = VecDeque::with_capacity(ranges.len());
    let mut length = 0;
    for &(start, end) in ranges {
        let mut head = part_head.clone();
        write_content_range(&mut head, start, end, size);
        head.extend_from_slice(b"\r\n\r\n");
        length += head.len() as u64 + (end - start);
        parts.push_back(Part { head: head.into(), start, end });
    }
    let last: Bytes = [b"\r\n--", &boundary[..], b"--\r\n"].concat().into();
    length += last.len() as u64;
    let content_type = [b"multipart/byteranges; boundary=", &boundary[..]].concat();
    response.content_type = Some(content_type.into());
    response.charset = None;
    response.remove("Content-Range");
    response.content_length = Some(length);
    response.body = match std::mem::take(&mut response.body) {
        // The answer to HEAD may have no body to cut; its length is told all the same.
        Body::Empty => Body::Empty,
        Body::Stream(source) => {
            Body::Stream(Box::new(Windows { source, held: None, at: 0, parts, last: Some(last) }))
        }
        body => Body::Chunks(all_parts(&pieces(body), parts, last)),
    };
}

/// A part of a multipart answer.
struct Part {
    head: Bytes,
    start: u64,
    end: u64,
}

fn all_parts(pieces: &VecDeque<Chunk>, parts: VecDeque<Part>, last: Bytes) -> VecDeque<Chunk> {
    let mut chunks = VecDeque::with_capacity(parts.len() * 2 + 1);
    for Part { head, start, end } in parts {
        chunks.push_back(Chunk::Bytes(head));
        cut(pieces, start, end, &mut chunks);
    }
    chunks.push_back(Chunk::Bytes(last));
    chunks
}

fn part_head(boundary: &[u8], content_type: Option<&Bytes>, charset: Option<&Bytes>) -> Vec<u8> {
    let mut head = [b"\r\n--", boundary, b"\r\n"].concat();
    if let Some(content_type) = content_type {
        head.extend_from_slice(b"Content-Type: ");
        head.extend_from_slice(content_type);
        if let Some(charset) = charset {
            head.extend_from_slice(b"; charset=");
            head.extend_from_slice(charset);
        }
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Content-Range: bytes ");
    head
}

/// A boundary of twenty digits (`ngx_next_temp_number`, `%0muA`).
fn next_boundary() -> [u8; 20] {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let mut number = LAST.fetch_add(1, Relaxed) + 1;
    let mut text = [b'0'; 20];
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    text
}

/// The pieces of a body whose every byte is known.
fn pieces(body: Body) -> VecDeque<Chunk> {
    match body {
        Body::Empty | Body::Stream(_) => VecDeque::new(),
        Body::Bytes(bytes) => VecDeque::from([Chunk::Bytes(bytes)]),
        Body::File(slice) => VecDeque::from([Chunk::File(slice)]),
        Body::Chunks(chunks) => chunks,
    }
}

fn one_or_many(mut chunks: VecDeque<Chunk>) -> Body {
    match chunks.len() {
        1 => match chunks.pop_front() {
            Some(Chunk::Bytes(bytes)) => Body::Bytes(bytes),
            Some(Chunk::File(slice)) => Body::File(slice),
            _ => Body::Empty,
        },
        _ => Body::Chunks(chunks),
    }
}

/// Copies what lies within `start..end` of the pieces; no byte moves.
fn cut(pieces: &VecDeque<Chunk>, start: u64, end: u64, out: &mut VecDeque<Chunk>) {
    let mut at = 0;
    for piece in pieces {
        let len = piece.len();
        let from = start.max(at).min(at + len) - at;
        let to = end.max(at).min(at + len) - at;
        if from < to {
            out.extend(part(piece, from, to));
        }
        at += len;
    }
}

/// Bytes `from..to` of a chunk, which lie within it.
fn part(chunk: &Chunk, from: u64, to: u64) -> Option<Chunk> {
    match chunk {
        Chunk::Bytes(bytes) => Some(Chunk::Bytes(bytes.slice(from as usize..to as usize))),
        Chunk::File(slice) => Some(Chunk::File(FileSlice {
            file: slice.file.clone(),
            start: slice.start + from,
            end: slice.start + to,
        })),
        Chunk::Flush | Chunk::Nested(_) => None,
    }
}

/// One range of a stream.
struct Window {
    source: Box<dyn Source>,
    skip: u64,
    left: u64,
}

impl Source for Window {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        while self.left > 0 {
            let chunk = match ready!(self.source.poll_next(cx)) {
                Some(Ok(Chunk::Flush)) => return Poll::Ready(Some(Ok(Chunk::Flush))),
                Some(Ok(chunk)) => chunk,
                other => return Poll::Ready(other),
            };
            let len = chunk.len();
            let from = self.skip.min(len);
            let to = self.skip.saturating_add(self.left).min(len);
            self.skip -= from;
            self.left -= to - from;
            if from < to
                && let Some(part) = part(&chunk, from, to)
            {
                return Poll::Ready(Some(Ok(part)));
            }
        }
        Poll::Ready(None)
    }
}

/// Ranges of a stream that lie one behind the other.
struct Windows {
    source: Box<dyn Source>,
    /// The piece of the stream that is being cut, and where it begins.
    held: Option<Chunk>,
    at: u64,
    /// What is still to come of the parts; the first one's head may have been sent.
    parts: VecDeque<Part>,
    last: Option<Bytes>,
}

impl Windows {
    /// The next piece of the first part, if it is in what is held.
    fn cut(&mut self) -> Option<Chunk> {
        let (held, first) = (self.held.as_ref()?, self.parts.front_mut()?);
        let from = first.start.max(self.at);
        let to = first.end.min(self.at + held.len());
        if from >= to {
            self.at += held.len();
            self.held = None;
            return None;
        }
        first.start = to;
        part(held, from - self.at, to - self.at)
    }
}

impl Source for Windows {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        loop {
            let Some(first) = self.parts.front_mut() else {
                return Poll::Ready(self.last.take().map(|last| Ok(Chunk::Bytes(last))));
            };
            if !first.head.is_empty() {
                return Poll::Ready(Some(Ok(Chunk::Bytes(std::mem::take(&mut first.head)))));
            }
            if first.start >= first.end {
                self.parts.pop_front();
                continue;
            }
            if self.held.is_none() {
                match ready!(self.source.poll_next(cx)) {
                    Some(Ok(Chunk::Flush)) => return Poll::Ready(Some(Ok(Chunk::Flush))),
                    Some(Ok(chunk)) => self.held = Some(chunk),
                    other => return Poll::Ready(other),
                }
            }
            if let Some(chunk) = self.cut() {
                return Poll::Ready(Some(Ok(chunk)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const TEXT: &str = "0123456789";

    struct Script(VecDeque<Option<&'static str>>);

    impl Source for Script {
        fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
            match self.0.pop_front() {
                Some(Some(text)) => Poll::Ready(Some(Ok(Chunk::Bytes(text.into())))),
                Some(None) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                None => Poll::Ready(None),
            }
        }
    }

    fn bodies() -> [Body; 3] {
        let chunk = |text: &'static str| Chunk::Bytes(text.into());
        let script = [Some("012"), None, Some("3456"), Some("7"), None, Some("89")];
        [
            Body::Bytes(TEXT.into()),
            Body::Chunks([chunk("0"), chunk("12345"), Chunk::Flush, chunk("6789")].into()),
            Body::Stream(Box::new(Script(script.into()))),
        ]
    }

    fn ask(conf: &str, fields: &str, body: Body) -> (Request, Filtered) {
        let mut r = testing::request(conf, &format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        r.response.status = 200;
        r.response.content_type = Some("text/plain".into());
        r.response.content_length = Some(TEXT.len() as u64);
        r.response.last_modified = Some(784_111_777);
        r.response.add("ETag", "\"a\"");
        r.response.allow_ranges = true;
        r.response.body = body;
        let filtered = Ranges.filter(&mut r);
        (r, filtered)
    }

    #[test]
    fn one_range_of_any_body() {
        for (range, want, content_range) in [
            ("0-0", "0", "0-0/10"),
            ("2-5", "2345", "2-5/10"),
            ("9-", "9", "9-9/10"),
            ("0-99", TEXT, "0-9/10"),
            ("-3", "789", "7-9/10"),
        ] {
            for body in bodies() {
                let (mut r, filtered) = ask("", &format!("Range: bytes={range}\r\n"), body);
                assert_eq!(filtered, Filtered::Continue);
                assert_eq!(r.response.status, 206);
                assert_eq!(r.response.content_length, Some(want.len() as u64));
                let fields = format!("ETag: \"a\"\nContent-Range: bytes {content_range}\n");
                assert_eq!(testing::fields(&r), fields);
                let body = testing::drain(&mut r.response.body).unwrap();
                assert_eq!(String::from_utf8(body).unwrap(), want, "{range}");
            }
        }
    }

    #[test]
    fn several_ranges_are_parts_with_boundaries() {
        for body in bodies() {
            let stream = matches!(body, Body::Stream(_));
            let (mut r, _) = ask("", "Range: bytes=1-2, 0-0,-1\r\n", body);
            let length = r.response.content_length;
            let body = testing::drain(&mut r.response.body).unwrap();
            assert_eq!(length, Some(body.len() as u64));
            if stream {
                assert_eq!((r.response.status, &body[..]), (200, TEXT.as_bytes()));
                continue;
            }
            let content_type = r.response.content_type.clone().unwrap();
            let boundary = content_type.strip_prefix(b"multipart/byteranges; boundary=").unwrap();
            let boundary = std::str::from_utf8(boundary).unwrap();
            assert_eq!(boundary.len(), 20);
            let part = |range: &str, text: &str| {
                format!(
                    "\r\n--{boundary}\r\nContent-Type: text/plain\r\n\
                     Content-Range: bytes {range}/10\r\n\r\n{text}"
                )
            };
            let want = [
                part("1-2", "12"),
                part("0-0", "0"),
                part("9-9", "9"),
                format!("\r\n--{boundary}--\r\n"),
            ];
            assert_eq!(String::from_utf8(body).unwrap(), want.concat());
            assert_eq!(testing::fields(&r), "ETag: \"a\"\n");
        }
    }

    #[test]
    fn several_ranges_of_a_stream_that_follow_each_other() {
        for (ranges, want) in [
            ("0-0,1-1", Some("0|1|")),
            ("1-3,5-5,8-", Some("123|5|89|")),
            ("0-2,3-9", Some("012|3456789|")),
            ("-1,0-0", None),
            ("0-3,2-4", None),
        ] {
            let [.., stream] = bodies();
            let (mut r, _) = ask("", &format!("Range: bytes={ranges}\r\n"), stream);
            let body = testing::drain(&mut r.response.body).unwrap();
            let body = String::from_utf8(body).unwrap();
            let Some(want) = want else {
                assert_eq!((r.response.status, &*body), (200, TEXT), "{ranges}");
                continue;
            };
            assert_eq!(r.response.status, 206, "{ranges}");
            assert_eq!(r.response.content_length, Some(body.len() as u64), "{ranges}");
            let parts =
                body.split("\r\n--").skip(1).map(|part| match part.split_once("\r\n\r\n") {
                    Some((_, text)) => format!("{text}|"),
                    None => String::new(),
                });
            assert_eq!(parts.collect::<String>(), want, "{ranges}");
        }
    }

    #[test]
    fn what_cannot_be_satisfied_is_416_with_the_length() {
        for range in ["bytes=10-", "bytes=5-4", "bytes=x", "bytes=-0", "bytes=0-0,"] {
            let (r, filtered) = ask("", &format!("Range: {range}\r\n"), Body::Empty);
            assert_eq!(filtered, Filtered::Replace(416), "{range}");
            assert_eq!(testing::fields(&r), "ETag: \"a\"\nContent-Range: bytes */10\n");
        }
    }

    #[test]
    fn the_whole_is_sent_where_ranges_do_not_apply() {
        for (conf, fields) in [
            ("", ""),
            ("", "Range: bytes=\r\n"),
            ("", "Range: lines=0-1\r\n"),
            ("", "Range: bytes=0-,0-,0-,0-\r\n"),
            ("max_ranges 1;", "Range: bytes=0-0,2-2\r\n"),
            ("", "Range: bytes=0-0\r\nIf-Range: \"b\"\r\n"),
            ("", "Range: bytes=0-0\r\nIf-Range: W/\"a\"\r\n"),
            ("", "Range: bytes=0-0\r\nIf-Range: \"\r\n"),
            ("", "Range: bytes=0-0\r\nIf-Range:\r\n"),
            ("", "Range: bytes=0-0\r\nIf-Range: Sun, 06 Nov 1994 08:49:38 GMT\r\n"),
        ] {
            let (mut r, filtered) = ask(conf, fields, Body::Bytes(TEXT.into()));
            assert_eq!((filtered, r.response.status), (Filtered::Continue, 200), "{fields}");
            assert_eq!(testing::fields(&r), "ETag: \"a\"\nAccept-Ranges: bytes\n");
            assert_eq!(testing::drain(&mut r.response.body).unwrap(), TEXT.as_bytes());
        }
    }

    #[test]
    fn if_range_holds_for_the_same_tag_or_date() {
        for condition in ["\"a\"", "Sun, 06 Nov 1994 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            let fields = format!("Range: bytes=0-0\r\nIf-Range: {condition}\r\n");
            let (r, _) = ask("", &fields, Body::Bytes(TEXT.into()));
            assert_eq!(r.response.status, 206, "{condition}");
        }
    }

    #[test]
    fn max_ranges_0_adds_no_filter() {
        let r = testing::request("max_ranges 0;", "GET / HTTP/1.1\r\n\r\n");
        let without = r.location().filters.len();
        let r = testing::request("", "GET / HTTP/1.1\r\n\r\n");
        assert_eq!(r.location().filters.len(), without + 1);
    }
}
