//! The parsers of peer input, each behind one function of bytes, for the fuzz targets in `fuzz/`
//! and for the mutation test below. Beside not panicking, each must hold what its module promises.

pub mod mutate;

use crate::h1::chunked::Decoder;
use crate::h1::{
    Method, Options, Parser, Progress, ResponseBody, ResponseParser, Sent, framing,
    response_framing, validate_host,
};
use crate::h2::{
    Head as FrameHead, Priority, RequestBuilder, Settings,
    frame::{self, HEAD_BYTES},
    hpack::{Decoder as FieldDecoder, Encoder, Indexing},
};
use crate::range::RangeResult;
use crate::{accept, date, proxy_protocol, range, uri};

/// A head read at once and in pieces is the same; its framing and host are decided.
pub fn h1_head(data: &[u8]) {
    // Small buffers, so that limits are met; the first bits choose the options.
    let bits = data.first().copied().unwrap_or(0);
    let opts = Options {
        underscores: bits & 1 != 0,
        ignore_invalid_headers: bits & 2 != 0,
        client_header_buffer_size: if bits & 4 != 0 { 64 } else { 1024 },
        large_buffers: if bits & 8 != 0 { (2, 128) } else { (4, 8192) },
        max_headers: 16,
    };
    let mut whole = Parser::new();
    let at_once = whole.parse(data, &opts);
    let mut parser = Parser::new();
    let mut in_pieces = parser.parse(&[], &opts);
    let step = 1 + usize::from(bits >> 6);
    for len in (step..data.len()).step_by(step).chain([data.len()]) {
        if in_pieces == Ok(Progress::Partial) {
            in_pieces = parser.parse(&data[..len], &opts);
        }
    }
    assert_eq!(at_once, in_pieces);
    let Ok(Progress::Complete { consumed }) = at_once else { return };
    assert!(consumed <= data.len());
    assert_eq!(whole.head(), parser.head());
    assert!(whole.head().headers.len() <= opts.max_headers);
    let mut path = Vec::new();
    let uri = whole.head().uri.of(data);
    if uri::normalize(uri, true, &mut path).is_ok() && whole.head().uri_flags.is_simple() {
        assert!(uri.starts_with(&path), "a simple path is its own normal form");
    }
    if let Ok(framing) = framing(whole.head(), data, b"")
        && let Some(host) = framing.host
    {
        let mut name = Vec::new();
        assert!(validate_host(host.of(data), &mut name).is_ok());
        assert!(name.iter().all(|&ch| ch > b' ' && ch != b'/' && !ch.is_ascii_uppercase()));
    }
}

/// A response head read at once and in pieces is the same; its framing is decided.
pub fn h1_response(data: &[u8]) {
    let bits = data.last().copied().unwrap_or(0);
    let limit = if bits & 1 != 0 { 64 } else { 4096 };
    let mut whole = ResponseParser::default();
    let at_once = whole.parse(data, limit);
    let mut parser = ResponseParser::default();
    let mut in_pieces = parser.parse(&[], limit);
    let step = 1 + usize::from(bits >> 6);
    for len in (step..data.len()).step_by(step).chain([data.len()]) {
        if in_pieces == Ok(Progress::Partial) {
            in_pieces = parser.parse(&data[..len], limit);
        }
    }
    let Ok(Progress::Complete { consumed }) = at_once else {
        // A line that is wrong at its first bytes may be refused before one that comes too late.
        assert!(matches!(in_pieces, Ok(Progress::Partial)) == at_once.is_ok());
        return;
    };
    assert_eq!(at_once, in_pieces);
    assert!(consumed <= data.len() && consumed <= limit);
    let head = whole.head();
    assert_eq!(head, parser.head());
    assert!((100..=999).contains(&head.status));
    let clean = |text: &[u8]| !text.iter().any(|ch| matches!(ch, b'\r' | b'\n' | 0));
    assert!(clean(head.status_text.of(data)));
    for field in &head.fields {
        assert!(
            !field.name.is_empty() && clean(field.name.of(data)) && clean(field.value.of(data))
        );
    }
    for (head_request, upgrade) in [(false, false), (true, false), (false, true)] {
        let sent = Sent { head: head_request, upgrade };
        if let Ok(framing) = response_framing(head, data, sent) {
            assert!(!head_request || framing.body == ResponseBody::None);
            assert!(upgrade || !framing.upgrade);
        }
    }
}

