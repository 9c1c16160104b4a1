//! One row, measured: rounds in turn on both servers, each pinned to a core of its own.

use std::path::PathBuf;
use std::time::Duration;

use forebay_testkit::{Kind, Server, process};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::load;
use crate::rows::{self, Load, Row};

const CONF: &str = include_str!("../../../benches/conf/nginx.conf");
const WARM_UP: Duration = Duration::from_secs(1);

/// What one round found on one server.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Requests a second; 0 for a row of idle connections.
    pub per_second: f64,
    /// What the row is about: processor time per request in microseconds, or bytes per connection.
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
    pub nginx: Vec<Round>,
    /// In order of the rounds.
    pub forebay: Vec<Round>,
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The binaries: nginx, Forebay.
    pub nginx: PathBuf,
    /// See `nginx`.
    pub forebay: PathBuf,
    /// wrk.
    pub wrk: PathBuf,
    /// Rounds per row and server.
    pub rounds: u32,
    /// Length of a round.
    pub time: Duration,
    /// Connections of wrk.
    pub connections: u32,
    /// Idle connections.
    pub idle: usize,
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
    let mut measured = Measured { row: *row, nginx: Vec::new(), forebay: Vec::new() };
    match row.load {
        Load::Requests => {
            let nginx = start(plan, Kind::Nginx)?;
            let forebay = start(plan, Kind::Forebay)?;
            for server in [&nginx, &forebay] {
                load::run_wrk(&plan.wrk, server, row, plan.connections, WARM_UP)
                    .map_err(|e| format!("{}: {e}", server.kind()))?;
            }
            for round in 0..plan.rounds {
                progress(round);
                in_turn(round, &mut measured, |kind| {
                    let server = if kind == Kind::Nginx { &nginx } else { &forebay };
                    request_round(plan, row, server)
                })?;
            }
        }
        // Memory that was once taken may not be given back, so every round has a fresh server.
        Load::Idle => {
            for round in 0..plan.rounds {
                progress(round);
                in_turn(round, &mut measured, |kind| idle_round(plan, row, kind))?;
            }
        }
    }
    Ok(measured)
}

// Who goes first alternates, so that a drift of the machine falls on both.
fn in_turn(
    round: u32,
    measured: &mut Measured,
    mut run: impl FnMut(Kind) -> Result<Round, String>,
) -> Result<(), String> {
    let order = match round % 2 {
        0 => [Kind::Nginx, Kind::Forebay],
        _ => [Kind::Forebay, Kind::Nginx],
    };
    for kind in order {
        let found = run(kind).map_err(|e| format!("{kind}: {e}"))?;
        match kind {
            Kind::Nginx => measured.nginx.push(found),
            Kind::Forebay => measured.forebay.push(found),
        }
    }
    Ok(())
}

fn start(plan: &Plan, kind: Kind) -> Result<Server, String> {
    let binary = if kind == Kind::Nginx { &plan.nginx } else { &plan.forebay };
    let builder = Server::builder(kind, CONF).binary(binary).files(&rows::files());
    let server = builder.start().map_err(|e| e.to_string())?;
    pin_server(plan, &server);
    Ok(server)
}

fn pin_server(plan: &Plan, server: &Server) {
    let Some((core, _)) = plan.cores else { return };
    for thread in server.process_tree().into_iter().flat_map(process::threads) {
        pin(thread, core);
    }
}

fn request_round(plan: &Plan, row: &Row, server: &Server) -> Result<Round, String> {
    pin_server(plan, server);
    let processes = server.process_tree();
    let before = process::cpu_time_ns(&processes);
    let load = load::run_wrk(&plan.wrk, server, row, plan.connections, plan.time)?;
    let used = process::cpu_time_ns(&processes).saturating_sub(before);
    Ok(Round {
        per_second: load.per_second,
        cost: used as f64 / 1000.0 / load.requests as f64,
        p99_us: load.p99_us,
        errors: load.errors,
    })
}

fn idle_round(plan: &Plan, row: &Row, kind: Kind) -> Result<Round, String> {
    let server = start(plan, kind)?;
    // What the first requests bring in (code, buffers, caches) is not the price of a connection.
    drop(load::open_idle(&server, row, 64)?);
    let processes = server.process_tree();
    let before = process::pss_bytes(&processes).map_err(|e| e.to_string())?;
    let clients = load::open_idle(&server, row, plan.idle)?;
    let after = process::pss_bytes(&processes).map_err(|e| e.to_string())?;
    let cost = after.saturating_sub(before) as f64 / clients.len() as f64;
    Ok(Round { per_second: 0.0, cost, p99_us: 0.0, errors: 0 })
}
