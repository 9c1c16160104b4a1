//! `server_name`: exact names, wildcards, regular expressions.

use bytes::Bytes;
use forebay_conf::{Arg, Error};
use forebay_session::{
    regex::{Groups, Regex},
    var::Registry,
};

use crate::{request::Request, variables::hostname};

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
    /// One with stars or dots where they cannot be: wrong where there are other servers, and else not
    /// looked at (`ngx_http_server_names`).
    Invalid(Box<[u8]>),
}

impl ServerName {
    /// Compiles one parameter; `.name` gives two names.
    ///
    /// Errors: nginx's `server name "x" is invalid` and `empty regex in server name "x"`.
    pub fn parse(arg: &Arg, registry: &mut Registry<Request>) -> Result<Vec<ServerName>, Error> {
        let value = &arg.value;
        let shown = String::from_utf8_lossy(value);
        // ngx_http_core_server_name looks for these before it looks at stars.
        let too_short = match value.first() {
            Some(b'*') => value.len() < 3 || value[1] != b'.',
            Some(b'.') => value.len() < 2,
            _ => false,
        };
        if too_short {
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
        let name = lower_case(value);
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
            (_, 0) if memchr::memmem::find(&name, b"..").is_none() => {
                Ok(vec![ServerName::Exact(name.into())])
            }
            _ => Ok(vec![ServerName::Invalid(name.into())]),
        }
    }

    /// How it stands in `$server_name`, as far as it can be rebuilt; regexes as written.
    pub fn shown(arg: &Arg) -> Bytes {
        match arg.value.first() {
            Some(b'~') => Bytes::copy_from_slice(&arg.value),
            Some(b'.') => Bytes::copy_from_slice(&arg.value[1..].to_ascii_lowercase()),
            _ => lower_case(&arg.value).into(),
        }
    }
}

/// A name in lower case; the one variable that may stand here is that of the host's own name.
fn lower_case(name: &[u8]) -> Vec<u8> {
    match name.eq_ignore_ascii_case(b"$hostname") {
        true => hostname().to_vec(),
        false => name.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use forebay_conf::Span;

    use super::*;

    #[test]
    fn the_host_s_own_name_may_be_a_name() {
        let arg = |text: &str| Arg {
            value: text.as_bytes().into(),
            span: Span::default(),
            quoted: false,
        };
        let own = arg("$HostName");
        let names = ServerName::parse(&own, &mut Registry::default()).unwrap();
        assert!(matches!(&names[..], [ServerName::Exact(name)] if **name == *hostname()));
        assert_eq!(ServerName::shown(&own), hostname());
        assert_eq!(ServerName::shown(&arg("A.Example")), "a.example");
    }
}
