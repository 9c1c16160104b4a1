//! The event loop as its users see it.

use std::{
    cell::{Cell, RefCell},
    future::{pending, poll_fn},
    io::{self, IoSlice, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    rc::Rc,
    sync::mpsc,
    task::{Poll, Waker},
    thread,
};

use super::*;
use crate::{
    clock,
    task::{block_on, spawn_local, yield_now},
    transport::{Socket, Transport},
};

fn pair() -> (Socket, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Socket::new(ours.into()), theirs)
}

async fn read(socket: &mut Socket) -> io::Result<Vec<u8>> {
    let mut buf = Vec::with_capacity(16);
    poll_fn(|cx| socket.poll_read(cx, &mut buf)).await?;
    Ok(buf)
}

/// Asks for bytes; whether there are none, and the socket is watched from now on.
async fn is_waiting(socket: &mut Socket) -> bool {
    let mut buf = Vec::with_capacity(16);
    poll_fn(|cx| Poll::Ready(socket.poll_read(cx, &mut buf).is_pending())).await
}

/// Says when it is dropped.
struct Drops(Rc<Cell<u32>>);

impl Drop for Drops {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn tasks_run_in_the_order_of_their_waking_and_give_their_results() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    block_on(async {
        for n in 0..3 {
            let seen = seen.clone();
            spawn_local(async move {
                seen.borrow_mut().push(n);
                yield_now().await;
                seen.borrow_mut().push(10 + n);
            });
        }
        while seen.borrow().len() < 6 {
            yield_now().await;
        }
    });
    assert_eq!(*seen.borrow(), [0, 1, 2, 10, 11, 12]);
}

/// Moves bytes through a pair of sockets until it is others' turn; how many.
async fn move_for_a_turn() -> usize {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let [mut to, mut from] = [ours, theirs].map(|end| {
        end.set_nonblocking(true).unwrap();
        Socket::new(end.into())
    });
    let block = vec![7; 16 << 10];
    let mut buf = Vec::with_capacity(block.len());
    let mut moved = 0;
    poll_fn(|cx| {
        loop {
            let written = match to.poll_write(cx, &[IoSlice::new(&block)], false) {
                Poll::Ready(written) => written.unwrap(),
                Poll::Pending => return Poll::Ready(moved),
            };
            moved += written;
            buf.clear();
            match from.poll_read(cx, &mut buf) {
                Poll::Ready(read) => moved += read.unwrap(),
                Poll::Pending => return Poll::Ready(moved),
            }
        }
    })
    .await
}

#[test]
fn a_task_with_endless_input_and_output_lets_others_have_their_turn() {
    let turns = Rc::new(RefCell::new(Vec::new()));
    let all = turns.clone();
    block_on(async move {
        for _ in 0..4 {
            let turns = all.clone();
            spawn_local(async move {
                let moved = move_for_a_turn().await;
                turns.borrow_mut().push(moved);
            });
        }
        while all.borrow().len() < 4 {
            yield_now().await;
        }
    });
    // Nobody waits for the last one, but sockets want to be looked at.
    let shared = SHARED_TURN_BYTES;
    assert_eq!(*turns.borrow(), [shared, shared, shared, TURN_BYTES]);
}

