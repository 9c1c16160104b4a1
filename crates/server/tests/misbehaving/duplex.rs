//! Requests that go on while they are answered.

use std::time::Duration;

use forebay_testkit::Kind;
use forebay_testkit::origin::{Conn, Origin};
use forebay_testkit::raw::Client;

use crate::{CRLF2, ask_on, client, of_both, pass, start};

const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Reads a head, answers with one, and says each piece of the body back as a chunk.
fn converse(conn: &mut Conn) -> std::io::Result<()> {
    while let Some(head) = conn.head()? {
        conn.send(CHUNKED)?;
        let pieces = head.value("X-Pieces").and_then(|text| text.parse().ok()).unwrap_or(0);
        for _ in 0..pieces {
            let piece = conn.take(4)?;
            conn.send(&[b"4\r\n", &piece[..], b"\r\n"].concat())?;
        }
        conn.send(b"0\r\n\r\n")?;
    }
    Ok(())
}

/// Reads up to the end of a head.
fn read_head(client: &mut Client) {
    let mut got = Vec::new();
    while !got.ends_with(CRLF2) {
        got.extend(client.read_exactly(1).unwrap());
    }
}

#[test]
fn a_body_goes_on_while_its_response_comes() {
    let origin = Origin::start(converse);
    of_both(|kind| {
        for more in ["proxy_buffering off;", ""] {
            if kind == Kind::Nginx && more.is_empty() {
                // It waits for a buffer to fill.
                continue;
            }
            let more = format!("proxy_request_buffering off; {more}");
            let server = start(kind, "", &pass(origin.addr(), &more));
            let mut client = client(&server);
            let head = "POST / HTTP/1.1\r\nHost: a\r\nX-Pieces: 3\r\nContent-Length: 12\r\n\r\n";
            client.send(head.as_bytes()).unwrap();
            read_head(&mut client);
            for piece in ["abcd", "efgh", "ijkl"] {
                client.send(piece.as_bytes()).unwrap();
                let want = format!("4\r\n{piece}\r\n");
                assert_eq!(client.read_exactly(want.len()).unwrap(), want.as_bytes(), "{kind}");
            }
            assert_eq!(client.read_exactly(5).unwrap(), b"0\r\n\r\n", "{kind}");
            // Nothing is left over between the two, and the connection serves the next request.
            assert_eq!(
                ask_on(&mut client, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").0,
                200
            );
        }
    });
}

#[test]
fn whatever_holds_a_body_it_goes_on_after_an_early_answer() {
    const LEN: usize = 6 << 20;
    let origin = Origin::start(|conn| {
        while conn.head()?.is_some() {
            // The whole answer but for its last byte comes first.
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok")?;
            conn.skip(LEN as u64)?;
            conn.send(b"!")?;
        }
        Ok(())
    });
    for more in [
        "client_body_buffer_size 8m;",
        "client_body_buffer_size 16k;",
        "proxy_request_buffering off;",
        "proxy_request_buffering off; proxy_buffering off;",
    ] {
        let more = format!("client_max_body_size 0; {more}");
        let server = start(Kind::Forebay, "", &pass(origin.addr(), &more));
        let (mut client, before) = (client(&server), origin.connections());
        for _ in 0..2 {
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LEN}\r\n\r\n");
            client.send(head.as_bytes()).unwrap();
            client.send(&vec![b'x'; LEN]).unwrap();
            assert_eq!(client.read_response(false).unwrap().body, b"ok!", "{more}");
        }
        // Both ends have had all of it: the connection is used again.
        assert_eq!(origin.connections(), before + 1, "{more}");
    }
}

#[test]
fn an_upload_that_goes_on_holds_off_the_read_timeout() {
    // No time between two pieces is as long as the timeout; that of all of them is longer.
    const PIECES: usize = 6;
    let origin = Origin::start(|conn| {
        conn.head()?;
        conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok")?;
        conn.skip(4 * PIECES as u64)?;
        conn.send(b"!")
    });
    let more = "proxy_request_buffering off; proxy_read_timeout 2s;";
    let server = start(Kind::Forebay, "", &pass(origin.addr(), more));
    let mut client = client(&server);
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 4 * PIECES);
    let pieces: Vec<&[u8]> = [head.as_bytes()].into_iter().chain([&b"abcd"[..]; PIECES]).collect();
    client.send_split(&pieces, Duration::from_millis(500)).unwrap();
    assert_eq!(client.read_response(false).unwrap().body, b"ok!", "{}", server.error_log());
}

#[test]
fn a_client_that_leaves_in_its_body_after_an_early_answer_frees_the_upstream() {
    let origin = Origin::start(converse);
    let more = "proxy_request_buffering off; client_body_timeout 300ms; client_max_body_size 20;";
    let server = start(Kind::Forebay, "", &pass(origin.addr(), more));
    let head = "POST / HTTP/1.1\r\nHost: a\r\nX-Pieces: 9\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (then, leaves, log) in [
        // By a reset, where it has not read all that came.
        ("", true, " while sending request to upstream, client:"),
        ("", false, "client timed out"),
        ("x", false, "client sent invalid chunked body"),
        (
            "18\r\nabcdefghijklmnopqrstuvwx\r\n",
            false,
            "client intended to send too large chunked body",
        ),
    ] {
        let closed = origin.connections() - origin.open();
        let mut client = client(&server);
        client.send(format!("{head}4\r\nabcd\r\n").as_bytes()).unwrap();
        read_head(&mut client);
        client.send(then.as_bytes()).unwrap();
        match leaves {
            true => drop(client),
            false => assert!(!client.read_to_end().unwrap().ends_with(b"0\r\n\r\n"), "{log}"),
        }
        origin.wait_closed(closed + 1);
        crate::wait_logged(&server, log);
    }
}
