//! The load, on its own core: wrk as fast as it goes, h2load at a steady rate, uploads one by one, or
//! connections that wait.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_testkit::raw::Client;
use forebay_testkit::tempdir::TempDir;
use forebay_testkit::wait_for;

use crate::rows::{Row, UPLOADS};

/// What a load program reports of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Responses read.
    pub requests: u64,
    /// Responses a second.
    pub per_second: f64,
    /// 99th percentile of the response time, in microseconds.
    pub p99_us: f64,
    /// Socket errors and statuses other than 2xx and 3xx.
    pub errors: u64,
}

/// Where a program is.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    places.map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Runs wrk with one thread against a row of a server.
pub fn run_wrk(
    wrk: &Path,
    addr: SocketAddr,
    row: &Row,
    connections: u32,
    time: Duration,
) -> Result<Load, String> {
    let mut command = Command::new(wrk);
    command.args(["-t1", "--latency", "--timeout", "10s"]);
    command.arg(format!("-c{connections}")).arg(format!("-d{}s", time.as_secs().max(1)));
    for header in row.headers {
        command.args(["-H", header]);
    }
    let script = upload_script(row).map_err(|e| e.to_string())?;
    if let Some((_, path)) = &script {
        command.arg("-s").arg(path);
    }
    let scheme = if row.setting.key().is_some() { "https" } else { "http" };
    command.arg(format!("{scheme}://{addr}{}", row.path));
    let text = output_of(command, time)?;
    parse_wrk(&text).ok_or_else(|| format!("cannot read the output of wrk:\n{text}"))
}

/// What makes wrk send a body.
fn upload_script(row: &Row) -> io::Result<Option<(TempDir, PathBuf)>> {
    if row.body == 0 {
        return Ok(None);
    }
    let dir = TempDir::new()?;
    let path = dir.path().join("post.lua");
    let text = format!("wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", {})\n", row.body);
    std::fs::write(&path, text)?;
    Ok(Some((dir, path)))
}

/// Runs a load program that ends by itself after a time; what it printed.
pub fn output_of(mut command: Command, time: Duration) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{program}: {e}"))?;
    let mut done = false;
    wait_for(
        || {
            done = !matches!(child.try_wait(), Ok(None));
            done
        },
        time + Duration::from_secs(30),
    );
    if !done {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("{program} did not end in time"));
    }
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text).map_err(|e| e.to_string())?;
    }
    if let Some(mut err) = child.stderr.take() {
        err.read_to_string(&mut text).map_err(|e| e.to_string())?;
    }
    Ok(text)
}

/// Runs h2load with one thread, which asks `per_second` times a second whatever comes back.
pub fn run_steady(
    h2load: &Path,
    addr: SocketAddr,
    row: &Row,
    connections: u32,
    per_second: f64,
    time: Duration,
) -> Result<Load, String> {
    let dir = TempDir::new().map_err(|e| e.to_string())?;
    let log = dir.path().join("log");
    let mut command = Command::new(h2load);
    command.args(["--h1", "-t1"]).arg(format!("-c{connections}"));
    command.arg(format!("-D{}", time.as_secs().max(1)));
    command.arg(format!("--rps={:.1}", per_second / f64::from(connections)));
    command.arg("--log-file").arg(&log).arg(format!("http://{addr}{}", row.path));
    let said = output_of(command, time)?;
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    parse_h2load(&text, time).ok_or_else(|| format!("h2load said:\n{said}"))
}

/// Reads h2load's lines of start, status and microseconds.
pub fn parse_h2load(text: &str, time: Duration) -> Option<Load> {
    let mut times: Vec<u64> = Vec::new();
    let mut errors = 0;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (status, us) = (words.next()?, words.next()?.parse().ok()?);
        errors += u64::from(!status.starts_with('2'));
        times.push(us);
    }
    times.sort_unstable();
    let p99_us = *times.get(times.len().saturating_sub(1) * 99 / 100)? as f64;
    let requests = times.len() as u64;
    Some(Load { requests, per_second: requests as f64 / time.as_secs_f64(), p99_us, errors })
}

