//! `proxy_bind ... transparent`: connections that come from addresses of others, in two network
//! namespaces of their own. Left out where nobody may make those.

use std::fs::File;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;

use forebay_testkit::origin::{Conn, Origin};
use nix::sched::{CloneFlags, setns};

use crate::{ask, of_both, pass, start};

/// Of nobody here (TEST-NET-2, RFC 5737).
const FOREIGN: &str = "198.51.100.7";

/// Two namespaces with a cable between them: `front` is 192.0.2.1, `back` is 192.0.2.2.
struct Net {
    names: [String; 2],
}

impl Net {
    /// `None`: that is not permitted, or there is no `ip`.
    fn lay() -> Option<Net> {
        let names = ["front", "back"].map(|name| format!("fb-{name}-{}", std::process::id()));
        let net = Net { names };
        let [front, back] = &net.names;
        let is_made = [front, back].iter().all(|name| ip(&format!("netns add {name}")));
        if !is_made {
            return None;
        }
        for command in [
            format!("-n {front} link add cable type veth peer name cable netns {back}"),
            format!("-n {front} addr add 192.0.2.1/24 dev cable"),
            format!("-n {back} addr add 192.0.2.2/24 dev cable"),
            format!("-n {front} link set lo up"),
            format!("-n {front} link set cable up"),
            format!("-n {back} link set cable up"),
            // Answers to any address go to the proxy, and are for it, whosever the address is.
            format!("-n {back} route add default via 192.0.2.1"),
            format!("-n {front} rule add iif cable lookup 100"),
            format!("-n {front} route add local default dev lo table 100"),
        ] {
            if !ip(&command) {
                return None;
            }
        }
        Some(net)
    }

    /// Moves the calling thread, and what it will start, into one of the namespaces.
    fn enter(&self, index: usize) {
        let path = format!("/run/netns/{}", self.names[index]);
        let file = File::open(path).expect("a namespace");
        setns(file, CloneFlags::CLONE_NEWNET).expect("moving into it");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Runs `ip`; whether it did what it was asked for.
fn ip(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Says the address that a connection comes from.
fn who(conn: &mut Conn) -> std::io::Result<()> {
    conn.request()?;
    let ip = conn.peer().ip().to_string();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", ip.len());
    conn.send(format!("{head}{ip}").as_bytes())
}

#[test]
fn transparent_connections_come_from_the_address_of_the_client() {
    let Some(net) = Net::lay() else {
        println!("skipped: network namespaces are not permitted here");
        return;
    };
    // A thread of its own: it does not come back.
    let scene = move || {
        net.enter(1);
        let listener = TcpListener::bind("192.0.2.2:0").expect("a free port");
        let origin = Origin::start_on(listener, who);
        net.enter(0);
        let http = "set_real_ip_from 127.0.0.1; real_ip_header X-Client;";
        let request = format!(
            "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nX-Client: {FOREIGN}\r\n\r\n"
        );
        of_both(|kind| {
            for (bind, want) in [
                ("proxy_bind $remote_addr transparent;", FOREIGN),
                ("proxy_bind 198.51.100.9 transparent;", "198.51.100.9"),
                ("", "192.0.2.1"),
            ] {
                let server = start(kind, http, &pass(origin.addr(), bind));
                let got = ask(server.addr(), request.as_bytes());
                assert_eq!(got, format!("200 {want}"), "{kind} {bind}\n{}", server.error_log());
            }
            // Without the word, the address must be ours.
            let server = start(kind, http, &pass(origin.addr(), "proxy_bind $remote_addr;"));
            assert_eq!(ask(server.addr(), request.as_bytes()), "500", "{kind}");
            crate::wait_logged(&server, "(99: Cannot assign requested address) while connecting");
        });
    };
    thread::spawn(scene).join().expect("a claim that holds");
}
