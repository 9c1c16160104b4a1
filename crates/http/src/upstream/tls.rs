//! TLS to upstreams: the directives, under the prefix of each protocol, and the handshake
//! (`ngx_http_upstream_ssl_init_connection`, `ngx_http_upstream_ssl_handshake`).
//!
//! Invariant: not a byte of a request is sent before the upstream is who it should be.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use forebay_conf::{Arg, Error, Node};
use forebay_rt::transport::Socket;
use forebay_session::{
    log::{Severity, Shown},
    ssl::{
        client::{Client as Secure, Identity, Settings},
        server::Context,
    },
    var::Template,
};
use forebay_tls::ConnectError;

use super::{
    Protocol,
    arrival::{Failure, GivenUp, given_up},
    conn::Stream,
    exchange::Exchange,
    settings::Next,
};
use crate::{
    client::Client,
    core,
    module::{Builder, Cx},
    request::Request,
};

/// What locations with the same settings share while the configuration loads.
#[derive(Default)]
struct Built(Vec<Shared>);

struct Shared {
    settings: Settings,
    alpn: Option<&'static [u8]>,
    built: Arc<Secure>,
}

/// Builds what a location speaks TLS with; `prefix`: `proxy`, `grpc` …; `alpn`: what it offers.
pub fn build(
    settings: &Settings,
    prefix: &str,
    alpn: Option<&'static [u8]>,
    b: &mut Builder<'_, '_, '_>,
) -> Result<Arc<Secure>, Error> {
    let known = &b.cx.shared::<Built>().0;
    let is_it = |known: &&Shared| known.settings == *settings && known.alpn == alpn;
    if let Some(known) = known.iter().find(is_it) {
        return Ok(known.built.clone());
    }
    let span = b.level::<core::Conf>(b.location.id).map(|conf| conf.own.span);
    let mut context = Context {
        loader: &mut *b.cx.loader,
        registry: &mut b.cx.registry,
        zones: &mut b.cx.zones,
        span: span.unwrap_or_default(),
    };
    let built = Arc::new(Secure::build(settings, prefix, alpn, &mut context)?);
    let shared = Shared { settings: settings.clone(), alpn, built: built.clone() };
    b.cx.shared::<Built>().0.push(shared);
    Ok(built)
}

const DOING: &str = "SSL handshaking to upstream";

impl<P: Protocol> Exchange<'_, P> {
    /// Shakes hands on a connection that was just made; the time of connecting counts on.
    pub(super) async fn shake_hands(
        &self,
        r: &Request,
        client: &mut dyn Client,
        socket: Socket,
        (tls, identity): (&Secure, &Identity),
    ) -> Result<Stream, Failure> {
        let config = tls.config(identity).map_err(|why| {
            r.log_error(Severity::Error, format_args!("{why} while connecting to upstream"));
            Failure::Final(500)
        })?;
        let shaken = {
            let mut connect = pin!(forebay_tls::connect(socket, &config, &identity.name));
            poll_fn(|cx| match connect.as_mut().poll(cx) {
                Poll::Ready(shaken) => Poll::Ready(Ok(shaken)),
                Poll::Pending => self.poll_given_up(client, cx).map(Err),
            })
            .await
        };
        match shaken {
            Ok(Ok((stream, session))) => {
                if let Some(wanted) = self.protocol.alpn()
                    && session.alpn() != Some(wanted)
                {
                    // nginx goes on, too: a server that knows no ALPN may know HTTP/2.
                    let name = Shown(wanted);
                    let text =
                        format_args!("upstream did not select \"{name}\" by ALPN while {DOING}");
                    r.log_error(Severity::Info, text);
                }
                Ok(Stream::Tls(Box::new(stream)))
            }
            Ok(Err(error)) => {
                complain(r, &error);
                Err(Failure::Next(Next::ERROR))
            }
            Err(why @ (GivenUp::ClientGone(_) | GivenUp::TimedOut)) => Err(given_up(r, why, DOING)),
        }
    }
}

/// Tells why there is no connection.
fn complain(r: &Request, error: &ConnectError) {
    let (severity, text) = match error {
        ConnectError::Certificate(text) => (Severity::Error, text.clone()),
        ConnectError::Closed(cause) => {
            let text = "peer closed connection in SSL handshake";
            let cause = cause.as_ref().filter(|cause| cause.raw_os_error().is_some());
            (
                Severity::Error,
                match cause {
                    Some(cause) => format!("{text} ({})", forebay_conf::error::errno_text(cause)),
                    None => text.to_owned(),
                },
            )
        }
        // nginx's NGX_ERROR_ERR: what the other side did is an error, anything else critical.
        ConnectError::Failed(failure) => (
            if failure.peers_fault { Severity::Error } else { Severity::Crit },
            failure.text.clone(),
        ),
    };
    r.log_error(severity, format_args!("{text} while {DOING}"));
}

