//! See `Cargo.toml` for what this crate is.

pub mod affinity;
pub mod channel;
pub mod errno;
pub mod inherit;
pub mod listen;
pub mod privileges;
pub mod process;
pub mod signals;
pub mod systemd;
pub mod title;

#[cfg(test)]
mod testing;
