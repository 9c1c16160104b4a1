//! Variables of the connection, the server process and the addresses.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr},
    os::unix::ffi::OsStrExt as _,
    sync::OnceLock,
};

use forebay_rt::{
    clock,
    listen::unix_path,
    tcp_info::{TcpInfo, tcp_info},
};
use forebay_session::var::Registry;

use super::{put, put_number, put_seconds};
use crate::{
    proxied::{Proxied, write_tlv},
    request::{Peer, Request},
    special::NGINX_VERSION,
};

pub(super) fn register(registry: &mut Registry<Request>) {
    registry.builtin("binary_remote_addr", |r, out| match r.remote().ip() {
        Some(IpAddr::V4(ip)) => put(out, &ip.octets()),
        Some(IpAddr::V6(ip)) => put(out, &ip.octets()),
        None => put(out, b"unix:"),
    });
    registry.builtin("connection", |r, out| put_number(out, r.connection.number));
    registry.builtin("connection_requests", |r, out| put_number(out, r.input.number.into()));
    registry.builtin("connection_time", |r, out| {
        put_seconds(out, clock::now_ms().saturating_sub(r.connection.started_ms))
    });
    registry.builtin("hostname", |_, out| put(out, hostname()));
    registry.builtin("nginx_version", |_, out| put(out, NGINX_VERSION.as_bytes()));
    registry.builtin("pid", |_, out| put_number(out, std::process::id().into()));
    registry.builtin("remote_addr", |r, out| put_ip(out, r.remote()));
    registry.builtin("remote_port", |r, out| put_port(out, r.remote().port()));
    registry.builtin("server_addr", |r, out| {
        let path = match &r.connection.local {
            Peer::Unix => r.connection.socket.ask(unix_path),
            Peer::Inet(_) => None,
        };
        put_ip(out, &r.connection.local)
            && path.is_none_or(|path| put(out, path.as_os_str().as_bytes()))
    });
    registry.builtin("server_port", |r, out| put_port(out, r.connection.local.port()));
    registry.builtin("tcpinfo_rtt", |r, out| tcp(r, out, |tcp| tcp.rtt));
    registry.builtin("tcpinfo_rttvar", |r, out| tcp(r, out, |tcp| tcp.rtt_variance));
    registry.builtin("tcpinfo_snd_cwnd", |r, out| tcp(r, out, |tcp| tcp.send_window));
    registry.builtin("tcpinfo_rcv_space", |r, out| tcp(r, out, |tcp| tcp.receive_space));
    registry.builtin("proxy_protocol_addr", |r, out| proxied_ip(r, out, |(source, _)| source));
    registry.builtin("proxy_protocol_port", |r, out| proxied_port(r, out, |(source, _)| source));
    registry.builtin("proxy_protocol_server_addr", |r, out| proxied_ip(r, out, |(_, dest)| dest));
    registry.builtin("proxy_protocol_server_port", |r, out| proxied_port(r, out, |(_, dest)| dest));
    registry.prefixed("proxy_protocol_tlv_", |r, name, out| {
        told(r).is_some_and(|told| write_tlv(&told.tlvs, name, out))
    });
}

fn tcp(r: &Request, out: &mut Vec<u8>, number: fn(TcpInfo) -> u32) -> bool {
    let info = r.connection.socket.ask(tcp_info);
    info.is_some_and(|info| put_number(out, number(info).into()))
}

/// The host's name in lower case, asked for once, as nginx does at start.
pub(crate) fn hostname() -> &'static [u8] {
    static NAME: OnceLock<Vec<u8>> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim_ascii_end().to_ascii_lowercase()
    })
}

fn put_ip(out: &mut Vec<u8>, peer: &Peer) -> bool {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{peer}");
    true
}

/// A port; nothing for a unix socket, which has none.
fn put_port(out: &mut Vec<u8>, port: u16) -> bool {
    port == 0 || put_number(out, port.into())
}

type Side = fn((SocketAddr, SocketAddr)) -> SocketAddr;

fn told(r: &Request) -> Option<&Proxied> {
    r.connection.proxied.get().map(|told| &**told)
}

fn proxied_ip(r: &Request, out: &mut Vec<u8>, side: Side) -> bool {
    let Some(addr) = told(r).and_then(|told| told.addresses).map(side) else { return false };
    put_ip(out, &Peer::Inet(addr))
}

fn proxied_port(r: &Request, out: &mut Vec<u8>, side: Side) -> bool {
    let Some(addr) = told(r).and_then(|told| told.addresses).map(side) else { return false };
    put_port(out, addr.port())
}
