//! From the tree of an `http` block to a [`Plan`]: read every level, inherit, build.
//!
//! Invariant: no directive is known here by name but through the modules' tables; only the settings
//! of `ngx_http_core_module`, which the engine obeys, are looked into.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
};

use forebay_conf::{Contexts, Error, Index, Loader, Node, Spec};
use forebay_rt::listen::Addr;
use forebay_session::log::ErrorLog;

use crate::{
    core::{self, FileCacheConf, Listen, ServerName, ServerSettings},
    module::{AnyModule, Builder, Confs, Cx},
    names::Names,
    plan::{Kind, Listener, LocId, Location, Plan, Server, ServerId},
    request::{Connection, Peer},
    tree::Tree,
};

/// The levels of a configuration while it is read.
struct Reader<'m, 'c, 'l, 'f> {
    modules: &'m [Box<dyn AnyModule>],
    specs: Index,
    by_name: HashMap<(&'static str, Contexts), (usize, usize)>,
    cx: &'c mut Cx<'l, 'f>,
    levels: Vec<Confs>,
    parents: Vec<LocId>,
}

/// Compiles an `http` block. All errors go to the loader's diagnostics; with any, there is no plan.
///
/// `default_error_log` is what holds where no `error_log` stands; `privileged` decides between ports
/// 80 and 8000 for servers without `listen`.
pub fn load(
    block: &Node,
    modules: &[Box<dyn AnyModule>],
    loader: &mut Loader<'_>,
    default_error_log: &ErrorLog,
    privileged: bool,
) -> Option<Plan> {
    load_with(block, modules, Cx::new(loader), default_error_log, privileged)
}

/// The same in a context that the caller has prepared ([`Cx::defaults`], [`Cx::elsewhere`]).
pub fn load_with(
    block: &Node,
    modules: &[Box<dyn AnyModule>],
    mut cx: Cx<'_, '_>,
    default_error_log: &ErrorLog,
    privileged: bool,
) -> Option<Plan> {
    for module in modules {
        module.variables(&mut cx.registry);
    }
    let elsewhere = std::mem::take(&mut cx.elsewhere);
    let specs = modules.iter().flat_map(|module| module.specs());
    let mut reader = Reader {
        modules,
        specs: Index::new(specs.chain(elsewhere)),
        by_name: index(modules),
        cx: &mut cx,
        levels: vec![Confs::default()],
        parents: vec![LocId(0)],
    };
    reader.block(LocId(0), block.children(), Contexts::HTTP);
    let read = reader.cx.loader.diags.len();
    let core = reader.levels[0].make::<core::Conf>();
    core.default_paths(reader.cx);
    reader.inherit();
    let (levels, parents) = (reader.levels, reader.parents);
    let plan = compile((&levels, &parents), modules, &mut cx, default_error_log, privileged);
    if let Some(plan) = &plan {
        plan.upstreams.finish(cx.loader);
    }
    if let Some(plan) = &plan {
        let missing = plan.registry.undefined().into_iter().chain(plan.zones.undeclared());
        missing.for_each(|error| cx.loader.diags.push(error));
    }
    cx.loader.diags.found_at(block.block_end, read);
    if cx.loader.diags.has_errors() { None } else { plan }
}

/// Where each directive is; one name may stand for several, in different contexts.
fn index(modules: &[Box<dyn AnyModule>]) -> HashMap<(&'static str, Contexts), (usize, usize)> {
    let mut by_name = HashMap::new();
    for (m, module) in modules.iter().enumerate() {
        for (d, spec) in module.specs().iter().enumerate() {
            let before = by_name.insert((spec.name, spec.contexts), (m, d));
            assert!(before.is_none(), "two modules have a directive \"{}\"", spec.name);
        }
    }
    by_name
}

impl Reader<'_, '_, '_, '_> {
    fn block(&mut self, level: LocId, nodes: &[Node], context: Contexts) {
        for node in nodes {
            if let Err(error) = self.directive(level, node, context) {
                self.cx.loader.diags.push(error);
            }
        }
    }

