//! `return code [text]`, `return code URL`, `return URL`.
//!
//! Hot path: a fixed text is shared, not copied.

use bytes::Bytes;
use forebay_conf::{Arg, Error, Node, value};
use forebay_session::var::Template;

use crate::{files, handler::Flow, module::Cx, request::Request};

/// A `return`.
pub(super) struct Return {
    status: u16,
    text: Option<Text>,
}

enum Text {
    Fixed(Bytes),
    Computed(Template),
}

/// Beginnings that make a parameter a URL for a redirect.
pub(super) const URLS: [&[u8]; 3] = [b"http://", b"https://", b"$scheme"];

impl Return {
    /// Reads the directive.
    ///
    /// Errors: nginx's `invalid return code "x"`.
    pub(super) fn parse(node: &Node, cx: &mut Cx<'_, '_>) -> Result<Return, Error> {
        let code = node.arg(0)?;
        let is_url = URLS.iter().any(|start| code.value.starts_with(start));
        let (status, text) = match value::number(&code.value) {
            Some(status @ 0..=999) => (status as u16, node.args.get(1)),
            None if is_url && node.args.len() == 1 => (302, Some(code)),
            _ => {
                let text = format!("invalid return code \"{}\"", code.lossy());
                return Err(Error::emerg(code.span, text));
            }
        };
        let text = text.map(|arg| Text::parse(arg, cx)).transpose()?;
        Ok(Return { status, text })
    }

    /// Answers (`ngx_http_script_return_code`, `ngx_http_send_response`).
    pub(super) fn give<'a>(&self, r: &mut Request) -> Flow<'a> {
        // Before the text: it may tell the `$status`.
        r.response.status = self.status;
        let body = match &self.text {
            None if self.status >= 400 => return Flow::Deny(self.status),
            None => Bytes::new(),
            // An empty text is none: an error shows its page.
            Some(Text::Fixed(text)) if text.is_empty() && self.status >= 400 => {
                return Flow::Deny(self.status);
            }
            Some(Text::Fixed(text)) => text.clone(),
            Some(Text::Computed(template)) => template.value(r).into(),
        };
        if let 301 | 302 | 303 | 307 | 308 = self.status {
            r.response.location = Some(body);
            // ngx_http_send_response throws the body away before it knows of a redirect.
            r.asks_for_body.get_or_insert(true);
            r.discard_body();
            return Flow::Deny(self.status);
        }
        r.respond(self.status, files::content_type(r), body);
        if r.response.content_type.as_ref().is_some_and(Bytes::is_empty) {
            // `default_type ""` means none.
            r.response.content_type = None;
        }
        Flow::Done
    }
}

impl Text {
    fn parse(arg: &Arg, cx: &mut Cx<'_, '_>) -> Result<Text, Error> {
        let template = Template::parse(&arg.value, arg.span, &mut cx.registry)?;
        Ok(match template.as_text() {
            Some(text) => Text::Fixed(Bytes::copy_from_slice(text)),
            None => Text::Computed(template),
        })
    }
}
