//! One lookup: questions to DNS servers until there is an answer.
//!
//! Each datagram goes out of a socket of its own, so its source port is the kernel's random choice,
//! and only its server's datagrams come in (RFC 5452 §9.2).
//!
//! Invariant: never ends by itself while no server answers; whoever waits for it has the timeout.

use std::{
    future::{Future, pending},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use forebay_rt::clock;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    Answer, Counter, Endpoint, Missing, Outcome, ResolveError, Resolver, Target,
    message::{Kind, MAX_ADDRESSES, MAX_CNAMES, Question, Reply, Srv},
    thread,
};

/// nginx's `NGX_RESOLVER_UDP_SIZE`: the longest datagram that is read.
const MAX_DATAGRAM: usize = 4_096;
/// How many datagrams that are not the answer may come before the question is asked over TCP, where
/// nobody can guess: someone tries.
const MAX_FOREIGN: usize = 16;
/// How many hosts of one service are looked up.
const MAX_SRV_HOSTS: usize = 64;
/// How many servers are asked, one after the other, for a host of a service.
const HOST_TURNS: u64 = 2;
/// One part in so many of the time that somebody waits is left for telling what was found.
const TELLING_SHARE: u64 = 8;

/// What one kind of question came to, aliases followed.
enum Found {
    Ips(Vec<IpAddr>, u32),
    Servers(Vec<Srv>, u32),
}

/// Looks a target up, for somebody who waits so long.
pub(super) async fn look_up(resolver: &Arc<Resolver>, target: &Target, timeout_ms: u64) -> Outcome {
    // What is found by then can still be told.
    let end = Instant::now() + Duration::from_millis(timeout_ms - timeout_ms / TELLING_SHARE);
    let (endpoints, missing, ttl_s) = match target {
        Target::Host(name) => {
            resolver.count(Counter::Name);
            let (ips, ttl_s) = host(resolver, name).await?;
            let endpoint = |ip| Endpoint { ip, port: 0, priority: 0, weight: 0, host: None };
            (ips.into_iter().map(endpoint).collect(), Vec::new(), ttl_s)
        }
        Target::Service(name) => {
            resolver.count(Counter::Srv);
            service(resolver, name, end).await?
        }
    };
    // DIFFERS(resolver-ttl-zero): nginx counts in seconds, and keeps any answer until one is over.
    let valid_ms = resolver.settings.valid_ms.unwrap_or(u64::from(ttl_s) * 1_000);
    let valid_until_ms = clock::now_ms().saturating_add(valid_ms);
    Ok(Answer { endpoints, missing, valid_until_ms })
}

/// The addresses of a host, IPv4 first; both families are asked at once
/// (`ngx_resolver_process_a`).
async fn host(resolver: &Resolver, name: &str) -> Result<(Vec<IpAddr>, u32), ResolveError> {
    let settings = &resolver.settings;
    let family = async |on: bool, kind| match on {
        true => Some(chase(resolver, name, kind).await),
        false => None,
    };
    let (v4, v6) = tokio::join!(family(settings.ipv4, Kind::V4), family(settings.ipv6, Kind::V6));
    let (mut ips, mut ttl_s, mut error) = (Vec::new(), u32::MAX, None);
    for found in [v4, v6].into_iter().flatten() {
        match found {
            Ok(Found::Ips(more, ttl)) => {
                ips.extend(more);
                ttl_s = ttl_s.min(ttl);
            }
            Ok(Found::Servers(..)) => {}
            Err(why) => error = error.or(Some(why)),
        }
    }
    match ips.is_empty() {
        false => Ok((ips, ttl_s)),
        true => Err(error.unwrap_or(ResolveError::NotFound)),
    }
}

/// The servers of a service with their addresses, by priority (`ngx_resolver_report_srv`); all hosts
/// are looked up at once. A server without address is left out; if all are, the service fails.
async fn service(
    resolver: &Arc<Resolver>,
    name: &str,
    end: Instant,
) -> Result<(Arc<[Endpoint]>, Vec<Missing>, u32), ResolveError> {
    let Found::Servers(mut servers, mut ttl_s) = chase(resolver, name, Kind::Srv).await? else {
        return Err(ResolveError::NotFound);
    };
    servers.sort_by_key(|server| server.priority);
    servers.truncate(MAX_SRV_HOSTS);
    // One that never answers must not keep the others from being found.
    let turns = Duration::from_millis(HOST_TURNS * resolver.settings.resend_ms);
    let end = end.min(Instant::now() + turns);
    let mut lookups = JoinSet::new();
    for (place, server) in servers.into_iter().enumerate() {
        let resolver = resolver.clone();
        lookups.spawn_local(async move {
            let found = timeout_at(end, host(&resolver, &server.host)).await;
            (place, server, found.unwrap_or(Err(ResolveError::TimedOut)))
        });
    }
    let mut all = lookups.join_all().await;
    all.sort_by_key(|(place, ..)| *place);
    let (mut endpoints, mut missing) = (Vec::new(), Vec::new());
    for (_, server, found) in all {
        match found {
            Ok((ips, ttl)) => {
                ttl_s = ttl_s.min(ttl);
                let Srv { priority, weight, port, host } = server;
                let endpoint =
                    |ip| Endpoint { ip, port, priority, weight, host: Some(host.clone()) };
                endpoints.extend(ips.into_iter().map(endpoint));
            }
            Err(error) => missing.push(Missing { host: server.host, error }),
        }
    }
    endpoints.truncate(MAX_ADDRESSES);
    if !endpoints.is_empty() {
        return Ok((endpoints.into(), missing, ttl_s));
    }
    let mut errors = missing.iter().map(|missing| missing.error);
    let is_gone = errors.clone().any(|error| error == ResolveError::NotFound);
    Err(errors.next().filter(|_| !is_gone).unwrap_or(ResolveError::NotFound))
}

