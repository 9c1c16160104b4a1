//! `type=grpc`: one call of `grpc.health.v1.Health/Check`, in HTTP/2, and what the answer must be.
//!
//! As in NGINX Plus, a server is healthy when its `grpc-status` is the one that is wanted; where that is
//! 0, it must say that it is serving, too.
//!
//! A connection may be asked again (`keepalive_time=`). What a server sends in between, a PING among it,
//! is read with its next answer; who has closed meanwhile is asked anew on another connection.
//!
//! Invariant: what is kept of an answer is at most a head of [`MAX_HEAD`] and a body of [`MAX_MESSAGE`]
//! bytes; how much may come in all is for the check to bound.

use std::sync::Arc;

use forebay_session::upstream::health::{Dialogue, Heard, READING, Talk, directives};
use forebay_wire::{
    grpc,
    h1::{ResponseFieldId, ResponseHead},
    h2::{
        DEFAULT_WINDOW,
        hpack::{known, write_field},
    },
};

use crate::upstream::{
    Codec, Remains,
    h2::{Http2, Session},
};

/// How long a field section of an answer may be, in bytes.
const MAX_HEAD: usize = 8 << 10;
/// How long the body of an answer may be, in bytes: the status takes two.
const MAX_MESSAGE: usize = 4 << 10;

/// What is asked and what must be answered.
#[derive(Debug)]
pub struct Question {
    /// The field section.
    head: Vec<u8>,
    message: Vec<u8>,
    status: u32,
}

impl Question {
    /// What a directive says, of a group of that name.
    pub fn new(wanted: &directives::Grpc, authority: &str, is_https: bool) -> Question {
        let scheme = if is_https { known::SCHEME_HTTPS } else { known::SCHEME_HTTP };
        let mut head = vec![known::METHOD_POST, scheme];
        let fields: [(&[u8], &[u8]); 4] = [
            (b":path", grpc::HEALTH_PATH),
            (b":authority", authority.as_bytes()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ];
        for (name, value) in fields {
            write_field(&mut head, name, value, false);
        }
        Question { head, message: grpc::health_request(&wanted.service), status: wanted.status }
    }
}

impl Dialogue for Question {
    fn begin(self: Arc<Self>) -> Box<dyn Talk> {
        let session = Some(Box::new(Session::with_window(DEFAULT_WINDOW)));
        let (codec, body) = (Http2::default(), Vec::new());
        Box::new(Call { question: self, session, codec, sent: 0, head: None, body })
    }
}

/// The call at hand, or the next one.
struct Call {
    question: Arc<Question>,
    /// The connection, between two calls.
    session: Option<Box<Session>>,
    codec: Http2,
    /// How much of the message was sent.
    sent: usize,
    /// The head of the answer, once it is there, as far as it matters.
    head: Option<Head>,
    body: Vec<u8>,
}

/// The `grpc-status` of a head, which counts where no trailers follow.
struct Head {
    status: Option<u32>,
}

type Wrong = &'static str;

impl Call {
    /// Sends of the message what the server takes now.
    fn send(&mut self, out: &mut Vec<u8>) {
        let message = &self.question.message;
        while self.sent < message.len() {
            let left = message.len() - self.sent;
            let now = self.codec.credit(left);
            if now == 0 {
                return;
            }
            self.codec.wrap(now, now == left, out, &mut Vec::new());
            out.extend_from_slice(&message[self.sent..self.sent + now]);
            self.sent += now;
        }
    }

    /// Reads on; whether the connection may be used again, once the answer is complete and right.
    fn read(&mut self, buf: &mut Vec<u8>) -> Result<Option<bool>, Wrong> {
        let mut from = 0;
        while self.head.is_none() {
            let Some(len) = self.codec.read_head(buf, MAX_HEAD).map_err(|_| READING)? else {
                return Ok(None);
            };
            let framing = self.codec.framing(buf).map_err(|_| READING)?;
            if framing.interim {
                buf.drain(..len);
                self.codec.reset();
                continue;
            }
            self.head = Some(judge_head(self.codec.head(), buf)?);
            from = len;
        }
        let decoded = self.codec.decode(buf, from);
        if decoded.bad.is_some() || self.body.len() + decoded.data_end - from > MAX_MESSAGE {
            return Err(READING);
        }
        self.body.extend_from_slice(&buf[from..decoded.data_end]);
        if !decoded.done {
            return Ok(None);
        }
        self.judge()?;
        match self.codec.release() {
            Remains::Session(session) if decoded.left_over == 0 => self.session = Some(session),
            _ => return Ok(Some(false)),
        }
        Ok(Some(true))
    }

