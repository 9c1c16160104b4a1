//! Free TCP ports for servers under test.
//! Invariant: a port is reserved across processes for as long as its [`Port`] lives, so that two test
//! programs that run at once never share one, even when a server listens with `SO_REUSEPORT`.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

// Below Linux' ephemeral range (32768 and up), so that no outgoing connection takes one; always five
// digits, so that bodies which name the port have one length.
const FIRST: u16 = 10_000;
const COUNT: u16 = 22_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port that nothing listens on; the reservation ends on drop or with the process.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Reserves a port that can be bound on 127.0.0.1 at this moment.
    pub fn reserve() -> io::Result<Port> {
        let dir = lock_dir()?;
        // Processes start at different places, which makes them rarely meet.
        let start = (u64::from(std::process::id()) * 7919 % u64::from(COUNT)) as u16;
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
            let number = FIRST + ((u32::from(start) + u32::from(step)) % u32::from(COUNT)) as u16;
            let path = dir.join(number.to_string());
            let lock = match File::options().create(true).append(true).open(&path) {
                Ok(lock) => lock,
                // Another user's: that port is taken or was.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => continue,
                Err(e) => return Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
            };
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Port { number, _lock: lock });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free port"))
    }

    /// The port number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

fn lock_dir() -> io::Result<PathBuf> {
    let dir = std::env::temp_dir().join("forebay-ports");
    if fs::create_dir(&dir).is_ok() {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777))?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn reserved_ports_differ_and_can_be_bound() {
        let ports: Vec<Port> = (0..8).map(|_| Port::reserve().expect("port")).collect();
        for (i, port) in ports.iter().enumerate() {
            assert!(ports[..i].iter().all(|other| other.number() != port.number()));
            // A process that another test is just starting holds every socket until its exec.
            let is_free = || TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).is_ok();
            assert!(crate::wait_for(is_free, Duration::from_secs(5)));
        }
    }
}
