//! Takes out of replies and log lines what may differ between two correct servers: dates, ports, paths
//! below the prefix, the server's name, boundaries, compressed bytes.
//! Invariant: whatever is taken out leaves a placeholder, so that its absence is still seen.

use std::io::Read;

use crate::case::Level;
use crate::raw::{Framing, Response};
use crate::run::{After, Exchange, Reply};
use crate::server::Server;

/// Longer bodies are compared as they came.
const REWRITTEN: usize = 256 * 1024;

/// What is particular to one running server.
#[derive(Clone, Debug)]
pub struct Normal {
    ports: Vec<u16>,
    prefix: String,
}

/// A response without what may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Version, status, reason.
    pub status_line: String,
    /// Fields in order.
    pub headers: Vec<Field>,
    /// Decoded and made printable.
    pub body: String,
}

/// A header field as it came and without what may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// In its own case.
    pub name: String,
    /// As it came, made printable.
    pub raw: String,
    /// With placeholders.
    pub value: String,
}

impl Field {
    /// Fields agree when either form does: a value that is the same to the byte is never judged by
    /// what it was turned into.
    pub fn agrees(&self, other: &Field) -> bool {
        self.name == other.name && (self.raw == other.raw || self.value == other.value)
    }
}

impl Normal {
    /// For the replies and logs of this server.
    pub fn of(server: &Server) -> Normal {
        Normal { ports: server.ports(), prefix: server.prefix().display().to_string() }
    }

    /// A response without what may differ.
    pub fn view(&self, response: &Response, client_port: u16) -> View {
        let boundary = boundary(response);
        let body = self.body(response, client_port, boundary.as_deref());
        let field = |(name, value): &(String, Vec<u8>)| {
            let raw = printable(value);
            let value = match name.to_ascii_lowercase().as_str() {
                "date" if http_date(&raw).is_some() => "{date}".to_owned(),
                "server" => server_token(&raw).to_owned(),
                "expires" => relative_date(&raw, response),
                "content-length" => length(&raw, response, body.as_deref()),
                _ => self.text(&raw, client_port, boundary.as_deref()),
            };
            Field { name: name.clone(), raw, value }
        };
        let headers = response.headers.iter().chain(&response.trailers).map(field).collect();
        let Response { version, status, reason, .. } = response;
        View {
            status_line: format!("{version} {status} {reason}"),
            headers,
            body: body.unwrap_or_else(|| printable(&response.body)),
        }
    }

    /// An exchange as text: what a case file writes down under `expect-differs`.
    pub fn exchange(&self, exchange: &Exchange) -> String {
        let mut text = String::new();
        for reply in &exchange.replies {
            match reply {
                Reply::Response(response) => {
                    let view = self.view(response, exchange.client_port);
                    text.push_str(&format!("{}\n", view.status_line));
                    for field in &view.headers {
                        text.push_str(&format!("{}: {}\n", field.name, field.value));
                    }
                    text.push_str(&format!("\n{}", view.body));
                    if !view.body.is_empty() && !view.body.ends_with('\n') {
                        text.push('\n');
                    }
                }
                Reply::Bytes(bytes) => text.push_str(&self.bytes(bytes, exchange.client_port)),
                Reply::Failed(why) => text.push_str(&format!("({why})\n")),
            }
        }
        match &exchange.after {
            After::NotLooked => {}
            after => text.push_str(&format!("({after})\n")),
        }
        text
    }

