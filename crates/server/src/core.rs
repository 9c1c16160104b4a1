//! The directives outside `http` (nginx: ngx_core_module in nginx.c, ngx_events_module and
//! ngx_event_core_module in ngx_event.c, ngx_thread_pool_module).
//!
//! What has no meaning here (`use`, `accept_mutex`, `pcre_jit` …) is checked, accepted, and told
//! of in an info line; what nginx can and Forebay must not (`load_module`, `debug_points`) is
//! refused.
//!
//! Invariant: settings only; nothing is opened and no process changed here.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use forebay_conf::{Arg, Arity, Contexts, Directive, Error, Index, Loader, Node, Spec, value};
use forebay_rt::affinity;
use forebay_rt::privileges::{self, Identity};
use forebay_session::addr::Cidr;
use forebay_session::log::{ErrorLog, LogSet};

/// The settings; `None` where the configuration says nothing.
#[derive(Debug, Default)]
pub struct Core {
    /// `daemon`.
    pub daemon: Option<bool>,
    /// `master_process`.
    pub master_process: Option<bool>,
    /// `pid`, a full name.
    pub pid: Option<PathBuf>,
    /// `worker_processes`: event-loop threads; `Some(None)` is `auto`.
    pub worker_processes: Option<Option<usize>>,
    /// `user`; found when the directive is read.
    pub user: Option<Identity>,
    /// `worker_priority`, a nice value.
    pub worker_priority: Option<i32>,
    /// `worker_cpu_affinity`.
    pub worker_cpu_affinity: Option<Affinity>,
    /// `worker_rlimit_nofile`, files for each thread.
    pub worker_rlimit_nofile: Option<u64>,
    /// `worker_rlimit_core`, bytes.
    pub worker_rlimit_core: Option<u64>,
    /// `worker_shutdown_timeout`, milliseconds.
    pub worker_shutdown_timeout_ms: Option<u64>,
    /// `working_directory`.
    pub working_directory: Option<PathBuf>,
    /// `env`: names, each with a value unless the one at hand is kept.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// `thread_pool`.
    pub thread_pools: Vec<ThreadPool>,
    /// `events`, once it is there.
    pub events: Option<Events>,
    /// `error_log`.
    pub error_log: Option<ErrorLog>,
    /// One of the error logs is standard error.
    pub logs_to_stderr: bool,
    /// The files of `error_log`.
    pub logs: LogSet,
    ignored: Ignored,
}

/// What is read to be checked, and changes nothing.
#[derive(Debug, Default)]
struct Ignored {
    accept_mutex: Option<bool>,
    accept_mutex_delay: Option<u64>,
    lock_file: Option<String>,
    multi_accept: Option<bool>,
    pcre_jit: Option<bool>,
    ssl_object_cache_inheritable: Option<bool>,
    timer_resolution: Option<u64>,
    use_method: Option<()>,
    worker_aio_requests: Option<u64>,
}

/// `events`.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// `worker_connections`, for each thread.
    pub worker_connections: Option<u64>,
}

/// `worker_cpu_affinity`; CPUs are numbered from zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// For each thread its CPUs; the last holds for the threads that follow.
    Masks(Vec<Vec<usize>>),
    /// Each thread gets one of these CPUs, in turn; of all that may be used if none are named.
    Auto(Option<Vec<usize>>),
}

/// `thread_pool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPool {
    /// Its name.
    pub name: String,
    /// `threads`.
    pub threads: usize,
    /// `max_queue`, tasks.
    pub max_queue: usize,
}

/// What a worker is made with and cannot change later: a reload that changes any of it starts a
/// new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Who it runs as; `None` stays who the master is.
    pub user: Option<Identity>,
    /// Whether it may use addresses that are not of this machine, all the same.
    pub transparent: bool,
    /// Its environment.
    pub env: Vec<(OsString, Option<OsString>)>,
}

/// How much a worker may use, which changes with a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Event-loop threads.
    pub threads: usize,
    /// Connections of each thread.
    pub connections: u64,
    /// CPUs of each thread.
    pub affinity: Option<Affinity>,
}

/// Limits of a worker process that the configuration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RLimits {
    /// Open files.
    pub nofile: Option<u64>,
    /// Bytes of a core file.
    pub core: Option<u64>,
}

