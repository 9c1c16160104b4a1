//! The directives of an `upstream {}` block, for HTTP and stream alike: what they say goes into
//! [`Settings`] (`ngx_http_upstream_server` and the setters of the balancing modules).
//!
//! Invariant: the words of errors are nginx's where nginx has any.

use std::sync::Arc;

use forebay_conf::{
    Arg, Error, Loader, Node, ParseOptions, parse_text,
    value::{self, invalid_parameter},
};

use super::{
    Method, QueueSettings, Server, Settings, Time,
    address::Target,
    registry::addresses,
    sticky::{Cookie, Learn, Sessions, Sticky},
};
use crate::{
    var::{Registry, Scope, Template},
    zone::{self, Zone, Zones},
};

/// The default port of servers in `upstream {}` of `http`.
const PORT: u16 = 80;

type Done = Result<(), Error>;

/// `server address [parameters]`.
pub fn server(settings: &mut Settings, node: &Node, loader: &mut Loader<'_>) -> Done {
    if settings.may_be_empty {
        return Err(Error::emerg(node.span, "\"server\" directive is not allowed with \"state\""));
    }
    let server = parse_server(settings.method.as_ref(), node, loader)?;
    settings.servers.push(server);
    Ok(())
}

fn parse_server(
    method: Option<&Method>,
    node: &Node,
    loader: &mut Loader<'_>,
) -> Result<Server, Error> {
    let text = node.text(0)?;
    let fail = |why: &str| Error::emerg(node.span, format!("{why} in upstream \"{text}\""));
    let (target, _) = Target::parse(text, PORT, false).map_err(fail)?;
    let mut server = Server::new(target, node.span);
    for arg in &node.args[1..] {
        parameter(&mut server, method, arg)?;
    }
    if server.service.is_some() && !server.resolve {
        let text = format!("service upstream \"{text}\" requires \"resolve\" parameter");
        return Err(Error::emerg(node.span, text));
    }
    if server.service.is_some() && server.target.has_port {
        let text = format!("service upstream \"{text}\" may not have port");
        return Err(Error::emerg(node.span, text));
    }
    if !server.addrs.is_empty() {
        // An address stays what it is.
        server.resolve = false;
    } else if !server.resolve {
        // What is resolved at run time is not asked for here: a DNS server that is down would hold
        // up the start, and a name that does not resolve is no error.
        server.addrs = addresses(&server.target, loader).ok_or_else(|| fail("host not found"))?;
    }
    Ok(server)
}

/// The parameters that a method leaves no meaning for.
fn is_supported(method: Option<&Method>, parameter: &str) -> bool {
    match method {
        Some(
            Method::IpHash { .. }
            | Method::Hash(_)
            | Method::Consistent(_)
            | Method::Random
            | Method::RandomTwo(_),
        ) => !matches!(parameter, "backup" | "slow_start"),
        _ => true,
    }
}

fn parameter(server: &mut Server, method: Option<&Method>, arg: &Arg) -> Done {
    let invalid = || invalid_parameter(arg);
    let text = arg.text()?;
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    if !is_supported(method, name) {
        let text = format!("balancing method does not support parameter \"{text}\"");
        return Err(Error::emerg(arg.span, text));
    }
    let number = |value: &str| value::number(value.as_bytes()).ok_or_else(invalid);
    // More than anybody counts to is as good as the most.
    let count = |value: &str| Ok(u32::try_from(number(value)?).unwrap_or(u32::MAX));
    let weights = &mut server.weights;
    match (name, value) {
        ("weight", Some(n)) => {
            weights.weight = u32::try_from(number(n)?).map_err(|_| invalid())?.into();
            if weights.weight == 0 {
                return Err(invalid());
            }
        }
        ("max_conns", Some(n)) => weights.max_conns = count(n)?,
        ("max_fails", Some(n)) => weights.max_fails = count(n)?,
        ("fail_timeout", Some(time)) => {
            weights.fail_timeout_s = value::sec(time.as_bytes()).ok_or_else(invalid)?;
        }
        ("slow_start", Some(time)) => {
            weights.slow_start_ms = value::msec(time.as_bytes()).ok_or_else(invalid)?;
        }
        ("route", Some(route)) if !route.is_empty() => weights.route = Some(route.into()),
        ("service", Some(service)) if !service.is_empty() => server.service = Some(service.into()),
        ("backup", None) => server.backup = true,
        ("down", None) => weights.down = true,
        ("drain", None) => weights.drain = true,
        ("resolve", None) => server.resolve = true,
        _ => return Err(invalid()),
    }
    Ok(())
}