    /// Any bytes as text without what may differ.
    pub fn bytes(&self, bytes: &[u8], client_port: u16) -> String {
        let text = self.text(&printable(bytes), client_port, None);
        text.lines()
            .map(|line| {
                // As it is printed, CR is two characters.
                let end = if line.ends_with("\\r") { "\\r" } else { "" };
                match line[..line.len() - end.len()].split_once(": ") {
                    Some(("Date", date)) if http_date(date).is_some() => {
                        format!("Date: {{date}}{end}")
                    }
                    Some(("Server", name)) => format!("Server: {}{end}", server_token(name)),
                    _ => line.to_owned(),
                }
            })
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Lines of an access log, sorted: a request is logged when its connection is done with it, which
    /// is not the order of the answers.
    pub fn access_log(&self, log: &str) -> Vec<String> {
        let mut lines: Vec<String> =
            log.lines().map(|line| log_time(&self.text(line, 0, None))).collect();
        lines.sort();
        lines
    }

    /// Lines of an error log at `level` and worse, without time, process and connection, sorted. Of
    /// the levels below `warn` only lines about a connection: the others tell of processes.
    pub fn error_log(&self, log: &str, level: Level) -> Vec<String> {
        let mut lines: Vec<String> = log
            .lines()
            .filter_map(ErrorLine::parse)
            .filter(|line| line.level <= level && (line.of_connection || line.level <= Level::Warn))
            // Whether the server sees the end of an idle connection before it quits is chance.
            .filter(|line| !line.message.contains("closed keepalive connection"))
            .map(|line| format!("{:?}: {}", line.level, self.text(line.message, 0, None)))
            .collect();
        lines.sort();
        lines
    }

    // None when the body is longer than is sensible to rewrite: then it is compared as it came.
    fn body(
        &self,
        response: &Response,
        client_port: u16,
        boundary: Option<&str>,
    ) -> Option<String> {
        if response.header("content-encoding") == Some(b"gzip") && !response.body.is_empty() {
            return Some(match gunzip(&response.body) {
                // A built-in page names its server, compressed or not.
                Ok(bytes) if bytes.len() <= REWRITTEN => {
                    format!("{{gzip}}{}", self.text(&printable(&bytes), client_port, boundary))
                }
                Ok(bytes) => format!("{{gzip}}{}", printable(&bytes)),
                Err(e) => format!("{{broken gzip: {e}}}{}", printable(&response.body)),
            });
        }
        if response.body.len() > REWRITTEN {
            return None;
        }
        Some(self.text(&printable(&response.body), client_port, boundary))
    }

    fn text(&self, text: &str, client_port: u16, boundary: Option<&str>) -> String {
        let mut text = text.replace(&self.prefix, "{prefix}");
        for (i, port) in self.ports.iter().enumerate() {
            let name = if i == 0 { "{port}".to_owned() } else { format!("{{port{}}}", i + 1) };
            text = replace_number(&text, *port, &name);
        }
        if client_port != 0 {
            text = replace_number(&text, client_port, "{client_port}");
        }
        if let Some(boundary) = boundary {
            text = text.replace(boundary, "{boundary}");
        }
        const OPEN: &str = "<hr><center>";
        if let Some((before, rest)) = text.split_once(OPEN)
            && let Some((name, after)) = rest.split_once("</center>")
        {
            text = format!("{before}{OPEN}{}</center>{after}", server_token(name));
        }
        text
    }
}

fn boundary(response: &Response) -> Option<String> {
    let value = String::from_utf8_lossy(response.header("content-type")?).into_owned();
    let (_, boundary) = value.strip_prefix("multipart/byteranges")?.split_once("boundary=")?;
    (!boundary.is_empty()).then(|| boundary.to_owned())
}

// The length of a built-in page depends on the server's name. With a body, the length of what the body
// was turned into stands for it; without one (HEAD) the name's own length is taken off.
fn length(raw: &str, response: &Response, body: Option<&str>) -> String {
    let Ok(number) = raw.parse::<usize>() else { return raw.to_owned() };
    if response.framing == Framing::Length {
        return body.map_or(raw.to_owned(), |body| body.len().to_string());
    }
    let name = response.header("server").map_or(0, <[u8]>::len);
    if response.framing == Framing::None && response.status >= 300 && number > name {
        return format!("{{server}}+{}", number - name);
    }
    raw.to_owned()
}

fn server_token(name: &str) -> &'static str {
    if name.contains('/') { "{server}/{version}" } else { "{server}" }
}

fn relative_date(raw: &str, response: &Response) -> String {
    let date = response.header("date").and_then(|date| http_date(&printable(date)));
    match (http_date(raw), date) {
        (Some(value), Some(now)) => format!("{{date}}{:+}", value - now),
        _ => raw.to_owned(),
    }
}

/// Bytes as text: UTF-8 stays, everything that would not print becomes an escape.
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() && c != '\n' {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

fn replace_number(text: &str, number: u16, with: &str) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(&digits) {
        let (before, after) = (&rest[..at], &rest[at + digits.len()..]);
        let touches = before.ends_with(|c: char| c.is_ascii_digit())
            || after.starts_with(|c: char| c.is_ascii_digit());
        out.push_str(before);
        out.push_str(if touches { &digits } else { with });
        rest = after;
    }
    out.push_str(rest);
    out
}

// [21/Nov/2026:11:47:53 +0000]
fn log_time(line: &str) -> String {
    let pattern = b"[00/aaa/0000:00:00:00 +0000]";
    let matches = |window: &[u8]| {
        window.iter().zip(pattern).all(|(b, p)| match p {
            b'0' => b.is_ascii_digit(),
            b'a' => b.is_ascii_alphabetic(),
            b'+' => matches!(b, b'+' | b'-'),
            _ => b == p,
        })
    };
    match line.as_bytes().windows(pattern.len()).position(matches) {
        Some(at) => format!("{}[{{time}}]{}", &line[..at], &line[at + pattern.len()..]),
        None => line.to_owned(),
    }
}

struct ErrorLine<'a> {
    level: Level,
    of_connection: bool,
    message: &'a str,
}

