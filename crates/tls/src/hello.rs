//! The ClientHello: recognised, gathered from its records and read, before a server is chosen.
//!
//! rustls reads it again and decides whether it is valid; what is found here only chooses the server
//! and fills variables. Answers the peeking of `ngx_http_ssl_handshake` and
//! `ngx_ssl_get_ciphers`, `ngx_ssl_get_curves`, `ngx_ssl_get_sigalgs`.
//! Invariant: never panics, whatever the bytes; holds at most [`MAX_HELLO_BYTES`].

/// A ClientHello larger than that is refused. It is all that rustls takes of a message.
///
/// DIFFERS(ssl-hello-64k): OpenSSL takes twice as much (`CLIENT_HELLO_MAX_LENGTH`).
pub const MAX_HELLO_BYTES: usize = 0xffff;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const RECORD_HEADER: usize = 5;
const MAX_RECORD: usize = (16 << 10) + 256;

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// Not enough of them yet.
    Partial,
    /// Not TLS at all: `ngx_http_ssl_handshake` takes it for plain HTTP.
    Plain,
    /// TLS, but not a ClientHello that can be read: rustls will say what is wrong.
    Odd,
    /// A hello in the form of SSLv2, which nothing that is spoken here begins with.
    Old,
    /// Another message of a handshake than the first.
    NotHello,
    /// A hello of more than [`MAX_HELLO_BYTES`]: rustls would send no alert.
    TooLarge,
    /// The body of the message, without its header.
    Hello(Vec<u8>),
}

/// What is gathered of the first message: a record that is whole is looked at once.
#[derive(Default)]
pub(crate) struct Gathered {
    message: Vec<u8>,
    /// How far the input is gathered.
    at: usize,
}

impl Gathered {
    /// Looks at what has come: what it was the last time, and more.
    ///
    /// DIFFERS(ssl-empty-record): OpenSSL waits for the rest of a hello behind an empty record.
    pub(crate) fn scan(&mut self, input: &[u8]) -> Scan {
        match input.first() {
            None => return Scan::Partial,
            Some(&HANDSHAKE) => {}
            Some(first) if first & 0x80 != 0 => return scan_old(input),
            Some(_) => return Scan::Plain,
        }
        loop {
            let Some((header, body)) = input[self.at..].split_at_checked(RECORD_HEADER) else {
                return Scan::Partial;
            };
            let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
            if header[0] != HANDSHAKE || header[1] != 3 || len == 0 || len > MAX_RECORD {
                return Scan::Odd;
            }
            let before = self.message.len();
            self.message.extend_from_slice(&body[..len.min(body.len())]);
            if let Some(found) = self.found() {
                return found;
            }
            if body.len() < len {
                self.message.truncate(before);
                return Scan::Partial;
            }
            self.at += RECORD_HEADER + len;
        }
    }

    /// What the message is, as soon as that can be told.
    fn found(&mut self) -> Option<Scan> {
        let &[kind, a, b, c] = self.message.first_chunk()?;
        let size = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind != CLIENT_HELLO {
            return Some(Scan::NotHello);
        }
        if size > MAX_HELLO_BYTES {
            return Some(Scan::TooLarge);
        }
        let body = self.message.get(4..size + 4)?;
        Some(Scan::Hello(body.to_vec()))
    }
}

/// Looks at what has come, all at once.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn scan(input: &[u8]) -> Scan {
    Gathered::default().scan(input)
}

/// SSLv2: a length of fifteen bits, then the message (`ssl3_get_record`).
fn scan_old(input: &[u8]) -> Scan {
    let Some((&[high, low, kind], rest)) = input.split_first_chunk::<3>() else {
        return Scan::Partial;
    };
    let len = usize::from(u16::from_be_bytes([high & 0x7f, low]));
    match (kind, len) {
        (CLIENT_HELLO, 9..) if rest.len() + 1 < len => Scan::Partial,
        (CLIENT_HELLO, 9..) => Scan::Old,
        _ => Scan::Odd,
    }
}

