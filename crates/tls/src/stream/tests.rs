use super::*;
use crate::records::{record_len, test_key};
use rustls::ProtocolVersion;
use std::collections::VecDeque;

/// A transport of which a test decides how much it gives and takes at a time.
#[derive(Default)]
struct Fake {
    incoming: VecDeque<Vec<u8>>,
    ended: bool,
    sent: Vec<u8>,
    writes: usize,
    /// How many bytes it takes between two refusals; 0: all.
    takes: usize,
    took: usize,
}

impl Transport for Fake {
    fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let room = buf.capacity() - buf.len();
        let Some(piece) = self.incoming.front_mut() else {
            return if self.ended { Poll::Ready(Ok(0)) } else { Poll::Pending };
        };
        let len = piece.len().min(room);
        buf.extend(piece.drain(..len));
        if piece.is_empty() {
            self.incoming.pop_front();
        }
        Poll::Ready(Ok(len))
    }

    fn poll_write(
        &mut self,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        _: bool,
    ) -> Poll<io::Result<usize>> {
        if self.takes > 0 && self.took == self.takes {
            self.took = 0;
            return Poll::Pending;
        }
        self.writes += 1;
        let left = if self.takes > 0 { self.takes - self.took } else { usize::MAX };
        let len = slices[0].len().min(left);
        self.took += len;
        self.sent.extend_from_slice(&slices[0][..len]);
        Poll::Ready(Ok(len))
    }

    fn poll_send_file(
        &mut self,
        _: &mut Context<'_>,
        _: BorrowedFd<'_>,
        _: u64,
        _: usize,
    ) -> Poll<io::Result<usize>> {
        unreachable!("TLS sends no files by the kernel")
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn reset_on_close(&self) {}

    fn sends_files(&self) -> bool {
        false
    }
}

const VERSIONS: [ProtocolVersion; 2] = [ProtocolVersion::TLSv1_2, ProtocolVersion::TLSv1_3];

