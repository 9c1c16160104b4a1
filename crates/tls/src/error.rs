//! Why a handshake fails, in the words that nginx's log has for it.
//!
//! nginx prints OpenSSL's error queue; operators and their tools look for these numbers and texts, so
//! what rustls says is put into them, and where rustls knows more, its words follow.
//! Answers `ngx_ssl_error`, `ngx_ssl_connection_error` and `ngx_ssl_handshake`.

use std::{fmt, io};

use rustls::{
    AlertDescription, CertificateError, ContentType, Error, InvalidMessage, PeerIncompatible,
    PeerMisbehaved,
};

/// A handshake that failed after it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// As nginx logs it, up to the word "while".
    pub text: String,
    /// The peer's doing, which nginx logs as `info` for clients; else it is `crit`.
    pub peers_fault: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why [`crate::accept`] gave no stream.
pub enum AcceptError<T> {
    /// What came is not TLS: the bytes that were read, and the connection. nginx answers 400 on it
    /// (497 for `error_page`).
    PlainText(Vec<u8>, T),
    /// The client closed before it sent a byte.
    Silent,
    /// The client closed during the handshake, or the socket failed: "peer closed connection in SSL
    /// handshake", with the error.
    Closed(Option<io::Error>),
    /// The chosen server rejects handshakes: "handshake rejected".
    Rejected,
    /// It failed.
    Failed(Failure),
}

impl<T> fmt::Debug for AcceptError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptError::PlainText(bytes, _) => write!(f, "PlainText({} bytes)", bytes.len()),
            AcceptError::Silent => f.write_str("Silent"),
            AcceptError::Closed(error) => write!(f, "Closed({error:?})"),
            AcceptError::Rejected => f.write_str("Rejected"),
            AcceptError::Failed(failure) => write!(f, "Failed({failure})"),
        }
    }
}

/// Why [`crate::connect`] gave no stream.
#[derive(Debug)]
pub enum ConnectError {
    /// The upstream closed during the handshake, or the socket failed: "peer closed connection in SSL
    /// handshake", with the error.
    Closed(Option<io::Error>),
    /// It failed.
    Failed(Failure),
    /// The certificate does not verify: "upstream SSL certificate verify error: (20:unable to get
    /// local issuer certificate)" or "upstream SSL certificate does not match \"name\"".
    Certificate(String),
}

impl Failure {
    /// Where there is no certificate for the name that a client asks for. What is wrong with it has been
    /// said: to `ngx_ssl_connection_error`, this is the client's doing.
    pub(crate) fn no_certificate() -> Failure {
        let text = "SSL_do_handshake() failed (SSL: error:0A000179:SSL routines::cert cb error)";
        Failure { text: text.to_owned(), peers_fault: true }
    }

    /// Of a client that has no version which is spoken here.
    pub(crate) fn unsupported_version() -> Failure {
        Failure::of(&PeerIncompatible::Tls12NotOffered.into())
    }

    /// Of a client that does not begin with a hello.
    pub(crate) fn unexpected_message() -> Failure {
        Failure::of(&Error::HandshakeNotComplete)
    }

    /// Of a client that announces more of a hello than is taken.
    pub(crate) fn excessive_message() -> Failure {
        Failure::of(&InvalidMessage::HandshakePayloadTooLarge.into())
    }

    /// Of a client's handshake; `tls13`: whether it would have been that version.
    pub(crate) fn of_client(error: &Error, tls13: bool) -> Failure {
        match error {
            // In TLS 1.2 group and signature are parts of the cipher.
            Error::PeerIncompatible(
                PeerIncompatible::NoKxGroupsInCommon | PeerIncompatible::NoSignatureSchemesInCommon,
            ) if !tls13 => Failure::with((193, "no shared cipher", true), error),
            _ => Failure::of(error),
        }
    }