impl ErrorLine<'_> {
    // 2026/11/21 09:00:00 [error] 12#12: *3 message
    fn parse(line: &str) -> Option<ErrorLine<'_>> {
        let (_, rest) = line.split_once(" [")?;
        let (level, rest) = rest.split_once("] ")?;
        let level = Level::parse(level)?;
        let (_, message) = rest.split_once(": ")?;
        let number = message.strip_prefix('*').and_then(|m| m.split_once(' '));
        Some(match number {
            Some((number, message)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                ErrorLine { level, of_connection: true, message }
            }
            _ => ErrorLine { level, of_connection: false, message },
        })
    }
}

fn gunzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut decoder = flate2::bufread::GzDecoder::new(bytes);
    decoder.read_to_end(&mut out)?;
    if !decoder.into_inner().is_empty() {
        return Err(std::io::Error::other("bytes after the end of the stream"));
    }
    Ok(out)
}

/// Seconds since the epoch of an IMF-fixdate (RFC 9110 §5.6.7), e.g. `Tue, 14 Nov 2023 22:13:20 GMT`.
pub fn http_date(text: &str) -> Option<i64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let (day_name, rest) = text.split_once(", ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = fields.as_slice() else { return None };
    let time: Vec<i64> = time.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [hour, minute, second] = time.as_slice() else { return None };
    let (day, year): (i64, i64) = (day.parse().ok()?, year.parse().ok()?);
    let month = MONTHS.find(month).filter(|at| at % 3 == 0)? as i64 / 3 + 1;
    // Days from civil, counting years from March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day
            - 1
            - 719_468;
    (DAYS[days.rem_euclid(7) as usize] == day_name && text.len() == 29)
        .then(|| days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal() -> Normal {
        Normal { ports: vec![12_345, 12_346], prefix: "/tmp/p".to_owned() }
    }

    fn response(headers: &[(&str, &str)], body: &str) -> Response {
        let head = |(name, value): &(&str, &str)| ((*name).to_owned(), value.as_bytes().to_vec());
        Response {
            version: "HTTP/1.1".to_owned(),
            status: 404,
            reason: "Not Found".to_owned(),
            headers: headers.iter().map(head).collect(),
            body: body.as_bytes().to_vec(),
            framing: Framing::Length,
            trailers: Vec::new(),
        }
    }

    #[test]
    fn dates_are_read() {
        assert_eq!(http_date("Tue, 14 Nov 2023 22:13:20 GMT"), Some(1_700_000_000));
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(http_date("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800));
        assert_eq!(http_date("Mon, 14 Nov 2023 22:13:20 GMT"), None);
        assert_eq!(http_date("yesterday"), None);
    }

    #[test]
    fn built_in_pages_of_differently_named_servers_agree() {
        let page = |name: &str| {
            let body = format!("<hr><center>{name}</center>");
            let length = body.len().to_string();
            let date = "Tue, 14 Nov 2023 22:13:20 GMT";
            let headers = [("Server", name), ("Date", date), ("Content-Length", length.as_str())];
            normal().view(&response(&headers, &body), 0)
        };
        let (a, b) = (page("nginx/1.22.1"), page("forebay/0.10.0"));
        assert_eq!(a.body, b.body);
        assert!(a.headers.iter().zip(&b.headers).all(|(a, b)| a.agrees(b)), "{a:?} {b:?}");
        assert_ne!(page("nginx").body, b.body);
    }

    #[test]
    fn bytes_lose_their_date_and_keep_their_line_ends() {
        let head = b"HTTP/1.1 200 OK\r\nServer: nginx/1\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
            Date: never\r\n\r\n";
        let want = "HTTP/1.1 200 OK\\r\nServer: {server}/{version}\\r\nDate: {date}\\r\n\
            Date: never\\r\n\\r";
        assert_eq!(normal().bytes(head, 50_000), want);
    }

    #[test]
    fn ports_and_paths_become_placeholders() {
        let text = normal().text("a:12345 112345 /tmp/p/root :12346 50000", 50_000, None);
        assert_eq!(text, "a:{port} 112345 {prefix}/root :{port2} {client_port}");
    }

    #[test]
    fn log_lines_lose_time_process_and_connection() {
        let access = normal().access_log("b [21/Nov/2026:11:47:53 +0000] x\na\n");
        assert_eq!(access, ["a", "b [{time}] x"]);
        let log = "2026/11/21 09:00:00 [error] 12#12: *3 open() \"/tmp/p/x\" failed\n\
            2026/11/21 09:00:00 [notice] 12#12: start\n";
        let line = "Error: open() \"{prefix}/x\" failed";
        assert_eq!(normal().error_log(log, Level::Error), [line]);
        assert_eq!(normal().error_log(log, Level::Info), [line]);
    }

    #[test]
    fn expiry_is_compared_relative_to_the_date() {
        let date = ("Date", "Tue, 14 Nov 2023 22:13:20 GMT");
        let expires = ("Expires", "Tue, 14 Nov 2023 23:13:20 GMT");
        let view = normal().view(&response(&[date, expires], ""), 0);
        assert_eq!(view.headers[1].value, "{date}+3600");
    }
}