/// `state file`: servers from a file, one directive each. A file that is not there names none.
pub fn state(settings: &mut Settings, node: &Node, loader: &mut Loader<'_>) -> Done {
    if settings.may_be_empty {
        return Err(value::duplicate(node));
    }
    if !settings.servers.is_empty() {
        return Err(Error::emerg(node.span, "\"state\" directive is not allowed with \"server\""));
    }
    let path = loader.full_path(node.arg(0)?.path());
    let text = match loader.files.read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(Error::io(Some(node.span), "open()", &path, &error)),
    };
    let (name, options) = (path.to_string_lossy().into_owned(), ParseOptions::default());
    let nodes = parse_text(&name, &text, loader.files, &options, loader.sources, loader.diags);
    for node in &nodes {
        if node.name() != "server" || node.block.is_some() || node.args.is_empty() {
            let text = format!("unexpected \"{}\" in the state file", node.name.lossy());
            return Err(Error::emerg(node.span, text));
        }
        server(settings, node, loader)?;
    }
    settings.may_be_empty = true;
    Ok(())
}

/// Sets the method; nginx warns when there was one.
///
/// DIFFERS(keepalive-order): nginx warns as well when there was a `keepalive`, which it forgets.
fn set_method(settings: &mut Settings, method: Method, node: &Node, loader: &mut Loader<'_>) {
    if settings.method.replace(method).is_some() {
        loader.warn(node.span, "load balancing method redefined");
    }
}

/// `ip_hash [full]`.
pub fn ip_hash(settings: &mut Settings, node: &Node, loader: &mut Loader<'_>) -> Done {
    let full = match node.args.first() {
        None => false,
        Some(arg) if arg.is("full") => true,
        Some(arg) => return Err(invalid_parameter(arg)),
    };
    set_method(settings, Method::IpHash { full }, node, loader);
    Ok(())
}

/// `least_conn`.
pub fn least_conn(settings: &mut Settings, node: &Node, loader: &mut Loader<'_>) -> Done {
    set_method(settings, Method::LeastConn, node, loader);
    Ok(())
}

/// `least_time header | last_byte [inflight]`.
pub fn least_time(settings: &mut Settings, node: &Node, loader: &mut Loader<'_>) -> Done {
    let last_byte = which_time(node.arg(0)?, &node.arg(0)?.value)?;
    let inflight = match node.args.get(1) {
        None => false,
        Some(arg) if arg.is("inflight") => true,
        Some(arg) => return Err(invalid_parameter(arg)),
    };
    set_method(settings, Method::LeastTime(Time { last_byte, inflight }), node, loader);
    Ok(())
}

fn which_time(arg: &Arg, value: &[u8]) -> Result<bool, Error> {
    match value {
        b"header" => Ok(false),
        b"last_byte" => Ok(true),
        _ => Err(invalid_parameter(arg)),
    }
}

/// `hash key [consistent]`.
pub fn hash<S: Scope>(
    settings: &mut Settings,
    node: &Node,
    loader: &mut Loader<'_>,
    registry: &mut Registry<S>,
) -> Done {
    let arg = node.arg(0)?;
    let key = Template::parse(&arg.value, arg.span, registry)?;
    let method = match node.args.get(1) {
        None => Method::Hash(key),
        Some(arg) if arg.is("consistent") => Method::Consistent(key),
        Some(arg) => return Err(invalid_parameter(arg)),
    };
    set_method(settings, method, node, loader);
    Ok(())
}