    pub(crate) fn of(error: &Error) -> Failure {
        let reason = match error {
            Error::AlertReceived(alert) => return alert_received(*alert),
            Error::PeerIncompatible(what) => incompatible(what),
            Error::PeerMisbehaved(what) => misbehaved(what),
            Error::InvalidMessage(what) => invalid_message(what),
            Error::InvalidCertificate(what) => certificate(what),
            Error::InappropriateMessage { got_type: ContentType::ApplicationData, .. } => {
                (245, "unexpected record", true)
            }
            Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::HandshakeNotComplete => (244, "unexpected message", true),
            Error::DecryptError => (281, "decryption failed or bad record mac", true),
            Error::PeerSentOversizedRecord => (150, "encrypted length too long", true),
            Error::NoApplicationProtocol => (235, "no application protocol", true),
            Error::NoCertificatesPresented => (199, "peer did not return a certificate", true),
            _ => (68, "internal error", false),
        };
        Failure::with(reason, error)
    }

    /// What rustls knows beyond OpenSSL's reason follows it.
    fn with((code, reason, fault): Reason, error: &Error) -> Failure {
        let detail = error.to_string();
        let text = format!(
            "SSL_do_handshake() failed (SSL: error:{:08X}:SSL routines::{reason}:{detail})",
            0x0A00_0000 + code
        );
        Failure { text, peers_fault: fault }
    }
}

/// A number of OpenSSL's `sslerr.h`, its text, and whether it is the peer's doing.
type Reason = (u32, &'static str, bool);

fn incompatible(what: &PeerIncompatible) -> Reason {
    use PeerIncompatible as P;
    match what {
        P::NoCipherSuitesInCommon => (193, "no shared cipher", true),
        P::NoKxGroupsInCommon | P::NamedGroupsExtensionRequired => {
            (101, "no suitable key share", true)
        }
        P::NoSignatureSchemesInCommon
        | P::NoCertificateRequestSignatureSchemesInCommon
        | P::SignatureAlgorithmsExtensionRequired => (118, "no suitable signature algorithm", true),
        P::KeyShareExtensionRequired => (101, "no suitable key share", true),
        P::ServerDoesNotSupportTls12Or13
        | P::ServerTlsVersionIsDisabledByOurConfig
        | P::SupportedVersionsExtensionRequired
        | P::Tls12NotOffered
        | P::Tls12NotOfferedOrEnabled => (258, "unsupported protocol", true),
        P::NullCompressionRequired => (187, "no compression specified", true),
        P::ExtendedMasterSecretExtensionRequired => (104, "inconsistent extms", true),
        _ => (110, "bad extension", true),
    }
}

fn misbehaved(what: &PeerMisbehaved) -> Reason {
    use PeerMisbehaved as P;
    match what {
        P::IncorrectBinder => (253, "binder does not verify", true),
        P::InvalidKeyShare | P::WrongGroupForKeyShare | P::OfferedDuplicateKeyShares => {
            (108, "bad key share", true)
        }
        P::AttemptedDowngradeToTls12WhenTls13IsSupported => (373, "inappropriate fallback", true),
        P::TooManyKeyUpdateRequests => (132, "too many key updates", true),
        P::TooManyWarningAlertsReceived => (409, "too many warn alerts", true),
        P::TooManyEmptyFragments => (298, "record too small", true),
        P::TooMuchEarlyDataReceived => (164, "too much early data", true),
        P::SelectedUnofferedCipherSuite => (248, "unknown cipher returned", true),
        P::SignedHandshakeWithUnadvertisedSigScheme | P::SignedKxWithWrongAlgorithm => {
            (370, "wrong signature type", true)
        }
        _ => (110, "bad extension", true),
    }
}

fn invalid_message(what: &InvalidMessage) -> Reason {
    use InvalidMessage as I;
    match what {
        I::InvalidContentType | I::UnknownProtocolVersion => (267, "wrong version number", true),
        I::MessageTooLarge => (198, "packet length too long", true),
        I::HandshakePayloadTooLarge | I::CertificatePayloadTooLarge => {
            (152, "excessive message size", true)
        }
        I::UnexpectedMessage(_) => (244, "unexpected message", true),
        I::InvalidCcs => (260, "bad change cipher spec", true),
        I::DuplicateExtension(_) => (110, "bad extension", true),
        _ => (159, "length mismatch", true),
    }
}

fn certificate(what: &CertificateError) -> Reason {
    match what {
        CertificateError::BadSignature => (123, "bad signature", true),
        _ => (134, "certificate verify failed", true),
    }
}

fn alert_received(alert: AlertDescription) -> Failure {
    let number = u8::from(alert);
    let text = format!("SSL_do_handshake() failed ({})", RecordError::alert(number));
    Failure { text, peers_fault: true }
}

/// What was wrong with a record, or what an alert says, after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordError {
    /// OpenSSL's reason: its number and text.
    code: u32,
    name: &'static str,
}

