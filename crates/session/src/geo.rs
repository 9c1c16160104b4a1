//! `geo`: a value by address, for HTTP and stream alike (`ngx_http_geo_module.c`).
//!
//! Networks and ranges are both flattened, when the block is read, to pieces of the address space that
//! follow each other; a look-up finds the piece. For IPv4 an index by the upper 16 bits leaves a
//! few pieces to look among.
//!
//! DIFFERS(geo-binary): ranges that are included are read as text, and no `.bin` file is written beside
//! them or read in their place.
//!
//! Invariant: the pieces cover every address, so that a look-up always finds one.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use forebay_conf::{Arg, Error, Loader, Node, directive::check_entry};

use crate::{
    addr::{self, Cidr, mask_v4, mask_v6},
    split_clients::variable_name,
    var::{self, Registry, Scope, VarId},
};

/// nginx's `INADDR_NONE`, under which clients without an address are looked for.
const NOBODY: u32 = u32::MAX;

/// A `geo` block.
pub struct Geo {
    /// The variable that holds the address; `None`: the client's own.
    source: Option<VarId>,
    v4: Pieces<u32>,
    /// None where ranges are given: they know IPv4 only.
    v6: Option<Pieces<u128>>,
    values: Vec<Box<[u8]>>,
    /// `proxy`: whose `X-Forwarded-For` is believed.
    pub proxies: Vec<Cidr>,
    /// `proxy_recursive`.
    pub proxy_recursive: bool,
    /// `volatile`: the variable is not kept for the request.
    pub volatile: bool,
}

impl Geo {
    /// Reads a block: the variable's name, and what it stands for. All bad lines go to the loader's
    /// diagnostics. `proxies` says whether `proxy` and
    /// `proxy_recursive` are known.
    pub fn parse<S: Scope>(
        node: &Node,
        registry: &mut Registry<S>,
        loader: &mut Loader<'_>,
        proxies: bool,
    ) -> Result<(String, Geo), Error> {
        let mut reader = Reader::new(loader, proxies);
        for line in node.children() {
            let read = check_entry(line).and_then(|()| reader.line(line));
            reader.loader.diags.take(read);
        }
        // What is wrong with its own arguments does not hide what is wrong with its lines.
        let name = variable_name(node, node.args.len().saturating_sub(1))?;
        let mut source = None;
        if node.args.len() == 2 {
            let used = variable_name(node, 0);
            let used = reader.loader.diags.take(used);
            source = used.map(|used| registry.used(&used, node.args[0].span));
        }
        Ok((name, reader.finish(source)))
    }

    /// The address that is looked for: that of the client, or what the variable holds. `Err`: the
    /// variable holds none.
    ///
    /// DIFFERS(geo-port): an address may have a port, as `$upstream_last_addr` has; nginx 1.22 takes
    /// that for no address.
    pub fn address<S: Scope>(
        &self,
        scope: &S,
        client: Option<IpAddr>,
    ) -> Result<Option<IpAddr>, NoAddress> {
        let Some(source) = self.source else { return Ok(client) };
        // The longest text of an address is 45 bytes long; the variable may be anything.
        let mut text = Vec::with_capacity(48);
        var::read(scope, source, &mut text);
        let with_port = || Some(str::from_utf8(&text).ok()?.parse::<SocketAddr>().ok()?.ip());
        addr::parse_ip(&text).or_else(with_port).map(Some).ok_or(NoAddress)
    }

    /// The value for an address; `None`: a unix socket, or nobody.
    pub fn value(&self, ip: Option<IpAddr>) -> &[u8] {
        let value = match ip.map(|ip| ip.to_canonical()) {
            Some(IpAddr::V4(ip)) => self.v4.find(ip.into()),
            Some(IpAddr::V6(ip)) => match &self.v6 {
                Some(v6) => v6.find(ip.into()),
                None => self.v4.find(NOBODY),
            },
            None => self.v4.find(NOBODY),
        };
        &self.values[value as usize]
    }
}

/// The variable that `geo` looks at holds no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAddress;

/// An address as a number.
trait Key: Copy + Ord {
    const ZERO: Self;
    /// The next one; `None` after the last.
    fn next(self) -> Option<Self>;
    /// The upper 16 bits, where an index by them is worth its memory.
    fn bucket(self) -> Option<usize>;
}

impl Key for u32 {
    const ZERO: u32 = 0;

