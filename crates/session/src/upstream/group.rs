//! A group: its servers as configured, its peers as they are now, and what it remembers.
//!
//! Invariant: settings never change once loaded; what changes is in [`Live`].

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use forebay_conf::Span;
use forebay_rt::listen::Addr;

use super::{
    Peer, Pick, Selection,
    address::Target,
    balance::{self, Ring},
    health,
    keepalive::{self, AnyPool},
    peer::{self, State, Weights},
    queue::{Queue, QueueSettings},
    resolve::Located,
    select::{Key, Text},
    sticky::{Stage, Sticky},
};
use crate::{
    resolver::Resolver,
    var::{Scope, Template},
};

/// How a server is chosen.
#[derive(Clone, Debug, Default)]
pub enum Method {
    /// Smooth weighted round robin.
    #[default]
    RoundRobin,
    /// `least_conn`.
    LeastConn,
    /// `least_time`.
    LeastTime(Time),
    /// `ip_hash`; `full`: all four octets of an IPv4 address count.
    IpHash {
        /// Not the first three only.
        full: bool,
    },
    /// `hash`.
    Hash(Template),
    /// `hash … consistent`.
    Consistent(Template),
    /// `random`.
    Random,
    /// `random two`: the better of two.
    RandomTwo(Option<Time>),
}

/// Which times `least_time` looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// Until the last byte, not until the head.
    pub last_byte: bool,
    /// Requests that are not answered yet count too.
    pub inflight: bool,
}

/// A `server` of an `upstream {}` block.
#[derive(Clone, Debug)]
pub struct Server {
    /// As written.
    pub target: Target,
    /// Where it stands.
    pub span: Span,
    /// Its addresses; for one that is resolved at run time, those known so far.
    pub addrs: Vec<Addr>,
    /// Its parameters.
    pub weights: Weights,
    /// `backup`.
    pub backup: bool,
    /// `resolve`: its addresses are looked up again and again.
    pub resolve: bool,
    /// `service=`: its addresses and ports come from SRV records.
    pub service: Option<Box<str>>,
}

impl Server {
    /// A server without parameters.
    pub fn new(target: Target, span: Span) -> Server {
        let addrs = target.addr.clone().into_iter().collect();
        Server {
            target,
            span,
            addrs,
            weights: Weights::default(),
            backup: false,
            resolve: false,
            service: None,
        }
    }
}

/// What an `upstream {}` block says.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Its servers, in order.
    pub servers: Vec<Server>,
    /// How one is chosen; `None`: no directive says.
    pub method: Option<Method>,
    /// How requests are bound to servers.
    pub sticky: Option<Sticky>,
    /// Whether clients that authenticate a connection have connections of their own.
    pub ntlm: bool,
    /// Whether requests wait for a server.
    pub queue: Option<QueueSettings>,
    /// Which connections are kept.
    pub keepalive: keepalive::Settings,
    /// Active health checks.
    pub checks: Vec<Arc<health::Check>>,
    /// What Tengine's directives about them say.
    pub check: health::directives::Draft,
    /// Whether it may be without servers: `state` says that they come from somewhere else.
    pub may_be_empty: bool,
    /// Who is asked for the addresses of servers with `resolve`, and for how long, in milliseconds.
    pub resolver: Option<(Arc<Resolver>, u64)>,
}

/// The peers as they are now; replaced as a whole when names resolve anew.
#[derive(Default)]
pub(crate) struct Peers {
    pub primary: List,
    pub backup: List,
}

impl Peers {
    /// Whether there is just one, for which failures do not count.
    pub fn single(&self) -> bool {
        self.primary.peers.len() == 1 && self.backup.peers.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.primary.peers.iter().chain(&self.backup.peers)
    }
}

/// Peers that are alternatives to each other.
#[derive(Default)]
pub(crate) struct List {
    pub peers: Vec<Arc<Peer>>,
    /// How many are not `down`: so many are worth a try.
    pub tries: u32,
    /// By what weights are multiplied, so that a part of one can be told.
    pub scale: i64,
    /// The sum of the weights up to and with each peer.
    pub ends: Vec<i64>,
    /// For `hash … consistent`.
    pub ring: Ring,
}

impl List {
    fn new(peers: Vec<Arc<Peer>>, consistent: bool) -> List {
        let tries = peers.iter().filter(|peer| !peer.weights.down).count() as u32;
        let slow = peers.iter().any(|peer| peer.weights.slow_start_ms > 0);
        let mut sum = 0;
        let ends = peers.iter().map(|peer| {
            sum += peer.weights.weight;
            sum
        });
        let ends = ends.collect();
        let ring = if consistent { Ring::new(&peers) } else { Ring::default() };
        List { peers, tries, scale: if slow { 1000 } else { 1 }, ends, ring }
    }

