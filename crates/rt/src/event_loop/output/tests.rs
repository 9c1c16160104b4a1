use super::*;
use crate::{
    task::{self, block_on, spawn_local, yield_now},
    transport::{Socket, Transport},
};
use std::{
    cell::Cell,
    fs::File,
    future::Future,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
};

/// A socket that the event loop knows, and another way to it.
async fn watch(fd: OwnedFd) -> (Socket, File) {
    rustix::io::ioctl_fionbio(&fd, true).unwrap();
    let other = File::from(fd.try_clone().unwrap());
    let mut socket = Socket::new(fd);
    assert!(is_pending(|cx| socket.poll_read(cx, &mut Vec::with_capacity(16))).await);
    (socket, other)
}

/// The same, and its other end.
async fn watched() -> (Socket, File, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let (socket, other) = watch(ours.into()).await;
    (socket, other, theirs)
}

async fn is_pending<T>(mut f: impl FnMut(&mut Context<'_>) -> Poll<T>) -> bool {
    poll_fn(|cx| Poll::Ready(f(cx).is_pending())).await
}

async fn hand_over(socket: &mut Socket, text: &[u8]) -> io::Result<usize> {
    poll_fn(|cx| socket.poll_hand_over(cx, &[IoSlice::new(text)])).await
}

fn file(text: &[u8]) -> Rc<dyn AsFd> {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(file);
    file.write_all(text).unwrap();
    Rc::new(file)
}

async fn hand_over_file(socket: &mut Socket, text: &[u8]) -> io::Result<usize> {
    let file = file(text);
    poll_fn(|cx| socket.poll_hand_over_file(cx, &file, text.len())).await
}

async fn write(socket: &mut Socket, text: &[u8]) -> io::Result<usize> {
    poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(text)], false)).await
}

fn arrived(theirs: &mut UnixStream) -> String {
    let mut all = Vec::new();
    let _ = theirs.read_to_end(&mut all);
    String::from_utf8(all).unwrap()
}

