//! What the TLS rows need beside `wrk`: certificates, connections that wait, and handshakes one after
//! the other by `openssl s_time`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_testkit::case::FileSpec;
use forebay_testkit::certs::{Authority, Key, Leaf};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};

use crate::load::{Load, output_of};
use crate::rows::Row;

/// Who signed the servers of this process.
fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| Authority::root("Benchmark"))
}

/// `ec.pem`, `rsa.pem` and their keys.
pub fn files() -> Vec<FileSpec> {
    let mut files = Vec::new();
    for (name, key) in [("ec", Key::P256), ("rsa", Key::Rsa2048)] {
        let issued = authority().issue(Leaf { key, ..Leaf::default() });
        files.push(FileSpec::new(&format!("{name}.pem"), issued.certificate.into_bytes()));
        files.push(FileSpec::new(&format!("{name}.key"), issued.key.into_bytes()));
    }
    files
}

/// A connection that has made a request over TLS, and is open.
pub struct Connection {
    _socket: TcpStream,
    _tls: ClientConnection,
}

/// Opens connections that make one request each and then wait.
pub fn open_idle(addr: SocketAddr, row: &Row, count: usize) -> Result<Vec<Connection>, String> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority().pem().as_bytes());
    let root = root.map_err(|e| e.to_string())?;
    roots.add(root).map_err(|e| e.to_string())?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let config = Arc::new(config);
    let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", row.path);
    let one = |i: usize| {
        open(addr, config.clone(), &request)
            .map_err(|e| format!("connection {} of {count}: {e}", i + 1))
    };
    (0..count).map(one).collect()
}

fn open(
    addr: SocketAddr,
    config: Arc<ClientConfig>,
    request: &str,
) -> Result<Connection, Box<dyn std::error::Error>> {
    let name = ServerName::try_from("localhost")?;
    let mut tls = ClientConnection::new(config, name)?;
    let mut socket = TcpStream::connect(addr)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut stream = Stream::new(&mut tls, &mut socket);
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut buf = [0; 4096];
    // The rows answer with three bytes.
    while !answer.ends_with(b"ok\n") {
        let read = stream.read(&mut buf)?;
        if read == 0 || answer.len() > buf.len() {
            return Err("no answer".into());
        }
        answer.extend_from_slice(&buf[..read]);
    }
    Ok(Connection { _socket: socket, _tls: tls })
}

/// Runs `openssl s_time`: connections one after the other, each with a handshake and a request.
pub fn run_handshakes(
    openssl: &Path,
    addr: SocketAddr,
    row: &Row,
    resume: bool,
    time: Duration,
) -> Result<Load, String> {
    let mut command = Command::new(openssl);
    command.args(["s_time", "-connect", &addr.to_string(), "-www", row.path]);
    command.args(["-time", &time.as_secs().max(1).to_string()]);
    command.arg(if resume { "-reuse" } else { "-new" });
    let text = output_of(command, time)?;
    parse_s_time(&text, time).ok_or_else(|| format!("cannot read the output of s_time:\n{text}"))
}

/// `1234 connections in 3 real seconds, 678 bytes read per connection`.
fn parse_s_time(text: &str, time: Duration) -> Option<Load> {
    let line = text.lines().rfind(|line| line.contains("real seconds"))?;
    let requests: u64 = line.split_once(" connections in ")?.0.trim().parse().ok()?;
    let per_second = requests as f64 / time.as_secs_f64();
    (requests > 0).then_some(Load { requests, per_second, p99_us: 0.0, errors: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_s_time_is_read() {
        let text = "Collecting connection statistics for 3 seconds\nrrrr\n\n\
            4 connections in 0.01s; 400.00 connections/user sec, bytes read 40\n\
            600 connections in 4 real seconds, 10 bytes read per connection\n";
        let load = Load { requests: 600, per_second: 200.0, p99_us: 0.0, errors: 0 };
        assert_eq!(parse_s_time(text, Duration::from_secs(3)), Some(load));
        assert_eq!(parse_s_time("no connection", Duration::from_secs(3)), None);
    }
}
