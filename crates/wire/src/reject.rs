//! What a peer did wrong. Answers the texts of ngx_http_request.c and its status codes.
//!
//! *Invariant:* `Copy`, no strings: the offending bytes stay in the connection's buffer, where
//! the logger finds them.

/// Why a peer's bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reject {
    /// The method has a byte outside `A-Z`, `_` and `-`.
    InvalidMethod,
    /// The request line or its URI is malformed.
    InvalidRequest,
    /// The version is HTTP/2 or above.
    InvalidVersion,
    /// HTTP/0.9 knows GET only.
    Invalid09Method,
    /// The request line does not fit in one large buffer.
    UriTooLong,
    /// One header line does not fit, or the large buffers are used up in its midst.
    HeaderTooLong,
    /// The large buffers are used up.
    RequestTooLarge,
    /// More header lines than `max_headers`.
    TooManyHeaders,
    /// A malformed header line.
    InvalidHeader,
    /// A second line of a header that may occur once.
    DuplicateHeader,
    /// A second `Host`.
    DuplicateHost,
    /// `Host` is not a host with an optional port.
    InvalidHost,
    /// The authority of an absolute-form target is not a host with an optional port.
    InvalidTargetHost,
    /// HTTP/1.1 without `Host`.
    NoHost,
    /// `Content-Length` is not a decimal number below 2^63.
    ContentLength,
    /// HTTP/1.0 with `Transfer-Encoding`.
    TransferEncodingIn10,
    /// Both `Content-Length` and `Transfer-Encoding`.
    LengthAndChunked,
    /// A transfer coding other than `chunked`.
    UnknownTransferEncoding,
    /// CONNECT: no tunnel is configured.
    Connect,
    /// CONNECT with a length or a coding.
    ConnectContent,
    /// TRACE is never answered.
    Trace,
    /// A malformed chunked body, or one whose extensions or trailers exceed their bound.
    InvalidChunked,
    /// The body is larger than `client_max_body_size`.
    BodyTooLarge,
    /// The method needs a `Content-Length`.
    LengthRequired,
    /// A malformed or oversized PROXY protocol header.
    ProxyProtocol,
}

impl Reject {
    /// The status to answer. 494 is nginx's own (shown to the client as 400); nothing is answered
    /// to a broken PROXY header, its connection is closed.
    pub fn status(self) -> u16 {
        match self {
            Reject::Connect | Reject::Trace => 405,
            Reject::LengthRequired => 411,
            Reject::BodyTooLarge => 413,
            Reject::UriTooLong => 414,
            // NGX_HTTP_REQUEST_HEADER_TOO_LARGE, also for max_headers (since 1.29.8).
            Reject::HeaderTooLong | Reject::RequestTooLarge | Reject::TooManyHeaders => 494,
            Reject::UnknownTransferEncoding => 501,
            Reject::InvalidVersion => 505,
            _ => 400,
        }
    }

    /// nginx's text for the error log, up to the quoted data or ` while`.
    pub fn reason(self) -> &'static str {
        match self {
            Reject::InvalidMethod => "client sent invalid method",
            Reject::InvalidRequest => "client sent invalid request",
            Reject::InvalidVersion => "client sent invalid version",
            Reject::Invalid09Method => "client sent invalid method in HTTP/0.9 request",
            Reject::UriTooLong => "client sent too long URI",
            Reject::HeaderTooLong => "client sent too long header line",
            Reject::RequestTooLarge => "client sent too large request",
            Reject::TooManyHeaders => "client sent too many header lines",
            Reject::InvalidHeader => "client sent invalid header line",
            Reject::DuplicateHeader => "client sent duplicate header line",
            Reject::DuplicateHost => "client sent duplicate host header",
            Reject::InvalidHost => "client sent invalid host header",
            Reject::InvalidTargetHost => "client sent invalid host in request line",
            Reject::NoHost => "client sent HTTP/1.1 request without \"Host\" header",
            Reject::ContentLength => "client sent invalid \"Content-Length\" header",
            Reject::TransferEncodingIn10 => {
                "client sent HTTP/1.0 request with \"Transfer-Encoding\" header"
            }
            Reject::LengthAndChunked => {
                "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time"
            }
            Reject::UnknownTransferEncoding => "client sent unknown \"Transfer-Encoding\"",
            Reject::Connect => "client sent CONNECT method",
            Reject::ConnectContent => "client sent CONNECT with a body",
            Reject::Trace => "client sent TRACE method",
            Reject::InvalidChunked => "client sent invalid chunked body",
            Reject::BodyTooLarge => "client intended to send too large body",
            Reject::LengthRequired => "client sent method without \"Content-Length\" header",
            Reject::ProxyProtocol => "broken header",
        }
    }

    /// Whether the fault is in the request line; else it is in the fields or the body.
    pub fn in_request_line(self) -> bool {
        matches!(
            self,
            Reject::InvalidMethod
                | Reject::InvalidRequest
                | Reject::InvalidVersion
                | Reject::Invalid09Method
                | Reject::UriTooLong
                | Reject::InvalidTargetHost
        )
    }
}