/// Runs it while another task waits for its turn, and says what that one finds out.
async fn before<T>(work: impl Future<Output = ()>, look: impl FnOnce() -> T + 'static) -> T
where
    T: 'static,
{
    let found = Rc::new(Cell::new(None));
    let place = found.clone();
    spawn_local(async move { place.set(Some(look())) });
    work.await;
    yield_now().await;
    found.take().expect("it had its turn")
}

/// Takes all the room that the kernel has for the socket.
fn fill(mut other: File) {
    while other.write(&[b'.'; 4096]).is_ok() {}
}

/// Hands over what does not fit.
async fn late(socket: &mut Socket, other: File) {
    fill(other);
    before(async { assert_eq!(hand_over(socket, b"late").await.unwrap(), 4) }, || ()).await;
}

#[test]
fn what_is_handed_over_leaves_when_the_others_had_their_turn() {
    block_on(async {
        let (mut socket, _, theirs) = watched().await;
        let mut looking = theirs.try_clone().unwrap();
        let others = before(
            async { assert_eq!(hand_over(&mut socket, b"one").await.unwrap(), 3) },
            move || arrived(&mut looking),
        );
        assert_eq!(others.await, "");
        assert_eq!(arrived(&mut { theirs }), "one");
    });
}

#[test]
fn so_does_a_file_of_which_only_the_name_is_kept() {
    block_on(async {
        let (mut socket, _, theirs) = watched().await;
        let mut looking = theirs.try_clone().unwrap();
        let others = before(
            async { assert_eq!(hand_over_file(&mut socket, &[b'f'; 9000]).await.unwrap(), 9000) },
            move || (arrived(&mut looking), OUTPUT.with_borrow(|output| output.bytes.len())),
        );
        assert_eq!(others.await, (String::new(), 0));
        assert!(arrived(&mut { theirs }) == "f".repeat(9000));
    });
}

#[test]
fn who_is_alone_or_has_much_to_say_writes_at_once() {
    block_on(async {
        let (mut socket, _, mut theirs) = watched().await;
        hand_over(&mut socket, b"alone").await.unwrap();
        hand_over_file(&mut socket, b", with a file").await.unwrap();
        assert_eq!(arrived(&mut theirs), "alone, with a file");
        let much = [b'm'; MOST_BYTES + 1];
        let mut looking = theirs.try_clone().unwrap();
        let others = before(
            async { assert_eq!(hand_over(&mut socket, &much).await.unwrap(), much.len()) },
            move || arrived(&mut looking),
        );
        assert_eq!(others.await.len(), much.len());
    });
}

#[test]
fn bytes_keep_their_order_whatever_follows() {
    block_on(async {
        let (mut socket, _, mut theirs) = watched().await;
        let (mut another, _, mut others_end) = watched().await;
        let talk = async {
            hand_over(&mut socket, b"a").await.unwrap();
            hand_over(&mut socket, b"b").await.unwrap();
            hand_over(&mut another, b"x").await.unwrap();
            // Not the last one that waits any more: all is sent.
            hand_over(&mut socket, b"c").await.unwrap();
            write(&mut socket, b"d").await.unwrap();
            hand_over_file(&mut socket, b"e").await.unwrap();
            hand_over_file(&mut socket, b"f").await.unwrap();
            hand_over(&mut socket, b"g").await.unwrap();
            hand_over_file(&mut socket, b"h").await.unwrap();
            poll_fn(|cx| socket.poll_shutdown(cx)).await.unwrap();
        };
        before(talk, || ()).await;
        assert_eq!(arrived(&mut theirs), "abcdefgh");
        assert_eq!(arrived(&mut others_end), "x");
    });
}

#[test]
fn a_socket_that_is_closed_or_given_away_has_said_all() {
    block_on(async {
        let (mut closed, _, mut theirs) = watched().await;
        let (mut given, _, mut others_end) = watched().await;
        let talk = async {
            hand_over(&mut closed, b"bye").await.unwrap();
            drop(closed);
            assert_eq!(arrived(&mut theirs), "bye");
            hand_over(&mut given, b"take").await.unwrap();
            assert!(given.into_fd().is_some());
            assert_eq!(arrived(&mut others_end), "take");
        };
        before(talk, || ()).await;
    });
}

#[test]
fn nobody_waits_for_who_has_much_to_do() {
    block_on(async {
        let (mut socket, _, mut theirs) = watched().await;
        let talk = async {
            hand_over(&mut socket, b"little").await.unwrap();
            task::worked(super::super::MUCH);
            assert_eq!(arrived(&mut theirs), "little");
        };
        before(talk, || ()).await;
    });
}

#[test]
fn many_sockets_are_not_kept_waiting() {
    block_on(async {
        let mut all = Vec::new();
        for _ in 0..MOST_SOCKETS {
            all.push(watched().await);
        }
        let talk = async {
            for (socket, ..) in &mut all {
                hand_over(socket, b"now").await.unwrap();
            }
            assert!(all.iter_mut().all(|(_, _, theirs)| arrived(theirs) == "now"));
        };
        before(talk, || ()).await;
    });
}

#[test]
fn what_does_not_fit_follows_even_when_the_socket_is_closed() {
    block_on(async {
        let (mut socket, other, mut theirs) = watched().await;
        late(&mut socket, other).await;
        drop(socket);
        let mut all = String::new();
        while is_late() {
            all += &arrived(&mut theirs);
            yield_now().await;
        }
        all += &arrived(&mut theirs);
        assert!(all.ends_with("late"));
        // And then its end.
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_file_is_taken_only_where_it_fits_for_sure() {
    block_on(async {
        let (mut socket, mut other, mut theirs) = watched().await;
        let sent = other.write(&[b'.'; 4096]).unwrap();
        let left = room(other.as_fd());
        assert!(left > 0);
        for (len, at_once) in [(left / ROOM_FOR_FILE + 1024, true), (1000, false)] {
            let mut looking = theirs.try_clone().unwrap();
            let text = vec![b'f'; len];
            let talk = async {
                assert_eq!(hand_over_file(&mut socket, &text).await.unwrap(), len);
            };
            let seen = before(talk, move || arrived(&mut looking).len()).await;
            assert_eq!(seen > sent.min(len), at_once, "{len}: {seen}");
            arrived(&mut theirs);
        }
        // What goes out in other ways takes its room, too.
        let mut written = 0;
        while room(other.as_fd()) / ROOM_FOR_FILE >= 1024 {
            written += write(&mut socket, &[b'.'; 1000]).await.unwrap();
        }
        let mut looking = theirs.try_clone().unwrap();
        let talk = async {
            assert_eq!(hand_over_file(&mut socket, &[b'f'; 1000]).await.unwrap(), 1000);
        };
        assert_eq!(before(talk, move || arrived(&mut looking).len()).await, written + 1000);
        assert_eq!(OUTPUT.with_borrow(|output| output.late), 0);
    });
}

#[test]
fn the_rest_of_a_file_follows_from_where_it_was() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let text: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
    let mut rest = Rest::File { file: file(&text), sent: 1000, len: text.len() };
    let mut all = Vec::new();
    for _ in 0..1000 {
        if rest.write(ours.as_fd()).unwrap() {
            break;
        }
        let _ = theirs.read_to_end(&mut all);
    }
    let _ = theirs.read_to_end(&mut all);
    assert!(all == text[1000..]);
}

#[test]
fn who_was_late_may_be_late_again() {
    block_on(async {
        let (mut socket, other, mut theirs) = watched().await;
        for _ in 0..3 {
            late(&mut socket, other.try_clone().unwrap()).await;
            let mut all = String::new();
            for _ in 0..1000 {
                all += &arrived(&mut theirs);
                yield_now().await;
            }
            assert!(all.ends_with("late"));
            theirs.write_all(b"next").unwrap();
            let mut buf = Vec::with_capacity(16);
            assert_eq!(poll_fn(|cx| socket.poll_read(cx, &mut buf)).await.unwrap(), 4);
        }
    });
}

#[test]
fn who_writes_behind_what_did_not_fit_waits_for_it() {
    block_on(async {
        let (mut socket, other, mut theirs) = watched().await;
        late(&mut socket, other).await;
        assert!(is_pending(|cx| socket.poll_write(cx, &[IoSlice::new(b"!")], false)).await);
        assert!(is_pending(|cx| socket.poll_shutdown(cx)).await);
        // It reads meanwhile.
        theirs.write_all(b"next").unwrap();
        let mut buf = Vec::with_capacity(16);
        assert_eq!(poll_fn(|cx| socket.poll_read(cx, &mut buf)).await.unwrap(), 4);
        let mut all = String::new();
        let read = async {
            while !all.ends_with("late.") {
                all += &arrived(&mut theirs);
                yield_now().await;
            }
        };
        spawn_local(async move {
            write(&mut socket, b".").await.unwrap();
            poll_fn(|cx| socket.poll_shutdown(cx)).await.unwrap();
        });
        read.await;
        assert!(all.ends_with("..late."));
    });
}

#[test]
fn few_may_be_late_others_wait_themselves() {
    block_on(async {
        let mut all = Vec::new();
        for _ in 0..=MOST_LATE {
            let (socket, other, theirs) = watched().await;
            fill(other);
            all.push((socket, theirs));
        }
        let talk = async {
            for (socket, _) in &mut all[..MOST_LATE] {
                hand_over(socket, b"late").await.unwrap();
            }
            let (last, _) = all.last_mut().unwrap();
            assert!(is_pending(|cx| last.poll_hand_over(cx, &[IoSlice::new(b"last")])).await);
        };
        before(talk, || ()).await;
        assert_eq!(OUTPUT.with_borrow(|output| output.late), MOST_LATE);
        // Their ends do not wait for anybody.
        all.clear();
        while OUTPUT.with_borrow(|output| output.late > 0) {
            yield_now().await;
        }
    });
}

#[test]
fn a_socket_with_something_late_is_not_given_away() {
    block_on(async {
        let (mut socket, other, _theirs) = watched().await;
        late(&mut socket, other).await;
        assert!(!socket.is_at_rest());
        assert!(socket.into_fd().is_none());
    });
}

#[test]
fn who_resets_the_connection_gives_up_what_is_late() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let (mut socket, other) = watch(ours.into()).await;
        late(&mut socket, other).await;
        assert_eq!(OUTPUT.with_borrow(|output| output.late), 1);
        socket.reset_on_close();
        drop(socket);
        yield_now().await;
        assert_eq!(OUTPUT.with_borrow(|output| output.late), 0);
        let ended = theirs.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn what_breaks_the_connection_the_next_call_tells() {
    let broken = io::ErrorKind::BrokenPipe;
    block_on(async {
        for writes in [false, true] {
            let (mut socket, _, theirs) = watched().await;
            let mut buf = Vec::with_capacity(16);
            let talk = async {
                drop(theirs);
                hand_over(&mut socket, b"lost").await.unwrap();
            };
            before(talk, || ()).await;
            let told = match writes {
                true => write(&mut socket, b"more").await,
                false => poll_fn(|cx| socket.poll_read(cx, &mut buf)).await,
            };
            assert_eq!(told.unwrap_err().kind(), broken, "{writes}");
            // Then it is as any socket whose peer has left.
            assert_eq!(poll_fn(|cx| socket.poll_read(cx, &mut buf)).await.unwrap(), 0);
            assert!(OUTPUT.with_borrow(|output| output.troubles.is_empty()));
        }
    });
}
