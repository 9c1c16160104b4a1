//! What modules read of clients and of files that clients may have uploaded, each behind one function
//! of bytes, for the fuzz targets in `fuzz/` and for the mutation tests below. Beside not panicking,
//! each must hold what its module promises.
//!
//! Invariant: compiled for these only; no file, no socket, no clock in what is compared.

use std::{
    cell::OnceCell,
    net::{IpAddr, Ipv4Addr},
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use forebay_session::addr::Cidr;
use forebay_wire::{
    base64::{self, Alphabet},
    h1::{Options, Parser, Progress},
};

pub use super::health_check::fuzz as grpc_health;
use super::{
    mp4::{
        file::{Part, cut},
        fixture::{self, Like},
    },
    ssi::parse::{Found, Parser as SsiParser},
};
use crate::{
    credentials, files::OpenFile, forwarded, plan::Plan, request::Request, testing,
    variables::cookie_value,
};

/// Everything that looks at request fields, and a page with includes.
const SITE: &str = "
    map $cookie_a $by_cookie { default 0; ~^(?<seen>.*)$ $seen; }
    map $http_user_agent $by_agent { default 0; ~*bot 1; }
    geo $remote_addr $by_addr { default x; 192.0.2.0/24 y; }
    split_clients $http_x $split { 50% a; * b; }
    server {
        listen 127.0.0.1:1;
        set_real_ip_from 127.0.0.0/8;
        real_ip_header X-Forwarded-For;
        real_ip_recursive on;
        userid on;
        gzip on; gzip_types *; gzip_min_length 1; gzip_proxied no-cache auth; gzip_disable msie6;
        brotli on; brotli_types *; brotli_min_length 1;
        zstd on; zstd_types *; zstd_min_length 1;
        add_header X-Seen \"$by_cookie $by_agent $by_addr $split $remote_user $arg_a $ancient_browser\";
        add_header X-Told \"$http_x $cookie_b $invalid_referer $secure_link $uri\";
        secure_link $arg_md5,$arg_e;
        secure_link_md5 \"$secure_link_expires$uri$remote_addr\";
        valid_referers none blocked server_names *.example.com ~good;
        ssi on; ssi_types *;
        location / { return 200 \"0123456789 0123456789 0123456789 0123456789\"; }
        location /in { return 200 \"in <!--# echo var='x' --> it\"; }
    }";

thread_local! {
    static PLAN: OnceCell<Arc<Plan>> = const { OnceCell::new() };
}

fn plan() -> Arc<Plan> {
    let load = || Arc::new(testing::plan(SITE).expect("it must load"));
    PLAN.with(|plan| plan.get_or_init(load).clone())
}

/// A request with these bytes behind its first line; `None` where the parser refuses them.
fn request(target: &str, fields: &[u8]) -> Option<Request> {
    let mut head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n").into_bytes();
    head.extend_from_slice(fields);
    head.extend_from_slice(b"\r\n\r\n");
    let options = Options {
        underscores: true,
        ignore_invalid_headers: false,
        client_header_buffer_size: 1024,
        large_buffers: (4, 8192),
        max_headers: 100,
    };
    let mut parser = Parser::new();
    let Ok(Progress::Complete { consumed }) = parser.parse(&head, &options) else { return None };
    head.truncate(consumed);
    let mut r = testing::request_of(plan(), &format!("GET {target} HTTP/1.1\r\n\r\n"));
    let input = r.input_mut();
    input.buf = head;
    parser.swap_head(&mut input.head);
    Some(r)
}

/// A response that may leave the house: no field of it breaks its line, its length is true.
fn check(r: &mut Request) {
    let response = &r.response;
    assert!((200..600).contains(&response.status), "{}", response.status);
    for field in response.fields.iter().chain(&response.trailers) {
        let is_bad = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
        assert!(!field.name.iter().chain(&field.value[..]).any(is_bad), "{:?}", field.value);
    }
    let length = response.content_length;
    let body = testing::drain(&mut r.response.body).expect("a whole body");
    assert!(length.is_none_or(|length| length == body.len() as u64));
}

/// The fields of a request, through all modules that look at them.
pub fn fields(data: &[u8]) {
    let (target, data) = match data.split_first() {
        Some((bits, rest)) if bits & 1 == 1 => ("/in?a=1&md5=x,y&e=2", rest),
        _ => ("/", data),
    };
    let Some(mut r) = request(target, data) else { return };
    testing::answer_waiting(&mut r);
    check(&mut r);
}

/// A value of one field, which cannot hold what would end its line.
fn field(name: &str, value: &[u8]) -> Vec<u8> {
    let value = value.iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n' | 0));
    format!("{name}: ").into_bytes().into_iter().chain(value).collect()
}

/// `Cookie`: what is found is a part of the header, and the cookie of `userid` is answered well.
pub fn cookies(data: &[u8]) {
    for name in [&b"a"[..], b"uid", b""] {
        if let Some(value) = cookie_value(data, name) {
            assert!(!value.contains(&b';') && data.len() >= value.len());
        }
    }
    let Some(mut r) = request("/", &field("Cookie", data)) else { return };
    testing::answer_waiting(&mut r);
    check(&mut r);
}

/// `Authorization: Basic`: a user has a name without a colon; Base64 is undone.
pub fn basic(data: &[u8]) {
    for value in [data, &[b"Basic ", data].concat()] {
        if let Some(found) = credentials::basic(Some(value)) {
            assert!(!found.user().is_empty() && !found.user().contains(&b':'));
            assert!(found.user().len() + found.password().len() < value.len());
        }
    }
    let mut text = Vec::new();
    base64::encode(data, &mut text);
    assert!(data.is_empty() || base64::decode(&text, Alphabet::Standard).as_deref() == Some(data));
    base64::decode(data, Alphabet::Url);
}

/// `X-Forwarded-For`: nobody is believed who is not trusted, and one step is the first of many.
pub fn x_forwarded_for(data: &[u8]) {
    let trusted: Vec<Cidr> = [&b"127.0.0.0/8"[..], b"10.0.0.0/8", b"2001:db8::/32"]
        .iter()
        .filter_map(|text| Some(Cidr::parse(text)?.0))
        .collect();
    let is_trusted = |ip: Option<IpAddr>| trusted.iter().any(|cidr| cidr.contains(ip));
    let lists: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let behind = |ip: Ipv4Addr, recursive| {
        forwarded::behind((Some(ip.into()), None), lists.iter().copied(), &trusted, recursive)
    };
    let stranger = Ipv4Addr::new(192, 0, 2, 1);
    assert_eq!((behind(stranger, false), behind(stranger, true)), (None, None));
    let (step, end) = (behind(Ipv4Addr::LOCALHOST, false), behind(Ipv4Addr::LOCALHOST, true));
    match step {
        Some((ip, _)) if !is_trusted(ip) => assert_eq!(step, end),
        Some(_) => assert!(end.is_some()),
        None => {}
    }
}

/// `Range`: the parts of a `multipart/byteranges` answer are those of the whole, between boundaries
/// that its head names, and its length is true.
pub fn multipart(data: &[u8]) {
    let whole: Vec<u8> = (0..=255).collect();
    let Some(mut r) = request("/", &field("Range", data)) else { return };
    r.respond(200, "text/plain".into(), whole.clone().into());
    r.response.allow_ranges = true;
    let plan = r.plan.clone();
    let ranges = plan.location(r.location).filters.last().expect("the range filter");
    ranges.filter(&mut r);
    if r.response.status != 206 {
        return;
    }
    let (length, body) = (r.response.content_length, testing::drain(&mut r.response.body));
    let body = body.expect("a whole body");
    assert_eq!(length, Some(body.len() as u64));
    let content_type = r.response.content_type.clone().unwrap_or_default();
    let Some(boundary) = content_type.strip_prefix(b"multipart/byteranges; boundary=") else {
        assert!(body.len() <= whole.len());
        return;
    };
    let line = [b"\r\n--", boundary].concat();
    let mut rest = &body[..];
    while let Some(part) = rest.strip_prefix(&line[..]).and_then(|r| r.strip_prefix(b"\r\n")) {
        let end = memchr::memmem::find(part, b"\r\n\r\n").expect("the head of a part ends");
        let head = std::str::from_utf8(&part[..end]).expect("it is text");
        let numbers = head
            .strip_prefix("Content-Type: text/plain\r\nContent-Range: bytes ")
            .and_then(|range| range.strip_suffix("/256"))
            .and_then(|range| range.split_once('-'));
        let (first, last) = numbers.expect("a range");
        let range = first.parse::<usize>().expect("a number")..=last.parse().expect("a number");
        let content = &part[end + 4..];
        assert!(content.starts_with(&whole[range.clone()]));
        rest = &content[range.count()..];
    }
    assert_eq!(rest, [&line[..], b"--\r\n"].concat());
}

/// A page: the same commands are found however it is cut, and carrying them out ends.
pub fn ssi(data: &[u8]) {
    let (step, page) =
        data.split_first().map_or((1, data), |(n, page)| (usize::from(*n) + 1, page));
    let found = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut parser = SsiParser::new(16);
        let (mut text, mut commands) = (Vec::new(), Vec::new());
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            loop {
                match parser.next(&mut input) {
                    Found::End => break,
                    Found::Text(more) => text.extend_from_slice(&more),
                    other => commands.push((text.len(), other)),
                }
            }
        }
        (text, commands)
    };
    assert_eq!(found(&mut std::iter::once(page)), found(&mut page.chunks(step)));
    let pieces: Vec<&[u8]> = page.chunks(step).collect();
    let mut r = testing::filtered_of(&plan(), &pieces);
    testing::drain(&mut r.response.body).ok();
}

/// A video: the first bytes say which part is wanted, and whether the rest is a file or what is
/// changed in a good one. What is sent lies within the file, and its head is hardly larger than the
/// one that was read.
pub fn mp4(data: &[u8]) {
    let Some((&[bits, start, length], rest)) = data.split_first_chunk() else { return };
    let file = match bits & 3 {
        0 => rest.to_vec(),
        kind => patched(kind, rest),
    };
    let part = Part {
        start_ms: u64::from(start) * 20,
        length_ms: u64::from(length) * 20,
        start_key_frame: bits & 4 != 0,
        max_moov: 1 << 20,
    };
    let size = file.len() as u64;
    let file = Rc::new(OpenFile::of_contents(file.into()));
    let mut cutting = pin!(cut(&file, &part));
    let mut cx = Context::from_waker(Waker::noop());
    let done = loop {
        if let Poll::Ready(done) = cutting.as_mut().poll(&mut cx) {
            break done;
        }
    };
    match done {
        Ok(Some(cut)) => {
            assert!(cut.start <= cut.end && cut.end <= size, "{cut:?}");
            assert!(cut.head.len() as u64 <= size + 1024, "{} {size}", cut.head.len());
        }
        Ok(None) => {}
        Err(broken) => drop(broken.message("x")),
    }
}

/// A good video with changes: each is where, how, and what.
fn patched(kind: u8, changes: &[u8]) -> Vec<u8> {
    let like = match kind {
        1 => fixture::PLAIN,
        2 => Like { long_offsets: true, version: 1, moov_first: false, ..fixture::PLAIN },
        _ => Like { runs: &[(2, 3), (1, 1), (2, 7), (100, 5)], ..fixture::PLAIN },
    };
    let mut file = fixture::video(&like);
    for &[high, low, how, what] in changes.as_chunks::<4>().0 {
        let at = usize::from(u16::from_be_bytes([high, low])) % file.len().max(1);
        match how & 3 {
            0 => file.truncate(at.max(8)),
            1 => file[at] = what,
            2 => file[at] ^= 1 << (what & 7),
            _ => {
                let at = at & !3;
                let number = [0xff, 0x7f, 0x80, what];
                let bytes = [number[usize::from(how >> 6)], 0xff, 0xff, what];
                let end = file.len().min(at + 4);
                file[at..end].copy_from_slice(&bytes[..end - at]);
            }
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use forebay_wire::fuzzing::mutate::run;

    #[test]
    fn what_is_well_formed_reaches_the_modules() {
        let mut r = super::request("/", b"Cookie: a=1\r\nAccept-Encoding: br").expect("a request");
        crate::testing::answer_waiting(&mut r);
        assert_eq!(r.response.field("Content-Encoding").map(|c| &c[..]), Some(&b"br"[..]));
        assert_eq!(super::field("Range", b"a\r\nb"), b"Range: ab");
        assert_eq!(super::patched(1, b""), super::fixture::video(&super::fixture::PLAIN));
    }

    #[test]
    fn fields_survive_mutation() {
        let seeds: &[&[u8]] = &[
            b"Cookie: a=1; uid=fwAAAWXl\r\nX-Forwarded-For: 1.2.3.4, 10.0.0.1",
            b"\x01Accept-Encoding: gzip;q=0.5, br;q=1, zstd;q=0\r\nVia: 1.1 x\r\nX: y",
            b"Authorization: Basic YTpi\r\nReferer: http://www.example.com/\r\nRange: bytes=0-1,3-4",
            b"User-Agent: Mozilla/4.0 (compatible; MSIE 6.0; bot)\r\nIf-None-Match: W/\"a\", \"b\"",
            b"If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\nIf-Range: \"x\"\r\nCookie: b=",
        ];
        run(super::fields, seeds, &[b"Cookie: ", b"Range: bytes=", b"If-Match: *"], 15_000);
    }

    #[test]
    fn cookies_survive_mutation() {
        let seeds: &[&[u8]] = &[
            b"a=1; b=2; uid=fwAAAWXl1TYHxBbvAwMDAg==",
            b"uid=fwAAAWXl1TYHxBbvAwMDAg; a = x , a=y;;",
            b"=; a; =a; uid=; uid",
        ];
        run(super::cookies, seeds, &[b"uid=", b"; ", b"a="], 15_000);
    }

    #[test]
    fn basic_survives_mutation() {
        let seeds: &[&[u8]] =
            &[b"QWxhZGRpbjpvcGVuIHNlc2FtZQ==", b"basic   YTo=", b"Basic OmI=", b"dTpwOnE="];
        run(super::basic, seeds, &[b"Basic ", b"Og==", b"_-"], 300_000);
    }

    #[test]
    fn x_forwarded_for_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"192.0.2.1, 10.0.0.1, 127.0.0.1",
            b"2001:db8::1\n[::1]:80, 10.1.1.1:65535",
            b"unix:, 1.2.3.4:99999,,  , 10.0.0.0",
        ];
        run(super::x_forwarded_for, seeds, &[b"10.0.0.1", b", ", b"::", b"[", b"]:"], 200_000);
    }

    #[test]
    fn multipart_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"bytes=0-1,3-4,-5",
            b"bytes=200-255, 0-0 , 5-",
            b"bytes=255-256,256-,-0,0-18446744073709551615",
        ];
        run(super::multipart, seeds, &[b"0-0,", b"-1,", b"bytes="], 20_000);
    }

    #[test]
    fn ssi_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"\x02a<!--# if expr=\"$arg_x = /y(.)/\" -->1<!--# elif expr='$1' -->2<!--# else -->3<!--# endif -->",
            b"\x07<!--# set var='x' value='$x$x' --><!--# include virtual='/in?$x' wait='yes' set='y' -->",
            b"\x01<!--# block name='b' --><!--# echo var='x' default='&' encoding='url' --><!--# endblock -->\
              <!--# include file='in' stub='b' --><!--# config errmsg='e' timefmt='%s' -->",
            b"\x00<!--# include virtual='/in' -->-<!-- # no --><!--#x y='\\'z' -->",
        ];
        let pieces: &[&[u8]] = &[b"<!--# ", b" -->", b"='", b"' ", b"$x", b"include virtual='/in'"];
        run(super::ssi, seeds, pieces, 8_000);
    }

    #[test]
    fn mp4_survives_mutation() {
        let seeds: &[&[u8]] = &[
            b"\x01\x32\x00\x00\x80\x01\x05\x00\xa0\x03\x01",
            b"\x02\x10\x20\x01\x00\x43\x02",
            b"\x07\x40\x10\x00\x90\x02\x03\x02\x00\x83\x7f",
            b"\x00\x01\x00\0\0\0\x10ftypisom\0\0\0\0\0\0\0\x08moov\0\0\0\x08mdat",
        ];
        run(super::mp4, seeds, &[b"moov", b"\xff\xff\xff\xff", b"\0\0\0\x01"], 20_000);
    }
}
