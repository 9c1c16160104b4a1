//! See `Cargo.toml` for what this crate is.

pub mod affinity;
pub mod channel;
pub mod clock;
pub mod connect;
pub mod errno;
mod event_loop;
pub mod inherit;
pub mod listen;
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
