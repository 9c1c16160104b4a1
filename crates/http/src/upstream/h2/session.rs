//! One connection to an HTTP/2 server, without its socket: bytes go in and come out.
//!
//! Frames are read as they come: data is given out where it lies, whatever pieces it comes in; what is
//! small is gathered. What there is to answer waits in `output` until somebody can write it.
//!
//! Hot path: a frame of data costs no copy and no allocation.
//!
//! Invariant: what is gathered is bounded: a payload by what we allow a frame to have, a field section by
//! `section_limit`, answers by [`MAX_OUTPUT`].

use std::ops::Range;

use forebay_rt::clock;
use forebay_wire::h2::{
    DEFAULT_WINDOW, Fault, Head, MAX_WINDOW, PREFACE, Settings,
    frame::{self, HEAD_BYTES, MAX_PAYLOAD, flag, kind},
    hpack::{self, Decoder, Field},
    settings,
};

use crate::h2::calm::{Calm, cost};

/// How much may wait to be written of what we have to answer: a server that does not read it is not
/// waited for.
const MAX_OUTPUT: usize = 64 << 10;
/// A gathered payload beyond that is not kept for the next one.
const KEPT_PAYLOAD: usize = 1024;

/// What has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All that there was is used up.
    Starved,
    /// A part of the body, by its place in the input.
    Data(Range<usize>),
    /// A field section is complete, see [`Session::decode_section`].
    Section {
        /// Whether it is the end of the response.
        end_stream: bool,
    },
    /// The end of the response.
    End,
}

/// Where the response to the stream at hand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No stream was opened yet.
    Idle,
    /// The head is waited for.
    Head,
    /// It has come.
    Body,
    /// It is complete.
    Done,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// The head of a frame, of which so many have come.
    Head(usize),
    /// The payload of this frame, gathered as a whole.
    Payload(Head),
    /// The length of the padding of a DATA frame.
    PadLength(Head),
    /// The rest of a DATA frame.
    Data { left: usize, padding: usize, end: bool },
}

/// A field section that is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    pub(super) end_stream: bool,
}

/// A connection.
pub struct Session {
    pub(super) decoder: Decoder,
    /// What the server says it takes.
    pub(super) peer: Settings,
    /// Whether its first SETTINGS have come.
    pub(super) settled: bool,
    /// Whether ours were sent.
    greeted: bool,
    /// The stream at hand, or the last one; 0: there was none.
    pub(super) stream: u32,
    pub(super) phase: Phase,
    /// Whether the end of the request was given out.
    ended: bool,
    /// The server wants no more of the request.
    pub(super) stopped: bool,
    /// The server takes no further stream.
    pub(super) leaves: bool,
    /// How much may be sent on the connection and on the stream; below 0 after a change of settings.
    pub(super) send: (i64, i64),
    /// How much the server may send: on the connection, on the stream.
    receive: (u32, u32),
    /// How much it may send at the beginning.
    window: u32,
    input: Input,
    head: [u8; HEAD_BYTES],
    payload: Vec<u8>,
    /// A field section as it comes.
    pub(super) block: Vec<u8>,
    pub(super) section: Option<Section>,
    /// How long one may be, compressed.
    pub(super) section_limit: usize,
    /// What is to be written, in whole frames.
    pub(super) output: Vec<u8>,
    calm: Calm,
}

impl Default for Session {
    /// Windows as wide as they can be: with one stream a connection, TCP is the window.
    fn default() -> Session {
        Session::with_window(MAX_WINDOW)
    }
}

impl Session {
    /// One that lets the server send so much before it is told to go on.
    pub fn with_window(window: u32) -> Session {
        Session {
            decoder: Decoder::default(),
            peer: Settings::default(),
            settled: false,
            greeted: false,
            stream: 0,
            phase: Phase::Idle,
            ended: false,
            stopped: false,
            leaves: false,
            send: (DEFAULT_WINDOW.into(), 0),
            receive: (window.max(DEFAULT_WINDOW), 0),
            window,
            input: Input::Head(0),
            head: [0; HEAD_BYTES],
            payload: Vec::new(),
            block: Vec::new(),
            section: None,
            section_limit: MAX_PAYLOAD,
            output: Vec::new(),
            calm: Calm::default(),
        }
    }

