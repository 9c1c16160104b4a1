//! The head of a response as it comes, and all that may come in its place.
//!
//! Hot path: a head that comes in one piece is looked at once.
//!
//! Invariant: what a server sends is held in one buffer, bounded by `proxy_buffer_size`.

use std::{
    io,
    task::{Context, Poll},
};

use bytes::Bytes;
use forebay_rt::{connect::ConnectError, errno::Errno, pool, transport::Transport};
use forebay_session::{log::Severity, var::Template};
use forebay_wire::{
    Span,
    h1::{
        BadResponse, Nominees, ResponseField, ResponseFieldId as Id, ResponseFraming, ResponseHead,
        Version,
    },
};

use super::{
    Codec, buffers,
    conn::Stream,
    settings::{Next, Settings},
};
use crate::{client::BodyError, request::Request, response::Field};

/// How many interim responses may come before the response.
const MAX_INTERIM: u32 = 32;

/// What a wait for the response came to.
pub(super) enum Came {
    Head {
        framing: ResponseFraming,
        body_at: usize,
    },
    /// The connection was closed.
    End,
    Broken(io::Error),
    Bad(BadResponse),
    Nothing(GivenUp),
    Client(BodyError),
    File(io::Error),
}

/// How an attempt failed.
pub(super) enum Failure {
    /// Another server may be asked.
    Next(Next),
    /// The same, as the server took too long for this.
    TimedOut(&'static str),
    /// Nobody is asked any more; the request ends with this status.
    Final(u16),
}

/// Why the waiting ended.
pub(super) enum GivenUp {
    /// The client left, or its connection broke.
    ClientGone(Option<io::Error>),
    TimedOut,
}

pub(super) fn given_up(r: &Request, why: GivenUp, doing: &'static str) -> Failure {
    match why {
        GivenUp::ClientGone(broken) => {
            let cause = broken.map(|error| format!(" ({})", Errno(&error))).unwrap_or_default();
            r.log_error(
                Severity::Info,
                format_args!(
                    "epoll_wait() reported that client prematurely closed connection, so upstream \
                     connection is closed too{cause} while {doing}"
                ),
            );
            Failure::Final(499)
        }
        GivenUp::TimedOut => Failure::TimedOut(doing),
    }
}

/// Tells of an attempt that failed: what its group says, and that it was `late` with something, which
/// comes last (`ngx_http_upstream_next`).
pub(super) fn tell_failed(
    r: &Request,
    told: Option<&str>,
    late: Option<&'static str>,
    connected: bool,
) {
    let doing = late.unwrap_or(match connected {
        false => "connecting to upstream",
        true => "reading response header from upstream",
    });
    if let Some(told) = told {
        r.log_error(Severity::Warn, format_args!("{told} while {doing}"));
    }
    if late.is_some() {
        let text = format_args!("upstream timed out (110: Connection timed out) while {doing}");
        r.log_error(Severity::Error, text);
    }
}

pub(super) fn broken(r: &Request) {
    r.log_error(
        Severity::Error,
        format_args!(
            "upstream prematurely closed connection while reading response header from upstream"
        ),
    );
}

/// Some refusals are an administrator's matter (`ngx_event_connect_peer`).
pub(super) fn connect_severity(error: &ConnectError) -> Severity {
    const EXPECTED: [i32; 8] = [
        111, // ECONNREFUSED
        104, // ECONNRESET
        100, // ENETDOWN
        101, // ENETUNREACH
        112, // EHOSTDOWN
        113, // EHOSTUNREACH
        110, // ETIMEDOUT
        11,  // EAGAIN: a unix socket whose queue is full
    ];
    match error.source.raw_os_error() {
        _ if !error.by_peer && !error.call.starts_with("bind(") => Severity::Alert,
        Some(code) if error.by_peer && EXPECTED.contains(&code) => Severity::Error,
        _ => Severity::Crit,
    }
}

/// Tells what was wrong with a head.
pub(super) fn complain<C: Codec>(
    r: &Request,
    codec: &C,
    buf: &[u8],
    bad: BadResponse,
    severity: Severity,
) {
    let why = codec.explain(bad, buf);
    r.log_error(severity, format_args!("{why} while reading response header from upstream"));
}

/// `early_hints`: whether the client is to see 103s.
pub(super) fn wants_hints(r: &Request) -> bool {
    let is_set = |condition: &Template| {
        let value = condition.value(r);
        !value.is_empty() && value != b"0"
    };
    let core = &r.location().core;
    !r.subrequest && r.version() >= Version::Http11 && core.early_hints.iter().any(is_set)
}

/// The fields of a 103 that a client may see.
fn hint(head: &ResponseHead, buf: &[u8]) -> Vec<Field> {
    let nominees = Nominees::of_response(head, buf);
    let passes = |field: &&ResponseField| {
        let of_connection = matches!(
            field.id,
            Id::Connection
                | Id::KeepAlive
                | Id::TE
                | Id::Trailer
                | Id::TransferEncoding
                | Id::ContentLength
                | Id::Upgrade
                | Id::ProxyConnection
                | Id::Server
                | Id::Date
                | Id::XPad
                | Id::XAccelBuffering
                | Id::XAccelCharset
                | Id::XAccelExpires
                | Id::XAccelLimitRate
                | Id::XAccelRedirect
        );
        !of_connection && !nominees.has(field.name.of(buf))
    };
    let copy = |span: Span| Bytes::copy_from_slice(span.of(buf));
    let fields = head.fields.iter().filter(passes);
    fields.map(|f| Field { name: copy(f.name), value: copy(f.value) }).collect()
}

/// The head as it comes.
pub(super) struct Reading {
    pub(super) buf: Vec<u8>,
    /// How much is read at once, where the rate is limited; else as much as there is.
    at_once: Option<usize>,
    pub(super) interim: u32,
    pub(super) received: u64,
    /// What 103s said, for the client.
    pub(super) hints: Vec<Vec<Field>>,
    /// Sending failed; what came before that may be an answer nevertheless.
    pub(super) broken: Option<io::Error>,
}

impl Reading {
    pub(super) fn new(settings: &Settings) -> Reading {
        Reading {
            buf: Vec::new(),
            // What comes with the head is too much by no more than this, as in nginx.
            at_once: (settings.limit_rate > 0).then_some(settings.buffer_size.max(1024)),
            interim: 0,
            received: 0,
            hints: Vec::new(),
            broken: None,
        }
    }

