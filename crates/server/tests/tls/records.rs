//! What records look like from outside: their size, and how the certificate comes in them; and TLS on
//! unix sockets.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;

/// The sizes of the records of data that `openssl s_client -msg` shows.
fn sizes(said: &str) -> Vec<usize> {
    let mut lines = said.lines();
    let mut sizes = Vec::new();
    while let Some(line) = lines.next() {
        if !line.starts_with("<<<") || !line.contains("RecordHeader") {
            continue;
        }
        let hex = lines.next().unwrap_or_default().split_whitespace();
        let head: Vec<u8> = hex.filter_map(|hex| u8::from_str_radix(hex, 16).ok()).collect();
        if let [23, 3, 3, high, low] = head[..] {
            sizes.push(usize::from(u16::from_be_bytes([high, low])));
        }
    }
    sizes
}

#[test]
fn records_are_no_longer_than_ssl_buffer_size_says() {
    if !have("openssl") {
        return;
    }
    for (size, most) in
        [("", 16_384), ("ssl_buffer_size 4k;", 4096), ("ssl_buffer_size 1400;", 1400)]
    {
        let http =
            server(&format!("{size} root {{root}}; location = /x {{ alias {{prefix}}/body; }}"));
        for longest in both(&http, |server| {
            let body = server.prefix().join("body");
            fs::write(&body, vec![b'x'; 100_000]).unwrap();
            let get = "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let said = s_client(server, &["-tls1_2", "-msg"], get);
            sizes(&said).into_iter().max().unwrap_or(0).to_string()
        }) {
            // With what sealing adds.
            let longest: usize = longest.parse().unwrap();
            assert!(longest > most && longest <= most + 24, "{size} {longest}");
        }
    }
}

#[test]
fn certificates_are_compressed_for_clients_that_take_it() {
    // RFC 8879: a ClientHello of TLS 1.3 with the extension; the answer to it is sealed, but shorter.
    let size = |more: &str| {
        let server = forebay(&server(&format!(
            "ssl_certificate {{certs}}/chain.pem; ssl_certificate_key {{certs}}/chain.key; {more} \
             return 200 x;"
        )));
        flight(&server)
    };
    let (plain, compressed) = (size(""), size("ssl_certificate_compression on;"));
    assert!(compressed < plain, "{compressed} {plain}");
}

/// How long a server's first flight is, for a client that takes compressed certificates.
fn flight(server: &Server) -> usize {
    let mut stream = std::net::TcpStream::connect(server.addr()).unwrap();
    stream.write_all(&hello()).unwrap();
    // Then it leaves; the server has said all that it can say before the client goes on.
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut flight = Vec::new();
    stream.read_to_end(&mut flight).unwrap();
    flight.len()
}

/// A ClientHello with a key of X25519 that nobody has, and `compress_certificate` (zlib, brotli).
fn hello() -> Vec<u8> {
    let extension = |kind: u16, body: &[u8]| {
        [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat()
    };
    let mut share = vec![0, 36, 0, 0x1d, 0, 32];
    share.extend([9; 32]);
    let extensions = [
        extension(10, &[0, 2, 0, 0x1d]),
        extension(13, &[0, 4, 4, 3, 8, 4]),
        extension(43, &[2, 3, 4]),
        extension(51, &share),
        extension(27, &[4, 0, 1, 0, 2]),
    ]
    .concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    [&[22, 3, 1][..], &(message.len() as u16).to_be_bytes(), &message].concat()
}

#[test]
fn names_choose_servers_on_unix_sockets_too() {
    if !have("openssl") {
        return;
    }
    let of = |name: &str, certificate: &str| {
        format!(
            "server {{ listen unix:{{prefix}}/sock ssl; server_name {name}; \
             ssl_certificate {{certs}}/{certificate}.pem; \
             ssl_certificate_key {{certs}}/{certificate}.key; \
             return 200 \"in $server_name $ssl_server_name\\n\"; }}"
        )
    };
    let http = format!(
        "server {{ listen 127.0.0.1:{{port}}; }} {} {}",
        of("a.test", "ec"),
        of("other.example", "other")
    );
    let [ours, theirs] = both(&http, |server| {
        let sock = server.prefix().join("sock");
        assert!(wait_for(|| UnixStream::connect(&sock).is_ok(), LIMIT));
        let ask = |name: &&str| {
            let mut child = Command::new("openssl")
                .args(["s_client", "-unix", &sock.display().to_string(), "-servername", name])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(request(name).as_bytes()).unwrap();
            let said = wait_closed(child, stdin);
            let keep = |line: &&str| line.starts_with("subject=") || line.starts_with("in ");
            said.lines().filter(keep).map(|line| format!("{line}\n")).collect::<String>()
        };
        ["a.test", "other.example", "nobody.test"].iter().map(ask).collect()
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("in other.example other.example"), "{ours}");
}
