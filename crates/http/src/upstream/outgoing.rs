//! What is sent as the body of a request: what was read of it before, or what is still to come.
//!
//! Invariant: a body that is sent as it comes is sent once.

use std::{future::poll_fn, task::Poll};

use bytes::Bytes;
use forebay_wire::h1::BodyLength;

use super::{Outgoing, Protocol};
use crate::{
    body_in::{self, RequestBody},
    client::{self, Client},
    request::Request,
};

/// What is sent as the body: read before, unless it is to be sent as it comes.
pub(super) async fn outgoing<P: Protocol>(
    protocol: &P,
    r: &mut Request,
    job: &P::Job,
    client: &mut dyn Client,
) -> Result<Outgoing, u16> {
    let settings = protocol.settings();
    let passed = settings.pass_request_body && !protocol.has_own_body();
    if r.body.is_unread() && r.input.framing.body != BodyLength::None && !r.subrequest {
        let length = match r.input.framing.body {
            BodyLength::Length(length) => Some(length),
            _ => None,
        };
        let may_stream = length.is_some() || protocol.streams_unknown_length();
        if !settings.request_buffering && passed && may_stream {
            return stream(r, client, length).await;
        }
        body_in::read(r, client).await?;
    }
    // Once the client's is there: it may be part of it (`$request_body`).
    if let Some(own) = protocol.own_body(r, job) {
        return Ok(Outgoing::Memory(own));
    }
    Ok(match &r.body {
        _ if !passed => Outgoing::None,
        // Somebody read what there was not (`mirror`), which is not the same as a body of no bytes.
        RequestBody::Memory(bytes)
            if bytes.is_empty() && r.input.framing.body == BodyLength::None =>
        {
            Outgoing::None
        }
        RequestBody::Memory(bytes) => Outgoing::Memory(bytes.clone()),
        RequestBody::File(file) => Outgoing::File(file.clone()),
        RequestBody::Discarded if r.input.framing.body != BodyLength::None => {
            Outgoing::Memory(Bytes::new())
        }
        RequestBody::Unread | RequestBody::Begun(_) | RequestBody::Discarded => Outgoing::None,
        // DIFFERS(unbuffered-body-once): nginx announces all of it, and sends what it has left.
        RequestBody::Gone => Outgoing::Memory(Bytes::new()),
    })
}

/// A body that is sent as it comes, once as much of it is there as `client_body_postpone_sending` says
/// (Tengine): a small one is whole then, and no server waits for a slow client to begin.
///
/// DIFFERS(postpone-sending-default): Tengine postpones 64k unless told otherwise; here nothing is.
async fn stream(
    r: &mut Request,
    client: &mut dyn Client,
    length: Option<u64>,
) -> Result<Outgoing, u16> {
    let core = &r.location().core;
    let (limit, timeout_ms) = (r.body_limit(), core.client_body_timeout_ms);
    let postponed = core.client_body_postpone_sending;
    let at_hand = postponed.max(core.client_body_buffer_size);
    let begun = r.body.take_begun();
    let mut len = begun.len();
    let mut pieces = vec![begun];
    while len < at_hand {
        let waits = len < postponed;
        let next = poll_fn(|cx| match client.poll_body(limit, timeout_ms, cx) {
            Poll::Pending if !waits => Poll::Ready(None),
            next => next.map(Some),
        });
        // What is there already may be all of it, or too much of it: no server need be asked to know.
        let Some(next) = next.await else {
            client.pause_body();
            break;
        };
        let next = next.map_err(|error| {
            client::complain(r, error);
            error.status()
        });
        match next? {
            Some(piece) => {
                len += piece.len();
                pieces.push(piece);
            }
            // A body that is at hand is one that was read: `$request_body` has it, and another server may.
            None => {
                r.bytes_read += client.take_wire_bytes();
                let body = joined(pieces);
                r.body = RequestBody::Memory(body.clone());
                return Ok(Outgoing::Memory(body));
            }
        }
    }
    r.bytes_read += client.take_wire_bytes();
    r.body = RequestBody::Gone;
    Ok(Outgoing::Stream { begun: joined(pieces), length })
}

fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    pieces.retain(|piece| !piece.is_empty());
    match pieces.len() {
        0 | 1 => pieces.pop().unwrap_or_default(),
        _ => pieces.concat().into(),
    }
}