    /// Whether a complete answer is the right one.
    fn judge(&mut self) -> Result<(), Wrong> {
        let trailers = self.codec.take_trailers();
        let trailer = trailers.iter().find(|field| &field.name[..] == GRPC_STATUS);
        let status = match trailer {
            Some(field) => grpc::status(&field.value),
            None => self.head.as_ref().and_then(|head| head.status),
        };
        if status.ok_or(READING)? != self.question.status {
            return Err("checking grpc status");
        }
        // Who has another status has no message.
        if self.question.status != 0 {
            return Ok(());
        }
        match grpc::health_status(&self.body).ok_or(READING)? {
            grpc::SERVING => Ok(()),
            _ => Err("checking serving status"),
        }
    }
}

const GRPC_STATUS: &[u8] = b"grpc-status";

fn judge_head(head: &ResponseHead, text: &[u8]) -> Result<Head, Wrong> {
    if head.status != 200 {
        return Err("checking status code");
    }
    let content_type = head.value(ResponseFieldId::ContentType).map(|value| value.of(text));
    if !content_type.is_some_and(grpc::is_content_type) {
        return Err("checking header");
    }
    let field = head.fields.iter().find(|field| field.name.of(text) == GRPC_STATUS);
    Ok(Head { status: field.and_then(|field| grpc::status(field.value.of(text))) })
}

impl Talk for Call {
    fn ask(&mut self) -> Vec<u8> {
        self.codec = Http2::default();
        self.codec.begin(self.session.take());
        (self.sent, self.head) = (0, None);
        self.body.clear();
        let mut out = self.codec.open(&self.question.head, false).unwrap_or_default();
        self.send(&mut out);
        out
    }

    fn hear(&mut self, input: &mut Vec<u8>, end: bool) -> Heard {
        match self.read(input) {
            Err(wrong) => Heard::Verdict(Err(wrong)),
            Ok(Some(may_keep)) => Heard::Verdict(Ok(may_keep && !end)),
            Ok(None) if end => Heard::Verdict(Err(READING)),
            Ok(None) => {
                let mut out = self.codec.take_output();
                self.send(&mut out);
                Heard::More(out)
            }
        }
    }
}

/// What servers send, behind one function of bytes, for the fuzz target in `fuzz/` and for the mutation
/// test: the verdict is the same whatever pieces it comes in. The first byte says what is wanted, and
/// how large the pieces are.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(data: &[u8]) {
    let Some((&bits, bytes)) = data.split_first() else { return };
    let wanted =
        directives::Grpc { status: if bits & 1 == 0 { 0 } else { 12 }, ..Default::default() };
    let question = Arc::new(Question::new(&wanted, "u", false));
    let at_once = verdict(&question, &mut std::iter::once(bytes));
    let in_pieces = verdict(&question, &mut bytes.chunks(1 + usize::from(bits >> 1)));
    assert_eq!(at_once.map(drop), in_pieces.map(drop));
}

#[cfg(any(test, feature = "fuzzing"))]
fn verdict(
    question: &Arc<Question>,
    pieces: &mut dyn Iterator<Item = &[u8]>,
) -> Result<bool, Wrong> {
    let mut talk = question.clone().begin();
    talk.ask();
    for piece in pieces {
        match talk.hear(&mut piece.to_vec(), false) {
            Heard::Verdict(verdict) => {
                // Another call can begin where the last one says so.
                if verdict == Ok(true) {
                    // HEADERS, complete, on stream 3.
                    let begins = [1, 4, 0, 0, 0, 3];
                    assert!(talk.ask().windows(begins.len()).any(|bytes| bytes == begins));
                }
                return verdict;
            }
            Heard::More(out) => assert!(out.len() < 128 << 10),
        }
    }
    match talk.hear(&mut Vec::new(), true) {
        Heard::Verdict(verdict) => verdict,
        Heard::More(_) => panic!("nothing more will come"),
    }
}