/// Reads wrk's summary.
fn parse_wrk(text: &str) -> Option<Load> {
    let mut load = Load { requests: 0, per_second: 0.0, p99_us: 0.0, errors: 0 };
    for line in text.lines().map(str::trim) {
        if let Some((number, _)) = line.split_once(" requests in ") {
            load.requests = number.parse().ok()?;
        } else if let Some(number) = line.strip_prefix("Requests/sec:") {
            load.per_second = number.trim().parse().ok()?;
        } else if let Some(time) = line.strip_prefix("99%") {
            load.p99_us = microseconds(time.trim())?;
        } else if let Some(number) = line.strip_prefix("Non-2xx or 3xx responses:") {
            load.errors += number.trim().parse::<u64>().ok()?;
        } else if let Some(list) = line.strip_prefix("Socket errors:") {
            let numbers = list.split([' ', ',']).filter_map(|word| word.parse::<u64>().ok());
            load.errors += numbers.sum::<u64>();
        }
    }
    (load.requests > 0 && load.per_second > 0.0).then_some(load)
}

/// A time as load programs print it, in microseconds.
pub fn microseconds(text: &str) -> Option<f64> {
    for (unit, factor) in [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 6e7)] {
        if let Some(number) = text.strip_suffix(unit) {
            return Some(number.parse::<f64>().ok()? * factor);
        }
    }
    None
}

/// Opens connections that make one request each and then wait.
pub fn open_idle(addr: SocketAddr, row: &Row, count: usize) -> Result<Vec<Client>, String> {
    let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", row.path);
    open(addr, count, |client| {
        client.send(request.as_bytes()).map_err(|e| e.to_string())?;
        let response = client.read_response(false).map_err(|e| e.to_string())?;
        match response.status {
            200 if !response.closes() => Ok(()),
            status => Err(format!("answered {status}, or closes")),
        }
    })
}

/// Opens connections that ask and read nothing.
pub fn open_stalled(addr: SocketAddr, row: &Row, count: usize) -> Result<Vec<Client>, String> {
    let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", row.path);
    open(addr, count, |client| client.send(request.as_bytes()).map_err(|e| e.to_string()))
}

fn open(
    addr: SocketAddr,
    count: usize,
    ask: impl Fn(&mut Client) -> Result<(), String>,
) -> Result<Vec<Client>, String> {
    let one = |i: usize| {
        let mut client = Client::connect(addr).map_err(|e| e.to_string())?;
        ask(&mut client).map_err(|e| format!("connection {} of {count}: {e}", i + 1))?;
        Ok(client)
    };
    (0..count).map(one).collect()
}

/// Sends [`UPLOADS`] over one connection, `times` each: the time of each upload, sorted.
pub fn run_uploads(addr: SocketAddr, row: &Row, times: usize) -> Result<Vec<Duration>, String> {
    let mut client = Client::connect(addr).map_err(|e| e.to_string())?;
    let mut taken = Vec::with_capacity(times * UPLOADS.len());
    for size in UPLOADS.repeat(times) {
        let mut request = format!(
            "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n",
            row.path
        )
        .into_bytes();
        request.resize(request.len() + size, b'x');
        let started = Instant::now();
        client.send(&request).map_err(|e| e.to_string())?;
        let response = client.read_response(false).map_err(|e| e.to_string())?;
        if response.status != 200 {
            return Err(format!("{size} bytes: answered {}", response.status));
        }
        taken.push(started.elapsed());
    }
    taken.sort_unstable();
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_wrk_is_read() {
        let text = "Running 1s test @ http://127.0.0.1:1/\n  1 threads and 64 connections\n  \
            Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency     1.01ms\n  \
            Latency Distribution\n     50%  601.00us\n     99%    3.24ms\n  \
            53019 requests in 1.00s, 12.10MB read\n  \
            Socket errors: connect 0, read 2, write 0, timeout 1\n  \
            Non-2xx or 3xx responses: 4\nRequests/sec:  52902.25\nTransfer/sec: 12MB\n";
        let load = Load { requests: 53_019, per_second: 52_902.25, p99_us: 3240.0, errors: 7 };
        assert_eq!(parse_wrk(text), Some(load));
        assert_eq!(parse_wrk("unable to connect\n"), None);
    }

    #[test]
    fn times_of_h2load_are_read() {
        let text: String = (1..=200).map(|n| format!("1700000000\t200\t{n}\n")).collect();
        let load = parse_h2load(&(text + "1\t502\t9999\n"), Duration::from_secs(2)).unwrap();
        assert_eq!(load, Load { requests: 201, per_second: 100.5, p99_us: 199.0, errors: 1 });
        assert_eq!(parse_h2load("", Duration::from_secs(1)), None);
    }

    #[test]
    fn times_have_units() {
        assert_eq!(microseconds("601.00us"), Some(601.0));
        assert_eq!(microseconds("1.5s"), Some(1_500_000.0));
        assert_eq!(microseconds("x"), None);
    }
}