fn stream(version: ProtocolVersion, record_bytes: usize) -> TlsStream<Fake> {
    let key = || test_key(version, false, 0);
    TlsStream::new(Fake::default(), State::new(key(), key(), Kernel::None, record_bytes))
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn read(stream: &mut TlsStream<Fake>, room: usize) -> Poll<io::Result<Vec<u8>>> {
    let mut buf = Vec::with_capacity(room);
    stream.poll_read(&mut cx(), &mut buf).map(|read| read.map(|_| buf))
}

/// Records as the other side would send them: kind and content of each.
fn records(version: ProtocolVersion, contents: &[(u8, &[u8])]) -> Vec<Vec<u8>> {
    let mut key = test_key(version, false, 0);
    let seal = |(kind, content): &(u8, &[u8])| {
        let mut record = vec![0; content.len() + key.overhead()];
        record[key.prefix()..key.prefix() + content.len()].copy_from_slice(content);
        key.seal(*kind, &mut record).unwrap();
        record
    };
    contents.iter().map(seal).collect()
}

/// What a peer makes of the bytes that were sent.
fn opened(version: ProtocolVersion, mut sent: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut key = test_key(version, false, 0);
    let mut found = Vec::new();
    while !sent.is_empty() {
        let len = record_len(sent).unwrap().unwrap();
        let mut record = sent[..len].to_vec();
        let (kind, at) = key.open(&mut record).unwrap();
        found.push((kind, record[at].to_vec()));
        sent = &sent[len..];
    }
    found
}

#[test]
fn records_are_read_however_they_are_cut_and_asked_for() {
    let long = vec![9; 5000];
    for version in VERSIONS {
        let contents = [(kind::DATA, &b"one"[..]), (kind::DATA, &long), (kind::DATA, b"three")];
        let bytes = records(version, &contents).concat();
        let want = [&b"one"[..], &long, b"three"].concat();
        for cut in (0..bytes.len()).step_by(7).chain(bytes.len() - 30..bytes.len()) {
            for room in [1, 100, 2048, 1 << 14] {
                let mut stream = stream(version, 4096);
                let halves = [&bytes[..cut], &bytes[cut..]];
                let io = stream.transport_mut().unwrap();
                io.incoming
                    .extend(halves.iter().filter(|half| !half.is_empty()).map(|h| h.to_vec()));
                let mut got = Vec::new();
                while let Poll::Ready(piece) = read(&mut stream, room) {
                    let piece = piece.unwrap();
                    assert!(!piece.is_empty() && piece.len() <= room);
                    got.extend(piece);
                }
                assert!(got == want, "cut {cut} room {room}");
                assert!(stream.is_idle());
                let Phase::Open(state) = &stream.phase else { panic!() };
                assert_eq!(state.input.bytes.capacity() + state.output.bytes.capacity(), 0);
            }
        }
    }
}

#[test]
fn a_write_is_one_system_call_of_full_records() {
    for version in VERSIONS {
        let mut stream = stream(version, 4096);
        let body = vec![3; 10_000];
        let slices = [IoSlice::new(b"head"), IoSlice::new(&body)];
        let written = stream.poll_write(&mut cx(), &slices, false);
        assert!(matches!(written, Poll::Ready(Ok(10_004))));
        let io = stream.transport().unwrap();
        assert_eq!(io.writes, 1);
        let found = opened(version, &io.sent);
        assert_eq!(
            found.iter().map(|(_, text)| text.len()).collect::<Vec<_>>(),
            [4096, 4096, 1812]
        );
        assert!(
            found.iter().map(|(_, text)| &text[..]).collect::<Vec<_>>().concat()
                == [&b"head"[..], &body].concat()
        );
    }
}

#[test]
fn what_a_slow_socket_leaves_is_sent_once_and_reported_by_whole_records() {
    let text: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    for takes in [1000, 4096, 5000, 20_000, 70_000] {
        let mut stream = stream(ProtocolVersion::TLSv1_3, 4096);
        stream.transport_mut().unwrap().takes = takes;
        let mut at = 0;
        let mut reports = 0;
        while at < text.len() {
            // The caller may offer more, or less, from one time to the next.
            let offered = &text[at..(at + 30_000 + at % 977).min(text.len())];
            match stream.poll_write(&mut cx(), &[IoSlice::new(offered)], false) {
                Poll::Ready(written) => {
                    at += written.unwrap();
                    reports += 1;
                }
                Poll::Pending => {}
            }
        }
        let sent = std::mem::take(&mut stream.transport_mut().unwrap().sent);
        let got = opened(ProtocolVersion::TLSv1_3, &sent);
        assert!(got.into_iter().flat_map(|(_, text)| text).collect::<Vec<u8>>() == text);
        assert!(takes > 5000 || reports > 10, "progress must be seen: {reports}");
    }
}

#[test]
fn an_update_of_ours_is_under_way_until_it_has_left() {
    let mut stream = stream(ProtocolVersion::TLSv1_3, 16 << 10);
    let has_update = |stream: &mut TlsStream<Fake>| stream.parts().unwrap().1.output.has_update();
    let write = |stream: &mut TlsStream<Fake>| {
        let _ = stream.poll_write(&mut cx(), &[IoSlice::new(&[b'x'; 5000])], false);
    };
    assert!(!has_update(&mut stream));
    let (io, state) = stream.parts().unwrap();
    state.queue_update();
    let record = state.output.bytes.len();
    io.takes = record - 1;
    assert!(has_update(&mut stream));
    write(&mut stream);
    assert!(has_update(&mut stream), "all but a byte of it left, with what follows behind it");
    write(&mut stream);
    let (_, state) = stream.parts().unwrap();
    assert!(!state.output.is_empty() && !state.output.has_update(), "what waits is younger");
    // Nor is the next one taken for the last.
    let (_, state) = stream.parts().unwrap();
    state.queue_update();
    assert!(state.output.has_update());
}

#[test]
fn what_must_not_come_ends_the_connection_with_an_alert() {
    let update: &[u8] = &[24, 0, 0, 1, 1];
    let hello_request: &[u8] = &[0, 0, 0, 0];
    let cases: [(&str, Vec<Vec<u8>>, u8); 11] = [
        ("renegotiation", records(VERSIONS[0], &[(kind::HANDSHAKE, hello_request)]), 10),
        ("key update in TLS 1.2", records(VERSIONS[0], &[(kind::HANDSHAKE, update)]), 10),
        ("a message without end", records(VERSIONS[0], &[(22, &[4, 0, 0x60, 0])]), 10),
        ("data within a message", records(VERSIONS[0], &[(22, &[4, 0, 0, 9]), (23, b"x")]), 10),
        ("not a record", vec![b"GET / HTTP/1.1\r\n".to_vec()], 70),
        ("another kind", vec![[&[24, 3, 3, 0, 40][..], &[7; 40]].concat()], 10),
        ("a record that is too long", vec![[&[23, 3, 3, 0x48, 1][..], &[7; 40]].concat()], 22),
        ("a record that is too short", vec![[&[23, 3, 3, 0, 5][..], b"hello"].concat()], 20),
        ("an empty record", vec![vec![23, 3, 3, 0, 0]], 20),
        ("half an alert", records(VERSIONS[0], &[(kind::ALERT, &[1])]), 50),
        ("garbage", vec![[&[23, 3, 3, 0, 40][..], &[7; 40]].concat()], 20),
    ];
    for (name, incoming, alert) in cases {
        for room in [100, 1 << 14] {
            let mut stream = stream(VERSIONS[0], 4096);
            stream.transport_mut().unwrap().incoming.extend(incoming.clone());
            assert!(matches!(read(&mut stream, room), Poll::Ready(Err(_))), "{name}");
            assert!(matches!(read(&mut stream, room), Poll::Ready(Err(_))), "{name}");
            let sent = opened(VERSIONS[0], &stream.transport().unwrap().sent);
            assert_eq!(sent, [(kind::ALERT, vec![2, alert])], "{name}");
            let written = stream.poll_write(&mut cx(), &[IoSlice::new(b"x")], false);
            assert!(matches!(written, Poll::Ready(Err(_))));
        }
    }
}

#[test]
fn in_the_clear_nothing_comes_after_a_handshake_of_tls_1_3() {
    for kind in [kind::CHANGE_CIPHER_SPEC, kind::ALERT, kind::HANDSHAKE] {
        let mut stream = stream(VERSIONS[1], 4096);
        let record = [&[kind, 3, 3, 0, 40][..], &[1; 40]].concat();
        stream.transport_mut().unwrap().incoming.push_back(record);
        assert!(matches!(read(&mut stream, 1 << 14), Poll::Ready(Err(_))), "{kind}");
        let sent = opened(VERSIONS[1], &stream.transport().unwrap().sent);
        assert_eq!(sent, [(kind::ALERT, vec![2, 10])], "{kind}");
    }
}

#[test]
fn alerts_are_warnings_in_tls_1_2_only() {
    let no_renegotiation = [1, 100];
    for (version, alert, ends) in [
        (VERSIONS[0], no_renegotiation, false),
        (VERSIONS[1], no_renegotiation, true),
        (VERSIONS[0], [1, 90], false),
        (VERSIONS[1], [1, 90], false),
        (VERSIONS[1], [2, 42], true),
    ] {
        let mut stream = stream(version, 4096);
        let contents = [(kind::ALERT, &alert[..]), (kind::DATA, b"x")];
        stream.transport_mut().unwrap().incoming.push_back(records(version, &contents).concat());
        match read(&mut stream, 1 << 14) {
            Poll::Ready(Ok(data)) => assert!(!ends && data == b"x", "{version:?} {alert:?}"),
            Poll::Ready(Err(error)) => {
                let error = RecordError::of(&error).unwrap();
                assert!(ends && error == RecordError::alert(alert[1]), "{version:?} {error}");
            }
            Poll::Pending => panic!("{version:?} {alert:?}"),
        }
        assert!(stream.transport().unwrap().sent.is_empty(), "an alert is not answered");
    }
}

#[test]
fn a_renegotiation_is_declined_once() {
    let hello: &[u8] = &[1, 0, 0, 2, 3, 3];
    let sent = |contents: &[(u8, &[u8])]| {
        let mut stream = stream(VERSIONS[0], 4096);
        stream.transport_mut().unwrap().incoming.push_back(records(VERSIONS[0], contents).concat());
        let got = read(&mut stream, 1 << 14);
        (got.map(Result::ok), opened(VERSIONS[0], &stream.transport().unwrap().sent))
    };
    let declined = (kind::ALERT, vec![1, 100]);
    assert_eq!(sent(&[(22, hello)]), (Poll::Pending, vec![declined.clone()]));
    let data = (kind::DATA, &b"x"[..]);
    let (got, _) = sent(&[(22, hello), data]);
    assert_eq!(got, Poll::Ready(Some(b"x".to_vec())), "the connection goes on");
    let refused = (kind::ALERT, vec![2, 10]);
    assert_eq!(sent(&[(22, hello), (22, hello)]), (Poll::Ready(None), vec![declined, refused]));
}

#[test]
fn messages_in_records_of_one_byte_are_bounded() {
    let ticket = [&[4, 0, 0, 100][..], &[0; 100]].concat();
    let contents: Vec<_> = ticket.chunks(1).map(|byte| (kind::HANDSHAKE, byte)).collect();
    let mut stream = stream(VERSIONS[1], 4096);
    stream.transport_mut().unwrap().incoming.extend(records(VERSIONS[1], &contents));
    assert!(matches!(read(&mut stream, 1 << 14), Poll::Ready(Err(_))));
    let left = stream.transport().unwrap().incoming.len();
    assert_eq!(contents.len() - left, usize::from(MAX_EMPTY));
}

#[test]
fn records_that_carry_nothing_are_bounded() {
    let empty = vec![(kind::DATA, &b""[..]); 31];
    for (more, ends) in [(0, false), (1, true)] {
        let mut contents = empty.clone();
        contents.extend(vec![(kind::DATA, &b""[..]); more]);
        contents.push((kind::DATA, b"x"));
        let mut stream = stream(VERSIONS[1], 4096);
        stream
            .transport_mut()
            .unwrap()
            .incoming
            .push_back(records(VERSIONS[1], &contents).concat());
        let got = read(&mut stream, 1 << 14);
        assert_eq!(matches!(got, Poll::Ready(Err(_))), ends);
    }
}

#[test]
fn an_end_is_an_end_whether_said_or_not() {
    for version in VERSIONS {
        let close = [(kind::DATA, &b"bye"[..]), (kind::ALERT, &[1, 0])];
        let mut said = stream(version, 4096);
        said.transport_mut().unwrap().incoming.push_back(records(version, &close).concat());
        assert_eq!(read(&mut said, 4096).map(Result::unwrap), Poll::Ready(b"bye".to_vec()));
        assert_eq!(read(&mut said, 4096).map(Result::unwrap), Poll::Ready(Vec::new()));
        assert!(!said.is_idle());
        assert!(said.poll_peer_closed(&mut cx()).is_ready());
        let mut unsaid = stream(version, 4096);
        unsaid.transport_mut().unwrap().ended = true;
        assert_eq!(read(&mut unsaid, 4096).map(Result::unwrap), Poll::Ready(Vec::new()));
    }
}

#[test]
fn closing_says_so_once() {
    let mut stream = stream(VERSIONS[1], 4096);
    assert!(stream.poll_shutdown(&mut cx()).is_ready());
    assert!(stream.poll_shutdown(&mut cx()).is_ready());
    let sent = opened(VERSIONS[1], &stream.transport().unwrap().sent);
    assert_eq!(sent, [(kind::ALERT, vec![1, 0])]);
}

#[test]
fn bytes_of_the_handshake_leave_with_the_answer_or_alone() {
    for answers in [true, false] {
        let mut stream = stream(VERSIONS[1], 4096);
        let Phase::Open(state) = &mut stream.phase else { panic!() };
        state.queue(kind::HANDSHAKE, b"ticket");
        let held = std::mem::take(&mut state.output.bytes);
        state.defer(held, 0);
        if answers {
            let written = stream.poll_write(&mut cx(), &[IoSlice::new(b"answer")], false);
            assert!(matches!(written, Poll::Ready(Ok(6))));
        } else {
            assert!(read(&mut stream, 4096).is_pending());
        }
        let io = stream.transport().unwrap();
        assert_eq!(io.writes, 1);
        let found = opened(VERSIONS[1], &io.sent);
        assert_eq!(found.len(), 1 + usize::from(answers));
    }
}

#[test]
fn an_idle_connection_weighs_little() {
    // Two keys of 600 bytes that AWS-LC keeps, and what little is ours; rustls keeps some beside it.
    let size = size_of::<State>();
    assert!(size <= 1700, "{size}");
    assert!(size_of::<TlsStream<Fake>>() <= size_of::<Fake>() + 24);
}
