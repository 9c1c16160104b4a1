//! Reads HTTP/1 responses: the head, then a body by length, in chunks, or up to the end of the
//! connection.
//!
//! Hot path: a body is decoded where it was read to.
//!
//! Invariant: how a body ends is said by `wire::h1::response_framing` and nowhere else.

use bytes::Bytes;
use forebay_session::log::Shown;
use forebay_wire::h1::{
    BadResponse, Progress, ResponseBody, ResponseFraming, ResponseHead, ResponseParser, Sent,
    chunked::Decoder, encode, response_framing,
};

use crate::{
    response::Field,
    upstream::{
        Codec, Decoded, MORE_THAN_LENGTH, Outgoing, head::explain_framing, matters_before_the_body,
    },
};

enum Left {
    /// The head is not there yet.
    Head,
    Nothing,
    Bytes(u64),
    Chunked(Decoder),
    Close,
}

/// One response.
pub struct Http1 {
    parser: ResponseParser,
    sent: Sent,
    left: Left,
    /// What is said of bytes behind the response.
    of_more: Option<&'static str>,
    /// The text of the trailers, as far as it came.
    trailers: Vec<u8>,
}

impl Http1 {
    /// For the answer to such a request.
    pub fn new(sent: Sent, head: ResponseHead) -> Http1 {
        let parser = ResponseParser::with_head(head);
        Http1 { parser, sent, left: Left::Head, of_more: None, trailers: Vec::new() }
    }
}

impl Codec for Http1 {
    fn frames(&self, body: &Outgoing) -> bool {
        body.length().is_none()
    }

    fn wrap(&mut self, len: usize, last: bool, before: &mut Vec<u8>, after: &mut Vec<u8>) {
        if len > 0 {
            encode::write_chunk_size(before, len as u64);
            after.extend_from_slice(b"\r\n");
        }
        if last {
            after.extend_from_slice(b"0\r\n\r\n");
        }
    }

    fn read_head(&mut self, buf: &mut Vec<u8>, limit: usize) -> Result<Option<usize>, BadResponse> {
        Ok(match self.parser.parse(buf, limit)? {
            Progress::Complete { consumed } => Some(consumed),
            Progress::Partial => None,
        })
    }

    fn head(&self) -> &ResponseHead {
        self.parser.head()
    }

    fn framing(&mut self, buf: &[u8]) -> Result<ResponseFraming, BadResponse> {
        let framing = response_framing(self.parser.head(), buf, self.sent)?;
        self.of_more = match framing.body {
            // Nobody looks behind the response to a HEAD.
            ResponseBody::None if self.sent.head => None,
            ResponseBody::Chunked => {
                Some("upstream sent data after final chunk while reading upstream")
            }
            _ => Some(MORE_THAN_LENGTH),
        };
        self.left = match framing.body {
            ResponseBody::None | ResponseBody::Length(0) => Left::Nothing,
            ResponseBody::Length(length) => Left::Bytes(length),
            ResponseBody::Chunked => Left::Chunked(Decoder::new()),
            ResponseBody::Close => Left::Close,
        };
        Ok(framing)
    }

    fn reset(&mut self) {
        self.parser.reset();
        self.left = Left::Head;
    }

    fn take_head(&mut self) -> ResponseHead {
        self.parser.take_head()
    }

    fn left_over(&self) -> Option<String> {
        self.of_more.map(str::to_owned)
    }

    fn decode(&mut self, buf: &mut Vec<u8>, from: usize) -> Decoded {
        let here = buf.len() - from;
        match &mut self.left {
            Left::Head | Left::Nothing => {
                Decoded { data_end: from, left_over: here, done: true, bad: None }
            }
            Left::Close => Decoded { data_end: buf.len(), ..Decoded::default() },
            Left::Bytes(left) => {
                let take = usize::try_from(*left).map_or(here, |left| left.min(here));
                *left -= take as u64;
                let done = *left == 0;
                if done {
                    self.left = Left::Nothing;
                }
                Decoded { data_end: from + take, left_over: here - take, done, bad: None }
            }
            Left::Chunked(decoder) => {
                let decoded = unchunk(decoder, buf, from, &mut self.trailers);
                if decoded.done {
                    self.left = Left::Nothing;
                }
                decoded
            }
        }
    }

    fn ends_with_connection(&self) -> bool {
        matches!(self.left, Left::Close)
    }

    fn take_trailers(&mut self) -> Vec<Field> {
        let text = Bytes::from(std::mem::take(&mut self.trailers));
        let mut fields = Vec::new();
        let mut at = 0;
        while let Some(len) = memchr::memchr(b'\r', &text[at..]) {
            // The decoder let only well-formed lines through.
            let line = text.slice(at..at + len);
            at = (at + len + 2).min(text.len());
            let Some(colon) = memchr::memchr(b':', &line) else { break };
            let name = line.slice(..colon);
            if !matters_before_the_body(&name) {
                let value = line.slice_ref(line[colon + 1..].trim_ascii());
                fields.push(Field { name, value });
            }
        }
        fields
    }

