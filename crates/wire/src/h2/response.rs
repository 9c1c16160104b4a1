//! From decompressed fields to a response head of the same form as one of HTTP/1: a status and fields as
//! slices of one buffer, so that nothing behind it needs to know the difference.
//!
//! Answers ngx_http_grpc_process_header and ngx_http_grpc_validate_header_name. RFC 9113 §8.2 and §8.3.
//!
//! DIFFERS(h2-upstream-malformed): what RFC 9113 §8.1.1 calls malformed is refused; nginx looks at names
//! and values less closely.
//!
//! Hot path: no allocation once the buffer and the vector of fields have grown.
//!
//! *Invariant:* a response that is malformed in the RFC's sense never leaves this file as a good one, and
//! what leaves it has no CR, LF or NUL anywhere.

use super::{
    fault::Fault,
    hpack::Field,
    request::{is_name, is_value},
};
use crate::{
    Span,
    class::TOKEN,
    h1::{
        BadResponse, ResponseBody, ResponseField, ResponseFieldId as Id, ResponseFraming,
        ResponseHead, Version, framing::parse_length, response::MAX_FIELDS,
    },
};

/// What a field counts beside its name and value: what it would in HTTP/1.
const OVERHEAD: usize = 4;

/// Takes fields as they are decompressed.
pub struct ResponseBuilder<'a> {
    text: &'a mut Vec<u8>,
    head: &'a mut ResponseHead,
    /// How much all names and values may be (`proxy_buffer_size`).
    limit: usize,
    size: usize,
    bad: Option<BadResponse>,
}

impl<'a> ResponseBuilder<'a> {
    /// Builds `head`, whose spans point into `text`; what was in them goes.
    pub fn new(text: &'a mut Vec<u8>, head: &'a mut ResponseHead, limit: usize) -> Self {
        text.clear();
        head.clear();
        head.version = Version::Http2;
        ResponseBuilder { text, head, limit, size: 0, bad: None }
    }

    /// The next field. After the first one that is wrong, the rest is passed over.
    pub fn field(&mut self, field: Field<'_>) {
        if self.bad.is_some() {
            return;
        }
        self.size += field.name.len() + field.value.len() + OVERHEAD;
        let lines = self.head.fields.len() + self.head.skipped.len();
        if self.size > self.limit || lines >= MAX_FIELDS {
            self.bad = Some(BadResponse::TooBig);
            return;
        }
        let taken = match field.name.first() {
            Some(b':') => self.pseudo_field(field),
            _ => self.regular_field(field),
        };
        self.bad = taken.err();
    }

    fn pseudo_field(&mut self, field: Field<'_>) -> Result<(), BadResponse> {
        let behind = !self.head.fields.is_empty() || !self.head.skipped.is_empty();
        if field.name != b":status" || behind {
            return Err(self.refuse(field));
        }
        if self.head.status != 0 {
            return Err(text("upstream sent duplicate :status header"));
        }
        let Some(status) = status(field.value) else {
            self.head.refused = Some(append(self.text, field.value));
            return Err(BadResponse::Http2(Fault::InvalidStatus));
        };
        // RFC 9113 §8.6: there is no upgrade in HTTP/2.
        if status == 101 {
            return Err(BadResponse::Http2(Fault::UnexpectedStatus(status)));
        }
        self.head.status = status;
        self.head.status_text = append(self.text, field.value);
        Ok(())
    }

    fn regular_field(&mut self, field: Field<'_>) -> Result<(), BadResponse> {
        if self.head.status == 0 {
            return Err(text("upstream sent no :status header"));
        }
        if !(field.known_name || is_name(field.name)) || !is_value(field.value) {
            return Err(self.refuse(field));
        }
        let id = Id::of(field.name);
        // RFC 9113 §8.2.2.
        if is_of_connection(id) {
            return Err(self.refuse(field));
        }
        if id == Id::Other && !field.name.iter().all(|ch| TOKEN[usize::from(*ch)]) {
            let line = self.line(field);
            self.head.skipped.push(line);
            return Ok(());
        }
        let name = append(self.text, field.name);
        let value = append(self.text, field.value);
        self.head.fields.push(ResponseField { name, value, id });
        Ok(())
    }

    fn line(&mut self, field: Field<'_>) -> Span {
        let start = self.text.len();
        self.text.extend_from_slice(field.name);
        self.text.extend_from_slice(b": ");
        self.text.extend_from_slice(field.value);
        Span::new(start, self.text.len())
    }

    fn refuse(&mut self, field: Field<'_>) -> BadResponse {
        self.head.refused = Some(self.line(field));
        BadResponse::InvalidHeader
    }

