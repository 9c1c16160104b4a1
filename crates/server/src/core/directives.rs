//! The directives outside `http`: their tables, and the setters that need more than a line.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use forebay_conf::{Arg, Arity, Contexts, Directive, Error, Index, Loader, Node, Spec, value};
use forebay_rt::privileges;
use forebay_session::addr::Cidr;

use super::{Affinity, Core, Events, ThreadPool};

/// The directives outside all blocks, but those that open a block.
const MAIN: &[Directive<Core>] = &[
    row(
        "daemon",
        &["on | off"],
        "on",
        Contexts::MAIN,
        Arity::FLAG,
        "Whether to go to the background.",
        |c, n, _| value::set_flag(&mut c.daemon, n),
    ),
    row(
        "debug_points",
        &["abort | stop"],
        "",
        Contexts::MAIN,
        Arity::ONE,
        "Refused: stopping at internal errors is for nginx's own development.",
        |_, n, _| Err(unsupported(n, "Forebay has no debug points")),
    ),
    row(
        "env",
        &["variable[=value]"],
        "TZ",
        Contexts::MAIN,
        Arity::ONE,
        "A variable that workers keep.",
        env,
    ),
    row(
        "error_log",
        &["file [level]"],
        "logs/error.log error",
        Contexts::MAIN,
        Arity::SOME,
        "Where errors are written, and which.",
        error_log,
    ),
    row(
        "load_module",
        &["file"],
        "",
        Contexts::MAIN,
        Arity::ONE,
        "Refused: modules are built in.",
        load_module,
    ),
    row(
        "lock_file",
        &["file"],
        "logs/nginx.lock",
        Contexts::MAIN,
        Arity::ONE,
        "Changes nothing.",
        |c, n, l| {
            value::set_str(&mut c.ignored.lock_file, n)?;
            no_meaning(n, l, "no lock is needed to accept connections")
        },
    ),
    row(
        "master_process",
        &["on | off"],
        "on",
        Contexts::MAIN,
        Arity::FLAG,
        "Whether a master starts workers; off for one process.",
        |c, n, _| value::set_flag(&mut c.master_process, n),
    ),
    row(
        "pcre_jit",
        &["on | off"],
        "off",
        Contexts::MAIN,
        Arity::FLAG,
        "Changes nothing.",
        |c, n, l| {
            value::set_flag(&mut c.ignored.pcre_jit, n)?;
            no_meaning(n, l, "regular expressions are always compiled")
        },
    ),
    row(
        "pid",
        &["file"],
        "logs/nginx.pid",
        Contexts::MAIN,
        Arity::ONE,
        "The file with the master's id.",
        |c, n, l| {
            value::set_once(&mut c.pid, n, |n| {
                let name = n.arg(0)?.path();
                Ok(if name.as_os_str().is_empty() { name.into() } else { l.full_path(name) })
            })
        },
    ),
    row(
        "ssl_engine",
        &["device"],
        "",
        Contexts::MAIN,
        Arity::ONE,
        "Refused: there is no OpenSSL to load engines into.",
        |_, n, _| Err(unsupported(n, "Forebay has no OpenSSL engines")),
    ),
    row(
        "ssl_object_cache_inheritable",
        &["on | off"],
        "on",
        Contexts::MAIN,
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
        Contexts::MAIN,
        Arity::between(2, 3),
        "Threads for reading and sending files.",
        thread_pool,
    ),
    row(
        "timer_resolution",
        &["interval"],
        "",
        Contexts::MAIN,
        Arity::ONE,
        "Changes nothing.",
        |c, n, l| {
            value::set_msec(&mut c.ignored.timer_resolution, n)?;
            no_meaning(n, l, "reading the clock costs no system call")
        },
    ),
    row(
        "user",
        &["user [group]"],
        "nobody nobody",
        Contexts::MAIN,
        Arity::ONE_OR_TWO,
        "Who workers run as.",
        user,
    ),
    row(
        "worker_cpu_affinity",
        &["cpumask ...", "auto [cpumask]"],
        "",
        Contexts::MAIN,
        Arity::SOME,
        "The CPUs of each worker thread, as masks of bits or one by one.",
        worker_cpu_affinity,
    ),
    row(
        "worker_priority",
        &["number"],
        "0",
        Contexts::MAIN,
        Arity::ONE,
        "The nice value of workers.",
        priority,
    ),
    row(
        "worker_processes",
        &["number | auto"],
        "1",
        Contexts::MAIN,
        Arity::ONE,
        "How many event-loop threads serve.",
        worker_processes,
    ),
    row(
        "worker_rlimit_core",
        &["size"],
        "",
        Contexts::MAIN,
        Arity::ONE,
        "The limit of core files.",
        |c, n, _| value::set_offset(&mut c.worker_rlimit_core, n),
    ),
    row(
        "worker_rlimit_nofile",
        &["number"],
        "",
        Contexts::MAIN,
        Arity::ONE,
        "The limit of open files.",
        |c, n, _| value::set_number(&mut c.worker_rlimit_nofile, n),
    ),
    row(
        "worker_shutdown_timeout",
        &["time"],
        "",
        Contexts::MAIN,
        Arity::ONE,
        "How long a graceful end may take before connections are closed.",
        |c, n, _| value::set_msec(&mut c.worker_shutdown_timeout_ms, n),
    ),
    row(
        "working_directory",
        &["directory"],
        "",
        Contexts::MAIN,
        Arity::ONE,
        "The current directory of workers.",
        |c, n, _| value::set_once(&mut c.working_directory, n, |n| Ok(n.arg(0)?.path().to_owned())),
    ),
];