    fn directive(&mut self, level: LocId, node: &Node, context: Contexts) -> Result<(), Error> {
        self.cx.context = context;
        self.cx.serves = false;
        let spec = match self.specs.resolve(node, context) {
            Ok(spec) => spec,
            Err(error) => {
                self.cx.loader.diags.push(error);
                if let Some(spec) = self.specs.refused_block(node, context).copied() {
                    self.refused_directive(level, node, context, &spec);
                }
                return Ok(());
            }
        };
        let (m, d) = self.by_name[&(spec.name, spec.contexts)];
        let module = &self.modules[m];
        let confs = &mut self.levels[level.index()];
        let Some(contexts) = module.inside(d, context) else {
            module.set(d, confs, node, self.cx)?;
            if self.cx.serves {
                confs.make::<core::Conf>().own.served_by = Some(m);
            }
            return Ok(());
        };
        let child = LocId(self.parents.len() as u32);
        let mut inner = Confs::default();
        if let Err(error) = module.open(d, confs, node, self.cx, child, &mut inner) {
            self.cx.loader.diags.push(error);
            self.refused_block(level, node, (m, contexts));
            return Ok(());
        }
        if inner.find::<core::Conf>().is_none() {
            // The core module names its own levels; any other opens a variant of this one.
            let own = &mut inner.make::<core::Conf>().own;
            let aside = contexts.has(Contexts::UPSTREAM);
            (own.kind, own.span) = (if aside { Kind::Aside } else { Kind::If }, node.span);
        }
        self.inner_level(level, inner, node, contexts);
        Ok(())
    }

    fn inner_level(&mut self, level: LocId, inner: Confs, node: &Node, contexts: Contexts) {
        let child = LocId(self.parents.len() as u32);
        self.levels.push(inner);
        self.parents.push(level);
        self.block(child, node.children(), contexts);
    }

    /// A directive with a block stands in a wrong place, or has too many arguments, or too few. What is
    /// wrong inside is told as well.
    fn refused_directive(&mut self, level: LocId, node: &Node, context: Contexts, spec: &Spec) {
        // What stands outside `http` only is in no module.
        let Some(&(m, d)) = self.by_name.get(&(spec.name, spec.contexts)) else { return };
        let module = &self.modules[m];
        match module.inside(d, context) {
            Some(contexts) => self.refused_block(level, node, (m, contexts)),
            None => {
                // Of no level's settings.
                let done = module.set(d, &mut Confs::default(), node, self.cx);
                // The number of arguments is told already.
                let wrong_count = node.wrong_count().message;
                let error = done.err().filter(|error| error.message != wrong_count);
                error.into_iter().for_each(|error| self.cx.loader.diags.push(error));
            }
        }
    }

    /// Reads a block of module `m` that was refused, for what is wrong inside. Nothing is built of it, as
    /// that would find what only follows from the refusal.
    fn refused_block(&mut self, level: LocId, node: &Node, (m, contexts): (usize, Contexts)) {
        let mut inner = Confs::default();
        self.modules[m].refused(node, self.cx, &mut inner);
        let own = &mut inner.make::<core::Conf>().own;
        (own.kind, own.span) = (Kind::Aside, node.span);
        self.inner_level(level, inner, node, contexts);
    }