impl Core {
    /// Event-loop threads.
    pub fn threads(&self) -> usize {
        match self.worker_processes {
            None => 1,
            Some(None) => affinity::online(),
            Some(Some(count)) => count,
        }
    }

    /// What a worker is made with.
    pub fn fixed(&self, transparent: bool) -> Fixed {
        let user = self.user.clone().filter(|_| privileges::is_root());
        Fixed { transparent: transparent && user.is_some(), user, env: self.env.clone() }
    }

    /// How much a worker may use.
    pub fn scale(&self) -> Scale {
        let affinity = self.worker_cpu_affinity.clone();
        Scale { threads: self.threads(), connections: self.connections(), affinity }
    }

    /// Its limits.
    ///
    /// DIFFERS(nofile-per-thread): nginx's limit is that of a process with one event loop; ours has
    /// several, each of which may have as many.
    pub fn limits(&self) -> RLimits {
        let threads = self.threads() as u64;
        let nofile = self.worker_rlimit_nofile.map(|files| files.saturating_mul(threads));
        RLimits { nofile, core: self.worker_rlimit_core }
    }

    /// `worker_connections`, with its default.
    pub fn connections(&self) -> u64 {
        self.events.as_ref().and_then(|events| events.worker_connections).unwrap_or(512)
    }

    /// Without `user`, a master with privileges gives its worker to `nobody`, in the group that
    /// the system has for it (nginx's `configure` looks it up).
    pub fn default_user(&mut self) -> Result<(), Error> {
        if self.user.is_none() && privileges::is_root() {
            let found = privileges::lookup("nobody", None)
                .or_else(|_| privileges::lookup("nobody", Some("nogroup")));
            self.user = Some(found.map_err(|err| Error::global(err.to_string()))?);
        }
        Ok(())
    }

    /// The environment of workers (ngx_set_environment): what `env` names, and `TZ`.
    pub fn environment(
        &self,
        current: impl Iterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let current: BTreeMap<OsString, OsString> = current.collect();
        let tz = (OsString::from("TZ"), None);
        let has_tz = self.env.iter().any(|(name, _)| *name == tz.0);
        let named = (!has_tz).then_some(&tz).into_iter().chain(&self.env);
        let value = |(name, value): &(OsString, Option<OsString>)| {
            let value = value.clone().or_else(|| current.get(name).cloned())?;
            Some((name.clone(), value))
        };
        named.filter_map(value).collect()
    }

    /// What nginx says about settings that do not fit each other; called when all are read.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        // ngx_core_module_init_conf.
        if let Some(Affinity::Masks(masks)) = &self.worker_cpu_affinity
            && masks.len() != 1
            && masks.len() != self.threads()
        {
            remarks.push(
                "the number of \"worker_processes\" is not equal to the number of \
                 \"worker_cpu_affinity\" masks, using last mask for remaining worker processes"
                    .to_string(),
            );
        }
        // ngx_event_module_init: a limit of its own matters only where the present one is short.
        let connections = self.connections();
        if let Ok(present) = privileges::nofile()
            && connections > present
            && self.worker_rlimit_nofile.is_none_or(|limit| connections > limit)
        {
            let limit = self.worker_rlimit_nofile.unwrap_or(present);
            remarks.push(format!(
                "{connections} worker_connections exceed open file resource limit: {limit}"
            ));
        }
        remarks
    }
}

impl Affinity {
    /// The CPUs of a thread, by its number; empty for no binding (ngx_get_cpu_affinity).
    pub fn cpus(&self, thread: usize, allowed: &[usize]) -> Vec<usize> {
        match self {
            Affinity::Masks(masks) => {
                masks.get(thread).or(masks.last()).cloned().unwrap_or_default()
            }
            Affinity::Auto(mask) => {
                let cpus = mask.as_deref().unwrap_or(allowed);
                cpus.get(thread % cpus.len().max(1)).copied().into_iter().collect()
            }
        }
    }
}

