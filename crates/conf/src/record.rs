//! A record of all that a loader read, and a replay of it: the master reads with its privileges, the
//! worker loads the same configuration from the record without any.
//!
//! Invariant: decoding a record never panics and never allocates more than the record is long.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::files::Files;

/// What a question was answered with; an error keeps what is needed to report it alike.
type Answer<T> = Result<T, Failure>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    Os(i32),
    Other(String),
}

impl From<&io::Error> for Failure {
    fn from(error: &io::Error) -> Failure {
        match error.raw_os_error() {
            Some(code) => Failure::Os(code),
            None => Failure::Other(error.to_string()),
        }
    }
}

impl From<&Failure> for io::Error {
    fn from(failure: &Failure) -> io::Error {
        match failure {
            Failure::Os(code) => io::Error::from_raw_os_error(*code),
            Failure::Other(text) => io::Error::other(text.clone()),
        }
    }
}

/// Every answer that a [`Recording`] gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    reads: BTreeMap<PathBuf, Answer<Vec<u8>>>,
    globs: BTreeMap<String, Answer<Vec<PathBuf>>>,
    hosts: BTreeMap<String, Answer<Vec<IpAddr>>>,
}

/// Passes questions on and remembers the answers. A question that was asked before gets the answer it
/// got before, so that the load is of one state of the files.
#[derive(Clone, Debug)]
pub struct Recording<F> {
    inner: F,
    record: Record,
}

impl<F: Files> Recording<F> {
    /// Records what `inner` answers.
    pub fn new(inner: F) -> Recording<F> {
        Recording { inner, record: Record::default() }
    }

    /// What was answered.
    pub fn into_record(self) -> Record {
        self.record
    }
}

impl<F: Files> Files for Recording<F> {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        if let Some(answer) = self.record.reads.get(path) {
            return answer.clone().map_err(|f| io::Error::from(&f));
        }
        let result = self.inner.read(path);
        let answer = result.as_ref().map(Vec::clone).map_err(Failure::from);
        self.record.reads.insert(path.into(), answer);
        result
    }

    fn glob(&mut self, pattern: &str) -> io::Result<Vec<PathBuf>> {
        if let Some(answer) = self.record.globs.get(pattern) {
            return answer.clone().map_err(|f| io::Error::from(&f));
        }
        let result = self.inner.glob(pattern);
        let answer = result.as_ref().map(Vec::clone).map_err(Failure::from);
        self.record.globs.insert(pattern.into(), answer);
        result
    }

    fn lookup(&mut self, host: &str) -> io::Result<Vec<IpAddr>> {
        if let Some(answer) = self.record.hosts.get(host) {
            return answer.clone().map_err(|f| io::Error::from(&f));
        }
        let result = self.inner.lookup(host);
        let answer = result.as_ref().map(Vec::clone).map_err(Failure::from);
        self.record.hosts.insert(host.into(), answer);
        result
    }

    fn mode(&mut self, path: &Path) -> Option<u32> {
        self.inner.mode(path)
    }
}

/// Answers from a [`Record`]; what is not in it is an error.
#[derive(Clone, Debug)]
pub struct Replay(pub Record);

impl Files for Replay {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        replay(self.0.reads.get(path))
    }

    fn glob(&mut self, pattern: &str) -> io::Result<Vec<PathBuf>> {
        replay(self.0.globs.get(pattern))
    }

    fn lookup(&mut self, host: &str) -> io::Result<Vec<IpAddr>> {
        replay(self.0.hosts.get(host))
    }
}

fn replay<T: Clone>(answer: Option<&Answer<T>>) -> io::Result<T> {
    match answer {
        Some(Ok(value)) => Ok(value.clone()),
        Some(Err(failure)) => Err(failure.into()),
        None => Err(io::Error::other("not in the record of the configuration")),
    }
}

/// The first bytes of an encoded record; the number is the version of the encoding.
const MAGIC: &[u8; 8] = b"fbconf02";

impl Record {
    /// Encodes: a mark of the version, then three lists, each with its length in front; every length is eight bytes,
    /// little end first.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_len(&mut out, self.reads.len());
        for (path, answer) in &self.reads {
            put(&mut out, path.as_os_str().as_bytes());
            put_answer(&mut out, answer, |out, text| put(out, text));
        }
        put_len(&mut out, self.globs.len());
        for (pattern, answer) in &self.globs {
            put(&mut out, pattern.as_bytes());
            put_answer(&mut out, answer, |out, paths| {
                put_len(out, paths.len());
                paths.iter().for_each(|p| put(out, p.as_os_str().as_bytes()));
            });
        }
        put_len(&mut out, self.hosts.len());
        for (host, answer) in &self.hosts {
            put(&mut out, host.as_bytes());
            put_answer(&mut out, answer, |out, addresses| {
                put_len(out, addresses.len());
                addresses.iter().for_each(|addr| put(out, addr.to_string().as_bytes()));
            });
        }
        out
    }

    /// Decodes what [`Record::to_bytes`] made; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Record> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let mut record = Record::default();
        for _ in 0..take_len(&mut rest)? {
            let path = take_path(&mut rest)?;
            let answer = take_answer(&mut rest, |rest| Some(take(rest)?.to_vec()))?;
            record.reads.insert(path, answer);
        }
        for _ in 0..take_len(&mut rest)? {
            let pattern = String::from_utf8(take(&mut rest)?.to_vec()).ok()?;
            let answer = take_answer(&mut rest, |rest| {
                let count = take_len(rest)?;
                (0..count).map(|_| take_path(rest)).collect::<Option<Vec<_>>>()
            })?;
            record.globs.insert(pattern, answer);
        }
        for _ in 0..take_len(&mut rest)? {
            let host = String::from_utf8(take(&mut rest)?.to_vec()).ok()?;
            let answer = take_answer(&mut rest, |rest| {
                let count = take_len(rest)?;
                let mut address = || std::str::from_utf8(take(rest)?).ok()?.parse().ok();
                (0..count).map(|_| address()).collect::<Option<Vec<_>>>()
            })?;
            record.hosts.insert(host, answer);
        }
        rest.is_empty().then_some(record)
    }
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&(len as u64).to_le_bytes());
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_answer<T>(out: &mut Vec<u8>, answer: &Answer<T>, value: impl Fn(&mut Vec<u8>, &T)) {
    match answer {
        Ok(v) => {
            out.push(0);
            value(out, v);
        }
        Err(Failure::Os(code)) => {
            out.push(1);
            out.extend_from_slice(&code.to_le_bytes());
        }
        Err(Failure::Other(text)) => {
            out.push(2);
            put(out, text.as_bytes());
        }
    }
}

