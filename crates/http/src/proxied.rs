//! The PROXY header before a connection's first byte (`listen … proxy_protocol`): where the
//! connection came from before a load balancer took it.
//!
//! Answers nginx's `ngx_proxy_protocol_read` and the part of `ngx_http_wait_request_handler` that
//! calls it.
//!
//! DIFFERS(proxy-header-in-pieces): the header may arrive in several pieces, within
//! `client_header_timeout`; nginx takes one that its first read does not hold whole for broken.
//!
//! Invariant: nothing that follows the header is looked at.

use std::{fmt, future::poll_fn, net::SocketAddr, task::Poll};

use forebay_rt::{
    pool,
    timer::{Idle, Timer},
    transport::Transport,
};
use forebay_session::log::{Severity, Shown};
use forebay_wire::proxy_protocol;

use crate::{plan::Listener, plan::Plan, request::Connection};

/// What a PROXY header told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxied {
    /// The client and the address that it connected to; `None`: the balancer itself asks
    /// (`LOCAL`), or does not know (`UNKNOWN`).
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// The type-length-value triples of version 2 (`$proxy_protocol_tlv_…`).
    pub tlvs: Box<[u8]>,
}

/// Why there is no header.
enum Refused {
    Gone,
    TimedOut,
    Broken(Vec<u8>),
}

/// Reads the header; what was read behind it is the protocol's. `None`: close the connection; why is
/// in the error log.
pub async fn read<T: Transport>(
    io: &mut T,
    plan: &Plan,
    listener: &Listener,
    connection: &Connection,
) -> Option<(Proxied, Vec<u8>)> {
    let default = plan.server(listener.names.default);
    let timer = Timer::new();
    timer.arm(default.settings.client_header_timeout_ms);
    timer.set_idle(Idle::First);
    let refused = match header(io, &timer).await {
        Ok(done) => return Some(done),
        Err(refused) => refused,
    };
    let log = |severity, message: fmt::Arguments<'_>| {
        let (client, addr) = (&connection.remote, &listener.addr);
        plan.location(default.location).error_log.write(
            severity,
            Some(connection.number),
            format_args!(
                "{message} while reading PROXY protocol, client: {client}, server: {addr}"
            ),
        );
    };
    match refused {
        Refused::Gone => log(Severity::Info, format_args!("client closed connection")),
        Refused::TimedOut => {
            log(Severity::Info, format_args!("client timed out (110: Connection timed out)"));
        }
        Refused::Broken(head) => log(Severity::Error, format_args!("{}", Cause(&head))),
    }
    None
}

async fn header<T: Transport>(io: &mut T, timer: &Timer) -> Result<(Proxied, Vec<u8>), Refused> {
    let mut buf = pool::buffer();
    loop {
        // The header's own length is bounded; so is what may be read beyond it.
        if buf.len() == buf.capacity() {
            buf.reserve(proxy_protocol::MAX_HEADER);
        }
        let read = poll_fn(|cx| {
            if let Poll::Ready(read) = io.poll_read(cx, &mut buf) {
                return Poll::Ready(read.map_err(|_| Refused::Gone));
            }
            timer.poll_expired(cx).map(|()| Err(Refused::TimedOut))
        })
        .await?;
        if read == 0 {
            return Err(Refused::Gone);
        }
        timer.set_idle(Idle::No);
        match proxy_protocol::parse(&buf) {
            Ok(None) => {}
            Ok(Some((len, header))) => {
                let tlvs = header.tlvs.of(&buf).into();
                let proxied = Proxied { addresses: header.src.zip(header.dst), tlvs };
                buf.drain(..len);
                return Ok((proxied, buf));
            }
            Err(_) => return Err(Refused::Broken(buf)),
        }
    }
}

/// nginx's words for what is wrong with a header.
struct Cause<'a>(&'a [u8]);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // nginx looks at no more than its first buffer.
        const SHOWN: usize = 1024;
        if self.0.len() >= 16 && self.0.starts_with(b"\r\n\r\n\0\r\nQUIT\n") {
            return match self.0[12] >> 4 {
                2 => f.write_str("header is too large"),
                version => write!(f, "unknown PROXY protocol version: {version}"),
            };
        }
        let line = self.0.split(|b| matches!(b, b'\r' | b'\n')).next().unwrap_or_default();
        write!(f, "broken header: \"{}\"", Shown(&line[..line.len().min(SHOWN)]))
    }
}

