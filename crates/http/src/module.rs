//! What a module is: a table of directives, a configuration that inherits, and a `build` that adds
//! to a location's plan just what is switched on.
//!
//! To write one, copy the nearest in `modules/` and add a line to `modules/mod.rs`.
//!
//! Invariant: the types here know no module by name.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use forebay_conf::{Arity, Contexts, Error, Loader, Node, Span, Spec};
use forebay_session::{
    log::LogSet,
    ssl,
    upstream::{Upstream, Upstreams},
    var::Registry,
    zone::Zones,
};

use crate::{
    coding::{Coding, StaticCoding},
    core,
    handler::{Filter, Handler, Logger},
    plan::{Kind, LocId, Location},
    request::Request,
};

/// Settings of one module at one level of the configuration.
pub trait Conf: Default + Send + Sync + 'static {
    /// Takes over from the enclosing level what this one does not set.
    fn inherit(&mut self, parent: &Self);
}

/// Of modules whose directives only say that they serve a level ([`Cx::serves`]).
impl Conf for () {
    fn inherit(&mut self, _: &Self) {}
}

/// A directive and what to do with it. Errors name the place and the cause in nginx's words.
pub struct Directive<C: 'static> {
    /// Name, syntax, default, contexts, number of parameters.
    pub spec: Spec,
    /// What it does.
    pub action: Action<C>,
}

/// A setter of a directive.
pub type Set<C> = fn(&mut C, &Node, &mut Cx<'_, '_>) -> Result<(), Error>;
/// An opener of a level: the module's own settings there.
pub type Open<C> = fn(&mut C, &Node, &mut Cx<'_, '_>, LocId) -> Result<C, Error>;
/// The contexts inside a block by those around it.
pub type Inside = fn(Contexts) -> Contexts;

/// What a directive does.
pub enum Action<C: 'static> {
    /// Sets something; a block's content (`types`, `map`) is the setter's to read.
    Set(Set<C>),
    /// Opens a block with a level of its own (`server`, `location`, `if`), which has the given
    /// number; the loader goes on inside it, in these contexts.
    Open(Inside, Open<C>),
}

/// `http`, `server`, `location`.
pub const ANY: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
/// The same, and `if` in a location.
pub const ANY_IF: Contexts = ANY.or(Contexts::LIF);
/// `http`, `server`.
pub const SERVERS: Contexts = Contexts::HTTP.or(Contexts::SERVER);
/// `server`, `location`.
pub const INNER: Contexts = Contexts::SERVER.or(Contexts::LOCATION);

/// A table row: a directive that sets something.
pub const fn set<C>(
    name: &'static str,
    syntax: &'static [&'static str],
    default: &'static str,
    contexts: Contexts,
    arity: Arity,
    doc: &'static str,
    action: Set<C>,
) -> Directive<C> {
    let spec = Spec { name, syntax, default, contexts, arity, doc };
    Directive { spec, action: Action::Set(action) }
}

/// A table row: a directive that stands in an `upstream {}` block.
pub const fn in_upstream<C>(
    name: &'static str,
    syntax: &'static [&'static str],
    default: &'static str,
    arity: Arity,
    doc: &'static str,
    action: Set<C>,
) -> Directive<C> {
    set(name, syntax, default, Contexts::UPSTREAM, arity, doc, action)
}

/// A table row: a directive that opens a level.
pub const fn open<C>(
    name: &'static str,
    syntax: &'static [&'static str],
    default: &'static str,
    contexts: Contexts,
    arity: Arity,
    doc: &'static str,
    (inside, action): (Inside, Open<C>),
) -> Directive<C> {
    let spec = Spec { name, syntax, default, contexts, arity, doc };
    Directive { spec, action: Action::Open(inside, action) }
}

