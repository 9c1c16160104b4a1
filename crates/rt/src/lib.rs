//! The runtime: threads with an event loop each, listening and connected sockets, timers, pools of
//! memory and of threads, clocks, and processes with their signals, privileges and titles.
//!
//! Invariant: no protocol is known here; and `unsafe` is nowhere else.

pub mod affinity;
pub mod channel;
pub mod clock;
pub mod connect;
pub mod errno;
mod event_loop;
pub mod inherit;
pub mod listen;
pub mod memory;
pub mod pool;
pub mod privileges;
pub mod process;
pub mod signals;
pub mod systemd;
pub mod task;
pub mod tcp_info;
pub mod threads;
pub mod timer;
pub mod title;
pub mod transport;
pub mod worker;

#[cfg(test)]
mod testing;