    fn next(self) -> Option<u32> {
        self.checked_add(1)
    }

    fn bucket(self) -> Option<usize> {
        Some((self >> 16) as usize)
    }
}

impl Key for u128 {
    const ZERO: u128 = 0;

    fn next(self) -> Option<u128> {
        self.checked_add(1)
    }

    fn bucket(self) -> Option<usize> {
        None
    }
}

/// Neighbouring pieces of all addresses, each with a value.
struct Pieces<K> {
    starts: Vec<K>,
    values: Vec<u32>,
    /// By bucket, how many pieces start below it; empty for few pieces.
    below: Vec<u32>,
}

/// From that many pieces on, an index is made.
const INDEXED: usize = 256;

impl<K: Key> Pieces<K> {
    fn new(value: u32) -> Pieces<K> {
        Pieces { starts: vec![K::ZERO], values: vec![value], below: Vec::new() }
    }

    /// From here on, that value. Starts never go back.
    fn push(&mut self, start: K, value: u32) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.values.pop();
        }
        if self.values.last() != Some(&value) {
            self.starts.push(start);
            self.values.push(value);
        }
    }

    fn index(&mut self) {
        if self.starts.len() < INDEXED || K::ZERO.bucket().is_none() {
            return;
        }
        let mut below = vec![0u32; (1 << 16) + 1];
        for start in &self.starts {
            below[start.bucket().unwrap_or_default() + 1] += 1;
        }
        for bucket in 1..below.len() {
            below[bucket] += below[bucket - 1];
        }
        self.below = below;
    }

    fn find(&self, key: K) -> u32 {
        let (from, to) = match key.bucket() {
            Some(bucket) if !self.below.is_empty() => {
                (self.below[bucket] as usize, self.below[bucket + 1] as usize)
            }
            _ => (0, self.starts.len()),
        };
        let after = from + self.starts[from..to].partition_point(|start| *start <= key);
        // The first piece starts at zero, so there is one at or before the key.
        self.values[after.saturating_sub(1)]
    }

    /// From networks, of which the smaller ones win. All are sorted by start, larger ones first.
    fn nested(networks: &[(K, K, u32)], value: u32) -> Pieces<K> {
        let mut pieces = Pieces::new(value);
        let mut open: Vec<(K, u32)> = Vec::new();
        let close = |pieces: &mut Pieces<K>, open: &mut Vec<(K, u32)>| {
            if let Some((end, _)) = open.pop()
                && let Some(next) = end.next()
            {
                pieces.push(next, open.last().map_or(value, |(_, value)| *value));
            }
        };
        for (start, end, value) in networks {
            while open.last().is_some_and(|(end, _)| end < start) {
                close(&mut pieces, &mut open);
            }
            pieces.push(*start, *value);
            open.push((*end, *value));
        }
        while !open.is_empty() {
            close(&mut pieces, &mut open);
        }
        pieces.index();
        pieces
    }
}

/// A range within one block of 65,536 addresses.
#[derive(Clone, Copy)]
struct Range {
    start: u16,
    end: u16,
    value: u32,
}

struct Reader<'r, 'f> {
    loader: &'r mut Loader<'f>,
    knows_proxies: bool,
    values: Vec<Box<[u8]>>,
    by_value: HashMap<Box<[u8]>, u32>,
    ranges: bool,
    networks: HashMap<Cidr, u32>,
    /// Whether a network was read: `ranges` comes too late then.
    networks_begun: bool,
    blocks: HashMap<u16, Vec<Range>>,
    default: Option<u32>,
    proxies: Vec<Cidr>,
    proxy_recursive: bool,
    volatile: bool,
}

impl<'r, 'f> Reader<'r, 'f> {
    fn new(loader: &'r mut Loader<'f>, knows_proxies: bool) -> Self {
        Reader {
            loader,
            knows_proxies,
            values: Vec::new(),
            by_value: HashMap::new(),
            ranges: false,
            networks: HashMap::new(),
            networks_begun: false,
            blocks: HashMap::new(),
            default: None,
            proxies: Vec::new(),
            proxy_recursive: false,
            volatile: false,
        }
    }

