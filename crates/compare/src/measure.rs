//! One row, measured: rounds in turn on all servers, which are pinned to one core, the load to another.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_testkit::{Server, process};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::contender::{self, Contender, Who};
use crate::http2;
use crate::load;
use crate::rows::{Load, Row, Setting};
use crate::tls;

const WARM_UP: Duration = Duration::from_secs(1);
/// The part of nginx's speed at which response times are compared.
const STEADY_SHARE: f64 = 0.7;
/// How many downloads stall.
const STALLED: usize = 1_000;
/// How often each size is uploaded in a round.
const UPLOADS_PER_ROUND: usize = 200;

/// What one round found on one server.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Requests a second; 0 for a row of idle connections.
    pub per_second: f64,
    /// What the row is about: processor time per request in microseconds, another time in
    /// microseconds, or bytes per connection.
    pub cost: f64,
    /// 99th percentile of the response time, in microseconds.
    pub p99_us: f64,
    /// Responses that were not what was asked for.
    pub errors: u64,
}

/// All rounds of a row.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Which row.
    pub row: Row,
    /// In order of the rounds.
    pub rounds: BTreeMap<Who, Vec<Round>>,
}

impl Round {
    fn of(load: &load::Load, cost: f64) -> Round {
        Round { per_second: load.per_second, cost, p99_us: load.p99_us, errors: load.errors }
    }
}

impl Measured {
    /// The rounds of one server; none if it did not run.
    pub fn of(&self, who: Who) -> &[Round] {
        self.rounds.get(&who).map_or(&[], Vec::as_slice)
    }
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The binaries: nginx, Forebay.
    pub nginx: PathBuf,
    /// See `nginx`.
    pub forebay: PathBuf,
    /// HAProxy, if it is installed.
    pub haproxy: Option<PathBuf>,
    /// wrk.
    pub wrk: PathBuf,
    /// h2load, if it is installed.
    pub h2load: Option<PathBuf>,
    /// openssl, if it is installed.
    pub openssl: Option<PathBuf>,
    /// Rounds per row and server.
    pub rounds: u32,
    /// Length of a round.
    pub time: Duration,
    /// Connections of wrk.
    pub connections: u32,
    /// Idle connections.
    pub idle: usize,
    /// Whether the [floor](crate::floor) runs, too.
    pub floor: bool,
    /// The only server to run; all that a row has otherwise.
    pub only: Option<Who>,
    /// The cores of server and load; none on a machine with a single one.
    pub cores: Option<(usize, usize)>,
}

/// Two cores of those that this process may use: one to serve, one to load.
pub fn two_cores() -> Option<(usize, usize)> {
    let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let mut allowed = (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false));
    Some((allowed.next()?, allowed.next()?))
}

/// Pins this process, and with it every load that it starts, to the load's core.
pub fn pin_load(plan: &Plan) {
    if let Some((_, core)) = plan.cores {
        pin(0, core);
    }
}

fn pin(thread: process::Pid, core: usize) {
    let mut set = CpuSet::new();
    // A thread that has just ended cannot be pinned and need not be.
    let _ = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(thread), &set));
}