/// A module. Implemented by an empty type that only names the parts.
pub trait Module: Send + Sync + 'static {
    /// Its settings.
    type Conf: Conf;
    /// nginx's name of it (`ngx_http_gzip_module`).
    const NAME: &'static str;
    /// Its directives.
    const DIRECTIVES: &'static [Directive<Self::Conf>];

    /// Declares its variables.
    fn variables(_registry: &mut Registry<Request>) {}

    /// Its settings in a block of its own that was refused, and is read for what is wrong inside.
    fn refused(_node: &Node, _cx: &mut Cx<'_, '_>) -> Self::Conf {
        Self::Conf::default()
    }

    /// Adds to a location what its merged settings switch on.
    fn build(_conf: &Self::Conf, _b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        Ok(())
    }
}

/// Where things are that no directive names: what nginx's `configure` sets. Relative names belong to
/// the prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultPaths {
    /// The log of requests: `--http-log-path`.
    pub access_log: PathBuf,
    /// The directory of all directories of temporary files, as packages have it; `None`: each is in
    /// the prefix under the name that nginx's own build gives it.
    pub temp: Option<PathBuf>,
}

impl Default for DefaultPaths {
    fn default() -> Self {
        DefaultPaths { access_log: "logs/access.log".into(), temp: None }
    }
}

impl DefaultPaths {
    /// The directory of one kind of temporary files: `client_body`, `proxy`, `fastcgi`, `uwsgi`,
    /// `scgi` (`--http-client-body-temp-path` and the like).
    pub fn temp(&self, kind: &str) -> PathBuf {
        match &self.temp {
            Some(dir) => dir.join(format!("{}_temp", kind.trim_end_matches("_body"))),
            None => format!("{kind}_temp").into(),
        }
    }
}

/// How a directory of temporary files is used.
#[derive(Clone, Copy, Debug)]
pub struct TempPathUse {
    levels: [u8; 3],
    /// Where a directive names it; `None`: it is a default.
    span: Option<Span>,
}

/// What a setter may use while the configuration loads.
pub struct Cx<'l, 'f> {
    /// Files, warnings, prefixes.
    pub loader: &'l mut Loader<'f>,
    /// Variables.
    pub registry: Registry<Request>,
    /// Log files: named now, opened by whoever has the privileges.
    pub logs: LogSet,
    /// Where things are that no directive names.
    pub defaults: DefaultPaths,
    /// The directories of temporary files, see [`Cx::add_temp_path`].
    pub temp_paths: BTreeMap<PathBuf, TempPathUse>,
    /// Whether a directive wants to connect from addresses that are not of this machine.
    pub transparent: bool,
    /// Shared memory zones.
    pub zones: Zones,
    /// Groups of servers, used and defined in any order.
    pub upstreams: Upstreams,
    /// Where the directive stands.
    pub context: Contexts,
    /// Set by a directive whose module is to serve its level, unless one behind it says the same of
    /// another (`clcf->handler`), see [`Builder::serves`].
    pub serves: bool,
    /// Directives that stand outside of `http` only: known, but not allowed here.
    pub elsewhere: Vec<&'static Spec>,
    shared: HashMap<TypeId, Box<dyn Any>>,
}

impl<'l, 'f> Cx<'l, 'f> {
    /// A context for one `http` block.
    pub fn new(loader: &'l mut Loader<'f>) -> Self {
        Cx {
            loader,
            registry: Registry::default(),
            logs: LogSet::default(),
            zones: Zones::default(),
            defaults: DefaultPaths::default(),
            temp_paths: BTreeMap::new(),
            transparent: false,
            upstreams: Upstreams::default(),
            context: Contexts::HTTP,
            serves: false,
            elsewhere: Vec::new(),
            shared: HashMap::new(),
        }
    }

    /// The directory of a kind of temporary files that no directive names, see [`DefaultPaths::temp`].
    pub fn default_temp_path(&self, kind: &str) -> PathBuf {
        self.loader.full_path(self.defaults.temp(kind))
    }

