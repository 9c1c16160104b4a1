//! `charset_map`: tables between two charsets, and recoding by them.
//!
//! Invariant: recoding knows nothing of requests, and gives the same bytes however they are cut.

use std::{mem, sync::Arc};

use bytes::Bytes;
use forebay_conf::{Diagnostics, Error, Node, value::invalid_value};

use crate::module::Cx;

/// All maps of a configuration, while it is read.
#[derive(Default)]
pub struct Charsets {
    maps: Arc<Maps>,
    /// Pairs that were found missing, told once each.
    missing: Vec<(Bytes, Bytes)>,
}

impl Charsets {
    /// The maps; all of them, once levels are being built.
    pub fn maps(&self) -> Arc<Maps> {
        self.maps.clone()
    }

    /// There must be a map between these, unless they are the same.
    pub fn require(&mut self, from: &Bytes, to: &Bytes) -> Result<(), Error> {
        if from.eq_ignore_ascii_case(to) || self.maps.find(from, to).is_some() {
            return Ok(());
        }
        let pair = (from.clone(), to.clone());
        if self.missing.contains(&pair) {
            return Ok(());
        }
        self.missing.push(pair);
        let (from, to) = (String::from_utf8_lossy(from), String::from_utf8_lossy(to));
        let text = format!("no \"charset_map\" between the charsets \"{from}\" and \"{to}\"");
        Err(Error { span: None, ..Error::emerg(Default::default(), text) })
    }
}

/// The maps by their pairs of charsets.
#[derive(Default)]
pub struct Maps {
    list: Vec<(Bytes, Bytes, Arc<Recode>)>,
    /// The charsets that the configuration names, whether or not there is a map.
    known: Vec<Bytes>,
}

