//! The end of a connection: reading on for a while, so that the last response is not lost to a reset
//! (`lingering_close`).

use std::{future::poll_fn, task::Poll};

use forebay_rt::{clock, pool, timer::Timer, transport::Transport};

/// How long a client may leave no room for the last words of TLS (`ngx_ssl_shutdown`).
const LAST_WORDS_MS: u64 = 3000;

/// Sends FIN, and before it what TLS has to say; whether that went out.
pub async fn shut_down<T: Transport>(io: &mut T, timer: &Timer) -> bool {
    timer.arm(LAST_WORDS_MS);
    poll_fn(|cx| match io.poll_shutdown(cx) {
        Poll::Ready(done) => Poll::Ready(done.is_ok()),
        Poll::Pending => timer.poll_expired(cx).map(|()| false),
    })
    .await
}

/// Sends FIN, then reads and throws away until the client closes, is silent for `timeout_ms`, or
/// `time_ms` are over.
pub async fn linger<T: Transport>(io: &mut T, timer: &Timer, time_ms: u64, timeout_ms: u64) {
    let end = clock::now_ms().saturating_add(time_ms);
    if !shut_down(io, timer).await {
        return;
    }
    loop {
        let left = end.saturating_sub(clock::now_ms());
        if left == 0 {
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
    fn a_client_without_room_for_the_end_is_not_waited_for() {
        clock::pause();
        let (mut io, timer) = (Line::default(), Timer::new());
        io.0.is_full.set(true);
        let mut lingering = pin!(linger(&mut io, &timer, 30_000, 5_000));
        let mut poll = || lingering.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        clock::advance(LAST_WORDS_MS);
        assert!(poll().is_ready());
    }
}
