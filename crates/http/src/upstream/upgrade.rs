//! The tunnel after an upgrade or a CONNECT: bytes in both directions, until both sides have said all
//! (`ngx_http_upstream_process_upgraded`).
//!
//! DIFFERS(tunnel-half-close): when one side has ended, the other may go on; nginx closes both, and
//! what was on its way back is lost.
//!
//! Invariant: a tunnel without traffic holds no buffer.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    rc::Rc,
    task::{Context, Poll, ready},
};

use forebay_rt::{timer::Timer, transport::Transport};
use forebay_session::log::Severity;

use super::{State, body::Origin, buffers};

/// A tunnel that begins when the head of the answer has reached the client.
pub struct Tunnel {
    /// The other end.
    pub origin: Origin,
    /// What it sent behind its head.
    pub early: Vec<u8>,
    /// How much is read at once in each direction.
    pub buffer_bytes: usize,
    /// How long nothing may move, milliseconds.
    pub read_timeout_ms: u64,
    /// The same while the other end takes nothing.
    pub send_timeout_ms: u64,
    /// The same while the client takes nothing.
    pub client_timeout_ms: u64,
    /// What the request knows of its upstream.
    pub state: Rc<State>,
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tunnel")
    }
}

/// What went through a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// To the client, bytes.
    pub sent: u64,
    /// Whether both sides have ended it, or the server has closed it; else it timed out or broke.
    pub whole: bool,
}

/// One direction.
struct Pipe {
    buf: Vec<u8>,
    /// How much is read at once.
    bytes: usize,
    at: usize,
    ended: bool,
    done: bool,
    moved: u64,
}

/// Which end of a direction failed.
enum Broken {
    From(io::Error),
    To(io::Error),
}

impl Pipe {
    fn new(buf: Vec<u8>, bytes: usize) -> Pipe {
        Pipe { buf, bytes, at: 0, ended: false, done: false, moved: 0 }
    }

    /// Whether something waits to be taken.
    fn is_blocked(&self) -> bool {
        self.at < self.buf.len()
    }

    /// Moves what can be moved; ready when this direction is over.
    fn poll(
        &mut self,
        from: &mut impl Transport,
        to: &mut impl Transport,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        loop {
            if self.done {
                return Poll::Ready(Ok(()));
            }
            if self.is_blocked() {
                let slices = [IoSlice::new(&self.buf[self.at..])];
                let written = ready!(to.poll_write(cx, &slices, false)).map_err(Broken::To)?;
                self.at += written;
                self.moved += written as u64;
                continue;
            }
            if self.ended {
                ready!(to.poll_shutdown(cx)).map_err(Broken::To)?;
                self.done = true;
                continue;
            }
            let mut buf = std::mem::take(&mut self.buf);
            buf.clear();
            self.at = 0;
            if buf.capacity() == 0 {
                buf = buffers::take(self.bytes);
            }
            match from.poll_read(cx, &mut buf) {
                Poll::Pending => {
                    buffers::give_back(buf);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0)) => {
                    buffers::give_back(buf);
                    self.ended = true;
                }
                Poll::Ready(Ok(_)) => self.buf = buf,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Broken::From(error))),
            }
        }
    }

    /// The same, where `back` comes from the one it goes to: who has said all that he had to say, and takes
    /// nothing more, has closed. That ends this direction, but not what is still on its way back.
    fn until_closed(
        &mut self,
        outcome: Poll<Result<(), Broken>>,
        back: &Pipe,
    ) -> Poll<Result<(), Broken>> {
        if back.ended && matches!(outcome, Poll::Ready(Err(Broken::To(_)))) {
            buffers::give_back(std::mem::take(&mut self.buf));
            (self.at, self.done) = (0, true);
            return Poll::Ready(Ok(()));
        }
        outcome
    }
}

impl Tunnel {
    /// Runs the tunnel to its end; `ahead`: what the client sent behind its head.
    pub async fn run<T: Transport>(self, io: &mut T, timer: &Timer, ahead: Vec<u8>) -> Moved {
        let Tunnel { origin, early, state, buffer_bytes, .. } = self;
        let timeouts = (self.read_timeout_ms, self.send_timeout_ms, self.client_timeout_ms);
        let Origin { mut link, lease, .. } = origin;
        // What came behind the head was received with it.
        let received_early = early.len() as u64;
        let (mut up, mut down) = (Pipe::new(ahead, buffer_bytes), Pipe::new(early, buffer_bytes));
        let mut patience = Patience::of(&up, &down, timeouts);
        timer.arm(patience.ms);
        let end = poll_fn(|cx| {
            let before = up.moved + down.moved;
            let sent = up.poll(io, &mut link.stream, cx);
            let got = down.poll(&mut link.stream, io, cx);
            let sent = up.until_closed(sent, &down);
            let now = Patience::of(&up, &down, timeouts);
            if up.moved + down.moved > before || now != patience {
                patience = now;
                timer.arm(patience.ms);
            }
            match (sent, got) {
                (Poll::Ready(Err(broken)), _) => Poll::Ready(End::Broken(broken, true)),
                (_, Poll::Ready(Err(broken))) => Poll::Ready(End::Broken(broken, false)),
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(End::Over),
                _ => timer.poll_expired(cx).map(|()| End::TimedOut(patience)),
            }
        })
        .await;
        state.with(|attempt| {
            attempt.sent += up.moved;
            attempt.received += down.moved.saturating_sub(received_early);
            attempt.response_ms = Some(attempt.elapsed_ms());
        });
        drop(lease);
        let whole = matches!(end, End::Over);
        end.tell(&state);
        Moved { sent: down.moved, whole }
    }
}