/// Asks for a name, and for what it stands for.
async fn chase(resolver: &Resolver, name: &str, kind: Kind) -> Result<Found, ResolveError> {
    let (mut name, mut steps, mut ttl_s) = (Box::<str>::from(name), 0, u32::MAX);
    loop {
        match ask(resolver, &name, kind).await {
            Reply::Addresses { ips, ttl_s: ttl } => return Ok(Found::Ips(ips, ttl_s.min(ttl))),
            Reply::Servers { servers, ttl_s: ttl } => {
                return Ok(Found::Servers(servers, ttl_s.min(ttl)));
            }
            Reply::Alias { name: next, steps: more, ttl_s: ttl } => {
                (name, steps, ttl_s) = (next, steps + more, ttl_s.min(ttl));
                if steps > MAX_CNAMES {
                    return Err(ResolveError::NotFound);
                }
            }
            Reply::Failed(why) => return Err(why),
            Reply::Foreign | Reply::Truncated => return Err(ResolveError::Server),
        }
    }
}

/// A question that a server was asked.
type Asking = Pin<Box<dyn Future<Output = io::Result<Reply>>>>;

/// Asks one question until a server answers: the servers in turn, each for the resend time. Whoever was
/// asked last may answer as long as the next one has its turn, as in nginx.
async fn ask(resolver: &Resolver, name: &str, kind: Kind) -> Reply {
    let resend = Duration::from_millis(resolver.settings.resend_ms);
    let system = resolver.settings.servers.is_empty().then(thread::system_servers);
    let servers = system.as_deref().unwrap_or(&resolver.settings.servers);
    let start = rand::random::<u32>() as usize;
    let (mut refusals, mut late) = (0, None);
    for turn in 0.. {
        let server = servers[start.wrapping_add(turn) % servers.len()];
        let Some(question) = Question::new(name, kind) else {
            return Reply::Failed(ResolveError::NotFound);
        };
        let until = Instant::now() + resend;
        let mut asked: Option<Asking> =
            Some(Box::pin(async move { once(&question, server).await }));
        loop {
            let answer = tokio::select! {
                answer = answer(&mut asked) => answer,
                Ok(answer) = answer(&mut late) => Ok(answer),
                () = sleep_until(until) => {
                    if asked.is_some() {
                        resolver.count(Counter::TimedOut);
                    }
                    break;
                }
            };
            match answer {
                Ok(Reply::Failed(why)) => {
                    resolver.count(Some(why).into());
                    // DIFFERS(resolver-next-server): when a server fails or refuses, the others are
                    // asked before the name is given up; nginx takes the first answer.
                    refusals += 1;
                    if !is_the_servers_own(why) || refusals >= servers.len() {
                        return Reply::Failed(why);
                    }
                    break;
                }
                Ok(reply) => {
                    resolver.count(Counter::NoError);
                    return reply;
                }
                // Nobody listens there: the next server at once, but each only once in that time.
                Err(_) if !(turn + 1).is_multiple_of(servers.len()) => break,
                Err(_) => {}
            }
        }
        late = asked.or(late);
    }
    Reply::Failed(ResolveError::TimedOut)
}

/// What a server answers; never, if none is asked.
async fn answer(asking: &mut Option<Asking>) -> io::Result<Reply> {
    let Some(asked) = asking else { return pending().await };
    let answer = asked.await;
    *asking = None;
    answer
}

/// Whether an error is about the server that was asked and not about the name.
fn is_the_servers_own(error: ResolveError) -> bool {
    !matches!(error, ResolveError::NotFound | ResolveError::Format)
}

/// Asks one server, over TCP when the answer does not fit into a datagram.
async fn once(question: &Question, server: SocketAddr) -> io::Result<Reply> {
    let query = question.bytes().ok_or(io::ErrorKind::InvalidInput)?;
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut buf = [0; MAX_DATAGRAM];
    for _ in 0..MAX_FOREIGN {
        let len = socket.recv(&mut buf).await?;
        match question.judge(&buf[..len]) {
            Reply::Foreign => {}
            Reply::Truncated => break,
            reply => return Ok(reply),
        }
    }
    over_tcp(question, &query, server).await
}

/// RFC 1035 §4.2.2: each message with its length in front.
async fn over_tcp(question: &Question, query: &[u8], server: SocketAddr) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let mut message = (query.len() as u16).to_be_bytes().to_vec();
    message.extend_from_slice(query);
    stream.write_all(&message).await?;
    let len = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(len)];
    stream.read_exact(&mut answer).await?;
    match question.judge(&answer) {
        // Over TCP nothing else may come; the server is broken.
        Reply::Foreign | Reply::Truncated => Err(io::ErrorKind::InvalidData.into()),
        reply => Ok(reply),
    }
}
