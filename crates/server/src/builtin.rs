//! The configurations that are built in: the welcome page of a bare `forebay`, and the folder of
//! `forebay serve`. Both run in the foreground, in one process, without files of their own.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use forebay_rt::listen::{Addr, Options, name_of, open};
use forebay_rt::process;

use crate::load::Request;
use crate::paths::Paths;
use crate::site::Site;

/// The welcome page on `listen`.
pub fn welcome(listen: &str) -> Request {
    let server = format!(
        "listen {listen};
        location / {{ default_type text/html; return 200 '{PAGE}'; }}"
    );
    request(Path::new("/nonexistent"), &server)
}

/// The folder `dir`, an absolute name, with listings, on `listen`.
pub fn folder(dir: &Path, listen: &str) -> Request {
    // The name is the prefix and not in the text, where it would have to be quoted.
    let listing = if_built_in("ngx_http_autoindex_module", "autoindex on;");
    request(dir, &format!("listen {listen}; root .; {listing}"))
}

/// A free loopback port with a socket on it: 8080 or one of those that follow, else any.
pub fn free_port() -> io::Result<(SocketAddr, OwnedFd)> {
    let mut last = None;
    for port in (FIRST_PORT..FIRST_PORT + PORTS).chain([0]) {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match open(&Addr::Tcp(addr), &Options::default(), 1) {
            Ok(mut opened) => {
                let socket = opened.sockets.remove(0);
                if let Addr::Tcp(addr) = name_of(socket.as_fd())? {
                    return Ok((addr, socket));
                }
            }
            Err(err) => last = Some(err.source),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::other("no free port")))
}

/// What is printed when it serves.
pub fn banner(what: &str, url: &str) -> String {
    format!(
        "\n  forebay {} serves {what}\n\n    {url}\n\n  Ctrl-C ends it; \"forebay help\" says what else it can do.\n",
        crate::version::FOREBAY
    )
}

/// The URL of what `listen` was given as.
pub fn url(listen: &str) -> String {
    match listen.parse::<u16>() {
        Ok(port) => format!("http://127.0.0.1:{port}/"),
        Err(_) if listen.starts_with("unix:") => listen.to_string(),
        Err(_) => {
            let host = listen.replace("0.0.0.0", "127.0.0.1").replace('*', "127.0.0.1");
            format!("http://{}/", host.replace("[::]", "[::1]"))
        }
    }
}

fn request(prefix: &Path, server: &str) -> Request {
    let temp = std::env::temp_dir().join(format!("forebay-{}", process::pid()));
    // A name with characters that mean something in a configuration is left to the default.
    let temp = match temp.to_str().filter(|temp| temp.chars().all(is_plain)) {
        Some(temp) => format!("client_body_temp_path {temp};"),
        None => String::new(),
    };
    let access_log = if_built_in("ngx_http_log_module", "access_log off;");
    let text = format!(
        "daemon off;
master_process off;
worker_processes auto;
error_log stderr warn;
events {{ }}
http {{
    {TYPES}
    default_type application/octet-stream;
    sendfile on;
    {access_log}
    {temp}
    server {{
        {server}
    }}
}}
"
    );
    let paths = Paths {
        prefix: prefix.to_path_buf(),
        conf: prefix.join("built-in"),
        error_log: None,
        access_log: prefix.join("access.log"),
        temp: None,
        pid: prefix.join("nginx.pid"),
    };
    Request { paths, globals: None, embedded: Some(text) }
}

/// A directive of a module that a small build may be without.
fn if_built_in(module: &str, directive: &'static str) -> &'static str {
    if Site::has_module(module) { directive } else { "" }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-')
}

const FIRST_PORT: u16 = 8080;
const PORTS: u16 = 20;
const TYPES: &str = include_str!("../data/mime.types");
const PAGE: &str = include_str!("../data/welcome.html");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_can_stand_in_single_quotes() {
        assert!(!PAGE.contains(['\'', '$', '\\']), "it would end the value or name a variable");
    }

    #[test]
    fn free_port_is_loopback_and_listens() {
        let (first, _socket) = free_port().unwrap();
        let (second, _socket) = free_port().unwrap();
        assert!(first.ip().is_loopback() && first.port() != second.port());
        std::net::TcpStream::connect(first).unwrap();
    }

    #[test]
    fn url_is_one_that_a_browser_takes() {
        for (listen, expected) in [
            ("8080", "http://127.0.0.1:8080/"),
            ("*:80", "http://127.0.0.1:80/"),
            ("0.0.0.0:80", "http://127.0.0.1:80/"),
            ("[::]:80", "http://[::1]:80/"),
            ("example.org:80", "http://example.org:80/"),
            ("unix:/a", "unix:/a"),
        ] {
            assert_eq!(url(listen), expected);
        }
    }
}