/// The directives outside all blocks, but those that open a block.
pub const MAIN: &[Directive<Core>] = &[
    row(
        "daemon",
        &["on | off"],
        "on",
        Arity::FLAG,
        "Whether to go to the background.",
        |c, n, _| value::set_flag(&mut c.daemon, n),
    ),
    row(
        "debug_points",
        &["abort | stop"],
        "",
        Arity::ONE,
        "Refused: stopping at internal errors is for nginx's own development.",
        |_, n, _| Err(unsupported(n, "Forebay has no debug points")),
    ),
    row("env", &["variable[=value]"], "TZ", Arity::ONE, "A variable that workers keep.", env),
    row(
        "error_log",
        &["file [level]"],
        "logs/error.log error",
        Arity::SOME,
        "Where errors are written, and which.",
        error_log,
    ),
    row("load_module", &["file"], "", Arity::ONE, "Refused: modules are built in.", load_module),
    row("lock_file", &["file"], "logs/nginx.lock", Arity::ONE, "Changes nothing.", |c, n, l| {
        value::set_str(&mut c.ignored.lock_file, n)?;
        no_meaning(n, l, "no lock is needed to accept connections")
    }),
    row(
        "master_process",
        &["on | off"],
        "on",
        Arity::FLAG,
        "Whether a master starts workers; off for one process.",
        |c, n, _| value::set_flag(&mut c.master_process, n),
    ),
    row("pcre_jit", &["on | off"], "off", Arity::FLAG, "Changes nothing.", |c, n, l| {
        value::set_flag(&mut c.ignored.pcre_jit, n)?;
        no_meaning(n, l, "regular expressions are always compiled")
    }),
    row(
        "pid",
        &["file"],
        "logs/nginx.pid",
        Arity::ONE,
        "The file with the master's id.",
        |c, n, l| value::set_once(&mut c.pid, n, |n| Ok(l.full_path(n.arg(0)?.path()))),
    ),
    row(
        "ssl_engine",
        &["device"],
        "",
        Arity::ONE,
        "Refused: there is no OpenSSL to load engines into.",
        |_, n, _| Err(unsupported(n, "Forebay has no OpenSSL engines")),
    ),
    row(
        "ssl_object_cache_inheritable",
        &["on | off"],
        "on",
        Arity::FLAG,
        "Changes nothing.",
        |c, n, l| {
            value::set_flag(&mut c.ignored.ssl_object_cache_inheritable, n)?;
            no_meaning(n, l, "files are read anew at each reload")
        },
    ),
    row(
        "thread_pool",
        &["name threads=number [max_queue=number]"],
        "default threads=32 max_queue=65536",
        Arity::between(2, 3),
        "Threads for reading and sending files.",
        thread_pool,
    ),
    row("timer_resolution", &["interval"], "", Arity::ONE, "Changes nothing.", |c, n, l| {
        value::set_msec(&mut c.ignored.timer_resolution, n)?;
        no_meaning(n, l, "reading the clock costs no system call")
    }),
    row("user", &["user [group]"], "nobody nobody", Arity::ONE_OR_TWO, "Who workers run as.", user),
    row(
        "worker_cpu_affinity",
        &["cpumask ...", "auto [cpumask]"],
        "",
        Arity::SOME,
        "The CPUs of each worker thread, as masks of bits or one by one.",
        worker_cpu_affinity,
    ),
    row("worker_priority", &["number"], "0", Arity::ONE, "The nice value of workers.", priority),
    row(
        "worker_processes",
        &["number | auto"],
        "1",
        Arity::ONE,
        "How many event-loop threads serve.",
        worker_processes,
    ),
    row("worker_rlimit_core", &["size"], "", Arity::ONE, "The limit of core files.", |c, n, _| {
        value::set_offset(&mut c.worker_rlimit_core, n)
    }),
    row(
        "worker_rlimit_nofile",
        &["number"],
        "",
        Arity::ONE,
        "The limit of open files.",
        |c, n, _| value::set_number(&mut c.worker_rlimit_nofile, n),
    ),
    row(
        "worker_shutdown_timeout",
        &["time"],
        "",
        Arity::ONE,
        "How long a graceful end may take before connections are closed.",
        |c, n, _| value::set_msec(&mut c.worker_shutdown_timeout_ms, n),
    ),
    row(
        "working_directory",
        &["directory"],
        "",
        Arity::ONE,
        "The current directory of workers.",
        |c, n, _| value::set_once(&mut c.working_directory, n, |n| Ok(n.arg(0)?.path().to_owned())),
    ),
];

