//! From the command line to a running server (nginx: main in nginx.c).
//! Invariant: everything that can fail before the server runs is told on the terminal.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use forebay_conf::{Sources, dump};
use forebay_rt::errno::Errno;
use forebay_rt::listen::Addr;
use forebay_rt::signals::Signals;
use forebay_rt::{inherit, privileges, process, systemd, title};
use forebay_session::log::Severity;

use crate::cli::{self, Command, Options};
use crate::cycle::Cycle;
use crate::load::Request;
use crate::log::Log;
use crate::master::{Launch, Master, Outcome};
use crate::paths::Paths;
use crate::single::Single;
use crate::site::Site;
use crate::sockets::{Inherited, Purpose};
use crate::{builtin, control, format, pid, version, worker};

/// Does what the arguments say; answers the exit code.
pub fn main(argv: Vec<OsString>) -> i32 {
    match cli::parse(&argv) {
        Ok(Command::Nginx(options)) => nginx(argv, &options),
        Ok(Command::Welcome) => welcome(),
        Ok(Command::Serve { dir, listen }) => serve(&dir, listen),
        Ok(Command::Fmt { check, files }) => format::run(&files, check),
        Ok(Command::Help) => {
            print!("{}", version::help());
            0
        }
        Err(problem) => {
            eprintln!("nginx: {problem}");
            1
        }
    }
}

fn nginx(argv: Vec<OsString>, options: &Options) -> i32 {
    if options.version {
        show_version(options);
        if !options.test {
            return 0;
        }
    }
    let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let paths = Paths::new(options, &cwd, |path| path.exists());
    let log = Log::startup(paths.error_log.as_deref()).quiet(options.quiet);
    let request = Request { paths, globals: options.globals.clone(), embedded: None };
    // main() of nginx: who asks for a test sends no signal.
    if options.test {
        return test(&request, options, &log);
    }
    if let Some(control) = options.signal {
        return control::send(control, &request, &log);
    }
    start(argv, &request, log)
}

fn show_version(options: &Options) {
    let mut text = version::version_line();
    if options.help {
        text.push_str(&version::usage());
    }
    if options.configure {
        text.push_str(&version::configuration(Site::has_module));
    }
    eprint!("{text}");
}

/// `-t` and `-T`.
fn test(request: &Request, options: &Options, log: &Log) -> i32 {
    let conf = request.paths.conf.display();
    let mut dumped = Vec::new();
    let mut loaded = |sources: &Sources| {
        if !options.quiet {
            eprintln!("nginx: the configuration file {conf} syntax is ok");
        }
        if options.dump {
            dumped = dump::dump(sources);
        }
    };
    let made = Cycle::make(request, None, &mut Vec::new(), Purpose::Test, &mut loaded, log);
    let Some(cycle) = made else {
        eprintln!("nginx: configuration file {conf} test failed");
        return 1;
    };
    // What the test itself made.
    cycle.sockets.unlink_missing_from(None);
    if !options.quiet {
        eprintln!("nginx: configuration file {conf} test is successful");
    }
    // A reader that stops early (`-T | head`) has what it wanted.
    let _ = io::stdout().write_all(&dumped);
    0
}

fn start(argv: Vec<OsString>, request: &Request, log: Log) -> i32 {
    let (mut inherited, upgraded) = inherited(&log);
    let Some(signals) = take_signals(&log) else { return 1 };
    let parent = process::parent();
    let purpose = Purpose::Serve;
    let made = Cycle::make(request, None, &mut inherited, purpose, &mut |_| {}, &log);
    let Some(mut cycle) = made else { return 1 };
    // Sockets that the configuration does not name are closed here, and the log of the start.
    drop((inherited, log));
    let single = cycle.core.master_process == Some(false);
    let mut daemonized = upgraded;
    if !upgraded && cycle.core.daemon != Some(false) {
        if let Err(err) = process::daemonize() {
            cycle.log.emerg(format_args!("fork() failed ({})", Errno(&err)));
            return 1;
        }
        daemonized = true;
    }
    if !pid::create(&cycle.pid, &cycle.log) {
        return 1;
    }
    cycle.redirect_stderr();
    cycle.log = cycle.log.off_terminal();
    tell_system(&cycle.log);
    if single {
        return run_single(cycle, signals, true);
    }
    if let Err(err) = title::init() {
        cycle.log.write(Severity::Info, format_args!("no process titles: {err}"));
    }
    let program = argv.first().map_or("forebay", |name| cli::program_name(name));
    let launch = Launch { argv, program, daemonized, inherited: upgraded, parent };
    // The master is gone when this returns in a worker, with all that it has open.
    match Master::new(launch, cycle, signals).run() {
        Outcome::Exit(code) => code,
        Outcome::Worker(start) => worker::run(*start),
    }
}

