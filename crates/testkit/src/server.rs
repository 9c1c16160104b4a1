//! Starts Forebay or nginx in the foreground on a throw-away prefix and stops it again.
//! Invariant: no process outlives its [`Server`]; what was started is killed by the id of its group.

use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::case::FileSpec;
use crate::ports::Port;
use crate::process;
use crate::tempdir::TempDir;

const START_LIMIT: Duration = Duration::from_secs(15);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);
const PORTS: usize = 4;
const ATTEMPTS: usize = 5;

/// Which of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The server under test.
    Forebay,
    /// The oracle.
    Nginx,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Forebay => "forebay",
            Kind::Nginx => "nginx",
        })
    }
}

/// Why a server did not start, with what it printed and logged.
#[derive(Debug)]
pub struct StartError {
    /// Which server.
    pub kind: Kind,
    /// What was wrong.
    pub cause: String,
    /// Its standard error and its error log.
    pub output: String,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} did not start: {}\n{}", self.kind, self.cause, self.output.trim_end())
    }
}

impl std::error::Error for StartError {}

/// What to start. See [`Server::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    kind: Kind,
    conf: String,
    binary: Option<PathBuf>,
    files: Vec<FileSpec>,
    globals: String,
    env: Vec<(String, String)>,
}

/// A running server; killed on drop.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    child: Child,
    ports: Vec<Port>,
    dir: TempDir,
    temp_paths: &'static str,
    exited: bool,
    /// Whether its process group was.
    is_killed: bool,
}