    /// The end of the section.
    pub fn finish(self) -> Result<(), BadResponse> {
        match self.bad {
            Some(bad) => Err(bad),
            None if self.head.status == 0 => Err(text("upstream sent no :status header")),
            None => Ok(()),
        }
    }
}

const fn text(text: &'static str) -> BadResponse {
    BadResponse::Http2(Fault::Text(text))
}

fn status(value: &[u8]) -> Option<u16> {
    let &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else { return None };
    let digit = |ch: u8| u16::from(ch - b'0');
    Some(digit(a) * 100 + digit(b) * 10 + digit(c))
}

fn append(text: &mut Vec<u8>, bytes: &[u8]) -> Span {
    let start = text.len();
    text.extend_from_slice(bytes);
    Span::new(start, text.len())
}

fn is_of_connection(id: Id) -> bool {
    matches!(
        id,
        Id::Connection | Id::KeepAlive | Id::ProxyConnection | Id::TransferEncoding | Id::Upgrade
    )
}

/// What a complete head means: how its body is told to clients, and how long that must be in all,
/// where it is known. `head_request`: the answer is to a HEAD; `end_stream`: nothing follows.
pub fn response_framing(
    head: &ResponseHead,
    text: &[u8],
    head_request: bool,
    end_stream: bool,
) -> Result<(ResponseFraming, Option<u64>), BadResponse> {
    let mut length = None;
    for field in head.fields.iter().filter(|field| field.id == Id::ContentLength) {
        if length.is_some() {
            return Err(BadResponse::DuplicateHeader);
        }
        length = Some(parse_length(field.value.of(text)).ok_or(BadResponse::ContentLength)?);
    }
    let mut framing = ResponseFraming { length, keep_alive: true, ..ResponseFraming::default() };
    let expected = match head.status {
        100..=199 if end_stream => return Err(BadResponse::Http2(Fault::ENDED_EARLY)),
        100..=199 => {
            framing.interim = true;
            return Ok((framing, None));
        }
        204 | 304 => Some(0),
        _ if head_request => Some(0),
        _ => length,
    };
    match (end_stream, expected) {
        // RFC 9113 §8.1.1: the DATA frames, of which there are none, must sum up to it.
        (true, Some(1..)) => return Err(BadResponse::Http2(Fault::ENDED_EARLY)),
        (true, _) | (false, Some(0)) => {}
        (false, Some(length)) => framing.body = ResponseBody::Length(length),
        (false, None) => framing.body = ResponseBody::Close,
    }
    Ok((framing, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn build(fields: Pairs<'_>) -> (ResponseHead, Vec<u8>, Result<(), BadResponse>) {
        let (mut text, mut head) = (Vec::new(), ResponseHead::default());
        let mut builder = ResponseBuilder::new(&mut text, &mut head, 200);
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            builder.field(Field { name, value, known_name: false });
        }
        let result = builder.finish();
        (head, text, result)
    }

    #[test]
    fn a_response_looks_as_if_it_had_come_by_http_1() {
        let (head, text, result) =
            build(&[(":status", "404"), ("content-length", "5"), ("x", ""), ("a(b", "c")]);
        assert_eq!(result, Ok(()));
        assert_eq!((head.status, head.version), (404, Version::Http2));
        let of = |span: Span| String::from_utf8_lossy(span.of(&text)).into_owned();
        assert_eq!(of(head.status_text), "404");
        let fields: Vec<_> = head.fields.iter().map(|f| (of(f.name), of(f.value), f.id)).collect();
        let field = |name: &str, value: &str, id| (name.to_owned(), value.to_owned(), id);
        assert_eq!(
            fields,
            [field("content-length", "5", Id::ContentLength), field("x", "", Id::Other)]
        );
        // A name that HTTP/1 does not have is not passed on.
        assert_eq!(head.skipped.iter().map(|span| of(*span)).collect::<Vec<_>>(), ["a(b: c"]);
    }

    #[test]
    fn malformed_responses_are_refused() {
        const NO_STATUS: &str = "upstream sent no :status header";
        const INVALID_STATUS: &str = "upstream sent invalid :status";
        const INVALID: &str = "upstream sent invalid header";
        const BIG: &str = "upstream sent too big header";
        let long = "x".repeat(190);
        let cases: &[(Pairs<'_>, &str)] = &[
            (&[], NO_STATUS),
            (&[("a", "b")], NO_STATUS),
            (&[(":status", "")], INVALID_STATUS),
            (&[(":status", "20")], INVALID_STATUS),
            (&[(":status", "2000")], INVALID_STATUS),
            (&[(":status", "099")], INVALID_STATUS),
            (&[(":status", "2 0")], INVALID_STATUS),
            (&[(":status", "200 OK")], INVALID_STATUS),
            (&[(":status", "101")], "upstream sent unexpected :status \"101\""),
            (&[(":status", "200"), (":status", "200")], "upstream sent duplicate :status header"),
            (&[(":status", "200"), ("a", "b"), (":status", "200")], INVALID),
            (&[(":status", "200"), (":path", "/")], INVALID),
            (&[(":method", "GET")], INVALID),
            (&[(":status", "200"), ("A", "b")], INVALID),
            (&[(":status", "200"), ("a b", "c")], INVALID),
            (&[(":status", "200"), ("a:b", "c")], INVALID),
            (&[(":status", "200"), ("", "c")], INVALID),
            (&[(":status", "200"), ("a\u{e9}", "c")], INVALID),
            (&[(":status", "200"), ("a\0", "c")], INVALID),
            (&[(":status", "200"), ("a", "b\r\nc: d")], INVALID),
            (&[(":status", "200"), ("a", "b\nc")], INVALID),
            (&[(":status", "200"), ("a", "b\0")], INVALID),
            (&[(":status", "200"), ("a", " b")], INVALID),
            (&[(":status", "200"), ("a", "b\t")], INVALID),
            (&[(":status", "200"), ("connection", "close")], INVALID),
            (&[(":status", "200"), ("keep-alive", "1")], INVALID),
            (&[(":status", "200"), ("proxy-connection", "x")], INVALID),
            (&[(":status", "200"), ("transfer-encoding", "chunked")], INVALID),
            (&[(":status", "200"), ("upgrade", "h2c")], INVALID),
            (&[(":status", "200"), ("a", &long)], BIG),
            (&[(":status", "200"), ("a", &long[..100]), ("a", &long[..100])], BIG),
        ];
        for (fields, reason) in cases {
            let bad = build(fields).2.expect_err("refused");
            assert_eq!(bad.to_string(), *reason, "{fields:?}");
        }
        let (head, text, _) = build(&[(":status", "200"), ("connection", "close")]);
        assert_eq!(head.refused.expect("told").of(&text), b"connection: close");
        let many = vec![("a", ""); MAX_FIELDS];
        let (mut text, mut head) = (Vec::new(), ResponseHead::default());
        let mut builder = ResponseBuilder::new(&mut text, &mut head, usize::MAX);
        for (name, value) in [(":status", "200")].into_iter().chain(many).chain([("b", "")]) {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            builder.field(Field { name, value, known_name: false });
        }
        assert_eq!(builder.finish(), Err(BadResponse::TooBig));
    }

    #[test]
    fn bodies_are_as_long_as_they_are_said_to_be() {
        let early = Err("upstream prematurely closed stream".to_owned());
        let ok = |body, length, expected| Ok((body, length, expected));
        use ResponseBody::{Close, Length, None as Nothing};
        type Seen = Result<(ResponseBody, Option<u64>, Option<u64>), String>;
        let cases: &[(&str, &[&str], bool, bool, Seen)] = &[
            ("200", &["5"], false, false, ok(Length(5), Some(5), Some(5))),
            ("200", &[], false, false, ok(Close, None, None)),
            ("200", &[], false, true, ok(Nothing, None, None)),
            ("200", &["0"], false, true, ok(Nothing, Some(0), Some(0))),
            ("200", &["0"], false, false, ok(Nothing, Some(0), Some(0))),
            ("200", &["5"], false, true, early.clone()),
            ("200", &["5"], true, true, ok(Nothing, Some(5), Some(0))),
            ("200", &["5"], true, false, ok(Nothing, Some(5), Some(0))),
            ("204", &[], false, false, ok(Nothing, None, Some(0))),
            ("304", &["5"], false, true, ok(Nothing, Some(5), Some(0))),
            ("103", &[], false, true, early),
            (
                "200",
                &["5", "5"],
                false,
                false,
                Err("upstream sent duplicate header line".to_owned()),
            ),
            (
                "200",
                &["+5"],
                false,
                false,
                Err("upstream sent invalid \"Content-Length\" header".to_owned()),
            ),
        ];
        for (status, lengths, head_request, end_stream, seen) in cases {
            let lengths = lengths.iter().map(|length| ("content-length", *length));
            let fields: Vec<_> = [(":status", *status)].into_iter().chain(lengths).collect();
            let (head, text, result) = build(&fields);
            assert_eq!(result, Ok(()));
            let got = response_framing(&head, &text, *head_request, *end_stream)
                .map(|(framing, expected)| (framing.body, framing.length, expected))
                .map_err(|bad| bad.to_string());
            assert_eq!(got, *seen, "{fields:?} {head_request} {end_stream}");
        }
        let (head, text, _) = build(&[(":status", "103")]);
        assert!(response_framing(&head, &text, false, false).unwrap().0.interim);
    }
}
