//! Values of directives, read as nginx reads them (`core/ngx_parse.c`, `ngx_atoi`), and setters for
//! slots that a directive may set once (`ngx_conf_set_*_slot`), with nginx's texts.
//!
//! Invariant: a slot that is set is never set again; the second directive is an error, as in nginx.
//! (A slot of bits is the exception, in nginx too: it collects.)

use std::fmt::Display;

use crate::error::{Diagnostics, Error};
use crate::tree::{Arg, Node};

/// What nginx's numbers, sizes and times are at the most: its `off_t`, `ssize_t` and `ngx_int_t`.
const MAX: u64 = i64::MAX as u64;

/// A decimal number without sign (`ngx_atoi`).
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let add = |n: u64, b: &u8| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        n.checked_mul(10)?.checked_add(digit).filter(|n| *n <= MAX)
    };
    text.iter().try_fold(0, add)
}

/// A number with a point, times ten to the `digits` (`ngx_atofp`): `fixed_point(b"2.5", 2)` is 250.
pub fn fixed_point(text: &[u8], digits: u32) -> Option<u64> {
    let (whole, part) = match text.iter().position(|b| *b == b'.') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &text[..0]),
    };
    let missing = digits.checked_sub(u32::try_from(part.len()).ok()?)?;
    number(&[whole, part].concat())?.checked_mul(10u64.checked_pow(missing)?).filter(|n| *n <= MAX)
}

/// An octal number, such as an access mode.
pub fn octal(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok().filter(|t| !t.starts_with('+'))?;
    u32::from_str_radix(text, 8).ok()
}

/// A size in bytes (`ngx_parse_size`): a number with `k` or `m` in either case.
pub fn size(text: &[u8]) -> Option<u64> {
    match text.last() {
        Some(b'k' | b'K' | b'm' | b'M') => offset(text),
        _ => number(text),
    }
}

/// A size of files (`ngx_parse_offset`): `g` too.
pub fn offset(text: &[u8]) -> Option<u64> {
    let (unit, digits) = text.split_last()?;
    let shift = match unit {
        b'k' | b'K' => 10,
        b'm' | b'M' => 20,
        b'g' | b'G' => 30,
        _ => return number(text),
    };
    number(digits)?.checked_mul(1 << shift).filter(|n| *n <= MAX)
}

/// A rate of requests, `10r/s` or `30r/m`, in thousandths of a request a second
/// (`ngx_http_limit_req_zone`).
pub fn rate(text: &[u8]) -> Option<u64> {
    let (digits, seconds) = match text.strip_suffix(b"r/s") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix(b"r/m")?, 60),
    };
    number(digits).filter(|n| *n > 0)?.checked_mul(1000).map(|n| n / seconds)
}

/// A time in milliseconds: `1d 12h 30m 5s 500ms`, a number without unit being seconds
/// (`ngx_parse_time` with `is_sec` 0).
pub fn msec(text: &[u8]) -> Option<u64> {
    time(text, false)
}

/// A time in seconds: as [`msec`], with `y` and `M` (30 days) too, but no `ms`.
pub fn sec(text: &[u8]) -> Option<u64> {
    time(text, true)
}

/// The units of time, the largest first: they must come in this order, each once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Start,
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
    Milli,
    Last,
}

fn time(text: &[u8], in_seconds: bool) -> Option<u64> {
    let unit_of_second = if in_seconds { 1 } else { 1000 };
    let mut step = if in_seconds { Step::Start } else { Step::Month };
    let (mut total, mut value, mut valid) = (0u64, 0u64, false);
    let mut rest = text;
    while let Some((&b, mut tail)) = rest.split_first() {
        if b.is_ascii_digit() {
            value =
                value.checked_mul(10)?.checked_add(u64::from(b - b'0')).filter(|n| *n <= MAX)?;
            valid = true;
            rest = tail;
            continue;
        }
        let is_milli = b == b'm' && tail.first() == Some(&b's');
        let (next, scale) = match b {
            b'y' => (Step::Year, 31_536_000 * unit_of_second),
            b'M' => (Step::Month, 2_592_000 * unit_of_second),
            b'w' => (Step::Week, 604_800 * unit_of_second),
            b'd' => (Step::Day, 86_400 * unit_of_second),
            b'h' => (Step::Hour, 3_600 * unit_of_second),
            b'm' if is_milli && in_seconds => return None,
            b'm' if is_milli => (Step::Milli, 1),
            b'm' => (Step::Minute, 60 * unit_of_second),
            b's' => (Step::Second, unit_of_second),
            // "5 " is five seconds, after which only another number may come: nginx's quirk.
            b' ' if step < Step::Second => (Step::Last, unit_of_second),
            _ => return None,
        };
        if step >= next {
            return None;
        }
        step = next;
        tail = &tail[usize::from(is_milli)..];
        total = value.checked_mul(scale)?.checked_add(total).filter(|n| *n <= MAX)?;
        value = 0;
        rest = skip_spaces(tail);
    }
    let last = value.checked_mul(unit_of_second)?;
    total.checked_add(last).filter(|n| valid && *n <= MAX)
}

