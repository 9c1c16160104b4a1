//! What an HTTP/2 upstream sends, behind one function of bytes, for the fuzz target in `fuzz/` and for the
//! mutation test. Beside not panicking, what comes out must hold what the codec promises.
//!
//! Invariant: compiled for these only.

use forebay_wire::h1::ResponseHead;

use super::Http2;
use crate::upstream::{Codec, Remains};

/// What was read of a response.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    interim: usize,
    status: u16,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
    done: bool,
}

/// A response is the same at once and in pieces; it is clean, as long as it says, and leaves a
/// connection on which the next stream can be opened, or none. The first byte says to what request,
/// and how large the pieces are.
pub fn response(data: &[u8]) {
    let Some((&bits, bytes)) = data.split_first() else { return };
    let at_once = read(bits, &mut std::iter::once(bytes));
    let in_pieces = read(bits, &mut bytes.chunks(1 + usize::from(bits >> 5)));
    assert_eq!(at_once, in_pieces);
}

fn read(bits: u8, pieces: &mut dyn Iterator<Item = &[u8]>) -> Result<Read, String> {
    let limit = if bits & 1 != 0 { 64 } else { 4096 };
    let is_head = bits & 2 != 0;
    let mut codec = Http2::new(is_head, ResponseHead::default());
    codec.begin(None);
    codec.open(b"\x82\x86\x84", bits & 4 == 0);
    let (mut got, mut length, mut has_head) = (Read::default(), None, false);
    for piece in pieces {
        let mut buf = piece.to_vec();
        let mut from = 0;
        while !has_head {
            let len = codec.read_head(&mut buf, limit).map_err(|bad| codec.explain(bad, &buf))?;
            let Some(len) = len else { break };
            let framing = codec.framing(&buf).map_err(|bad| codec.explain(bad, &buf))?;
            if framing.interim {
                got.interim += 1;
                buf.drain(..len);
                codec.reset();
                continue;
            }
            (has_head, from, length) = (true, len, framing.length);
            take_head(&mut got, codec.head(), &buf[..len]);
        }
        if has_head {
            let decoded = codec.decode(&mut buf, from);
            if let Some(bad) = decoded.bad {
                return Err(codec.explain(bad, &buf));
            }
            got.body.extend_from_slice(&buf[from..decoded.data_end]);
            got.done = decoded.done;
            if got.done {
                break;
            }
        }
    }
    check(&mut got, codec, length.filter(|_| !is_head));
    Ok(got)
}

fn take_head(got: &mut Read, head: &ResponseHead, text: &[u8]) {
    got.status = head.status;
    assert!((200..=999).contains(&head.status));
    let fields = head.fields.iter();
    got.fields = fields.map(|f| (f.name.of(text).to_vec(), f.value.of(text).to_vec())).collect();
    assert_clean(&got.fields);
}

fn assert_clean(fields: &[(Vec<u8>, Vec<u8>)]) {
    for (name, value) in fields {
        assert!(!name.is_empty() && !name.contains(&b':'));
        assert!(name.iter().all(|ch| *ch > b' ' && !ch.is_ascii_uppercase()));
        assert!(!value.iter().any(|ch| b"\r\n\0".contains(ch)));
    }
}

fn check(got: &mut Read, mut codec: Http2, length: Option<u64>) {
    let trailers = codec.take_trailers().into_iter();
    got.trailers = trailers.map(|f| (f.name.to_vec(), f.value.to_vec())).collect();
    assert_clean(&got.trailers);
    let is_bare = matches!(got.status, 204 | 304);
    if let Some(length) = length.filter(|_| !is_bare) {
        let so_far = got.body.len() as u64;
        assert!(if got.done { so_far == length } else { so_far <= length });
    }
    assert!(!is_bare || got.body.is_empty());
    assert!(codec.take_output().len() < 128 << 10);
    if let Remains::Session(mut session) = codec.release() {
        assert!(got.done && (session.is_quiet() || session.waits_for_end()));
        assert_eq!(session.open(b"\x82", true)[..9], [0, 0, 1, 1, 5, 0, 0, 0, 3]);
    }
}
