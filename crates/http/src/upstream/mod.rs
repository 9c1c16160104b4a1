//! Passing requests on to other servers: what every protocol of it shares (`ngx_http_upstream.c`).
//!
//! A module brings a [`Protocol`]: how a request is written and a response read. The exchange here
//! does the rest:
//!
//! ```text
//! exchange.rs   pick a server → connection, kept or new → send → read the head → or the next server
//! arrival.rs    the head of a response, and all that may come in its place
//! outgoing.rs   the body that is sent
//! send.rs       the request: head and body in one write; a body that is still coming, as it comes
//! head.rs       what the fields of a response do here, and which of them reach the client
//! body.rs       the rest of the response, as the client takes it; ahead of a slow client, in memory and
//!               in a temporary file
//! spill.rs      that file, written by other threads
//! upgrade.rs    the tunnel after a 101
//! h2/           the codec of HTTP/2, for whoever speaks something on top of it
//! tls.rs        the handshake, where TLS is spoken
//! state.rs      $upstream_… and the error log
//! ntlm.rs       connections that belong to a client
//! locate.rs     the servers behind an address that is known only with a request
//! settings.rs   the directives that all of them share, under their prefixes
//! ```
//!
//! Invariant: no module is named here, and no protocol spoken but in `h2`.

mod arrival;
pub mod body;
pub mod buffers;
pub mod conn;
pub mod exchange;
pub mod h2;
pub mod head;
mod locate;
pub mod ntlm;
mod outgoing;
mod queue;
pub mod send;
pub mod settings;
mod spill;
pub mod state;
pub mod tls;
pub mod upgrade;

use std::sync::Arc;

use bytes::Bytes;
use forebay_rt::pool;
use forebay_session::{
    ssl::client::{Client, Identity},
    upstream::{Group, Upstream},
};
use forebay_wire::h1::{BadResponse, ResponseFieldId, ResponseFraming, ResponseHead};

pub use exchange::run;
pub use h2::Session;
pub use locate::locate;
pub use send::Outgoing;
pub use settings::Settings;
pub use state::State;

use crate::{request::Request, response::Field};

/// The servers that a request goes to.
#[derive(Clone)]
pub enum GroupRef {
    /// Those of the configuration.
    Configured(Arc<Upstream>),
    /// Those that a name of the request's own resolved to.
    Own(Arc<Group>),
}

impl GroupRef {
    /// The group.
    pub fn group(&self) -> &Group {
        match self {
            GroupRef::Configured(upstream) => upstream.group(),
            GroupRef::Own(group) => group,
        }
    }
}

/// How requests are written and responses read.
pub trait Protocol: Send + Sync + 'static {
    /// What is worked out once for a request.
    type Job: 'static;
    /// What reads one response.
    type Codec: Codec;
    /// Whether nothing is asked: the connection that stands is the answer, as a codec that has read
    /// nothing tells it, and becomes a tunnel (CONNECT).
    const TUNNELS: bool = false;

    /// The settings that all protocols share.
    fn settings(&self) -> &Settings;

    /// Fields of responses that are not passed on.
    fn hidden(&self) -> &head::Hidden;

    /// Whom to ask for what. A status: nobody can be asked.
    fn prepare<'a>(
        &'a self,
        r: &'a mut Request,
    ) -> impl Future<Output = Result<Self::Job, u16>> + 'a;

    /// What connections of this place have in common, and those of others need not.
    fn tag(&self) -> u64;

    /// The servers.
    fn group<'a>(&'a self, job: &'a Self::Job) -> &'a GroupRef;

    /// Whether this request may go to the server that was picked (`tunnel_allow_upstream`), which is
    /// `$upstream_last_addr` by now.
    fn allows(&self, _r: &Request) -> bool {
        true
    }

    /// How much is read at once in each direction of a tunnel, bytes.
    fn tunnel_buffer_bytes(&self) -> usize {
        pool::BUFFER_BYTES
    }

    /// How TLS is spoken, and to whom; `None`: it is not.
    fn tls<'a>(&'a self, _job: &'a Self::Job) -> Option<(&'a Client, &'a Identity)> {
        None
    }

    /// The name of the protocol in the error log: `http://`.
    fn scheme(&self, job: &Self::Job) -> &'static str;

    /// Whether [`Protocol::own_body`] gives one.
    fn has_own_body(&self) -> bool {
        false
    }

    /// A body of the protocol's own (`proxy_set_body`).
    fn own_body(&self, _r: &Request, _job: &Self::Job) -> Option<Bytes> {
        None
    }

    /// Whether a body whose length is not known can be sent as it comes.
    fn streams_unknown_length(&self) -> bool;

    /// Whether the connection may be used again, as far as the request goes: `false` once it has told
    /// the server otherwise.
    fn keeps(&self, _job: &Self::Job) -> bool {
        true
    }

    /// Writes the request up to its body, and tells the error log what is asked
    /// ([`State::set_uri`]).
    fn write_head(
        &self,
        r: &Request,
        job: &Self::Job,
        body: &Outgoing,
        out: &mut Vec<u8>,
    ) -> Result<(), u16>;

    /// A reader for a response to this request; `head`: memory to use.
    fn codec(&self, r: &Request, job: &Self::Job, head: ResponseHead) -> Self::Codec;

    /// What a field of the response is to be changed to (`proxy_redirect`, `proxy_cookie_path`).
    fn rewrite(
        &self,
        _r: &Request,
        _job: &Self::Job,
        _id: ResponseFieldId,
        _value: &[u8],
    ) -> Option<Vec<u8>> {
        None
    }

    /// The protocol to be agreed on by ALPN; connections of another are of no use to it.
    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }
}