impl RecordError {
    pub(crate) const fn new(code: u32, name: &'static str) -> RecordError {
        RecordError { code, name }
    }

    /// An alert that came: OpenSSL's reasons for them are 1000 and the alert's number.
    pub(crate) fn alert(number: u8) -> RecordError {
        RecordError { code: 1000 + u32::from(number), name: alert_name(number) }
    }

    /// The one for which reading failed.
    pub fn of(error: &io::Error) -> Option<RecordError> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl std::error::Error for RecordError {}

impl fmt::Display for RecordError {
    /// As it stands behind `SSL_read() failed`, in parentheses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecordError { code, name } = self;
        write!(f, "SSL: error:{:08X}:SSL routines::{name}", 0x0A00_0000 + code)?;
        match code.checked_sub(1000) {
            Some(number @ 0..256) => write!(f, ":SSL alert number {number}"),
            _ => Ok(()),
        }
    }
}

fn alert_name(number: u8) -> &'static str {
    match number {
        10 => "sslv3 alert unexpected message",
        20 => "sslv3 alert bad record mac",
        22 => "tlsv1 alert record overflow",
        30 => "sslv3 alert decompression failure",
        40 => "sslv3 alert handshake failure",
        41 => "sslv3 alert no certificate",
        42 => "sslv3 alert bad certificate",
        43 => "sslv3 alert unsupported certificate",
        44 => "sslv3 alert certificate revoked",
        45 => "sslv3 alert certificate expired",
        46 => "sslv3 alert certificate unknown",
        47 => "sslv3 alert illegal parameter",
        48 => "tlsv1 alert unknown ca",
        49 => "tlsv1 alert access denied",
        50 => "tlsv1 alert decode error",
        51 => "tlsv1 alert decrypt error",
        70 => "tlsv1 alert protocol version",
        71 => "tlsv1 alert insufficient security",
        80 => "tlsv1 alert internal error",
        86 => "tlsv1 alert inappropriate fallback",
        90 => "tlsv1 alert user cancelled",
        100 => "tlsv1 alert no renegotiation",
        109 => "tlsv13 alert missing extension",
        110 => "tlsv1 unsupported extension",
        112 => "tlsv1 unrecognized name",
        113 => "tlsv1 bad certificate status response",
        116 => "tlsv13 alert certificate required",
        120 => "tlsv1 alert no application protocol",
        _ => "unknown alert type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_read_as_in_nginxs_log() {
        let cases = [
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "SSL_do_handshake() failed (SSL: error:0A000418:SSL routines::tlsv1 alert unknown \
                 ca:SSL alert number 48)",
            ),
            (
                PeerIncompatible::NoCipherSuitesInCommon.into(),
                "SSL_do_handshake() failed (SSL: error:0A0000C1:SSL routines::no shared cipher:",
            ),
            (
                PeerIncompatible::Tls12NotOfferedOrEnabled.into(),
                "SSL_do_handshake() failed (SSL: error:0A000102:SSL routines::unsupported protocol:",
            ),
            (
                PeerIncompatible::NoSignatureSchemesInCommon.into(),
                "SSL_do_handshake() failed (SSL: error:0A000076:SSL routines::no suitable \
                 signature algorithm:",
            ),
            (
                InvalidMessage::InvalidContentType.into(),
                "SSL_do_handshake() failed (SSL: error:0A00010B:SSL routines::wrong version number:",
            ),
        ];
        for (error, want) in cases {
            let failure = Failure::of(&error);
            assert!(failure.text.starts_with(want), "{failure}");
            assert!(failure.peers_fault);
        }
        assert!(!Failure::of(&Error::FailedToGetRandomBytes).peers_fault);
    }
}
