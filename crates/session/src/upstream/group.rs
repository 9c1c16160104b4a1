//! A group: its servers as configured, its peers as they are now, and what it remembers.
//!
//! Invariant: settings never change once loaded; what changes is in [`Shared`].

use std::{
    any::Any,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use arc_swap::ArcSwap;
use forebay_rt::listen::Addr;

use super::{
    Peer, Pick, Selection, balance, keepalive,
    peer::{State, Weights},
};
use crate::var::Scope;

/// How a server is chosen.
#[derive(Clone, Debug, Default)]
pub enum Method {
    /// Smooth weighted round robin.
    #[default]
    RoundRobin,
}

/// A `server` of an `upstream {}` block.
#[derive(Clone, Debug)]
pub struct Server {
    /// As written.
    pub name: Box<str>,
    /// Its addresses.
    pub addrs: Vec<Addr>,
    /// Its parameters.
    pub weights: Weights,
    /// `backup`.
    pub backup: bool,
}

/// What an `upstream {}` block says.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Its servers, in order.
    pub servers: Vec<Server>,
    /// How one is chosen.
    pub method: Method,
    /// Which connections are kept.
    pub keepalive: keepalive::Settings,
}

/// The peers as they are now; replaced as a whole when names resolve anew.
#[derive(Default)]
pub(crate) struct Peers {
    pub primary: List,
    pub backup: List,
}

/// Peers that are alternatives to each other.
#[derive(Default)]
pub(crate) struct List {
    pub peers: Vec<Arc<Peer>>,
    /// How many are not `down`: so many are worth a try.
    pub tries: u32,
}

impl List {
    fn new(peers: Vec<Arc<Peer>>) -> List {
        let tries = peers.iter().filter(|peer| !peer.weights.down).count() as u32;
        List { peers, tries }
    }
}

/// What a group remembers and a reload takes over.
#[derive(Default)]
pub(crate) struct Shared {
    /// Held while a server is chosen and while a failure is counted.
    lock: Mutex<()>,
    pool: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        // A panic elsewhere leaves numbers, at worst wrong by one.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A group of servers.
pub struct Group {
    /// The name of its block, or the host that `proxy_pass` names.
    pub name: Box<str>,
    /// As configured.
    pub settings: Settings,
    pub(crate) shared: Arc<Shared>,
    pub(crate) peers: ArcSwap<Peers>,
}

impl Group {
    /// A group with these settings.
    pub fn new(name: &str, settings: Settings) -> Group {
        let shared = Arc::new(Shared::default());
        let list = |backup: bool| {
            let servers = settings.servers.iter().filter(|server| server.backup == backup);
            let peers = servers.flat_map(|server| {
                server.addrs.iter().map(|addr| {
                    let (weights, state) = (server.weights.clone(), Arc::<State>::default());
                    let peer =
                        Peer::new(addr.clone(), &server.name, weights, state, shared.clone());
                    Arc::new(peer)
                })
            });
            List::new(peers.collect())
        };
        let peers = Peers { primary: list(false), backup: list(true) };
        Group { name: name.into(), settings, shared, peers: ArcSwap::from_pointee(peers) }
    }

    /// A group for addresses that a request's own name resolved to (`proxy_pass` with variables;
    /// `ngx_http_upstream_create_round_robin_peer`).
    pub fn resolved(name: &str, addrs: &[Addr]) -> Group {
        let server = |addr: &Addr| Server {
            name: name.into(),
            addrs: vec![addr.clone()],
            weights: Weights::default(),
            backup: false,
        };
        let servers = addrs.iter().map(server).collect();
        Group::new(name, Settings { servers, ..Settings::default() })
    }

    /// Begins a request: reads what the group's method wants to know about it. `client`: its address;
    /// `None` for unix sockets.
    pub fn begin<S: Scope>(&self, _scope: &S, _client: Option<IpAddr>) -> Selection {
        Selection::new(&self.peers.load())
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
        let new = || -> Box<dyn Any + Send + Sync> { Box::new(keepalive::Pool::<C>::new()) };
        let pool = self.shared.pool.get_or_init(new);
        Some(pool.downcast_ref().expect("one type of connection for each group"))
    }
}
