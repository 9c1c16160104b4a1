//! A scripted origin: a server of raw bytes that does what no well-behaved back end does.
//!
//! Each connection runs a script, a closure over [`Conn`], in a thread of its own: it reads what it
//! wants, sends any bytes in any pieces, closes, resets, hangs. Nothing here sleeps: scripts that must
//! wait for the test wait at a [`Gate`].
//!
//! Invariant: every byte that comes in is remembered, also what no script has read as a request; no
//! thread outlives its [`Origin`].

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

/// How long anything may take before a test is given up.
pub const LIMIT: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(50);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A script that panicked leaves whole what it recorded.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A door that is opened once; clones are the same door.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// A closed one.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Lets everybody through, now and later.
    pub fn open(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    /// Waits until it is open; `false`: not within [`LIMIT`].
    pub fn wait(&self) -> bool {
        self.wait_for(LIMIT)
    }

    fn wait_for(&self, limit: Duration) -> bool {
        let closed = |open: &mut bool| !*open;
        let waited = self.0.1.wait_timeout_while(lock(&self.0.0), limit, closed);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        *lock(&self.0.0)
    }
}

/// A request as it came, its parts cut out without judging them.
#[derive(Clone, PartialEq, Eq)]
pub struct Received {
    /// The head with its blank line.
    pub head: Vec<u8>,
    /// The body as it stood on the wire, chunk sizes included.
    pub raw_body: Vec<u8>,
    /// The body without its transfer coding.
    pub body: Vec<u8>,
}

impl Received {
    /// The request line.
    pub fn line(&self) -> String {
        self.lines().into_iter().next().unwrap_or_default()
    }

    /// All lines of the head, the request line first.
    pub fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.head);
        text.trim_end_matches("\r\n").split("\r\n").map(str::to_owned).collect()
    }

    /// The values of a field, its name compared without regard to case.
    pub fn values(&self, name: &str) -> Vec<String> {
        let lines = self.lines();
        let fields = lines.iter().skip(1).filter_map(|line| line.split_once(':'));
        let named = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.trim().to_owned()).collect()
    }

    /// The first value of a field.
    pub fn value(&self, name: &str) -> Option<String> {
        self.values(name).into_iter().next()
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.head.escape_ascii(), self.raw_body.escape_ascii())
    }
}

/// What the origin remembers.
#[derive(Default)]
struct Book {
    /// The bytes of each connection.
    bytes: Vec<Vec<u8>>,
    requests: Vec<Received>,
    open: usize,
    closed: usize,
    /// Panics of scripts, which fail the test that drops the origin.
    failures: Vec<String>,
}

struct Shared {
    book: Mutex<Book>,
    changed: Condvar,
    over: Gate,
}

/// A running origin; dropping it ends its connections and fails if a script did.
pub struct Origin {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Origin {
    /// Starts an origin on a port of its own at 127.0.0.1; `script` runs for each connection.
    pub fn start(script: impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static) -> Origin {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        Origin::start_on(listener, script)
    }

    /// The same on a socket that listens already.
    pub fn start_on(
        listener: TcpListener,
        script: impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static,
    ) -> Origin {
        listener.set_nonblocking(true).expect("a listening socket");
        let addr = listener.local_addr().expect("a bound socket");
        let shared =
            Arc::new(Shared { book: Mutex::default(), changed: Condvar::new(), over: Gate::new() });
        let for_acceptor = shared.clone();
        let acceptor = thread::spawn(move || accept(&listener, &for_acceptor, &Arc::new(script)));
        Origin { addr, shared, acceptor: Some(acceptor) }
    }