    /// Adds a directory of temporary files, which a directive at `span` names, or none: those of one
    /// name have the same levels (`ngx_add_path`).
    pub fn add_temp_path(
        &mut self,
        path: &Path,
        levels: [u8; 3],
        span: Option<Span>,
    ) -> Result<(), Error> {
        let first = self.temp_paths.entry(path.into()).or_insert(TempPathUse { levels, span });
        if first.levels == levels {
            return Ok(());
        }
        let place = first.span.map(|at| (self.loader.sources.path(at.file), at.line));
        let place =
            place.map_or_else(String::new, |(file, line)| format!(" in {}:{line}", file.display()));
        let path = path.display();
        Err(match span {
            Some(span) => {
                let text =
                    format!("the same path name \"{path}\"{place} has the different levels than");
                Error::emerg(span, text)
            }
            None => Error::global(format!(
                "the path name \"{path}\"{place} has the same name as default path, but the \
                 different levels, you need to define default path in http section"
            )),
        })
    }

    /// What a module shares between all levels while loading (log formats, zones).
    pub fn shared<T: Default + 'static>(&mut self) -> &mut T {
        let any = self.shared.entry(TypeId::of::<T>()).or_insert_with(|| Box::<T>::default());
        any.downcast_mut().expect("stored under its own type")
    }
}

/// The settings of all modules at one level.
#[derive(Default)]
pub struct Confs {
    by_type: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
}

impl Confs {
    /// A module's settings, if any directive of it stands here or above.
    pub fn find<C: Conf>(&self) -> Option<&C> {
        self.by_type.get(&TypeId::of::<C>())?.downcast_ref()
    }

    /// A module's settings, to change.
    pub fn make<C: Conf>(&mut self) -> &mut C {
        let any = self.by_type.entry(TypeId::of::<C>()).or_insert_with(|| Box::<C>::default());
        any.downcast_mut().expect("stored under its own type")
    }
}

/// Collects what a location is made of.
pub struct Builder<'b, 'l, 'f> {
    /// What setters use, for templates compiled late and warnings.
    pub cx: &'b mut Cx<'l, 'f>,
    /// The level being built: its number, name, and core settings are there already.
    pub location: &'b mut Location,
    /// The module that builds, by number.
    pub(crate) module: usize,
    pub(crate) levels: &'b [Confs],
    /// The level that each is in.
    pub(crate) parents: &'b [LocId],
    /// Whether a filter so far puts subrequests into bodies.
    pub(crate) nests: bool,
    /// Codings to choose from, until the filter that chooses takes them.
    pub(crate) codings: Vec<Box<dyn Coding>>,
    /// Filters that run behind those of all modules.
    pub(crate) last_filters: Vec<Box<dyn Filter>>,
    /// Codings of files, until the handler that serves them takes them.
    pub(crate) static_codings: Vec<StaticCoding>,
}

