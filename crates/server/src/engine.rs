//! The event-loop threads of a worker, and what they are told.
//!
//! Invariant: a thread that ends, for whatever reason, makes [`Engine::ended`] readable.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::JoinHandle;

use forebay_http::Command;
use forebay_http::worker::Shared;
use forebay_rt::listen::Addr;
use forebay_rt::{affinity, worker};
use forebay_session::log::flush_batch;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::core::{Affinity, Scale};
use crate::site::Site;

/// Running threads.
pub struct Engine {
    threads: Vec<Thread>,
    /// Those that a reload made too many, with their last connections.
    leaving: Vec<Thread>,
    shared: Arc<Shared>,
    affinity: Option<Affinity>,
    /// Where the process may run at all.
    allowed: Vec<usize>,
    ended: UnixStream,
    /// The other end of `ended`, for each thread a copy.
    signal: UnixStream,
}

struct Thread {
    /// Dropped to stop at once.
    commands: Option<UnboundedSender<Command>>,
    handle: JoinHandle<()>,
    /// Set when it ends, by a panic too.
    ended: Arc<AtomicBool>,
}

impl Engine {
    /// Starts the threads, each with its socket of every group.
    pub fn start(
        scale: &Scale,
        site: &Site,
        sockets: BTreeMap<Addr, Vec<OwnedFd>>,
    ) -> io::Result<Engine> {
        let (ended, signal) = UnixStream::pair()?;
        ended.set_nonblocking(true)?;
        let mut engine = Engine {
            threads: Vec::with_capacity(scale.threads),
            leaving: Vec::new(),
            shared: Arc::new(Shared::new(connections(scale))),
            affinity: scale.affinity.clone(),
            allowed: affinity::allowed()?,
            ended,
            signal,
        };
        for (index, sockets) in dealt(sockets, scale.threads).into_iter().enumerate() {
            let thread = engine.spawn(index, site, sockets)?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    fn spawn(
        &self,
        index: usize,
        site: &Site,
        sockets: Vec<(Addr, OwnedFd)>,
    ) -> io::Result<Thread> {
        let cpus = self.cpus(index);
        let (sender, receiver) = unbounded_channel();
        let (shared, plan) = (self.shared.clone(), site.plan());
        let ended = Arc::new(AtomicBool::new(false));
        let end = End { ended: ended.clone(), signal: self.signal.try_clone()? };
        let main = move || async move {
            let _end = end;
            forebay_http::run(shared, plan, sockets, receiver).await;
        };
        let handle = worker::spawn(format!("worker {index}"), cpus, flush_batch, main)?;
        Ok(Thread { commands: Some(sender), handle, ended })
    }

    /// Where the configuration binds a thread.
    fn cpus(&self, index: usize) -> Option<Vec<usize>> {
        let cpus = self.affinity.as_ref()?.cpus(index, &self.allowed);
        Some(cpus).filter(|cpus| !cpus.is_empty())
    }

    /// Requests from now on run under that configuration, in so many threads. The sockets are all of
    /// each address that is among them; where the number of threads changes, of every address.
    ///
    /// An error leaves everything as it was.
    pub fn reload(
        &mut self,
        scale: &Scale,
        site: &Site,
        sockets: BTreeMap<Addr, Vec<OwnedFd>>,
    ) -> io::Result<()> {
        let count = self.threads.len();
        let before = std::mem::replace(&mut self.affinity, scale.affinity.clone());
        let mut hands = dealt(sockets, scale.threads);
        let new = hands.split_off(count.min(scale.threads));
        let new = new.into_iter().enumerate();
        // Dropped on an error, threads that have just begun stop at once.
        let new: Vec<Thread> = new
            .map(|(index, sockets)| self.spawn(count + index, site, sockets))
            .collect::<io::Result<_>>()
            .inspect_err(|_| self.affinity.clone_from(&before))?;
        self.shared.max_connections.store(connections(scale), Relaxed);
        for (thread, sockets) in self.threads.iter().zip(hands) {
            thread.tell(Command::Reload { plan: site.plan(), sockets });
        }
        if self.affinity != before {
            for (index, thread) in self.threads.iter().enumerate() {
                let cpus = self.cpus(index).unwrap_or_else(|| self.allowed.clone());
                thread.tell(Command::Pin(cpus));
            }
        }
        let too_many = self.threads.split_off(count.min(scale.threads));
        too_many.iter().for_each(|thread| thread.tell(Command::Leave));
        self.leaving.extend(too_many);
        self.threads.extend(new);
        Ok(())
    }

    /// Stops accepting; threads end when their last connection does.
    pub fn quit(&self) {
        self.all().for_each(|thread| thread.tell(Command::Quit));
    }

    fn all(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().chain(&self.leaving)
    }

    /// Ends all connections where they are and waits for the threads.
    pub fn stop(mut self) {
        self.threads.append(&mut self.leaving);
        for thread in &mut self.threads {
            thread.commands = None;
        }
        for thread in self.threads {
            // A panic was told by the hook already.
            let _ = thread.handle.join();
        }
    }

    /// Becomes readable when a thread has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Whether any thread has ended that was not to, and whether all have.
    pub fn progress(&mut self) -> Progress {
        // What woke us is read, to be woken again by the next.
        let _ = self.ended.read(&mut [0; 64]);
        self.leaving.retain(|thread| !thread.ended.load(Acquire));
        match self.threads.iter().filter(|thread| thread.ended.load(Acquire)).count() {
            0 => Progress::Running,
            count if count == self.threads.len() && self.leaving.is_empty() => Progress::Ended,
            _ => Progress::Partly,
        }
    }
}

/// How far the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All threads run.
    Running,
    /// Some have ended.
    Partly,
    /// None runs.
    Ended,
}

impl Thread {
    fn tell(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A thread that has ended takes no commands; `progress` tells.
            let _ = commands.send(command);
        }
    }
}

/// Tells that its thread ends: first that it does, then to look.
struct End {
    ended: Arc<AtomicBool>,
    signal: UnixStream,
}

impl Drop for End {
    fn drop(&mut self) {
        self.ended.store(true, Release);
        // Where there is no room, those who look are told already.
        let _ = self.signal.write(&[0]);
    }
}

/// `worker_connections`.
fn connections(scale: &Scale) -> usize {
    usize::try_from(scale.connections).unwrap_or(usize::MAX)
}

/// Deals the sockets of each group out to the threads; when there are more sockets than threads,
/// some get several, since the queue of each must be served.
fn dealt(sockets: BTreeMap<Addr, Vec<OwnedFd>>, threads: usize) -> Vec<Vec<(Addr, OwnedFd)>> {
    let mut hands: Vec<Vec<(Addr, OwnedFd)>> = (0..threads).map(|_| Vec::new()).collect();
    for (addr, group) in sockets {
        for (index, socket) in group.into_iter().enumerate() {
            hands[index % threads].push((addr.clone(), socket));
        }
    }
    hands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_socket_is_dealt() {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let addr = Addr::Unix("/a".into());
        for (sockets, threads, expected) in
            [(3, 3, vec![1, 1, 1]), (3, 2, vec![2, 1]), (1, 2, vec![1, 0]), (0, 1, vec![0])]
        {
            let group = (0..sockets).map(|_| null()).collect();
            let dealt = dealt(BTreeMap::from([(addr.clone(), group)]), threads);
            assert_eq!(dealt.iter().map(Vec::len).collect::<Vec<_>>(), expected);
        }
    }
}
