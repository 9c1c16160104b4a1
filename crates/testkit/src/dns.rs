//! A scripted DNS server on 127.0.0.1, over UDP and TCP, that says exactly what a test wants said.
//! Invariant: shares no code with the resolver that it judges; remembers every query it got.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Record types.
pub const A: u16 = 1;
/// An alias.
pub const CNAME: u16 = 5;
/// IPv6.
pub const AAAA: u16 = 28;
/// Servers of a service.
pub const SRV: u16 = 33;

const POLL: Duration = Duration::from_millis(20);
const RESPONSE: u16 = 0x8180;
const TRUNCATED: u16 = 0x0200;
const HEADER: usize = 12;

/// A query as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The name, without the dot at its end.
    pub name: String,
    /// The record type.
    pub kind: u16,
    /// Its number.
    pub id: u16,
    /// Whether it came over TCP.
    pub tcp: bool,
    /// Where it came from.
    pub from: SocketAddr,
    question: Vec<u8>,
}

/// A record of an answer.
#[derive(Clone, Debug)]
pub struct Record {
    name: String,
    kind: u16,
    ttl: u32,
    data: Vec<u8>,
}

impl Record {
    /// An address, of either family.
    pub fn addr(name: &str, ttl: u32, ip: &str) -> Record {
        let (kind, data) = match ip.parse::<IpAddr>().expect("an address") {
            IpAddr::V4(ip) => (A, ip.octets().to_vec()),
            IpAddr::V6(ip) => (AAAA, ip.octets().to_vec()),
        };
        Record { name: name.to_owned(), kind, ttl, data }
    }

    /// An alias.
    pub fn cname(name: &str, ttl: u32, target: &str) -> Record {
        Record { name: name.to_owned(), kind: CNAME, ttl, data: encode(target) }
    }

    /// A server of a service.
    pub fn srv(name: &str, ttl: u32, priority: u16, weight: u16, port: u16, host: &str) -> Record {
        let mut data = Vec::new();
        for number in [priority, weight, port] {
            data.extend_from_slice(&number.to_be_bytes());
        }
        data.extend(encode(host));
        Record { name: name.to_owned(), kind: SRV, ttl, data }
    }
}

/// The bytes of one message.
#[derive(Clone, Debug)]
pub struct Reply(Vec<u8>);

impl Reply {
    /// A right answer with these records.
    pub fn records(query: &Query, records: &[Record]) -> Reply {
        let mut bytes = header(query.id, RESPONSE, 1, records.len() as u16);
        bytes.extend_from_slice(&query.question);
        for record in records {
            bytes.extend(encode(&record.name));
            bytes.extend_from_slice(&record.kind.to_be_bytes());
            bytes.extend_from_slice(&1u16.to_be_bytes());
            bytes.extend_from_slice(&record.ttl.to_be_bytes());
            bytes.extend_from_slice(&(record.data.len() as u16).to_be_bytes());
            bytes.extend_from_slice(&record.data);
        }
        Reply(bytes)
    }

    /// An answer with a response code and no records.
    pub fn code(query: &Query, code: u16) -> Reply {
        let mut bytes = header(query.id, RESPONSE | code, 1, 0);
        bytes.extend_from_slice(&query.question);
        Reply(bytes)
    }

    /// The same bytes marked as cut short.
    pub fn truncated(mut self) -> Reply {
        self.0[2] |= (TRUNCATED >> 8) as u8;
        self
    }

    /// The same with another number.
    pub fn with_id(mut self, id: u16) -> Reply {
        self.0[..2].copy_from_slice(&id.to_be_bytes());
        self
    }

    /// The same with another name in its question, of equal length.
    pub fn about(mut self, name: &str) -> Reply {
        let name = encode(name);
        self.0[HEADER..HEADER + name.len()].copy_from_slice(&name);
        self
    }

    /// Any bytes.
    pub fn raw(bytes: &[u8]) -> Reply {
        Reply(bytes.to_vec())
    }
}

fn header(id: u16, flags: u16, questions: u16, answers: u16) -> Vec<u8> {
    [id, flags, questions, answers, 0, 0].iter().flat_map(|n| n.to_be_bytes()).collect()
}