/// Measures a row; `progress` hears of each round.
pub fn measure(plan: &Plan, row: &Row, progress: &mut dyn FnMut(u32)) -> Result<Measured, String> {
    let mut measured = Measured { row: *row, rounds: BTreeMap::new() };
    let backend = match row.setting {
        Setting::Proxy => Some(contender::backend(plan)?),
        _ => None,
    };
    let backend = backend.as_ref();
    let who = contenders(plan, row);
    match row.load {
        Load::Requests
        | Load::Steady
        | Load::Uploads
        | Load::Handshakes
        | Load::Resumed
        | Load::Http2
        | Load::Http2OneStream => {
            let start = |who: &Who| started(plan, row, *who, backend);
            let servers: Vec<Contender> = who.iter().map(start).collect::<Result<_, _>>()?;
            let speeds = match row.load {
                Load::Uploads | Load::Http2 | Load::Http2OneStream => Vec::new(),
                _ => servers
                    .iter()
                    .map(|server| warm_up(plan, row, server))
                    .collect::<Result<_, _>>()?,
            };
            let rate = STEADY_SHARE * speeds.first().copied().unwrap_or_default();
            for round in 0..plan.rounds {
                progress(round);
                in_turn(round, &who, &mut measured, |who| {
                    let server = servers.iter().find(|server| server.who == who);
                    let server = server.ok_or("was not started")?;
                    pin_server(plan, server);
                    match row.load {
                        Load::Steady => steady_round(plan, row, server, rate),
                        Load::Uploads => upload_round(row, server),
                        Load::Http2 => http2_round(plan, row, server),
                        Load::Http2OneStream => one_stream_round(plan, row, server),
                        Load::Handshakes => handshake_round(plan, row, server, false),
                        Load::Resumed => handshake_round(plan, row, server, true),
                        _ => request_round(plan, row, server),
                    }
                })?;
            }
        }
        // Memory that was once taken may not be given back, so every round has a fresh server.
        Load::Idle | Load::Stalled => {
            for round in 0..plan.rounds {
                progress(round);
                in_turn(round, &who, &mut measured, |who| {
                    let server = started(plan, row, who, backend)?;
                    memory_round(plan, row, &server)
                })?;
            }
        }
    }
    Ok(measured)
}

/// Who runs a row: HAProxy and the floor only where they are asked for.
fn contenders(plan: &Plan, row: &Row) -> Vec<Who> {
    if let Some(only) = plan.only {
        return vec![only];
    }
    let mut who = vec![Who::Nginx, Who::Forebay];
    if row.suits_haproxy() && plan.haproxy.is_some() {
        who.push(Who::Haproxy);
    }
    if plan.floor && row.has_floor() {
        who.push(Who::Floor);
    }
    who
}

// Who goes first changes, so that a drift of the machine falls on all.
fn in_turn(
    round: u32,
    who: &[Who],
    measured: &mut Measured,
    mut run: impl FnMut(Who) -> Result<Round, String>,
) -> Result<(), String> {
    let mut order = who.to_vec();
    order.rotate_left(round as usize % who.len());
    for who in order {
        let found = run(who).map_err(|e| format!("{who}: {e}"))?;
        measured.rounds.entry(who).or_default().push(found);
    }
    Ok(())
}

fn started(
    plan: &Plan,
    row: &Row,
    who: Who,
    backend: Option<&Server>,
) -> Result<Contender, String> {
    let server = Contender::start(plan, who, row, backend).map_err(|e| format!("{who}: {e}"))?;
    pin_server(plan, &server);
    Ok(server)
}

fn pin_server(plan: &Plan, server: &Contender) {
    let Some((core, _)) = plan.cores else { return };
    for thread in server.process_tree().into_iter().flat_map(process::threads) {
        pin(thread, core);
    }
}

/// Requests a second at full load.
fn warm_up(plan: &Plan, row: &Row, server: &Contender) -> Result<f64, String> {
    let load = load::run_wrk(&plan.wrk, server.addr(), row, plan.connections, WARM_UP);
    load.map(|load| load.per_second).map_err(|e| format!("{}: {e}", server.who))
}

fn request_round(plan: &Plan, row: &Row, server: &Contender) -> Result<Round, String> {
    let processes = server.process_tree();
    let before = process::cpu_time_ns(&processes);
    let load = load::run_wrk(&plan.wrk, server.addr(), row, plan.connections, plan.time)?;
    let used = process::cpu_time_ns(&processes).saturating_sub(before);
    Ok(Round::of(&load, used as f64 / 1000.0 / load.requests as f64))
}

fn h2load(plan: &Plan) -> Result<&Path, &'static str> {
    plan.h2load.as_deref().ok_or("h2load is not installed (Debian: nghttp2-client)")
}

fn http2_round(plan: &Plan, row: &Row, server: &Contender) -> Result<Round, String> {
    let shape = http2::Shape { clients: 32, streams: 16 };
    let processes = server.process_tree();
    let before = process::cpu_time_ns(&processes);
    let load = http2::run(h2load(plan)?, server.addr(), row, shape, plan.time)?;
    let used = process::cpu_time_ns(&processes).saturating_sub(before);
    Ok(Round::of(&load, used as f64 / 1000.0 / load.requests as f64))
}

