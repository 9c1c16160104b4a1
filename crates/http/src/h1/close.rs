//! The end of a connection: reading on for a while, so that the last response is not lost to a reset
//! (`lingering_close`).

use std::{future::poll_fn, task::Poll};

use forebay_rt::{clock, pool, timer::Timer, transport::Transport};

/// How long a client may leave no room for the last words of TLS (`ngx_ssl_shutdown`).
const LAST_WORDS_MS: u64 = 3000;

/// Sends FIN, and before it what TLS has to say; whether that went out.
///
/// It lets the last bytes of a response go, too, so that one packet has both. That is not left to the closing
/// that follows: a client that has said more by then would be sent a reset in place of what is held back.
pub async fn shut_down<T: Transport>(io: &mut T, timer: &Timer) -> bool {
    timer.disarm();
    poll_fn(|cx| match io.poll_shutdown(cx) {
        Poll::Ready(done) => Poll::Ready(done.is_ok()),
        Poll::Pending => timer.poll_expired_after(LAST_WORDS_MS, cx).map(|()| false),
    })
    .await
}

/// For how long, and for how much, a client is read on.
#[derive(Clone, Copy)]
pub struct Patience {
    /// `lingering_time`, milliseconds: in all.
    pub time_ms: u64,
    /// `lingering_timeout`, milliseconds: of silence.
    pub timeout_ms: u64,
    /// Bytes; a client that sends more does not read what it is told.
    pub bytes: u64,
}

/// Sends FIN, then reads and throws away until the client closes, or patience ends.
pub async fn linger<T: Transport>(io: &mut T, timer: &Timer, patience: Patience) {
    let Patience { time_ms, timeout_ms, bytes: mut bytes_left } = patience;
    let end = clock::now_ms().saturating_add(time_ms);
    if !shut_down(io, timer).await {
        return;
    }
    loop {
        let left = end.saturating_sub(clock::now_ms());
        if left == 0 || bytes_left == 0 {
            return;
        }
        timer.arm(timeout_ms.min(left));
        let mut buffer = pool::buffer();
        let read = poll_fn(|cx| {
            if let Poll::Ready(read) = io.poll_read(cx, &mut buffer) {
                return Poll::Ready(read.unwrap_or(0));
            }
            timer.poll_expired(cx).map(|()| 0)
        })
        .await;
        pool::recycle(buffer);
        if read == 0 {
            return;
        }
        bytes_left = bytes_left.saturating_sub(read as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Line;
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    #[test]
    fn who_sends_on_is_not_listened_to_for_ever() {
        const MOST: usize = 512 << 10;
        clock::pause();
        let (mut io, timer) = (Line::default(), Timer::new());
        let line = Line(io.0.clone());
        line.say(&vec![b'x'; 2 * MOST]);
        let patience = Patience { time_ms: 30_000, timeout_ms: 5_000, bytes: MOST as u64 };
        let mut lingering = pin!(linger(&mut io, &timer, patience));
        assert!(lingering.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        let left = line.0.said.borrow().len();
        assert!(left > MOST / 2 && left <= MOST, "{left} bytes were left");
    }

    #[test]
    fn a_client_without_room_for_the_end_is_not_waited_for() {
        clock::pause();
        let (mut io, timer) = (Line::default(), Timer::new());
        io.0.is_full.set(true);
        let patience = Patience { time_ms: 30_000, timeout_ms: 5_000, bytes: u64::MAX };
        let mut lingering = pin!(linger(&mut io, &timer, patience));
        let mut poll = || lingering.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        clock::advance(LAST_WORDS_MS);
        assert!(poll().is_ready());
    }
}