    /// The peer under a number, where each has as many as it has weight.
    pub fn at_weight(&self, number: u64) -> Option<&Arc<Peer>> {
        let total = *self.ends.last()? as u64;
        let number = (number % total.max(1)) as i64;
        self.peers.get(self.ends.partition_point(|end| *end <= number))
    }
}

/// What a group remembers and a reload takes over.
#[derive(Default)]
pub(crate) struct Shared {
    /// Held while a server is chosen and while a failure is counted.
    lock: Mutex<()>,
    pub queue: Arc<Queue>,
    pool: OnceLock<Box<dyn AnyPool>>,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        // A panic elsewhere leaves numbers, at worst wrong by one.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection has ended: who waits longest may try.
    pub fn wake_one(&self) {
        self.queue.call_one();
    }

    /// A server is back: all who wait may try.
    pub fn wake_all(&self) {
        self.queue.call_all();
    }
}

/// What changes while a group is used.
pub(crate) struct Live {
    pub shared: Arc<Shared>,
    pub peers: ArcSwap<Peers>,
    /// Where each server is.
    located: Mutex<Vec<Vec<Located>>>,
    /// Whether that has been told, or needs no telling.
    told: Box<[AtomicBool]>,
}

/// A group of servers.
pub struct Group {
    /// The name of its block, or the host that `proxy_pass` names.
    pub name: Box<str>,
    /// As configured.
    pub settings: Settings,
    live: OnceLock<Live>,
}

impl Group {
    /// A group with these settings.
    pub fn new(name: &str, settings: Settings) -> Group {
        Group { name: name.into(), settings, live: OnceLock::new() }
    }

    /// A group for addresses that a request's own name resolved to (`proxy_pass` with variables;
    /// `ngx_http_upstream_create_round_robin_peer`).
    pub fn resolved(name: &str, addrs: &[Addr]) -> Group {
        let server = |addr: &Addr| Server::new(Target::of(addr.clone()), Span::default());
        let servers = addrs.iter().map(server).collect();
        // The group ends with the request: nobody would find what it kept.
        let keepalive = keepalive::Settings { connections: 0, ..Default::default() };
        Group::new(name, Settings { servers, keepalive, ..Settings::default() })
    }

    /// Begins a request: reads what the group's method wants to know about it. `client`: its address;
    /// `None` for unix sockets.
    pub fn begin<S: Scope>(&self, scope: &S, client: Option<IpAddr>) -> Selection {
        let text = |template: &Template| Text::written(|out| template.write(scope, out));
        let key = match &self.settings.method {
            Some(Method::Hash(key)) => balance::hash_key(text(key)),
            Some(Method::Consistent(key)) => balance::point_key(text(key).bytes()),
            Some(Method::IpHash { full }) => balance::ip_key(client, *full),
            Some(Method::Random | Method::RandomTwo(_)) => Key::Random { tries: 0 },
            _ => Key::None,
        };
        let mut selection = Selection::new(&self.live().peers.load(), key);
        if let Some(sticky) = &self.settings.sticky {
            selection.bound = Text::written(|out| sticky.find(scope, out));
        }
        selection
    }

    /// Chooses a server that this request has not tried yet. `now_ms`: [`forebay_rt::clock::now_ms`].
    pub fn pick(&self, selection: &mut Selection, now_ms: u64) -> Pick {
        balance::pick(self, selection, now_ms)
    }

    /// The connections of type `C` that are kept for this group; `None`: none is to be kept.
    ///
    /// Panics when one group is asked for two types: connections to a group are of one type.
    pub fn pool<C: keepalive::Idle>(&self) -> Option<&keepalive::Pool<C>> {
        if self.settings.keepalive.connections == 0 {
            return None;
        }
        let new = || -> Box<dyn AnyPool> { Box::new(keepalive::Pool::<C>::default()) };
        let pool = self.live().shared.pool.get_or_init(new);
        Some(pool.as_any().downcast_ref().expect("one type of connection for each group"))
    }