/// The directives of `events`.
pub const EVENTS: &[Directive<Core>] = &[
    event("accept_mutex", &["on | off"], "off", Arity::FLAG, "Changes nothing.", |c, n, l| {
        value::set_flag(&mut c.ignored.accept_mutex, n)?;
        no_meaning(n, l, "each thread has an accept queue of its own")
    }),
    event("accept_mutex_delay", &["time"], "500ms", Arity::ONE, "Changes nothing.", |c, n, l| {
        value::set_msec(&mut c.ignored.accept_mutex_delay, n)?;
        no_meaning(n, l, "each thread has an accept queue of its own")
    }),
    event(
        "debug_connection",
        &["address | CIDR | unix:"],
        "",
        Arity::ONE,
        "Changes nothing.",
        debug_connection,
    ),
    event("multi_accept", &["on | off"], "off", Arity::FLAG, "Changes nothing.", |c, n, l| {
        value::set_flag(&mut c.ignored.multi_accept, n)?;
        no_meaning(n, l, "each thread accepts what is waiting")
    }),
    event("use", &["method"], "", Arity::ONE, "Changes nothing.", use_method),
    event("worker_aio_requests", &["number"], "32", Arity::ONE, "Changes nothing.", |c, n, l| {
        value::set_number(&mut c.ignored.worker_aio_requests, n)?;
        no_meaning(n, l, "files are read in threads")
    }),
    event(
        "worker_connections",
        &["number"],
        "512",
        Arity::ONE,
        "How many connections each worker thread may have.",
        worker_connections,
    ),
];

/// `events` and `http`, which open blocks.
pub const BLOCKS: &[Spec] = &[
    Spec {
        name: "events",
        syntax: &[""],
        default: "",
        contexts: Contexts::MAIN,
        arity: Arity::BLOCK,
        doc: "Settings of connection processing.",
    },
    Spec {
        name: "http",
        syntax: &[""],
        default: "",
        contexts: Contexts::MAIN,
        arity: Arity::BLOCK,
        doc: "The HTTP server.",
    },
];

/// All that stands outside `http`, for the index and the reference.
pub fn specs() -> impl Iterator<Item = &'static Spec> {
    MAIN.iter().chain(EVENTS).map(|directive| &directive.spec).chain(BLOCKS)
}

/// Takes the nodes outside all blocks; answers the `http` block. What is wrong goes to the
/// loader's diagnostics.
pub fn load_main<'n>(
    core: &mut Core,
    nodes: &'n [Node],
    index: &Index,
    loader: &mut Loader<'_>,
) -> Option<&'n Node> {
    let mut http = None;
    for node in nodes {
        let result = index.resolve(node, Contexts::MAIN).and_then(|spec| match spec.name {
            "events" => events(core, node, index, loader),
            "http" if http.is_some() => Err(value::duplicate(node)),
            "http" => {
                http = Some(node);
                Ok(())
            }
            name => set(core, MAIN, name, node, loader),
        });
        loader.diags.take(result);
    }
    http
}

type Done = Result<(), Error>;

fn events(core: &mut Core, block: &Node, index: &Index, loader: &mut Loader<'_>) -> Done {
    if core.events.is_some() {
        return Err(value::duplicate(block));
    }
    core.events = Some(Events::default());
    for node in block.children() {
        let resolved = index.resolve(node, Contexts::EVENTS);
        let result = resolved.and_then(|spec| set(core, EVENTS, spec.name, node, loader));
        loader.diags.take(result);
    }
    Ok(())
}

fn set(
    core: &mut Core,
    table: &[Directive<Core>],
    name: &str,
    node: &Node,
    loader: &mut Loader<'_>,
) -> Done {
    // The index was made of these tables, so the name is there.
    match table.iter().find(|directive| directive.spec.name == name) {
        Some(directive) => (directive.set)(core, node, loader),
        None => Err(index_error(node)),
    }
}

fn index_error(node: &Node) -> Error {
    Error::emerg(node.span, format!("unknown directive \"{}\"", node.name.lossy()))
}

const fn row(
    name: &'static str,
    syntax: &'static [&'static str],
    default: &'static str,
    arity: Arity,
    doc: &'static str,
    set: fn(&mut Core, &Node, &mut Loader<'_>) -> Done,
) -> Directive<Core> {
    in_context(Contexts::MAIN, name, syntax, default, arity, doc, set)
}