impl Builder<'_, '_, '_> {
    /// The merged settings of another level (an `if` inside this one).
    pub fn level<C: Conf>(&self, id: LocId) -> Option<&C> {
        self.levels[id.index()].find()
    }

    /// The merged settings of the location that an `if` or `limit_except` varies.
    pub fn enclosing<C: Conf>(&self) -> Option<&C> {
        let mut id = self.location.id;
        loop {
            id = *self.parents.get(id.index()).filter(|parent| **parent != id)?;
            let kind = self.level::<core::Conf>(id).map(|conf| conf.own.kind);
            if !matches!(kind, Some(Kind::If | Kind::LimitExcept)) {
                return self.level(id);
            }
        }
    }

    /// The merged settings of the level around this one, unless that is `http`.
    pub fn around<C: Conf>(&self) -> Option<&C> {
        let id = self.parents[self.location.id.index()];
        let kind = self.level::<core::Conf>(id)?.own.kind;
        if kind == Kind::Main { None } else { self.level(id) }
    }

    /// Adds to the (server) rewrite phase.
    pub fn rewrite(&mut self, handler: impl Handler + 'static) {
        self.location.rewrite.push(Box::new(handler));
    }

    /// Adds to the post-read phase, which only servers have (realip).
    pub fn post_read(&mut self, handler: impl Handler + 'static) {
        self.location.post_read.push(Box::new(handler));
    }

    /// Adds to the preaccess phase (limits, realip).
    pub fn preaccess(&mut self, handler: impl Handler + 'static) {
        self.location.preaccess.push(Box::new(handler));
    }

    /// Adds to the access phase (subject to `satisfy`).
    pub fn access(&mut self, handler: impl Handler + 'static) {
        self.location.access.push(Box::new(handler));
    }

    /// Adds to the precontent phase (`try_files`, `mirror`).
    pub fn precontent(&mut self, handler: impl Handler + 'static) {
        self.location.precontent.push(Box::new(handler));
    }

    /// Adds to the content phase; handlers are asked in module order.
    pub fn content(&mut self, handler: impl Handler + 'static) {
        self.location.content.push(Box::new(handler));
    }

    /// Makes this the only content handler (`stub_status`, `proxy_pass`).
    pub fn sole_content(&mut self, handler: impl Handler + 'static) {
        self.location.sole_content = Some(Box::new(handler));
    }

    /// Whether the module serves this level: its directive is the last of the kind ([`Cx::serves`]) here, or
    /// there is none here, and it serves the location that this `if` varies
    /// (`ngx_http_update_location_config`).
    pub fn serves(&self) -> bool {
        let here = self.served_by(self.location.id);
        let varied = || {
            let varies = self.location.kind == Kind::If;
            if varies { self.enclosing::<core::Conf>()?.own.served_by } else { None }
        };
        here.or_else(varied) == Some(self.module)
    }

    /// The same of a module that serves `limit_except`, too, where it is set up around it
    /// (`ngx_http_proxy_merge_loc_conf`).
    pub fn passes(&self) -> bool {
        let varies = self.location.kind == Kind::LimitExcept;
        self.serves() || varies && self.served_by(self.location.id).is_none()
    }

    fn served_by(&self, level: LocId) -> Option<usize> {
        self.level::<core::Conf>(level)?.own.served_by
    }

    /// Adds a response filter; filters run in module order.
    pub fn filter(&mut self, filter: impl Filter + 'static) {
        self.location.filters.push(Box::new(filter));
    }

    /// Adds a response filter that runs behind those of all modules: what it reads is what is sent.
    pub fn last_filter(&mut self, filter: impl Filter + 'static) {
        self.last_filters.push(Box::new(filter));
    }

    /// Says that the body may hold subrequests ([`crate::body::Chunk::Nested`]).
    pub fn nests(&mut self) {
        self.nests = true;
    }

    /// Adds a coding to choose from, in the order of preference.
    pub fn coding(&mut self, coding: impl Coding + 'static) {
        self.codings.push(Box::new(coding));
    }

    /// Keeps settings that variables read, see [`Location::setting`].
    pub fn keep(&mut self, setting: impl Any + Send + Sync) {
        self.location.settings.push(Box::new(setting));
    }

    /// Says where this level passes requests, for those who check on servers.
    pub fn passes_to(&mut self, to: PassesTo) {
        self.keep(to);
    }

    /// Adds a log writer.
    pub fn log(&mut self, logger: impl Logger + 'static) {
        self.location.loggers.push(Box::new(logger));
    }
}

/// Where a level passes requests.
#[derive(Clone)]
pub struct PassesTo {
    /// The servers.
    pub upstream: Arc<Upstream>,
    /// Over TLS: how, and the host that the URL names.
    pub tls: Option<PassesTls>,
    /// How long they may take to answer, in milliseconds.
    pub read_timeout_ms: u64,
}

/// How a level that passes requests speaks TLS.
#[derive(Clone)]
pub struct PassesTls {
    /// The directives, for [`upstream::tls::build`](crate::upstream::tls::build).
    pub settings: ssl::client::Settings,
    /// What their names begin with: `proxy`.
    pub prefix: &'static str,
    /// The host that the URL names.
    pub host: Bytes,
}