/// Without the spaces in front: of all white space, nginx allows those only.
fn skip_spaces(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|b| **b == b' ').count();
    &text[spaces..]
}

/// nginx's error for a directive that is there twice.
pub fn duplicate(node: &Node) -> Error {
    node.error("is duplicate")
}

/// `"NAME" directive invalid value`, at the argument: what a setter of nginx's makes of a value that
/// it cannot read.
pub fn unreadable(node: &Node, arg: &Arg) -> Error {
    Error { span: Some(arg.span), ..node.error("invalid value") }
}

/// The same with a hint.
fn invalid(node: &Node, arg: &Arg, text: impl Display, hint: &str) -> Error {
    Error { span: Some(arg.span), ..node.error(text) }.with_hint(hint)
}

const SIZE_HINT: &str = "a size is a number of bytes, with \"k\" or \"m\" for more: 8k, 1m";
const OFFSET_HINT: &str =
    "a size is a number of bytes, with \"k\", \"m\" or \"g\" for more: 8k, 1g";
const MSEC_HINT: &str = "a time is a number with \"ms\", \"s\", \"m\", \"h\", \"d\" or \"w\", the largest first: \"1h 30m\"";
const SEC_HINT: &str =
    "a time is a number with \"s\", \"m\", \"h\", \"d\", \"w\", \"M\" or \"y\", the largest first";
const NUMBER_HINT: &str = "this must be a whole number";

/// The value of a directive that is `on` or `off`, in any case.
pub fn flag(node: &Node) -> Result<bool, Error> {
    let arg = node.arg(0)?;
    if arg.value.eq_ignore_ascii_case(b"on") {
        return Ok(true);
    }
    if arg.value.eq_ignore_ascii_case(b"off") {
        return Ok(false);
    }
    let (value, name) = (arg.lossy(), node.name.lossy());
    let text =
        format!("invalid value \"{value}\" in \"{name}\" directive, it must be \"on\" or \"off\"");
    Err(Error::emerg(arg.span, text))
}

/// The error for an argument that is none of the known ones.
pub fn invalid_value(arg: &Arg) -> Error {
    Error::emerg(arg.span, format!("invalid value \"{}\"", arg.lossy()))
}

/// The error for a parameter that is none of the known ones.
pub fn invalid_parameter(arg: &Arg) -> Error {
    Error::emerg(arg.span, format!("invalid parameter \"{}\"", arg.lossy()))
}

/// Looks an argument up in a table, in any case as nginx does.
pub fn choice<E: Clone>(arg: &Arg, table: &[(&str, E)]) -> Result<E, Error> {
    let known = table.iter().find(|(name, _)| arg.value.eq_ignore_ascii_case(name.as_bytes()));
    known.map(|(_, e)| e.clone()).ok_or_else(|| {
        let names: Vec<_> = table.iter().map(|(name, _)| *name).collect();
        invalid_value(arg).with_hint(format!("it must be one of: {}", names.join(", ")))
    })
}

/// Sets a slot once: checks that it is not set, then reads the value.
pub fn set_once<T>(
    slot: &mut Option<T>,
    node: &Node,
    read: impl FnOnce(&Node) -> Result<T, Error>,
) -> Result<(), Error> {
    if slot.is_some() {
        return Err(duplicate(node));
    }
    *slot = Some(read(node)?);
    Ok(())
}

fn set_parsed(
    slot: &mut Option<u64>,
    node: &Node,
    parse: fn(&[u8]) -> Option<u64>,
    hint: &str,
) -> Result<(), Error> {
    set_once(slot, node, |node| {
        let arg = node.arg(0)?;
        parse(&arg.value).ok_or_else(|| invalid(node, arg, "invalid value", hint))
    })
}

/// `on` or `off` (`ngx_conf_set_flag_slot`).
pub fn set_flag(slot: &mut Option<bool>, node: &Node) -> Result<(), Error> {
    set_once(slot, node, flag)
}