/// What nginx logs of itself and the system when it starts (ngx_os_status).
fn tell_system(log: &Log) {
    log.tell_event_method();
    log.notice(format_args!("nginx/{} (forebay/{})", version::NGINX, version::FOREBAY));
    log.notice(format_args!("built by {}", version::COMPILER));
    let of_kernel = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    if let (Ok(name), Ok(release)) = (of_kernel("ostype"), of_kernel("osrelease")) {
        log.notice(format_args!("OS: {} {}", name.trim_end(), release.trim_end()));
    }
    match privileges::nofile_limits() {
        Ok((soft, hard)) => log.notice(format_args!("getrlimit(RLIMIT_NOFILE): {soft}:{hard}")),
        Err(err) => log.alert(format_args!("getrlimit(RLIMIT_NOFILE) failed ({})", Errno(&err))),
    }
}

/// Sockets from a binary that is being upgraded, or from systemd; and whether it was the former.
fn inherited(log: &Log) -> (Inherited, bool) {
    let variable = |name: &str| std::env::var(name).ok();
    let nginx = variable(inherit::VARIABLE).filter(|value| !value.is_empty());
    let numbers: Vec<RawFd> = match &nginx {
        Some(value) => {
            log.notice(format_args!("using inherited sockets from \"{value}\""));
            let (numbers, problem) = inherit::parse_nginx_variable(value);
            if let Some(problem) = problem {
                log.emerg(problem);
            }
            numbers
        }
        None => {
            let (pid, fds) = (variable("LISTEN_PID"), variable("LISTEN_FDS"));
            systemd::listen_fds(pid.as_deref(), fds.as_deref(), process::pid())
        }
    };
    let mut sockets = Inherited::new();
    for (number, result) in inherit::adopt(&numbers) {
        match result {
            Ok(socket) => sockets.push(socket),
            Err(err) => {
                log.alert(format_args!("inherited socket #{number} ignored ({})", Errno(&err)));
            }
        }
    }
    (sockets, nginx.is_some())
}

/// Signals are taken over before anything is opened: who sees that we listen may send one.
fn take_signals(log: &Log) -> Option<Signals> {
    let taken = Signals::take();
    taken.inspect_err(|err| log.alert(format_args!("signalfd() failed ({})", Errno(err)))).ok()
}

fn run_single(cycle: Cycle, signals: Signals, has_pid_file: bool) -> i32 {
    let log = cycle.log.clone();
    match Single::start(cycle, signals, has_pid_file) {
        Ok(single) => single.run(),
        Err(err) => {
            log.alert(format_args!("could not start threads ({})", Errno(&err)));
            1
        }
    }
}

fn welcome() -> i32 {
    let log = Log::startup(None);
    match builtin::free_port() {
        Ok((addr, socket)) => {
            let listen = addr.to_string();
            let inherited = vec![(Addr::Tcp(addr), socket)];
            let request = builtin::welcome(&listen);
            run_builtin(&request, inherited, "its welcome page", &builtin::url(&listen), &log)
        }
        Err(err) => {
            log.emerg(format_args!("no free loopback port ({})", Errno(&err)));
            1
        }
    }
}

fn serve(dir: &Path, listen: Option<String>) -> i32 {
    let log = Log::startup(None);
    let found = dir.canonicalize().and_then(|dir| match dir.is_dir() {
        true => Ok(dir),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    let dir = match found {
        Ok(dir) => dir,
        Err(err) => {
            log.emerg(format_args!("cannot serve \"{}\" ({})", dir.display(), Errno(&err)));
            return 1;
        }
    };
    let (listen, inherited) = match listen {
        Some(listen) => (listen, Vec::new()),
        None => match builtin::free_port() {
            Ok((addr, socket)) => (addr.to_string(), vec![(Addr::Tcp(addr), socket)]),
            Err(err) => {
                log.emerg(format_args!("no free loopback port ({})", Errno(&err)));
                return 1;
            }
        },
    };
    let what = dir.display().to_string();
    run_builtin(&builtin::folder(&dir, &listen), inherited, &what, &builtin::url(&listen), &log)
}

fn run_builtin(
    request: &Request,
    mut inherited: Inherited,
    what: &str,
    url: &str,
    log: &Log,
) -> i32 {
    let purpose = Purpose::Serve;
    let Some(signals) = take_signals(log) else { return 1 };
    match Cycle::make(request, None, &mut inherited, purpose, &mut |_| {}, log) {
        Some(cycle) => {
            print!("{}", builtin::banner(what, url));
            let _ = io::stdout().flush();
            run_single(cycle, signals, false)
        }
        None => 1,
    }
}
