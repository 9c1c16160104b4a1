//! `server_name`: exact names, wildcards, regular expressions.

use bytes::Bytes;
use forebay_conf::{Arg, Error};
use forebay_session::{
    regex::{Groups, Regex},
    var::Registry,
};

use crate::request::Request;

/// One parameter of `server_name`, lower case.
#[derive(Clone, Debug)]
pub enum ServerName {
    /// `www.example.com`; the empty name is asked for by requests without `Host`.
    Exact(Box<[u8]>),
    /// `*.example.com`: the part after the `*`, with its dot. `.example.com` is this and the exact
    /// name together.
    Suffix(Box<[u8]>),
    /// `www.example.*`: the part before the `*`, with its dot.
    Prefix(Box<[u8]>),
    /// `~^www\d+\.example\.com$`, with the variables that its named groups set.
    Regex(Regex, Groups),
}

impl ServerName {
    /// Compiles one parameter; `.name` gives two names.
    ///
    /// Errors: nginx's `server name "x" is invalid` and `empty regex in server name "x"`.
    pub fn parse(arg: &Arg, registry: &mut Registry<Request>) -> Result<Vec<ServerName>, Error> {
        let value = &arg.value;
        let shown = String::from_utf8_lossy(value);
        if value.contains(&b'/') && value.first() != Some(&b'~') {
            return Err(Error::emerg(arg.span, format!("server name \"{shown}\" is invalid")));
        }
        if let Some(pattern) = value.strip_prefix(b"~") {
            if pattern.is_empty() {
                let text = format!("empty regex in server name \"{shown}\"");
                return Err(Error::emerg(arg.span, text));
            }
            let regex = Regex::compile(pattern, true, arg.span)?;
            let groups = regex.bind(registry, arg.span)?;
            return Ok(vec![ServerName::Regex(regex, groups)]);
        }
        let name = value.to_ascii_lowercase();
        let invalid =
            || Error::emerg(arg.span, format!("invalid server name or wildcard \"{shown}\""));
        let stars = name.iter().filter(|b| **b == b'*').count();
        match (&name[..], stars) {
            ([b'.', rest @ ..], 0) if !rest.is_empty() => {
                Ok(vec![ServerName::Exact(rest.into()), ServerName::Suffix(name.as_slice().into())])
            }
            ([b'*', suffix @ ..], 1) if suffix.first() == Some(&b'.') && suffix.len() > 1 => {
                Ok(vec![ServerName::Suffix(suffix.into())])
            }
            ([prefix @ .., b'*'], 1) if prefix.last() == Some(&b'.') && prefix.len() > 1 => {
                Ok(vec![ServerName::Prefix(prefix.into())])
            }
            (_, 0) => Ok(vec![ServerName::Exact(name.into())]),
            _ => Err(invalid()),
        }
    }

    /// How it stands in `$server_name`, as far as it can be rebuilt; regexes as written.
    pub fn shown(arg: &Arg) -> Bytes {
        match arg.value.first() {
            Some(b'~') => Bytes::copy_from_slice(&arg.value),
            Some(b'.') => Bytes::copy_from_slice(&arg.value[1..].to_ascii_lowercase()),
            _ => Bytes::copy_from_slice(&arg.value.to_ascii_lowercase()),
        }
    }
}
