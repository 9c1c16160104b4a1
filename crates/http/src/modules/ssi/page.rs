//! A page on its way: its text is sent, its commands are carried out (`ngx_http_ssi_body_filter` and
//! the handlers of the commands).
//!
//! Invariant: nothing of the page is looked at twice, and nothing of it is kept but its blocks.

use std::{
    cell::Cell,
    mem,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_rt::task;
use forebay_session::log::{Severity, Shown};
use forebay_wire::{
    escape::{Kind, escape, escape_html},
    uri::parse_unsafe,
};

use super::{
    parse::{Command, Found, MAX_PARAMS, Parser},
    shared::{Shared, TooMuch},
    text::{Failed, Scope},
};
use crate::{
    body::{Body, Chunk, Fault, Piece, Reader, Source},
    request::Request,
    subrequest::{self, Stub, Subrequest},
};

/// What an `if` has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Conditional {
    No,
    /// Behind `if` or `elif`.
    If,
    /// Behind `else`.
    Else,
}

/// How `echo` writes values.
#[derive(Clone, Copy)]
enum Encoding {
    None,
    Url,
    Entity,
}

/// What is being waited for before the page goes on.
enum Wait {
    No,
    /// An include that was handed out (`wait="yes"`).
    Done(Rc<Cell<bool>>),
    /// An include whose answer becomes a variable (`set="name"`).
    Value(Box<Collect>),
}

/// An answer that becomes a variable.
///
/// DIFFERS(ssi-set-nested): nginx closes the connection where it has includes of its own.
struct Collect {
    name: Vec<u8>,
    child: Subrequest,
    body: Option<Reader>,
    value: Vec<u8>,
    max: usize,
    /// A redirect or an error leaves the variable as it is (`ngx_http_ssi_set_variable`).
    failed: bool,
}

/// What a command costs at least: a page of many lets others have their turn.
const COMMAND_WORK: usize = 4 << 10;

/// From that size on text is not copied.
const LARGE: usize = 4 << 10;

/// The page.
pub struct Page {
    /// A copy of the request, for variables, subrequests and the log.
    request: Box<Request>,
    /// What sends it, for the log.
    doing: &'static str,
    body: Reader,
    input: Bytes,
    parser: Parser,
    wait: Wait,
    /// What follows what was handed out last.
    held: Option<Chunk>,
    silent_errors: bool,
    conditional: Conditional,
    /// Whether the text is sent: not in branches that were not chosen, nor in blocks.
    output: bool,
    /// Whether a branch of the `if` has been chosen.
    chosen: bool,
    in_block: bool,
    encoding: Encoding,
    time_format: Vec<u8>,
    error_message: Bytes,
}

/// What a command leaves in the place where it stood.
type Left = Result<Option<Chunk>, Failed>;

/// A command: its parameters, and what else there is to it.
struct Spec {
    name: &'static str,
    /// Names, and whether they must be there.
    params: &'static [(&'static str, bool)],
    /// Behind what it may stand.
    conditional: Conditional,
    /// Whether it ends a block.
    block: bool,
    run: fn(&mut Page, &Params<'_>) -> Left,
}

/// The values of a command's parameters, in the order of its spec.
type Params<'a> = [Option<&'a [u8]>];

const COMMANDS: [Spec; 10] = {
    const fn spec(
        name: &'static str,
        params: &'static [(&'static str, bool)],
        run: fn(&mut Page, &Params<'_>) -> Left,
    ) -> Spec {
        Spec { name, params, conditional: Conditional::No, block: false, run }
    }
    const EXPR: &[(&str, bool)] = &[("expr", true)];
    const INCLUDE: &[(&str, bool)] =
        &[("virtual", false), ("file", false), ("wait", false), ("set", false), ("stub", false)];
    [
        spec("include", INCLUDE, Page::include),
        spec("echo", &[("var", true), ("default", false), ("encoding", false)], Page::echo),
        spec("config", &[("timefmt", false), ("errmsg", false)], Page::config),
        spec("set", &[("var", true), ("value", true)], Page::set),
        spec("if", EXPR, Page::begin_if),
        Spec { conditional: Conditional::If, ..spec("elif", EXPR, Page::elif) },
        Spec { conditional: Conditional::If, ..spec("else", &[], Page::otherwise) },
        Spec { conditional: Conditional::Else, ..spec("endif", &[], Page::endif) },
        spec("block", &[("name", true)], Page::begin_block),
        Spec { block: true, ..spec("endblock", &[], Page::end_block) },
    ]
};