/// `random [two [least_conn | least_time=header | least_time=last_byte]]`.
pub fn random(settings: &mut Settings, node: &Node, loader: &mut Loader<'_>) -> Done {
    let method = match &node.args[..] {
        [] => Method::Random,
        [two, ..] if !two.is("two") => return Err(invalid_parameter(two)),
        [_] => Method::RandomTwo(None),
        [_, by, ..] if by.is("least_conn") => Method::RandomTwo(None),
        [_, by, ..] => {
            let time = by.after("least_time=").ok_or_else(|| invalid_parameter(by))?;
            let last_byte = which_time(by, time)?;
            Method::RandomTwo(Some(Time { last_byte, inflight: false }))
        }
    };
    set_method(settings, method, node, loader);
    Ok(())
}

/// `queue number [timeout=time]`.
pub fn queue(settings: &mut Settings, node: &Node) -> Done {
    value::set_once(&mut settings.queue, node, |node| {
        let arg = node.arg(0)?;
        let length = value::number(&arg.value).filter(|n| *n > 0);
        let length = length.ok_or_else(|| invalid_in(node, arg))?;
        let timeout_ms = match node.args.get(1) {
            None => 60_000,
            Some(arg) => {
                let time = arg.after("timeout=").and_then(value::msec);
                time.ok_or_else(|| invalid_parameter(arg))?
            }
        };
        Ok(QueueSettings { length: length as usize, timeout_ms })
    })
}

/// `keepalive connections [local]`; 0: none.
pub fn keepalive(settings: &mut Settings, node: &Node) -> Done {
    let arg = node.arg(0)?;
    let number = value::number(&arg.value).ok_or_else(|| invalid_in(node, arg))?;
    settings.keepalive.connections = number as usize;
    settings.keepalive.local = match node.args.get(1) {
        None => false,
        Some(arg) if arg.is("local") => true,
        Some(arg) => return Err(invalid_parameter(arg)),
    };
    Ok(())
}

fn invalid_in(node: &Node, arg: &Arg) -> Error {
    let (value, name) = (arg.lossy(), node.name.lossy());
    Error::emerg(arg.span, format!("invalid value \"{value}\" in \"{name}\" directive"))
}

/// The zones of groups, whose names nginx checks. What a group remembers is not in it.
struct GroupZone;

impl zone::Kind for GroupZone {
    const MODULE: &'static str = "ngx_http_upstream_zone_module";
    type Memory = ();

    fn memory(&self, _: u64) {}
}

/// `zone name [size]`.
///
/// DIFFERS(upstream-zone): in nginx the state of a group is shared by processes within that memory;
/// here all threads share it, with or without, and it is as large as the group.
pub fn zone(node: &Node, zones: &mut Zones) -> Done {
    let arg = node.arg(0)?;
    let name = arg.text()?;
    if name.is_empty() {
        return Err(Error::emerg(arg.span, format!("invalid zone name \"{name}\"")));
    }
    let Some(size_arg) = node.args.get(1) else {
        return zones.used::<GroupZone>(name, node.span).map(drop);
    };
    let shown = size_arg.lossy();
    let size = value::size(&size_arg.value)
        .ok_or_else(|| Error::emerg(size_arg.span, format!("invalid zone size \"{shown}\"")))?;
    if size < zone::MIN_SIZE {
        return Err(Error::emerg(size_arg.span, format!("zone \"{name}\" is too small")));
    }
    zones.declare_again(name, size, node.span, GroupZone)
}

/// `sticky cookie | route | learn`.
pub fn sticky<S: Scope>(
    settings: &mut Settings,
    node: &Node,
    registry: &mut Registry<S>,
    zones: &mut Zones,
) -> Done {
    value::set_once(&mut settings.sticky, node, |node| {
        let kind = node.arg(0)?;
        let args = &node.args[1..];
        match &*kind.value {
            b"cookie" => cookie(node, args, registry),
            b"route" if !args.is_empty() => {
                let all = args.iter().map(|arg| variable(arg, &arg.value, registry));
                all.collect::<Result<_, _>>().map(Sticky::Route)
            }
            b"learn" => learn(node, args, registry, zones),
            b"route" => Err(node.wrong_count()),
            _ => Err(invalid_parameter(kind)),
        }
    })
}

fn template<S: Scope>(
    arg: &Arg,
    text: &[u8],
    registry: &mut Registry<S>,
) -> Result<Template, Error> {
    Template::parse(text, arg.span, registry)
}