/// The value of `$proxy_protocol_tlv_NAME` (`ngx_proxy_protocol_get_tlv`), at the end of `out`;
/// `false`: there is none.
pub fn write_tlv(tlvs: &[u8], name: &[u8], out: &mut Vec<u8>) -> bool {
    const SSL: u8 = 0x20;
    /// `client` and `verify` stand before the triples within the SSL one.
    const SSL_HEAD: usize = 5;
    let (tlvs, name, known): (_, _, &[(&[u8], u8)]) = match name.strip_prefix(b"ssl_") {
        None => (
            tlvs,
            name,
            &[
                (b"alpn", 0x01),
                (b"authority", 0x02),
                (b"unique_id", 0x05),
                (b"ssl", SSL),
                (b"netns", 0x30),
            ],
        ),
        Some(name) => {
            let Some(ssl) = find(tlvs, SSL).filter(|ssl| ssl.len() >= SSL_HEAD) else {
                return false;
            };
            let (head, rest) = ssl.split_at(SSL_HEAD);
            if name == b"verify" {
                let verify = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
                forebay_wire::h1::encode::write_decimal(out, verify.into());
                return true;
            }
            (
                rest,
                name,
                &[
                    (b"version", 0x21),
                    (b"cn", 0x22),
                    (b"cipher", 0x23),
                    (b"sig_alg", 0x24),
                    (b"key_alg", 0x25),
                ],
            )
        }
    };
    let kind = match name.strip_prefix(b"0x") {
        Some(digits) => {
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            u8::from_str_radix(digits, 16).ok()
        }
        None => known.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind),
    };
    let Some(value) = kind.and_then(|kind| find(tlvs, kind)) else { return false };
    out.extend_from_slice(value);
    true
}