    /// Top down: a parent always has a smaller number than its children.
    fn inherit(&mut self) {
        for child in 1..self.levels.len() {
            let (before, rest) = self.levels.split_at_mut(child);
            let parent = &before[self.parents[child].index()];
            for module in self.modules {
                module.inherit(&mut rest[0], parent);
            }
        }
    }
}

/// Whether a level is, or is within, one that no request comes to.
fn is_aside(levels: &[Confs], parents: &[LocId], mut id: LocId) -> bool {
    loop {
        match core_of(levels, id).own.kind {
            Kind::Aside => return true,
            _ if id == LocId(0) => return false,
            _ => id = parents[id.index()],
        }
    }
}

fn core_of(levels: &[Confs], id: LocId) -> &core::Conf {
    static DEFAULT: std::sync::OnceLock<core::Conf> = std::sync::OnceLock::new();
    levels[id.index()].find().unwrap_or_else(|| DEFAULT.get_or_init(core::Conf::default))
}

fn compile(
    (levels, parents): (&[Confs], &[LocId]),
    modules: &[Box<dyn AnyModule>],
    cx: &mut Cx<'_, '_>,
    default_error_log: &ErrorLog,
    privileged: bool,
) -> Option<Plan> {
    let mut locations = Vec::with_capacity(levels.len());
    for index in 0..levels.len() {
        let id = LocId(index as u32);
        let mut location = Location::new(id, core_of(levels, id), default_error_log);
        location.tree = tree(levels, id, cx);
        let mut builder = Builder {
            cx,
            location: &mut location,
            module: 0,
            levels,
            parents,
            nests: false,
            last_filters: Vec::new(),
            codings: Vec::new(),
            static_codings: Vec::new(),
        };
        let built = if is_aside(levels, parents, id) { &[] } else { modules };
        for (number, module) in built.iter().enumerate() {
            builder.module = number;
            if let Err(error) = module.build(id, &mut builder) {
                builder.cx.loader.diags.push(error);
            }
        }
        let last = builder.last_filters;
        location.filters.extend(last);
        locations.push(location);
    }
    for index in 0..locations.len() {
        if locations[index].auto_redirect {
            locations[parents[index].index()].tree.redirects = true;
        }
    }
    let mut servers = Vec::new();
    let mut listens = Vec::new();
    for (index, &level) in core_of(levels, LocId(0)).own.servers.iter().enumerate() {
        let conf = core_of(levels, level);
        let mut server = server(levels, level, &locations);
        // The end of `ngx_http_core_merge_srv_conf`.
        let core = &locations[level.index()].core;
        if (core.large_client_header_buffers.1 as u64) < core.connection_pool_size {
            let text = "the \"large_client_header_buffers\" size must be equal to or greater than \
                        \"connection_pool_size\"";
            cx.loader.diags.push(Error::emerg(conf.own.span, text));
        }
        server.upgrades = upgrades(level, parents, &locations);
        servers.push(server);
        let id = ServerId(index as u32);
        if conf.own.listens.is_empty() {
            listens.push((id, Listen::default_for(conf.own.span, privileged), conf));
        }
        listens.extend(conf.own.listens.iter().map(|listen| (id, listen.clone(), conf)));
    }
    mark_connect(&locations, parents, &mut servers);
    let mut listeners = listeners(&listens, cx);
    mark_heads(&mut listeners, &servers);
    if !cx.loader.diags.has_errors() {
        // What could not be loaded is not missing.
        check_tls(&listeners, &servers, levels, cx);
    }
    let file_caches = std::mem::take(cx.shared::<Vec<FileCacheConf>>());
    Some(Plan {
        locations,
        servers,
        listeners,
        registry: std::mem::take(&mut cx.registry),
        logs: std::mem::take(&mut cx.logs),
        zones: std::mem::take(&mut cx.zones),
        upstreams: std::mem::take(&mut cx.upstreams),
        prefix: prefix(cx.loader),
        file_caches,
        thread_pools: std::mem::take(cx.shared::<Vec<core::PoolUse>>()),
        transparent: cx.transparent,
        temp_paths: std::mem::take(&mut cx.temp_paths).into_keys().collect(),
    })
}

/// Tells the servers in which CONNECT opens tunnels.
fn mark_connect(locations: &[Location], parents: &[LocId], servers: &mut [Server]) {
    for location in locations.iter().filter(|location| location.takes_connect) {
        let mut id = location.id;
        while locations[id.index()].kind != Kind::Server {
            id = parents[id.index()];
        }
        let server = servers.iter_mut().find(|server| server.location == id);
        server.expect("a location is in a server").settings.takes_connect = true;
    }
}

fn prefix(loader: &Loader<'_>) -> Box<[u8]> {
    let path = loader.prefix.as_os_str().as_encoded_bytes();
    path.strip_suffix(b"/").unwrap_or(path).into()
}

fn tree(levels: &[Confs], id: LocId, cx: &mut Cx<'_, '_>) -> Tree {
    let mut tree = Tree::default();
    for &child in &core_of(levels, id).own.locations {
        let own = &core_of(levels, child).own;
        match own.kind {
            Kind::Exact | Kind::Prefix { .. } => {
                let added = tree.add(own.kind, &own.name, child);
                cx.loader.diags.take(added.then_some(()).ok_or_else(|| duplicate_location(own)));
            }
            Kind::Regex => {
                let regex = own.regex.clone().expect("regex locations have one");
                match regex.bind(&mut cx.registry, own.span) {
                    Ok(groups) => tree.add_regex(regex, groups, child),
                    Err(error) => cx.loader.diags.push(error),
                }
            }
            _ => {}
        }
    }
    tree.finish();
    tree
}

fn duplicate_location(own: &core::Own) -> Error {
    let name = String::from_utf8_lossy(&own.name);
    Error::emerg(own.span, format!("duplicate location \"{name}\""))
}

fn server(levels: &[Confs], level: LocId, locations: &[Location]) -> Server {
    let own = &core_of(levels, level).own;
    let mut named = HashMap::new();
    for &child in &own.locations {
        let inner = &core_of(levels, child).own;
        if inner.kind == Kind::Named {
            // Of several of one name, nginx silently takes the first.
            named.entry(inner.name[..].into()).or_insert(child);
        }
    }
    let settings = ServerSettings::new(&locations[level.index()].core);
    let tls = locations[level.index()].tls.clone();
    Server { location: level, name: own.name.clone(), settings, tls, named, upgrades: false }
}

/// Whether a level, or one within it, may grant a request for another protocol.
fn upgrades(level: LocId, parents: &[LocId], locations: &[Location]) -> bool {
    let is_within = |mut id: LocId| {
        // Parents have smaller numbers.
        while id.index() > level.index() {
            id = parents[id.index()];
        }
        id == level
    };
    locations.iter().any(|location| location.upgrades && is_within(location.id))
}

/// One listener for each address; where a port is listened on at all addresses, the sockets of its
/// single addresses are not opened: connections to them come in there, and find their names by the
/// local address (as in nginx's `ngx_http_init_listening`).
fn listeners(listens: &[(ServerId, Listen, &core::Conf)], cx: &mut Cx<'_, '_>) -> Vec<Listener> {
    let mut by_addr: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut order = Vec::new();
    for (index, (_, listen, _)) in listens.iter().enumerate() {
        let key = listen.addr.to_string();
        let group = by_addr.entry(key.clone()).or_default();
        if group.is_empty() {
            order.push(key);
        }
        group.push(index);
    }
    let mut all: Vec<Listener> = Vec::new();
    for key in &order {
        let group: Vec<_> = by_addr[key].iter().map(|index| &listens[*index]).collect();
        all.push(listener(&group, cx));
    }
    let is_wildcard = |l: &Listener, port| match &l.addr {
        Addr::Tcp(addr) => addr.port() == port && addr.ip().is_unspecified(),
        Addr::Unix(_) => false,
    };
    let mut kept: Vec<Listener> = Vec::new();
    let (wild, single): (Vec<_>, Vec<_>) = all.into_iter().partition(|l| match &l.addr {
        Addr::Tcp(addr) => addr.ip().is_unspecified(),
        Addr::Unix(_) => false,
    });
    kept.extend(wild);
    for listener in single {
        let Addr::Tcp(addr) = listener.addr else {
            kept.push(listener);
            continue;
        };
        let covers = |l: &&mut Listener| {
            let same_family = matches!(&l.addr, Addr::Tcp(a) if a.is_ipv4() == addr.is_ipv4());
            same_family && is_wildcard(l, addr.port())
        };
        match kept.iter_mut().find(covers) {
            Some(wild) => wild.specific.push((addr, listener.names)),
            None => kept.push(listener),
        }
    }
    kept
}

fn listener(group: &[&(ServerId, Listen, &core::Conf)], cx: &mut Cx<'_, '_>) -> Listener {
    let mut names = Names::new(group[0].0);
    let mut options = group[0].1.options.clone();
    let (mut default_seen, mut options_seen) = (false, false);
    let mut http2 = false;
    let mut protocols = Protocols::of(&group[0].1);
    for (index, (server, listen, conf)) in group.iter().enumerate() {
        if index > 0 && protocols.redefine(listen, options_seen) {
            let text = format!("protocol options redefined for {}", listen.addr);
            cx.loader.warn(listen.span, text);
        }
        let mut fail = |text: String| cx.loader.diags.push(Error::emerg(listen.span, text));
        if listen.default_server {
            if default_seen {
                fail(format!("a duplicate default server for {}", listen.addr));
            }
            default_seen = true;
            names.default = *server;
        }
        if listen.options_set {
            if options_seen {
                fail(format!("duplicate listen options for {}", listen.addr));
            }
            options_seen = true;
            options = listen.options.clone();
        }
        http2 |= listen.http2.is_some();
        let unnamed = [ServerName::Exact(Box::default())];
        let list = if conf.own.names.is_empty() { &unnamed[..] } else { &conf.own.names };
        for name in list {
            if let ServerName::Invalid(name) = name {
                if group.len() > 1 {
                    let name = String::from_utf8_lossy(name);
                    let text =
                        format!("invalid server name or wildcard \"{name}\" on {}", listen.addr);
                    cx.loader.diags.push(Error::global(text));
                }
                continue;
            }
            // ngx_http_optimize_servers: the names of an address's only server are not looked at.
            if !names.add(name, *server) && group.len() > 1 {
                let shown = match name {
                    ServerName::Exact(n) => String::from_utf8_lossy(n).into_owned(),
                    ServerName::Suffix(n) => format!("*{}", String::from_utf8_lossy(n)),
                    ServerName::Prefix(n) => format!("{}*", String::from_utf8_lossy(n)),
                    ServerName::Regex(..) | ServerName::Invalid(_) => continue,
                };
                let text =
                    format!("conflicting server name \"{shown}\" on {}, ignored", listen.addr);
                cx.loader.warn(listen.span, text);
            }
        }
    }
    let addr = group[0].1.addr.clone();
    let Protocols { proxy_protocol, ssl, .. } = protocols;
    Listener { addr, options, proxy_protocol, ssl, http2, names, specific: Vec::new() }
}

/// What is spoken at an address, over all its `listen`s (`ngx_http_add_addresses`).
struct Protocols {
    proxy_protocol: bool,
    ssl: bool,
    /// What the first `listen` that settled it says, once one did.
    settled: Option<u8>,
    changed: bool,
}

impl Protocols {
    fn of(listen: &Listen) -> Protocols {
        let &Listen { proxy_protocol, ssl, .. } = listen;
        Protocols { proxy_protocol, ssl, settled: None, changed: false }
    }

