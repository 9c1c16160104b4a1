//! The event-loop threads of a worker, and what they are told.
//!
//! Invariant: a thread that ends, for whatever reason, makes [`Engine::ended`] readable.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_http::Command;
use forebay_http::worker::Shared;
use forebay_rt::listen::Addr;
use forebay_rt::{affinity, worker};
use forebay_session::log::flush_batch;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::core::Fixed;
use crate::site::Site;

/// Running threads.
pub struct Engine {
    threads: Vec<Thread>,
    ended: UnixStream,
}

struct Thread {
    /// Dropped to stop at once.
    commands: Option<UnboundedSender<Command>>,
    handle: JoinHandle<()>,
}

impl Engine {
    /// Starts the threads, each with its socket of every group.
    pub fn start(
        fixed: &Fixed,
        site: &Site,
        sockets: BTreeMap<Addr, Vec<OwnedFd>>,
    ) -> io::Result<Engine> {
        let connections = usize::try_from(fixed.connections).unwrap_or(usize::MAX);
        let shared = Arc::new(Shared::new(fixed.threads, connections));
        let (ended, signal) = UnixStream::pair()?;
        ended.set_nonblocking(true)?;
        let allowed = affinity::allowed()?;
        let mut engine = Engine { threads: Vec::with_capacity(fixed.threads), ended };
        for (index, sockets) in dealt(sockets, fixed.threads).into_iter().enumerate() {
            let cpus = fixed.affinity.as_ref().map(|affinity| affinity.cpus(index, &allowed));
            let (sender, receiver) = unbounded_channel();
            let (shared, plan) = (shared.clone(), site.plan());
            let end = End(signal.try_clone()?);
            let main = move || async move {
                let _end = end;
                forebay_http::run(index, shared, plan, sockets, receiver).await;
            };
            let cpus = cpus.filter(|cpus| !cpus.is_empty());
            let handle = worker::spawn(format!("worker {index}"), cpus, flush_batch, main)?;
            engine.threads.push(Thread { commands: Some(sender), handle });
        }
        Ok(engine)
    }

    /// Requests from now on run under that configuration; sockets are those of new addresses.
    pub fn reload(&self, site: &Site, sockets: BTreeMap<Addr, Vec<OwnedFd>>) {
        for (thread, sockets) in self.threads.iter().zip(dealt(sockets, self.threads.len())) {
            thread.tell(Command::Reload { plan: site.plan(), sockets });
        }
    }

    /// Stops accepting; threads end when their last connection does.
    pub fn quit(&self) {
        self.threads.iter().for_each(|thread| thread.tell(Command::Quit));
    }

    /// Ends all connections where they are and waits for the threads.
    pub fn stop(mut self) {
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

    /// Whether any thread has ended, and whether all have.
    pub fn progress(&mut self) -> Progress {
        // What woke us is read, to be woken again by the next.
        let _ = self.ended.read(&mut [0; 64]);
        match self.threads.iter().filter(|thread| thread.handle.is_finished()).count() {
            0 => Progress::Running,
            count if count == self.threads.len() => Progress::Ended,
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

/// Writes a byte when its thread ends, by a panic too.
struct End(UnixStream);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.write(&[0]);
    }
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