/// A size in bytes (`ngx_conf_set_size_slot`).
pub fn set_size(slot: &mut Option<u64>, node: &Node) -> Result<(), Error> {
    set_parsed(slot, node, size, SIZE_HINT)
}

/// A size of files in bytes, `g` too (`ngx_conf_set_off_slot`).
pub fn set_offset(slot: &mut Option<u64>, node: &Node) -> Result<(), Error> {
    set_parsed(slot, node, offset, OFFSET_HINT)
}

/// A time in milliseconds (`ngx_conf_set_msec_slot`).
pub fn set_msec(slot: &mut Option<u64>, node: &Node) -> Result<(), Error> {
    set_parsed(slot, node, msec, MSEC_HINT)
}

/// A time in seconds (`ngx_conf_set_sec_slot`).
pub fn set_sec(slot: &mut Option<u64>, node: &Node) -> Result<(), Error> {
    set_parsed(slot, node, sec, SEC_HINT)
}

/// What a number is kept in.
pub trait Number: TryFrom<u64> {
    /// The largest.
    const MAX: Self;
}

macro_rules! number {
    ($($kept:ty)+) => {
        $(impl Number for $kept {
            const MAX: $kept = <$kept>::MAX;
        })+
    };
}

number!(u16 u32 u64 usize);

/// A number (`ngx_conf_set_num_slot`); one beyond `T` means as much as there can be.
pub fn set_number<T: Number>(slot: &mut Option<T>, node: &Node) -> Result<(), Error> {
    set_once(slot, node, |node| {
        let arg = node.arg(0)?;
        let n = number(&arg.value).map(|n| T::try_from(n).unwrap_or(T::MAX));
        n.ok_or_else(|| invalid(node, arg, "invalid number", NUMBER_HINT))
    })
}

/// A text (`ngx_conf_set_str_slot`).
pub fn set_str(slot: &mut Option<String>, node: &Node) -> Result<(), Error> {
    set_once(slot, node, |node| Ok(node.text(0)?.to_owned()))
}

/// Bytes: as [`set_str`] where the value need not be UTF-8.
pub fn set_bytes(slot: &mut Option<Box<[u8]>>, node: &Node) -> Result<(), Error> {
    set_once(slot, node, |node| Ok(node.arg(0)?.value.clone()))
}

/// One of a table's names (`ngx_conf_set_enum_slot`).
pub fn set_enum<E: Clone>(
    slot: &mut Option<E>,
    node: &Node,
    table: &[(&str, E)],
) -> Result<(), Error> {
    set_once(slot, node, |node| choice(node.arg(0)?, table))
}

/// Any number of a table's names, collected over all directives (`ngx_conf_set_bitmask_slot`).
pub fn set_bits(
    slot: &mut Option<u32>,
    node: &Node,
    table: &[(&str, u32)],
    diags: &mut Diagnostics,
) -> Result<(), Error> {
    for arg in &node.args {
        let bit = choice(arg, table)?;
        let bits = slot.get_or_insert(0);
        if *bits & bit != 0 {
            diags.push(Error::warn(arg.span, format!("duplicate value \"{}\"", arg.lossy())));
        }
        *bits |= bit;
    }
    Ok(())
}

/// How many buffers of what size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bufs {
    /// How many, at least one.
    pub count: u64,
    /// Bytes of each, at least one.
    pub size: u64,
}

/// `number size` (`ngx_conf_set_bufs_slot`).
pub fn set_bufs(slot: &mut Option<Bufs>, node: &Node) -> Result<(), Error> {
    set_once(slot, node, |node| {
        let positive = |index: usize, parse: fn(&[u8]) -> Option<u64>| {
            let arg = node.arg(index)?;
            let hint = "this takes a number of buffers and their size: 4 8k";
            let n = parse(&arg.value).filter(|n| *n > 0);
            n.ok_or_else(|| invalid(node, arg, "invalid value", hint))
        };
        Ok(Bufs { count: positive(0, number)?, size: positive(1, size)? })
    })
}

/// Whether a number is within bounds (`ngx_conf_check_num_bounds`).
pub fn check_bounds(node: &Node, value: u64, low: u64, high: Option<u64>) -> Result<(), Error> {
    match high {
        None if value < low => {
            let text = format!("value must be equal to or greater than {low}");
            Err(Error::emerg(node.arg(0)?.span, text))
        }
        Some(high) if value < low || value > high => {
            let text = format!("value must be between {low} and {high}");
            Err(Error::emerg(node.arg(0)?.span, text))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
