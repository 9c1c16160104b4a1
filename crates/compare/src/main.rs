//! Runs Forebay and nginx in turn on `benches/conf/nginx.conf`, and as proxies with HAProxy beside them
//! on `benches/conf/proxy.conf`, the server on one core, load and back end on another, and says what a
//! request costs each of them.
//!
//! The question: how much processor time does a request take, nginx's over Forebay's? Requests a second
//! are shown beside it, but on two cores they depend on the load program as much as on the server.

mod build;
mod contender;
mod floor;
mod haproxy;
mod http2;
mod load;
mod measure;
mod report;
mod rows;
mod tls;
mod train;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use forebay_testkit::{Kind, server};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::measure::Plan;
use crate::rows::{ROWS, Row};

/// Forebay beside nginx on one configuration.
#[derive(Debug, Parser)]
struct Args {
    /// Rows whose name contains one of these words (comma-separated); all by default.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Rounds per row and server.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Seconds per round.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Connections of wrk.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Idle connections.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=15000))]
    idle: u32,
    /// Forebay's binary; built in release mode when neither this nor FOREBAY_BIN names one.
    #[arg(long)]
    forebay: Option<PathBuf>,
    /// nginx's binary.
    #[arg(long)]
    nginx: Option<PathBuf>,
    /// Where compare.json and compare.html go.
    #[arg(long, default_value = "results")]
    out: PathBuf,
    /// Compare nothing, but renew profile/, which release builds use: builds Forebay instrumented and
    /// puts it under the load of the rows.
    #[arg(long, conflicts_with_all = ["forebay", "check"])]
    train: bool,
    /// Beside them, where a row has such a thing: a server of nothing but the system calls, which no other can
    /// go below.
    #[arg(long)]
    floor: bool,
    /// That server: a folder with what it says.
    #[arg(long, hide = true)]
    serve_floor: Option<PathBuf>,
    /// What it passes requests on to.
    #[arg(long, hide = true)]
    behind_floor: Option<SocketAddr>,
    /// Whether its connections end with the answer.
    #[arg(long, hide = true)]
    floor_closes: bool,
    /// Fail when a target is missed.
    #[arg(long)]
    check: bool,
    /// List the rows.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        ROWS.iter().for_each(|row| println!("{:<14} {}", row.name, row.what));
        return ExitCode::SUCCESS;
    }
    let done = match &args.serve_floor {
        Some(dir) => {
            let served = floor::serve(dir, args.behind_floor, args.floor_closes);
            served.map(|()| true).map_err(|e| e.to_string())
        }
        None => run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("forebay-compare: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, String> {
    let plan = plan(args)?;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| chosen(args, row)).collect();
    if rows.is_empty() {
        return Err("no row has such a name; --list shows them".to_owned());
    }
    raise_open_files(u64::from(args.idle) * 2 + 100);
    if args.train {
        return train::run(plan, &rows).map(|()| true);
    }
    measure::pin_load(&plan);
    match plan.cores {
        Some((server, load)) => println!("server on core {server}, load on core {load}"),
        None => println!("a single core: server and load share it, so times include switching"),
    }
    println!("{}", report::table_head());
    let seen = std::io::stderr().is_terminal();
    let mut all = Vec::new();
    let mut failed = false;
    for row in rows {
        let mut progress = |round| {
            if seen {
                eprint!("\r{} round {}/{} ", row.name, round + 1, plan.rounds);
            }
        };
        let result = measure::measure(&plan, row, &mut progress);
        if seen {
            eprint!("\r{:40}\r", "");
        }
        match result {
            Ok(measured) => {
                println!("{}", report::table_row(&report::summarize(&measured)));
                all.push(measured);
            }
            Err(e) => {
                failed = true;
                println!("{:<14} FAILED: {e}", row.name);
            }
        }
    }
    let summaries: Vec<report::Summary> = all.iter().map(report::summarize).collect();
    let about = about(&plan);
    write(&args.out, "compare.json", &format!("{:#}\n", report::to_json(&summaries, &about)))?;
    write(&args.out, "compare.html", &report::to_html(&summaries, &about))?;
    let missed = summaries.iter().filter(|s| s.pass == Some(false)).count();
    println!("{missed} targets missed; see {}", args.out.join("compare.html").display());
    let ok = !failed && (missed == 0 || !args.check);
    Ok(ok)
}

fn chosen(args: &Args, row: &Row) -> bool {
    args.rows.is_empty() || args.rows.iter().any(|word| row.name.contains(word.as_str()))
}

fn plan(args: &Args) -> Result<Plan, String> {
    let nginx = args.nginx.clone().or_else(|| server::binary(Kind::Nginx));
    let nginx = nginx.ok_or("nginx is not installed (Debian: apt-get install nginx)")?;
    let wrk = load::find("wrk").ok_or("wrk is not installed (Debian: apt-get install wrk)")?;
    let given = args.forebay.clone().or_else(|| std::env::var_os("FOREBAY_BIN").map(PathBuf::from));
    let forebay = match given {
        Some(path) => path,
        None if args.train => PathBuf::new(),
        None => build::release()?,
    };
    Ok(Plan {
        nginx,
        forebay,
        haproxy: load::find("haproxy"),
        wrk,
        h2load: load::find("h2load"),
        openssl: load::find("openssl"),
        rounds: args.rounds,
        time: Duration::from_secs(args.seconds),
        connections: args.connections,
        idle: args.idle as usize,
        floor: args.floor,
        only: None,
        cores: measure::two_cores(),
    })
}

fn raise_open_files(wanted: u64) {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        // When this is not enough, opening the connections says so.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    }
}

fn write(dir: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = dir.join(name);
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&path, text))
        .map_err(|e| format!("{}: {e}", path.display()))
}

fn about(plan: &Plan) -> Value {
    let version = |path: &Path| {
        let output = Command::new(path).arg("-v").output();
        output.map_or(String::new(), |o| String::from_utf8_lossy(&o.stderr).trim().to_owned())
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpu": cpu.map_or("", |(_, name)| name),
        "kernel": kernel.trim(),
        "nginx": version(&plan.nginx),
        "forebay": version(&plan.forebay),
        "haproxy": plan.haproxy.as_deref().map_or(String::new(), haproxy::version),
        "rounds": plan.rounds,
        "seconds": plan.time.as_secs(),
        "connections": plan.connections,
        "idle_connections": plan.idle,
        "pinned": plan.cores.is_some(),
    })
}
