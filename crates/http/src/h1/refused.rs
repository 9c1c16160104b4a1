//! What is known of a head that is refused, or never came whole: as much as nginx had read when it found
//! the fault. Pages, logs and variables tell no more than that.
//!
//! Invariant: which heads are refused is decided in `wire`.

use forebay_wire::{
    Reject, Span,
    h1::{self, FieldId, Head},
};

use crate::{
    names::Names,
    plan::{LocId, Plan, ServerId},
    request::Request,
    target,
};

/// Whose pages and logs tell of a head that is refused, and for what. nginx reads the path before the
/// header lines: what is wrong with it is told first, by the default server.
#[cold]
pub fn settle(r: &mut Request, plan: &Plan, names: &Names, reject: Reject) -> Reject {
    if r.bytes_read == 0 {
        // Not even the request line is known.
        return reject;
    }
    let reject = target::fault(&r.input).unwrap_or(reject);
    forget_the_rest(r, reject);
    if !reject.in_request_line() || reject == Reject::InvalidTargetHost {
        identify(r, plan, names, reject == Reject::NoHost);
    }
    reject
}

/// The client left or took too long in the midst of what the parser has read.
#[cold]
pub fn cut_short(r: &mut Request, plan: &Plan, names: &Names, parser: &h1::Parser) {
    r.bytes_read = parser.lines_bytes();
    if r.bytes_read > 0 {
        return identify(r, plan, names, false);
    }
    let input = r.input_mut();
    input.head.request_line = first_line(&input.buf);
    // What there is of the target is not known to be all of it.
    (input.head.method_span, input.head.uri) = Default::default();
    input.head.protocol = parser.begun_version();
}

/// Takes the path, and the server if a host is named or `anyway`. What these find wrong is less than what
/// is known already.
pub fn identify(r: &mut Request, plan: &Plan, names: &Names, anyway: bool) {
    let input = r.input_mut();
    input.framing.host = h1::named_host(&input.head, &input.buf);
    let _ = match input.framing.host.is_some() || anyway {
        true => target::resolve(r, plan, names),
        false => target::path(r, plan.server(r.server).settings.merge_slashes),
    };
}

/// nginx has not looked at `Host` yet when it finds fault with the path: the default server answers.
#[cold]
pub fn forget_target(r: &mut Request, default: (ServerId, LocId)) {
    (r.server, r.location) = default;
    r.uri.clear();
    r.args.clear();
    r.has_args = false;
    let input = r.input_mut();
    input.host.clear();
    input.framing.host = None;
}

/// What stands behind the fault in a head that was read whole is neither known nor counted.
#[cold]
pub fn forget_the_rest(r: &mut Request, reject: Reject) {
    let input = r.input_mut();
    let head = &mut input.head;
    let end = if reject.in_request_line() {
        head.headers.clear();
        if reject != Reject::InvalidTargetHost {
            head.uri = Span::default();
        }
        head.request_line.end
    } else if let Some(at) = faulty_line(head, reject) {
        let line = head.headers[at];
        // A second line is known to the log only.
        head.headers.truncate(if reject == Reject::InvalidHost { at + 1 } else { at });
        head.refused = Some(Span { start: line.name.start, end: line.value.end });
        line.value.end
    } else {
        return;
    };
    let start = head.request_line.start as usize;
    let line_feed = memchr::memchr(b'\n', &input.buf[end as usize..]);
    let end = line_feed.map_or(input.buf.len(), |at| end as usize + at + 1);
    r.bytes_read = (end - start) as u64;
}

/// The line that nginx refuses a head for as soon as it is read; what is wrong with all of them together
/// is found at the end.
fn faulty_line(head: &Head, reject: Reject) -> Option<usize> {
    let headers = &head.headers;
    let is_host = |id| id == FieldId::Host;
    match reject {
        Reject::InvalidHost => headers.iter().position(|field| is_host(field.id)),
        Reject::DuplicateHeader | Reject::DuplicateHost => (0..headers.len()).find(|&at| {
            let id = headers[at].id;
            id.is_unique()
                && is_host(id) == (reject == Reject::DuplicateHost)
                && headers[..at].iter().any(|first| first.id == id)
        }),
        _ => None,
    }
}

/// As much of a request line as came, behind empty ones, is what logs show.
fn first_line(buf: &[u8]) -> Span {
    let ends = |ch: &u8| matches!(ch, b'\r' | b'\n');
    let start = buf.iter().take_while(|ch| ends(ch)).count();
    let len = buf[start..].iter().take_while(|ch| !ends(ch)).count();
    Span::new(start, start + len)
}
