//! What resumption shares: the zones of `ssl_session_cache shared:NAME:SIZE`, one cache for all
//! servers and threads that name it, and the keys of tickets; both are kept over a reload.
//!
//! Invariant: which server may resume which session is not decided here, but by the context that a
//! session is kept under ([`forebay_tls::ServerConfig`]).

use std::sync::Arc;

use forebay_conf::{Arg, Error, Span};
use forebay_tls::{SessionCache, TicketKeys};

use crate::zone::{self, Kind, Zone, Zones};

/// A zone of sessions.
pub struct Sessions {
    size: u64,
}

impl Kind for Sessions {
    const MODULE: &'static str = "ngx_http_ssl_module";
    type Memory = Arc<SessionCache>;

    fn memory(&self, size: u64) -> Arc<SessionCache> {
        SessionCache::new(usize::try_from(size).unwrap_or(usize::MAX))
    }
}

/// A zone that a server names.
pub type SessionsUse = Arc<Zone<Sessions>>;

impl std::fmt::Debug for Zone<Sessions> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// `shared:NAME:SIZE` of `ssl_session_cache` and `ssl_ocsp_cache`; `what`: `session` or `OCSP`.
///
/// Errors: nginx's `invalid session cache "x"` and `session cache "x" is too small`.
pub(super) fn name_and_size(arg: &Arg, what: &str) -> Result<(String, u64), Error> {
    let fail = |text: String| Error::emerg(arg.span, text);
    let invalid = || fail(format!("invalid {what} cache \"{}\"", arg.lossy()));
    let rest = arg.after("shared:").ok_or_else(invalid)?;
    let colon = memchr::memchr(b':', rest).filter(|at| *at > 0).ok_or_else(invalid)?;
    let name = std::str::from_utf8(&rest[..colon]).map_err(|_| invalid())?;
    let size = forebay_conf::value::size(&rest[colon + 1..]).ok_or_else(invalid)?;
    if size < zone::MIN_SIZE {
        return Err(fail(format!("{what} cache \"{}\" is too small", arg.lossy())));
    }
    Ok((name.to_owned(), size))
}

/// The zone of an argument; named as often as one likes, with one size.
pub(super) fn shared(arg: &Arg, zones: &mut Zones) -> Result<SessionsUse, Error> {
    let (name, size) = name_and_size(arg, "session")?;
    let zone = zones.used::<Sessions>(&name, arg.span)?;
    if zone.declared().is_none_or(|before| before.size != size) {
        zones.declare(&name, size, arg.span, Sessions { size }, |_| String::new())?;
    }
    Ok(zone)
}

/// The sessions of servers with early data and no cache of their own: 4,000 or so.
pub(super) fn for_early_data(zones: &mut Zones, span: Span) -> Result<SessionsUse, Error> {
    // No zone of the configuration has a colon in its name.
    const NAME: &str = ":ssl early data";
    const SIZE: u64 = 1 << 20;
    let zone = zones.used::<Sessions>(NAME, span)?;
    if zone.declared().is_none() {
        zones.declare(NAME, SIZE, span, Sessions { size: SIZE }, |_| String::new())?;
    }
    Ok(zone)
}

/// The keys of tickets for servers that are given none: one set for all servers of one timeout, after
/// which it changes by itself. (A zone, as those live on over a reload.)
pub struct OwnTickets {
    timeout_s: u64,
}

impl Kind for OwnTickets {
    const MODULE: &'static str = "ngx_http_ssl_module tickets";
    type Memory = Arc<TicketKeys>;

    fn memory(&self, _: u64) -> Arc<TicketKeys> {
        TicketKeys::rotating(self.timeout_s)
    }
}

/// Those keys, as a server holds them.
pub type TicketsUse = Arc<Zone<OwnTickets>>;

pub(super) fn tickets(zones: &mut Zones, timeout_s: u64, span: Span) -> Result<TicketsUse, Error> {
    let name = format!(":ssl tickets {timeout_s}");
    let zone = zones.used::<OwnTickets>(&name, span)?;
    if zone.declared().is_none() {
        let kind = OwnTickets { timeout_s };
        zones.declare(&name, zone::MIN_SIZE, span, kind, |_| String::new())?;
    }
    Ok(zone)
}
