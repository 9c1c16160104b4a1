//! Groups of servers that requests are passed to: who is in a group, who is asked next, who failed,
//! and the connections to them that are kept (`ngx_http_upstream_round_robin.c` and its relatives).
//! HTTP and stream share it.
//!
//! The way of a request:
//!
//! 1. While the configuration loads, `proxy_pass` asks [`Upstreams::used`] for what its address stands
//!    for: an `upstream {}` block, which may stand further down, or a group of its own.
//! 2. [`Group::begin`] makes a [`Selection`]: what is known about the request, who was tried.
//! 3. [`Group::pick`] names a server, as a [`Lease`] that counts the connection; or says to wait in the
//!    group's queue; or that nobody is there (`no live upstreams`).
//! 4. The connection is one of [`Group::pool`], or a new one.
//! 5. [`Lease::finish`] says how it went. While [`Selection::tries`] is not 0, step 3 may be taken
//!    again.
//!
//! What a group remembers (failures, connections, health, sessions, idle connections) is shared by all
//! threads, with `zone` or without, and goes over to the next configuration by name.
//!
//! Invariant: no protocol is spoken here but that of health checks.

pub mod address;
mod balance;
pub mod directives;
mod group;
pub mod health;
pub mod keepalive;
mod peer;
mod queue;
mod registry;
mod resolve;
mod select;
pub mod sticky;

pub use group::{Group, Method, Server, Settings, Time};
pub use peer::{Peer, Weights};
pub use queue::{Called, QueueSettings, Ticket};
pub use registry::{Upstream, Upstreams};
pub use select::{Lease, Outcome, Pick, Selection, Timings};
