//! What a master hands its worker: the record of the configuration's files, what of the command
//! line matters, listening sockets by address, log files by name.
//!
//! Invariant: a worker needs nothing else to load, and opens nothing that is not in it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_conf::Record;
use forebay_rt::listen::Addr;

use crate::load::Request;
use crate::paths::Paths;

/// The part that is bytes; the descriptors travel beside it, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// What to load.
    pub request: Request,
    /// What the files said.
    pub record: Record,
    /// The listening addresses, each with the number of its sockets among the descriptors; 0 for
    /// those that the worker has already.
    pub listeners: Vec<(Addr, usize)>,
    /// The log files, one descriptor each, behind the sockets.
    pub logs: Vec<PathBuf>,
}

/// The descriptors of a bundle, in their places.
#[derive(Debug, Default)]
pub struct Parts {
    /// New sockets by address.
    pub sockets: BTreeMap<Addr, Vec<OwnedFd>>,
    /// Log files by name.
    pub logs: BTreeMap<PathBuf, File>,
}

impl Bundle {
    /// Sorts descriptors that came with the bundle; `None` if their number is wrong.
    pub fn parts(&self, fds: Vec<OwnedFd>) -> Option<Parts> {
        let mut fds = fds.into_iter();
        let mut parts = Parts::default();
        for (addr, count) in &self.listeners {
            let sockets: Vec<OwnedFd> = fds.by_ref().take(*count).collect();
            if sockets.len() != *count {
                return None;
            }
            if *count > 0 {
                parts.sockets.insert(addr.clone(), sockets);
            }
        }
        for path in &self.logs {
            parts.logs.insert(path.clone(), fds.next()?.into());
        }
        fds.next().is_none().then_some(parts)
    }

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        let Request { paths, globals, embedded } = &self.request;
        for path in [&paths.prefix, &paths.conf, &paths.pid, &paths.access_log] {
            out.bytes(path.as_os_str().as_bytes());
        }
        for path in [&paths.error_log, &paths.temp] {
            out.optional(path.as_deref().map(|path| path.as_os_str().as_bytes()));
        }
        out.optional(globals.as_deref().map(OsStr::as_bytes));
        out.optional(embedded.as_deref().map(str::as_bytes));
        out.bytes(&self.record.to_bytes());
        out.number(self.listeners.len());
        for (addr, count) in &self.listeners {
            out.address(addr);
            out.number(*count);
        }
        out.paths(&self.logs);
        out.0
    }

    /// Reads what [`Bundle::encode`] made.
    pub fn decode(bytes: &[u8]) -> Option<Bundle> {
        let mut from = Decoder(bytes);
        let (prefix, conf, pid) = (from.path()?, from.path()?, from.path()?);
        let access_log = from.path()?;
        let (error_log, temp) = (from.optional_path()?, from.optional_path()?);
        let globals = from.optional()?.map(|bytes| OsString::from(OsStr::from_bytes(bytes)));
        let embedded = match from.optional()? {
            Some(bytes) => Some(String::from_utf8(bytes.to_vec()).ok()?),
            None => None,
        };
        let record = Record::from_bytes(from.bytes()?)?;
        let listeners = (0..from.number()?)
            .map(|_| Some((from.address()?, from.number()?)))
            .collect::<Option<_>>()?;
        let logs = from.paths()?;
        let paths = Paths { prefix, conf, error_log, access_log, pid, temp };
        let request = Request { paths, globals, embedded };
        from.0.is_empty().then_some(Bundle { request, record, listeners, logs })
    }
}

/// What master and worker tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the worker: serve this configuration from now on.
    Load(Box<Bundle>),
    /// To the worker: write to these files from now on; one descriptor each.
    Logs(Vec<PathBuf>),
    /// To the master: the last configuration is in force.
    Ready,
    /// To the master: it could not be loaded.
    Failed(String),
}

impl Message {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, content) = match self {
            Message::Load(bundle) => (0, bundle.encode()),
            Message::Logs(paths) => {
                let mut out = Encoder::default();
                out.paths(paths);
                (1, out.0)
            }
            Message::Ready => (2, Vec::new()),
            Message::Failed(text) => (3, text.as_bytes().to_vec()),
        };
        [&[kind], &content[..]].concat()
    }

    /// Reads what [`Message::encode`] made.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (kind, content) = bytes.split_first()?;
        match kind {
            0 => Some(Message::Load(Box::new(Bundle::decode(content)?))),
            1 => {
                let mut from = Decoder(content);
                let paths = from.paths()?;
                from.0.is_empty().then_some(Message::Logs(paths))
            }
            2 => content.is_empty().then_some(Message::Ready),
            3 => Some(Message::Failed(String::from_utf8_lossy(content).into_owned())),
            _ => None,
        }
    }
}

