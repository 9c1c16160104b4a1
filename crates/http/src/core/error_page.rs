//! `error_page code … [=[response]] uri`.

use forebay_conf::{Error, Node, value};
use forebay_session::var::Template;

use crate::module::Cx;

/// Which status an error page is sent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The error's own.
    Keep,
    /// `=code`.
    Is(u16),
    /// `=`: that of whatever serves the page.
    OfPage,
}

/// One `error_page` directive.
#[derive(Debug)]
pub struct ErrorPage {
    /// The codes it is for, and the status that the client sees for each.
    codes: Vec<(u16, Status)>,
    /// The page: a path, a `@named` location, or a URL to redirect to.
    pub uri: Template,
    /// The query of a page that is a fixed path.
    pub args: Option<Vec<u8>>,
}

impl ErrorPage {
    /// The status that the client sees for an error; `None`: the page is not for it.
    pub fn status_for(&self, error: u16) -> Option<Status> {
        self.codes.iter().find(|(code, _)| *code == error).map(|(_, status)| *status)
    }

    /// Reads the directive.
    ///
    /// Errors: nginx's `invalid value "x"` and `value "x" must be between 300 and 599`.
    pub fn parse(node: &Node, cx: &mut Cx<'_, '_>) -> Result<ErrorPage, Error> {
        let (uri, rest) = node.args.split_last().expect("arity was checked");
        let mut status = Status::Keep;
        let mut codes = rest;
        if let Some((last, before)) = rest.split_last()
            && let Some(response) = last.value.strip_prefix(b"=")
        {
            status = match response {
                b"" => Status::OfPage,
                text => Status::Is(number(text).ok_or_else(|| invalid(last))?),
            };
            codes = before;
        }
        if let ([], Some(response)) = (codes, rest.last()) {
            return Err(invalid(response));
        }
        let mut list = Vec::with_capacity(codes.len());
        for arg in codes {
            let code = number(&arg.value).ok_or_else(|| invalid(arg))?;
            if code == 499 || !(300..=599).contains(&code) {
                if code == 499 {
                    return Err(invalid(arg));
                }
                let text = format!("value \"{code}\" must be between 300 and 599");
                return Err(Error::emerg(arg.span, text));
            }
            // nginx: 494, 495, 496 and 497 stand for pages of 400 unless told otherwise.
            let own = status == Status::Keep && matches!(code, 494..=497);
            list.push((code, if own { Status::Is(400) } else { status }));
        }
        // A fixed path may carry a query, which must not be taken for part of the file's name.
        let (path, args) = match uri.value.iter().position(|b| *b == b'?') {
            Some(at) if uri.value.first() == Some(&b'/') && !uri.value.contains(&b'$') => {
                (&uri.value[..at], Some(uri.value[at + 1..].to_vec()))
            }
            _ => (&uri.value[..], None),
        };
        let uri = Template::parse(path, uri.span, &mut cx.registry)?;
        Ok(ErrorPage { codes: list, uri, args })
    }
}

fn number(text: &[u8]) -> Option<u16> {
    value::number(text)?.try_into().ok()
}

fn invalid(arg: &forebay_conf::Arg) -> Error {
    let shown = String::from_utf8_lossy(&arg.value);
    Error::emerg(arg.span, format!("invalid value \"{shown}\""))
}