impl Maps {
    /// How to recode from one to the other.
    pub fn find(&self, from: &[u8], to: &[u8]) -> Option<&Arc<Recode>> {
        let is_it = |(src, dst, _): &&(Bytes, Bytes, _)| {
            src.eq_ignore_ascii_case(from) && dst.eq_ignore_ascii_case(to)
        };
        self.list.iter().find(is_it).map(|(_, _, recode)| recode)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether the configuration names a charset so.
    pub fn knows(&self, name: &[u8]) -> bool {
        self.known.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Whether it names any.
    pub fn knows_any(&self) -> bool {
        !self.known.is_empty()
    }
}

/// The configuration names a charset; answers how it did so first (`ngx_http_add_charset`).
pub fn know(name: &[u8], cx: &mut Cx<'_, '_>) -> Bytes {
    let maps = Arc::get_mut(&mut cx.shared::<Charsets>().maps);
    let maps = maps.expect("not shared before levels are built");
    if let Some(known) = maps.known.iter().find(|known| known.eq_ignore_ascii_case(name)) {
        return known.clone();
    }
    let name = Bytes::copy_from_slice(name);
    maps.known.push(name.clone());
    name
}

/// A table from one charset to another.
pub enum Recode {
    /// Byte by byte.
    Bytes(Box<[u8; 256]>),
    /// Each byte to a character of up to three bytes; the first of four is their number.
    ToUtf8(Box<[[u8; 4]; 256]>),
    /// Characters by the high and the low byte of their number; 0: there is none.
    FromUtf8(Box<[Option<Box<[u8; 256]>>; 256]>),
}

impl Recode {
    /// Whether a text may be longer or shorter afterwards.
    pub fn changes_length(&self) -> bool {
        !matches!(self, Recode::Bytes(_))
    }
}

/// Reads a `charset_map` block (`ngx_http_charset_map_block`).
pub fn read(node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (src, dst) = (node.arg(0)?, node.arg(1)?);
    // What is wrong with its own arguments does not hide what is wrong with its lines.
    let (there, back) = match dst.value.eq_ignore_ascii_case(b"utf-8") {
        true => utf8_tables(node.children(), cx.loader.diags),
        false => byte_tables(node.children(), cx.loader.diags),
    };
    if src.value.eq_ignore_ascii_case(&dst.value) {
        let text = format!(
            "\"charset_map\" between the same charsets \"{}\" and \"{}\"",
            src.lossy(),
            dst.lossy()
        );
        return Err(Error::emerg(node.span, text));
    }
    know(&src.value, cx);
    know(&dst.value, cx);
    let maps = &cx.shared::<Charsets>().maps;
    if maps.find(&src.value, &dst.value).is_some() {
        let text = format!(
            "duplicate \"charset_map\" between \"{}\" and \"{}\"",
            src.lossy(),
            dst.lossy()
        );
        return Err(Error::emerg(node.span, text));
    }
    let name = |arg: &forebay_conf::Arg| Bytes::copy_from_slice(&arg.value);
    let maps = Arc::get_mut(&mut cx.shared::<Charsets>().maps);
    let list = &mut maps.expect("not shared before levels are built").list;
    list.push((name(src), name(dst), Arc::new(there)));
    list.push((name(dst), name(src), Arc::new(back)));
    Ok(())
}

fn pair(line: &Node) -> Result<(u8, &forebay_conf::Arg), Error> {
    let [to] = &line.args[..] else {
        return Err(Error::emerg(line.span, "invalid parameters number"));
    };
    let from = hex(&line.name.value).ok_or_else(|| invalid_value(&line.name))?;
    Ok((from, to))
}

/// A byte in hexadecimal digits (`ngx_hextoi`).
fn hex(text: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(text).ok()?;
    // The parser of integers takes a sign.
    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::try_from(
        u32::from_str_radix(digits.trim_start_matches('0'), 16)
            .or_else(|error| match error.kind() {
                std::num::IntErrorKind::Empty if !digits.is_empty() => Ok(0),
                _ => Err(error),
            })
            .ok()?,
    )
    .ok()
}

fn byte_tables(lines: &[Node], diags: &mut Diagnostics) -> (Recode, Recode) {
    let mut there = [b'?'; 256];
    for (byte, slot) in (0..128).zip(&mut there) {
        *slot = byte;
    }
    let mut back = there;
    for line in lines {
        let read = pair(line)
            .and_then(|(from, to)| Ok((from, hex(&to.value).ok_or_else(|| invalid_value(to))?)));
        let Some((from, to)) = diags.take(read) else { continue };
        there[usize::from(from)] = to;
        back[usize::from(to)] = from;
    }
    (Recode::Bytes(Box::new(there)), Recode::Bytes(Box::new(back)))
}

/// The bytes of a character, and the character.
fn utf8_pair((from, to): (u8, &forebay_conf::Arg)) -> Result<(u8, Vec<u8>, u32), Error> {
    let bytes: Option<Vec<u8>> = to.value.chunks(2).map(hex).collect();
    // nginx has room for three bytes of a character, and no check of it.
    let bytes = bytes.filter(|bytes| (1..=3).contains(&bytes.len()));
    let bytes = bytes.ok_or_else(|| invalid_value(to))?;
    match decode(&bytes) {
        Decoded::Char(n @ 0..=0xffff, _) => Ok((from, bytes, n)),
        _ => Err(invalid_value(to)),
    }
}

fn utf8_tables(lines: &[Node], diags: &mut Diagnostics) -> (Recode, Recode) {
    let mut there = Box::new([[1, b'?', 0, 0]; 256]);
    for (byte, slot) in (0..128).zip(there.iter_mut()) {
        slot[1] = byte;
    }
    let mut back: Box<[Option<Box<[u8; 256]>>; 256]> = Box::new([const { None }; 256]);
    for line in lines {
        let Some((from, bytes, n)) = diags.take(pair(line).and_then(utf8_pair)) else { continue };
        let slot = &mut there[usize::from(from)];
        slot[0] = bytes.len() as u8;
        slot[1..=bytes.len()].copy_from_slice(&bytes);
        let page = back[n as usize >> 8].get_or_insert_with(|| Box::new([0; 256]));
        page[n as usize & 0xff] = from;
    }
    (Recode::ToUtf8(there), Recode::FromUtf8(back))
}

/// The first character of a text in UTF-8.
#[derive(Debug, PartialEq, Eq)]
enum Decoded {
    /// It, and how many bytes it has. May be above U+10FFFF.
    Char(u32, usize),
    /// None, and how many bytes are passed over.
    Invalid(usize),
    /// Its end is missing.
    Incomplete,
}

/// `ngx_utf8_decode`, which takes any byte above 0x7f for a continuation.
fn decode(text: &[u8]) -> Decoded {
    let Some(&first) = text.first() else { return Decoded::Incomplete };
    let (bits, smallest, more) = match first {
        0..0x80 => return Decoded::Char(first.into(), 1),
        0xf0..0xf8 => (first & 0x07, 0x1_0000, 3),
        0xe0..0xf0 => (first & 0x0f, 0x800, 2),
        0xc2..0xe0 => (first & 0x1f, 0x80, 1),
        _ => return Decoded::Invalid(1),
    };
    if text.len() <= more {
        return Decoded::Incomplete;
    }
    let mut n = u32::from(bits);
    for (index, &byte) in text[1..=more].iter().enumerate() {
        if byte < 0x80 {
            return Decoded::Invalid(index + 2);
        }
        n = n << 6 | u32::from(byte & 0x3f);
    }
    if n < smallest { Decoded::Invalid(more + 1) } else { Decoded::Char(n, more + 1) }
}

/// Recodes a text that comes in pieces.
pub struct Recoder {
    recode: Arc<Recode>,
    /// The beginning of a character whose end is still to come: three bytes at most.
    held: Vec<u8>,
}

impl Recoder {
    /// By that table.
    pub fn new(recode: Arc<Recode>) -> Recoder {
        Recoder { recode, held: Vec::new() }
    }

    /// Recodes what comes next. A character that never ends is lost, as in nginx.
    pub fn feed(&mut self, piece: Bytes) -> Bytes {
        match &*self.recode {
            Recode::Bytes(table) => {
                let recoded = piece.iter().map(|&byte| table[usize::from(byte)]);
                recoded.collect::<Vec<u8>>().into()
            }
            // DIFFERS(charset-unmapped-bytes): nginx passes a piece on as it is in which no byte gets
            // longer.
            Recode::ToUtf8(table) => {
                let mut out = Vec::with_capacity(piece.len() * 2);
                for &byte in &piece {
                    let [len, bytes @ ..] = &table[usize::from(byte)];
                    out.extend_from_slice(&bytes[..usize::from(*len)]);
                }
                out.into()
            }
            Recode::FromUtf8(table) => {
                if self.held.is_empty() && piece.is_ascii() {
                    return piece;
                }
                let mut text = mem::take(&mut self.held);
                text.extend_from_slice(&piece);
                let mut out = Vec::with_capacity(text.len());
                let rest = from_utf8(table, &text, &mut out);
                self.held.extend_from_slice(rest);
                out.into()
            }
        }
    }
}

/// Recodes all whole characters; what is left.
fn from_utf8<'t>(
    table: &[Option<Box<[u8; 256]>>; 256],
    mut text: &'t [u8],
    out: &mut Vec<u8>,
) -> &'t [u8] {
    loop {
        match text.first() {
            None => return text,
            Some(&byte) if byte < 0x80 => {
                out.push(byte);
                text = &text[1..];
                continue;
            }
            Some(_) => {}
        }
        let used = match decode(text) {
            Decoded::Incomplete => return text,
            Decoded::Invalid(used) => {
                out.push(b'?');
                used
            }
            Decoded::Char(n, used) if n > 0x10_ffff => {
                out.push(b'?');
                used
            }
            Decoded::Char(n, used) => {
                let page = table.get(n as usize >> 8).and_then(Option::as_ref);
                match page.map(|page| page[n as usize & 0xff]) {
                    Some(byte @ 1..) => out.push(byte),
                    _ => {
                        out.extend_from_slice(b"&#");
                        forebay_wire::h1::encode::write_decimal(out, n.into());
                        out.push(b';');
                    }
                }
                used
            }
        };
        text = &text[used..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Arc<Recode> {
        let mut back: Box<[Option<Box<[u8; 256]>>; 256]> = Box::new([const { None }; 256]);
        let mut page = Box::new([0; 256]);
        page[0x10] = 0xe1;
        back[4] = Some(page);
        Arc::new(Recode::FromUtf8(back))
    }

    fn recode(pieces: &[&[u8]]) -> Vec<u8> {
        let mut recoder = Recoder::new(table());
        let fed = pieces.iter().map(|piece| recoder.feed(Bytes::copy_from_slice(piece)));
        fed.collect::<Vec<_>>().concat()
    }

    #[test]
    fn utf8_is_recoded_wherever_it_is_cut() {
        for (text, want) in [
            (&b"abc"[..], &b"abc"[..]),
            (b"a\xd0\x90b", b"a\xe1b"),
            (b"\xd0\x91", b"&#1041;"),
            (b"\xe2\x82\xac", b"&#8364;"),
            (b"\xf0\x9f\x98\x80", b"&#128512;"),
            (b"\xf4\x90\x80\x80", b"?"),
            (b"\xff\xfe", b"??"),
            (b"\x80a", b"?a"),
            (b"\xc0\xaf", b"??"),
            (b"\xc1\x81", b"??"),
            (b"\xe0\x80\x80a", b"?a"),
            (b"\xd0a\xd0\x90", b"?\xe1"),
            (b"\xe2\x82ab", b"?b"),
            (b"\xe2\x82", b""),
            (b"a\xf0\x9f\x98", b"a"),
            (b"\xf8\x88\x80\x80\x80", b"?????"),
        ] {
            assert_eq!(recode(&[text]), want, "{text:x?}");
            for at in 0..text.len() {
                assert_eq!(recode(&[&text[..at], &text[at..]]), want, "{text:x?} at {at}");
            }
        }
    }

    #[test]
    fn any_bytes_come_out_the_same_however_they_are_cut() {
        let mut state = 7u64;
        for _ in 0..2000 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as u8
            };
            let text: Vec<u8> = (0..next() % 24).map(|_| next() | (next() & 0x80)).collect();
            let whole = recode(&[&text]);
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            assert_eq!(recode(&bytes), whole, "{text:x?}");
            assert!(whole.len() <= text.len() * 5, "{text:x?}");
        }
    }

    #[test]
    fn hexadecimal_bytes_are_read_as_nginx_reads_them() {
        for (text, want) in [
            ("C1", Some(0xc1)),
            ("c", Some(12)),
            ("00ff", Some(255)),
            ("0", Some(0)),
            ("100", None),
            ("", None),
            ("+1", None),
            ("g", None),
            ("ffffffffffffffffffff", None),
        ] {
            assert_eq!(hex(text.as_bytes()), want, "{text}");
        }
    }
}