    /// An origin that answers every request of every connection with the same bytes.
    pub fn answering(response: impl Into<Vec<u8>>) -> Origin {
        let response = response.into();
        Origin::start(move |conn| {
            while conn.request()?.is_some() {
                conn.send(&response)?;
            }
            Ok(())
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The requests that scripts have read so far, over all connections, in order.
    pub fn requests(&self) -> Vec<Received> {
        lock(&self.shared.book).requests.clone()
    }

    /// The bytes that came in on a connection so far; connections count from 0.
    pub fn bytes(&self, connection: usize) -> Vec<u8> {
        lock(&self.shared.book).bytes.get(connection).cloned().unwrap_or_default()
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        lock(&self.shared.book).bytes.len()
    }

    /// How many connections are open now.
    pub fn open(&self) -> usize {
        lock(&self.shared.book).open
    }

    /// Waits until so many requests have been read; panics if they do not come.
    pub fn wait_requests(&self, count: usize) {
        self.wait(|book| book.requests.len() >= count, "requests");
    }

    /// Waits until so many connections have ended.
    pub fn wait_closed(&self, count: usize) {
        self.wait(|book| book.closed >= count, "connections to end");
    }

    fn wait(&self, met: impl Fn(&Book) -> bool, what: &str) {
        let unmet = |book: &mut Book| !met(book);
        let waited = self.shared.changed.wait_timeout_while(lock(&self.shared.book), LIMIT, unmet);
        let (book, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(
            !timeout.timed_out(),
            "waited in vain for {what}: {} connections, {} closed, requests {:?}",
            book.bytes.len(),
            book.closed,
            book.requests
        );
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.over.open();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let failures = std::mem::take(&mut lock(&self.shared.book).failures);
        if !failures.is_empty() && !thread::panicking() {
            panic!("a script of the origin failed: {failures:?}");
        }
    }
}

type Script = dyn Fn(&mut Conn) -> io::Result<()> + Send + Sync;

fn accept(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    script: &Arc<impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static>,
) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !shared.over.is_open() {
        match listener.accept() {
            Ok((stream, peer)) => {
                let (shared, script): (_, Arc<Script>) = (shared.clone(), script.clone());
                let Ok(mut conn) = Conn::new(stream, peer, shared) else { continue };
                threads.push(thread::spawn(move || conn.run(&*script)));
                threads.retain(|thread| !thread.is_finished());
            }
            // Poll: a blocking accept would have to be woken at the end.
            Err(_) => _ = shared.over.wait_for(Duration::from_millis(1)),
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// One connection of an origin, in the hands of its script.
pub struct Conn {
    number: usize,
    peer: SocketAddr,
    /// `None`: closed or reset by the script.
    stream: Option<TcpStream>,
    /// What came and was not yet taken.
    buf: Vec<u8>,
    shared: Arc<Shared>,
}

impl Conn {
    fn new(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>) -> io::Result<Conn> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // Reads wake now and then to see whether the origin is over.
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
        let mut book = lock(&shared.book);
        let number = book.bytes.len();
        book.bytes.push(Vec::new());
        book.open += 1;
        drop(book);
        Ok(Conn { number, peer, stream: Some(stream), buf: Vec::new(), shared })
    }

    fn run(&mut self, script: &Script) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| script(self)));
        self.stream = None;
        let mut book = lock(&self.shared.book);
        book.open -= 1;
        book.closed += 1;
        // An error of the socket is what scripts are for; a panic is a claim that does not hold.
        if let Err(panic) = result {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            book.failures.push(text.unwrap_or_default());
        }
        drop(book);
        self.shared.changed.notify_all();
    }

    /// Which connection of the origin it is, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The address of the one who connected.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The socket, for questions to the kernel.
    pub fn stream(&self) -> io::Result<&TcpStream> {
        self.stream.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Reads a head; `None`: the connection ended before its first byte.
    pub fn head(&mut self) -> io::Result<Option<Received>> {
        loop {
            if let Some(at) = self.buf.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = self.buf.drain(..at + 4).collect();
                let request = Received { head, raw_body: Vec::new(), body: Vec::new() };
                return Ok(Some(request));
            }
            if !self.fill()? {
                return match self.buf.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    /// Reads a whole request and records it; `None`: the connection ended before its first byte.
    pub fn request(&mut self) -> io::Result<Option<Received>> {
        let Some(mut request) = self.head()? else { return Ok(None) };
        self.body(&mut request)?;
        self.record(&request);
        Ok(Some(request))
    }

    /// Reads the body that belongs to a head.
    pub fn body(&mut self, request: &mut Received) -> io::Result<()> {
        let codings = request.values("transfer-encoding");
        if codings.iter().any(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return self.chunked(request);
        }
        let length = request.value("content-length").and_then(|text| text.parse().ok());
        request.raw_body = self.take(length.unwrap_or(0))?;
        request.body = request.raw_body.clone();
        Ok(())
    }

    /// Adds a request to those of the origin.
    pub fn record(&self, request: &Received) {
        lock(&self.shared.book).requests.push(request.clone());
        self.shared.changed.notify_all();
    }

    fn chunked(&mut self, request: &mut Received) -> io::Result<()> {
        let mut trailers = false;
        loop {
            let line = self.line()?;
            request.raw_body.extend_from_slice(&line);
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            if trailers && text.is_empty() {
                return Ok(());
            }
            if trailers {
                continue;
            }
            let size = text.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16)
                .map_err(|_| io::Error::other(format!("chunk size {text:?}")))?;
            if size == 0 {
                trailers = true;
                continue;
            }
            let chunk = self.take(size + 2)?;
            request.raw_body.extend_from_slice(&chunk);
            request.body.extend_from_slice(&chunk[..size]);
        }
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.buf.iter().position(|b| *b == b'\n') {
                return Ok(self.buf.drain(..=at).collect());
            }
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads so many bytes.
    pub fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buf.len() < length {
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buf.drain(..length).collect())
    }

    /// Reads and forgets so many bytes, which are not recorded either: for bodies of any size.
    pub fn skip(&mut self, mut length: u64) -> io::Result<()> {
        let had = (self.buf.len() as u64).min(length);
        self.buf.drain(..had as usize);
        length -= had;
        let mut piece = vec![0; 256 << 10];
        while length > 0 {
            let want = (piece.len() as u64).min(length) as usize;
            match self.read(&mut piece[..want])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => length -= n as u64,
            }
        }
        Ok(())
    }

    /// Reads until the peer ends its side.
    pub fn to_end(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? {}
        Ok(std::mem::take(&mut self.buf))
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        let deadline = Instant::now() + LIMIT;
        while !rest.is_empty() {
            match self.stream()?.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if is_tick(&e) && Instant::now() < deadline => self.go_on()?,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends pieces so that none is read together with the next.
    pub fn send_pieces(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        for piece in pieces {
            self.send(piece)?;
            self.wait_read()?;
        }
        Ok(())
    }

    /// Waits until the peer has read everything that was sent.
    pub fn wait_read(&self) -> io::Result<()> {
        let ends = (self.peer, self.stream()?.local_addr()?);
        // A socket that is gone reads no more, either.
        let is_read = || unread(ends.0, ends.1).unwrap_or(0) == 0 || self.shared.over.is_open();
        match crate::wait_for(is_read, LIMIT) {
            true => Ok(()),
            false => Err(io::Error::other("the peer does not read")),
        }
    }

    /// Sends as much as the peer takes until it ends the connection or `limit` bytes are sent.
    pub fn flood(&mut self, bytes: &[u8], limit: usize) -> io::Result<usize> {
        let mut sent = 0;
        while sent < limit {
            match self.send(bytes) {
                Ok(()) => sent += bytes.len(),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Ends this side; what comes in is still read.
    pub fn shutdown_write(&mut self) -> io::Result<()> {
        self.stream()?.shutdown(Shutdown::Write)
    }

    /// Closes the connection at once: what the peer sent and nobody read makes it a reset.
    pub fn close(&mut self) {
        self.stream = None;
    }

    /// Ends the connection with a reset.
    pub fn reset(&mut self) -> io::Result<()> {
        let Some(stream) = self.stream.take() else { return Ok(()) };
        let now = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&stream, sockopt::Linger, &now)?;
        Ok(())
    }

    /// Does nothing until the origin is dropped.
    pub fn hang(&self) -> io::Result<()> {
        self.shared.over.wait();
        Ok(())
    }

    /// Waits until the peer has ended the connection, taking in what comes.
    pub fn wait_closed(&mut self) -> io::Result<()> {
        loop {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes in what there is; `false`: the peer has ended its side.
    fn fill(&mut self) -> io::Result<bool> {
        let mut piece = [0; 64 << 10];
        let n = self.read(&mut piece)?;
        self.buf.extend_from_slice(&piece[..n]);
        lock(&self.shared.book).bytes[self.number].extend_from_slice(&piece[..n]);
        Ok(n > 0)
    }

    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.stream()?.read(piece) {
                Err(e) if is_tick(&e) && Instant::now() < deadline => self.go_on()?,
                other => return other,
            }
        }
    }

    fn go_on(&self) -> io::Result<()> {
        match self.shared.over.is_open() {
            true => Err(io::Error::other("the origin is over")),
            false => Ok(()),
        }
    }
}

fn is_tick(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// How many bytes wait in a socket of this machine to be read, by the addresses of its two ends; `None`:
/// there is no such socket.
pub fn unread(local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (local, remote) else { return None };
    // The table of all sockets is long after some tests, and read slowly.
    unread_of_one(from, to).or_else(|| unread_in_table(from, to))
}

fn unread_in_table(from: SocketAddrV4, to: SocketAddrV4) -> Option<u64> {
    let shown = |addr: SocketAddrV4| {
        format!("{:08X}:{:04X}", u32::from_ne_bytes(addr.ip().octets()), addr.port())
    };
    let (from, to) = (shown(from), shown(to));
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        let [_, local, remote, _, queues] = words[..] else { return None };
        let (_, rx) = queues.split_once(':').filter(|_| local == from && remote == to)?;
        u64::from_str_radix(rx, 16).ok()
    })
}

/// The same by `sock_diag(7)`, where the kernel has that.
fn unread_of_one(from: SocketAddrV4, to: SocketAddrV4) -> Option<u64> {
    const TCP: u8 = 6;
    let ip = |addr: SocketAddrV4| [&addr.ip().octets()[..], &[0; 12]].concat();
    // struct inet_diag_req_v2: family, protocol, extensions, states, then struct inet_diag_sockid, which ends
    // with any interface and any cookie.
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let rest = [[0; 4], [0xff; 4], [0xff; 4]].concat();
    let head = [AF_INET, TCP, 0, 0, 0xff, 0xff, 0xff, 0xff];
    let asked = [&head[..], &ports, &ip(from), &ip(to), &rest].concat();
    let answer = sock_diag(&asked).ok()?;
    // struct inet_diag_msg: four bytes, the id, when it expires, and then what waits to be read.
    let at = 4 + 48 + 4;
    let waiting = answer.get(at..at + 4)?;
    Some(u32::from_ne_bytes(waiting.try_into().ok()?).into())
}

const AF_INET: u8 = 2;

/// Asks the kernel about a socket; what it says of it, without the header of the message.
fn sock_diag(asked: &[u8]) -> io::Result<Vec<u8>> {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
        socket_with,
    };
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    // struct nlmsghdr: length, type, flags, sequence number, sender.
    const HEADER: usize = 16;
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut message = ((HEADER + asked.len()) as u32).to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(asked);
    send(&kernel, &message, SendFlags::empty())?;
    let mut answer = vec![0; 4096];
    let (len, _) = recv(&kernel, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(len);
    match answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]])) {
        Some(SOCK_DIAG_BY_FAMILY) => Ok(answer.split_off(HEADER)),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// An address at which connections are neither taken nor refused: the queue of a socket that nobody
/// accepts on is full, so that further connections wait.
pub struct Blackhole {
    addr: SocketAddr,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl Blackhole {
    /// Fills the shortest queue that there is.
    pub fn new() -> io::Result<Blackhole> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        // Listening again changes the length of the queue; 0 leaves room for one connection.
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0)?)?;
        let addr = listener.local_addr()?;
        let mut waiting = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(200)) {
            waiting.push(stream);
        }
        Ok(Blackhole { addr, _listener: listener, _waiting: waiting })
    }

    /// Where nobody answers.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Client;

    #[test]
    fn requests_are_recorded_and_answered() {
        let origin = Origin::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let mut client = Client::connect(origin.addr()).unwrap();
        client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc").unwrap();
        assert_eq!(client.read_response(false).unwrap().body, b"ok");
        client
            .send(b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n")
            .unwrap();
        assert_eq!(client.read_response(false).unwrap().body, b"ok");
        origin.wait_requests(2);
        let requests = origin.requests();
        assert_eq!(
            (requests[0].line(), &requests[0].body[..]),
            ("POST /a HTTP/1.1".into(), &b"abc"[..])
        );
        assert_eq!((requests[1].value("host"), &requests[1].body[..]), (None, &b"de"[..]));
        assert_eq!((origin.connections(), origin.open()), (1, 1));
        drop(client);
        origin.wait_closed(1);
    }

    #[test]
    fn what_waits_to_be_read_is_known() {
        use std::io::{Read, Write};
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, remote) = listener.accept().unwrap();
        let local = server.local_addr().unwrap();
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = (local, remote) else { panic!("IPv4") };
        assert_eq!(unread(local, remote), Some(0));
        client.write_all(b"hello").unwrap();
        assert_eq!((unread(local, remote), unread_in_table(from, to)), (Some(5), Some(5)));
        assert!(unread_of_one(from, to).is_none_or(|waiting| waiting == 5));
        server.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(unread(local, remote), Some(3));
        assert_eq!(unread(remote, remote), None);
    }

    #[test]
    fn scripts_reset_hang_and_wait() {
        let gate = Gate::new();
        let behind = gate.clone();
        let origin = Origin::start(move |conn| match conn.number() {
            0 => conn.reset(),
            1 => conn.hang(),
            _ => {
                behind.wait();
                conn.send(b"now")
            }
        });
        let mut clients: Vec<_> = (0..3).map(|_| Client::connect(origin.addr()).unwrap()).collect();
        origin.wait_closed(1);
        assert!(clients[0].is_at_end().unwrap());
        gate.open();
        assert_eq!(clients[2].read_to_end().unwrap(), b"now");
        origin.wait_closed(2);
        assert_eq!(origin.open(), 1);
    }

    #[test]
    fn pieces_are_read_one_by_one() {
        let origin = Origin::start(|conn| conn.send_pieces(&[b"a", b"b", b"c"]));
        let mut stream = TcpStream::connect(origin.addr()).unwrap();
        let mut piece = [0; 16];
        for _ in 0..3 {
            assert_eq!(stream.read(&mut piece).unwrap(), 1);
        }
    }

    #[test]
    fn nobody_gets_into_a_blackhole() {
        let hole = Blackhole::new().unwrap();
        let tried = TcpStream::connect_timeout(&hole.addr(), Duration::from_millis(100));
        assert_eq!(tried.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    #[should_panic(expected = "a claim that does not hold")]
    fn a_script_that_panics_fails_the_test() {
        let origin = Origin::start(|_| panic!("a claim that does not hold"));
        let _client = Client::connect(origin.addr()).unwrap();
        origin.wait_closed(1);
    }
}