fn take_n<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(n)?;
    *rest = tail;
    Some(head)
}

/// A count of things of which each takes a byte or more, so no count beyond the rest is right.
fn take_len(rest: &mut &[u8]) -> Option<usize> {
    let len = u64::from_le_bytes(take_n(rest, 8)?.try_into().ok()?);
    usize::try_from(len).ok().filter(|n| *n <= rest.len())
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_len(rest)?;
    take_n(rest, len)
}

fn take_path(rest: &mut &[u8]) -> Option<PathBuf> {
    Some(PathBuf::from(OsStr::from_bytes(take(rest)?)))
}

fn take_answer<T>(rest: &mut &[u8], value: impl Fn(&mut &[u8]) -> Option<T>) -> Option<Answer<T>> {
    Some(match take_n(rest, 1)?[0] {
        0 => Ok(value(rest)?),
        1 => Err(Failure::Os(i32::from_le_bytes(take_n(rest, 4)?.try_into().ok()?))),
        2 => Err(Failure::Other(String::from_utf8(take(rest)?.to_vec()).ok()?)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Memory;

    struct Failing;

    impl Files for Failing {
        fn read(&mut self, _: &Path) -> io::Result<Vec<u8>> {
            Err(io::Error::other("gone"))
        }

        fn glob(&mut self, _: &str) -> io::Result<Vec<PathBuf>> {
            Err(io::Error::from_raw_os_error(13))
        }

        fn lookup(&mut self, _: &str) -> io::Result<Vec<IpAddr>> {
            Err(io::Error::other("unknown"))
        }
    }

    fn recorded() -> Record {
        let files = Memory::default().with("/c/a.conf", b"a\xff").with("/c/b.conf", "");
        let mut recording = Recording::new(files);
        recording.glob("/c/*.conf").unwrap();
        recording.glob("/none/*").unwrap();
        recording.read(Path::new("/c/a.conf")).unwrap();
        recording.read(Path::new("/missing")).unwrap_err();
        recording.resolve("localhost").unwrap();
        recording.resolve("nowhere").unwrap_err();
        recording.into_record()
    }

    #[test]
    fn a_replay_answers_as_the_files_did() {
        let mut replay = Replay(Record::from_bytes(&recorded().to_bytes()).unwrap());
        assert_eq!(replay.read(Path::new("/c/a.conf")).unwrap(), b"a\xff");
        let error = replay.read(Path::new("/missing")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(2));
        let names = replay.glob("/c/*.conf").unwrap();
        assert_eq!(names, [PathBuf::from("/c/a.conf"), PathBuf::from("/c/b.conf")]);
        assert!(replay.glob("/none/*").unwrap().is_empty());
        assert!(replay.read(Path::new("/c/b.conf")).is_err(), "was never read");
        assert_eq!(replay.resolve("localhost").unwrap(), [IpAddr::from([127, 0, 0, 1])]);
        assert_eq!(replay.resolve("nowhere").unwrap_err().to_string(), "no such name");
        assert!(replay.resolve("elsewhere").is_err(), "was never asked for");
    }

    #[test]
    fn errors_are_replayed_with_number_or_text() {
        let mut recording = Recording::new(Failing);
        let _ = (recording.read(Path::new("/x")), recording.glob("/x*"));
        let mut replay = Replay(Record::from_bytes(&recording.into_record().to_bytes()).unwrap());
        assert_eq!(replay.read(Path::new("/x")).unwrap_err().to_string(), "gone");
        assert_eq!(replay.glob("/x*").unwrap_err().raw_os_error(), Some(13));
    }

    #[test]
    fn a_damaged_record_is_refused_and_never_panics() {
        let bytes = recorded().to_bytes();
        for cut in 0..bytes.len() {
            assert_eq!(Record::from_bytes(&bytes[..cut]), None, "cut at {cut}");
        }
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                let _ = Record::from_bytes(&damaged);
            }
        }
        assert_eq!(Record::from_bytes(&[bytes.clone(), vec![0]].concat()), None);
    }

    #[test]
    fn a_second_question_gets_the_first_answer() {
        let mut recording = Recording::new(Memory::default().with("/a", "1"));
        recording.read(Path::new("/a")).unwrap();
        recording.inner = Memory::default().with("/a", "2");
        assert_eq!(recording.read(Path::new("/a")).unwrap(), b"1");
    }
}
