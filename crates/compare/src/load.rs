//! The load: wrk on its own core, or connections that wait.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_testkit::raw::Client;
use forebay_testkit::{Server, wait_for};

use crate::rows::Row;

/// What wrk reports of one round.
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

/// Where wrk is.
pub fn find_wrk() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join("wrk")).find(|path| path.is_file())
}

/// Runs wrk with one thread against a row of a server.
pub fn run_wrk(
    wrk: &Path,
    server: &Server,
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
    command.arg(format!("http://{}{}", server.addr(), row.path));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{}: {e}", wrk.display()))?;
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
        return Err("wrk did not end in time".to_owned());
    }
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text).map_err(|e| e.to_string())?;
    }
    if let Some(mut err) = child.stderr.take() {
        err.read_to_string(&mut text).map_err(|e| e.to_string())?;
    }
    parse_wrk(&text).ok_or_else(|| format!("wrk said:\n{text}"))
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

fn microseconds(text: &str) -> Option<f64> {
    for (unit, factor) in [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 6e7)] {
        if let Some(number) = text.strip_suffix(unit) {
            return Some(number.parse::<f64>().ok()? * factor);
        }
    }
    None
}

/// Opens connections that make one request each and then wait.
pub fn open_idle(server: &Server, row: &Row, count: usize) -> Result<Vec<Client>, String> {
    let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", row.path);
    (0..count)
        .map(|i| {
            let fail = |e: String| format!("connection {} of {count}: {e}", i + 1);
            let mut client = Client::connect(server.addr()).map_err(|e| fail(e.to_string()))?;
            client.send(request.as_bytes()).map_err(|e| fail(e.to_string()))?;
            let response = client.read_response(false).map_err(|e| fail(e.to_string()))?;
            match response.status {
                200 if !response.closes() => Ok(client),
                status => Err(fail(format!("answered {status}, or closes"))),
            }
        })
        .collect()
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
    fn times_have_units() {
        assert_eq!(microseconds("601.00us"), Some(601.0));
        assert_eq!(microseconds("1.5s"), Some(1_500_000.0));
        assert_eq!(microseconds("x"), None);
    }
}
