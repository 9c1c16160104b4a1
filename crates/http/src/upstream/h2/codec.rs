//! One request and its response over a session.
//!
//! Hot path: a body is decoded where it was read to.
//!
//! Invariant: how long a body is said to be and how long it is agree, or the response fails
//! (RFC 9113 §8.1.1).

use bytes::Bytes;
use forebay_session::log::Shown;
use forebay_wire::{
    h1::{BadResponse, ResponseFraming, ResponseHead},
    h2::{Fault, ResponseBuilder, frame::kind, request::is_trailer, response::response_framing},
};

use super::session::{Event, Session};
use crate::{
    response::Field,
    upstream::{Codec, Decoded, Outgoing, Remains, head::explain_framing, matters_before_the_body},
};

/// One response.
#[derive(Default)]
pub struct Http2 {
    /// `None`: a new connection, or one that was released.
    session: Option<Box<Session>>,
    head: ResponseHead,
    /// The text of the head, until it was taken over.
    text: Vec<u8>,
    /// Whether the request is a HEAD.
    is_head: bool,
    /// Whether the response is its head, whatever may come of an end.
    is_bare: bool,
    /// Whether the head was the end.
    end_stream: bool,
    /// How much of the body is still to come, where that was said.
    left: Option<u64>,
    done: bool,
    /// How much may be in a field section.
    limit: usize,
    trailers: Vec<Field>,
    /// What was wrong behind a complete response.
    late: Option<Fault>,
}

impl Http2 {
    /// For the answer to a request; `is_head`: to a HEAD. `head`: memory to use.
    pub fn new(is_head: bool, head: ResponseHead) -> Http2 {
        Http2 { head, is_head, ..Http2::default() }
    }

    /// Reads trailers: the last field section.
    fn read_trailers(&mut self) -> Result<(), BadResponse> {
        let (mut trailers, mut bad, mut size) = (Vec::new(), None, 0);
        let limit = self.limit;
        self.session.get_or_insert_default().decode_section(|field| {
            size += field.name.len() + field.value.len();
            let fault = match () {
                () if size > limit => Some(Fault::TOO_BIG),
                () if !is_trailer(field) => Some(Fault::TRAILER),
                () => None,
            };
            bad = bad.or(fault);
            if bad.is_none() && !matters_before_the_body(field.name) {
                trailers.push(Field {
                    name: Bytes::copy_from_slice(field.name),
                    value: Bytes::copy_from_slice(field.value),
                });
            }
        })?;
        // Those of a response that is its head stand behind no body.
        if !self.is_bare {
            self.trailers = trailers;
        }
        bad.map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// The body is over.
    fn end(&mut self) -> Result<(), BadResponse> {
        if let Some(1..) = self.left {
            return Err(Fault::ENDED_EARLY.into());
        }
        self.done = true;
        Ok(())
    }

    /// Reads on in a body; `Ok(false)`: all that there was is used up.
    fn step(
        &mut self,
        buf: &mut [u8],
        at: &mut usize,
        end: &mut usize,
    ) -> Result<bool, BadResponse> {
        match self.session.get_or_insert_default().next(buf, at)? {
            Event::Starved => return Ok(false),
            Event::Data(range) => {
                if let Some(left) = &mut self.left {
                    *left = left.checked_sub(range.len() as u64).ok_or(Fault::BODY_TOO_LONG)?;
                }
                let len = range.len();
                buf.copy_within(range, *end);
                *end += len;
            }
            Event::End => self.end()?,
            Event::Section { end_stream } => {
                self.read_trailers()?;
                if !end_stream {
                    let text = "upstream sent trailer without end stream flag";
                    return Err(Fault::Text(text).into());
                }
                self.end()?;
            }
        }
        Ok(true)
    }
}

impl Codec for Http2 {
    fn begin(&mut self, session: Option<Box<Session>>) {
        self.session = session;
    }

    fn release(&mut self) -> Remains {
        let is_bare = self.is_bare;
        let session = self.session.take();
        match session.filter(|s| s.is_quiet() || is_bare && s.waits_for_end()) {
            None => Remains::Spent,
            Some(mut session) => {
                session.rest();
                Remains::Session(session)
            }
        }
    }

