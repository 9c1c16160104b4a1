//! The `$ssl_*` variables, the same for HTTP and stream (`ngx_http_ssl_vars`, `ngx_stream_ssl_vars`).
//!
//! As in nginx a variable whose value is empty is not found, and in the clear none is.
//!
//! Invariant: what a peer sent is passed on as it came, but nothing is made of it.

use forebay_rt::clock;
use forebay_tls::{Certificate, Session, pem};
use forebay_wire::uri;

use crate::var::{Registry, Scope};

/// A scope that may be on a TLS connection.
pub trait TlsScope: Scope {
    /// What the handshake came to; `None` in the clear, and while it lasts.
    fn tls(&self) -> Option<&Session>;
    /// The name that the client asked for, which is known before.
    fn tls_server_name(&self) -> Option<&str>;
    /// What authorities have against a certificate that is good otherwise (`ssl_ocsp`).
    fn tls_refused(&self) -> Option<&str>;
}

/// Declares them.
pub fn register<S: TlsScope>(registry: &mut Registry<S>) {
    of_connection(registry);
    of_client(registry);
    registry.replaceable(|name| name.starts_with("ssl_"));
}

/// Their names that need what a client offered, which is kept only if somebody asks for it.
pub const OFFERS: [&str; 3] = ["ssl_ciphers", "ssl_curves", "ssl_sigalgs"];

fn put(out: &mut Vec<u8>, value: impl AsRef<[u8]>) -> bool {
    let value = value.as_ref();
    out.extend_from_slice(value);
    !value.is_empty()
}

fn of_connection<S: TlsScope>(registry: &mut Registry<S>) {
    registry.builtin("ssl_protocol", |s, out| s.tls().is_some_and(|tls| put(out, tls.protocol())));
    registry.builtin("ssl_cipher", |s, out| s.tls().is_some_and(|tls| put(out, tls.cipher())));
    registry
        .builtin("ssl_ciphers", |s, out| s.tls().is_some_and(|tls| put(out, tls.client_ciphers())));
    registry.builtin("ssl_curve", |s, out| s.tls().is_some_and(|tls| put(out, tls.curve())));
    registry
        .builtin("ssl_curves", |s, out| s.tls().is_some_and(|tls| put(out, tls.client_curves())));
    registry.builtin("ssl_sigalg", |s, out| {
        s.tls().and_then(Session::signature_algorithm).is_some_and(|name| put(out, name))
    });
    registry.builtin("ssl_sigalgs", |s, out| {
        s.tls().is_some_and(|tls| put(out, tls.client_signature_algorithms()))
    });
    registry.builtin("ssl_session_id", |s, out| s.tls().is_some_and(|tls| put(out, tls.id())));
    registry.builtin("ssl_session_reused", |s, out| {
        s.tls().is_some_and(|tls| put(out, if tls.is_reused() { "r" } else { "." }))
    });
    registry.builtin("ssl_early_data", |s, out| {
        s.tls().is_some_and(|tls| tls.in_early_data() && put(out, "1"))
    });
    registry.builtin("ssl_server_name", |s, out| {
        s.tls_server_name().is_some_and(|name| put(out, name))
    });
    registry.builtin("ssl_alpn_protocol", |s, out| {
        s.tls().and_then(Session::alpn).is_some_and(|protocol| put(out, protocol))
    });
    // Encrypted ClientHello (RFC 9849) is not spoken: as in an nginx that was built without it.
    registry.builtin("ssl_ech_status", |_, _| false);
    registry.builtin("ssl_ech_outer_server_name", |_, _| false);
}

fn of_client<S: TlsScope>(registry: &mut Registry<S>) {
    registry.builtin("ssl_client_verify", |s, out| {
        s.tls().is_some_and(|tls| match s.tls_refused() {
            Some(why) => put(out, format!("FAILED:{why}")),
            None => put(out, tls.verdict().to_string()),
        })
    });
    registry.builtin("ssl_client_cert", |s, out| {
        raw(s).is_some_and(|text| {
            // A header field: each further line begins with a tab (`ngx_ssl_get_certificate`).
            put(out, text.trim_end().replace('\n', "\n\t"))
        })
    });
    registry.builtin("ssl_client_raw_cert", |s, out| raw(s).is_some_and(|text| put(out, text)));
    registry.builtin("ssl_client_escaped_cert", |s, out| {
        raw(s).is_some_and(|text| {
            uri::escape(uri::Kind::UriComponent, text.as_bytes(), out);
            true
        })
    });
    registry.builtin("ssl_client_s_dn", |s, out| client(s, out, |c| c.subject()));
    registry.builtin("ssl_client_i_dn", |s, out| client(s, out, |c| c.issuer()));
    registry.builtin("ssl_client_s_dn_legacy", |s, out| client(s, out, |c| c.subject_legacy()));
    registry.builtin("ssl_client_i_dn_legacy", |s, out| client(s, out, |c| c.issuer_legacy()));
    registry.builtin("ssl_client_serial", |s, out| client(s, out, |c| c.serial()));
    registry.builtin("ssl_client_fingerprint", |s, out| client(s, out, |c| c.fingerprint()));
    registry.builtin("ssl_client_v_start", |s, out| client(s, out, |c| c.start()));
    registry.builtin("ssl_client_v_end", |s, out| client(s, out, |c| c.end()));
    registry.builtin("ssl_client_v_remain", |s, out| {
        let now_s = (clock::wall_ms() / 1000) as i64;
        client(s, out, |certificate| certificate.remain_days(now_s).to_string())
    });
    registry.builtin("ssl_client_sigalg", |s, out| {
        s.tls().and_then(Session::peer_signature_algorithm).is_some_and(|name| put(out, name))
    });
}

/// The client's certificate as PEM.
fn raw<S: TlsScope>(scope: &S) -> Option<String> {
    Some(pem(scope.tls()?.peer_certificates().first()?))
}

/// What the client's certificate says.
fn client<S: TlsScope>(
    scope: &S,
    out: &mut Vec<u8>,
    say: impl FnOnce(&Certificate<'_>) -> String,
) -> bool {
    let der = scope.tls().and_then(|tls| tls.peer_certificates().first());
    let certificate = der.and_then(|der| Certificate::parse(der));
    certificate.is_some_and(|certificate| put(out, say(&certificate)))
}
