//! Servers whose addresses are looked up while they serve (`resolve`, `service=`;
//! `ngx_http_upstream_zone_resolve_handler`).
//!
//! DIFFERS(resolve-without-zone): nginx wants a `zone` and a `resolver` for `resolve`; here all threads
//! share a group anyway, and `/etc/resolv.conf` names DNS servers where nothing else does.
//!
//! Invariant: what is found replaces a server's addresses as a whole; while nothing is found, what was
//! found before holds, unless the name is no more.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use forebay_rt::listen::Addr;

use super::{Server, Upstream};
use crate::{
    log::{ErrorLog, Severity},
    resolver::{Endpoint, Missing, Outcome, ResolveError, Target, Watch},
};

/// An address of a server, with what its SRV record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub addr: Addr,
    /// The weight in place of the server's.
    pub weight: Option<i64>,
    /// Not of the smallest priority.
    pub backup: bool,
}

impl Located {
    pub fn plain(addr: Addr) -> Located {
        Located { addr, weight: None, backup: false }
    }
}

/// Begins to look for the servers of a group; the answer ends it when dropped.
pub(crate) fn watch(upstream: &Arc<Upstream>, log: &ErrorLog) -> Vec<Watch> {
    let settings = &upstream.group().settings;
    let Some((resolver, timeout_ms)) = &settings.resolver else { return Vec::new() };
    let resolved = settings.servers.iter().enumerate().filter(|(_, server)| server.resolve);
    let watches = resolved.map(|(index, server)| {
        let (upstream, log) = (Arc::downgrade(upstream), log.clone());
        let told = move |outcome: &Outcome| told(&upstream, index, outcome, &log);
        resolver.watch(target(server), *timeout_ms, told)
    });
    watches.collect()
}

fn target(server: &Server) -> Target {
    match &server.service {
        Some(service) => Target::service(service, &server.target.host),
        None => Target::host(&server.target.host),
    }
}

fn told(upstream: &Weak<Upstream>, index: usize, outcome: &Outcome, log: &ErrorLog) {
    let Some(upstream) = upstream.upgrade() else { return };
    let group = upstream.group();
    let server = &group.settings.servers[index];
    let tell = |what: fmt::Arguments<'_>| {
        let name = &group.name;
        log.write(Severity::Error, None, format_args!("{what} in upstream \"{name}\""));
    };
    let (name, service) = (&server.target.host, &server.service);
    match outcome {
        Ok(answer) => {
            let service = service.as_deref().unwrap_or_default();
            for Missing { host, error } in &answer.missing {
                tell(format_args!(
                    "{host} could not be resolved ({error}) while resolving service {service} of \
                     {name}"
                ));
            }
            group.relocate(index, located(server, &answer.endpoints));
        }
        Err(error) => {
            match service {
                Some(service) => {
                    let what = format_args!("service {service} of {name}");
                    tell(format_args!("{what} could not be resolved ({error})"));
                }
                None => tell(format_args!("{name} could not be resolved ({error})")),
            }
            if *error == ResolveError::NotFound {
                group.relocate(index, Vec::new());
            }
        }
    }
    group.told(index);
}