    fn open(&mut self, head: &[u8], ends: bool) -> Option<Vec<u8>> {
        Some(self.session.get_or_insert_default().open(head, ends))
    }

    fn frames(&self, _: &Outgoing) -> bool {
        true
    }

    fn credit(&self, want: usize) -> usize {
        self.session.as_ref().map_or(0, |session| session.credit(want))
    }

    fn wrap(&mut self, len: usize, last: bool, before: &mut Vec<u8>, _: &mut Vec<u8>) {
        self.session.get_or_insert_default().data(len, last, before);
    }

    fn take_output(&mut self) -> Vec<u8> {
        self.session.as_mut().map(|session| session.take_output()).unwrap_or_default()
    }

    fn has_output(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_output())
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn read_head(&mut self, buf: &mut Vec<u8>, limit: usize) -> Result<Option<usize>, BadResponse> {
        self.limit = limit;
        let session = self.session.get_or_insert_default();
        session.limit_sections(limit);
        let mut at = 0;
        match session.next(buf, &mut at)? {
            Event::Starved => {
                buf.clear();
                Ok(None)
            }
            Event::Section { end_stream } => {
                let mut builder = ResponseBuilder::new(&mut self.text, &mut self.head, limit);
                session.decode_section(|field| builder.field(field))?;
                builder.finish()?;
                self.end_stream = end_stream;
                // The head stands before what has come of the body, as in HTTP/1.
                let len = self.text.len();
                buf.splice(..at, self.text.drain(..));
                Ok(Some(len))
            }
            // The session gives out no data before there is a head.
            Event::Data(_) | Event::End => Err(Fault::UnexpectedFrame(kind::DATA).into()),
        }
    }

    fn head(&self) -> &ResponseHead {
        &self.head
    }

    fn framing(&mut self, buf: &[u8]) -> Result<ResponseFraming, BadResponse> {
        let (framing, expected) = response_framing(&self.head, buf, self.is_head, self.end_stream)?;
        if !framing.interim {
            self.left = expected;
            self.is_bare = self.is_head || matches!(self.head.status, 204 | 304);
            self.done = self.end_stream;
            self.session.get_or_insert_default().expect_body();
        }
        Ok(framing)
    }

    fn reset(&mut self) {
        // The next section clears the head.
        self.end_stream = false;
    }

    fn take_head(&mut self) -> ResponseHead {
        std::mem::take(&mut self.head)
    }

    fn decode(&mut self, buf: &mut Vec<u8>, from: usize) -> Decoded {
        let (mut at, mut end) = (from, from);
        loop {
            match self.step(buf, &mut at, &mut end) {
                Ok(true) => {}
                Ok(false) => {
                    let done = self.done || self.is_bare;
                    return Decoded { data_end: end, done, ..Decoded::default() };
                }
                // A response that is complete stays what it is; its connection is of no more use.
                Err(BadResponse::Http2(fault)) if self.done || self.is_bare => {
                    self.late = Some(fault);
                    return Decoded { data_end: end, left_over: 1, done: true, bad: None };
                }
                Err(bad) => {
                    return Decoded { data_end: end, bad: Some(bad), ..Decoded::default() };
                }
            }
        }
    }

    fn ends_with_connection(&self) -> bool {
        false
    }

    fn take_trailers(&mut self) -> Vec<Field> {
        std::mem::take(&mut self.trailers)
    }

    fn explain(&self, bad: BadResponse, buf: &[u8]) -> String {
        let shown = self.head.refused.map(|span| Shown(span.of(&self.text)));
        match (bad, shown) {
            (BadResponse::InvalidHeader, Some(line)) => format!("{bad}: \"{line}\""),
            (BadResponse::Http2(Fault::InvalidStatus), Some(value)) => {
                format!("{bad} \"{value}\"")
            }
            _ => explain_framing(bad, &self.head, buf),
        }
    }

    fn left_over(&self) -> Option<String> {
        let fault = self.late.unwrap_or(Fault::FLOOD);
        Some(format!("{fault} after its response"))
    }
}
