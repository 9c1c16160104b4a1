//! Where `proxy_pass` leads: fixed, or worked out for each request from variables
//! (`ngx_http_proxy_pass`, `ngx_http_proxy_eval`, `ngx_http_proxy_set_vars`).
//!
//! Invariant: what a request's text leads to is parsed as a configuration's would be, and resolved by
//! nobody but the resolver.

use std::sync::Arc;

use bytes::Bytes;
use forebay_conf::{Error, Node};
use forebay_rt::listen::Addr;
use forebay_session::{
    log::{Severity, Shown},
    resolver::Resolver,
    upstream::address::Target,
    var::Template,
};

use crate::{
    module::Cx,
    request::Request,
    upstream::{self, GroupRef},
};

/// What a URL of `proxy_pass` says besides the servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url {
    /// Whether it is `https://`.
    pub tls: bool,
    /// `$proxy_host`: the host, with the port unless it is the usual one.
    pub host: Bytes,
    /// `$proxy_port`.
    pub port: Bytes,
    /// The URI part; empty: none.
    pub uri: Bytes,
}

/// `proxy_pass`.
pub enum Pass {
    /// To these servers.
    Fixed {
        /// The servers.
        group: GroupRef,
        /// What the URL says.
        url: Url,
        /// As written, for `proxy_redirect default`.
        text: Bytes,
    },
    /// To whatever the variables say.
    Computed(Template),
}

/// Reads the directive.
pub fn parse(node: &Node, cx: &mut Cx<'_, '_>) -> Result<Pass, Error> {
    let arg = node.arg(0)?;
    if memchr::memchr(b'$', &arg.value).is_some() {
        let template = Template::parse(&arg.value, arg.span, &mut cx.registry)?;
        return Ok(Pass::Computed(template));
    }
    let fail = |text: String| Error::emerg(arg.span, text);
    let text = std::str::from_utf8(&arg.value).map_err(|_| fail("invalid URL".to_owned()))?;
    let (tls, rest) = scheme(text).ok_or_else(|| fail("invalid URL prefix".to_owned()))?;
    let default_port = if tls { 443 } else { 80 };
    let (target, uri) = Target::parse(rest, default_port, true)
        .map_err(|why| fail(format!("{why} in upstream \"{rest}\"")))?;
    let url = url(&target, uri, tls);
    let group = GroupRef::Configured(cx.upstreams.used(&target, arg.span)?);
    Ok(Pass::Fixed { group, url, text: Bytes::copy_from_slice(&arg.value) })
}

fn scheme(text: &str) -> Option<(bool, &str)> {
    let after = |scheme: &str| {
        let (found, rest) = text.split_at_checked(scheme.len())?;
        found.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    match after("http://") {
        Some(rest) => Some((false, rest)),
        None => Some((true, after("https://")?)),
    }
}

/// `ngx_http_proxy_set_vars`.
fn url(target: &Target, uri: &str, tls: bool) -> Url {
    let usual = if tls { 443 } else { 80 };
    let uri = match uri.starts_with('?') {
        true => Bytes::from(format!("/{uri}")),
        false => Bytes::copy_from_slice(uri.as_bytes()),
    };
    if let Some(Addr::Unix(_)) = &target.addr {
        return Url { tls, host: Bytes::from_static(b"localhost"), port: Bytes::new(), uri };
    }
    let text = &*target.text;
    let bare = match target.has_port {
        true => text.rsplit_once(':').map_or(text, |(host, _)| host),
        false => text,
    };
    let host = if target.port == usual || target.port == 0 { bare } else { text };
    let port = if target.port == 0 { usual } else { target.port };
    Url { tls, host: Bytes::copy_from_slice(host.as_bytes()), port: port.to_string().into(), uri }
}

/// Works out where a request goes. A status: it cannot be told.
pub async fn evaluate(
    r: &Request,
    template: &Template,
    resolver: &(Arc<Resolver>, u64),
) -> Result<(GroupRef, Url), u16> {
    let value = template.value(r);
    // Until it can be told, it is empty.
    r.upstream.set_target(&Bytes::new(), &Bytes::new());
    let fail = |why: &str, what: &[u8]| {
        r.log_error(Severity::Error, format_args!("{why} in upstream \"{}\"", Shown(what)));
        500u16
    };
    // Only the URI may be anything: what is no UTF-8 stands behind the host, or there is none.
    let (text, tail) = match std::str::from_utf8(&value) {
        Ok(text) => (text, &b""[..]),
        Err(error) => {
            let (text, tail) = value.split_at(error.valid_up_to());
            (std::str::from_utf8(text).unwrap_or_default(), tail)
        }
    };
    let Some((tls, rest)) = scheme(text).filter(|(_, rest)| !rest.is_empty()) else {
        let text = format_args!("invalid URL prefix in \"{}\"", Shown(&value));
        r.log_error(Severity::Error, text);
        return Err(500);
    };
    let default_port = if tls { 443 } else { 80 };
    let (target, uri) =
        Target::parse(rest, default_port, true).map_err(|why| fail(why, rest.as_bytes()))?;
    let mut url = url(&target, uri, tls);
    if !tail.is_empty() {
        if url.uri.is_empty() {
            return Err(fail("invalid host", &value[text.len() - rest.len()..]));
        }
        url.uri = [&url.uri, tail].concat().into();
    }
    r.upstream.set_target(&url.host, &url.port);
    Ok((upstream::locate(r, &target, resolver).await?, url))
}
