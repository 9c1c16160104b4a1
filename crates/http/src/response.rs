//! The response while it is being made: typed where filters need to look, a list for the rest.
//!
//! Answers nginx's `headers_out`. The fields that [`Response`] types are written first, in nginx's
//! order (`h1::head`); the list follows, in the order in which it was filled.

use std::{fmt, mem, rc::Rc};

use bytes::Bytes;

use forebay_wire::Span;

use crate::{
    body::Body,
    upstream::{
        State,
        body::{ReadAhead, Upload},
        upgrade::Tunnel,
    },
};

/// One header field of a response. Name and value never hold CR, LF or NUL when they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in the case it is sent in.
    pub name: Bytes,
    /// The value.
    pub value: Bytes,
}

/// The status line of another server, as far as it is not ours: `200 Fine`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The status that it belongs to.
    pub status: u16,
    /// The status and what follows it. Never holds CR, LF or NUL.
    pub text: Bytes,
}

impl Reason {
    /// What stands at a place of a head, unless it is what we say ourselves.
    pub fn of(status: u16, head: &Bytes, text: Span) -> Option<Reason> {
        let ours = forebay_wire::h1::encode::status_line(status);
        let said = text.of(head);
        let same = ours.get(9..ours.len().saturating_sub(2)).is_some_and(|ours| ours == said);
        let range = text.start as usize..text.end as usize;
        // DIFFERS(upstream-no-reason): nginx passes on a status line that ends with the status, where
        // RFC 9112 §4 has a space; here the usual reason stands.
        let bare = said.len() == 3;
        (!same && !bare).then(|| Reason { status, text: head.slice(range) })
    }
}

/// Where trailers will be found that have not come yet.
#[derive(Clone, Default)]
pub struct LateTrailers(pub Option<Rc<State>>);

impl fmt::Debug for LateTrailers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Late" } else { "None" })
    }
}

/// What to read while the client takes nothing, see [`ReadAhead`].
#[derive(Clone, Default)]
pub struct Ahead(pub Option<Rc<dyn ReadAhead>>);

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Ahead" } else { "None" })
    }
}

/// Where the rest of the request body goes meanwhile, see [`Upload`].
#[derive(Clone, Default)]
pub struct Uploading(pub Option<Rc<dyn Upload>>);

impl fmt::Debug for Uploading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Uploading" } else { "None" })
    }
}

/// A response under way.
#[derive(Debug, Default)]
pub struct Response {
    /// The status; 0 as long as there is none.
    pub status: u16,
    /// `Content-Type` without the charset.
    pub content_type: Option<Bytes>,
    /// Added to `Content-Type` as `; charset=…`.
    pub charset: Option<Bytes>,
    /// The field as another server wrote it, sent as long as the charset is this one.
    pub content_type_text: Option<(Bytes, Bytes)>,
    /// `X-Accel-Charset`.
    pub override_charset: Option<Bytes>,
    /// The status line of another server.
    pub reason: Option<Reason>,
    /// `Content-Length`; `None`: not known, so chunked or up to the end of the connection.
    pub content_length: Option<u64>,
    /// `Last-Modified`, seconds since 1970.
    pub last_modified: Option<i64>,
    /// `Location`; one that begins with `/` is made absolute as `absolute_redirect` says.
    pub location: Option<Bytes>,
    /// All other fields: ETag, Cache-Control, Content-Encoding, Vary …
    pub fields: Vec<Field>,
    /// Sent after a chunked body; those with an empty value only make it chunked.
    pub trailers: Vec<Field>,
    /// Trailers that another server sends behind its body, known when that has come.
    pub late_trailers: LateTrailers,
    /// Whether byte ranges of this body may be asked for (nginx's `allow_ranges`).
    pub allow_ranges: bool,
    /// Whether the list has another server's `Accept-Ranges`, before what is added to it.
    pub has_accept_ranges: bool,
    /// Whether only one range is answered (nginx's `single_range`).
    pub single_range: bool,
    /// Whether conditions (`If-Modified-Since`) were another server's to look at (nginx's
    /// `disable_not_modified`).
    pub not_modified_off: bool,
    /// Whether the list has a `Content-Encoding` that `add_header` says, and no other: then it is not for
    /// modules to look at.
    pub coding_is_added: bool,
    /// Whether the list has a `Server`, so that ours is not sent.
    pub has_server: bool,
    /// Whether the list has a `Date`.
    pub has_date: bool,
    /// Whether `Vary: Accept-Encoding` is written (`gzip_vary`).
    pub vary_accept_encoding: bool,
    /// Whether the body is sent chunked: known once the head is (`$sent_http_transfer_encoding`).
    pub chunked: bool,
    /// Whether the head goes out without a body whatever the body is (HEAD, 204, 304).
    pub header_only: bool,
    /// The body.
    pub body: Body,
    /// What to read while the client takes nothing of it.
    pub ahead: Ahead,
    /// Whether it ends when the client leaves while there is nothing to send: so that whoever it comes
    /// from need not go on.
    pub ends_with_client: bool,
    /// What takes the rest of the request body.
    pub uploading: Uploading,
    /// What the connection becomes after a 101.
    pub tunnel: Option<Box<Tunnel>>,
}

