//! What a server must survive: many requests, many connections, slow clients, no descriptors, full
//! disks, files that change while they are sent, and, under load, reloads, kills, rotations, upgrades.
//!
//! `FOREBAY_BIN=/usr/sbin/nginx cargo test -p forebay-server --test survive` tests the tests.
//! Invariant: each test has a server of its own, and waits for what it can see, never for a time.

mod connections;
mod descriptors;
mod disk;
mod files;
mod load;
mod rotation;
mod slow;
mod tls;
mod upgrade;
mod upheaval;

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use forebay_testkit::raw::{Client, ReadError, Response};
use forebay_testkit::server::binary;
use forebay_testkit::{Kind, Server};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// How long a test waits for what must come.
const LIMIT: Duration = Duration::from_secs(30);

/// A configuration with one server; `main` are directives outside of `http`, `inside` those of the
/// server.
fn conf(main: &str, inside: &str) -> String {
    format!(
        "{main}
        error_log {{prefix}}/error.log notice;
        events {{ worker_connections 12000; }}
        http {{
            {{temp_paths}}
            access_log {{prefix}}/access.log;
            server {{
                listen 127.0.0.1:{{port}};
                root {{root}};
                location = /text {{ return 200 \"alive\"; }}
                {inside}
            }}
        }}"
    )
}

/// Starts the server under test.
fn start(text: &str) -> Server {
    raise_file_limit();
    Server::start(Kind::Forebay, text)
}

/// Starts it with an allocator that takes memory in small pages: in steps of 2 MB, nothing of what
/// connections take is to be seen.
fn start_to_weigh(text: &str) -> Server {
    raise_file_limit();
    let builder = Server::builder(Kind::Forebay, text).env("MIMALLOC_ALLOW_THP", "0");
    builder.start().unwrap_or_else(|e| panic!("{e}"))
}

/// Whether nginx stands in Forebay's place.
fn is_nginx() -> bool {
    binary(Kind::Forebay).is_some_and(|path| path.file_name().is_some_and(|name| name == "nginx"))
}

/// Some tests hold thousands of connections.
fn raise_file_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("getrlimit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("setrlimit");
}

fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").into_bytes()
}

/// One request on a connection that there is.
fn ask(client: &mut Client, path: &str) -> Result<Response, ReadError> {
    client.send(&request(path)).map_err(|_| ReadError::Closed)?;
    client.read_response(false)
}

/// One request on a connection of its own, which must be answered with 200.
fn ask_new(addr: SocketAddr, path: &str) -> Response {
    let mut client = Client::connect(addr).expect("connect");
    let response = ask(&mut client, path).expect("response");
    assert_eq!(response.status, 200, "{path}");
    response
}

/// A connection whose receive buffer is as small as the system lets it be, so that a sender notices a
/// reader that does not read.
fn narrow(addr: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    socket.set_recv_buffer_size(4096).expect("SO_RCVBUF");
    socket.connect(&addr.into()).expect("connect");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LIMIT)).expect("timeout");
    stream
}

/// Bytes that differ from place to place, so that what is sent twice or left out is seen.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