    fn bits(proxy_protocol: bool, ssl: bool) -> u8 {
        u8::from(proxy_protocol) | u8::from(ssl) << 1
    }

    /// Adds another `listen`; whether it redefines what was said, which deserves a warning.
    /// `options_set`: an earlier one has socket options.
    fn redefine(&mut self, listen: &Listen, options_set: bool) -> bool {
        let before = Protocols::bits(self.proxy_protocol, self.ssl);
        let now = Protocols::bits(listen.proxy_protocol, listen.ssl);
        self.proxy_protocol |= listen.proxy_protocol;
        self.ssl |= listen.ssl;
        let (added, removed) = (now & !before != 0, before & !now != 0);
        if added {
            let redefined = options_set && !listen.options_set || self.changed || removed;
            (self.settled, self.changed) = (Some(before), true);
            return redefined;
        }
        if removed {
            let redefined = listen.options_set || self.settled.is_some_and(|first| first != now);
            (self.settled, self.changed) = (Some(now), true);
            return redefined;
        }
        let redefined = self.settled.is_some_and(|first| first != now);
        self.settled = Some(now);
        redefined
    }
}

/// Where the servers of an address judge heads differently.
fn mark_heads(listeners: &mut [Listener], servers: &[Server]) {
    let head = |id: ServerId| &servers[id.0 as usize].settings.head;
    for listener in listeners {
        let specific = listener.specific.iter_mut().map(|(_, names)| names);
        for names in specific.chain([&mut listener.names]) {
            let default = head(names.default);
            let differ = names.servers().any(|id| default.differs_behind_host(head(id)));
            names.heads_differ = differ;
        }
    }
}

/// A server that is to speak TLS needs a certificate (`ngx_http_ssl_init`).
fn check_tls(listeners: &[Listener], servers: &[Server], levels: &[Confs], cx: &mut Cx<'_, '_>) {
    let mut fail = |id: ServerId| {
        let span = core_of(levels, servers[id.0 as usize].location).own.span;
        let text = "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive";
        cx.loader.diags.push(Error::emerg(span, text));
    };
    for listener in listeners.iter().filter(|listener| listener.ssl) {
        let all = listener.specific.iter().map(|(_, names)| names).chain([&listener.names]);
        for names in all {
            let tls = |id: ServerId| servers[id.0 as usize].tls.as_deref();
            match tls(names.default) {
                None => fail(names.default),
                Some(default) if default.rejects => {
                    names.servers().filter(|id| tls(*id).is_none()).for_each(&mut fail);
                }
                Some(_) => {}
            }
        }
    }
}

impl Listener {
    /// The names behind the address that a client connected to.
    pub fn names_of(&self, connection: &Connection) -> &Names {
        match &connection.local {
            Peer::Inet(local) if !self.specific.is_empty() => self.names_for(local.ip()),
            _ => &self.names,
        }
    }