const fn event(
    name: &'static str,
    syntax: &'static [&'static str],
    default: &'static str,
    arity: Arity,
    doc: &'static str,
    set: fn(&mut Core, &Node, &mut Loader<'_>) -> Done,
) -> Directive<Core> {
    in_context(Contexts::EVENTS, name, syntax, default, arity, doc, set)
}

const fn in_context(
    contexts: Contexts,
    name: &'static str,
    syntax: &'static [&'static str],
    default: &'static str,
    arity: Arity,
    doc: &'static str,
    set: fn(&mut Core, &Node, &mut Loader<'_>) -> Done,
) -> Directive<Core> {
    Directive { spec: Spec { name, syntax, default, contexts, arity, doc }, set }
}

fn no_meaning(node: &Node, loader: &mut Loader<'_>, why: &str) -> Done {
    let name = node.name.lossy();
    loader.info(node.span, format!("\"{name}\" changes nothing here: {why}"));
    Ok(())
}

fn unsupported(node: &Node, why: &str) -> Error {
    node.error("is not supported").with_hint(why)
}

fn at(arg: &Arg, text: String) -> Error {
    Error::emerg(arg.span, text)
}

/// ngx_set_env.
fn env(c: &mut Core, node: &Node, _: &mut Loader<'_>) -> Done {
    let text = &node.arg(0)?.value;
    let os = |bytes: &[u8]| OsStr::from_bytes(bytes).to_os_string();
    c.env.push(match text.iter().position(|byte| *byte == b'=') {
        Some(end) => (os(&text[..end]), Some(os(&text[end + 1..]))),
        None => (os(text), None),
    });
    Ok(())
}

fn error_log(c: &mut Core, node: &Node, loader: &mut Loader<'_>) -> Done {
    c.logs_to_stderr |= node.arg(0)?.is("stderr");
    c.logs.error_log(&mut c.error_log, node, loader)
}

/// DIFFERS(load-module): nginx loads the module; one that is built in here is loaded already,
/// another has no way in.
fn load_module(_: &mut Core, node: &Node, _: &mut Loader<'_>) -> Done {
    Err(unsupported(node, "Forebay's modules are built in; remove this line"))
}

/// ngx_thread_pool.
fn thread_pool(c: &mut Core, node: &Node, _: &mut Loader<'_>) -> Done {
    let name = node.text(0)?.to_string();
    if c.thread_pools.iter().any(|pool| pool.name == name) {
        return Err(at(node.arg(0)?, format!("duplicate thread pool \"{name}\"")));
    }
    let (mut threads, mut max_queue) = (0, 65_536);
    for arg in &node.args[1..] {
        let positive = |text: &[u8], least: u64| {
            value::number(text).filter(|count| *count >= least).and_then(|n| n.try_into().ok())
        };
        if let Some(text) = arg.after("threads=") {
            threads = positive(text, 1)
                .ok_or_else(|| at(arg, format!("invalid threads value \"{}\"", arg.lossy())))?;
        } else if let Some(text) = arg.after("max_queue=") {
            max_queue = positive(text, 0)
                .ok_or_else(|| at(arg, format!("invalid max_queue value \"{}\"", arg.lossy())))?;
        }
    }
    if threads == 0 {
        let text = format!("\"{}\" must have \"threads\" parameter", node.name.lossy());
        return Err(Error::emerg(node.span, text));
    }
    c.thread_pools.push(ThreadPool { name, threads, max_queue });
    Ok(())
}

/// ngx_set_user.
fn user(c: &mut Core, node: &Node, loader: &mut Loader<'_>) -> Done {
    if c.user.is_some() {
        return Err(value::duplicate(node));
    }
    if !privileges::is_root() {
        loader.warn(
            node.span,
            "the \"user\" directive makes sense only if the master process runs with \
             super-user privileges, ignored",
        );
        return Ok(());
    }
    let group = node.args.get(1).map(Arg::text).transpose()?;
    let found = privileges::lookup(node.text(0)?, group);
    c.user = Some(found.map_err(|err| Error::emerg(node.span, err.to_string()))?);
    Ok(())
}