/// A few clients that wait for each answer.
fn one_stream_round(plan: &Plan, row: &Row, server: &Contender) -> Result<Round, String> {
    let shape = http2::Shape { clients: 8, streams: 1 };
    let load = http2::run_logged(h2load(plan)?, server.addr(), row, shape, plan.time)?;
    Ok(Round::of(&load, load.p99_us))
}

fn steady_round(plan: &Plan, row: &Row, server: &Contender, rate: f64) -> Result<Round, String> {
    let load =
        load::run_steady(h2load(plan)?, server.addr(), row, plan.connections, rate, plan.time)?;
    Ok(Round::of(&load, load.p99_us))
}

fn upload_round(row: &Row, server: &Contender) -> Result<Round, String> {
    let started = Instant::now();
    let times = load::run_uploads(server.addr(), row, UPLOADS_PER_ROUND)?;
    let us = |at: usize| times.get(at).map_or(0.0, |time| time.as_nanos() as f64 / 1000.0);
    let last = times.len().saturating_sub(1);
    let per_second = times.len() as f64 / started.elapsed().as_secs_f64();
    Ok(Round { per_second, cost: us(last), p99_us: us(last * 99 / 100), errors: 0 })
}

fn handshake_round(
    plan: &Plan,
    row: &Row,
    server: &Contender,
    resume: bool,
) -> Result<Round, String> {
    let openssl = plan.openssl.as_deref().ok_or("openssl is not installed")?;
    let processes = server.process_tree();
    let before = process::cpu_time_ns(&processes);
    let load = tls::run_handshakes(openssl, server.addr(), row, resume, plan.time)?;
    let used = process::cpu_time_ns(&processes).saturating_sub(before);
    Ok(Round::of(&load, used as f64 / 1000.0 / load.requests as f64))
}

fn memory_round(plan: &Plan, row: &Row, server: &Contender) -> Result<Round, String> {
    let addr = server.addr();
    let open = |count| -> Result<Box<dyn Any>, String> {
        Ok(match (row.load, row.setting.key()) {
            (Load::Stalled, _) => Box::new(load::open_stalled(addr, row, count)?),
            _ if row.setting == Setting::Http2 => Box::new(http2::open_idle(addr, row, count)?),
            (_, Some(_)) => Box::new(tls::open_idle(addr, row, count)?),
            (_, None) => Box::new(load::open_idle(addr, row, count)?),
        })
    };
    let count = if row.load == Load::Stalled { plan.idle.min(STALLED) } else { plan.idle };
    // What the first requests bring in (code, buffers, caches) is not the price of a connection.
    drop(open(64)?);
    let processes = server.process_tree();
    let memory = || process::pss_bytes(&processes).map_err(|e| e.to_string());
    settle(&processes, &memory)?;
    let before = memory()?;
    let _clients = open(count)?;
    settle(&processes, &memory)?;
    let cost = memory()?.saturating_sub(before) as f64 / count as f64;
    Ok(Round { per_second: 0.0, cost, p99_us: 0.0, errors: 0 })
}

/// Waits until the memory of a server stays as it is, and it does nothing: one that still fills the
/// buffers of the kernel has not begun to fill its own.
fn settle(
    processes: &[process::Pid],
    memory: &dyn Fn() -> Result<u64, String>,
) -> Result<(), String> {
    const PAUSE: Duration = Duration::from_millis(100);
    const IDLE_NS: u64 = 2_000_000;
    let (mut last, mut same) = ((memory()?, process::cpu_time_ns(processes)), 0);
    // A server that never settles is measured as it is.
    for _ in 0..200 {
        std::thread::sleep(PAUSE);
        let now = (memory()?, process::cpu_time_ns(processes));
        let is_idle = now.1.saturating_sub(last.1) < IDLE_NS;
        same = if now.0 == last.0 && is_idle { same + 1 } else { 0 };
        last = now;
        if same == 5 {
            break;
        }
    }
    Ok(())
}
