//! What an upstream did wrong in HTTP/2, in the words of nginx's log.
//!
//! Answers the texts of ngx_http_grpc_module.c and ngx_http_proxy_v2_module.c.
//!
//! *Invariant:* nothing here holds a byte that the upstream chose, but numbers.

use std::fmt;

use super::frame::{ErrorCode, Violation};

/// What an upstream did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It reset the stream, with this code, before its response was complete.
    Rejected(u32),
    /// It goes away with this code, and has not looked at the request.
    GoAway(u32),
    /// A frame longer than what we allow.
    FrameTooLarge(usize),
    /// A frame of that type where it must not be.
    UnexpectedFrame(u8),
    /// A frame for a stream that is not the one of the request.
    UnknownStream(u32),
    /// A frame for a stream that it had ended.
    ClosedStream(u32),
    /// More data than the stream's window allows: the length and the window.
    StreamFlow(usize, u32),
    /// More data than the connection's window allows.
    ConnectionFlow(usize, u32),
    /// A `:status` that is none.
    InvalidStatus,
    /// A `:status` that has no place here.
    UnexpectedStatus(u16),
    /// A rule of frames, as it is told of clients.
    Frame(&'static str),
    /// Anything else, as the log has it.
    Text(&'static str),
}

impl Fault {
    /// Fewer bytes than `Content-Length` says, or a head and nothing else where there must be more.
    pub const ENDED_EARLY: Fault = Fault::Text("upstream prematurely closed stream");
    /// More bytes than `Content-Length` says.
    pub const BODY_TOO_LONG: Fault =
        Fault::Text("upstream sent response body larger than indicated content length");
    /// A field section that cannot be decompressed.
    pub const COMPRESSION: Fault = Fault::Text("upstream sent invalid encoded header");
    /// More padding than there is frame.
    pub const PADDING: Fault = Fault::Text("upstream sent http2 frame with too long padding");
    /// A window beyond what is possible.
    pub const WINDOW: Fault = Fault::Text("upstream sent too large window update");
    /// Work for nothing.
    pub const FLOOD: Fault = Fault::Text("upstream sent too many frames of no use");
    /// A field section beyond its buffer.
    pub const TOO_BIG: Fault = Fault::Text("upstream sent too big header");
    /// A field behind the body that is none.
    pub const TRAILER: Fault = Fault::Text("upstream sent invalid trailer");

    /// Whether the request was not looked at, so that it may be sent again, whatever it is (RFC 9113
    /// §8.7).
    pub fn unprocessed(self) -> bool {
        match self {
            Fault::GoAway(_) => true,
            Fault::Rejected(code) => code == ErrorCode::RefusedStream as u32,
            _ => false,
        }
    }
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Fault {
        Fault::Frame(violation.reason)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Fault::Rejected(code) => write!(f, "upstream rejected request with error {code}"),
            Fault::GoAway(code) => write!(f, "upstream sent goaway with error {code}"),
            Fault::FrameTooLarge(len) => write!(f, "upstream sent too large http2 frame: {len}"),
            Fault::UnexpectedFrame(kind) => {
                write!(f, "upstream sent unexpected http2 frame: {kind}")
            }
            Fault::UnknownStream(id) => {
                write!(f, "upstream sent frame for unknown stream {id}")
            }
            Fault::ClosedStream(id) => write!(f, "upstream sent frame for closed stream {id}"),
            Fault::StreamFlow(len, window) => write!(
                f,
                "upstream violated stream flow control, received {len} data frame with window \
                 {window}"
            ),
            Fault::ConnectionFlow(len, window) => write!(
                f,
                "upstream violated connection flow control, received {len} data frame with window \
                 {window}"
            ),
            Fault::InvalidStatus => f.write_str("upstream sent invalid :status"),
            Fault::UnexpectedStatus(status) => {
                write!(f, "upstream sent unexpected :status \"{status}\"")
            }
            // What is said of clients where they break the same rule.
            Fault::Frame(reason) => {
                write!(f, "upstream{}", reason.strip_prefix("client").unwrap_or(reason))
            }
            Fault::Text(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_looked_at_may_be_sent_again_without_asking() {
        for (fault, unprocessed) in [
            (Fault::GoAway(0), true),
            (Fault::Rejected(7), true),
            (Fault::Rejected(0), false),
            (Fault::Rejected(8), false),
            (Fault::ENDED_EARLY, false),
        ] {
            assert_eq!(fault.unprocessed(), unprocessed, "{fault}");
        }
    }

    #[test]
    fn faults_are_told_in_nginx_s_words() {
        let violation = Violation::connection(ErrorCode::ProtocolError, "client sent a thing");
        for (fault, text) in [
            (Fault::Rejected(11), "upstream rejected request with error 11"),
            (Fault::GoAway(2), "upstream sent goaway with error 2"),
            (Fault::FrameTooLarge(16_385), "upstream sent too large http2 frame: 16385"),
            (Fault::UnexpectedFrame(0), "upstream sent unexpected http2 frame: 0"),
            (Fault::UnknownStream(4), "upstream sent frame for unknown stream 4"),
            (Fault::ClosedStream(1), "upstream sent frame for closed stream 1"),
            (
                Fault::StreamFlow(9, 8),
                "upstream violated stream flow control, received 9 data frame with window 8",
            ),
            (
                Fault::ConnectionFlow(9, 8),
                "upstream violated connection flow control, received 9 data frame with window 8",
            ),
            (violation.into(), "upstream sent a thing"),
        ] {
            assert_eq!(fault.to_string(), text);
        }
    }
}