    /// The names behind the local address of a connection.
    pub fn names_for(&self, local: IpAddr) -> &Names {
        let is_it = |(addr, _): &&(SocketAddr, Names)| addr.ip() == local;
        self.specific.iter().find(is_it).map_or(&self.names, |(_, names)| names)
    }
}

impl Location {
    fn new(id: LocId, conf: &core::Conf, default_error_log: &ErrorLog) -> Location {
        Location {
            id,
            name: conf.own.name.clone(),
            kind: conf.own.kind,
            span: conf.own.span,
            tls: None,
            core: conf.settings(),
            error_log: conf.own.error_log.clone().unwrap_or_else(|| default_error_log.clone()),
            warn_uninitialized: true,
            auto_redirect: false,
            upgrades: false,
            takes_connect: false,
            tree: Tree::default(),
            limit_except: conf.own.limit_except.clone(),
            post_read: Vec::new(),
            rewrite: Vec::new(),
            preaccess: Vec::new(),
            access: Vec::new(),
            precontent: Vec::new(),
            content: Vec::new(),
            sole_content: None,
            filters: Vec::new(),
            loggers: Vec::new(),
            settings: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn what_is_wrong_within_a_level_is_told_with_its_place() {
        for block in ["limit_except GET", "if ($args)", "location ~ a"] {
            let wrong = format!("{block} {{ proxy_pass http://127.0.0.1/x; }}");
            let error = testing::conf_error(&format!("server {{ location / {{\n{wrong}\n}} }}"));
            assert!(error.contains("\"limit_except\" block in test:2"), "{block}: {error}");
        }
    }

    /// Its messages, without places and hints.
    fn said(conf: &str) -> Vec<String> {
        let error = testing::conf_error(conf);
        let lines = error.lines().filter_map(|line| line.split_once("[emerg] "));
        lines
            .map(|(_, text)| text.rsplit_once(" in test:").map_or(text, |it| it.0).into())
            .collect()
    }

    #[test]
    fn what_is_wrong_within_a_refused_block_is_told_as_well() {
        let unknown = "unknown directive \"retrun\"";
        let server = |text: &str| format!("server {{ {text} }}");
        let cases = [
            (server("location ~ a(  { retrun 200; }"), "pcre2_compile() failed"),
            (server("location = /a b c { retrun 200; }"), "invalid number of arguments"),
            (server("location / { location @a { retrun 200; } }"), "named location \"@a\""),
            (server("if ($args ! b) { retrun 200; }"), "unexpected \"!\" in condition"),
            (server("if { retrun 200; }"), "invalid number of arguments"),
            (server("location / { limit_except G { retrun 200; } }"), "invalid method \"G\""),
            (
                server("location / { server { retrun 200; } }"),
                "\"server\" directive is not allowed",
            ),
            ("server a { retrun 200; }".into(), "invalid number of arguments"),
            ("location / { retrun 200; }".into(), "\"location\" directive is not allowed here"),
            ("upstream { server 127.0.0.1; retrun; }".into(), "invalid number of arguments"),
            (
                "upstream a { server 127.0.0.1; } upstream a { server 127.0.0.2; retrun; }".into(),
                "duplicate upstream \"a\"",
            ),
        ];
        for (conf, first) in cases {
            let said = said(&conf);
            let [own, inner] = &said[..] else { panic!("{conf}: {said:?}") };
            assert!(own.starts_with(first) && inner == unknown, "{conf}: {said:?}");
        }
    }

    #[test]
    fn all_bad_lines_of_a_block_are_told_and_so_are_its_own_arguments() {
        let cases = [
            ("map $args x { a b c; d; }", "invalid variable name \"x\"", "of the map parameters"),
            ("map $args { a b c; d; }", "invalid number of arguments", "of the map parameters"),
            ("geo x { a b; c d; }", "invalid variable name \"x\"", "invalid network"),
            (
                "geo $x { 1.1.1.1 a; ranges; 1.1.1.1-1.1.1.2 a; x b; y b; }",
                "the \"ranges\" directive must be",
                "invalid range",
            ),
            ("split_clients a x { a b; c d; }", "invalid variable name", "invalid percent value"),
            ("charset_map a a { 1; 2; }", "\"charset_map\" between the same", "invalid parameters"),
            ("charset_map a utf-8 { 1; 2; } map $uri x {}", "invalid var", "invalid parameters"),
            ("match { a; b; }", "invalid number of arguments", "unknown directive"),
        ];
        for (conf, own, line) in cases {
            let said = said(conf);
            assert_eq!(said.len(), 3, "{conf}: {said:?}");
            assert_eq!(said.iter().filter(|text| text.starts_with(own)).count(), 1, "{said:?}");
            assert_eq!(said.iter().filter(|text| text.contains(line)).count(), 2, "{said:?}");
        }
    }

    #[test]
    fn what_only_follows_from_a_refused_block_is_not_told() {
        let conf = "map ${ $x { a b; } geo $1a $y { default 1; } \
                    upstream a b { server 127.0.0.1; } \
                    server { location ~ a( { set $z 1; location /b { proxy_pass http://a/$x$y; } \
                    location @c { return 200 $z; } } return 200 $x$y$z; }";
        let said = said(conf);
        assert_eq!(said.len(), 4, "{said:?}");
    }
}