impl Builder {
    /// The binary to start, when it is not the one that [`binary`] finds.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Builder {
        self.binary = Some(path.into());
        self
    }

    /// Files to make below `{root}` before the start.
    pub fn files(mut self, files: &[FileSpec]) -> Builder {
        self.files.extend_from_slice(files);
        self
    }

    /// More directives for `-g`, each with its semicolon.
    pub fn globals(mut self, directives: &str) -> Builder {
        self.globals.push_str(directives);
        self
    }

    /// Sets an environment variable of the server.
    pub fn env(mut self, name: &str, value: &str) -> Builder {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server and waits until it accepts on `{port}`.
    pub fn start(self) -> Result<Server, StartError> {
        let fail = |cause: String| StartError { kind: self.kind, cause, output: String::new() };
        let binary = match &self.binary {
            Some(path) => path.clone(),
            None => binary(self.kind).ok_or_else(|| fail("no such binary".to_owned()))?,
        };
        for attempt in 1.. {
            let mut server = self.launch(&binary).map_err(|e| fail(e.to_string()))?;
            match server.wait_until_ready(self.conf.contains("{port}")) {
                Ok(()) => return Ok(server),
                // Another process took the port between our look and the server's bind.
                Err(e) if attempt < ATTEMPTS && e.output.contains("Address already in use") => {}
                Err(e) => return Err(e),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn launch(&self, binary: &Path) -> io::Result<Server> {
        let dir = TempDir::new()?;
        let ports = (0..PORTS).map(|_| Port::reserve()).collect::<io::Result<Vec<_>>>()?;
        let prefix = dir.path().to_owned();
        for name in ["root", "tmp", "logs"] {
            fs::create_dir(prefix.join(name))?;
        }
        let temp_paths = temp_paths(binary);
        let expand = |text: &str| expand(text, temp_paths, &prefix, &ports);
        for file in &self.files {
            file.create(&prefix.join("root"), &|text| expand(text))?;
        }
        FileSpec::settle(&self.files, &prefix.join("root"))?;
        let conf = expand(&self.conf);
        fs::write(prefix.join("nginx.conf"), &conf)?;
        let stderr = fs::File::create(prefix.join("stderr"))?;
        let child = Command::new(binary)
            .arg("-p")
            .arg(format!("{}/", prefix.display()))
            .arg("-c")
            .arg(prefix.join("nginx.conf"))
            .arg("-e")
            .arg(prefix.join("error.log"))
            .arg("-g")
            .arg(format!("{} {}", default_globals(&conf, &prefix), expand(&self.globals)))
            .envs(self.env.iter().map(|(name, value)| (name, expand(value))))
            .stdin(Stdio::null())
            .stdout(Stdio::from(stderr.try_clone()?))
            .stderr(Stdio::from(stderr))
            .process_group(0)
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", binary.display())))?;
        Ok(Server {
            kind: self.kind,
            child,
            ports,
            dir,
            temp_paths,
            exited: false,
            is_killed: false,
        })
    }
}

impl Server {
    /// Starts a server on a whole configuration, or panics with what it printed: for tests that
    /// have nothing to say without it.
    ///
    /// In the text, `{port}` to `{port4}` become free ports on 127.0.0.1, `{prefix}` the throw-away
    /// directory, `{root}` the directory `root` in it, and `{temp_paths}` the directives of an
    /// `http` block that keep the server's temporary files in the prefix.
    pub fn start(kind: Kind, conf: &str) -> Server {
        Server::builder(kind, conf).start().unwrap_or_else(|e| panic!("{e}"))
    }

    /// As [`Server::start`], with more to say.
    pub fn builder(kind: Kind, conf: &str) -> Builder {
        Builder {
            kind,
            conf: conf.to_owned(),
            binary: None,
            files: Vec::new(),
            globals: String::new(),
            env: Vec::new(),
        }
    }

    /// Which server this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The address of `{port}`.
    pub fn addr(&self) -> SocketAddr {
        self.addr_of(0)
    }

    /// The address of a port: 0 for `{port}`, 1 for `{port2}` and so on.
    pub fn addr_of(&self, index: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[index].number()))
    }

    /// All reserved ports.
    pub fn ports(&self) -> Vec<u16> {
        self.ports.iter().map(Port::number).collect()
    }

    /// The throw-away directory.
    pub fn prefix(&self) -> &Path {
        self.dir.path()
    }

    /// The directory that `{root}` names.
    pub fn root(&self) -> PathBuf {
        self.prefix().join("root")
    }

    /// The process that was started: the master.
    pub fn pid(&self) -> process::Pid {
        self.child.id() as process::Pid
    }

    /// Where the server writes its id, unless the configuration says otherwise.
    pub fn pid_file(&self) -> PathBuf {
        self.prefix().join("pid")
    }

    /// The live children of the master.
    pub fn worker_pids(&self) -> Vec<process::Pid> {
        process::children(self.pid())
    }

    /// The master and everything below it.
    pub fn process_tree(&self) -> Vec<process::Pid> {
        process::tree(self.pid())
    }

    /// Writes a new configuration over the old one, placeholders replaced; takes effect on HUP.
    pub fn rewrite_conf(&self, conf: &str) -> io::Result<()> {
        let text = expand(conf, self.temp_paths, self.prefix(), &self.ports);
        fs::write(self.prefix().join("nginx.conf"), text)
    }

    /// The lines of `{prefix}/access.log` so far; empty when there is none.
    pub fn access_log(&self) -> String {
        self.read("access.log")
    }

    /// The error log so far. A byte that is no text is U+FFFD with the number of the byte behind it.
    pub fn error_log(&self) -> String {
        let bytes = fs::read(self.prefix().join("error.log")).unwrap_or_default();
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|byte| format!("\u{fffd}{byte:02x}")));
        }
        text
    }

    /// Standard output and standard error so far.
    pub fn output(&self) -> String {
        self.read("stderr")
    }

    /// A file of the prefix as text; empty when there is none.
    pub fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.prefix().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a signal to the master.
    pub fn signal(&self, signal: Signal) {
        if !self.exited {
            // A process that has just exited is still ours to wait for: the id cannot be another's.
            let _ = kill(Pid::from_raw(self.pid()), signal);
        }
    }

    /// Asks the server to quit gracefully, waits for at most ten seconds, then kills it. Returns
    /// whether it quit by itself with status 0. Logs stay readable.
    pub fn stop(&mut self) -> bool {
        self.signal(Signal::SIGQUIT);
        let status = self.wait_exit(STOP_LIMIT);
        self.kill_group();
        status.is_some_and(|code| code == 0)
    }

    /// Waits until the master has exited by itself; returns its exit code (128 + n for signal n).
    pub fn wait_exit(&mut self, limit: Duration) -> Option<i32> {
        let mut code = None;
        wait_for(
            || {
                code = self.try_exit();
                code.is_some()
            },
            limit,
        );
        code
    }

    fn try_exit(&mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        let status = self.child.try_wait().ok().flatten()?;
        self.exited = true;
        status.code().or_else(|| status.signal().map(|signal| 128 + signal))
    }

    fn wait_until_ready(&mut self, has_port: bool) -> Result<(), StartError> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(code) = self.try_exit() {
                return Err(self.start_error(format!("exited with code {code}")));
            }
            // The pid file comes after the listening sockets (ngx_create_pidfile in main).
            let pid_written = fs::read(self.pid_file()).is_ok_and(|text| text.ends_with(b"\n"));
            if (pid_written || !self.writes_pid_file()) && (!has_port || self.accepts()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                self.kill_group();
                return Err(self.start_error(format!("accepts nothing after {START_LIMIT:?}")));
            }
            std::thread::sleep(POLL);
        }
    }

    fn writes_pid_file(&self) -> bool {
        !sets_directive(&self.read("nginx.conf"), "pid")
    }

    fn accepts(&self) -> bool {
        TcpStream::connect_timeout(&self.addr(), Duration::from_secs(1)).is_ok()
    }

    fn start_error(&self, cause: String) -> StartError {
        let output = format!("{}{}", self.output(), self.error_log());
        StartError { kind: self.kind, cause, output }
    }

    fn kill_group(&mut self) {
        // Once only: what is gone and waited for may have left its id to somebody else's group.
        if std::mem::replace(&mut self.is_killed, true) {
            return;
        }
        // The group has the master's id; it may live on after the master (workers, an upgraded one).
        let _ = killpg(Pid::from_raw(self.pid()), Signal::SIGKILL);
        let _ = self.child.wait();
        self.exited = true;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// Polls until `condition` holds or `limit` has passed; returns whether it held.
pub fn wait_for(mut condition: impl FnMut() -> bool, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// The binary of a server: `FOREBAY_BIN` or `NGINX_BIN` if set; else Forebay from the target directory
/// of the running test, nginx from `PATH` or `/usr/sbin`.
pub fn binary(kind: Kind) -> Option<PathBuf> {
    let variable = match kind {
        Kind::Forebay => "FOREBAY_BIN",
        Kind::Nginx => "NGINX_BIN",
    };
    if let Some(path) = std::env::var_os(variable) {
        return Some(path.into());
    }
    let mut places: Vec<PathBuf> = match kind {
        // target/debug/deps/test-0123 or target/debug/program
        Kind::Forebay => {
            let exe = std::env::current_exe().ok()?;
            exe.ancestors().skip(1).take(2).map(|dir| dir.join("forebay")).collect()
        }
        Kind::Nginx => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).map(|dir| dir.join("nginx")).collect()
        }
    };
    if kind == Kind::Nginx {
        places.push("/usr/sbin/nginx".into());
    }
    places.into_iter().find(|path| path.is_file())
}

