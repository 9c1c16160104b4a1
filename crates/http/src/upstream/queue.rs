//! Waiting in the queue of a group whose servers are all busy (`queue`).
//!
//! Invariant: nobody waits for longer than his client does.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use forebay_rt::clock;
use forebay_session::{
    log::Severity,
    upstream::{Called, Ticket},
};

use super::{
    Settings,
    arrival::{GivenUp, given_up},
};
use crate::{client::Client, request::Request};

/// Waits in the queue of a group, as long as the client does.
pub(super) async fn wait(
    r: &Request,
    client: &mut dyn Client,
    settings: &Settings,
    mut ticket: Ticket,
    group: &str,
) -> Result<(), u16> {
    const DOING: &str = "connecting to upstream";
    let begun_ms = clock::now_ms();
    let called = poll_fn(|cx| {
        if !settings.ignore_client_abort && client.poll_gone(cx).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut ticket).poll(cx).map(Some)
    })
    .await;
    r.upstream.queued(clock::now_ms().saturating_sub(begun_ms));
    match called {
        Some(Called::Again) => Ok(()),
        Some(Called::TimedOut) => {
            r.upstream.nobody(group, 502);
            let text = format_args!("upstream queue timed out while {DOING}");
            r.log_error(Severity::Error, text);
            Err(502)
        }
        None => {
            r.upstream.nobody(group, 0);
            given_up(r, GivenUp::ClientGone(client.gone_because()), DOING);
            Err(499)
        }
    }
}