/// What is said when a server sends more than its `Content-Length`.
pub const MORE_THAN_LENGTH: &str =
    "upstream sent more data than specified in \"Content-Length\" header while reading upstream";

/// What came of bytes of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// The data is what stands between where the decoding began and here.
    pub data_end: usize,
    /// What stands from here on was left over.
    pub left_over: usize,
    /// Whether the body is complete.
    pub done: bool,
    /// What is wrong behind the data: the body ends there, and is not complete.
    pub bad: Option<BadResponse>,
}

/// What a protocol leaves with a connection when a response was read.
pub enum Remains {
    /// Nothing: the connection is as it was when it was made.
    Nothing,
    /// What the next response goes on with.
    Session(Box<Session>),
    /// No other request can be sent here.
    Spent,
}

/// Writes one request, as far as its form depends on the connection, and reads its response.
pub trait Codec: 'static {
    /// The connection; `session`: what [`Codec::release`] left with it.
    fn begin(&mut self, _session: Option<Box<Session>>) {}

    /// The response is complete: what remains of it.
    fn release(&mut self) -> Remains {
        Remains::Nothing
    }

    /// What is sent for a head, if that is something else than itself; `ends`: there is no body.
    fn open(&mut self, _head: &[u8], _ends: bool) -> Option<Vec<u8>> {
        None
    }

    /// Whether the body of the request is framed, see [`Codec::wrap`].
    fn frames(&self, body: &Outgoing) -> bool;

    /// How much of so many bytes of a body may be sent in one piece now.
    fn credit(&self, want: usize) -> usize {
        want
    }

    /// Puts what stands before and after a piece of the request body, within [`Codec::credit`]; `last`:
    /// the body ends with it. A piece of no bytes is the end alone.
    fn wrap(&mut self, _len: usize, _last: bool, _before: &mut Vec<u8>, _after: &mut Vec<u8>) {}

    /// What the protocol has to send beside the request, to be written between two pieces of it.
    fn take_output(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Whether there is any.
    fn has_output(&self) -> bool {
        false
    }

    /// Whether the rest of a request is sent while the body of its response comes.
    fn goes_on(&self) -> bool {
        false
    }

    /// Looks at what has come of a head, from its first byte; `limit`: what it must fit in. Bytes of
    /// the protocol are used up. How long it is, once it is complete: so much of the buffer is its text.
    fn read_head(&mut self, buf: &mut Vec<u8>, limit: usize) -> Result<Option<usize>, BadResponse>;

    /// The head, as far as it was read.
    fn head(&self) -> &ResponseHead;

    /// Decides what a complete head means; from then on the codec reads the body.
    fn framing(&mut self, buf: &[u8]) -> Result<ResponseFraming, BadResponse>;

    /// Makes ready for another head: after an interim one, and on another connection.
    fn reset(&mut self);

    /// Gives the head away.
    fn take_head(&mut self) -> ResponseHead;

    /// Decodes what stands in `buf` from `from` on, in place: data is moved together. Bytes of the
    /// protocol are used up. What came before a fault is data like any other.
    fn decode(&mut self, buf: &mut Vec<u8>, from: usize) -> Decoded;

    /// Whether the end of the connection is the end of the body, too.
    fn ends_with_connection(&self) -> bool;

    /// The trailers, when the body is complete.
    fn take_trailers(&mut self) -> Vec<Field> {
        Vec::new()
    }

    /// What the log says of a head or a body that is wrong; `buf`: where the head was read from.
    fn explain(&self, bad: BadResponse, buf: &[u8]) -> String;

    /// What the log says of what was left over behind a body; `None`: nothing.
    fn left_over(&self) -> Option<String> {
        Some(MORE_THAN_LENGTH.to_owned())
    }
}

/// RFC 9110 §6.5.1: what decides about the message has no place behind it.
pub fn matters_before_the_body(name: &[u8]) -> bool {
    matches!(
        ResponseFieldId::of(name),
        ResponseFieldId::ContentLength
            | ResponseFieldId::TransferEncoding
            | ResponseFieldId::ContentEncoding
            | ResponseFieldId::ContentType
            | ResponseFieldId::ContentRange
            | ResponseFieldId::Connection
            | ResponseFieldId::KeepAlive
            | ResponseFieldId::ProxyConnection
            | ResponseFieldId::Trailer
            | ResponseFieldId::TE
            | ResponseFieldId::Upgrade
            | ResponseFieldId::SetCookie
            | ResponseFieldId::Location
    )
}