#[cfg(test)]
mod tests {
    use forebay_testkit::origin_h2::H2;
    use forebay_wire::h2::{
        ErrorCode, Frame, Head as FrameHead, PREFACE,
        frame::{self, HEAD_BYTES, flag, kind},
        hpack::Decoder,
        settings::id,
    };

    use super::*;

    const END: u8 = flag::END_STREAM;
    const OK: (&str, &str) = (":status", "200");
    const TYPE: (&str, &str) = ("content-type", "application/grpc");
    const SERVING: &[u8] = b"\0\0\0\0\x02\x08\x01";

    fn question(service: &str, status: u32) -> Arc<Question> {
        let wanted = directives::Grpc { service: service.into(), status };
        Arc::new(Question::new(&wanted, "backend", false))
    }

    fn settings(list: &[(u16, u32)]) -> Vec<u8> {
        let mut out = Vec::new();
        frame::write_settings(&mut out, list);
        out
    }

    fn data(payload: &[u8], flags: u8) -> Vec<u8> {
        H2::bytes(kind::DATA, flags, 1, payload)
    }

    fn trailers(status: &str) -> Vec<u8> {
        H2::section(1, &[("grpc-status", status), ("grpc-message", "x")], true)
    }

    fn window_update(stream: u32, increment: u32) -> Vec<u8> {
        let mut out = Vec::new();
        frame::write_window_update(&mut out, stream, increment);
        out
    }

    fn goaway(last: u32) -> Vec<u8> {
        let mut out = Vec::new();
        frame::write_goaway(&mut out, last, ErrorCode::NoError);
        out
    }

    /// An answer that is right, on a stream.
    fn serving(stream: u32) -> Vec<u8> {
        let head = H2::section(stream, &[OK, TYPE], false);
        let data = H2::bytes(kind::DATA, 0, stream, SERVING);
        [head, data, H2::section(stream, &[("grpc-status", "0")], true)].concat()
    }

    /// The frames in what was sent.
    fn frames(mut bytes: &[u8]) -> Vec<(FrameHead, Vec<u8>)> {
        let mut frames = Vec::new();
        while let Some(head) = FrameHead::parse(bytes) {
            frames.push((head, bytes[HEAD_BYTES..HEAD_BYTES + head.len].to_vec()));
            bytes = &bytes[HEAD_BYTES + head.len..];
        }
        assert!(bytes.is_empty());
        frames
    }

    /// What these bytes behind SETTINGS come to, at once and bytewise.
    fn judged(status: u32, parts: &[Vec<u8>]) -> String {
        let bytes = [settings(&[]), parts.concat()].concat();
        let question = question("", status);
        let at_once = verdict(&question, &mut std::iter::once(&bytes[..]));
        let in_pieces = verdict(&question, &mut bytes.chunks(1));
        assert_eq!(at_once.map(drop), in_pieces.map(drop));
        at_once.map_or_else(str::to_owned, |_| "passed".to_owned())
    }

