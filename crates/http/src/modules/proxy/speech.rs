//! What depends on the version of HTTP that is spoken: how heads are written, and who reads responses.
//!
//! Invariant: which it is was decided when the configuration was loaded; a request never asks.

use forebay_session::var::Template;
use forebay_wire::h1::{ResponseHead, Sent};

use super::{
    codec,
    request::{self, Lines, Parts},
    request2::{self, Fields},
};
use crate::{
    request::Request,
    upstream::{Codec, Outgoing, h2},
};

/// A version.
pub trait Speech: Send + Sync + 'static {
    /// What reads its responses.
    type Codec: Codec;
    /// What it is called by ALPN, where it needs that.
    const ALPN: Option<&'static [u8]>;

    /// Whether a body whose length is not known can be sent as it comes.
    fn streams_unknown_length(&self) -> bool;

    /// Whether a request for another protocol reaches the server as one.
    fn upgrades(&self) -> bool;

    /// Writes a head. `None`: there is no URI to ask for.
    fn write_head(
        &self,
        r: &Request,
        parts: &Parts<'_>,
        body: &Outgoing,
        out: &mut Vec<u8>,
    ) -> Option<()>;

    /// What reads the response; `is_head`: to a HEAD.
    fn codec(&self, r: &Request, is_head: bool, head: ResponseHead) -> Self::Codec;
}

/// 1.0 and 1.1.
pub struct Http1 {
    lines: Lines,
    http11: bool,
}

impl Http1 {
    /// With these `proxy_set_header`s.
    pub fn new(set: &[(Box<[u8]>, Template)], http11: bool) -> Http1 {
        Http1 { lines: Lines::new(set), http11 }
    }
}

impl Speech for Http1 {
    type Codec = codec::Http1;
    const ALPN: Option<&'static [u8]> = None;

    fn streams_unknown_length(&self) -> bool {
        self.http11
    }

    fn upgrades(&self) -> bool {
        self.http11 && self.lines.upgrades()
    }

    fn write_head(
        &self,
        r: &Request,
        parts: &Parts<'_>,
        body: &Outgoing,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        request::write(r, parts, (&self.lines, self.http11), body, out)
    }

    fn codec(&self, r: &Request, is_head: bool, head: ResponseHead) -> codec::Http1 {
        let upgrade = self.http11 && r.input.framing.upgrade;
        codec::Http1::new(Sent { head: is_head, upgrade }, head)
    }
}

/// 2.
pub struct Http2(Fields);

impl Http2 {
    /// With these `proxy_set_header`s.
    pub fn new(set: &[(Box<[u8]>, Template)]) -> Http2 {
        Http2(Fields::new(set))
    }
}

impl Speech for Http2 {
    type Codec = h2::Http2;
    const ALPN: Option<&'static [u8]> = Some(b"h2");

    fn streams_unknown_length(&self) -> bool {
        true
    }

    fn upgrades(&self) -> bool {
        false
    }

    fn write_head(
        &self,
        r: &Request,
        parts: &Parts<'_>,
        body: &Outgoing,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        request2::write(r, parts, &self.0, body, out)
    }

    fn codec(&self, _: &Request, is_head: bool, head: ResponseHead) -> h2::Http2 {
        h2::Http2::new(is_head, head)
    }
}