/// A parameter that must be a variable.
fn variable<S: Scope>(
    arg: &Arg,
    text: &[u8],
    registry: &mut Registry<S>,
) -> Result<Template, Error> {
    let found = template(arg, text, registry)?;
    match found.as_variable() {
        Some(_) => Ok(found),
        None => {
            let text = String::from_utf8_lossy(text);
            Err(Error::emerg(arg.span, format!("invalid variable name \"{text}\"")))
        }
    }
}

fn cookie<S: Scope>(
    node: &Node,
    args: &[Arg],
    registry: &mut Registry<S>,
) -> Result<Sticky, Error> {
    let [name, args @ ..] = args else { return Err(node.wrong_count()) };
    // It is read back as a variable, whose name has no other letters.
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    if name.value.is_empty() || !name.value.iter().all(is_name) {
        let text = format!("invalid cookie name \"{}\"", name.lossy());
        return Err(Error::emerg(name.span, text).with_hint("letters, digits and \"_\" only"));
    }
    let sent = [b"$cookie_", &*name.value].concat();
    let mut cookie = Cookie {
        name: name.value.clone(),
        sent: template(name, &sent, registry)?,
        expires_s: None,
        domain: None,
        path: None,
        samesite: None,
        httponly: false,
        secure: false,
    };
    for arg in args {
        if let Some(time) = arg.after("expires=") {
            let seconds = if time == b"max" { Some(u64::MAX) } else { value::sec(time) };
            cookie.expires_s = Some(seconds.ok_or_else(|| invalid_parameter(arg))?);
        } else if let Some(domain) = arg.after("domain=") {
            cookie.domain = Some(template(arg, domain, registry)?);
        } else if let Some(path) = arg.after("path=") {
            cookie.path = Some(template(arg, path, registry)?);
        } else if let Some(samesite) = arg.after("samesite=") {
            let template = template(arg, samesite, registry)?;
            if !matches!(template.as_text(), None | Some(b"strict" | b"lax" | b"none")) {
                return Err(invalid_parameter(arg));
            }
            cookie.samesite = Some(template);
        } else {
            match &*arg.value {
                b"httponly" => cookie.httponly = true,
                b"secure" => cookie.secure = true,
                _ => return Err(invalid_parameter(arg)),
            }
        }
    }
    Ok(Sticky::Cookie(Arc::new(cookie)))
}

fn learn<S: Scope>(
    node: &Node,
    args: &[Arg],
    registry: &mut Registry<S>,
    zones: &mut Zones,
) -> Result<Sticky, Error> {
    let (mut create, mut lookup) = (Vec::new(), Vec::new());
    let mut zone: Option<Arc<Zone<Sessions>>> = None;
    let (mut timeout_ms, mut header) = (600_000, false);
    for arg in args {
        if let Some(text) = arg.after("create=") {
            create.push(variable(arg, text, registry)?);
        } else if let Some(text) = arg.after("lookup=") {
            lookup.push(variable(arg, text, registry)?);
        } else if let Some(text) = arg.after("zone=") {
            let (name, size) = zone::parse(&arg.value, text, arg.span)?;
            zones.declare_again(&name, size, arg.span, Sessions)?;
            zone = Some(zones.used(&name, arg.span)?);
        } else if let Some(time) = arg.after("timeout=") {
            timeout_ms = value::msec(time).ok_or_else(|| invalid_parameter(arg))?;
        } else if arg.is("header") {
            header = true;
        } else if arg.is("sync") {
            let text = "the \"sync\" parameter is not supported: there is no \"zone_sync\"";
            return Err(Error::emerg(arg.span, text));
        } else {
            return Err(invalid_parameter(arg));
        }
    }
    let missing = |name: &str| node.error(format_args!("has no \"{name}\" parameter"));
    if create.is_empty() {
        return Err(missing("create"));
    }
    if lookup.is_empty() {
        return Err(missing("lookup"));
    }
    let zone = zone.ok_or_else(|| missing("zone"))?;
    Ok(Sticky::Learn(Arc::new(Learn { create, lookup, zone, timeout_ms, header })))
}