    pub(super) fn poll<C: Codec>(
        &mut self,
        stream: &mut Stream,
        codec: &mut C,
        limit: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Came> {
        loop {
            if self.buf.capacity() == 0 {
                self.buf = match self.at_once {
                    None => pool::buffer(),
                    Some(bytes) => buffers::take(bytes),
                };
            }
            if self.buf.capacity() - self.buf.len() < 1024 {
                self.buf.reserve(self.buf.capacity());
            }
            match stream.poll_read(cx, &mut self.buf) {
                Poll::Pending => {
                    // Nobody holds a buffer while waiting for nothing.
                    if self.buf.is_empty() {
                        pool::recycle(std::mem::take(&mut self.buf));
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0)) => return Poll::Ready(Came::End),
                Poll::Ready(Err(error)) => return Poll::Ready(Came::Broken(error)),
                Poll::Ready(Ok(read)) => self.received += read as u64,
            }
            if let Some(came) = self.look(codec, limit) {
                return Poll::Ready(came);
            }
        }
    }

    /// Reads heads until one is not interim.
    pub(super) fn look<C: Codec>(&mut self, codec: &mut C, limit: usize) -> Option<Came> {
        loop {
            let body_at = match codec.read_head(&mut self.buf, limit) {
                Ok(Some(len)) => len,
                Ok(None) => return None,
                Err(bad) => return Some(Came::Bad(bad)),
            };
            let framing = match codec.framing(&self.buf) {
                Ok(framing) => framing,
                Err(bad) => return Some(Came::Bad(bad)),
            };
            if !framing.interim {
                return Some(Came::Head { framing, body_at });
            }
            if codec.head().status == 103 {
                self.hints.push(hint(codec.head(), &self.buf));
            }
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Some(Came::Bad(BadResponse::TooManyInterim));
            }
            self.buf.drain(..body_at);
            codec.reset();
        }
    }
}
