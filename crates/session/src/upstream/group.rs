//! A group: its servers as configured, its peers as they are now, and what it remembers.
//!
//! Invariant: settings never change once loaded; what changes is in [`Live`].

use std::{
    any::Any,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use arc_swap::ArcSwap;
use forebay_conf::Span;
use forebay_rt::listen::Addr;

use super::{
    Peer, Pick, Selection,
    address::Target,
    balance::{self, Ring},
    keepalive,
    peer::{State, Weights},
    queue::{Queue, QueueSettings},
    select::{Key, Text},
    sticky::Sticky,
};
use crate::var::{Scope, Template};

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
    /// Whether requests wait for a server.
    pub queue: Option<QueueSettings>,
    /// Which connections are kept.
    pub keepalive: keepalive::Settings,
    /// Whether it may be without servers: they come from somewhere else.
    pub may_be_empty: bool,
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
    pool: OnceLock<Box<dyn Any + Send + Sync>>,
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
        Group::new(name, Settings { servers, ..Settings::default() })
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
        let new = || -> Box<dyn Any + Send + Sync> { Box::new(keepalive::Pool::<C>::default()) };
        let pool = self.live().shared.pool.get_or_init(new);
        Some(pool.downcast_ref().expect("one type of connection for each group"))
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
        let addrs: Vec<_> = self.settings.servers.iter().map(|s| s.addrs.clone()).collect();
        let peers = self.assemble(&shared, &addrs, old, false);
        Live { shared, peers: ArcSwap::from_pointee(peers) }
    }

    /// Goes on with what a group of the same name remembers; before anything asks this one.
    pub(crate) fn take_over(&self, old: &Group) {
        let before = old.peers();
        let _ = self.live.set(self.make(old.live().shared.clone(), &before));
    }

    /// The addresses of the servers have changed, one list a server. Peers that stay keep all.
    pub fn relocate(&self, addrs: &[Vec<Addr>]) {
        let live = self.live();
        let before = self.peers();
        let peers = self.assemble(&live.shared, addrs, &before, true);
        live.peers.store(Arc::new(peers));
        live.shared.wake_all();
    }

    /// Makes the lists of peers. What is in `old` under the same server and address is gone on with:
    /// the peer itself when it is `kept`, else what it remembers.
    fn assemble(
        &self,
        shared: &Arc<Shared>,
        addrs: &[Vec<Addr>],
        old: &[Arc<Peer>],
        kept: bool,
    ) -> Peers {
        let mut old: Vec<&Arc<Peer>> = old.iter().collect();
        let (mut primary, mut backup) = (Vec::new(), Vec::new());
        for (server, addrs) in self.settings.servers.iter().zip(addrs) {
            for addr in addrs {
                let same = |peer: &&Arc<Peer>| {
                    peer.addr == *addr
                        && *peer.server == *server.target.text
                        && (!kept || peer.weights == server.weights)
                };
                // A server that is named twice has two peers, which must not share their numbers.
                let before = old.iter().position(same).map(|at| old.remove(at));
                let peer = match before {
                    Some(peer) if kept => peer.clone(),
                    before => {
                        let state = before.map_or_else(Arc::<State>::default, |p| p.state.clone());
                        let (name, weights) = (&server.target.text, server.weights.clone());
                        Arc::new(Peer::new(addr.clone(), name, weights, state, shared.clone()))
                    }
                };
                if server.backup { backup.push(peer) } else { primary.push(peer) }
            }
        }
        let consistent = matches!(self.settings.method, Some(Method::Consistent(_)));
        Peers { primary: List::new(primary, consistent), backup: List::new(backup, consistent) }
    }
}