fn default_globals(conf: &str, prefix: &Path) -> String {
    let mut globals = String::from("daemon off;");
    if !sets_directive(conf, "pid") {
        globals.push_str(&format!(" pid {}/pid;", prefix.display()));
    }
    if nix::unistd::geteuid().is_root() && !sets_directive(conf, "user") {
        let group = if fs::read_to_string("/etc/group").is_ok_and(|text| text.contains("nogroup:"))
        {
            "nogroup"
        } else {
            "nobody"
        };
        globals.push_str(&format!(" user nobody {group};"));
    }
    globals
}

fn sets_directive(conf: &str, name: &str) -> bool {
    conf.lines().flat_map(|line| line.split([';', '{', '}'])).any(|directive| {
        directive.trim_start().strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '\t']))
    })
}

fn expand(text: &str, temp_paths: &str, prefix: &Path, ports: &[Port]) -> String {
    let prefix = prefix.display().to_string();
    let mut text = text.replace("{temp_paths}", temp_paths);
    for (i, port) in ports.iter().enumerate() {
        let name = if i == 0 { "{port}".to_owned() } else { format!("{{port{}}}", i + 1) };
        text = text.replace(&name, &port.number().to_string());
    }
    text.replace("{root}", &format!("{prefix}/root")).replace("{prefix}", &prefix)
}

