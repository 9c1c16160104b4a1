//! A binary upgrade of a server in the background, from outside.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_testkit::ports::Port;
use forebay_testkit::process::{self, Pid};
use forebay_testkit::raw::Client;
use forebay_testkit::tempdir::TempDir;
use forebay_testkit::wait_for;

const LIMIT: Duration = Duration::from_secs(20);

/// A server that went to the background; whatever of it is left at the end is killed by id.
struct Daemon {
    dir: TempDir,
    addr: SocketAddr,
    _port: Port,
}

impl Daemon {
    fn start() -> Daemon {
        let (dir, port) = (TempDir::new().unwrap(), Port::reserve().unwrap());
        let addr = SocketAddr::from(([127, 0, 0, 1], port.number()));
        std::fs::create_dir_all(dir.path().join("conf")).unwrap();
        std::fs::create_dir_all(dir.path().join("logs")).unwrap();
        let text = format!(
            "worker_processes 2; error_log logs/error.log notice; events {{ }}
             http {{ server {{ listen {addr}; listen unix:{}/sock; }} }}",
            dir.path().display()
        );
        std::fs::write(dir.path().join("conf/nginx.conf"), text).unwrap();
        let daemon = Daemon { dir, addr, _port: port };
        let status = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .arg("-p")
            .arg(daemon.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{}", daemon.log());
        daemon
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("logs/error.log")).unwrap_or_default()
    }

    fn pid_in(&self, name: &str) -> Option<Pid> {
        std::fs::read_to_string(self.path(name)).ok()?.trim().parse().ok()
    }

    fn master(&self) -> Pid {
        assert!(wait_for(|| self.pid_in("logs/nginx.pid").is_some(), LIMIT), "{}", self.log());
        self.pid_in("logs/nginx.pid").unwrap()
    }

    fn is_served(&self) -> bool {
        let Ok(mut client) = Client::connect(self.addr) else { return false };
        client.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        client.read_response(false).is_ok()
    }

    fn upgrade(&self) -> (Pid, Pid) {
        let old = self.master();
        kill(old, "-USR2");
        let new = || self.pid_in("logs/nginx.pid").filter(|new| *new != old);
        assert!(wait_for(|| new().is_some(), LIMIT), "{}", self.log());
        assert_eq!(self.pid_in("logs/nginx.pid.oldbin"), Some(old));
        let new = new().unwrap();
        assert!(wait_for(|| process::children(new).len() == 1, LIMIT), "{}", self.log());
        (old, new)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for name in ["logs/nginx.pid", "logs/nginx.pid.oldbin"] {
            for pid in self.pid_in(name).into_iter().flat_map(process::tree) {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            }
        }
    }
}

