//! A binary upgrade of a server in the background, under load.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use forebay_testkit::ports::Port;
use forebay_testkit::process::{self, Pid};
use forebay_testkit::server::binary;
use forebay_testkit::tempdir::TempDir;
use forebay_testkit::{Kind, wait_for};

use crate::LIMIT;
use crate::load::Load;

/// A server in the background; what is left of it at the end is killed by id.
struct Daemon {
    dir: TempDir,
    addr: SocketAddr,
    _port: Port,
}

impl Daemon {
    fn start() -> Daemon {
        let (dir, port) = (TempDir::new().expect("directory"), Port::reserve().expect("port"));
        let addr = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let text = format!(
            "pid {0}/pid; error_log {0}/error.log notice; worker_processes 2; events {{ }}
            http {{ access_log off; server {{ listen {addr}; return 200 alive; }} }}",
            dir.path().display()
        );
        std::fs::write(dir.path().join("nginx.conf"), text).expect("configuration");
        let daemon = Daemon { dir, addr, _port: port };
        let status = Command::new(binary(Kind::Forebay).expect("binary"))
            .arg("-p")
            .arg(daemon.dir.path())
            .arg("-c")
            .arg(daemon.dir.path().join("nginx.conf"))
            .args(["-e", "error.log"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(status.expect("run").success(), "{}", daemon.read("error.log"));
        daemon
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    fn pid_in(&self, name: &str) -> Option<Pid> {
        self.read(name).trim().parse().ok()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let masters = ["pid", "pid.oldbin"].into_iter().filter_map(|name| self.pid_in(name));
        for pid in masters.flat_map(process::tree) {
            signal(pid, "-KILL");
        }
    }
}

fn signal(pid: Pid, name: &str) {
    let _ = Command::new("kill").args([name, &pid.to_string()]).stderr(Stdio::null()).status();
}

fn is_gone(pid: Pid) -> bool {
    // One that nobody waits for in this machine stays as a zombie.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

#[test]
fn an_upgrade_under_load_fails_no_request() {
    let daemon = Daemon::start();
    let old = || daemon.pid_in("pid");
    assert!(wait_for(|| old().is_some(), LIMIT), "{}", daemon.read("error.log"));
    let old = old().expect("the master's id");
    let load = Load::start(daemon.addr, 2, 2, |_, _| "/".to_owned());
    load.wait_for_more(100);
    signal(old, "-USR2");
    let new = || daemon.pid_in("pid").filter(|pid| *pid != old);
    assert!(wait_for(|| new().is_some(), LIMIT), "{}", daemon.read("error.log"));
    let new = new().expect("the new master's id");
    assert_eq!(daemon.pid_in("pid.oldbin"), Some(old));
    let has_workers = || !process::children(new).is_empty();
    assert!(wait_for(has_workers, LIMIT), "{}", daemon.read("error.log"));
    load.wait_for_more(200);
    signal(old, "-QUIT");
    assert!(wait_for(|| is_gone(old), LIMIT), "{}", daemon.read("error.log"));
    load.wait_for_more(200);
    let tally = load.stop();
    assert_eq!((tally.failed.len(), tally.refused), (0, 0), "{:?}", tally.failed.first());
    assert_eq!(daemon.read("pid"), format!("{new}\n"));
    assert!(!daemon.dir.path().join("pid.oldbin").exists());
}