impl Response {
    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        let Response {
            status,
            content_type,
            charset,
            content_type_text,
            override_charset,
            reason,
            content_length,
            last_modified,
            location,
            fields,
            trailers,
            allow_ranges,
            has_accept_ranges,
            single_range,
            not_modified_off,
            coding_is_added,
            has_server,
            has_date,
            vary_accept_encoding,
            chunked,
            header_only,
            body,
            ahead,
            ends_with_client,
            uploading,
            late_trailers,
            tunnel,
        } = self;
        // One by one: moving a whole response costs more than most of its fields do.
        (*status, *content_length, *last_modified) = (0, None, None);
        (*content_type, *charset, *location) = (None, None, None);
        (*content_type_text, *override_charset, *reason) = (None, None, None);
        for flag in [
            allow_ranges,
            has_accept_ranges,
            single_range,
            not_modified_off,
            coding_is_added,
            has_server,
            has_date,
            vary_accept_encoding,
            chunked,
            header_only,
            ends_with_client,
        ] {
            *flag = false;
        }
        fields.clear();
        trailers.clear();
        *body = Body::Empty;
        *ahead = Ahead::default();
        *uploading = Uploading::default();
        *late_trailers = LateTrailers::default();
        *tunnel = None;
    }

    /// A copy of what the head says, for variables and the log.
    pub fn head(&self) -> Response {
        Response {
            status: self.status,
            content_type: self.content_type.clone(),
            charset: self.charset.clone(),
            content_length: self.content_length,
            last_modified: self.last_modified,
            location: self.location.clone(),
            fields: self.fields.clone(),
            ..Response::default()
        }
    }

    /// Forgets what belongs to a body that will not be sent; the list of fields stays, as in nginx.
    ///
    /// DIFFERS(page-forgets-file): nginx keeps the time of the file and that ranges of it may be asked for.
    /// DIFFERS(page-own-charset): nginx keeps the charset.
    pub fn forget_body(&mut self) {
        self.content_type = None;
        self.charset = None;
        self.content_type_text = None;
        self.reason = None;
        self.content_length = None;
        self.last_modified = None;
        self.allow_ranges = false;
        self.header_only = false;
        self.body = Body::Empty;
        self.late_trailers = LateTrailers::default();
        self.ahead = Ahead::default();
        self.ends_with_client = false;
        self.uploading = Uploading::default();
        self.tunnel = None;
    }

    /// The first field of that name, whatever its case.
    pub fn field(&self, name: &str) -> Option<&Bytes> {
        let is_it = |field: &&Field| field.name.eq_ignore_ascii_case(name.as_bytes());
        self.fields.iter().find(is_it).map(|field| &field.value)
    }

    /// Adds a field.
    pub fn add(&mut self, name: &'static str, value: impl Into<Bytes>) {
        self.fields.push(Field { name: Bytes::from_static(name.as_bytes()), value: value.into() });
    }

    /// Replaces all fields of that name by one.
    pub fn set(&mut self, name: &'static str, value: impl Into<Bytes>) {
        self.remove(name);
        self.add(name, value);
    }

    /// Removes all fields of that name.
    pub fn remove(&mut self, name: &str) {
        self.fields.retain(|field| !field.name.eq_ignore_ascii_case(name.as_bytes()));
    }

    /// The body is about to change: its length, its validators' strength and its ranges no longer
    /// hold (nginx's `ngx_http_clear_content_length`, `_clear_accept_ranges`, `_weak_etag`).
    pub fn body_will_change(&mut self) {
        self.content_length = None;
        self.allow_ranges = false;
        self.forget_accept_ranges();
        self.weaken_etag();
    }

    /// Ranges do not hold; what `add_header` says of them stays (nginx's `ngx_http_clear_accept_ranges`).
    pub fn forget_accept_ranges(&mut self) {
        if mem::take(&mut self.has_accept_ranges) {
            let is_it = |field: &Field| field.name.eq_ignore_ascii_case(b"accept-ranges");
            if let Some(at) = self.fields.iter().position(is_it) {
                self.fields.remove(at);
            }
        }
        let ours = |field: &Field| field.value == "bytes" && field.name == "Accept-Ranges";
        self.fields.retain(|field| !ours(field));
    }

    /// Makes a strong `ETag` weak, as the body is no longer byte for byte what it stands for; one that is
    /// none goes (nginx's `ngx_http_weak_etag`).
    pub fn weaken_etag(&mut self) {
        let is_one =
            |value: &[u8]| value.starts_with(b"\"") || value.len() > 2 && value.starts_with(b"W/");
        self.fields
            .retain(|field| !field.name.eq_ignore_ascii_case(b"etag") || is_one(&field.value));
        for field in &mut self.fields {
            if field.name.eq_ignore_ascii_case(b"etag") && field.value.starts_with(b"\"") {
                field.value = [b"W/", &field.value[..]].concat().into();
            }
        }
    }
}
