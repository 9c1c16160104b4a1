//! The client's side of a request, as handlers see it: whatever the protocol that it came by.

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    pin::pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use forebay_rt::{errno::Errno, timer};
use forebay_session::log::Severity;
use forebay_tls::RecordError;
use forebay_wire::h1::Version;

use crate::{request::Request, response::Field};

/// Why the rest of a request body will not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The client closed the connection or reset the stream.
    Gone,
    /// The connection broke, with this error of the system: as good as closed.
    Broken(i32),
    /// What came is no record of TLS that may come: the connection is closed.
    Record(RecordError),
    /// Nothing came for `client_body_timeout`: answered with 408.
    TimedOut,
    /// It is longer than `client_max_body_size`: answered with 413.
    TooLarge {
        /// Bytes of it that were taken.
        taken: u64,
        /// Bytes that were to follow them.
        next: u64,
    },
    /// Its framing is broken: answered with 400.
    Malformed,
}

/// How nginx says that nothing can be read (`ngx_unix_recv`, `ngx_ssl_recv`).
pub struct ReadFailed<'e>(pub &'e io::Error);

impl fmt::Display for ReadFailed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match RecordError::of(self.0) {
            Some(error) => write!(f, "SSL_read() failed ({error})"),
            None => write!(f, "recv() failed ({})", Errno(self.0)),
        }
    }
}

impl BodyError {
    /// Of a connection that cannot be read.
    pub fn of(error: &io::Error) -> BodyError {
        match (RecordError::of(error), error.raw_os_error()) {
            (Some(error), _) => BodyError::Record(error),
            (None, Some(code)) => BodyError::Broken(code),
            (None, None) => BodyError::Gone,
        }
    }

    /// Whether nobody is there any more.
    pub fn is_gone(self) -> bool {
        matches!(self, BodyError::Gone | BodyError::Broken(_) | BodyError::Record(_))
    }

    /// The status that the request ends with; of [`BodyError::Gone`], nobody is left to read it.
    pub fn status(self) -> u16 {
        match self {
            // DIFFERS(client-gone-in-body): nginx logs such a request with 400.
            BodyError::Gone | BodyError::Broken(_) | BodyError::Record(_) => 499,
            BodyError::TimedOut => 408,
            BodyError::TooLarge { .. } => 413,
            BodyError::Malformed => 400,
        }
    }
}

impl fmt::Display for BodyError {
    /// As the error log has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Gone => f.write_str("client prematurely closed connection"),
            BodyError::Broken(code) => {
                let error = io::Error::from_raw_os_error(*code);
                ReadFailed(&error).fmt(f)
            }
            BodyError::Record(error) => write!(f, "SSL_read() failed ({error})"),
            BodyError::TimedOut => f.write_str("client timed out (110: Connection timed out)"),
            BodyError::TooLarge { taken, next } => {
                write!(f, "client intended to send too large chunked body: {taken}+{next} bytes")
            }
            BodyError::Malformed => f.write_str("client sent invalid chunked body"),
        }
    }
}

/// Tells why a body did not come (`ngx_http_do_read_client_request_body`,
/// `ngx_http_request_body_chunked_filter`).
pub fn complain(r: &Request, error: BodyError) {
    complain_while(r, error, "");
}

/// The same; `doing`: what the request was at, ` while …`.
pub fn complain_while(r: &Request, error: BodyError, doing: &str) {
    let severity = match error {
        BodyError::Gone | BodyError::Broken(_) | BodyError::Record(_) => Severity::Info,
        BodyError::TooLarge { .. } => Severity::Error,
        BodyError::Malformed if r.version() <= Version::Http11 => Severity::Error,
        BodyError::Malformed | BodyError::TimedOut => return,
    };
    r.log_error(severity, format_args!("{error}{doing}"));
}

/// What a handler may ask of the client.
pub trait Client {
    /// From now on, a body is taken without `100 Continue` for a client that expects it (nginx's
    /// `expect_tested`).
    fn forgo_continue(&mut self) {}

    /// The next piece of the request body; `None` at its end. The first call answers
    /// `Expect: 100-continue`. Pieces are counted against `limit` bytes in all (0: no limit).
    fn poll_body(
        &mut self,
        limit: u64,
        timeout_ms: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, BodyError>>;

    /// Bytes of the body on the wire since the last call, for `$request_length`.
    fn take_wire_bytes(&mut self) -> u64 {
        0
    }

    /// Nobody waits for more of the body until it is asked for again: its timeout does not run.
    fn pause_body(&mut self) {}

    /// Ready once the client has closed the connection or reset the stream: nobody waits for the
    /// answer any more (`ngx_http_upstream_check_broken_connection`). Costs no system call as long as
    /// nothing happens on the connection.
    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// What broke the connection of a client that is gone; `None`: it was closed.
    fn gone_because(&mut self) -> Option<io::Error> {
        None
    }

    /// A client of its own for whoever takes the rest of the body while the answer goes out, who asks
    /// nobody else for it from now on; `None`: this client cannot do both at once.
    fn split(&mut self) -> Option<Box<dyn Client>> {
        None
    }

    /// Puts an interim response (103) before the answer, to be sent by [`Client::poll_hints`].
    fn hint(&mut self, _status: u16, _fields: &[Field]) {}

    /// Ready once interim responses are out: the answer must not be sent before. A client that takes
    /// nothing for so many milliseconds is as good as gone.
    fn poll_hints(&mut self, _timeout_ms: u64, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

/// Holds a request up for that many milliseconds; `Err` with the status that it ends with as soon as
/// the client has left meanwhile (`ngx_http_test_reading`).
pub async fn hold_up(r: &Request, client: &mut dyn Client, ms: u64) -> Result<(), u16> {
    let mut sleep = pin!(timer::sleep(ms));
    let stays = poll_fn(|cx| match client.poll_gone(cx) {
        Poll::Ready(()) => Poll::Ready(false),
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| true),
    });
    if stays.await {
        return Ok(());
    }
    complain(r, BodyError::Gone);
    Err(BodyError::Gone.status())
}

/// The client of a subrequest: there is nobody to ask.
pub struct Nobody;

impl Client for Nobody {
    fn poll_body(
        &mut self,
        _limit: u64,
        _timeout_ms: u64,
        _cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, BodyError>> {
        Poll::Ready(Ok(None))
    }
}
