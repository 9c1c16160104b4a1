//! Clients that ask without a pause until they are told to stop, and keep account of what became of
//! each request.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use forebay_testkit::raw::{Client, ReadError};
use forebay_testkit::wait_for;

use crate::LIMIT;

/// What became of the requests of a load.
#[derive(Debug, Default)]
pub struct Tally {
    /// Answered as they should be.
    pub answered: u64,
    /// The server closed a kept connection before it answered a byte: what every client tries
    /// again on a new one (RFC 9112 §9.5), and was answered there.
    pub retried: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Everything else, in words.
    pub failed: Vec<String>,
}

/// A running load.
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Tally>>,
}

struct Worker {
    addr: SocketAddr,
    keep: bool,
    path: Box<dyn Fn(u64) -> String + Send>,
    answered: Arc<AtomicU64>,
    tally: Tally,
}

impl Load {
    /// As many clients as named that keep their connections, and as many that do not. `path` makes
    /// the target of a request from the client's number and the request's.
    pub fn start(
        addr: SocketAddr,
        kept: usize,
        new: usize,
        path: impl Fn(usize, u64) -> String + Send + Clone + 'static,
    ) -> Load {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..kept + new).map(|number| {
            let path = path.clone();
            let worker = Worker {
                addr,
                keep: number < kept,
                path: Box::new(move |request| path(number, request)),
                answered: answered.clone(),
                tally: Tally::default(),
            };
            let stop = stop.clone();
            std::thread::spawn(move || worker.run(&stop))
        });
        let clients = clients.collect();
        Load { stop, answered, clients }
    }

    /// Requests that were answered so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until that many more requests were answered.
    pub fn wait_for_more(&self, requests: u64) {
        let goal = self.answered() + requests;
        assert!(wait_for(|| self.answered() >= goal, LIMIT), "the load stands still");
    }

    /// Ends it and tells what became of all requests.
    pub fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Tally::default();
        for client in self.clients {
            let tally = client.join().expect("client");
            sum.answered += tally.answered;
            sum.retried += tally.retried;
            sum.refused += tally.refused;
            sum.failed.extend(tally.failed);
        }
        sum
    }
}

impl Worker {
    fn run(mut self, stop: &AtomicBool) -> Tally {
        let (mut number, mut kept) = (0, None);
        while !stop.load(Ordering::Relaxed) {
            kept = self.one(number, kept);
            number += 1;
        }
        self.tally
    }

    fn connect(&mut self) -> Option<Client> {
        match Client::connect(self.addr) {
            Ok(client) => Some(client),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                self.tally.refused += 1;
                None
            }
            Err(error) => {
                self.tally.failed.push(format!("connect: {error}"));
                None
            }
        }
    }

    /// Makes one request; answers the connection if it can be used again.
    fn one(&mut self, number: u64, kept: Option<Client>) -> Option<Client> {
        let path = (self.path)(number);
        let connection = if self.keep { "keep-alive" } else { "close" };
        let text = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: {connection}\r\n\r\n");
        let mut was_kept = kept.is_some();
        let mut client = match kept {
            Some(client) => client,
            None => self.connect()?,
        };
        loop {
            let sent = client.send(text.as_bytes()).map_err(|_| ReadError::Closed);
            match sent.and_then(|()| client.read_response(false)) {
                Ok(response) if response.status == 200 => {
                    self.tally.answered += 1;
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    return (self.keep && !response.closes()).then_some(client);
                }
                Ok(response) => {
                    self.tally.failed.push(format!("{path}: {}", response.status));
                    return None;
                }
                Err(ReadError::Closed) if was_kept => {
                    self.tally.retried += 1;
                    was_kept = false;
                    client = self.connect()?;
                }
                Err(error) => {
                    self.tally.failed.push(format!("{path}: {error}"));
                    return None;
                }
            }
        }
    }
}
