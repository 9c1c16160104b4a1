//! HTTP/1: heads, framing, chunked bodies, and what is written back.
//! Answers ngx_http_parse.c and the parsing half of ngx_http_request.c.

pub mod chunked;
pub mod encode;
pub mod field;
pub mod framing;
pub mod head;
pub mod host;
pub mod method;
pub mod nominees;
pub(crate) mod request_line;
pub mod response;
pub mod response_field;

pub use field::FieldId;
pub use framing::{
    BodyLength, Framing, ResponseBody, ResponseFraming, Sent, check_connect, framing, named_host,
    response_framing,
};
pub use head::{Field, Head, Options, Parser, Progress, UriFlags, Version};
pub use host::validate_host;
pub use method::{Method, is_token};
pub use nominees::Nominees;
pub use response::{BadResponse, ResponseField, ResponseHead, ResponseParser};
pub use response_field::ResponseFieldId;
