//! Sockets from the process that started us: a binary being upgraded (nginx's `NGINX` variable,
//! ngx_add_inherited_sockets) or systemd.
//! Invariant: a descriptor number becomes ours at most once, at start.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::listen::{Addr, name_of};
use crate::process::adopt_flags;

/// The variable by which nginx hands sockets to its new binary.
pub const VARIABLE: &str = "NGINX";

/// The variable's value for these sockets: each number with a semicolon behind it.
pub fn nginx_variable(fds: &[BorrowedFd<'_>]) -> String {
    fds.iter().map(|fd| format!("{};", fd.as_raw_fd())).collect()
}

/// Reads the variable. What does not parse ends the list, with nginx's message for the log.
pub fn parse_nginx_variable(value: &str) -> (Vec<RawFd>, Option<String>) {
    let mut fds = Vec::new();
    // ngx_add_inherited_sockets reads up to each separator; what follows the last one is not
    // looked at, except that it is reported.
    let mut rest = value;
    while let Some(end) = rest.find([';', ':']) {
        let number = &rest[..end];
        match number.parse::<RawFd>() {
            Ok(fd) if fd >= 0 && number.bytes().all(|byte| byte.is_ascii_digit()) => fds.push(fd),
            _ => {
                let problem = format!(
                    "invalid socket number \"{rest}\" in NGINX environment variable, \
                     ignoring the rest of the variable"
                );
                return (fds, Some(problem));
            }
        }
        rest = &rest[end + 1..];
    }
    let problem = (!rest.is_empty()).then(|| {
        format!("invalid socket number \"{rest}\" in NGINX environment variable, ignoring")
    });
    (fds, problem)
}

/// Takes over inherited descriptors, each with its address or why it cannot serve (it is then
/// left alone, as nginx leaves it). Works once in a process, and before it opened anything of its
/// own that could have such a number; later calls get nothing.
pub fn adopt(fds: &[RawFd]) -> Vec<(RawFd, io::Result<(Addr, OwnedFd)>)> {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let mut seen = std::collections::BTreeSet::new();
    // Numbers below three are the standard streams, which std uses.
    let usable = fds.iter().filter(|fd| **fd > 2 && seen.insert(**fd));
    usable.map(|fd| (*fd, adopt_one(*fd))).collect()
}

#[allow(unsafe_code)]
fn adopt_one(number: RawFd) -> io::Result<(Addr, OwnedFd)> {
    // SAFETY: fcntl(2) reads no memory; on a number that is not open it fails.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and lives until the borrow's end, since nobody in this
    // process owns it: whoever started us left it open, and `adopt` runs once, before others.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let addr = name_of(borrowed)?;
    adopt_flags(borrowed)?;
    // SAFETY: as above, and `adopt` lets no number pass twice, so this is the only owner.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    debug_assert_eq!(owned.as_fd().as_raw_fd(), number);
    Ok((addr, owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::{Options, open};
    use std::os::fd::IntoRawFd;

    #[test]
    fn variable_is_read_as_nginx_reads_it() {
        let bad = |rest: &str, tail: &str| {
            Some(format!(
                "invalid socket number \"{rest}\" in NGINX environment variable, ignoring{tail}"
            ))
        };
        let tail = " the rest of the variable";
        for (value, fds, problem) in [
            ("", vec![], None),
            ("6;7;", vec![6, 7], None),
            ("6:7;", vec![6, 7], None),
            ("6;7", vec![6], bad("7", "")),
            ("6;x;7;", vec![6], bad("x;7;", tail)),
            ("6;;7;", vec![6], bad(";7;", tail)),
            ("6;-1;", vec![6], bad("-1;", tail)),
            ("+6;", vec![], bad("+6;", tail)),
            ("99999999999;", vec![], bad("99999999999;", tail)),
        ] {
            assert_eq!(parse_nginx_variable(value), (fds, problem), "{value:?}");
        }
    }

    #[test]
    fn sockets_are_adopted_once_and_others_refused() {
        let addr = Addr::Tcp(([127, 0, 0, 1], 0).into());
        let socket = open(&addr, &Options::default(), 1).unwrap().sockets.remove(0);
        let expected = name_of(socket.as_fd()).unwrap();
        assert_eq!(nginx_variable(&[socket.as_fd()]), format!("{};", socket.as_raw_fd()));
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = socket.into_raw_fd();
        let adopted = adopt(&[number, number, file.as_raw_fd(), 1_000_000, 1]);
        assert_eq!(adopted.len(), 3);
        assert_eq!(adopted[0].1.as_ref().unwrap().0, expected);
        assert!(adopted[1].1.is_err(), "not a socket");
        assert!(adopted[2].1.is_err(), "not open");
        assert!(adopt(&[number]).is_empty());
    }
}