fn encode(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

type Script = dyn Fn(&Query) -> Vec<Reply> + Send + Sync;

/// A running server; stops on drop.
pub struct DnsServer {
    addr: SocketAddr,
    queries: Arc<Mutex<Vec<Query>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl DnsServer {
    /// Starts a server that says to each query what `script` returns: no message, one, or many.
    pub fn start(script: impl Fn(&Query) -> Vec<Reply> + Send + Sync + 'static) -> DnsServer {
        let (udp, tcp) = bind().expect("a port free for UDP and TCP");
        let addr = udp.local_addr().expect("bound");
        let (queries, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let desk = Desk { script: Arc::new(script), queries: queries.clone(), stop: stop.clone() };
        let (for_udp, for_tcp) = (desk.clone(), desk);
        let threads = vec![
            thread::spawn(move || for_udp.serve_udp(&udp)),
            thread::spawn(move || for_tcp.serve_tcp(&tcp)),
        ];
        DnsServer { addr, queries, stop, threads }
    }

    /// Where it listens, for UDP and TCP.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The queries so far.
    pub fn queries(&self) -> Vec<Query> {
        self.queries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn bind() -> io::Result<(UdpSocket, TcpListener)> {
    let mut last = io::ErrorKind::AddrInUse.into();
    for _ in 0..100 {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        match UdpSocket::bind(tcp.local_addr()?) {
            Ok(udp) => {
                udp.set_read_timeout(Some(POLL))?;
                tcp.set_nonblocking(true)?;
                return Ok((udp, tcp));
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

#[derive(Clone)]
struct Desk {
    script: Arc<Script>,
    queries: Arc<Mutex<Vec<Query>>>,
    stop: Arc<AtomicBool>,
}

impl Desk {
    fn answer(&self, bytes: &[u8], tcp: bool, from: SocketAddr) -> Vec<Vec<u8>> {
        let Some(query) = parse(bytes, tcp, from) else { return Vec::new() };
        self.queries.lock().unwrap_or_else(PoisonError::into_inner).push(query.clone());
        (self.script)(&query).into_iter().map(|reply| reply.0).collect()
    }

    fn serve_udp(&self, socket: &UdpSocket) {
        let mut buf = [0; 4096];
        while !self.stop.load(Ordering::Relaxed) {
            let Ok((len, from)) = socket.recv_from(&mut buf) else { continue };
            for reply in self.answer(&buf[..len], false, from) {
                let _ = socket.send_to(&reply, from);
            }
        }
    }

    fn serve_tcp(&self, listener: &TcpListener) {
        while !self.stop.load(Ordering::Relaxed) {
            let Ok((mut stream, from)) = listener.accept() else {
                thread::sleep(POLL);
                continue;
            };
            let _ = stream.set_nonblocking(false);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let (mut len, mut buf) = ([0; 2], [0; 4096]);
            let Ok(()) = stream.read_exact(&mut len) else { continue };
            let Some(query) = buf.get_mut(..usize::from(u16::from_be_bytes(len))) else { continue };
            let Ok(()) = stream.read_exact(query) else { continue };
            for reply in self.answer(query, true, from) {
                let _ = stream.write_all(&(reply.len() as u16).to_be_bytes());
                let _ = stream.write_all(&reply);
            }
        }
    }
}

fn parse(bytes: &[u8], tcp: bool, from: SocketAddr) -> Option<Query> {
    let id = u16::from_be_bytes(bytes.get(..2)?.try_into().ok()?);
    let (mut at, mut labels) = (HEADER, Vec::new());
    loop {
        let len = usize::from(*bytes.get(at)?);
        if len == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(bytes.get(at + 1..at + 1 + len)?).into_owned());
        at += 1 + len;
    }
    let kind = u16::from_be_bytes(bytes.get(at + 1..at + 3)?.try_into().ok()?);
    let question = bytes.get(HEADER..at + 5)?.to_vec();
    Some(Query { name: labels.join("."), kind, id, tcp, from, question })
}