#[test]
fn another_thread_wakes_a_waiting_loop() {
    let (to_thread, wakers) = mpsc::channel::<(Waker, mpsc::Sender<()>)>();
    let thread = thread::spawn(move || {
        for (waker, done) in wakers {
            done.send(()).unwrap();
            waker.wake();
        }
    });
    let (done, is_done) = mpsc::channel();
    let ask = async move || {
        let mut asked = false;
        poll_fn(|cx| {
            if !std::mem::replace(&mut asked, true) {
                to_thread.send((cx.waker().clone(), done.clone())).unwrap();
                return Poll::Pending;
            }
            if is_done.try_recv().is_ok() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    };
    block_on(async {
        let (finished, mut all) = tokio::sync::mpsc::unbounded_channel();
        spawn_local(async move {
            for _ in 0..1000 {
                ask().await;
            }
            finished.send(()).unwrap();
        });
        all.recv().await.unwrap();
    });
    thread.join().unwrap();
}

#[test]
fn a_waker_outlives_its_task_and_its_loop() {
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keep = kept.clone();
    block_on(async move {
        spawn_local(async move {
            poll_fn(|cx| {
                keep.borrow_mut().push(cx.waker().clone());
                Poll::Ready(())
            })
            .await;
        });
        yield_now().await;
        yield_now().await;
        // Of a task that is done; its place is taken by another.
        let polled = Rc::new(Cell::new(0));
        let count = polled.clone();
        spawn_local(poll_fn(move |_| {
            count.set(count.get() + 1);
            Poll::Pending
        }));
        yield_now().await;
        kept.borrow()[0].wake_by_ref();
        yield_now().await;
        yield_now().await;
        assert_eq!(polled.get(), 1);
        kept.take().remove(0)
    })
    .wake();
    block_on(yield_now());
}

#[test]
fn an_event_of_a_closed_socket_does_not_reach_who_has_its_place_now() {
    block_on(async {
        let (closed, mut closed_peer) = UnixStream::pair().unwrap();
        // The kernel forgets a socket with its last descriptor, and this one stays.
        let _held = closed.try_clone().unwrap();
        let watch = Watch::stream(closed.as_fd()).unwrap();
        let place = watch.0.index();
        closed_peer.write_all(b"stale").unwrap();
        drop((watch, closed));
        let (open, mut open_peer) = UnixStream::pair().unwrap();
        let watch = Watch::stream(open.as_fd()).unwrap();
        assert_eq!(watch.0.index(), place);
        for _ in 0..3 {
            assert!(poll_fn(|cx| Poll::Ready(watch.poll_readable(cx).is_pending())).await);
            yield_now().await;
        }
        open_peer.write_all(b"fresh").unwrap();
        poll_fn(|cx| watch.poll_readable(cx)).await.unwrap();
    });
}

#[test]
fn an_aborted_task_is_dropped_without_being_polled_again() {
    let dropped = Rc::new(Cell::new(0));
    block_on(async {
        let held = Drops(dropped.clone());
        let waits = spawn_local(async move {
            let _held = held;
            yield_now().await;
            unreachable!("it was aborted");
        });
        yield_now().await;
        waits.abort();
        assert_eq!(dropped.get(), 0);
        yield_now().await;
        assert_eq!(dropped.get(), 1);
        // Who has its place now is not meant.
        let held = Drops(dropped.clone());
        spawn_local(async move {
            let _held = held;
            pending().await
        });
        waits.abort();
        yield_now().await;
        assert_eq!(dropped.get(), 1);
    });
    assert_eq!(dropped.get(), 2, "the end of the loop drops what is left");
}

#[test]
fn a_panic_ends_one_task_and_what_it_held_can_tell() {
    struct Tells(Rc<Cell<bool>>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.set(thread::panicking());
        }
    }
    let told = Rc::new(Cell::new(false));
    block_on(async {
        let (mut socket, mut peer) = pair();
        let tells = Tells(told.clone());
        spawn_local(async move {
            let _tells = &tells;
            yield_now().await;
            std::panic::panic_any("on purpose");
        });
        let (done, is_done) = tokio::sync::oneshot::channel();
        spawn_local(async move {
            assert_eq!(read(&mut socket).await.unwrap(), b"served");
            done.send(()).unwrap();
        });
        for _ in 0..3 {
            yield_now().await;
        }
        assert!(told.get());
        peer.write_all(b"served").unwrap();
        is_done.await.unwrap();
    });
}

#[test]
fn tasks_that_never_rest_keep_nobody_from_input_and_timers() {
    block_on(async {
        let (mut socket, mut peer) = pair();
        let selfish = spawn_local(async {
            loop {
                yield_now().await;
            }
        });
        // Two that wake each other, and so never come to wait either.
        let (to_second, mut first) = tokio::sync::mpsc::unbounded_channel();
        let (to_first, mut second) = tokio::sync::mpsc::unbounded_channel();
        to_second.send(()).unwrap();
        let one = spawn_local(async move {
            while first.recv().await.is_some() && to_first.send(()).is_ok() {}
        });
        let other = spawn_local(async move {
            while second.recv().await.is_some() && to_second.send(()).is_ok() {}
        });
        assert!(is_waiting(&mut socket).await);
        peer.write_all(b"input").unwrap();
        assert_eq!(read(&mut socket).await.unwrap(), b"input");
        timer::sleep(2).await;
        [selfish, one, other].iter().for_each(crate::task::AbortHandle::abort);
    });
}

#[test]
fn a_socket_moves_to_another_thread() {
    block_on(async {
        let (mut socket, mut peer) = pair();
        assert!(is_waiting(&mut socket).await);
        let place = LOCAL.with(|local| local.sources.borrow().free_places());
        let theirs = thread::spawn(move || {
            let fd = socket.into_fd().unwrap();
            peer.write_all(b"there").unwrap();
            block_on(async { read(&mut Socket::new(fd)).await.unwrap() })
        });
        assert_eq!(theirs.join().unwrap(), b"there");
        // Any wake-up from outside brings the news that the place is free.
        LOCAL.with(|local| local.remote.borrow().as_ref().unwrap().wake(Key::NONE));
        for _ in 0..3 {
            yield_now().await;
        }
        assert_eq!(LOCAL.with(|local| local.sources.borrow().free_places()), place + 1);
    });
}

#[test]
fn places_of_sockets_that_other_threads_take_are_used_again() {
    block_on(async {
        // Nothing else ever wakes this loop from outside.
        for _ in 0..4 {
            let mut sockets = Vec::new();
            for _ in 0..300 {
                let (mut socket, peer) = pair();
                assert!(is_waiting(&mut socket).await);
                sockets.push((socket, peer));
            }
            let take = || sockets.into_iter().for_each(|(socket, _)| drop(socket.into_fd()));
            thread::scope(|scope| scope.spawn(take).join()).unwrap();
            yield_now().await;
        }
        let places = LOCAL.with(|local| local.sources.borrow().places());
        assert!(places < 2 * 300, "{places}");
    });
}

#[test]
fn a_socket_of_another_loop_is_refused_and_not_mistaken() {
    let (mut socket, _peer) = pair();
    let socket = block_on(async move {
        assert!(is_waiting(&mut socket).await);
        socket
    });
    block_on(async move {
        let (mut own, _own_peer) = pair();
        assert!(is_waiting(&mut own).await);
        let mut socket = socket;
        let error = read(&mut socket).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        drop(socket);
        assert!(is_waiting(&mut own).await);
    });
}

#[test]
fn a_peer_that_closed_is_seen_behind_bytes_that_nobody_reads() {
    block_on(async {
        let (mut socket, mut peer) = pair();
        assert!(poll_fn(|cx| Poll::Ready(socket.poll_peer_closed(cx).is_pending())).await);
        peer.write_all(b"left unread").unwrap();
        for _ in 0..3 {
            assert!(poll_fn(|cx| Poll::Ready(socket.poll_peer_closed(cx).is_pending())).await);
            yield_now().await;
        }
        drop(peer);
        poll_fn(|cx| socket.poll_peer_closed(cx)).await;
        assert_eq!(read(&mut socket).await.unwrap(), b"left unread");
        assert_eq!(read(&mut socket).await.unwrap(), b"");
    });
}

#[test]
fn a_write_to_a_peer_that_left_fails_and_does_not_wait() {
    block_on(async {
        let (mut socket, peer) = pair();
        let block = vec![7; 64 << 10];
        let mut fill = poll_fn(|cx| {
            while socket.poll_write(cx, &[IoSlice::new(&block)], false).is_ready() {}
            Poll::Ready(())
        });
        (&mut fill).await;
        drop(peer);
        let written = poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(&block)], false)).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn time_that_stands_still_moves_to_the_next_timer() {
    clock::pause();
    let start = clock::now_ms();
    block_on(async {
        timer::sleep(3_600_000).await;
    });
    assert_eq!(clock::now_ms(), start + 3_600_000);
}