fn lossy(text: &[u8]) -> String {
    Shown(text).to_string()
}

impl Page {
    /// The body of a response, as a page.
    pub fn new(r: &Request, body: Body, value_length: usize, silent_errors: bool) -> Page {
        Page {
            request: Box::new(r.twin()),
            doing: r.main.doing.get(),
            body: Reader::new(body, r.location().core.output_buffers.1),
            input: Bytes::new(),
            parser: Parser::new(value_length),
            wait: Wait::No,
            held: None,
            silent_errors,
            conditional: Conditional::No,
            output: true,
            chosen: false,
            in_block: false,
            encoding: Encoding::Entity,
            time_format: b"%A, %d-%b-%Y %H:%M:%S %Z".to_vec(),
            error_message: Bytes::from_static(
                b"[an error occurred while processing the directive]",
            ),
        }
    }

    fn fail(&self, text: std::fmt::Arguments<'_>) -> Failed {
        self.scope().fail(text)
    }

    fn scope(&self) -> Scope<'_> {
        Scope { r: &self.request, doing: self.doing, time_format: &self.time_format }
    }

    /// Changes what the pages of the request have in common.
    fn keep(&self, f: impl FnOnce(&mut Shared) -> Result<(), TooMuch>) -> Result<(), Failed> {
        self.request.main.context(f).map_err(|TooMuch| {
            self.fail(format_args!("too much to keep for the SSI commands of one request"))
        })
    }

    fn text(&mut self, text: Bytes) -> Left {
        if self.output {
            return Ok(Some(Chunk::Bytes(text)));
        }
        if self.in_block {
            self.keep(|shared| shared.extend_block(&text))?;
        }
        Ok(None)
    }

    fn run(&mut self, command: &Command) -> Left {
        let Some(spec) = COMMANDS.iter().find(|spec| spec.name.as_bytes() == command.name) else {
            if !self.output {
                return Ok(None);
            }
            let name = lossy(&command.name);
            return Err(self.fail(format_args!("invalid SSI command: \"{name}\"")));
        };
        if !self.output && !spec.block {
            if self.in_block {
                let mut text = Vec::new();
                command.write(&mut text);
                self.keep(|shared| shared.extend_block(&text))?;
                return Ok(None);
            }
            if spec.conditional == Conditional::No {
                return Ok(None);
            }
        }
        let behind = self.conditional;
        if spec.conditional != Conditional::No
            && (behind == Conditional::No || behind > spec.conditional)
        {
            let name = lossy(&command.name);
            return Err(self.fail(format_args!("invalid context of SSI command: \"{name}\"")));
        }
        let params = self.params(spec, command)?;
        (spec.run)(self, &params[..spec.params.len()])
    }

    fn params<'c>(
        &self,
        spec: &Spec,
        command: &'c Command,
    ) -> Result<[Option<&'c [u8]>; 5], Failed> {
        let name = spec.name;
        if command.params.len() > MAX_PARAMS {
            return Err(self.fail(format_args!("too many SSI command parameters: \"{name}\"")));
        }
        let mut values = [None; 5];
        for (key, value) in &command.params {
            let at = spec.params.iter().position(|(known, _)| known.as_bytes() == key);
            let Some(at) = at else {
                let key = lossy(key);
                let text =
                    format_args!("invalid parameter name: \"{key}\" in \"{name}\" SSI command");
                return Err(self.fail(text));
            };
            if values[at].replace(&value[..]).is_some() {
                let key = lossy(key);
                let text = format_args!("duplicate \"{key}\" parameter in \"{name}\" SSI command");
                return Err(self.fail(text));
            }
        }
        for ((key, mandatory), value) in spec.params.iter().zip(&values) {
            if *mandatory && value.is_none() {
                return Err(self.fail(format_args!(
                    "mandatory \"{key}\" parameter is absent in \"{name}\" SSI command"
                )));
            }
        }
        Ok(values)
    }

    fn include(&mut self, params: &Params<'_>) -> Left {
        let [uri, file, wait, set, stub] = params else { return Ok(None) };
        let (target, waits) = self.target(*uri, *file, *wait, set.is_some() && stub.is_some())?;
        let path = self.scope().fill(target, true)?;
        let (path, args) = self.safe(&path)?;
        let stub = match stub {
            None => None,
            Some(name) => {
                let block = |shared: &mut Shared| shared.block(name).map(Bytes::copy_from_slice);
                let Some(text) = self.request.main.context(block) else {
                    let name = lossy(name);
                    let text = format_args!("\"stub\"=\"{name}\" for \"include\" not found");
                    return Err(self.fail(text));
                };
                let content_type = self.request.response.content_type.clone();
                Some(Stub { text, content_type })
            }
        };
        self.request.main.doing.set(self.doing);
        let child = self.request.subrequest(&path, &args).ok_or(Failed)?;
        if let Some(name) = set {
            let name = name.to_ascii_lowercase();
            // It is there, and empty unless it has a value, until the answer is.
            self.keep(|shared| match shared.variable(&name) {
                Some(_) => Ok(()),
                None => shared.set(&name, Vec::new()),
            })?;
            self.wait = Wait::Value(Box::new(Collect {
                name,
                max: 0,
                child: Subrequest::new(child),
                body: None,
                value: Vec::new(),
                failed: false,
            }));
            return Ok(None);
        }
        let child = match stub {
            Some(stub) => Subrequest::with_stub(child, stub),
            None => Subrequest::new(child),
        };
        if waits {
            self.wait = Wait::Done(child.done());
        }
        Ok(Some(Chunk::Nested(Box::new(child))))
    }

    /// What is included, and whether the page waits for it.
    fn target<'a>(
        &self,
        uri: Option<&'a [u8]>,
        file: Option<&'a [u8]>,
        wait: Option<&[u8]>,
        set_and_stub: bool,
    ) -> Result<(&'a [u8], bool), Failed> {
        let (target, is_file) = match (uri, file) {
            (Some(uri), Some(file)) => {
                let (uri, file) = (lossy(uri), lossy(file));
                return Err(self.fail(format_args!(
                    "inclusion may be either virtual=\"{uri}\" or file=\"{file}\""
                )));
            }
            (None, None) => {
                return Err(self.fail(format_args!("no parameter in \"include\" SSI command")));
            }
            (Some(uri), None) => (uri, false),
            (None, Some(file)) => (file, true),
        };
        if set_and_stub {
            let text = "\"set\" and \"stub\" cannot be used together in \"include\" SSI command";
            return Err(self.fail(format_args!("{text}")));
        }
        let waits = match wait {
            None => is_file,
            Some(_) if is_file => {
                let file = lossy(target);
                return Err(self.fail(format_args!("\"wait\" cannot be used with file=\"{file}\"")));
            }
            Some(wait) if wait.eq_ignore_ascii_case(b"no") => false,
            Some(wait) if wait.eq_ignore_ascii_case(b"yes") => true,
            Some(wait) => {
                let wait = lossy(wait);
                let text = format_args!("invalid value \"{wait}\" in the \"wait\" parameter");
                return Err(self.fail(text));
            }
        };
        Ok((target, waits))
    }

    /// Path and arguments of a target, if it is safe to go there.
    fn safe(&self, target: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Failed> {
        let mut path = Vec::with_capacity(target.len());
        match parse_unsafe(target, &mut path) {
            Some(args) => Ok((path, args.map_or(Vec::new(), |args| target[args].to_vec()))),
            None => {
                let uri = lossy(if path.is_empty() { target } else { &path });
                Err(self.fail(format_args!("unsafe URI \"{uri}\" was detected")))
            }
        }
    }

    fn echo(&mut self, params: &Params<'_>) -> Left {
        let [name, default, encoding] = params else { return Ok(None) };
        let name = name.unwrap_or_default().to_ascii_lowercase();
        let mut value = Vec::new();
        if !self.scope().variable(&name, &mut value) {
            value.extend_from_slice(default.unwrap_or(b"(none)"));
        }
        if value.is_empty() {
            return Ok(None);
        }
        match encoding {
            None => {}
            Some(b"none") => self.encoding = Encoding::None,
            Some(b"url") => self.encoding = Encoding::Url,
            Some(b"entity") => self.encoding = Encoding::Entity,
            Some(other) => {
                let other = lossy(other);
                let text = format_args!("unknown encoding \"{other}\" in the \"echo\" command");
                // As in nginx, it is told, and the value is written all the same.
                let Failed = self.fail(text);
            }
        }
        let mut out = Vec::with_capacity(value.len());
        match self.encoding {
            Encoding::None => out = value,
            Encoding::Url => escape(Kind::Html, &value, &mut out),
            Encoding::Entity => escape_html(&value, &mut out),
        }
        Ok(Some(Chunk::Bytes(out.into())))
    }

    fn config(&mut self, params: &Params<'_>) -> Left {
        let [time_format, error_message] = params else { return Ok(None) };
        if let Some(format) = time_format {
            self.time_format = format.to_vec();
        }
        if let Some(message) = error_message {
            self.error_message = Bytes::copy_from_slice(message);
        }
        Ok(None)
    }

    fn set(&mut self, params: &Params<'_>) -> Left {
        let [Some(name), Some(value)] = params else { return Ok(None) };
        let value = self.scope().fill(value, false)?;
        self.keep(|shared| shared.set(&name.to_ascii_lowercase(), value))?;
        Ok(None)
    }

    fn begin_if(&mut self, params: &Params<'_>) -> Left {
        if self.conditional != Conditional::No {
            return Err(self.fail(format_args!("the \"if\" command inside the \"if\" command")));
        }
        self.elif(params)
    }

    fn elif(&mut self, params: &Params<'_>) -> Left {
        if self.chosen {
            self.output = false;
            return Ok(None);
        }
        let holds = self.scope().holds(params[0].unwrap_or_default())?;
        self.output = holds;
        self.chosen |= holds;
        self.conditional = Conditional::If;
        Ok(None)
    }

    fn otherwise(&mut self, _params: &Params<'_>) -> Left {
        self.output = !self.chosen;
        self.conditional = Conditional::Else;
        Ok(None)
    }

    fn endif(&mut self, _params: &Params<'_>) -> Left {
        self.output = true;
        self.chosen = false;
        self.conditional = Conditional::No;
        Ok(None)
    }

    fn begin_block(&mut self, params: &Params<'_>) -> Left {
        let name = params[0].unwrap_or_default();
        self.keep(|shared| shared.begin_block(name))?;
        self.output = false;
        self.in_block = true;
        Ok(None)
    }

    fn end_block(&mut self, _params: &Params<'_>) -> Left {
        self.output = true;
        self.in_block = false;
        Ok(None)
    }

    /// Finds the next thing in the input and does it; `None`: there is no more.
    fn step(&mut self) -> Option<Left> {
        Some(match self.parser.next(&mut self.input) {
            Found::End => return None,
            Found::Text(text) => self.text(text),
            Found::Command(command) => {
                task::worked(COMMAND_WORK);
                self.run(&command)
            }
            Found::Bad(message) => {
                task::worked(COMMAND_WORK);
                let Failed = self.fail(format_args!("{message}"));
                Ok(None)
            }
            Found::Error => Err(Failed),
        })
    }

    /// Goes through the input, to its end or to where something else comes first; the text of it.
    fn carry_out(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        while let (Wait::No, None) = (&self.wait, &self.held) {
            if task::poll_turn(cx).is_pending() {
                if out.is_empty() {
                    return Poll::Pending;
                }
                break;
            }
            match self.step() {
                None => break,
                Some(Ok(None)) => {}
                Some(Err(Failed)) if self.silent_errors => {}
                Some(Err(Failed)) => out.extend_from_slice(&self.error_message),
                // Small pieces leave as one, large ones as they are.
                Some(Ok(Some(Chunk::Bytes(bytes)))) if bytes.len() < LARGE => {
                    out.extend_from_slice(&bytes);
                }
                Some(Ok(chunk)) => self.held = chunk,
            }
        }
        Poll::Ready((!out.is_empty()).then(|| out.into()))
    }

    /// Waits, if there is something to wait for.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        match &mut self.wait {
            Wait::No => {}
            Wait::Done(done) if done.get() => self.wait = Wait::No,
            // The one who has it to send polls it, and asks here again when it is done.
            Wait::Done(_) => return Poll::Pending,
            Wait::Value(collect) => {
                let value = match ready!(collect.poll(cx)) {
                    Ok(value) => value,
                    Err(fault) => return Poll::Ready(Err(fault)),
                };
                let (name, failed) = (mem::take(&mut collect.name), collect.failed);
                self.wait = Wait::No;
                if !failed {
                    // If it is too much to keep, that is in the log, and the variable stays empty.
                    let _ = self.keep(|shared| shared.set(&name, value));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Collect {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, Fault>> {
        loop {
            if let Some(body) = &mut self.body {
                match ready!(body.poll_next(cx)).transpose()? {
                    Some(Piece::Bytes(bytes)) => {
                        self.value.extend_from_slice(&bytes);
                        if self.value.len() > self.max {
                            self.tell_too_big(cx);
                            return Poll::Ready(Err(Fault::Filter));
                        }
                    }
                    Some(Piece::Flush) => {}
                    Some(Piece::Nested(_)) => return Poll::Ready(Err(Fault::Filter)),
                    None => {
                        self.child.end();
                        return Poll::Ready(Ok(mem::take(&mut self.value)));
                    }
                }
                continue;
            }
            let body = match ready!(self.child.poll_answer(cx)) {
                Some(child) if subrequest::closes(child) => {
                    return Poll::Ready(Err(Fault::Filter));
                }
                Some(child) if !child.response.header_only => {
                    // That of the place that answers (ngx_http_postpone_filter_in_memory).
                    self.max = child.location().core.subrequest_output_buffer_size;
                    self.failed = child.response.status >= 300;
                    mem::take(&mut child.response.body)
                }
                _ => Body::Empty,
            };
            self.body = Some(Reader::new(body, self.max));
        }
    }

    /// Tells that more came than may be kept, and who sent it.
    #[cold]
    fn tell_too_big(&mut self, cx: &mut Context<'_>) {
        if let Poll::Ready(Some(child)) = self.child.poll_answer(cx) {
            let (length, doing) = (self.value.len(), child.main.doing.get());
            let text = format_args!("too big subrequest response: {length}{doing}");
            child.log_error(Severity::Error, text);
        }
    }
}

impl Source for Page {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        loop {
            if let Some(chunk) = self.held.take() {
                return Poll::Ready(Some(Ok(chunk)));
            }
            if let Err(fault) = ready!(self.poll_wait(cx)) {
                return Poll::Ready(Some(Err(fault)));
            }
            if let Some(bytes) = ready!(self.carry_out(cx)) {
                return Poll::Ready(Some(Ok(Chunk::Bytes(bytes))));
            }
            if self.held.is_some() || !matches!(self.wait, Wait::No) {
                continue;
            }
            return Poll::Ready(match ready!(self.body.poll_next(cx)) {
                Some(Ok(Piece::Bytes(bytes))) => {
                    self.input = bytes;
                    continue;
                }
                Some(Ok(Piece::Flush)) => Some(Ok(Chunk::Flush)),
                Some(Ok(Piece::Nested(child))) => Some(Ok(Chunk::Nested(child))),
                Some(Err(fault)) => Some(Err(fault)),
                None => None,
            });
        }
    }
}
