//! From an address that is known only with a request to the servers behind it
//! (`ngx_http_upstream_init_request`, its `resolved` branch).
//!
//! Invariant: a name is resolved by nobody but the resolver.

use std::{net::IpAddr, sync::Arc};

use forebay_rt::listen::Addr;
use forebay_session::{
    log::Severity,
    resolver::Resolver,
    upstream::{Group, address::Target},
};

use super::GroupRef;
use crate::request::Request;

/// The servers of a group of that name, or those that the name resolves to, within so many
/// milliseconds. A status: there are none.
pub async fn locate(
    r: &Request,
    target: &Target,
    resolver: &(Arc<Resolver>, u64),
) -> Result<GroupRef, u16> {
    if let Some(known) = r.plan.upstreams.find(target) {
        return Ok(GroupRef::Configured(known.clone()));
    }
    let addrs = match &target.addr {
        Some(addr) => vec![addr.clone()],
        None if target.port == 0 => {
            let text = format_args!("no port in upstream \"{}\"", target.host);
            r.log_error(Severity::Error, text);
            return Err(500);
        }
        None => resolve(r, target, resolver).await?,
    };
    Ok(GroupRef::Own(Arc::new(Group::resolved(&target.host, &addrs))))
}

async fn resolve(
    r: &Request,
    target: &Target,
    (resolver, timeout_ms): &(Arc<Resolver>, u64),
) -> Result<Vec<Addr>, u16> {
    match resolver.resolve(&target.host, *timeout_ms).await {
        Ok(addrs) if !addrs.is_empty() => {
            let with_port = |ip: &IpAddr| Addr::Tcp((*ip, target.port).into());
            Ok(addrs.iter().map(with_port).collect())
        }
        Ok(_) => Err(502),
        Err(error) => {
            let host = &target.host;
            let text = format_args!("{host} could not be resolved ({error})");
            r.log_error(Severity::Error, text);
            Err(502)
        }
    }
}
