//! The end of a connection: reading on for a while, so that the last response is not lost to a reset
//! (`lingering_close`).

use std::{future::poll_fn, task::Poll};

use forebay_rt::{clock, pool, timer::Timer, transport::Transport};

/// Sends FIN, then reads and throws away until the client closes, is silent for `timeout_ms`, or
/// `time_ms` are over.
pub async fn linger<T: Transport>(io: &mut T, timer: &Timer, time_ms: u64, timeout_ms: u64) {
    let end = clock::now_ms().saturating_add(time_ms);
    if poll_fn(|cx| io.poll_shutdown(cx)).await.is_err() {
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
