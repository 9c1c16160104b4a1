//! From a parsed head to where its request begins: the server that its host names, and the path.
//!
//! Answers nginx's `ngx_http_set_virtual_server` and `ngx_http_process_request_uri`.
//!
//! Invariant: the same for every protocol.

use forebay_wire::{Reject, h1, uri};

use crate::{
    names::Names,
    plan::{Plan, ServerId},
    request::{Input, Request},
};

/// Chooses the server and takes the path from the target; `r.input.framing` is decided.
pub fn resolve(r: &mut Request, plan: &Plan, names: &Names) -> Result<(), Reject> {
    // nginx has parsed the path before it knows the host: the default server's setting counts.
    let merge = plan.server(r.server).settings.merge_slashes;
    r.method = r.input.head.method;
    // What follows a CONNECT that is refused may be meant for the tunnel.
    r.keep_alive = r.input.framing.keep_alive && r.method != h1::Method::Connect;
    path(r, merge)?;
    let input = r.input_mut();
    r.server = match KnownHost::recall(input, names) {
        Some(server) => server,
        None => find_server(r, names)?,
    };
    r.location = plan.server(r.server).location;
    Ok(())
}

/// Takes path and arguments from the target, which is all that nginx knows of a request while it reads
/// the header lines.
pub fn path(r: &mut Request, merge: bool) -> Result<(), Reject> {
    let input = r.input.clone();
    let raw = input.head.uri.of(&input.buf);
    let flags = &input.head.uri_flags;
    if raw.is_empty() {
        // The authority of a CONNECT: its location is that of the root.
        r.uri.push(b'/');
    } else if flags.is_simple() {
        let (path, args) = match flags.args_start {
            Some(at) => {
                let at = (at - input.head.uri.start) as usize;
                (&raw[..at - 1], &raw[at..])
            }
            None => (raw, &[][..]),
        };
        r.uri.extend_from_slice(path);
        r.args.extend_from_slice(args);
        r.uri_was_escaped = flags.plus_in;
    } else {
        let parsed = uri::normalize(raw, merge, &mut r.uri)?;
        r.uri_was_quoted = parsed.quoted;
        r.uri_was_escaped = parsed.quoted || parsed.plus_in;
        if let Some(args) = parsed.args {
            r.args.extend_from_slice(&raw[args]);
        }
    }
    // `?` alone makes no arguments (`ngx_http_process_request_uri`).
    r.has_args = !r.args.is_empty();
    Ok(())
}

/// What is wrong with the path of a target, if anything.
pub fn fault(input: &Input) -> Option<Reject> {
    let raw = input.head.uri.of(&input.buf);
    let is_plain = raw.is_empty() || input.head.uri_flags.is_simple();
    (!is_plain).then(|| uri::normalize(raw, true, &mut Vec::new()).err()).flatten()
}

fn find_server(r: &mut Request, names: &Names) -> Result<ServerId, Reject> {
    let input = r.input_mut();
    if let Some(host) = input.framing.host {
        input.port = h1::validate_host(host.of(&input.buf), &mut input.host)?;
    }
    let found = names.find(&input.host);
    match found.regex {
        None => KnownHost::learn(input, names, found.server),
        Some((regex, groups)) => {
            let host = input.host.clone();
            regex.run(r, &host, groups);
        }
    }
    Ok(found.server)
}

/// What the last host came to that this memory was used for: the next request, of the same client or
/// another, most often asks for the same.
#[derive(Default)]
pub(crate) struct KnownHost {
    /// As it was sent; empty: none is known.
    sent: Vec<u8>,
    host: Vec<u8>,
    port: Option<u16>,
    /// [`Names::number`] of those among which the server was found.
    names: u64,
    server: ServerId,
}

/// The longest name of DNS, and a port.
const MAX_KNOWN: usize = 260;

impl KnownHost {
    /// As it was sent: a host that is valid; empty if none is known.
    pub fn as_sent(&self) -> &[u8] {
        &self.sent
    }

    /// The server for the host of a request, which is noted there; `None`: it is to be looked for.
    fn recall(input: &mut Input, names: &Names) -> Option<ServerId> {
        let Input { buf, framing, known, host, port, .. } = input;
        let sent = framing.host?.of(buf);
        if known.names != names.number || known.sent != sent {
            return None;
        }
        host.extend_from_slice(&known.host);
        *port = known.port;
        Some(known.server)
    }

    fn learn(input: &mut Input, names: &Names, server: ServerId) {
        let Input { buf, framing, known, host, port, .. } = input;
        let Some(sent) = framing.host.filter(|sent| sent.len() <= MAX_KNOWN) else { return };
        known.sent.clear();
        known.sent.extend_from_slice(sent.of(buf));
        known.host.clone_from(host);
        (known.port, known.names, known.server) = (*port, names.number, server);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ServerName;
    use crate::testing;

    #[test]
    fn a_host_that_is_known_comes_to_the_same_under_its_own_names_only() {
        let mut r = testing::request("", "GET / HTTP/1.1\r\nHost: A.org:81\r\n\r\n");
        let (mut here, there) = (Names::new(ServerId(1)), Names::new(ServerId(2)));
        here.add(&ServerName::Exact((*b"a.org").into()), ServerId(3));
        let server_of = |r: &mut Request, names: &Names| {
            let input = r.input_mut();
            input.host.clear();
            input.port = None;
            let sent = input.known.as_sent();
            input.framing = h1::framing(&input.head, &input.buf, sent).unwrap();
            let known = KnownHost::recall(input, names);
            let found = known.map_or_else(|| find_server(r, names), Ok).unwrap();
            assert_eq!((&r.input.host[..], r.input.port), (&b"a.org"[..], Some(81)));
            (known.is_some(), found)
        };
        assert_eq!(server_of(&mut r, &here), (false, ServerId(3)));
        assert_eq!(server_of(&mut r, &here), (true, ServerId(3)));
        assert_eq!(server_of(&mut r, &there), (false, ServerId(2)));
        assert_eq!(server_of(&mut r, &here), (false, ServerId(3)));
    }
}