    /// Opens the next stream with this field section, of at most `section_limit` bytes in the answer;
    /// `ends`: the request has no body. What is to be written.
    pub fn open(&mut self, block: &[u8], ends: bool) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.output);
        out.reserve(block.len() + 128);
        let first = !self.greeted;
        if first {
            self.greet(&mut out);
        }
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        (self.phase, self.ended, self.stopped) = (Phase::Head, ends, false);
        self.send.1 = self.peer.initial_window.into();
        self.receive.1 = self.window;
        let mut start = Vec::new();
        let mut rest = block;
        if first {
            hpack::write_no_table(&mut start);
        }
        // No server may allow less than the default length.
        let mut kind = kind::HEADERS;
        loop {
            let take = rest.len().min(MAX_PAYLOAD - start.len());
            let (part, left) = rest.split_at(take);
            rest = left;
            let mut flags = if rest.is_empty() { flag::END_HEADERS } else { 0 };
            if ends && kind == kind::HEADERS {
                flags |= flag::END_STREAM;
            }
            let len = start.len() + part.len();
            Head { len, kind, flags, stream: self.stream }.write(&mut out);
            out.append(&mut start);
            out.extend_from_slice(part);
            kind = kind::CONTINUATION;
            if rest.is_empty() {
                return out;
            }
        }
    }

    fn greet(&mut self, out: &mut Vec<u8>) {
        self.greeted = true;
        out.extend_from_slice(PREFACE);
        let ours =
            [(settings::id::ENABLE_PUSH, 0), (settings::id::INITIAL_WINDOW_SIZE, self.window)];
        frame::write_settings(out, &ours);
        if self.window > DEFAULT_WINDOW {
            frame::write_window_update(out, 0, self.window - DEFAULT_WINDOW);
        }
    }

    /// How much of so many bytes of a body may be sent in one frame now.
    pub fn credit(&self, want: usize) -> usize {
        if self.stopped {
            return 0;
        }
        let window = usize::try_from(self.send.0.min(self.send.1)).unwrap_or(0);
        want.min(window).min(self.peer.max_frame_size as usize)
    }

    /// Writes the head of a DATA frame, within [`Session::credit`].
    pub fn data(&mut self, len: usize, last: bool, out: &mut Vec<u8>) {
        let flags = if last { flag::END_STREAM } else { 0 };
        Head { len, kind: kind::DATA, flags, stream: self.stream }.write(out);
        self.send.0 -= len as i64;
        self.send.1 -= len as i64;
        self.ended |= last;
        self.calm.sent(len, self.send.0 <= 0 || self.send.1 <= 0);
    }

    /// What there is to write beside the request.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Whether there is any.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// What follows the head of the response is its body.
    pub fn expect_body(&mut self) {
        if self.phase == Phase::Head {
            self.phase = Phase::Body;
        }
    }

    /// How long a field section may be: of so many bytes when it is decompressed.
    pub fn limit_sections(&mut self, bytes: usize) {
        // Huffman's code makes the rarest bytes four times as long.
        self.section_limit = bytes.saturating_mul(4);
    }

    /// Decompresses the section that is complete.
    pub fn decode_section(&mut self, each: impl FnMut(Field<'_>)) -> Result<(), Fault> {
        let mut block = std::mem::take(&mut self.block);
        let decoded = self.decoder.decode(&block, each);
        block.clear();
        self.block = block;
        decoded.map_err(|_| Fault::COMPRESSION)
    }

    /// Whether another stream may be opened here: the last one is over on both sides, the server takes
    /// more, and no part of a frame is waited for.
    pub fn is_quiet(&self) -> bool {
        self.phase == Phase::Done && self.takes_more()
    }

    /// The same, but that the end of the last response is still to come.
    pub fn waits_for_end(&self) -> bool {
        self.phase == Phase::Body && self.takes_more()
    }

    /// Whether nothing but the end of a response stands between this and the next stream.
    fn takes_more(&self) -> bool {
        const LAST_STREAM: u32 = (1 << 31) - 1;
        self.ended
            && !self.leaves
            && self.input == Input::Head(0)
            && self.section.is_none()
            && self.peer.max_concurrent_streams > 0
            && self.stream < LAST_STREAM - 1
    }

    /// Lets go of memory that only a request needs.
    pub fn rest(&mut self) {
        self.decoder.rest();
        (self.block, self.payload) = (Vec::new(), Vec::new());
    }

    /// What comes while there is no request: answers to it, and nothing that would belong to one but the
    /// end of the last, where that [was waited for](Session::waits_for_end). `Err`: the connection is of
    /// no use any more.
    pub fn idle(&mut self, input: &[u8]) -> Result<(), Fault> {
        let mut at = 0;
        let mut event = self.next(input, &mut at)?;
        if event == Event::End {
            event = self.next(input, &mut at)?;
        }
        match event {
            Event::Starved if self.leaves || self.peer.max_concurrent_streams == 0 => {
                Err(Fault::Text("upstream takes no further requests"))
            }
            Event::Starved => Ok(()),
            // Frames of a stream that is over have been refused.
            _ => Err(Fault::ClosedStream(self.stream)),
        }
    }

    /// Reads on from `at`.
    pub fn next(&mut self, input: &[u8], at: &mut usize) -> Result<Event, Fault> {
        loop {
            let rest = &input[*at..];
            match self.input {
                Input::Head(had) => {
                    let take = rest.len().min(HEAD_BYTES - had);
                    self.head[had..had + take].copy_from_slice(&rest[..take]);
                    *at += take;
                    self.input = Input::Head(had + take);
                    if had + take < HEAD_BYTES {
                        return Ok(Event::Starved);
                    }
                    let Some(head) = Head::parse(&self.head) else { return Ok(Event::Starved) };
                    self.check_head(&head)?;
                    self.input = self.begin_frame(head)?;
                }
                Input::PadLength(head) => {
                    let Some(&padding) = rest.first() else { return Ok(Event::Starved) };
                    *at += 1;
                    let padding = usize::from(padding);
                    let left = (head.len - 1).checked_sub(padding).ok_or(Fault::PADDING)?;
                    let end = head.flags & flag::END_STREAM != 0;
                    self.input = Input::Data { left, padding, end };
                    if left == 0 && !end {
                        self.spend(cost::EMPTY_DATA, Fault::FLOOD)?;
                    }
                }
                Input::Data { left, padding, end } => {
                    let take = left.min(rest.len());
                    if take > 0 {
                        let start = *at;
                        *at += take;
                        self.input = Input::Data { left: left - take, padding, end };
                        return Ok(Event::Data(start..start + take));
                    }
                    let skip = padding.min(rest.len());
                    *at += skip;
                    if left > 0 || skip < padding {
                        self.input = Input::Data { left, padding: padding - skip, end };
                        return Ok(Event::Starved);
                    }
                    self.input = Input::Head(0);
                    if end {
                        self.phase = Phase::Done;
                        return Ok(Event::End);
                    }
                }
                Input::Payload(head) => match self.gather(head, rest, at)? {
                    Some(Event::Starved) => return Ok(Event::Starved),
                    Some(event) => return Ok(event),
                    None => {}
                },
            }
        }
    }

    fn begin_frame(&mut self, head: Head) -> Result<Input, Fault> {
        if head.kind != kind::DATA {
            return Ok(Input::Payload(head));
        }
        let (padded, end) = (head.flags & flag::PADDED != 0, head.flags & flag::END_STREAM != 0);
        self.receive(head.len, end)?;
        if head.len == 0 && !end {
            self.spend(cost::EMPTY_DATA, Fault::FLOOD)?;
        }
        match padded {
            true if head.len == 0 => Err(Fault::PADDING),
            true => Ok(Input::PadLength(head)),
            false => Ok(Input::Data { left: head.len, padding: 0, end }),
        }
    }

    /// Counts a DATA frame against the windows, and opens them again in good time.
    fn receive(&mut self, len: usize, end: bool) -> Result<(), Fault> {
        let (connection, stream) = &mut self.receive;
        // A frame is no longer than MAX_PAYLOAD.
        let taken = len as u32;
        *stream = stream.checked_sub(taken).ok_or(Fault::StreamFlow(len, *stream))?;
        *connection =
            connection.checked_sub(taken).ok_or(Fault::ConnectionFlow(len, *connection))?;
        let full = self.window.max(DEFAULT_WINDOW);
        if *connection < full / 4 {
            frame::write_window_update(&mut self.output, 0, full - *connection);
            *connection = full;
        }
        if *stream < self.window / 4 && !end {
            frame::write_window_update(&mut self.output, self.stream, self.window - *stream);
            *stream = self.window;
        }
        // How short it is, is the upstream's doing.
        self.calm.sent(len, true);
        self.bound_output()
    }

    /// Gathers a payload; `None`: the frame is dealt with.
    fn gather(&mut self, head: Head, rest: &[u8], at: &mut usize) -> Result<Option<Event>, Fault> {
        let mut payload = std::mem::take(&mut self.payload);
        let take = rest.len().min(head.len - payload.len());
        *at += take;
        let event = match take == head.len {
            // It lies there as a whole.
            true => {
                self.input = Input::Head(0);
                self.take_frame(&head, &rest[..take])?
            }
            false => {
                payload.extend_from_slice(&rest[..take]);
                if payload.len() < head.len {
                    self.payload = payload;
                    return Ok(Some(Event::Starved));
                }
                self.input = Input::Head(0);
                self.take_frame(&head, &payload)?
            }
        };
        if payload.capacity() <= KEPT_PAYLOAD {
            payload.clear();
            self.payload = payload;
        }
        self.bound_output()?;
        Ok(event)
    }

    fn bound_output(&self) -> Result<(), Fault> {
        if self.output.len() > MAX_OUTPUT { Err(Fault::FLOOD) } else { Ok(()) }
    }

    /// Takes down what only costs work; too much is `fault`.
    pub(super) fn spend(&mut self, cost: u32, fault: Fault) -> Result<(), Fault> {
        self.calm.spend(cost, clock::now_ms()).map_err(|_| fault)
    }
}