/// A module with its types erased, for the loader's list.
pub trait AnyModule: Send + Sync {
    /// nginx's name of it.
    fn name(&self) -> &'static str;
    /// The directives, by number.
    fn specs(&self) -> Vec<&'static Spec>;
    /// See [`Module::variables`].
    fn variables(&self, registry: &mut Registry<Request>);
    /// The contexts inside the level that a directive opens, if it opens one.
    fn inside(&self, directive: usize, context: Contexts) -> Option<Contexts>;
    /// Runs a setter.
    fn set(
        &self,
        directive: usize,
        confs: &mut Confs,
        node: &Node,
        cx: &mut Cx<'_, '_>,
    ) -> Result<(), Error>;
    /// Runs an opener; what the module says of the new level goes into `inner`.
    fn open(
        &self,
        directive: usize,
        confs: &mut Confs,
        node: &Node,
        cx: &mut Cx<'_, '_>,
        child: LocId,
        inner: &mut Confs,
    ) -> Result<(), Error>;
    /// See [`Module::refused`].
    fn refused(&self, node: &Node, cx: &mut Cx<'_, '_>, inner: &mut Confs);
    /// Merges.
    fn inherit(&self, child: &mut Confs, parent: &Confs);
    /// See [`Module::build`].
    fn build(&self, id: LocId, b: &mut Builder<'_, '_, '_>) -> Result<(), Error>;
}

/// The entry of module `M` in the list.
pub struct Entry<M>(pub std::marker::PhantomData<M>);

impl<M: Module> AnyModule for Entry<M> {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn specs(&self) -> Vec<&'static Spec> {
        M::DIRECTIVES.iter().map(|directive| &directive.spec).collect()
    }

    fn variables(&self, registry: &mut Registry<Request>) {
        M::variables(registry);
    }

    fn inside(&self, directive: usize, context: Contexts) -> Option<Contexts> {
        match M::DIRECTIVES[directive].action {
            Action::Open(inside, _) => Some(inside(context)),
            Action::Set(_) => None,
        }
    }

    fn set(
        &self,
        directive: usize,
        confs: &mut Confs,
        node: &Node,
        cx: &mut Cx<'_, '_>,
    ) -> Result<(), Error> {
        match M::DIRECTIVES[directive].action {
            Action::Set(set) => set(confs.make(), node, cx),
            Action::Open(..) => unreachable!("openers go through open()"),
        }
    }

    fn open(
        &self,
        directive: usize,
        confs: &mut Confs,
        node: &Node,
        cx: &mut Cx<'_, '_>,
        child: LocId,
        inner: &mut Confs,
    ) -> Result<(), Error> {
        match M::DIRECTIVES[directive].action {
            Action::Open(_, open) => {
                *inner.make() = open(confs.make(), node, cx, child)?;
                Ok(())
            }
            Action::Set(_) => unreachable!("setters go through set()"),
        }
    }

    fn refused(&self, node: &Node, cx: &mut Cx<'_, '_>, inner: &mut Confs) {
        *inner.make() = M::refused(node, cx);
    }

    fn inherit(&self, child: &mut Confs, parent: &Confs) {
        if let Some(parent) = parent.find::<M::Conf>() {
            child.make::<M::Conf>().inherit(parent);
        }
    }

    fn build(&self, id: LocId, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let levels = b.levels;
        match levels[id.index()].find::<M::Conf>() {
            Some(conf) => M::build(conf, b),
            None => M::build(&M::Conf::default(), b),
        }
    }
}

/// `inherit!(self, parent; a, b)`: each field that is `None` takes the parent's value.
#[macro_export]
macro_rules! inherit {
    ($self:ident, $parent:ident; $($field:ident),+ $(,)?) => {
        $(if $self.$field.is_none() { $self.$field.clone_from(&$parent.$field); })+
    };
}