/// The first value of that type; none if the list is broken before it.
fn find(tlvs: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut all = proxy_protocol::tlvs(tlvs).map_while(Result::ok);
    all.find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        io::{self, IoSlice},
        os::fd::BorrowedFd,
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    /// Gives its pieces one by one, then closes.
    struct Pieces(Vec<Vec<u8>>);

    impl Transport for Pieces {
        fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
            if self.0.is_empty() {
                return Poll::Ready(Ok(0));
            }
            let mut piece = self.0.remove(0);
            let rest = piece.split_off(piece.len().min(buf.capacity() - buf.len()));
            if !rest.is_empty() {
                self.0.insert(0, rest);
            }
            buf.extend_from_slice(&piece);
            Poll::Ready(Ok(piece.len()))
        }

        fn poll_write(
            &mut self,
            _: &mut Context<'_>,
            _: &[IoSlice<'_>],
            _: bool,
        ) -> Poll<io::Result<usize>> {
            panic!("a header is answered with nothing");
        }

        fn poll_send_file(
            &mut self,
            _: &mut Context<'_>,
            _: BorrowedFd<'_>,
            _: u64,
            _: usize,
        ) -> Poll<io::Result<usize>> {
            panic!("a header is answered with nothing");
        }

        fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn reset_on_close(&self) {}

        fn sends_files(&self) -> bool {
            false
        }
    }

    fn read_pieces(pieces: Vec<Vec<u8>>) -> Result<(Proxied, Vec<u8>), String> {
        let (mut io, timer) = (Pieces(pieces), Timer::new());
        let mut cx = Context::from_waker(Waker::noop());
        match pin!(header(&mut io, &timer)).poll(&mut cx) {
            Poll::Ready(Ok(done)) => Ok(done),
            Poll::Ready(Err(Refused::Broken(head))) => Err(Cause(&head).to_string()),
            Poll::Ready(Err(Refused::Gone)) => Err("gone".to_owned()),
            Poll::Ready(Err(Refused::TimedOut)) => Err("timed out".to_owned()),
            Poll::Pending => panic!("the script never waits"),
        }
    }

    fn v2(tlvs: &[u8]) -> Vec<u8> {
        let mut out = b"\r\n\r\n\0\r\nQUIT\n\x21\x11".to_vec();
        out.extend_from_slice(&(12 + tlvs.len() as u16).to_be_bytes());
        out.extend_from_slice(&[192, 0, 2, 1, 198, 51, 100, 1, 0x10, 0x00, 0, 80]);
        out.extend_from_slice(tlvs);
        out
    }

    #[test]
    fn a_header_in_pieces_is_read_and_what_follows_is_kept() {
        let want = Some((([192, 0, 2, 1], 4096).into(), ([198, 51, 100, 1], 80).into()));
        for head in [b"PROXY TCP4 192.0.2.1 198.51.100.1 4096 80\r\n".to_vec(), v2(b"")] {
            let all = [&head[..], b"GET / HTTP/1.1\r\n"].concat();
            for at in 1..all.len() {
                let (proxied, rest) =
                    read_pieces(vec![all[..at].into(), all[at..].into()]).unwrap();
                assert_eq!(proxied.addresses, want);
                assert!(b"GET / HTTP/1.1\r\n".starts_with(&rest));
            }
            let (_, rest) = read_pieces(vec![all]).unwrap();
            assert_eq!(rest, b"GET / HTTP/1.1\r\n");
        }
    }

    #[test]
    fn a_header_as_large_as_one_may_be_is_read() {
        let value = vec![7; proxy_protocol::MAX_HEADER - 28 - 3];
        let mut tlv = vec![0x30];
        tlv.extend_from_slice(&(value.len() as u16).to_be_bytes());
        tlv.extend_from_slice(&value);
        let (proxied, _) = read_pieces(vec![v2(&tlv)]).unwrap();
        let mut out = Vec::new();
        assert!(write_tlv(&proxied.tlvs, b"netns", &mut out));
        assert_eq!(out, value);
        tlv.push(0);
        assert_eq!(read_pieces(vec![v2(&tlv)]), Err("header is too large".to_owned()));
    }

    #[test]
    fn what_is_wrong_is_told_in_nginx_words() {
        let mut version_3 = v2(b"");
        version_3[12] = 0x31;
        for (bytes, want) in [
            (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], "broken header: \"GET / HTTP/1.1\""),
            (b"PROXY TCP4 1 2 3 4\r\n", "broken header: \"PROXY TCP4 1 2 3 4\""),
            (b"\x16\x03\x01\0", "broken header: \"\\x16\\x03\\x01\\x00\""),
            (&version_3, "unknown PROXY protocol version: 3"),
            (b"PROXY TCP4", "gone"),
            (b"", "gone"),
        ] {
            let pieces = if bytes.is_empty() { vec![] } else { vec![bytes.to_vec()] };
            assert_eq!(read_pieces(pieces).unwrap_err(), want);
        }
        let long = [b"PROXY UNKNOWN ", &[b'x'; 5000][..]].concat();
        let error = read_pieces(vec![long]).unwrap_err();
        assert!(error.starts_with("broken header: \"PROXY UNKNOWN xxx") && error.len() < 1100);
    }

    #[test]
    fn triples_are_found_by_name_and_number() {
        let mut ssl = vec![0x20, 0, 16, 1, 0, 0, 1, 2];
        ssl.extend_from_slice(b"\x21\0\x03TLS\x22\0\x02cn");
        let tlvs = [&b"\x01\0\x02h2\x02\0\x01a\xea\0\x03abc"[..], &ssl, b"\x30\xff"].concat();
        for (name, want) in [
            ("alpn", Some("h2")),
            ("authority", Some("a")),
            ("0xea", Some("abc")),
            ("0xEA", Some("abc")),
            ("0x01", Some("h2")),
            ("ssl_verify", Some("258")),
            ("ssl_version", Some("TLS")),
            ("ssl_cn", Some("cn")),
            ("ssl_0x22", Some("cn")),
            ("ssl_cipher", None),
            ("unique_id", None),
            ("netns", None),
            ("0xzz", None),
            ("0x", None),
            ("0x1ff", None),
            ("ALPN", None),
            ("", None),
        ] {
            let mut out = Vec::new();
            let found = write_tlv(&tlvs, name.as_bytes(), &mut out);
            assert_eq!(found.then(|| String::from_utf8(out).unwrap()).as_deref(), want, "{name}");
        }
        assert!(!write_tlv(b"\x20\0\x04abcd", b"ssl_verify", &mut Vec::new()));
    }
}
