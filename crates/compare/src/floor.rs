//! What the kernel alone takes: a server that makes the system calls of a row and nothing else, so no server
//! can take less. It says what nginx said, byte by byte, and does not look at what it is asked.
//!
//! Hot path: one `recv` and one `send` a message, as many as the row has.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    process::{Child, Command, Stdio},
};

use forebay_testkit::{process, tempdir::TempDir};
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, EventData, EventFlags},
    io::Errno,
    net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send},
};

use crate::rows::Row;

/// The file with the answer.
const SAID: &str = "said";
/// The file with what the back end is asked.
const ASKED: &str = "asked";

/// A running one; killed on drop.
pub struct Floor {
    child: Child,
    addr: SocketAddr,
    _dir: TempDir,
}

impl Floor {
    /// Starts one that answers as `model` does, or, where there is a back end, passes on what it says.
    pub fn start(
        row: &Row,
        model: SocketAddr,
        backend: Option<SocketAddr>,
    ) -> Result<Floor, String> {
        let dir = TempDir::new().map_err(|e| e.to_string())?;
        let said = ask(row, model).map_err(|e| format!("{}: {e}", row.name))?;
        let asked = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", row.path);
        fs::write(dir.path().join(SAID), said)
            .and_then(|()| fs::write(dir.path().join(ASKED), asked))
            .map_err(|e| e.to_string())?;
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command.arg("--serve-floor").arg(dir.path());
        if let Some(backend) = backend {
            command.arg("--behind-floor").arg(backend.to_string());
        }
        if closes(row) {
            command.arg("--floor-closes");
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|e| e.to_string())?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            // The port, once it listens.
            let _ = BufReader::new(out).read_line(&mut line);
        }
        let port = line.trim().parse::<u16>().map_err(|_| "it did not start".to_owned());
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port.clone().unwrap_or_default()));
        let floor = Floor { child, addr, _dir: dir };
        port.map(|_| floor)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its process.
    pub fn process_tree(&self) -> Vec<process::Pid> {
        process::tree(self.child.id() as process::Pid)
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn closes(row: &Row) -> bool {
    row.headers.contains(&"Connection: close")
}

/// A whole response, as it comes over the wire.
fn ask(row: &Row, addr: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(addr)?;
    let request =
        format!("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", row.path);
    stream.write_all(request.as_bytes())?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    if !said.starts_with(b"HTTP/1.1 200") {
        return Err(io::Error::other("the answer is not 200"));
    }
    if !closes(row) {
        let text = String::from_utf8_lossy(&said).into_owned();
        said = text.replacen("Connection: close", "Connection: keep-alive", 1).into_bytes();
    }
    Ok(said)
}

/// How many events are taken at once, as by both servers.
const EVENTS: usize = 512;
/// Room for what comes in one read.
const BUFFER_BYTES: usize = 16 << 10;

/// One end of a connection.
struct End {
    stream: TcpStream,
    /// The number of the other end, for what is passed on.
    other: Option<usize>,
    is_backend: bool,
}

struct Serving {
    epoll: OwnedFd,
    /// By the numbers of their descriptors.
    ends: Vec<Option<End>>,
    /// Connections to the back end that nobody uses, by the same.
    idle: Vec<usize>,
    said: Vec<u8>,
    asked: Vec<u8>,
    backend: Option<SocketAddr>,
    closes: bool,
    buffer: Vec<u8>,
}

/// Serves until it is killed. `dir`: where the texts are.
pub fn serve(dir: &Path, backend: Option<SocketAddr>, closes: bool) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    rustix::net::listen(&listener, 8192)?;
    rustix::net::sockopt::set_tcp_nodelay(&listener, true)?;
    listener.set_nonblocking(true)?;
    println!("{}", listener.local_addr()?.port());
    let mut serving = Serving {
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        ends: Vec::new(),
        idle: Vec::new(),
        said: fs::read(dir.join(SAID))?,
        asked: fs::read(dir.join(ASKED))?,
        backend,
        closes,
        buffer: Vec::with_capacity(BUFFER_BYTES),
    };
    serving.watch(&listener)?;
    let accepts = listener.as_raw_fd() as u64;
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        match epoll::wait(&serving.epoll, spare_capacity(&mut events), None) {
            Err(Errno::INTR) => continue,
            waited => waited?,
        };
        for event in events.drain(..) {
            match event.data.u64() {
                number if number == accepts => serving.accept(&listener)?,
                number => serving.readable(number as usize),
            }
        }
    }
}

impl Serving {
    fn watch(&self, stream: &(impl AsFd + AsRawFd)) -> io::Result<usize> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let number = stream.as_raw_fd() as usize;
        epoll::add(&self.epoll, stream, EventData::new_u64(number as u64), flags)?;
        Ok(number)
    }

    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        while let Ok(fd) = accept_with(listener, flags) {
            let stream = TcpStream::from(fd);
            if self.closes && self.backend.is_none() && self.receive(&stream) {
                self.say(&stream, &self.said, true);
                continue;
            }
            let number = self.watch(&stream)?;
            let other = match self.backend {
                Some(backend) => Some(self.borrow(backend, number)?),
                None => None,
            };
            self.put(number, End { stream, other, is_backend: false });
        }
        Ok(())
    }

    fn put(&mut self, number: usize, end: End) {
        if self.ends.len() <= number {
            self.ends.resize_with(number + 1, || None);
        }
        self.ends[number] = Some(end);
    }

    /// A connection to the back end for that client.
    fn borrow(&mut self, backend: SocketAddr, client: usize) -> io::Result<usize> {
        if let Some(number) = self.idle.pop() {
            self.ends[number].iter_mut().for_each(|end| end.other = Some(client));
            return Ok(number);
        }
        let stream = TcpStream::connect(backend)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let number = self.watch(&stream)?;
        self.put(number, End { stream, other: Some(client), is_backend: true });
        Ok(number)
    }

    /// Whether something came; it is in the buffer.
    fn receive(&mut self, stream: &TcpStream) -> bool {
        self.buffer.clear();
        recv(stream, spare_capacity(&mut self.buffer), RecvFlags::empty()).is_ok()
            && !self.buffer.is_empty()
    }

    /// A load that does not take all of it counts it as no answer.
    fn say(&self, stream: &TcpStream, text: &[u8], last: bool) {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, last);
        let _ = send(stream, text, flags);
        if last {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    fn readable(&mut self, number: usize) {
        let Some(end) = self.ends.get_mut(number).and_then(Option::take) else { return };
        let has_come = self.receive(&end.stream);
        let last = self.closes && (end.is_backend || end.other.is_none());
        match end.other {
            _ if !has_come => {}
            None => self.say(&end.stream, &self.said, last),
            Some(other) => {
                let to = self.ends.get(other).and_then(Option::as_ref);
                let text = if end.is_backend { &self.said } else { &self.asked };
                to.into_iter().for_each(|to| self.say(&to.stream, text, last));
            }
        }
        let (other, is_backend) = (end.other, end.is_backend);
        if has_come && (!last || is_backend) {
            self.ends[number] = Some(end);
        }
        if let Some(other) = other
            && (last || !has_come)
        {
            // The client is done; its connection to the back end is not.
            let (client, behind) = if is_backend { (other, number) } else { (number, other) };
            self.ends[client] = None;
            self.idle.push(behind);
        }
    }
}
