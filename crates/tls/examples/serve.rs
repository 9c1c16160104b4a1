//! What does TLS cost on its own? Answers every request on a port with so many bytes, over TLS, in one
//! thread: `serve ADDRESS CERTIFICATE KEY [BYTES]`. To be loaded by `wrk`, `h2load` or `openssl s_time`,
//! with the server's CPU time read from `/proc`, beside nginx's.

use std::{cell::RefCell, fs, future::poll_fn, io::IoSlice, net::TcpListener, os::fd::OwnedFd};

use forebay_rt::{
    pool,
    task::{block_on, spawn_local},
    transport::{Acceptor, Socket, Transport},
};
use forebay_tls::{
    Chain, Choice, KeyPair, PrivateKey, ServerConfig, ServerSettings, SessionCache, TicketKeys,
    accept,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().ok_or("serve ADDRESS CERTIFICATE KEY [BYTES]");
    let (addr, certificate, key) = (next()?, fs::read(next()?)?, fs::read(next()?)?);
    let len = next().map_or(Ok(612), |text| text.parse())?;
    let pair = KeyPair::new(&Chain::from_pem(&certificate)?, &PrivateKey::from_pem(&key, &[])?)?;
    let mut settings = ServerSettings { certificates: vec![pair], ..ServerSettings::default() };
    settings.resumption.tickets = Some(TicketKeys::rotating(300));
    settings.resumption.cache = Some(SessionCache::new(10 << 20));
    let config = ServerConfig::new(&settings)?;
    let listener = TcpListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    block_on(async move {
        let mut acceptor = Acceptor::new(OwnedFd::from(listener))?;
        loop {
            let (socket, _) = acceptor.accept().await?;
            let config = config.clone();
            spawn_local(async move {
                let shaken = accept(socket, Vec::new(), |_| Choice::Serve(config)).await;
                if let Ok((stream, _)) = shaken {
                    serve(stream, len).await;
                }
            });
        }
    })
}

thread_local! {
    static BODY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

async fn serve(mut stream: forebay_tls::TlsStream<Socket>, len: usize) {
    BODY.with_borrow_mut(|body| body.resize(len, b'x'));
    let head = format!("HTTP/1.1 200 OK\r\nServer: tls\r\nContent-Length: {len}\r\n\r\n");
    loop {
        let mut buf = Vec::new();
        let read = poll_fn(|cx| {
            buf = pool::buffer();
            let read = stream.poll_read(cx, &mut buf);
            if read.is_pending() {
                pool::recycle(std::mem::take(&mut buf));
            }
            read
        });
        match read.await {
            Ok(read) if read > 0 => {}
            _ => return,
        }
        let closes = buf.starts_with(b"GET") && buf.windows(8).any(|word| word == b"HTTP/1.0");
        pool::recycle(std::mem::take(&mut buf));
        let total = head.len() + len;
        let mut sent = 0;
        while sent < total {
            let written = poll_fn(|cx| {
                BODY.with_borrow(|body| {
                    let slices = [
                        IoSlice::new(&head.as_bytes()[sent.min(head.len())..]),
                        IoSlice::new(&body[sent.saturating_sub(head.len())..]),
                    ];
                    stream.poll_write(cx, &slices, false)
                })
            });
            match written.await {
                Ok(written) => sent += written,
                Err(_) => return,
            }
        }
        if closes {
            let _ = poll_fn(|cx| stream.poll_shutdown(cx)).await;
            return;
        }
    }
}
