//! HAProxy as the third server of the proxy rows.
//! Invariant: what was started is killed by its own id, and waited for.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_testkit::ports::Port;
use forebay_testkit::tempdir::TempDir;
use forebay_testkit::{process, wait_for};

const CONF: &str = include_str!("../../../benches/conf/haproxy.cfg");
const START_LIMIT: Duration = Duration::from_secs(10);

/// A running HAProxy; killed on drop.
pub struct Haproxy {
    child: Child,
    port: Port,
    _dir: TempDir,
}

impl Haproxy {
    /// Starts it in front of a back end and waits until it accepts.
    pub fn start(binary: &Path, backend: SocketAddr) -> Result<Haproxy, String> {
        let io = |e: std::io::Error| format!("{}: {e}", binary.display());
        let (dir, port) = (TempDir::new().map_err(io)?, Port::reserve().map_err(io)?);
        let text = CONF
            .replace("{port}", &port.number().to_string())
            .replace("{backend}", &backend.to_string());
        let (conf, said) = (dir.path().join("haproxy.cfg"), dir.path().join("output"));
        fs::write(&conf, text).map_err(io)?;
        let output = File::create(&said).map_err(io)?;
        let child = Command::new(binary)
            .arg("-db")
            .arg("-f")
            .arg(&conf)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(output))
            .spawn()
            .map_err(io)?;
        let haproxy = Haproxy { child, port, _dir: dir };
        match wait_for(|| TcpStream::connect(haproxy.addr()).is_ok(), START_LIMIT) {
            true => Ok(haproxy),
            false => {
                Err(format!("did not start: {}", fs::read_to_string(said).unwrap_or_default()))
            }
        }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// Its process and those below.
    pub fn process_tree(&self) -> Vec<process::Pid> {
        process::tree(self.child.id() as process::Pid)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What it says of its version.
pub fn version(binary: &Path) -> String {
    let output = Command::new(binary).arg("-v").output();
    let text = output.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).into_owned());
    text.lines().next().unwrap_or_default().to_owned()
}
