//! The variables of `ngx_http_core_module` and the log variables that belong to every request.
//!
//! Answers nginx's `ngx_http_variables.c`: what is "not found" there (a `-` in the log, empty
//! elsewhere) is `false` here.
//! Declares `$upstream_…` as well, which belong to no single module; leaves out what modules bring
//! (`$gzip_ratio`, `$proxy_…`, `$ssl_…`).
//!
//! Invariant: reading a variable changes nothing that a client can see.

mod connection;
mod request;
mod response;
mod time;

use std::io::Write as _;

use forebay_session::var::Registry;

use crate::request::Request;
pub(crate) use connection::hostname;
pub(crate) use request::{argument, cookie_value};

/// Declares them all.
pub fn register(registry: &mut Registry<Request>) {
    connection::register(registry);
    request::register(registry);
    response::register(registry);
    time::register(registry);
    crate::upstream::state::register(registry);
}

/// Writes text that is always there.
fn put(out: &mut Vec<u8>, text: &[u8]) -> bool {
    out.extend_from_slice(text);
    true
}

/// Writes text that may not be there.
fn put_some(out: &mut Vec<u8>, text: Option<&[u8]>) -> bool {
    text.is_some_and(|text| put(out, text))
}

/// Writes a number.
fn put_number(out: &mut Vec<u8>, number: u64) -> bool {
    forebay_wire::h1::encode::write_decimal(out, number);
    true
}

/// Writes milliseconds as seconds with three decimals (`%T.%03M`).
pub(crate) fn put_seconds(out: &mut Vec<u8>, ms: u64) -> bool {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{}.{:03}", ms / 1000, ms % 1000);
    true
}

/// Whether a field's name is that of a variable: lower case, `_` for `-`
/// (`ngx_http_variable_unknown_header`).
pub(crate) fn is_named(field: &[u8], variable: &[u8]) -> bool {
    let same = |(f, v): (&u8, &u8)| match f {
        b'-' => *v == b'_',
        f => f.to_ascii_lowercase() == *v,
    };
    field.len() == variable.len() && field.iter().zip(variable).all(same)
}

/// Writes all values of the fields of that name, joined; `false`: there is none.
pub(crate) fn put_joined<'a>(
    out: &mut Vec<u8>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    variable: &[u8],
    separator: &[u8],
) -> bool {
    let mut found = false;
    for (_, value) in fields.filter(|(name, _)| is_named(name, variable)) {
        if found {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(value);
        found = true;
    }
    found
}

#[cfg(test)]
mod tests;