// nginx gives the compiled-in directories to the worker's user at start; keep it away from those of
// the machine. Forebay refuses directives of modules that it does not have. The binary's name decides
// and not the kind, since nginx may stand in Forebay's place.
fn temp_paths(binary: &Path) -> &'static str {
    if binary.file_name().is_some_and(|name| name == "nginx") {
        "client_body_temp_path {prefix}/tmp/body; proxy_temp_path {prefix}/tmp/proxy; \
         fastcgi_temp_path {prefix}/tmp/fastcgi; uwsgi_temp_path {prefix}/tmp/uwsgi; \
         scgi_temp_path {prefix}/tmp/scgi;"
    } else {
        "client_body_temp_path {prefix}/tmp/body; proxy_temp_path {prefix}/tmp/proxy;"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: &str = "worker_processes 2; error_log {prefix}/error.log info; events {} \
        http { {temp_paths} access_log {prefix}/access.log; \
        server { listen 127.0.0.1:{port}; return 200 \"alive\"; } }";

    fn nginx(conf: &str) -> Option<Server> {
        if binary(Kind::Nginx).is_none() {
            eprintln!("skipped: nginx is not installed");
            return None;
        }
        Some(Server::start(Kind::Nginx, conf))
    }

    #[test]
    fn nginx_starts_serves_and_quits() {
        let Some(mut server) = nginx(CONF) else { return };
        assert!(wait_for(|| server.worker_pids().len() == 2, Duration::from_secs(5)));
        let mut client = crate::raw::Client::connect(server.addr()).expect("connect");
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("send");
        let response = client.read_response(false).expect("response");
        assert_eq!((response.status, response.body.as_slice()), (200, b"alive".as_slice()));
        assert!(server.stop());
        assert!(server.access_log().contains("GET / HTTP/1.1"));
    }

    #[test]
    fn no_process_outlives_a_dropped_server() {
        let Some(server) = nginx(CONF) else { return };
        assert!(wait_for(|| server.worker_pids().len() == 2, Duration::from_secs(5)));
        let tree = server.process_tree();
        assert_eq!(tree.len(), 3);
        drop(server);
        let gone = || tree.iter().all(|&pid| process::threads(pid).is_empty());
        assert!(wait_for(gone, Duration::from_secs(5)));
    }

    #[test]
    fn broken_configuration_is_reported_with_the_servers_words() {
        if binary(Kind::Nginx).is_none() {
            return;
        }
        let conf = "events {} http { no_such_directive; server { listen 127.0.0.1:{port}; } }";
        let error = Server::builder(Kind::Nginx, conf).start().expect_err("must not start");
        assert!(error.output.contains("unknown directive \"no_such_directive\""), "{error}");
    }

    #[test]
    fn directives_are_told_from_words_that_contain_them() {
        assert!(sets_directive("events {} pid /run/x;", "pid"));
        assert!(!sets_directive("http { log_format a $pid; rapid x; }", "pid"));
        assert!(sets_directive("\tuser nobody;\n", "user"));
    }
}
