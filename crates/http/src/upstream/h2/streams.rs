//! What a session does with a frame: where each is allowed, and what it changes.
//!
//! Answers ngx_http_grpc_process_header and ngx_http_grpc_filter; RFC 9113 §5 and §6.
//!
//! DIFFERS(h2-upstream-strict): a connection that does not begin with SETTINGS, a body where there can be
//! none, or a frame of a stream that was never opened ends it; nginx passes over some of these.
//!
//! Invariant: data is given out for the stream at hand only, and only behind its head.

use forebay_wire::h2::{
    Fault, Frame, Head, MAX_WINDOW,
    frame::{self, MAX_PAYLOAD, kind},
    settings,
};

use super::session::{Event, Phase, Section, Session};
use crate::h2::calm::cost;

/// Payloads that mean nothing cost so much for each of so many bytes.
const SHIFT_OF_UNKNOWN: u32 = 9;

impl Session {
    /// What can be said of a frame before its payload is there.
    pub(super) fn check_head(&self, head: &Head) -> Result<(), Fault> {
        if !self.settled {
            self.check_first(head)?;
        }
        if head.len > MAX_PAYLOAD {
            return Err(Fault::FrameTooLarge(head.len));
        }
        if self.section.is_some() != (head.kind == kind::CONTINUATION) {
            return Err(Fault::UnexpectedFrame(head.kind));
        }
        match head.kind {
            kind::DATA | kind::HEADERS | kind::CONTINUATION => self.check_stream(head),
            // What was on its way when a stream ended (RFC 9113 §5.1).
            kind::RST_STREAM | kind::WINDOW_UPDATE
                if head.stream > self.stream
                    || (head.stream > 0 && head.stream.is_multiple_of(2)) =>
            {
                Err(Fault::UnknownStream(head.stream))
            }
            _ => Ok(()),
        }
    }

    /// RFC 9113 §3.4: SETTINGS come first. Who speaks something else is told apart.
    fn check_first(&self, head: &Head) -> Result<(), Fault> {
        if head.bytes().starts_with(b"HTTP/1.") {
            return Err(Fault::Text("upstream sent HTTP/1 response to HTTP/2 request"));
        }
        if head.kind != kind::SETTINGS || head.flags & frame::flag::ACK != 0 {
            return Err(Fault::Text("upstream sent no SETTINGS frame first"));
        }
        Ok(())
    }

    fn check_stream(&self, head: &Head) -> Result<(), Fault> {
        match self.phase {
            _ if head.stream != self.stream || head.stream == 0 => {
                Err(Fault::UnknownStream(head.stream))
            }
            Phase::Done => Err(Fault::ClosedStream(head.stream)),
            Phase::Head if head.kind == kind::DATA => Err(Fault::UnexpectedFrame(head.kind)),
            Phase::Idle => Err(Fault::UnknownStream(head.stream)),
            _ => Ok(()),
        }
    }

    /// A frame but DATA, which is complete.
    pub(super) fn take_frame(
        &mut self,
        head: &Head,
        payload: &[u8],
    ) -> Result<Option<Event>, Fault> {
        if head.kind == kind::PUSH_PROMISE {
            // RFC 9113 §8.4: we said that we take none.
            return Err(Fault::Text("upstream sent unexpected push promise frame"));
        }
        match frame::parse(head, payload)? {
            Frame::Headers { block, end_stream, end_headers } => {
                self.block.clear();
                self.section = Some(Section { end_stream });
                self.add_block(block, end_headers)
            }
            Frame::Continuation { block, end_headers } => {
                self.spend(cost::CONTINUATION, Fault::FLOOD)?;
                self.add_block(block, end_headers)
            }
            Frame::Settings(entries) => self.settings(entries).map(|()| None),
            Frame::Ping(opaque) => {
                let flood = Fault::Text("upstream sent too many ping frames");
                self.spend(cost::PING, flood)?;
                frame::write_ping(&mut self.output, opaque, true);
                Ok(None)
            }
            Frame::PingAck(_) => Err(Fault::Text("upstream sent ping frame with ack flag")),
            Frame::GoAway { last, code } => self.goes_away(last, code).map(|()| None),
            Frame::WindowUpdate(increment) => {
                self.spend(cost::WINDOW_UPDATE, Fault::FLOOD)?;
                self.window_update(head.stream, increment).map(|()| None)
            }
            Frame::Reset(code) => self.reset(head.stream, code).map(|()| None),
            // DATA is read as it comes.
            Frame::Data { .. } => Err(Fault::UnexpectedFrame(head.kind)),
            Frame::SettingsAck
            | Frame::Priority
            | Frame::PriorityUpdate { .. }
            | Frame::Unknown => {
                let price = cost::OTHER + (head.len as u32 >> SHIFT_OF_UNKNOWN);
                self.spend(price, Fault::FLOOD)?;
                Ok(None)
            }
        }
    }

    fn add_block(&mut self, block: &[u8], end_headers: bool) -> Result<Option<Event>, Fault> {
        if self.block.len() + block.len() > self.section_limit {
            return Err(Fault::TOO_BIG);
        }
        self.block.extend_from_slice(block);
        if !end_headers {
            return Ok(None);
        }
        let end_stream = self.section.take().is_some_and(|section| section.end_stream);
        if end_stream {
            self.phase = Phase::Done;
        }
        Ok(Some(Event::Section { end_stream }))
    }

    fn settings(&mut self, entries: &[u8]) -> Result<(), Fault> {
        self.spend(cost::SETTINGS, Fault::Text("upstream sent too many settings frames"))?;
        // RFC 9113 §6.5.2: a server never pushes to itself.
        let push = [0, settings::id::ENABLE_PUSH as u8, 0, 0, 0, 1];
        if entries.chunks_exact(6).any(|entry| entry == push) {
            return Err(Fault::Text("upstream sent SETTINGS frame with ENABLE_PUSH"));
        }
        let before = i64::from(self.peer.initial_window);
        self.peer.apply(entries)?;
        self.settled = true;
        // RFC 9113 §6.9.2: of the stream only, and it may become negative.
        self.send.1 += i64::from(self.peer.initial_window) - before;
        if self.send.1 > MAX_WINDOW.into() {
            return Err(Fault::WINDOW);
        }
        frame::write_settings_ack(&mut self.output);
        Ok(())
    }

    fn goes_away(&mut self, last: u32, code: u32) -> Result<(), Fault> {
        self.spend(cost::OTHER, Fault::FLOOD)?;
        self.leaves = true;
        // RFC 9113 §6.8: what is above was not and will not be looked at.
        let waits = matches!(self.phase, Phase::Head | Phase::Body);
        if waits && last < self.stream { Err(Fault::GoAway(code)) } else { Ok(()) }
    }

    fn window_update(&mut self, stream: u32, increment: u32) -> Result<(), Fault> {
        let window = match stream {
            0 => &mut self.send.0,
            id if id == self.stream => &mut self.send.1,
            // One that is over.
            _ => return Ok(()),
        };
        *window += i64::from(increment);
        if *window > MAX_WINDOW.into() { Err(Fault::WINDOW) } else { Ok(()) }
    }

    fn reset(&mut self, stream: u32, code: u32) -> Result<(), Fault> {
        self.spend(cost::RESET, Fault::FLOOD)?;
        if stream != self.stream {
            return Ok(());
        }
        self.stopped = true;
        match self.phase {
            Phase::Head | Phase::Body => Err(Fault::Rejected(code)),
            // RFC 9113 §8.1: the response is complete, and the rest of the request is not wanted.
            Phase::Idle | Phase::Done => Ok(()),
        }
    }
}
