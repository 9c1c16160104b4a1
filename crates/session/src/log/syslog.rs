//! `syslog:server=…`: lines as datagrams, in the form of RFC 3164.
//!
//! Answers nginx's `ngx_syslog.c`. The socket is opened with the first line and again after an error,
//! never waited for, and shared by all threads: a datagram is sent whole or not at all.
//!
//! Invariant: a syslog server that is slow or gone costs its lines, nothing else.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::Arc,
};

use arc_swap::ArcSwapOption;
use forebay_conf::{Arg, Error, Files};
use forebay_rt::clock;
use forebay_wire::h1::encode::write_decimal;

use super::{Severity, Trouble, time};

/// A syslog server, and what its lines bear.
#[derive(Debug)]
pub struct Syslog {
    server: Server,
    facility: u8,
    /// The severity of lines that have none of their own: of access logs.
    severity: Severity,
    tag: Box<[u8]>,
    /// This machine's name; `None`: `nohostname`.
    host: Option<Box<[u8]>>,
    socket: ArcSwapOption<Socket>,
    trouble: Trouble,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Server {
    Udp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug)]
enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

/// By number.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv",
    "ftp", "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
];
const LOCAL7: u8 = 23;
const DEFAULT_PORT: u16 = 514;
/// RFC 3164 §4.1.3: the longest tag, in bytes.
const TAG_BYTES: usize = 32;

impl Syslog {
    /// Reads `syslog:server=…[,facility=…][,severity=…][,tag=…][,nohostname]`.
    ///
    /// Errors: nginx's, such as `no syslog server specified`, `unknown syslog parameter "x"`.
    pub fn parse(arg: &Arg, files: &mut dyn Files) -> Result<Syslog, Error> {
        let fail = |text: String| Error::emerg(arg.span, text);
        let text = String::from_utf8_lossy(arg.after("syslog:").unwrap_or_default());
        let (mut server, mut facility, mut severity, mut tag) = (None, None, None, None);
        let mut nohostname = false;
        for parameter in text.split(',') {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let has_value = parameter.len() > name.len();
            let duplicate = match name {
                "server" if has_value => {
                    let parsed = Server::parse(value, files)
                        .map_err(|what| fail(format!("{what} in syslog server \"{value}\"")))?;
                    server.replace(parsed).is_some()
                }
                "facility" if has_value => {
                    let known = FACILITIES.iter().position(|known| *known == value);
                    let number = known
                        .ok_or_else(|| fail(format!("unknown syslog facility \"{value}\"")))?;
                    facility.replace(number as u8).is_some()
                }
                "severity" if has_value => {
                    let known = Severity::parse(value)
                        .ok_or_else(|| fail(format!("unknown syslog severity \"{value}\"")))?;
                    severity.replace(known).is_some()
                }
                "tag" if has_value => {
                    check_tag(value).map_err(&fail)?;
                    tag.replace(value.as_bytes().into()).is_some()
                }
                "nohostname" if !has_value => {
                    nohostname = true;
                    false
                }
                _ => return Err(fail(format!("unknown syslog parameter \"{parameter}\""))),
            };
            if duplicate {
                return Err(fail(format!("duplicate syslog \"{name}\"")));
            }
        }
        Ok(Syslog {
            server: server.ok_or_else(|| fail("no syslog server specified".to_owned()))?,
            facility: facility.unwrap_or(LOCAL7),
            severity: severity.unwrap_or(Severity::Info),
            tag: tag.unwrap_or_else(|| b"nginx".as_slice().into()),
            host: (!nohostname).then(host_name),
            socket: ArcSwapOption::empty(),
            trouble: Trouble::default(),
        })
    }

    /// Appends `<190>Nov 21 09:00:00 host nginx: ` (`ngx_syslog_add_header`).
    pub fn write_header(&self, severity: Severity, out: &mut Vec<u8>) {
        out.push(b'<');
        write_decimal(out, u64::from(self.facility) * 8 + severity as u64);
        out.push(b'>');
        time::write_syslog(clock::wall_ms(), out);
        if let Some(host) = &self.host {
            out.push(b' ');
            out.extend_from_slice(host);
        }
        out.push(b' ');
        out.extend_from_slice(&self.tag);
        out.extend_from_slice(b": ");
    }

    /// The severity of lines that have none of their own.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// Sends a line, without line feed, with a header in front.
    pub fn send(&self, severity: Severity, line: &[u8]) -> io::Result<()> {
        let mut datagram = Vec::with_capacity(line.len() + 128);
        self.write_header(severity, &mut datagram);
        datagram.extend_from_slice(line);
        self.send_datagram(&datagram)
    }

    /// Sends a line that has its header already.
    pub fn send_datagram(&self, datagram: &[u8]) -> io::Result<()> {
        let open = self.socket.load_full();
        let socket = match open {
            Some(socket) => socket,
            None => {
                let socket = Arc::new(self.server.connect()?);
                self.socket.store(Some(socket.clone()));
                socket
            }
        };
        let result = socket.send(datagram);
        if result.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            // As in nginx: the next line tries it anew.
            self.socket.store(None);
        }
        result
    }

    /// What went wrong lately.
    pub fn trouble(&self) -> &Trouble {
        &self.trouble
    }
}

impl Server {
    /// `address[:port]`, `[address]:port`, `name[:port]`, `unix:path` (`ngx_parse_url`).
    fn parse(text: &str, files: &mut dyn Files) -> Result<Server, &'static str> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("no path in the unix domain socket"),
                path if path.len() > 107 => Err("too long path in the unix domain socket"),
                path => Ok(Server::Unix(path.into())),
            };
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or("invalid host")?;
                let port = match after {
                    "" => None,
                    after => Some(after.strip_prefix(':').ok_or("invalid port")?),
                };
                let ip: Ipv6Addr = host.parse().map_err(|_| "invalid IPv6 address")?;
                return Ok(Server::Udp((ip, parse_port(port)?).into()));
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = parse_port(port)?;
        if host.is_empty() {
            return Err("no host");
        }
        if host.contains('/') {
            return Err("invalid host");
        }
        let found = files.resolve(host).ok().and_then(|found| found.first().copied());
        found.map(|ip| Server::Udp((ip, port).into())).ok_or("host not found")
    }

    fn connect(&self) -> io::Result<Socket> {
        match self {
            Server::Udp(addr) => {
                let any = match addr {
                    SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                    SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
                };
                let socket = UdpSocket::bind(any)?;
                socket.set_nonblocking(true)?;
                socket.connect(addr)?;
                Ok(Socket::Udp(socket))
            }
            Server::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                socket.connect(path)?;
                Ok(Socket::Unix(socket))
            }
        }
    }
}

impl Socket {
    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        match self {
            Socket::Udp(socket) => socket.send(datagram),
            Socket::Unix(socket) => socket.send(datagram),
        }
        .map(|_| ())
    }
}

fn parse_port(text: Option<&str>) -> Result<u16, &'static str> {
    let Some(text) = text else { return Ok(DEFAULT_PORT) };
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0).ok_or("invalid port")
}

fn check_tag(tag: &str) -> Result<(), String> {
    if tag.len() > TAG_BYTES {
        return Err("syslog tag length exceeds 32".to_owned());
    }
    if !tag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        let text = "syslog \"tag\" only allows alphanumeric characters and underscore";
        return Err(text.to_owned());
    }
    Ok(())
}

/// What nginx has from gethostname().
fn host_name() -> Box<[u8]> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim_ascii() {
        b"" => b"localhost".as_slice().into(),
        name => name.to_ascii_lowercase().into(),
    }
}
