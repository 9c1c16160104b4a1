//! Connections that are kept for the next request (`ngx_http_upstream_keepalive_module.c`).
//!
//! Hot path: taking and giving back a connection of the own thread takes one lock that nobody else
//! wants.
//!
//! Invariant: never more idle connections than `keepalive` says, over all threads.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
};

use super::Peer;

/// What the pool asks of a connection.
pub trait Idle: Send + 'static {
    /// Ready: the other end has closed, or sent what nobody asked for. Else the task is woken when
    /// that happens. No system call unless an event came.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// `keepalive` and its relatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `keepalive`: idle connections at the most; 0: none.
    pub connections: usize,
    /// `keepalive_requests`: requests over one connection.
    pub requests: u64,
    /// `keepalive_time`: how old a connection may become, in milliseconds.
    pub time_ms: u64,
    /// `keepalive_timeout`: how long it may be idle, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { connections: 32, requests: 1000, time_ms: 3_600_000, timeout_ms: 60_000 }
    }
}

/// A connection with its history.
pub struct Kept<C> {
    /// The connection.
    pub connection: C,
    /// Requests that went over it.
    pub requests: u64,
    /// When it was made, in [`forebay_rt::clock::now_ms`].
    pub made_ms: u64,
    /// It belongs to the event loop of another thread, and must be taken from there before use.
    pub stolen: bool,
}

impl<C> Kept<C> {
    /// A connection that was just made.
    pub fn new(connection: C, now_ms: u64) -> Kept<C> {
        Kept { connection, requests: 0, made_ms: now_ms, stolen: false }
    }
}

/// The idle connections of a group.
pub struct Pool<C> {
    idle: Mutex<VecDeque<(u64, Kept<C>)>>,
}

impl<C: Idle> Pool<C> {
    pub(crate) fn new() -> Pool<C> {
        Pool { idle: Mutex::new(VecDeque::new()) }
    }

    /// Takes the connection to a peer that was used last.
    pub fn take(&self, peer: &Peer, _now_ms: u64) -> Option<Kept<C>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().rposition(|(id, _)| *id == peer.id)?;
        Some(idle.remove(at)?.1)
    }

    /// Keeps a connection, unless its time is over. What is used least goes when there is no room.
    pub fn keep(&self, settings: &Settings, peer: &Peer, kept: Kept<C>, now_ms: u64) {
        let old = now_ms.saturating_sub(kept.made_ms) > settings.time_ms;
        if settings.connections == 0 || kept.requests >= settings.requests || old {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back((peer.id, kept));
        if idle.len() > settings.connections {
            idle.pop_front();
        }
    }
}
