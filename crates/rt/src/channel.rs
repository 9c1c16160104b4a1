//! The line between master and worker: messages of bytes and descriptors over a socketpair
//! (nginx: ngx_channel.c).
//!
//! Both sides block, with a deadline: the master has one thread and nothing else to do, a worker
//! reads in a thread of its own. A message goes as packets (SOCK_SEQPACKET): first one with the
//! lengths, then chunks of bytes, then batches of descriptors (SCM_RIGHTS).
//!
//! Invariant: moves bytes and descriptors; what they mean is not known here. The other side may
//! be a taken-over worker, so the receiver names its bounds and nothing above them is stored.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

use crate::signals::wait_for;

/// One end of the line.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// What was sent in one piece.
#[derive(Debug, Default)]
pub struct Message {
    /// The content.
    pub bytes: Vec<u8>,
    /// Descriptors, in the order in which they were sent.
    pub fds: Vec<OwnedFd>,
}

/// What a receiver takes in one message.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of content.
    pub bytes: usize,
    /// Descriptors.
    pub fds: usize,
}

/// Two ends that belong together; both are closed by an exec.
pub fn pair() -> io::Result<(Channel, Channel)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((Channel { socket: a }, Channel { socket: b }))
}

impl Channel {
    /// Sends a message; fails with `TimedOut` when the other side does not read in time. After
    /// an error the line is out of step and must be closed.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&(bytes.len() as u64).to_be_bytes());
        head[8..].copy_from_slice(&(fds.len() as u64).to_be_bytes());
        self.send_packet(&head, &[], deadline)?;
        for chunk in bytes.chunks(CHUNK) {
            self.send_packet(chunk, &[], deadline)?;
        }
        for batch in fds.chunks(BATCH) {
            // A packet of no bytes would read as the end of the line.
            self.send_packet(&[0], batch, deadline)?;
        }
        Ok(())
    }

    /// Receives a message, or `None` when the other side has closed the line.
    ///
    /// `timeout` holds from the call to the end of the message; `None` waits for ever for it to
    /// begin and then 30 seconds.
    pub fn receive(
        &self,
        limits: Limits,
        timeout: Option<Duration>,
    ) -> io::Result<Option<Message>> {
        let mut deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut head = [0; HEAD];
        let mut fds = Vec::new();
        match self.receive_packet(&mut head, &mut fds, deadline)? {
            0 => return Ok(None),
            HEAD => {}
            _ => return Err(broken("bad head")),
        }
        let [len, fd_count] = [&head[..8], &head[8..]]
            .map(|field| field.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)));
        if len > limits.bytes as u64 || fd_count > limits.fds as u64 || !fds.is_empty() {
            return Err(broken("too long"));
        }
        deadline.get_or_insert_with(|| Instant::now() + WHOLE_MESSAGE);
        // Within the limits just checked, so both fit.
        let (len, fd_count) = (len as usize, fd_count as usize);
        let bytes = self.receive_bytes(len, deadline)?;
        while fds.len() < fd_count {
            let before = fds.len();
            let got = self.receive_packet(&mut [0; 1], &mut fds, deadline)?;
            if got != 1 || fds.len() == before || fds.len() > fd_count {
                return Err(broken("descriptors missing"));
            }
        }
        Ok(Some(Message { bytes, fds }))
    }

    fn receive_bytes(&self, len: usize, deadline: Option<Instant>) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut fds = Vec::new();
        while bytes.len() < len {
            // Grows as chunks arrive: a length alone reserves nothing.
            let start = bytes.len();
            let chunk = (len - start).min(CHUNK);
            bytes.resize(start + chunk, 0);
            let got = self.receive_packet(&mut bytes[start..], &mut fds, deadline)?;
            if got != chunk || !fds.is_empty() {
                return Err(broken("cut short"));
            }
        }
        Ok(bytes)
    }

    fn send_packet(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(broken("too many descriptors in a batch"));
            }
            let result =
                sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
            match result {
                Ok(sent) if sent == bytes.len() => return Ok(()),
                Ok(_) => return Err(broken("sent in part")),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::POLLOUT, Some(deadline))?,
                Err(err) => return Err(err.into()),
            }
        }
    }

    fn receive_packet(
        &self,
        bytes: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let result = recvmsg(&self.socket, &mut [IoSliceMut::new(bytes)], &mut control, flags);
            let message = match result {
                Ok(message) => message,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => {
                    self.wait(PollFlags::POLLIN, deadline)?;
                    continue;
                }
                // The other process died with our message unread: the line's end all the same.
                Err(rustix::io::Errno::CONNRESET) => return Ok(0),
                Err(err) => return Err(err.into()),
            };
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = part {
                    fds.extend(received);
                }
            }
            // CTRUNC: we have no room for more descriptors (RLIMIT_NOFILE), the rest is lost.
            if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
                return Err(broken("truncated"));
            }
            return Ok(message.bytes);
        }
    }

    fn wait(&self, events: PollFlags, deadline: Option<Instant>) -> io::Result<()> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ready = wait_for(&[self.socket.as_fd()], events, left)?;
        if ready.contains(&true) { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("channel message: {what}"))
}