/// What a client says of itself.
#[derive(Debug, Default)]
pub struct ClientHello<'a> {
    server_name: Option<&'a str>,
    alpn: &'a [u8],
    ciphers: &'a [u8],
    groups: &'a [u8],
    signature_schemes: &'a [u8],
    versions: &'a [u8],
    legacy_version: u16,
    resumes: bool,
}

impl<'a> ClientHello<'a> {
    /// Of the body of the message; what is broken is taken as absent.
    pub(crate) fn parse(body: &'a [u8]) -> ClientHello<'a> {
        let mut hello = ClientHello::default();
        // RFC 8446 §4.1.2: version, random, session id, suites, compression methods, extensions.
        let _ = hello.read(&mut Reader(body));
        hello
    }

    fn read(&mut self, body: &mut Reader<'a>) -> Option<()> {
        self.legacy_version = body.u16()?;
        body.take(32)?;
        body.vec8()?;
        self.ciphers = body.vec16()?;
        body.vec8()?;
        let mut extensions = Reader(body.vec16()?);
        while !extensions.0.is_empty() {
            let kind = extensions.u16()?;
            let mut content = Reader(extensions.vec16()?);
            match kind {
                0 => self.server_name = server_name(&mut content),
                10 => self.groups = content.vec16()?,
                13 => self.signature_schemes = content.vec16()?,
                16 => self.alpn = content.vec16()?,
                41 => self.resumes = true,
                43 => self.versions = content.vec8()?,
                _ => {}
            }
        }
        Some(())
    }

    /// The name of the server that the client wants (SNI), in the case it came in.
    pub fn server_name(&self) -> Option<&'a str> {
        self.server_name
    }

    /// The protocols offered by ALPN, in the client's order.
    pub fn alpn(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut list = Reader(self.alpn);
        std::iter::from_fn(move || list.vec8())
    }

    /// The version that it is logged with when it has none that is spoken here (RFC 8996).
    pub(crate) fn outdated(&self) -> Option<u16> {
        let is_old = self.versions.is_empty() && (1..0x0303).contains(&self.legacy_version);
        is_old.then_some(self.legacy_version)
    }

    /// Whether TLS 1.3 is among the versions that the client speaks (RFC 8446 §4.2.1).
    pub(crate) fn offers_tls13(&self) -> bool {
        pairs(self.versions).any(|version| version == 0x0304)
    }

    /// Whether the client would resume a session of TLS 1.3 (RFC 8446 §4.2.11).
    pub(crate) fn resumes_tls13(&self) -> bool {
        self.resumes
    }

    /// Whether ChaCha20 is what the client would rather have (`ssl3_choose_cipher`): it has no AES in
    /// hardware.
    pub(crate) fn prefers_chacha(&self) -> bool {
        // RFC 8701: what is only there to see whether it is passed over.
        let mut offered = self.ciphers().filter(|suite| suite & 0x0f0f != 0x0a0a);
        matches!(offered.next(), Some(0x1303 | 0xcca8 | 0xcca9))
    }

    /// The cipher suites offered, as their numbers, in the client's order.
    pub fn ciphers(&self) -> impl Iterator<Item = u16> + use<'a> {
        pairs(self.ciphers)
    }

    /// The groups (curves) offered, as their numbers.
    pub fn groups(&self) -> impl Iterator<Item = u16> + use<'a> {
        pairs(self.groups)
    }

    /// The signature schemes that the client accepts, as their numbers.
    pub fn signature_schemes(&self) -> impl Iterator<Item = u16> + use<'a> {
        pairs(self.signature_schemes)
    }
}

fn pairs<'a>(list: &'a [u8]) -> impl Iterator<Item = u16> + use<'a> {
    list.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}