/// The directives of `events`.
const EVENTS: &[Directive<Core>] = &[
    row(
        "accept_mutex",
        &["on | off"],
        "off",
        Contexts::EVENTS,
        Arity::FLAG,
        "Changes nothing.",
        |c, n, l| {
            value::set_flag(&mut c.ignored.accept_mutex, n)?;
            no_meaning(n, l, "each thread has an accept queue of its own")
        },
    ),
    row(
        "accept_mutex_delay",
        &["time"],
        "500ms",
        Contexts::EVENTS,
        Arity::ONE,
        "Changes nothing.",
        |c, n, l| {
            value::set_msec(&mut c.ignored.accept_mutex_delay, n)?;
            no_meaning(n, l, "each thread has an accept queue of its own")
        },
    ),
    row(
        "debug_connection",
        &["address | CIDR | unix:"],
        "",
        Contexts::EVENTS,
        Arity::ONE,
        "Changes nothing.",
        debug_connection,
    ),
    row(
        "multi_accept",
        &["on | off"],
        "off",
        Contexts::EVENTS,
        Arity::FLAG,
        "Changes nothing.",
        |c, n, l| {
            value::set_flag(&mut c.ignored.multi_accept, n)?;
            no_meaning(n, l, "each thread accepts what is waiting")
        },
    ),
    row("use", &["method"], "", Contexts::EVENTS, Arity::ONE, "Changes nothing.", use_method),
    row(
        "worker_aio_requests",
        &["number"],
        "32",
        Contexts::EVENTS,
        Arity::ONE,
        "Changes nothing.",
        |c, n, l| {
            value::set_number(&mut c.ignored.worker_aio_requests, n)?;
            no_meaning(n, l, "files are read in threads")
        },
    ),
    row(
        "worker_connections",
        &["number"],
        "512",
        Contexts::EVENTS,
        Arity::ONE,
        "How many connections each worker thread may have.",
        worker_connections,
    ),
];

/// `events` and `http`, which open blocks.
const BLOCKS: &[Spec] = &[
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
        if result.is_err() && node.block.is_some() {
            // What is wrong inside is told as well.
            match node.name() {
                "http" => http = http.or(Some(node)),
                "events" => read_events(&mut Core::default(), node, index, loader),
                _ => {}
            }
        }
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
    read_events(core, block, index, loader);
    Ok(())
}

fn read_events(core: &mut Core, block: &Node, index: &Index, loader: &mut Loader<'_>) {
    for node in block.children() {
        let resolved = index.resolve(node, Contexts::EVENTS);
        let result = resolved.and_then(|spec| set(core, EVENTS, spec.name, node, loader));
        loader.diags.take(result);
    }
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

/// A table row.
const fn row(
    name: &'static str,
    syntax: &'static [&'static str],
    default: &'static str,
    contexts: Contexts,
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
    let network = Cidr::parse(&arg.value);
    if let Some((_, true)) = network {
        loader.warn(arg.span, format!("low address bits of {} are meaningless", arg.lossy()));
    }
    let is_known = network.is_some() || arg.is("unix:");
    if !is_known && loader.files.resolve(node.text(0)?).is_err() {
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