    fn line(&mut self, line: &Node) -> Result<(), Error> {
        if line.args.is_empty() {
            match &*line.name.value {
                b"ranges" if self.networks_begun => {
                    // What follows is meant as ranges all the same.
                    self.ranges = true;
                    let text =
                        "the \"ranges\" directive must be the first directive inside \"geo\" block";
                    return Err(Error::emerg(line.span, text));
                }
                b"ranges" => {
                    self.ranges = true;
                    return Ok(());
                }
                b"proxy_recursive" if self.knows_proxies => {
                    self.proxy_recursive = true;
                    return Ok(());
                }
                b"volatile" => {
                    self.volatile = true;
                    return Ok(());
                }
                _ => {}
            }
        }
        let [value] = &line.args[..] else {
            return Err(Error::emerg(line.span, "invalid number of the geo parameters"));
        };
        if line.name.is("proxy") && self.knows_proxies {
            let cidr = self.network(value)?;
            self.proxies.push(cidr);
            return Ok(());
        }
        if self.ranges { self.range(&line.name, value) } else { self.cidr(&line.name, value) }
    }

    fn value(&mut self, value: &[u8]) -> u32 {
        if let Some(&index) = self.by_value.get(value) {
            return index;
        }
        let index = self.values.len() as u32;
        self.values.push(value.into());
        self.by_value.insert(value.into(), index);
        index
    }

    fn shown(&self, value: u32) -> String {
        String::from_utf8_lossy(&self.values[value as usize]).into_owned()
    }

    fn network(&mut self, arg: &Arg) -> Result<Cidr, Error> {
        // It parses as no address, and stands for clients without one.
        if arg.is("255.255.255.255") {
            return Ok(Cidr::V4 { network: NOBODY, bits: 32 });
        }
        let (cidr, meaningless) = Cidr::parse(&arg.value).ok_or_else(|| {
            Error::emerg(arg.span, format!("invalid network \"{}\"", arg.lossy()))
        })?;
        if meaningless {
            let text = format!("low address bits of {} are meaningless", arg.lossy());
            self.loader.warn(arg.span, text);
        }
        Ok(cidr)
    }

    fn cidr(&mut self, name: &Arg, value: &Arg) -> Result<(), Error> {
        self.networks_begun = true;
        if name.is("delete") {
            let cidr = self.network(value)?;
            if self.networks.remove(&cidr).is_none() {
                let text = format!("no network \"{}\" to delete", value.lossy());
                self.loader.warn(value.span, text);
            }
            return Ok(());
        }
        if name.is("default") {
            self.add(Cidr::V4 { network: 0, bits: 0 }, name, value);
            self.add(Cidr::V6 { network: 0, bits: 0 }, name, value);
            return Ok(());
        }
        let cidr = self.network(name)?;
        self.add(cidr, name, value);
        Ok(())
    }

    fn add(&mut self, cidr: Cidr, name: &Arg, value: &Arg) {
        let new = self.value(&value.value);
        if let Some(old) = self.networks.insert(cidr, new) {
            let text = format!(
                "duplicate network \"{}\", value: \"{}\", old value: \"{}\"",
                name.lossy(),
                value.lossy(),
                self.shown(old)
            );
            self.loader.warn(name.span, text);
        }
    }

    fn range(&mut self, name: &Arg, value: &Arg) -> Result<(), Error> {
        if name.is("default") {
            let new = self.value(&value.value);
            if let Some(old) = self.default.replace(new) {
                let text = format!(
                    "duplicate default geo range value: \"{}\", old value: \"{}\"",
                    value.lossy(),
                    self.shown(old)
                );
                self.loader.warn(name.span, text);
            }
            return Ok(());
        }
        let delete = name.is("delete");
        let arg = if delete { value } else { name };
        let (start, end) = bounds(&arg.value)
            .ok_or_else(|| Error::emerg(arg.span, format!("invalid range \"{}\"", arg.lossy())))?;
        if delete {
            if self.delete_range(start, end) {
                let text = format!("no address range \"{}\" to delete", arg.lossy());
                self.loader.warn(arg.span, text);
            }
            return Ok(());
        }
        let value = self.value(&value.value);
        for (block, start, end) in by_block(start, end) {
            self.add_range(block, Range { start, end, value }, arg)?;
        }
        Ok(())
    }

