//! `ntlm` (`ngx_http_upstream_module`): connections to servers that belong to a client.
//!
//! NTLM and Negotiate authenticate a connection and not a request. A client that sends such an
//! `Authorization` is bound to the server that gets it, and from then on its connections there are told
//! from all others in the pool by a tag of their own: nobody else is ever given one. They are closed with
//! the connection of the client.
//!
//! Invariant: what a client has authenticated serves requests of that client's connection only.

use std::{cell::RefCell, sync::Arc};

use forebay_rt::connect::Bind;
use forebay_session::upstream::{
    Group, Peer, Selection,
    keepalive::{Owner, Pool},
};
use forebay_wire::h1::FieldId;

use super::conn::Connection;
use crate::request::Request;

/// The servers that a client's connection is bound to.
#[derive(Default)]
pub struct Bound {
    bindings: RefCell<Vec<Binding>>,
    owner: Arc<Owner>,
}

/// One of them.
struct Binding {
    group: Box<str>,
    /// The server, once one was asked.
    peer: Option<Arc<Peer>>,
    /// Where connections to it are kept; none are without `keepalive`.
    pool: Option<Pool<Connection>>,
}

/// Whom a connection belongs to, if it is not anybody's.
pub type Owned = Option<Arc<Owner>>;

/// Which connections a request may have.
#[derive(Default)]
pub(super) struct Claim {
    /// What they are told apart by; 0: nothing.
    pub tag: u64,
    /// See [`Owned`].
    pub owner: Owned,
    /// Where they are to come from (`proxy_bind`).
    pub from: Option<Bind>,
}

impl Claim {
    /// The same, of connections from that address only.
    pub fn coming_from(self, from: Option<Bind>) -> Claim {
        Claim { tag: self.tag ^ from.map_or(0, Bind::tag), from, ..self }
    }
}

impl Bound {
    /// The client's connection is closed.
    pub(crate) fn client_gone(&self) {
        for pool in self.bindings.borrow().iter().filter_map(|binding| binding.pool.as_ref()) {
            pool.abandon(&self.owner);
        }
    }
}

/// Makes the numbers of clients tags; odd, so that no two come to the same.
const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;

/// A request that begins: binds its client if it asks for that, and the request to the client's server.
pub(super) fn begin(r: &Request, group: &Group, selection: &mut Selection) -> Claim {
    if group.settings.ntlm { bind(r, group, selection) } else { Claim::default() }
}

#[cold]
fn bind(r: &Request, group: &Group, selection: &mut Selection) -> Claim {
    let client = &r.connection;
    let asks = asks(r);
    if client.bound.get().is_none() && !asks {
        return Claim::default();
    }
    let bound = client.bound.get_or_init(Box::default);
    let mut bindings = bound.bindings.borrow_mut();
    // A reload may have given the group another pool.
    let pool = group.pool().cloned();
    match bindings.iter_mut().find(|binding| binding.group == group.name) {
        Some(binding) => {
            binding.pool = pool;
            if let Some(peer) = &binding.peer {
                selection.bind(peer);
            }
        }
        None if asks => bindings.push(Binding { group: group.name.clone(), peer: None, pool }),
        None => return Claim::default(),
    }
    let tag = client.number.wrapping_mul(SPREAD);
    Claim { tag, owner: Some(bound.owner.clone()), from: None }
}

/// This server is asked now.
pub(super) fn asked(r: &Request, group: &Group, peer: &Arc<Peer>) {
    if !group.settings.ntlm {
        return;
    }
    let Some(bound) = r.connection.bound.get() else { return };
    if let Some(binding) = bound.bindings.borrow_mut().iter_mut().find(|b| b.group == group.name) {
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