/// RFC 6066 §3: a list of typed names, of which the only type is a host name.
///
/// DIFFERS(ssl-server-name): it is taken as it comes here, but rustls ends the handshake where it is
/// neither a host name nor an address.
fn server_name<'a>(content: &mut Reader<'a>) -> Option<&'a str> {
    let mut list = Reader(content.vec16()?);
    let kind = list.u8()?;
    let name = list.vec16()?;
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && name.is_ascii());
    name.filter(|name| kind == 0 && !name.contains('\0'))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        let two = self.take(2)?;
        Some(u16::from_be_bytes([two[0], two[1]]))
    }

    fn vec8(&mut self) -> Option<&'a [u8]> {
        let len = self.u8()?;
        self.take(len.into())
    }

    fn vec16(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(len.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut out = kind.to_be_bytes().to_vec();
        out.extend((content.len() as u16).to_be_bytes());
        out.extend(content);
        out
    }

    fn vec16(content: &[u8]) -> Vec<u8> {
        let mut out = (content.len() as u16).to_be_bytes().to_vec();
        out.extend(content);
        out
    }

    fn hello() -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend(vec16(&[0x13, 0x01, 0xc0, 0x2f]));
        body.extend([1, 0]);
        let mut name = vec![0];
        name.extend(vec16(b"www.Example.com"));
        let extensions = [
            extension(0, &vec16(&name)),
            extension(10, &vec16(&[0x11, 0xec, 0, 0x1d])),
            extension(13, &vec16(&[4, 3])),
            extension(16, &vec16(b"\x02h2\x08http/1.1")),
        ];
        body.extend(vec16(&extensions.concat()));
        body
    }

    /// The message in records of that many bytes.
    fn records(size: usize) -> Vec<u8> {
        let body = hello();
        let mut message = vec![1];
        message.extend(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        let records = message.chunks(size).map(|piece| {
            let mut record = vec![22, 3, 1];
            record.extend(vec16(piece));
            record
        });
        records.collect::<Vec<_>>().concat()
    }

    #[test]
    fn a_hello_is_read_whatever_its_records() {
        for size in [1, 3, 50, 4000] {
            let Scan::Hello(body) = scan(&records(size)) else { panic!("records of {size}") };
            let hello = ClientHello::parse(&body);
            assert_eq!(hello.server_name(), Some("www.Example.com"));
            assert_eq!(hello.alpn().collect::<Vec<_>>(), [&b"h2"[..], b"http/1.1"]);
            assert_eq!(hello.ciphers().collect::<Vec<_>>(), [0x1301, 0xc02f]);
            assert_eq!(hello.groups().collect::<Vec<_>>(), [0x11ec, 0x1d]);
            assert_eq!(hello.signature_schemes().collect::<Vec<_>>(), [0x0403]);
        }
    }

    #[test]
    fn a_hello_that_is_cut_anywhere_is_partial() {
        let whole = records(60);
        for cut in 0..whole.len() {
            assert_eq!(scan(&whole[..cut]), Scan::Partial, "{cut}");
        }
    }

    #[test]
    fn a_hello_that_grows_is_gathered_once() {
        for size in [1, 7, 60] {
            let whole = records(size);
            let mut gathered = Gathered::default();
            for cut in 1..whole.len() {
                assert_eq!(gathered.scan(&whole[..cut]), Scan::Partial, "{cut}");
                let behind = cut - gathered.at;
                assert!(behind < RECORD_HEADER + size, "{cut} {behind}");
            }
            assert_eq!(gathered.scan(&whole), scan(&whole));
        }
    }

    #[test]
    fn other_first_bytes_are_told_apart() {
        let cases: [(&[u8], Scan); 9] = [
            (b"GET / HTTP/1.1\r\n", Scan::Plain),
            (b"\r\n", Scan::Plain),
            (b"\x80\x2e\x01\x03\x01", Scan::Partial),
            (b"\x80\x09\x01\x03\x01\x00\x00\x00\x00\x00\x00", Scan::Old),
            (b"\xff\xff\xff", Scan::Odd),
            (b"\x16\x03\x01\x00\x00", Scan::Odd),
            (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", Scan::NotHello),
            (b"\x16\x03\x01\x00\x04\x01\x00\xff\xff", Scan::Partial),
            (b"\x16\x03\x01\x00\x04\x01\x01\x00\x00", Scan::TooLarge),
        ];
        for (input, want) in cases {
            assert_eq!(scan(input), want, "{input:?}");
        }
    }

    #[test]
    fn broken_hellos_give_what_was_whole() {
        let body = hello();
        for cut in 0..body.len() {
            let hello = ClientHello::parse(&body[..cut]);
            assert!(hello.server_name().is_none_or(|name| name == "www.Example.com"));
        }
    }
}