    #[test]
    fn a_call_is_one_request_with_one_message() {
        let mut talk = question("my.Service", 0).begin();
        let out = talk.ask();
        let frames = frames(out.strip_prefix(PREFACE.as_slice()).expect("the preface first"));
        let kinds: Vec<_> = frames.iter().map(|(head, _)| (head.kind, head.flags)).collect();
        assert_eq!(
            kinds,
            [(kind::SETTINGS, 0), (kind::HEADERS, flag::END_HEADERS), (kind::DATA, END)]
        );
        let mut fields = String::new();
        let each = |field: forebay_wire::h2::hpack::Field<'_>| {
            let text = |bytes| String::from_utf8_lossy(bytes);
            fields += &format!("{}: {}\n", text(field.name), text(field.value));
        };
        Decoder::default().decode(&frames[1].1, each).expect("a block");
        assert_eq!(
            fields,
            ":method: POST\n:scheme: http\n:path: /grpc.health.v1.Health/Check\n\
             :authority: backend\ncontent-type: application/grpc\nte: trailers\n"
        );
        assert_eq!(frames[2].1, b"\0\0\0\0\x0c\x0a\x0amy.Service");
    }

    #[test]
    fn answers_of_the_health_protocol_are_judged() {
        const GRPC: &str = "checking grpc status";
        const NOT_SERVING: &str = "checking serving status";
        let head = || H2::section(1, &[OK, TYPE], false);
        let of = |payload: &[u8]| vec![head(), data(payload, 0), trailers("0")];
        let only = |fields: &[(&str, &str)]| vec![H2::section(1, fields, true)];
        let cases: Vec<(u32, Vec<Vec<u8>>, &str)> = vec![
            (0, of(SERVING), "passed"),
            (0, of(b"\0\0\0\0\x02\x08\x00"), NOT_SERVING),
            (0, of(b"\0\0\0\0\x02\x08\x02"), NOT_SERVING),
            (0, of(b"\0\0\0\0\x02\x08\x03"), NOT_SERVING),
            (0, of(b"\0\0\0\0\0"), NOT_SERVING),
            // Compressed, cut off, two messages, none.
            (0, of(b"\x01\0\0\0\x02\x08\x01"), READING),
            (0, of(b"\0\0\0\0\x02\x08"), READING),
            (0, of(&[SERVING, SERVING].concat()), READING),
            (0, vec![head(), trailers("0")], READING),
            (
                0,
                vec![head(), data(&SERVING[..4], 0), data(&SERVING[4..], 0), trailers("0")],
                "passed",
            ),
            // With padding.
            (
                0,
                vec![head(), data(&[&[3], SERVING, b"..."].concat(), flag::PADDED), trailers("0")],
                "passed",
            ),
            // The status of the call counts, whatever the message says.
            (0, vec![head(), data(SERVING, 0), trailers("5")], GRPC),
            (12, of(SERVING), GRPC),
            (5, vec![head(), data(SERVING, 0), trailers("5")], "passed"),
            (0, vec![head(), data(SERVING, 0), trailers("")], READING),
            (0, vec![head(), data(SERVING, 0), trailers("x")], READING),
            // No trailers.
            (0, vec![head(), data(SERVING, END)], READING),
            (0, vec![head(), data(SERVING, 0), H2::section(1, &[("a", "b")], true)], READING),
            // An answer that is its head.
            (12, only(&[OK, TYPE, ("grpc-status", "12")]), "passed"),
            (0, only(&[OK, TYPE, ("grpc-status", "12")]), GRPC),
            (0, only(&[OK, TYPE, ("grpc-status", "0")]), READING),
            (12, only(&[OK, TYPE]), READING),
            // Not gRPC.
            (12, only(&[(":status", "404"), TYPE, ("grpc-status", "12")]), "checking status code"),
            (12, only(&[OK, ("grpc-status", "12")]), "checking header"),
            (
                12,
                only(&[OK, ("content-type", "text/html"), ("grpc-status", "12")]),
                "checking header",
            ),
            // Interim responses come before the one that counts.
            (
                0,
                [vec![H2::section(1, &[(":status", "103")], false)], of(SERVING)].concat(),
                "passed",
            ),
        ];
        for (status, parts, want) in cases {
            assert_eq!(judged(status, &parts), want, "{status} {parts:?}");
        }
    }

    #[test]
    fn answers_that_break_the_rules_of_http_2_fail() {
        let head = || H2::section(1, &[OK, TYPE], false);
        let reset = |code: u32| H2::bytes(kind::RST_STREAM, 0, 1, &code.to_be_bytes());
        let many = vec![0; MAX_MESSAGE + 1];
        let long = "x".repeat(MAX_HEAD);
        let cases: Vec<Vec<Vec<u8>>> = vec![
            vec![],
            vec![head()],
            vec![data(SERVING, END)],
            vec![reset(7)],
            vec![head(), reset(0)],
            vec![goaway(0)],
            vec![head(), data(b"\x09ab", flag::PADDED)],
            vec![head(), data(&many, 0), trailers("0")],
            vec![H2::section(1, &[OK, TYPE, ("a", &long)], false), data(SERVING, 0), trailers("0")],
            vec![
                head(),
                data(SERVING, 0),
                H2::section(1, &[("grpc-status", "0"), ("a", &long)], true),
            ],
            // A field section without end.
            vec![
                H2::bytes(kind::HEADERS, 0, 1, b"\x88"),
                H2::bytes(kind::CONTINUATION, 0, 1, &[0; 1 << 14]).repeat(4),
            ],
            vec![H2::bytes(kind::PING, 0, 0, &[0; 8]).repeat(10_000), serving(1)],
            vec![H2::bytes(kind::PING, 0, 0, &[0; 7]), serving(1)],
            vec![H2::bytes(0x55, 0, 0, &[0; 20_000]), serving(1)],
            vec![serving(3)],
            vec![b"HTTP/1.1 200 OK\r\n\r\n".to_vec()],
        ];
        for parts in cases {
            assert_eq!(judged(0, &parts), READING, "{}", parts.concat().escape_ascii());
        }
        // A server that goes away answers what it has begun with.
        assert_eq!(judged(0, &[goaway(1), serving(1)]), "passed");
    }

    #[test]
    fn settings_and_pings_are_answered() {
        let mut talk = question("", 0).begin();
        talk.ask();
        let ping = H2::bytes(kind::PING, 0, 0, b"12345678");
        let heard = talk.hear(&mut [settings(&[]), ping].concat(), false);
        let Heard::More(out) = heard else { panic!("{heard:?}") };
        let frames = frames(&out);
        let parsed: Vec<_> = frames.iter().map(|(head, load)| frame::parse(head, load)).collect();
        assert_eq!(parsed, [Ok(Frame::SettingsAck), Ok(Frame::PingAck(*b"12345678"))]);
    }

    #[test]
    fn a_connection_is_asked_again_within_its_windows() {
        let mut talk = question("", 0).begin();
        talk.ask();
        let narrow = settings(&[(id::INITIAL_WINDOW_SIZE, 2)]);
        assert_eq!(talk.hear(&mut [narrow, serving(1)].concat(), false), Heard::Verdict(Ok(true)));
        let sent = |out: &[u8]| -> Vec<_> {
            let all = frames(out).into_iter();
            all.map(|(head, _)| (head.kind, head.stream, head.len, head.flags & END)).collect()
        };
        // What was owed from before comes first; of the message, two bytes.
        let out = sent(&talk.ask());
        assert_eq!(out[0], (kind::SETTINGS, 0, 0, END));
        assert_eq!((out[1].0, out[1].1), (kind::HEADERS, 3));
        assert_eq!(out[2..], [(kind::DATA, 3, 2, 0)]);
        let Heard::More(out) = talk.hear(&mut window_update(3, 100), false) else { panic!() };
        assert_eq!(sent(&out), [(kind::DATA, 3, 3, END)]);
        // The end of the connection does not take back what was said.
        assert_eq!(talk.hear(&mut serving(3), true), Heard::Verdict(Ok(false)));
    }

    #[test]
    fn a_connection_that_went_away_says_so_when_it_is_asked_again() {
        let mut talk = question("", 0).begin();
        talk.ask();
        let first = [settings(&[]), serving(1)].concat();
        assert_eq!(talk.hear(&mut first.clone(), false), Heard::Verdict(Ok(true)));
        talk.ask();
        assert_eq!(talk.hear(&mut goaway(1), false), Heard::Verdict(Err(READING)));
        // Who says so with its answer is not asked again.
        let mut talk = question("", 0).begin();
        talk.ask();
        let mut last = [first, goaway(1)].concat();
        assert_eq!(talk.hear(&mut last, false), Heard::Verdict(Ok(false)));
    }

    #[test]
    fn answers_survive_mutation() {
        let head = H2::section(1, &[OK, TYPE], false);
        let ping = H2::bytes(kind::PING, 0, 0, b"12345678");
        let padded = data(&[&[3], SERVING, b"..."].concat(), flag::PADDED);
        let long = [&[0], &settings(&[])[..], &ping, &head, &padded, &trailers("0")].concat();
        let only = H2::section(1, &[OK, TYPE, ("grpc-status", "12")], true);
        let short = [&[0x15], &settings(&[(id::MAX_FRAME_SIZE, 16_384)])[..], &only].concat();
        let unknown = data(b"\0\0\0\0\x09\x10\x96\x01\x12\x02ab\x08\x01", 0);
        let more = [&[2], &settings(&[])[..], &head, &unknown, &trailers("0"), &goaway(1)].concat();
        let pieces = [data(SERVING, 0), trailers("12"), serving(1), window_update(1, 1), ping];
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let seeds: [&[u8]; 3] = [&long, &short, &more];
        forebay_wire::fuzzing::mutate::run(fuzz, &seeds, &pieces, 60_000);
    }
}
