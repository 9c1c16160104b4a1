//! A connection from its beginning to its end.

use std::{
    future::{Future, poll_fn},
    rc::Rc,
};

use forebay_rt::{timer::Timer, transport::Transport};

use super::{
    conn::{Conn, End},
    stream,
};
use crate::{h1, request::Connection, worker::Listening};

/// Serves a connection to its end.
///
/// `first`: what was read already, from the preface on. `open` lives as long as the connection does.
// As in HTTP/1: an `async fn` would keep each argument twice.
#[allow(clippy::manual_async_fn)]
pub fn serve<T: Transport, G: 'static>(
    open: G,
    mut io: T,
    connection: Rc<Connection>,
    listening: Rc<Listening>,
    first: Option<Box<[u8]>>,
) -> impl Future<Output = ()> {
    async move {
        let _open = &open;
        let timer = Timer::new();
        let mut conn = Box::new(Conn::new(stream::run, connection, listening, first));
        match poll_fn(|cx| conn.poll(&mut io, &timer, cx)).await {
            End::Gone => {}
            // Nothing is expected of the client; a linger would only keep an idle connection longer.
            End::Idle => _ = h1::shut_down(&mut io, &timer).await,
            End::Linger => {
                h1::linger(&mut io, &timer, conn.patience()).await;
            }
            End::TimedOut { resets } => {
                if resets {
                    io.reset_on_close();
                }
            }
        }
        // What is logged now may tell of the connection (`$tcpinfo_rtt`).
        conn.abandon();
        drop(io);
        poll_fn(|cx| conn.poll_abandoned(cx)).await;
    }
}