/// How long nothing may move, and whose silence that is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Patience {
    ms: u64,
    with_client: bool,
}

impl Patience {
    /// The shortest that holds: with the server always, and with whoever takes nothing.
    fn of(up: &Pipe, down: &Pipe, (read_ms, send_ms, client_ms): (u64, u64, u64)) -> Patience {
        let server_ms = if up.is_blocked() { read_ms.min(send_ms) } else { read_ms };
        match down.is_blocked() && client_ms < server_ms {
            true => Patience { ms: client_ms, with_client: true },
            false => Patience { ms: server_ms, with_client: false },
        }
    }
}

enum End {
    Over,
    TimedOut(Patience),
    /// Whether it was the direction to the server.
    Broken(Broken, bool),
}

impl End {
    fn tell(self, state: &State) {
        const DOING: &str = "while proxying upgraded connection";
        match self {
            End::Over => {}
            End::TimedOut(patience) => {
                let who = if patience.with_client { "client" } else { "upstream" };
                let text = format!("{who} timed out (110: Connection timed out) {DOING}");
                state.complain(Severity::Info, text);
            }
            End::Broken(broken, up) => {
                let (call, error, of_client) = match broken {
                    Broken::From(error) => ("recv()", error, up),
                    Broken::To(error) => ("send()", error, !up),
                };
                // Clients come and go.
                let severity = if of_client { Severity::Info } else { Severity::Error };
                let cause = forebay_rt::errno::Errno(&error);
                state.complain(severity, format!("{call} failed ({cause}) {DOING}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_rt::{task::block_on, transport::Socket};
    use std::{
        io::{Read, Write},
        net::Shutdown,
        os::unix::net::UnixStream,
    };

    fn pair() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Socket::new(ours.into()), theirs)
    }

    #[test]
    fn one_end_of_a_tunnel_may_end_before_the_other() {
        block_on(async {
            let ((mut a, mut left), (mut b, mut right)) = (pair(), pair());
            let mut up = Pipe::new(b"early ".to_vec(), 4096);
            let mut down = Pipe::new(Vec::new(), 4096);
            left.write_all(b"question").unwrap();
            left.shutdown(Shutdown::Write).unwrap();
            let asked = poll_fn(|cx| up.poll(&mut a, &mut b, cx)).await;
            assert!(asked.is_ok());
            let mut text = String::new();
            right.read_to_string(&mut text).unwrap();
            assert_eq!(text, "early question");
            // Only now the other side speaks.
            right.write_all(b"answer").unwrap();
            drop(right);
            assert!(poll_fn(|cx| down.poll(&mut b, &mut a, cx)).await.is_ok());
            text.clear();
            left.read_to_string(&mut text).unwrap();
            assert_eq!((&text[..], up.moved, down.moved), ("answer", 14, 6));
            assert_eq!(up.buf.capacity() + down.buf.capacity(), 0);
        });
    }

    #[test]
    fn who_has_ended_need_not_take_anything() {
        block_on(async {
            let ((mut a, mut left), (mut b, mut right)) = (pair(), pair());
            let (mut up, mut down) = (Pipe::new(Vec::new(), 4096), Pipe::new(Vec::new(), 4096));
            right.write_all(b"bye").unwrap();
            left.write_all(b"bye, too").unwrap();
            drop(right);
            let early = poll_fn(|cx| {
                let outcome = up.poll(&mut a, &mut b, cx);
                up.until_closed(outcome, &down)
            });
            assert!(matches!(early.await, Err(Broken::To(_))), "it may have more to say");
            assert!(poll_fn(|cx| down.poll(&mut b, &mut a, cx)).await.is_ok());
            let late = poll_fn(|cx| {
                let outcome = up.poll(&mut a, &mut b, cx);
                up.until_closed(outcome, &down)
            });
            assert!(late.await.is_ok());
            assert!(up.done && !up.is_blocked());
            let mut text = [0; 3];
            left.read_exact(&mut text).unwrap();
            assert_eq!(&text, b"bye");
        });
    }

    #[test]
    fn whoever_takes_nothing_has_a_time_of_his_own() {
        let (quiet, full) = (Pipe::new(Vec::new(), 1), Pipe::new(b"x".to_vec(), 1));
        let timeouts = (30, 20, 10);
        for (up, down, ms, with_client) in [
            (&quiet, &quiet, 30, false),
            (&full, &quiet, 20, false),
            (&quiet, &full, 10, true),
            (&full, &full, 10, true),
        ] {
            assert!(Patience::of(up, down, timeouts) == Patience { ms, with_client });
        }
        assert!(!Patience::of(&quiet, &full, (30, 20, 40)).with_client);
    }
}
