//! From a parsed head to where its request begins: the server that its host names, and the path.
//!
//! Answers nginx's `ngx_http_set_virtual_server` and `ngx_http_process_request_uri`.
//!
//! Invariant: the same for every protocol.

use forebay_wire::{Reject, h1, uri};

use crate::{names::Names, plan::Plan, request::Request};

/// Chooses the server and takes the path from the target; `r.input.framing` is decided.
pub fn resolve(r: &mut Request, plan: &Plan, names: &Names) -> Result<(), Reject> {
    let input = r.input_mut();
    if let Some(host) = input.framing.host {
        input.port = h1::validate_host(host.of(&input.buf), &mut input.host)?;
    }
    r.method = r.input.head.method;
    // What follows a CONNECT that is refused may be meant for the tunnel.
    r.keep_alive = r.input.framing.keep_alive && r.method != h1::Method::Connect;
    let found = names.find(&r.input.host);
    r.server = found.server;
    r.location = plan.server(r.server).location;
    if let Some((regex, groups)) = found.regex {
        let host = r.input.host.clone();
        regex.run(r, &host, groups);
    }
    let merge = plan.server(r.server).settings.merge_slashes;
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
        r.uri_was_escaped = parsed.quoted || parsed.plus_in;
        if let Some(args) = parsed.args {
            r.args.extend_from_slice(&raw[args]);
        }
    }
    Ok(())
}