    /// All peers, as they are now: first those that are asked first.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.live().peers.load().iter().cloned().collect()
    }

    /// How many requests wait for a server.
    pub fn waiting(&self) -> usize {
        self.live().shared.queue.len()
    }

    pub(crate) fn live(&self) -> &Live {
        self.live.get_or_init(|| self.make(Arc::default(), &[]))
    }

    fn make(&self, shared: Arc<Shared>, old: &[Arc<Peer>]) -> Live {
        let located = self.settings.servers.iter().map(|server| match server.resolve {
            true => self.found_before(server, old),
            false => server.addrs.iter().cloned().map(Located::plain).collect(),
        });
        let located: Vec<_> = located.collect();
        let is_told = |(server, located): (&Server, &Vec<Located>)| {
            AtomicBool::new(!server.resolve || !located.is_empty())
        };
        let told = self.settings.servers.iter().zip(&located).map(is_told).collect();
        let peers = ArcSwap::from_pointee(self.assemble(&shared, &located, old, false));
        Live { shared, peers, located: Mutex::new(located), told }
    }

    /// What the configuration before found for a server of that name.
    fn found_before(&self, server: &Server, old: &[Arc<Peer>]) -> Vec<Located> {
        let is_it = |peer: &&Arc<Peer>| {
            *peer.server == *server.target.text && peer.service == server.service
        };
        let mut located: Vec<Located> = Vec::new();
        for peer in old.iter().filter(is_it) {
            let weight = server.service.is_some().then_some(peer.weights.weight);
            let backup = peer.is_backup && !server.backup;
            let found = Located { addr: peer.addr.clone(), weight, backup };
            if located.iter().all(|known| known.addr != found.addr) {
                located.push(found);
            }
        }
        located
    }

    /// Goes on with what a group of the same name remembers; before anything asks this one.
    pub(crate) fn take_over(&self, old: &Group) {
        let before = old.peers();
        let _ = self.live.set(self.make(old.live().shared.clone(), &before));
        self.forget_gone(self.live());
    }

    /// The addresses of a server have changed. Peers that stay keep all.
    pub(crate) fn relocate(&self, server: usize, addrs: Vec<Located>) {
        let live = self.live();
        // Held to the end: each change is made of the one before.
        let mut located = live.located.lock().unwrap_or_else(PoisonError::into_inner);
        let addrs = in_place(&located[server], addrs);
        if located[server] == addrs {
            return;
        }
        located[server] = addrs;
        let peers = self.assemble(&live.shared, &located, &self.peers(), true);
        live.peers.store(Arc::new(peers));
        drop(located);
        self.forget_gone(live);
        live.shared.wake_all();
    }

    /// The first answer about a server's name has come, whatever it was.
    pub(crate) fn told(&self, server: usize) {
        let live = self.live();
        if !live.told[server].swap(true, Relaxed) {
            live.shared.wake_all();
        }
    }

    /// How requests wait for the first answer about names, where there is no server before it.
    ///
    /// DIFFERS(resolve-waits): nginx answers 502 until then.
    pub(crate) fn waits_for_names(&self, peers: &Peers) -> Option<QueueSettings> {
        let (_, timeout_ms) = self.settings.resolver.as_ref()?;
        let silent = || self.live().told.iter().any(|told| !told.load(Relaxed));
        let waits = peers.iter().next().is_none() && silent();
        // No more than there are connections from clients.
        waits.then_some(QueueSettings { length: usize::MAX, timeout_ms: *timeout_ms })
    }

    /// Closes the idle connections to addresses at which there is no server any more.
    fn forget_gone(&self, live: &Live) {
        let Some(pool) = live.shared.pool.get() else { return };
        let peers = live.peers.load();
        let keys: HashSet<&peer::Key> = peers.iter().map(|peer| &peer.key).collect();
        pool.retain(&|key| keys.contains(key));
    }

    /// Makes the lists of peers. What is in `old` under the same server and address is gone on with:
    /// the peer itself when it is `kept`, else what it remembers.
    fn assemble(
        &self,
        shared: &Arc<Shared>,
        located: &[Vec<Located>],
        old: &[Arc<Peer>],
        kept: bool,
    ) -> Peers {
        let mut old: Vec<&Arc<Peer>> = old.iter().collect();
        let (mut primary, mut backup) = (Vec::new(), Vec::new());
        for (server, located) in self.settings.servers.iter().zip(located) {
            for found in located {
                let mut weights = server.weights.clone();
                weights.weight = found.weight.unwrap_or(weights.weight);
                let is_backup = server.backup || found.backup;
                let same = |peer: &&Arc<Peer>| {
                    peer.addr == found.addr && *peer.server == *server.target.text
                };
                let unchanged =
                    |peer: &Peer| kept && peer.weights == weights && peer.is_backup == is_backup;
                // A server that is named twice has two peers, which must not share their numbers.
                let before = old.iter().position(same).map(|at| old.remove(at));
                let peer = match before {
                    Some(peer) if unchanged(peer) => peer.clone(),
                    before => {
                        let state = before.map_or_else(Arc::<State>::default, |p| p.state.clone());
                        if before.is_none() || !kept {
                            state.checks.prepare(&self.settings.checks);
                        }
                        let addr = found.addr.clone();
                        Arc::new(Peer::new(addr, server, weights, is_backup, state, shared.clone()))
                    }
                };
                if is_backup { backup.push(peer) } else { primary.push(peer) }
            }
        }
        let consistent = matches!(self.settings.method, Some(Method::Consistent(_)));
        Peers { primary: List::new(primary, consistent), backup: List::new(backup, consistent) }
    }

    /// Writes the value of the `Set-Cookie` field that a response from this peer should have
    /// (`sticky cookie`); `false`: none, and nothing is written. `wall_s`: seconds since 1970.
    pub fn set_cookie<S: Scope>(
        &self,
        scope: &S,
        selection: &Selection,
        peer: &Peer,
        wall_s: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let sticky = self.settings.sticky.as_ref();
        sticky.is_some_and(|sticky| sticky.set_cookie(scope, selection, peer, wall_s, out))
    }

    /// Remembers the session that a response begins (`sticky learn`): to be called when its head is
    /// there, and when it is complete.
    pub fn learn<S: Scope>(&self, scope: &S, peer: &Peer, stage: Stage, now_ms: u64) {
        if let Some(sticky) = &self.settings.sticky {
            sticky.learn(scope, peer, stage, now_ms);
        }
    }
}

