//! The load of the HTTP/2 rows: h2load, and connections that wait.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_testkit::tempdir::TempDir;

use crate::load::{Load, microseconds, output_of, parse_h2load};
use crate::rows::{Row, Setting};

/// Connections, and requests under way on each.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Connections.
    pub clients: u32,
    /// Requests on each at once.
    pub streams: u32,
}

fn h2load(program: &Path, addr: SocketAddr, row: &Row, shape: Shape, time: Duration) -> Command {
    let scheme = if row.setting == Setting::Http2Tls { "https" } else { "http" };
    let mut command = Command::new(program);
    command.args(["-t1", "-D"]).arg(time.as_secs().max(1).to_string());
    command.arg(format!("-c{}", shape.clients)).arg(format!("-m{}", shape.streams));
    command.arg(format!("{scheme}://{addr}{}", row.path));
    command
}

/// Runs h2load with one thread, as fast as it goes.
pub fn run(
    program: &Path,
    addr: SocketAddr,
    row: &Row,
    shape: Shape,
    time: Duration,
) -> Result<Load, String> {
    let text = output_of(h2load(program, addr, row, shape, time), time)?;
    parse(&text).ok_or_else(|| format!("h2load said:\n{text}"))
}

/// Runs it with a log of all requests: for few that take long.
pub fn run_logged(
    program: &Path,
    addr: SocketAddr,
    row: &Row,
    shape: Shape,
    time: Duration,
) -> Result<Load, String> {
    let dir = TempDir::new().map_err(|e| e.to_string())?;
    let log = dir.path().join("log");
    let mut command = h2load(program, addr, row, shape, time);
    command.arg("--log-file").arg(&log);
    let said = output_of(command, time)?;
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    parse_h2load(&text, time).ok_or_else(|| format!("h2load said:\n{said}"))
}

/// Reads h2load's summary. It has no percentiles: the longest time stands for the 99th.
fn parse(text: &str) -> Option<Load> {
    let mut load = Load { requests: 0, per_second: 0.0, p99_us: 0.0, errors: 0 };
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("finished in ") {
            let speed = rest.split(", ").nth(1)?.strip_suffix(" req/s")?;
            load.per_second = speed.parse().ok()?;
        } else if let Some(rest) = line.strip_prefix("requests: ") {
            let count = |word: &str| -> Option<u64> {
                let part = rest.split(", ").find(|part| part.ends_with(word))?;
                part.split(' ').next()?.parse().ok()
            };
            load.requests = count("succeeded")?;
            load.errors = count("failed")? + count("errored")?;
        } else if let Some(rest) = line.strip_prefix("time for request:") {
            load.p99_us = microseconds(rest.split_ascii_whitespace().nth(1)?)?;
        }
    }
    (load.requests > 0 && load.per_second > 0.0).then_some(load)
}

/// Opens connections that make one request each and then wait.
pub fn open_idle(addr: SocketAddr, row: &Row, count: usize) -> Result<Vec<TcpStream>, String> {
    let mut block = b"\x82\x86\x41\x09localhost\x04".to_vec();
    block.push(row.path.len() as u8);
    block.extend_from_slice(row.path.as_bytes());
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    request.extend_from_slice(&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1]);
    request.extend_from_slice(&block);
    let one = |i: usize| -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(&request)?;
        let mut got = Vec::new();
        while !ends_a_stream(&got) {
            let mut piece = [0; 4096];
            match stream.read(&mut piece)? {
                0 => return Err(io::Error::other(format!("connection {} was closed", i + 1))),
                read => got.extend_from_slice(&piece[..read]),
            }
        }
        Ok(stream)
    };
    (0..count).map(|i| one(i).map_err(|e| e.to_string())).collect()
}

/// Whether a whole DATA frame with END_STREAM is among these bytes.
fn ends_a_stream(mut bytes: &[u8]) -> bool {
    while let [a, b, c, kind, flags, _, _, _, _, rest @ ..] = bytes {
        let len = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        let Some(after) = rest.get(len..) else { return false };
        if *kind == 0 && flags & 1 != 0 {
            return true;
        }
        bytes = after;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_h2load_is_read() {
        let text = "finished in 3.53s, 113283.45 req/s, 79.62MB/s\nrequests: 400000 total, 400000 \
            started, 400000 done, 399997 succeeded, 2 failed, 1 errored, 0 timeout\n\
            time for request:      102us     12.59ms      4.48ms       751us    87.06%\n";
        let load = Load { requests: 399_997, per_second: 113_283.45, p99_us: 12_590.0, errors: 3 };
        assert_eq!(parse(text), Some(load));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn the_end_of_a_stream_is_seen_in_whole_frames_only() {
        let bytes = b"\0\0\0\x04\0\0\0\0\0\0\0\x02\0\x01\0\0\0\x01ab";
        assert!(ends_a_stream(bytes) && !ends_a_stream(&bytes[..bytes.len() - 1]));
    }
}
