//! The plan: what a configuration compiles to. A request walks through it and asks nothing else.
//!
//! Invariant: immutable once built; a reload makes another and swaps it in.

use std::{
    any::Any,
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    ops::Deref,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
};

use forebay_conf::Span;
use forebay_rt::listen::{Addr, Options};
use forebay_session::{
    log::{ErrorLog, LogSet},
    ssl,
    upstream::Upstreams,
    var::Registry,
    zone::Zones,
};

use crate::{
    core,
    handler::{Filter, Handler, Logger},
    names::Names,
    request::Request,
    tree::Tree,
};

/// The number of a level of the configuration that can have location settings: a server, a
/// location, an `if`, a `limit_except`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct LocId(pub(crate) u32);

impl LocId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ServerId(pub(crate) u32);

/// A compiled configuration of `http`.
pub struct Plan {
    /// Every level, by [`LocId`].
    pub(crate) locations: Vec<Location>,
    /// Every server, by [`ServerId`].
    pub(crate) servers: Vec<Server>,
    /// What to listen on, and which server answers there.
    pub listeners: Vec<Listener>,
    /// The variables.
    pub registry: Registry<Request>,
    /// The log files that it names.
    pub logs: LogSet,
    /// Its shared memory zones.
    pub zones: Zones,
    /// Its groups of servers.
    pub upstreams: Upstreams,
    /// What relative paths belong to, without a slash at its end.
    pub prefix: Box<[u8]>,
    /// `types_hash…`, caches and other things that every worker thread sets up for itself.
    pub file_caches: Vec<core::FileCacheConf>,
    /// The thread pools that it names.
    pub thread_pools: Vec<core::PoolUse>,
    /// Whether it connects from addresses that are not of this machine (`transparent`).
    pub transparent: bool,
    /// See [`crate::module::Cx::temp_paths`].
    pub(crate) temp_paths: BTreeSet<PathBuf>,
}

impl Location {
    /// What a module keeps here for its variables, if it is configured.
    pub fn setting<T: 'static>(&self) -> Option<&T> {
        self.settings.iter().find_map(|setting| setting.downcast_ref())
    }
}

impl Plan {
    /// A level's settings.
    pub fn location(&self, id: LocId) -> &Location {
        &self.locations[id.index()]
    }

    /// A server.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }
}

/// The plan as one thread holds it: requests count their references here, and not on a counter that
/// all cores fight for.
#[derive(Clone)]
pub struct PlanHandle(Rc<Held>);

struct Held(Arc<Plan>);

impl From<Arc<Plan>> for PlanHandle {
    fn from(plan: Arc<Plan>) -> PlanHandle {
        PlanHandle(Rc::new(Held(plan)))
    }
}

impl Deref for PlanHandle {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.0.0
    }
}

/// A listening address and the servers behind it.
pub struct Listener {
    /// Where.
    pub addr: Addr,
    /// How.
    pub options: Options,
    /// Whether each connection begins with a `PROXY` header.
    pub proxy_protocol: bool,
    /// Whether TLS is spoken.
    pub ssl: bool,
    /// `listen … http2`: HTTP/2 is spoken whatever `http2` says.
    pub http2: bool,
    /// Who answers what.
    pub names: Names,
    /// Who answers at single local addresses that this one covers.
    pub specific: Vec<(SocketAddr, Names)>,
}

/// A `server` block.
pub struct Server {
    /// Its level: settings outside any location, and the server rewrite phase.
    pub location: LocId,
    /// The first `server_name` (`$server_name`).
    pub name: bytes::Bytes,
    /// What must be known before a location is.
    pub settings: core::ServerSettings,
    /// How it speaks TLS, if it does.
    pub tls: Option<Arc<ssl::Server>>,
    /// `location @name`.
    pub named: HashMap<Box<[u8]>, LocId>,
    /// Whether one of its locations has [`Location::upgrades`].
    pub upgrades: bool,
}

/// A level's settings, compiled. Handlers stand in the order in which they run.
pub struct Location {
    /// Which level it is.
    pub id: LocId,
    /// The name as written, without modifier (`/img/`, `@fallback`, a regex).
    pub name: bytes::Bytes,
    /// What kind of level it is.
    pub kind: Kind,
    /// The settings of `ngx_http_core_module`.
    pub core: core::Settings,
    /// Where it stands.
    pub span: Span,
    /// Of servers: how it speaks TLS, if it does.
    pub tls: Option<Arc<ssl::Server>>,
    /// Where errors are written, and from which severity on.
    pub error_log: ErrorLog,
    /// `uninitialized_variable_warn`: whether reading a variable before `set` is worth a line.
    pub warn_uninitialized: bool,
    /// Whether a path that lacks the name's last slash is redirected to the one that has it (nginx's
    /// `auto_redirect`).
    pub auto_redirect: bool,
    /// Whether a request for another protocol (`Upgrade`) may be granted here.
    pub upgrades: bool,
    /// Whether its handler is for CONNECT; any other refuses the method.
    pub takes_connect: bool,
    /// Nested locations.
    pub tree: Tree,
    /// `limit_except`: the level that holds for all methods but these.
    pub limit_except: Option<(Vec<Box<[u8]>>, LocId)>,
    /// Post-read phase (of servers): before anything else is done with a new request.
    pub post_read: Vec<Box<dyn Handler>>,
    /// Rewrite phase.
    pub rewrite: Vec<Box<dyn Handler>>,
    /// Preaccess phase.
    pub preaccess: Vec<Box<dyn Handler>>,
    /// Access phase.
    pub access: Vec<Box<dyn Handler>>,
    /// Precontent phase.
    pub precontent: Vec<Box<dyn Handler>>,
    /// Content phase, unless there is a sole handler.
    pub content: Vec<Box<dyn Handler>>,
    /// The only content handler.
    pub sole_content: Option<Box<dyn Handler>>,
    /// Response filters.
    pub filters: Vec<Box<dyn Filter>>,
    /// What modules' variables read of their settings; one value of a type.
    pub(crate) settings: Vec<Box<dyn Any + Send + Sync>>,
    /// Log phase.
    pub loggers: Vec<Box<dyn Logger>>,
}

/// What kind of level a [`Location`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// `http` itself.
    #[default]
    Main,
    /// `server`.
    Server,
    /// `location = /x`.
    Exact,
    /// `location /x`; `noregex` for `^~`.
    Prefix {
        /// `^~`: regular expressions are not tried after it.
        noregex: bool,
    },
    /// `location ~ x`.
    Regex,
    /// `location @x`.
    Named,
    /// `if` in a server or location.
    If,
    /// `limit_except`.
    LimitExcept,
    /// `upstream`: no request ever stands there.
    Aside,
}

impl Plan {
    /// The directories of temporary files, which whoever has the privileges makes.
    pub fn temp_paths(&self) -> BTreeSet<PathBuf> {
        let of_bodies = self.locations.iter().map(|l| l.core.client_body_temp_path.path.clone());
        of_bodies.chain(self.temp_paths.iter().cloned()).collect()
    }

    /// The files that the worker opens logs in.
    pub fn log_paths(&self) -> Vec<PathBuf> {
        self.logs.paths()
    }
}