fn kill(pid: Pid, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

fn is_gone(pid: Pid) -> bool {
    // One that nobody waits for in this machine stays as a zombie.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn new_binary_takes_the_sockets_over() {
    let daemon = Daemon::start();
    assert!(wait_for(|| daemon.is_served(), LIMIT), "{}", daemon.log());
    let (old, new) = daemon.upgrade();
    kill(old, "-WINCH");
    assert!(wait_for(|| process::children(old) == [new], LIMIT), "{}", daemon.log());
    assert!((0..20).all(|_| daemon.is_served()));
    kill(old, "-QUIT");
    assert!(wait_for(|| is_gone(old), LIMIT), "{}", daemon.log());
    assert!((0..20).all(|_| daemon.is_served()));
    assert_eq!(daemon.pid_in("logs/nginx.pid"), Some(new));
    assert!(!daemon.path("logs/nginx.pid.oldbin").exists() && daemon.path("sock").exists());
    assert!(daemon.log().contains("using inherited sockets from \""));
    kill(new, "-QUIT");
    assert!(wait_for(|| is_gone(new), LIMIT), "{}", daemon.log());
    assert!(!daemon.path("logs/nginx.pid").exists() && !daemon.path("sock").exists());
    assert!(TcpStream::connect(daemon.addr).is_err());
}

#[test]
fn upgrade_can_be_taken_back() {
    let daemon = Daemon::start();
    let (old, new) = daemon.upgrade();
    kill(old, "-WINCH");
    assert!(wait_for(|| process::children(old) == [new], LIMIT), "{}", daemon.log());
    // A second upgrade beside the first is refused.
    kill(old, "-USR2");
    let refused = "the changing binary signal is ignored";
    assert!(wait_for(|| daemon.log().contains(refused), LIMIT), "{}", daemon.log());
    // The old master calls its worker back, then the new one goes.
    kill(old, "-HUP");
    assert!(wait_for(|| process::children(old).len() == 2, LIMIT), "{}", daemon.log());
    kill(new, "-QUIT");
    assert!(wait_for(|| is_gone(new), LIMIT), "{}", daemon.log());
    let back = || daemon.pid_in("logs/nginx.pid") == Some(old);
    assert!(wait_for(back, LIMIT), "{}", daemon.log());
    assert!(daemon.path("sock").exists() && (0..20).all(|_| daemon.is_served()));
    kill(old, "-TERM");
    assert!(wait_for(|| is_gone(old), LIMIT), "{}", daemon.log());
}

#[test]
fn new_binary_that_ends_leaves_everything_as_it_was() {
    let daemon = Daemon::start();
    let old = daemon.master();
    std::fs::write(daemon.path("conf/nginx.conf"), "nonsense;").unwrap();
    kill(old, "-USR2");
    let gone = || {
        let log = daemon.log();
        log.contains("new binary process ") && log.contains(" exited with code 1")
    };
    assert!(wait_for(gone, LIMIT), "{}", daemon.log());
    assert!(wait_for(|| daemon.pid_in("logs/nginx.pid") == Some(old), LIMIT), "{}", daemon.log());
    assert!(daemon.is_served() && daemon.path("sock").exists());
    kill(old, "-TERM");
    assert!(wait_for(|| is_gone(old), LIMIT), "{}", daemon.log());
}

/// Starts a server in the foreground with a listening socket as descriptor 3, named by a variable.
fn started_with_socket(variable: &str) {
    let dir = TempDir::new().unwrap();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    let prefix = dir.path().display();
    let text = format!(
        "daemon off; worker_processes 2; pid {prefix}/pid; error_log {prefix}/log notice;
         events {{ }} http {{ client_body_temp_path {prefix}/t; server {{ listen {addr}; }} }}"
    );
    let conf = dir.path().join("nginx.conf");
    std::fs::write(&conf, text).unwrap();
    // The shell's own id is the server's after the exec, as LISTEN_PID must be.
    let script = format!("exec 3<&0 </dev/null; export {variable}; exec \"$0\" -c \"$1\"");
    let mut child = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_forebay")])
        .arg(&conf)
        .stdin(std::os::fd::OwnedFd::from(socket))
        .spawn()
        .unwrap();
    // The socket listens all the time: nothing here is refused, at the most late.
    let served: Vec<bool> = (0..20)
        .map(|_| {
            let mut client = Client::connect(addr).unwrap();
            client.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
            client.read_response(false).is_ok()
        })
        .collect();
    kill(child.id() as Pid, "-QUIT");
    let status = child.wait().unwrap();
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    assert!(!served.contains(&false) && status.success(), "{variable}: {log}");
}

#[test]
fn sockets_come_from_the_service_manager_or_another_nginx() {
    started_with_socket("LISTEN_FDS=1 LISTEN_PID=$$");
    started_with_socket("NGINX='3;'");
}

#[test]
fn binary_that_cannot_be_started_changes_nothing() {
    let daemon = Daemon::start();
    let old = daemon.master();
    std::fs::rename(daemon.path("logs"), daemon.path("elsewhere")).unwrap();
    kill(old, "-USR2");
    let log = || std::fs::read_to_string(Path::new(&daemon.path("elsewhere/error.log"))).unwrap();
    assert!(wait_for(|| log().contains("rename() "), LIMIT), "{}", log());
    std::fs::rename(daemon.path("elsewhere"), daemon.path("logs")).unwrap();
    assert!(daemon.is_served());
    assert_eq!(daemon.master(), old);
    kill(old, "-TERM");
    assert!(wait_for(|| is_gone(old), LIMIT), "{}", daemon.log());
}
