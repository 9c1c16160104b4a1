//! Passing requests on to other servers: what every protocol of it shares (`ngx_http_upstream.c`).
//!
//! A module brings a [`Protocol`]: how a request is written and a response read. The exchange here
//! does the rest:
//!
//! ```text
//! exchange.rs   pick a server → connection, kept or new → send → read the head → or the next server
//! arrival.rs    the head of a response, and all that may come in its place
//! send.rs       the request: head and body in one write; a body that is still coming, as it comes
//! head.rs       what the fields of a response do here, and which of them reach the client
//! body.rs       the rest of the response, as the client takes it; ahead of a slow client, in memory and
//!               in a temporary file
//! spill.rs      that file, written by other threads
//! upgrade.rs    the tunnel after a 101
//! tls.rs        the handshake, where TLS is spoken
//! state.rs      $upstream_… and the error log
//! locate.rs     the servers behind an address that is known only with a request
//! settings.rs   the directives that all of them share, under their prefixes
//! ```
//!
//! Invariant: no module is named here, and no protocol spoken.

mod arrival;
pub mod body;
pub mod buffers;
pub mod conn;
pub mod exchange;
pub mod head;
mod locate;
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

    /// Whether the body of the request is framed in chunks of the protocol, see [`Protocol::frame`].
    fn frames_body(&self, body: &Outgoing) -> bool;

    /// Puts a frame's head for so many bytes of the request body; of none: what ends the body.
    fn frame(&self, _len: usize, _out: &mut Vec<u8>) {}

    /// Puts what follows a frame.
    fn frame_end(&self, _out: &mut Vec<u8>) {}
}

/// What came of bytes of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// The data is what stands between where the decoding began and here.
    pub data_end: usize,
    /// What stands from here on was left over.
    pub left_over: usize,
    /// Whether the body is complete.
    pub done: bool,
}

/// Reads one response.
pub trait Codec: 'static {
    /// Looks at what has come of a head, from its first byte; `limit`: what it must fit in. How long
    /// it is, once it is complete.
    fn read_head(&mut self, buf: &[u8], limit: usize) -> Result<Option<usize>, BadResponse>;

    /// The head, as far as it was read.
    fn head(&self) -> &ResponseHead;

    /// Decides what a complete head means; from then on the codec reads the body.
    fn framing(&mut self, buf: &[u8]) -> Result<ResponseFraming, BadResponse>;

    /// Makes ready for another head: after an interim one, and on another connection.
    fn reset(&mut self);

    /// Gives the head away.
    fn take_head(&mut self) -> ResponseHead;

    /// Decodes what stands in `buf` from `from` on, in place: data is moved together. Bytes of the
    /// protocol are used up.
    fn decode(&mut self, buf: &mut Vec<u8>, from: usize) -> Result<Decoded, BadResponse>;

    /// Whether the end of the connection is the end of the body, too.
    fn ends_with_connection(&self) -> bool;

    /// The trailers, when the body is complete.
    fn take_trailers(&mut self) -> Vec<Field> {
        Vec::new()
    }
}