/// The addresses of an answer; those of a service have their own ports and weights, and all but the
/// first priority's are backup servers.
pub(crate) fn located(server: &Server, endpoints: &[Endpoint]) -> Vec<Located> {
    let first = endpoints.iter().map(|endpoint| endpoint.priority).min().unwrap_or(0);
    let is_service = server.service.is_some();
    let each = endpoints.iter().map(|endpoint| Located {
        addr: Addr::Tcp(
            (endpoint.ip, if is_service { endpoint.port } else { server.target.port }).into(),
        ),
        weight: (endpoint.weight > 0).then_some(i64::from(endpoint.weight)),
        backup: endpoint.priority != first,
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::upstream::{
        Group, Method, Outcome as Ended, Pick, Settings, Timings, address::Target as Address,
    };

    fn server(text: &str, service: Option<&str>) -> Server {
        let (target, _) = Address::parse(text, 80, false).unwrap();
        let service = service.map(Into::into);
        Server { resolve: true, service, ..Server::new(target, Default::default()) }
    }

    fn endpoint(last: u8, port: u16, priority: u16, weight: u16) -> Endpoint {
        Endpoint { ip: IpAddr::from([10, 0, 0, last]), port, priority, weight, host: None }
    }

    fn group(servers: Vec<Server>) -> Group {
        Group::new("u", Settings { servers, ..Settings::default() })
    }

    fn shown(group: &Group) -> String {
        let peers = group.peers();
        let peers = peers.iter().map(|p| format!("{}*{}", p.name, p.weights.weight));
        peers.collect::<Vec<_>>().join(" ")
    }

    fn hosts(last: &[u8]) -> Vec<Located> {
        let endpoints: Vec<_> = last.iter().map(|last| endpoint(*last, 0, 0, 0)).collect();
        located(&server("a:81", None), &endpoints)
    }

    #[test]
    fn a_name_s_addresses_come_and_go_and_the_rest_stays_what_it_is() {
        let group = group(vec![server("a:81", None)]);
        assert_eq!(shown(&group), "");
        group.relocate(0, hosts(&[1, 2]));
        assert_eq!(shown(&group), "10.0.0.1:81*1 10.0.0.2:81*1");
        let before = group.peers();
        group.relocate(0, hosts(&[2, 3]));
        assert_eq!(shown(&group), "10.0.0.2:81*1 10.0.0.3:81*1");
        assert_eq!(group.peers()[0].id, before[1].id);
        group.relocate(0, Vec::new());
        assert_eq!(shown(&group), "");
    }

    #[test]
    fn addresses_stay_in_their_places_whatever_order_they_come_in() {
        let group = group(vec![server("a:81", None), server("b:81", None)]);
        group.relocate(0, hosts(&[1, 2, 3]));
        group.relocate(1, hosts(&[9]));
        group.relocate(0, hosts(&[3, 1, 2]));
        let all = "10.0.0.1:81*1 10.0.0.2:81*1 10.0.0.3:81*1 10.0.0.9:81*1";
        assert_eq!(shown(&group), all);
        group.relocate(0, hosts(&[4, 3, 1]));
        assert_eq!(
            shown(&group),
            all.replace("10.0.0.2:81*1 ", "").replace("10.0.0.9", "10.0.0.4:81*1 10.0.0.9")
        );
    }

    #[test]
    fn a_server_s_state_survives_another_weight_or_priority() {
        let srv = server("a", Some("http"));
        let group = group(vec![srv.clone()]);
        let ends = |priority, weight| {
            located(&srv, &[endpoint(1, 81, 10, 1), endpoint(2, 82, priority, weight)])
        };
        group.relocate(0, ends(10, 1));
        let mut selection = crate::upstream::Selection::new(
            &group.live().peers.load(),
            crate::upstream::select::Key::None,
        );
        let state = || {
            let peers = group.peers();
            (
                peers[1].name.to_string(),
                peers[1].fails(),
                peers[1].is_backup,
                peers[1].connections(),
            )
        };
        let Pick::Peer(first) = group.pick(&mut selection, 1000) else { panic!() };
        let Pick::Peer(second) = group.pick(&mut selection, 1000) else { panic!() };
        assert_eq!(&*second.peer().name, "10.0.0.2:82");
        second.finish_at(&mut selection, Ended::Failed, Timings::default(), 1000);
        for (priority, weight) in [(10, 5), (20, 5)] {
            group.relocate(0, ends(priority, weight));
            assert_eq!(state(), ("10.0.0.2:82".to_owned(), 1, priority == 20, 0));
        }
        assert_eq!(group.peers()[0].connections(), 1);
        drop(first);
    }

    #[test]
    fn a_service_has_ports_weights_and_backups() {
        let srv = server("a", Some("http"));
        let endpoints = [endpoint(1, 81, 10, 5), endpoint(2, 82, 10, 0), endpoint(3, 83, 20, 1)];
        let group = group(vec![srv.clone()]);
        group.relocate(0, located(&srv, &endpoints));
        assert_eq!(shown(&group), "10.0.0.1:81*5 10.0.0.2:82*1 10.0.0.3:83*1");
        let mut selection = crate::upstream::Selection::new(
            &group.live().peers.load(),
            crate::upstream::select::Key::None,
        );
        let mut asked = Vec::new();
        while let Pick::Peer(lease) = group.pick(&mut selection, 1000) {
            asked.push(lease.peer().name.to_string());
            lease.finish_at(&mut selection, Ended::Failed, Timings::default(), 1000);
        }
        assert_eq!(asked, ["10.0.0.1:81", "10.0.0.2:82", "10.0.0.3:83"]);
    }

    #[test]
    fn a_reload_goes_on_with_what_was_found() {
        let old = group(vec![server("a:81", None)]);
        old.relocate(0, hosts(&[1, 2]));
        let new = group(vec![server("b:81", None), server("a:81", None)]);
        new.take_over(&old);
        assert_eq!(shown(&new), "10.0.0.1:81*1 10.0.0.2:81*1");
        let other = group(vec![server("a:82", None)]);
        other.take_over(&old);
        assert_eq!(shown(&other), "");
    }

    #[test]
    fn several_addresses_stand_behind_one_point_of_a_ring() {
        let servers = vec![server("a:81", None), server("b:81", None)];
        let method = Some(Method::Consistent(Default::default()));
        let group = Group::new("u", Settings { servers, method, ..Settings::default() });
        group.relocate(0, hosts(&[1, 2]));
        group.relocate(1, hosts(&[3]));
        assert_eq!(group.peers().len(), 3);
        let mut seen: Vec<_> = (0..4)
            .map(|_| {
                let mut selection = crate::upstream::Selection::new(
                    &group.live().peers.load(),
                    crate::upstream::select::Key::Point { hash: 0, tries: 0 },
                );
                let Pick::Peer(lease) = group.pick(&mut selection, 1000) else { panic!() };
                lease.peer().server.to_string()
            })
            .collect();
        seen.dedup();
        assert_eq!(seen.len(), 1);
    }
}