/// A chunked body read at once and bytewise is the same.
pub fn chunked(data: &[u8]) {
    let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut decoder, mut body, mut used) = (Decoder::new(), Vec::new(), 0);
        for mut piece in pieces {
            while !piece.is_empty() && !decoder.is_done() {
                let Ok(step) = decoder.decode(piece) else { return None };
                assert!(step.consumed > 0 && step.data.end <= step.consumed);
                body.extend_from_slice(&piece[step.data]);
                used += step.consumed;
                piece = &piece[step.consumed..];
            }
        }
        Some((body, used, decoder.is_done()))
    };
    assert_eq!(read(&mut std::iter::once(data)), read(&mut data.chunks(1)));
}

/// A normalised path has neither NUL nor a way up, and escaping is undone by unescaping.
pub fn uri(data: &[u8]) {
    let mut out = Vec::new();
    for merge in [true, false] {
        if let Ok(parsed) = uri::normalize(data, merge, &mut out) {
            assert!(out.first() == Some(&b'/') && !out.contains(&0));
            assert!(out.split(|&ch| ch == b'/').all(|segment| segment != b".." && segment != b"."));
            assert!(!merge || !out.windows(2).any(|pair| pair == b"//"));
            assert!(parsed.args.is_none_or(|args| args.end <= data.len()));
            assert!(parsed.ext.is_none_or(|ext| ext.end <= out.len()));
        }
    }
    if uri::parse_unsafe(data, &mut out).is_some() {
        assert!(out.split(|&ch| ch == b'/').all(|segment| segment != b".."));
    }
    for kind in [uri::Kind::Uri, uri::Kind::Args, uri::Kind::UriComponent, uri::Kind::Html] {
        let (mut escaped, mut back) = (Vec::new(), Vec::new());
        uri::escape(kind, data, &mut escaped);
        assert!(escaped.iter().all(|ch| (0x21..0x7f).contains(ch)));
        uri::unescape(&escaped, uri::Unescape::All, &mut back);
        assert_eq!(back, data);
    }
    let mut text = Vec::new();
    uri::escape_json(data, &mut text);
    assert!(std::str::from_utf8(&text).is_ok() && text.iter().all(|&ch| ch >= b' '));
    text.clear();
    uri::escape_log(data, &mut text);
    assert!(text.iter().all(|ch| (0x20..0x7f).contains(ch)));
}

/// Ranges lie within the file and sum up to no more than it.
pub fn range(data: &[u8]) {
    for size in [0, 1, 1000, i64::MAX as u64, u64::MAX] {
        if let RangeResult::Ranges(ranges) = range::parse(data, size, 8) {
            assert!(!ranges.is_empty() && ranges.len() <= 8);
            assert!(ranges.iter().all(|&(start, end)| start < end && end <= size));
            let sum: u128 = ranges.iter().map(|(start, end)| u128::from(end - start)).sum();
            assert!(sum <= u128::from(size));
        }
    }
}

/// A date that is read can be written and read again.
pub fn date(data: &[u8]) {
    if let Some(secs) = date::parse_http_time(data) {
        let mut text = [0; 29];
        date::write_http_time(secs, &mut text);
        assert!(secs < -62_167_219_200 || date::parse_http_time(&text) == Some(secs));
        date::write_cookie_time(secs, &mut Vec::new());
    }
}

/// A PROXY header is bounded, and a prefix of it is never another one.
pub fn proxy_protocol(data: &[u8]) {
    if let Ok(Some((len, header))) = proxy_protocol::parse(data) {
        assert!(len <= data.len() && len <= proxy_protocol::MAX_HEADER);
        assert_eq!(proxy_protocol::parse(&data[..len]), Ok(Some((len, header))));
        assert_eq!(proxy_protocol::parse(&data[..len - 1]), Ok(None));
        assert!(proxy_protocol::tlvs(header.tlvs.of(data)).count() <= len);
    }
}

/// Quality values stay in their range.
pub fn accept(data: &[u8]) {
    accept::gzip_ok(data);
    for coding in [&b"gzip"[..], b"br", b"zstd", b""] {
        assert!(accept::quality(data, coding) <= 1000);
    }
}