    /// `ngx_http_geo_add_range`, within one block: a range may lie within another, not across its end.
    fn add_range(&mut self, block: u16, new: Range, arg: &Arg) -> Result<(), Error> {
        let ranges = self.blocks.entry(block).or_default();
        // The first range that does not end before the new one starts.
        let at = ranges.partition_point(|range| range.end < new.start);
        let Some(&old) = ranges.get(at).filter(|range| range.start <= new.end) else {
            ranges.insert(at, new);
            return Ok(());
        };
        if (old.start, old.end) == (new.start, new.end) {
            ranges[at].value = new.value;
            let text = format!(
                "duplicate range \"{}\", value: \"{}\", old value: \"{}\"",
                arg.lossy(),
                self.shown(new.value),
                self.shown(old.value)
            );
            self.loader.warn(arg.span, text);
            return Ok(());
        }
        if new.start < old.start || new.end > old.end {
            // nginx looks from the last range downwards, and names the last one in the way.
            let last = ranges.iter().rev().find(|range| range.start <= new.end).unwrap_or(&old);
            let [a, b] = block.to_be_bytes();
            let ([c, d], [e, f]) = (last.start.to_be_bytes(), last.end.to_be_bytes());
            let text =
                format!("range \"{}\" overlaps \"{a}.{b}.{c}.{d}-{a}.{b}.{e}.{f}\"", arg.lossy());
            return Err(Error::emerg(arg.span, text));
        }
        let before = Range { end: new.start.wrapping_sub(1), ..old };
        let after = Range { start: new.end.wrapping_add(1), ..old };
        let has_before = old.start < new.start;
        let has_after = new.end < old.end;
        let parts = [has_before.then_some(before), Some(new), has_after.then_some(after)];
        ranges.splice(at..=at, parts.into_iter().flatten());
        Ok(())
    }

    /// Whether some of it was not there.
    fn delete_range(&mut self, start: u32, end: u32) -> bool {
        let mut missing = false;
        for (block, start, end) in by_block(start, end) {
            let found = self.blocks.get_mut(&block).and_then(|ranges| {
                let is_it = |range: &Range| (range.start, range.end) == (start, end);
                let at = ranges.iter().position(is_it)?;
                Some(ranges.remove(at))
            });
            missing |= found.is_none();
        }
        missing
    }

    fn finish(mut self, source: Option<VarId>) -> Geo {
        let empty = self.value(b"");
        let (v4, v6) = match self.ranges {
            true => (self.flat_ranges(self.default.unwrap_or(empty)), None),
            false => {
                let (v4, v6) = self.flat_networks(empty);
                (v4, Some(v6))
            }
        };
        Geo {
            source,
            v4,
            v6,
            values: self.values,
            proxies: self.proxies,
            proxy_recursive: self.proxy_recursive,
            volatile: self.volatile,
        }
    }

    fn flat_networks(&self, empty: u32) -> (Pieces<u32>, Pieces<u128>) {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (cidr, value) in &self.networks {
            match *cidr {
                Cidr::V4 { network, bits } => {
                    v4.push((network, network | !mask_v4(bits).unwrap_or_default(), *value));
                }
                Cidr::V6 { network, bits } => {
                    v6.push((network, network | !mask_v6(bits).unwrap_or_default(), *value));
                }
                Cidr::Unix => {}
            }
        }
        v4.sort_unstable_by_key(|(start, end, _)| (*start, std::cmp::Reverse(*end)));
        v6.sort_unstable_by_key(|(start, end, _)| (*start, std::cmp::Reverse(*end)));
        (Pieces::nested(&v4, empty), Pieces::nested(&v6, empty))
    }

    fn flat_ranges(&self, default: u32) -> Pieces<u32> {
        let mut pieces = Pieces::new(default);
        let mut blocks: Vec<_> = self.blocks.iter().collect();
        blocks.sort_unstable_by_key(|(block, _)| **block);
        for (block, ranges) in blocks {
            let base = u32::from(*block) << 16;
            for range in ranges {
                pieces.push(base | u32::from(range.start), range.value);
                if let Some(next) = (base | u32::from(range.end)).checked_add(1) {
                    pieces.push(next, default);
                }
            }
        }
        pieces.index();
        pieces
    }
}

/// `first-last`, both IPv4 addresses.
fn bounds(text: &[u8]) -> Option<(u32, u32)> {
    let dash = memchr::memchr(b'-', text)?;
    let start = u32::from(addr::parse_v4(&text[..dash])?);
    let end = u32::from(addr::parse_v4(&text[dash + 1..])?);
    (start <= end).then_some((start, end))
}

