//! `ntlm` (`ngx_http_upstream_module`): connections to servers that belong to a client.
//!
//! NTLM and Negotiate authenticate a connection and not a request. A client that sends such an
//! `Authorization` is bound to the server that gets it, and from then on its connections there are told
//! from all others in the pool by a tag of their own: nobody else is ever given one. They are idle as
//! long as `keepalive_timeout` says, also when the client has gone.
//!
//! Invariant: what a client has authenticated serves requests of that client's connection only.

use std::{cell::RefCell, sync::Arc};

use forebay_session::upstream::{Group, Peer, Selection};
use forebay_wire::h1::FieldId;

use crate::request::Request;

/// The servers that a client's connection is bound to.
#[derive(Default)]
pub struct Bound(RefCell<Vec<Binding>>);

/// One of them.
struct Binding {
    group: Box<str>,
    /// The server, once one was asked.
    peer: Option<Arc<Peer>>,
}

/// Makes the numbers of clients tags; odd, so that no two come to the same.
const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;

/// A request that begins: binds its client if it asks for that, and the request to the client's server.
/// What the tags of its connections are told apart by; 0: nothing.
pub(super) fn begin(r: &Request, group: &Group, selection: &mut Selection) -> u64 {
    if group.settings.ntlm { bind(r, group, selection) } else { 0 }
}

#[cold]
fn bind(r: &Request, group: &Group, selection: &mut Selection) -> u64 {
    let client = &r.connection;
    let asks = asks(r);
    if client.bound.get().is_none() && !asks {
        return 0;
    }
    let mut bound = client.bound.get_or_init(Box::default).0.borrow_mut();
    match bound.iter().find(|binding| binding.group == group.name) {
        Some(Binding { peer: Some(peer), .. }) => selection.bind(peer),
        Some(_) => {}
        None if asks => bound.push(Binding { group: group.name.clone(), peer: None }),
        None => return 0,
    }
    client.number.wrapping_mul(SPREAD)
}

/// This server is asked now.
pub(super) fn asked(r: &Request, group: &Group, peer: &Arc<Peer>) {
    if !group.settings.ntlm {
        return;
    }
    let Some(bound) = r.connection.bound.get() else { return };
    if let Some(binding) = bound.0.borrow_mut().iter_mut().find(|b| b.group == group.name) {
        binding.peer = Some(peer.clone());
    }
}

/// Whether a request carries credentials of its connection.
fn asks(r: &Request) -> bool {
    let begins = |value: &[u8], name: &[u8]| {
        value.get(..name.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(name))
    };
    let value = r.input.field(FieldId::Authorization);
    value.is_some_and(|value| begins(value, b"Negotiate") || begins(value, b"NTLM"))
}