/// Frames are read as they come; settings and priorities stay within their bounds.
pub fn h2_frames(data: &[u8]) {
    let mut rest = data;
    let mut settings = Settings::default();
    while let Some(head) = FrameHead::parse(rest) {
        let mut again = Vec::new();
        head.write(&mut again);
        assert_eq!(FrameHead::parse(&again), Some(head));
        let Some(payload) = rest.get(HEAD_BYTES..HEAD_BYTES + head.len) else { return };
        rest = &rest[HEAD_BYTES + head.len..];
        match frame::parse(&head, payload) {
            Ok(frame::Frame::Data { data, .. }) => assert!(data.len() <= payload.len()),
            Ok(frame::Frame::Settings(entries)) => _ = settings.apply(entries),
            Ok(frame::Frame::PriorityUpdate { stream, value }) => {
                assert!(stream > 0 && Priority::parse(value).urgency < 8);
            }
            Ok(frame::Frame::WindowUpdate(increment)) => assert!(increment > 0),
            _ => {}
        }
        assert!(settings.max_frame_size >= 16_384 && settings.initial_window < 1 << 31);
    }
}

/// Blocks are decompressed within bounds; what comes out makes a request that is fit for HTTP/1, or
/// none; and it can be compressed again. The first byte says how long the first block is.
pub fn h2_request(data: &[u8]) {
    let Some((&len, rest)) = data.split_first() else { return };
    let opts = Options { large_buffers: (4, 256), max_headers: 16, ..Options::default() };
    let (first, second) = rest.split_at(usize::from(len).min(rest.len()));
    let mut decoder = FieldDecoder::default();
    let (mut encoder, mut back) = (Encoder::default(), FieldDecoder::default());
    for block in [first, second] {
        let (mut buf, mut head) = (Vec::new(), crate::h1::Head::default());
        let mut builder =
            RequestBuilder::new(&mut buf, &mut head, &opts).connect_protocol(len & 2 != 0);
        let (mut fields, mut out) = (Vec::new(), Vec::new());
        encoder.begin(&mut out);
        let decoded = decoder.decode(block, |field| {
            builder.field(field);
            if fields.len() < 64 {
                fields.push((field.name.to_vec(), field.value.to_vec()));
            }
        });
        let framing = builder.finish(len & 1 != 0);
        assert!(decoder.footprint() < 64 << 10);
        // Those that pseudo-headers become come on top.
        assert!(head.headers.len() <= opts.max_headers + 3);
        for (name, value) in &fields {
            encoder.field(name, value, Indexing::Kept, &mut out);
        }
        let mut again = Vec::new();
        let taken = back.decode(&out, |f| again.push((f.name.to_vec(), f.value.to_vec())));
        assert!(taken.is_ok() && again == fields);
        if decoded.is_err() {
            return;
        }
        let Ok(framing) = framing else { continue };
        let is_split = |span: crate::Span| span.of(&buf).iter().any(|ch| b"\r\n\0".contains(ch));
        assert!(!is_split(head.request_line));
        for field in &head.headers {
            assert!(!is_split(field.name) && !is_split(field.value));
            assert!(field.name.of(&buf).iter().all(|ch| !ch.is_ascii_uppercase()));
        }
        assert!(head.uri.of(&buf).starts_with(b"/") && framing.host.is_some());
        assert!(!framing.upgrade || (head.method == Method::Get && len & 2 != 0));
    }
}

#[cfg(test)]
mod tests {
    use super::mutate::run;