/// Cuts a range at the borders of blocks of 65,536 addresses.
fn by_block(start: u32, end: u32) -> impl Iterator<Item = (u16, u16, u16)> {
    (start >> 16..=end >> 16).map(move |block| {
        let first = if block == start >> 16 { start as u16 } else { 0 };
        let last = if block == end >> 16 { end as u16 } else { u16::MAX };
        (block as u16, first, last)
    })
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, path::PathBuf};

    use forebay_conf::{
        Diagnostics, Sources,
        files::Memory,
        parse::{ParseOptions, parse_text},
    };

    use super::*;
    use crate::var::Store;

    struct Nothing(Registry<Nothing>, Store);

    impl Scope for Nothing {
        fn registry(&self) -> &Registry<Self> {
            &self.0
        }

        fn store(&self) -> &Store {
            &self.1
        }
    }

    /// Reads the inside of a block: what it made, or the error; and the warnings.
    fn read(block: &str) -> (Result<Geo, String>, Vec<String>) {
        read_with(Memory::default(), block)
    }

    fn read_with(mut files: Memory, block: &str) -> (Result<Geo, String>, Vec<String>) {
        let text = format!("geo $x {{ {block} }}");
        let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
        let options = ParseOptions::default();
        let nodes =
            parse_text("t", text.as_bytes(), &mut files, &options, &mut sources, &mut diags);
        assert!(diags.is_empty());
        let mut loader = Loader {
            files: &mut files,
            sources: &mut sources,
            diags: &mut diags,
            prefix: PathBuf::new(),
            conf_prefix: PathBuf::new(),
        };
        let mut registry = Registry::<Nothing>::default();
        let geo = Geo::parse(&nodes[0], &mut registry, &mut loader, true);
        let said = |is_error| {
            let of_level = diags.iter().filter(move |error| error.level.is_error() == is_error);
            of_level.map(|error| error.message.clone()).collect::<Vec<_>>()
        };
        let geo = geo.map(|(_, geo)| geo).map_err(|error| error.message);
        (said(true).pop().map_or(geo, Err), said(false))
    }

    fn geo(block: &str) -> Geo {
        read(block).0.expect("it must be read")
    }

    fn check(block: &str, cases: &[(&str, &str)]) {
        let geo = geo(block);
        for (ip, want) in cases {
            let value = geo.value(ip.parse().ok());
            assert_eq!(String::from_utf8_lossy(value), *want, "{block} {ip}");
        }
    }

    #[test]
    fn a_binary_file_beside_it_is_not_read() {
        let files = Memory::default();
        let files = files.with("/r", "10.0.0.0-10.0.0.9 a;").with("/r.bin", "GEORNG\0...");
        let geo = read_with(files, "ranges; default d; include /r;").0.expect("it must be read");
        assert_eq!(geo.value("10.0.0.3".parse().ok()), b"a");
        assert_eq!(geo.value("10.0.1.0".parse().ok()), b"d");
    }

    #[test]
    fn the_smallest_network_wins_wherever_it_stands() {
        check(
            "10.1.0.0/16 b; default d; 10.0.0.0/8 a; 10.1.2.3 c; 10.1.255.0/24 e; 2001:db8::/32 f;
             2001:db8:1::/48 g; 255.255.255.255 u;",
            &[
                ("9.255.255.255", "d"),
                ("10.0.0.0", "a"),
                ("10.0.255.255", "a"),
                ("10.1.0.0", "b"),
                ("10.1.2.2", "b"),
                ("10.1.2.3", "c"),
                ("10.1.2.4", "b"),
                ("10.1.255.255", "e"),
                ("10.2.0.0", "a"),
                ("10.255.255.255", "a"),
                ("11.0.0.0", "d"),
                ("::ffff:10.1.2.3", "c"),
                ("2001:db8::1", "f"),
                ("2001:db8:1::1", "g"),
                ("2001:db9::", "d"),
                ("unix:", "u"),
            ],
        );
    }

    #[test]
    fn without_default_the_value_is_empty() {
        check("127.0.0.0/8 a;", &[("127.0.0.1", "a"), ("1.1.1.1", ""), ("::1", ""), ("unix:", "")]);
        check("", &[("127.0.0.1", "")]);
        check("ranges; 1.0.0.0-1.0.0.1 a;", &[("1.0.0.1", "a"), ("1.0.0.2", ""), ("::1", "")]);
    }

    #[test]
    fn a_network_can_be_deleted() {
        check("10.0.0.0/8 a; 10.1.0.0/16 b; delete 10.1.0.0/16;", &[("10.1.0.1", "a")]);
        assert_eq!(read("delete 10.0.0.0/8;").1, ["no network \"10.0.0.0/8\" to delete"]);
    }

    #[test]
    fn ranges_within_ranges_split_them() {
        check(
            "ranges; default d; 10.0.0.0-10.3.255.255 a; 10.1.0.0-10.1.0.255 b; 10.1.0.7-10.1.0.7 c;
             10.1.0.0-10.1.0.3 e; 10.1.0.250-10.1.0.255 f;",
            &[
                ("9.255.255.255", "d"),
                ("10.0.255.255", "a"),
                ("10.1.0.0", "e"),
                ("10.1.0.4", "b"),
                ("10.1.0.7", "c"),
                ("10.1.0.8", "b"),
                ("10.1.0.255", "f"),
                ("10.1.1.0", "a"),
                ("10.3.255.255", "a"),
                ("10.4.0.0", "d"),
                ("2001:db8::1", "d"),
            ],
        );
    }

    #[test]
    fn wrong_lines_have_nginx_texts() {
        let cases = [
            ("x a;", "invalid network \"x\""),
            ("10.0.0.0/33 a;", "invalid network \"10.0.0.0/33\""),
            ("10.0.0.0/8;", "invalid number of the geo parameters"),
            ("10.0.0.0/8 a b;", "invalid number of the geo parameters"),
            (
                "default a; ranges;",
                "the \"ranges\" directive must be the first directive inside \"geo\" block",
            ),
            ("ranges; 10.0.0.0/8 a;", "invalid range \"10.0.0.0/8\""),
            ("ranges; 10.0.0.2-10.0.0.1 a;", "invalid range \"10.0.0.2-10.0.0.1\""),
            (
                "ranges; 10.0.0.0-10.0.0.9 a; 10.0.0.5-10.0.0.20 b;",
                "range \"10.0.0.5-10.0.0.20\" overlaps \"10.0.0.0-10.0.0.9\"",
            ),
            ("10.0.0.0/8 { }", "unexpected \"{\""),
        ];
        for (block, want) in cases {
            assert_eq!(read(block).0.err().as_deref(), Some(want), "{block}");
        }
    }

    #[test]
    fn doubtful_lines_are_told() {
        let cases = [
            ("10.1.0.0/8 a;", "low address bits of 10.1.0.0/8 are meaningless"),
            (
                "10.0.0.0/8 a; 10.0.0.0/8 b;",
                "duplicate network \"10.0.0.0/8\", value: \"b\", old value: \"a\"",
            ),
            (
                "ranges; 10.0.0.0-10.0.0.1 a; 10.0.0.0-10.0.0.1 b;",
                "duplicate range \"10.0.0.0-10.0.0.1\", value: \"b\", old value: \"a\"",
            ),
            (
                "ranges; default a; default b;",
                "duplicate default geo range value: \"b\", old value: \"a\"",
            ),
            (
                "ranges; delete 10.0.0.0-10.0.0.1;",
                "no address range \"10.0.0.0-10.0.0.1\" to delete",
            ),
        ];
        for (block, want) in cases {
            assert_eq!(read(block).1, [want], "{block}");
        }
    }

    #[test]
    fn a_hundred_thousand_networks_are_found_one_by_one() {
        let mut block = "default d;".to_owned();
        for n in 0..100_000u32 {
            let ip = std::net::Ipv4Addr::from(n.wrapping_mul(40_009) & !0xff);
            let _ = write!(block, "{ip}/24 {};", n % 250);
        }
        let geo = geo(&block);
        assert!(!geo.v4.below.is_empty());
        for n in (0..100_000u32).step_by(997) {
            let ip = std::net::Ipv4Addr::from((n.wrapping_mul(40_009) & !0xff) + 77);
            assert_ne!(geo.value(Some(ip.into())), b"d", "{ip}");
        }
    }

    #[test]
    fn special_lines_set_what_they_say() {
        let geo = geo("proxy 127.0.0.1; proxy 10.0.0.0/8; proxy_recursive; volatile;");
        assert_eq!((geo.proxies.len(), geo.proxy_recursive, geo.volatile), (2, true, true));
    }
}