/// New addresses in the places that they had, and behind them those that were not known: DNS servers
/// give them in another order each time, and a client that belongs to the second shall find it there
/// (`ngx_http_upstream_zone_resolve_handler`).
fn in_place(before: &[Located], mut now: Vec<Located>) -> Vec<Located> {
    let mut placed = Vec::with_capacity(now.len());
    for known in before {
        if let Some(at) = now.iter().position(|found| found.addr == known.addr) {
            placed.push(now.remove(at));
        }
    }
    placed.append(&mut now);
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Outcome, Timings};

    fn group(servers: &[&str]) -> Group {
        let server = |text: &&str| {
            let (target, _) = Target::parse(text, 80, false).unwrap();
            Server::new(target, Span::default())
        };
        let servers = servers.iter().map(server).collect();
        Group::new("u", Settings { servers, ..Settings::default() })
    }

    fn fail(group: &Group) {
        let mut selection = Selection::new(&group.live().peers.load(), Key::None);
        let Pick::Peer(lease) = group.pick(&mut selection, 1_000_000) else { panic!() };
        lease.finish_at(&mut selection, Outcome::Failed, Timings::default(), 1_000_000);
    }

    fn fails(group: &Group) -> Vec<u32> {
        group.peers().iter().map(|peer| peer.fails()).collect()
    }

    #[test]
    fn a_reload_goes_on_with_failures_and_connections_by_server() {
        let old = group(&["10.0.0.1:81", "10.0.0.2:81", "10.0.0.2:81"]);
        (0..2).for_each(|_| fail(&old));
        assert_eq!(fails(&old), [1, 1, 0]);
        let mut selection = Selection::new(&old.live().peers.load(), Key::None);
        let Pick::Peer(held) = old.pick(&mut selection, 1_000_000) else { panic!() };

        let new = group(&["10.0.0.2:81", "10.0.0.3:81", "10.0.0.2:81", "10.0.0.1:81"]);
        new.take_over(&old);
        assert_eq!(fails(&new), [1, 0, 0, 1]);
        let connections: Vec<_> = new.peers().iter().map(|peer| peer.connections()).collect();
        assert_eq!(connections, [0, 0, 1, 0]);
        // A request of before ends for both.
        drop(held);
        assert!(new.peers().iter().all(|peer| peer.connections() == 0));
    }

    #[test]
    fn a_reload_goes_on_with_kept_connections() {
        struct Silent;
        impl keepalive::Idle for Silent {
            fn poll_closed(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<()> {
                std::task::Poll::Pending
            }
        }
        let (old, new) = (group(&["10.0.0.1:81"]), group(&["10.0.0.1:81"]));
        let kept = keepalive::Kept::new(Silent, 0, 1);
        let (settings, peer) = (&old.settings.keepalive, old.peers()[0].clone());
        old.pool().unwrap().keep(settings, &peer, kept, 1);
        new.take_over(&old);
        assert!(new.pool::<Silent>().unwrap().take(&new.peers()[0], 0, 2).is_some());
    }

    #[test]
    fn addresses_of_a_request_s_own_are_a_group() {
        let addrs = [1, 2].map(|last| Addr::Tcp(([10, 0, 0, last], 81).into()));
        let group = Group::resolved("name", &addrs);
        let names: Vec<_> = group.peers().iter().map(|peer| peer.name.to_string()).collect();
        assert_eq!((&*group.name, names.join(" ").as_str()), ("name", "10.0.0.1:81 10.0.0.2:81"));
        fail(&group);
        assert_eq!(fails(&group), [1, 0]);
        let single = Group::resolved("name", &addrs[..1]);
        fail(&single);
        assert_eq!(fails(&single), [0], "the only server is never failed");
    }
}