/// Two lengths, eight bytes each, big-endian.
const HEAD: usize = 16;
/// Bytes in a packet; well below the default send buffer.
const CHUNK: usize = 32 * 1024;
/// Descriptors in a packet; the kernel's limit is 253 (SCM_MAX_FD).
const BATCH: usize = 250;
/// For a message that has begun to arrive.
const WHOLE_MESSAGE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    const LIMITS: Limits = Limits { bytes: 1 << 20, fds: 600 };
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn messages_of_many_chunks_and_batches_arrive_whole() {
        let (master, worker) = pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        for (len, fds) in [(0, 0), (1, 1), (CHUNK, BATCH), (CHUNK + 1, BATCH + 1), (300_000, 501)] {
            let bytes: Vec<u8> = (0..len).map(|i: usize| (i % 251) as u8).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| master.send(&bytes, &vec![null.as_fd(); fds], SOON).unwrap());
                let message = worker.receive(LIMITS, Some(SOON)).unwrap().unwrap();
                assert!(message.bytes == bytes && message.fds.len() == fds);
            });
        }
    }

    #[test]
    fn descriptor_works_on_the_other_side() {
        let (master, worker) = pair().unwrap();
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(std::env::temp_dir().join(format!("forebay-channel-{}", std::process::id())))
            .unwrap();
        file.write_all(b"through").unwrap();
        master.send(b"", &[file.as_fd()], SOON).unwrap();
        let message = worker.receive(LIMITS, Some(SOON)).unwrap().unwrap();
        let mut other = File::from(message.fds.into_iter().next().unwrap());
        other.rewind().unwrap();
        let mut text = String::new();
        other.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        std::fs::remove_file(
            std::env::temp_dir().join(format!("forebay-channel-{}", std::process::id())),
        )
        .unwrap();
    }

    #[test]
    fn end_of_the_line_is_not_a_message() {
        let (master, worker) = pair().unwrap();
        drop(master);
        assert!(worker.receive(LIMITS, None).unwrap().is_none());
    }

    #[test]
    fn message_above_the_limits_is_refused() {
        let null = File::open("/dev/null").unwrap();
        for (bytes, fds) in [(vec![0; 11], 0), (vec![], 2)] {
            let (master, worker) = pair().unwrap();
            worker.send(&bytes, &vec![null.as_fd(); fds], SOON).unwrap();
            let err = master.receive(Limits { bytes: 10, fds: 1 }, Some(SOON)).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn malformed_packets_are_refused() {
        let null = File::open("/dev/null").unwrap();
        let head = |len: u64, fds: u64| [len.to_be_bytes(), fds.to_be_bytes()].concat();
        let cases: [&[(Vec<u8>, usize)]; 5] = [
            &[(vec![1, 2, 3], 0)],
            &[(vec![0; 17], 0)],
            &[(head(0, 0), 1)],
            &[(head(5, 0), 0), (vec![0; 4], 0)],
            &[(head(0, 1), 0), (vec![0], 0)],
        ];
        for packets in cases {
            let (master, worker) = pair().unwrap();
            for (bytes, fds) in packets {
                let deadline = Instant::now() + SOON;
                worker.send_packet(bytes, &vec![null.as_fd(); *fds], deadline).unwrap();
            }
            let err = master.receive(LIMITS, Some(SOON)).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::InvalidData, "{packets:?}");
        }
    }

    #[test]
    fn silence_and_a_reader_that_stopped_time_out() {
        let (master, worker) = pair().unwrap();
        let none = Some(Duration::ZERO);
        assert_eq!(worker.receive(LIMITS, none).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let err = master.send(&vec![0; 10 << 20], &[], Duration::ZERO).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::TimedOut);
    }
}
