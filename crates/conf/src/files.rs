//! Where a loader's files come from, and the addresses of the hosts that it names. Everything is asked
//! through [`Files`], so that a worker without privileges can load the same configuration from what its
//! master recorded.
//!
//! Invariant: nothing else that loads a configuration opens a file or looks a name up.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use crate::glob;

/// Reads what a configuration names.
pub trait Files {
    /// The whole content of a file.
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>>;

    /// The names that match a mask, sorted by bytes; no match is an empty answer, not an error
    /// (`ngx_conf_include` sets `gl.test`).
    fn glob(&mut self, pattern: &str) -> io::Result<Vec<PathBuf>>;

    /// The addresses of a host, as the system knows them while the configuration loads
    /// (`ngx_inet_resolve_host`): at least one, none twice. An address stands for itself.
    fn resolve(&mut self, host: &str) -> io::Result<Vec<IpAddr>> {
        match host.parse() {
            Ok(addr) => Ok(vec![addr]),
            Err(_) => self.lookup(host),
        }
    }

    /// The same for what is no address. Where there are only files, no name is known.
    fn lookup(&mut self, _host: &str) -> io::Result<Vec<IpAddr>> {
        Err(io::Error::other("no such name"))
    }

    /// Who may do what with a file (`0o600`), where it is at hand: only warnings depend on it.
    fn mode(&mut self, _path: &Path) -> Option<u32> {
        None
    }
}

/// Reads from the file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Files for Direct {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn glob(&mut self, pattern: &str) -> io::Result<Vec<PathBuf>> {
        glob::glob(pattern)
    }

    fn lookup(&mut self, host: &str) -> io::Result<Vec<IpAddr>> {
        let mut found: Vec<IpAddr> = Vec::new();
        for addr in (host, 0).to_socket_addrs()? {
            if !found.contains(&addr.ip()) {
                found.push(addr.ip());
            }
        }
        // nginx asks with AI_ADDRCONFIG: no IPv6 addresses where there is no IPv6 but the loopback's.
        if found.iter().any(IpAddr::is_ipv4) && !has_ipv6() {
            found.retain(IpAddr::is_ipv4);
        }
        match found.is_empty() {
            true => Err(io::Error::other("no address")),
            false => Ok(found),
        }
    }

    fn mode(&mut self, path: &Path) -> Option<u32> {
        use std::os::unix::fs::PermissionsExt as _;
        Some(std::fs::metadata(path).ok()?.permissions().mode() & 0o7777)
    }
}

/// Whether any interface but the loopback has an IPv6 address (proc(5): the fourth column is the
/// scope, 10 that of the loopback's address).
fn has_ipv6() -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/net/if_inet6") else { return false };
    table.lines().any(|line| line.split_whitespace().nth(3).is_some_and(|scope| scope != "10"))
}

/// Files in memory, for tests and embedded configurations. Of names it knows `localhost`.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    files: std::collections::BTreeMap<PathBuf, Vec<u8>>,
}

impl Memory {
    /// The same with one file more.
    pub fn with(mut self, path: impl Into<PathBuf>, text: impl AsRef<[u8]>) -> Memory {
        self.files.insert(path.into(), text.as_ref().to_vec());
        self
    }
}

impl Files for Memory {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        const ENOENT: i32 = 2;
        self.files.get(path).cloned().ok_or_else(|| io::Error::from_raw_os_error(ENOENT))
    }

    fn glob(&mut self, pattern: &str) -> io::Result<Vec<PathBuf>> {
        let matching = |p: &&PathBuf| glob::path_matches(pattern, p);
        Ok(self.files.keys().filter(matching).cloned().collect())
    }

    fn lookup(&mut self, host: &str) -> io::Result<Vec<IpAddr>> {
        match host {
            "localhost" => Ok(vec![IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)]),
            _ => Err(io::Error::other("no such name")),
        }
    }
}