    fn explain(&self, bad: BadResponse, buf: &[u8]) -> String {
        let refused = self.parser.head().refused.filter(|_| bad == BadResponse::InvalidHeader);
        let Some(line) = refused else { return explain_framing(bad, self.parser.head(), buf) };
        let byte = buf.get(line.end as usize).unwrap_or(&0);
        format!("{bad}: \"{}\\x{byte:02x}...\"", Shown(line.of(buf)))
    }
}

/// Moves the data of chunks together.
fn unchunk(decoder: &mut Decoder, buf: &mut [u8], from: usize, trailers: &mut Vec<u8>) -> Decoded {
    let (mut at, mut end) = (from, from);
    loop {
        let Ok(step) = decoder.decode(&buf[at..]) else {
            let bad = Some(BadResponse::InvalidChunked);
            return Decoded { data_end: end, bad, ..Decoded::default() };
        };
        let (start, len) = (at + step.data.start, step.data.len());
        if !step.trailers.is_empty() {
            trailers.extend_from_slice(&buf[at + step.trailers.start..at + step.trailers.end]);
        }
        buf.copy_within(start..start + len, end);
        end += len;
        at += step.consumed;
        if step.done || at == buf.len() || step.consumed == 0 {
            let left_over = buf.len() - at;
            return Decoded { data_end: end, left_over, done: step.done, bad: None };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codec(fields: &str) -> Http1 {
        let mut head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n").into_bytes();
        let mut codec = Http1::new(Sent::default(), ResponseHead::default());
        assert_eq!(codec.read_head(&mut head, 4096), Ok(Some(head.len())));
        codec.framing(&head).unwrap();
        codec
    }

    /// What a body that comes in these pieces is, and how much is left over; or what is wrong behind it.
    #[allow(clippy::type_complexity)]
    fn read(
        fields: &str,
        pieces: &[&[u8]],
    ) -> Result<(Vec<u8>, Option<usize>), (Vec<u8>, BadResponse)> {
        let (mut codec, mut body) = (codec(fields), Vec::new());
        for (index, piece) in pieces.iter().enumerate() {
            // What stands before is left alone.
            let mut buf = [b"head", *piece].concat();
            let decoded = codec.decode(&mut buf, 4);
            assert!(buf.starts_with(b"head"));
            body.extend_from_slice(&buf[4..decoded.data_end]);
            if let Some(bad) = decoded.bad {
                return Err((body, bad));
            }
            if decoded.done {
                let after: usize = pieces[index + 1..].iter().map(|piece| piece.len()).sum();
                return Ok((body, Some(decoded.left_over + after)));
            }
        }
        Ok((body, None))
    }

    #[test]
    fn trailers_are_kept_but_for_those_that_decide_about_the_message() {
        let mut codec = codec("Transfer-Encoding: chunked");
        let text = b"1\r\nx\r\n0\r\nX-Sum: 5 \r\nContent-Length: 7\r\nEmpty:\r\n\r\n";
        let mut buf = text.to_vec();
        assert!(codec.decode(&mut buf, 0).done);
        let found: Vec<_> =
            codec.take_trailers().into_iter().map(|field| (field.name, field.value)).collect();
        let pair =
            |name: &'static str, value: &'static str| (Bytes::from(name), Bytes::from(value));
        assert_eq!(found, vec![pair("X-Sum", "5"), pair("Empty", "")]);
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        let chunked = "Transfer-Encoding: chunked";
        let five = "Content-Length: 5";
        for (fields, text, body, left) in [
            (five, &b"hello"[..], &b"hello"[..], Some(0)),
            (five, b"hello!", b"hello", Some(1)),
            (five, b"hell", b"hell", None),
            ("Content-Length: 0", b"x", b"", Some(1)),
            (chunked, b"5\r\nhello\r\n0\r\n\r\n", b"hello", Some(0)),
            (chunked, b"1\r\nh\r\n1\r\ni\r\n0\r\nA: b\r\n\r\nHTTP", b"hi", Some(4)),
            (chunked, b"5\r\nhel", b"hel", None),
            ("X: y", b"anything", b"anything", None),
        ] {
            assert_eq!(read(fields, &[text]), Ok((body.to_vec(), left)), "{fields}");
            for at in 0..=text.len() {
                let (first, second) = text.split_at(at);
                let got = read(fields, &[first, second]);
                assert_eq!(got, Ok((body.to_vec(), left)), "{fields} at {at}");
            }
        }
        let cut = Err((b"hello".to_vec(), BadResponse::InvalidChunked));
        assert_eq!(read(chunked, &[b"5\r\nhello!"]), cut);
        assert_eq!(read(chunked, &[b"5\r\nhello\r\nx"]), cut);
    }
}