/// A directive whose value may hold variables, which must exist wherever it stands.
pub fn set_template(slot: &mut Option<Arg>, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let arg = node.arg(0)?;
    Template::parse(&arg.value, arg.span, &mut cx.registry)?;
    Level::set_arg(slot, node)
}

/// The table of the directives about TLS and all that protocols of application servers share, for a
/// prefix; further rows may follow. The module's settings are [`super::settings::Shared`].
#[macro_export]
macro_rules! upstream_tls_directives {
    ($p:literal; $($more:expr),* $(,)?) => {
        $crate::upstream_directives![
            $p;
            $crate::module::set(
                concat!($p, "_ssl_certificate"),
                &["file"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "The certificate to show to upstreams.",
                |c, n, cx| $crate::upstream::tls::set_template(&mut c.shared().tls.certificate, n, cx),
            ),
            $crate::module::set(
                concat!($p, "_ssl_certificate_cache"),
                &["off", "max=N [inactive=time] [valid=time]"],
                "off",
                $crate::module::ANY,
                forebay_conf::Arity::between(1, 3),
                "Keeps certificates and keys whose names hold variables.",
                |c, n, _| {
                    forebay_session::ssl::settings::certificate_cache(
                        &mut c.shared().tls.certificate_cache,
                        n,
                    )
                },
            ),
            $crate::module::set(
                concat!($p, "_ssl_certificate_key"),
                &["file"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "The key of that certificate.",
                |c, n, cx| {
                    $crate::upstream::tls::set_template(&mut c.shared().tls.certificate_key, n, cx)
                },
            ),
            $crate::module::set(
                concat!($p, "_ssl_ciphers"),
                &["ciphers"],
                "DEFAULT",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "The ciphers of TLS 1.2, as OpenSSL writes them.",
                |c, n, _| $crate::upstream::tls::Level::set_arg(&mut c.shared().tls.ciphers, n),
            ),
            $crate::module::set(
                concat!($p, "_ssl_conf_command"),
                &["name value"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::TWO,
                "A configuration command of OpenSSL: those that have a meaning here.",
                |c, n, _| c.shared().tls.conf_command(n),
            ),
            $crate::module::set(
                concat!($p, "_ssl_crl"),
                &["file"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "Revoked certificates of upstreams.",
                |c, n, _| $crate::upstream::tls::Level::set_arg(&mut c.shared().tls.crl, n),
            ),
            $crate::module::set(
                concat!($p, "_ssl_name"),
                &["name"],
                "$proxy_host",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "The name that the certificate of an upstream must be for, and that is sent to it.",
                |c, n, cx| $crate::upstream::tls::set_template(&mut c.shared().tls.name, n, cx),
            ),
            $crate::module::set(
                concat!($p, "_ssl_password_file"),
                &["file"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "Passwords of encrypted keys, one a line; each is tried.",
                |c, n, cx| {
                    forebay_session::ssl::settings::password_file(
                        &mut c.shared().tls.passwords,
                        n,
                        cx.loader,
                    )
                },
            ),
            $crate::module::set(
                concat!($p, "_ssl_protocols"),
                &["[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]"],
                "TLSv1.2 TLSv1.3",
                $crate::module::ANY,
                forebay_conf::Arity::SOME,
                "The versions that are spoken to upstreams: 1.2 and 1.3 are all there are.",
                |c, n, cx| c.shared().tls.protocols(n, cx.loader),
            ),
            $crate::module::set(
                concat!($p, "_ssl_server_name"),
                &["on | off"],
                "off",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether upstreams are told the name that is asked for (SNI).",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().tls.server_name, n),
            ),
            $crate::module::set(
                concat!($p, "_ssl_session_reuse"),
                &["on | off"],
                "on",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether sessions with upstreams are resumed.",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().tls.session_reuse, n),
            ),
            $crate::module::set(
                concat!($p, "_ssl_trusted_certificate"),
                &["file"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "Who signs the certificates of upstreams.",
                |c, n, _| {
                    $crate::upstream::tls::Level::set_arg(
                        &mut c.shared().tls.trusted_certificate,
                        n,
                    )
                },
            ),
            $crate::module::set(
                concat!($p, "_ssl_verify"),
                &["on | off"],
                "off",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether the certificates of upstreams are verified.",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().tls.verify, n),
            ),
            $crate::module::set(
                concat!($p, "_ssl_verify_depth"),
                &["number"],
                "1",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "How many authorities may stand between a certificate and one that is trusted.",
                |c, n, _| forebay_conf::value::set_number(&mut c.shared().tls.verify_depth, n),
            ),
            $($more,)*
        ]
    };
}

/// The settings of a level, under a name for the table.
pub use forebay_session::ssl::client::Settings as Level;

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn variables_must_exist_where_nothing_is_passed_on_too() {
        for directive in ["proxy_ssl_name", "proxy_ssl_certificate", "proxy_ssl_certificate_key"] {
            let said = testing::conf_error(&format!("{directive} $nothing;"));
            assert!(said.contains("unknown \"nothing\" variable"), "{directive}: {said}");
        }
    }
}