/// Borrows files as the channel takes them.
pub fn borrowed(files: &[File]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Lengths are eight bytes, the little end first.
#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn number(&mut self, number: usize) {
        self.0.extend_from_slice(&(number as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn optional(&mut self, bytes: Option<&[u8]>) {
        self.0.push(bytes.is_some().into());
        if let Some(bytes) = bytes {
            self.bytes(bytes);
        }
    }

    fn paths(&mut self, paths: &[PathBuf]) {
        self.number(paths.len());
        paths.iter().for_each(|path| self.bytes(path.as_os_str().as_bytes()));
    }

    fn address(&mut self, addr: &Addr) {
        match addr {
            Addr::Tcp(addr) => {
                self.0.push(0);
                self.bytes(addr.to_string().as_bytes());
            }
            Addr::Unix(path) => {
                self.0.push(1);
                self.bytes(path.as_os_str().as_bytes());
            }
        }
    }
}

struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn number(&mut self) -> Option<usize> {
        let bytes = self.take(8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.number()?;
        self.take(count)
    }

    fn optional(&mut self) -> Option<Option<&'a [u8]>> {
        match self.take(1)? {
            [0] => Some(None),
            [1] => Some(Some(self.bytes()?)),
            _ => None,
        }
    }

    fn optional_path(&mut self) -> Option<Option<PathBuf>> {
        Some(self.optional()?.map(|bytes| path(bytes).to_path_buf()))
    }

    fn path(&mut self) -> Option<PathBuf> {
        Some(path(self.bytes()?).to_path_buf())
    }

    fn paths(&mut self) -> Option<Vec<PathBuf>> {
        (0..self.number()?).map(|_| self.path()).collect()
    }

    fn address(&mut self) -> Option<Addr> {
        match self.take(1)? {
            [0] => Some(Addr::Tcp(std::str::from_utf8(self.bytes()?).ok()?.parse().ok()?)),
            [1] => Some(Addr::Unix(self.path()?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_conf::files::Memory;
    use forebay_conf::{Files, Recording};
    use std::os::unix::ffi::OsStringExt;

    fn bundle() -> Bundle {
        let mut files = Recording::new(Memory::default().with("/a", "text"));
        let _ = (files.read(Path::new("/a")), files.read(Path::new("/missing")));
        let paths = Paths {
            prefix: "/p".into(),
            conf: "/p/c".into(),
            error_log: None,
            access_log: "/p/a".into(),
            pid: OsString::from_vec(vec![b'/', 0xff]).into(),
            temp: Some("/t".into()),
        };
        let globals = Some("daemon off;".into());
        Bundle {
            request: Request { paths, globals, embedded: Some("events {}".into()) },
            record: files.into_record(),
            listeners: vec![
                (Addr::Tcp("[::1]:80".parse().unwrap()), 2),
                (Addr::Tcp("127.0.0.1:80".parse().unwrap()), 0),
                (Addr::Unix("/run/a b".into()), 1),
            ],
            logs: vec!["/l".into(), "/m".into()],
        }
    }

    fn messages() -> [Message; 4] {
        [
            Message::Load(Box::new(bundle())),
            Message::Logs(vec!["/a".into(), "/b".into()]),
            Message::Ready,
            Message::Failed("why".into()),
        ]
    }

    #[test]
    fn messages_come_back_as_they_went() {
        for message in messages() {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn damaged_messages_are_refused() {
        for message in &messages()[..3] {
            let bytes = message.encode();
            for end in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..end]), None, "{message:?} cut at {end}");
            }
            assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!(Message::decode(&[9]), None);
    }

    #[test]
    fn descriptors_find_their_places_or_are_refused() {
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let fds = |count: usize| (0..count).map(|_| null()).collect::<Vec<_>>();
        let parts = bundle().parts(fds(5)).unwrap();
        let counts: Vec<usize> = parts.sockets.values().map(Vec::len).collect();
        assert_eq!((counts.as_slice(), parts.logs.len()), (&[2, 1][..], 2));
        for wrong in [0, 2, 4, 6] {
            assert!(bundle().parts(fds(wrong)).is_none(), "{wrong}");
        }
    }
}