/// ngx_set_cpu_affinity.
fn worker_cpu_affinity(c: &mut Core, node: &Node, _: &mut Loader<'_>) -> Done {
    if c.worker_cpu_affinity.is_some() {
        return Err(value::duplicate(node));
    }
    c.worker_cpu_affinity = Some(if node.arg(0)?.is("auto") {
        match node.args.len() {
            1 => Affinity::Auto(None),
            2 => Affinity::Auto(Some(mask(&node.args[1])?)),
            _ => return Err(node.wrong_count()),
        }
    } else {
        Affinity::Masks(node.args.iter().map(mask).collect::<Result<_, _>>()?)
    });
    Ok(())
}

/// Bits from the right; spaces between them are for the reader.
fn mask(arg: &Arg) -> Result<Vec<usize>, Error> {
    if arg.value.len() > MAX_CPUS {
        let text = format!("\"worker_cpu_affinity\" supports up to {MAX_CPUS} CPUs only");
        return Err(at(arg, text));
    }
    let (mut cpus, mut cpu) = (Vec::new(), 0);
    for byte in arg.value.iter().rev() {
        match byte {
            b' ' => continue,
            b'0' => {}
            b'1' => cpus.push(cpu),
            other => {
                let shown = String::from_utf8_lossy(std::slice::from_ref(other)).into_owned();
                let text = format!("invalid character \"{shown}\" in \"worker_cpu_affinity\"");
                return Err(at(arg, text));
            }
        }
        cpu += 1;
    }
    Ok(cpus)
}

/// ngx_set_priority.
fn priority(c: &mut Core, node: &Node, _: &mut Loader<'_>) -> Done {
    value::set_once(&mut c.worker_priority, node, |node| {
        let text = &node.arg(0)?.value;
        let (sign, digits) = match text.first() {
            Some(b'-') => (-1, &text[1..]),
            Some(b'+') => (1, &text[1..]),
            _ => (1, &text[..]),
        };
        let number = value::number(digits).and_then(|number| i32::try_from(number).ok());
        Ok(sign * number.ok_or_else(|| node.error("invalid number"))?)
    })
}

/// ngx_set_worker_processes.
///
/// DIFFERS(worker-processes-zero): nginx takes 0 and then has nobody to serve.
fn worker_processes(c: &mut Core, node: &Node, _: &mut Loader<'_>) -> Done {
    value::set_once(&mut c.worker_processes, node, |node| {
        if node.arg(0)?.is("auto") {
            return Ok(None);
        }
        let count = value::number(&node.arg(0)?.value).and_then(|count| count.try_into().ok());
        match count {
            Some(count @ 1..=MAX_THREADS) => Ok(Some(count)),
            Some(0) | None => Err(node.error("invalid value")),
            Some(_) => Err(node.error(format!("value must not exceed {MAX_THREADS}"))),
        }
    })
}

/// ngx_event_debug_connection.
fn debug_connection(_: &mut Core, node: &Node, loader: &mut Loader<'_>) -> Done {
    let arg = node.arg(0)?;
    let known = arg.is("unix:") || Cidr::parse(&arg.value).is_some();
    if !known && loader.files.resolve(node.text(0)?).is_err() {
        return Err(at(arg, format!("host not found in debug_connection \"{}\"", arg.lossy())));
    }
    no_meaning(node, loader, "there is no debugging log by address")
}

/// ngx_event_use.
fn use_method(c: &mut Core, node: &Node, loader: &mut Loader<'_>) -> Done {
    value::set_once(&mut c.ignored.use_method, node, |node| {
        let name = node.arg(0)?;
        match ["epoll", "poll", "select"].iter().any(|known| name.is(known)) {
            true => Ok(()),
            false => Err(at(name, format!("invalid event type \"{}\"", name.lossy()))),
        }
    })?;
    no_meaning(node, loader, "the engine waits by epoll")
}

/// ngx_event_connections.
fn worker_connections(c: &mut Core, node: &Node, _: &mut Loader<'_>) -> Done {
    let events = c.events.get_or_insert_default();
    value::set_once(&mut events.worker_connections, node, |node| {
        let arg = node.arg(0)?;
        value::number(&arg.value)
            .ok_or_else(|| at(arg, format!("invalid number \"{}\"", arg.lossy())))
    })
}

/// CPU_SETSIZE of the C library.
const MAX_CPUS: usize = 1024;
/// More than any machine has cores; a slip of the finger must not start a million threads.
const MAX_THREADS: usize = 1024;

#[cfg(test)]
mod tests;