    #[test]
    fn h1_head_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\r\nPOST http://Foo.example:80/a/../b.c?d#e HTTP/1.1\nhost: B:1\nContent-Length: 5\n\n",
            b"GET http://[::1]?x HTTP/1.0\r\nConnection: keep-alive, upgrade\r\nUpgrade: h2c\r\n\r\n",
            b"PUT /%2e/+a HTTP/1.1\r\nHost: a_b.\r\nTransfer-Encoding: chunked\r\nX_y: z\r\n\r\n",
            b"GET /index.html\r\n",
            b"KILL /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa HTTP/1.1\r\n\
              A: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n\
              C: ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\r\n\r\n",
            // Empty lines in pieces moved the beginning of the first buffer.
            b"\r\r\r\r\r\r\r\r\r\r\r\r\r\r\r\r\r\r\rB /\xff\xff\xffI\xff\xff\xff!======D==========\
              ================\xff\xff!%:1\xffB HTTP/1.1\r\n=====P/==========\xff!%:1\xffB HTTP/1.\
              1\r\n=====P/========================\xff\xff!%:1\xffB HTTP/1.1\r\n=====P/==========\
              \xff!%:1\xffB HTTP/1.1\r\n=====P/================================================P/:\
              \r\n\r\r\r\r\n\r\r\r\r\r\r\r\r\r\r\r=\0\0Q",
            b"MOVE / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nAccept-Encoding: gzip\r\nUser-Agent: x\r\n\r\n",
        ];
        run(super::h1_head, seeds, &[], 100_000);
    }

    #[test]
    fn h1_response_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: a\r\n\r\nhello",
            b"HTTP/1.0 302 Moved Temporarily\nLocation: http://a/\nSet-Cookie: a=b; path=/\n\n",
            b"HTTP/1.1 101 Switching\r\nConnection: upgrade, x\r\nUpgrade: websocket\r\n\r\n",
            b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nX-Accel-Redirect: /a\r\n\r\n",
        ];
        run(super::h1_response, seeds, &[], 100_000);
    }

    #[test]
    fn chunked_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"5\r\nhello\r\n0\r\n\r\n",
            b"00a;a=\"b c\";d\r\n0123456789\r\n1 ;x\r\ny\r\n0\r\nA: b\r\nC:\r\n\r\nGET / HTTP/1.1",
            b"7fffffffffffffff\r\nabc",
        ];
        run(super::chunked, seeds, &[], 200_000);
    }

    #[test]
    fn uri_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"/a/b/../c/./d//e.html?f=g#h",
            b"/%2e%2e/%2F%25%3f%23/..",
            b"?x",
            b"/a+b%2Bc\xc3\xa9\xff\"<>&'\\",
        ];
        run(super::uri, seeds, &[], 200_000);
    }

    #[test]
    fn range_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"bytes=0-499,500-999,-1",
            b"bytes= 0 - 9223372036854775807 , -5 , 99999999999999999999-",
            b"bytes=0-,0-,0-,0-,0-,0-,0-,0-,0-",
        ];
        run(super::range, seeds, &[], 300_000);
    }

    #[test]
    fn date_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"Sun, 06 Nov 1994 08:49:37 GMT",
            b"Sunday, 06-Nov-94 08:49:37 GMT",
            b"Sun Nov  6 08:49:37 1994",
            b"Tue, 29 Feb 2000 23:59:59 GMT",
        ];
        run(super::date, seeds, &[], 300_000);
    }

    #[test]
    fn proxy_protocol_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 80\r\nGET",
            b"PROXY TCP6 2001:db8::1 ::1 65535 443\r\n",
            b"PROXY UNKNOWN x\r\n",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x11\xc0\0\x02\x01\xc6\x33\x64\x01\x03\xe8\0\x50\x01\0\x02h2",
            b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
        ];
        run(super::proxy_protocol, seeds, &[], 300_000);
    }

    #[test]
    fn accept_survives_mutation() {
        let seeds: &[&[u8]] =
            &[b"gzip, deflate;q=0.5, br;q=0.001, *;q=0", b"xgzip,gzip ; q=1.000", b"*;Q=0."];
        run(super::accept, seeds, &[], 300_000);
    }

    #[test]
    fn h2_frames_survive_mutation() {
        let seeds: &[&[u8]] = &[
            b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\xff\xff\0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84",
            b"\0\0\x05\0\x09\0\0\0\x01\x02ab..\0\0\x04\x08\0\0\0\0\x01\0\0\0\x01",
            b"\0\0\x08\x06\0\0\0\0\x0012345678\0\0\x08\x07\0\0\0\0\0\0\0\0\x01\0\0\0\x0b",
            b"\0\0\x0a\x10\0\0\0\0\0\0\0\0\x01u=5, i\0\0\x05\x02\0\0\0\0\x03\0\0\0\x01\x0f",
        ];
        run(super::h2_frames, seeds, &[b"\0\0\x04", b"\0\0\0\0"], 200_000);
    }

    #[test]
    fn h2_requests_survive_mutation() {
        // RFC 7541 C.4 and C.3, and a literal of each kind.
        let seeds: &[&[u8]] = &[
            b"\x11\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff\
              \x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
            b"\x14\x82\x86\x84\x41\x0fwww.example.com\x82\x87\x85\xbf\x40\x0acustom-key\x0ccustom-value",
            b"\x20\x3f\x09\x82\x86\x04\x04/a?b\x01\x01a\x60\x03a=b\x10\x01x\x01y\x60\x03c=d\x0f\x0d\x015",
        ];
        run(super::h2_request, seeds, &[b"\x40", b"\xbe", b"\x41", b":path"], 200_000);
    }
}
