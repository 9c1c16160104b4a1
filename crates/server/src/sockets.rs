//! The listening sockets of a configuration: kept from the last one, inherited from another
//! process, or opened (nginx: ngx_open_listening_sockets and the socket part of ngx_init_cycle).
//!
//! Invariant: a socket that the next configuration names again is never closed between.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_rt::listen::{self, Addr, Options};
use forebay_session::log::Severity;

use crate::log::Log;

/// The sockets, by address.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    groups: BTreeMap<Addr, Group>,
}

#[derive(Clone, Debug)]
struct Group {
    options: Options,
    sockets: Vec<Arc<OwnedFd>>,
}

/// Sockets that came from outside, until a configuration asks for their address.
pub type Inherited = Vec<(Addr, OwnedFd)>;

/// Why they are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To serve.
    Serve,
    /// To see whether they could be (`-t`): an address in use is no error, since the server that
    /// is tested for may be running.
    Test,
}

impl Sockets {
    /// Makes the sockets for `wanted`, `count` for each address, taking over what `old` and
    /// `inherited` have. `None`: something failed and is logged; nothing changed but that
    /// `inherited` may have been used.
    pub fn open(
        wanted: &[(Addr, Options)],
        count: usize,
        old: Option<&Sockets>,
        inherited: &mut Inherited,
        purpose: Purpose,
        log: &Log,
    ) -> Option<Sockets> {
        let mut made = Sockets::default();
        for (addr, options) in wanted {
            let kept = old.and_then(|old| old.groups.get(addr));
            let sockets = match kept {
                Some(group) => group.sockets.clone(),
                None => take(inherited, addr),
            };
            if !sockets.is_empty() {
                let sockets = grown(sockets, addr, options, count, log)?;
                made.groups.insert(addr.clone(), Group { options: options.clone(), sockets });
            }
        }
        for attempt in 1.. {
            let missing = wanted.iter().filter(|(addr, _)| !made.groups.contains_key(addr));
            let missing: Vec<_> = missing.cloned().collect();
            if open_missing(&mut made, &missing, count, purpose, log)? {
                break;
            }
            log.notice(format_args!("try again to bind() after {}ms", PAUSE.as_millis()));
            std::thread::sleep(PAUSE);
            if attempt == ATTEMPTS {
                log.emerg("still could not bind()");
                made.unlink_missing_from(old);
                return None;
            }
        }
        Some(made)
    }

    /// Puts this configuration's options on sockets that `old` had with others.
    pub fn apply_changes(&self, old: &Sockets, log: &Log) {
        for (addr, group) in &self.groups {
            let before = old.groups.get(addr).map(|group| &group.options);
            if before.is_some_and(|before| *before != group.options) {
                // The members of a group share their warnings.
                for (index, socket) in group.sockets.iter().enumerate() {
                    let warnings = listen::apply(socket.as_fd(), addr, &group.options);
                    if index == 0 {
                        warnings.iter().for_each(|warning| log.warn(warning));
                    }
                }
            }
        }
    }

    /// The addresses in a fixed order, each with its sockets.
    pub fn iter(&self) -> impl Iterator<Item = (&Addr, &[Arc<OwnedFd>])> {
        self.groups.iter().map(|(addr, group)| (addr, &group.sockets[..]))
    }

    /// The sockets of an address; none if it is not here.
    pub fn of(&self, addr: &Addr) -> &[Arc<OwnedFd>] {
        self.groups.get(addr).map_or(&[], |group| &group.sockets)
    }

    /// All sockets, for an upgrade.
    pub fn all(&self) -> Vec<BorrowedFd<'_>> {
        self.groups.values().flat_map(|group| &group.sockets).map(|fd| fd.as_fd()).collect()
    }

    /// Removes the files of unix sockets that are not in `others` (ngx_close_listening_sockets):
    /// with `None`, of all.
    pub fn unlink_missing_from(&self, others: Option<&Sockets>) {
        for addr in self.groups.keys() {
            if !others.is_some_and(|others| others.groups.contains_key(addr)) {
                // Somebody may have removed it, which is what is wanted.
                let _ = listen::unlink(addr);
            }
        }
    }
}

/// The inherited sockets of an address.
fn take(inherited: &mut Inherited, addr: &Addr) -> Vec<Arc<OwnedFd>> {
    let (mine, rest) =
        std::mem::take(inherited).into_iter().partition(|(theirs, _)| theirs == addr);
    *inherited = rest;
    let mine: Inherited = mine;
    mine.into_iter().map(|(_, fd)| Arc::new(fd)).collect()
}

/// Adds to a group until it has `count` sockets. It never shrinks: the queues of those left out
/// would be reset.
fn grown(
    mut sockets: Vec<Arc<OwnedFd>>,
    addr: &Addr,
    options: &Options,
    count: usize,
    log: &Log,
) -> Option<Vec<Arc<OwnedFd>>> {
    let more = count.saturating_sub(sockets.len());
    if more > 0 {
        match listen::extend(sockets[0].as_fd(), addr, options, more) {
            Ok(opened) => sockets.extend(opened.sockets.into_iter().map(Arc::new)),
            Err(err) => {
                log.emerg(err);
                return None;
            }
        }
    }
    Some(sockets)
}

/// Opens what is missing; `Some(false)` when an address is in use, `None` when there is no hope.
fn open_missing(
    made: &mut Sockets,
    missing: &[(Addr, Options)],
    count: usize,
    purpose: Purpose,
    log: &Log,
) -> Option<bool> {
    let mut all = true;
    for (addr, options) in missing {
        match listen::open(addr, options, count) {
            Ok(opened) => {
                opened.warnings.iter().for_each(|warning| log.warn(warning));
                let sockets = opened.sockets.into_iter().map(Arc::new).collect();
                made.groups.insert(addr.clone(), Group { options: options.clone(), sockets });
            }
            Err(err) if err.in_use() && purpose == Purpose::Test => {}
            Err(err) => {
                log.write(Severity::Emerg, &err);
                if !err.in_use() {
                    return None;
                }
                all = false;
            }
        }
    }
    Some(all)
}

/// How often and after how long nginx tries an address that is in use.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(500);
