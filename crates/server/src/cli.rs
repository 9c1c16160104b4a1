//! The command line: nginx's options, letter for letter (ngx_get_options in nginx.c), and
//! Forebay's own subcommands beside them.
//!
//! Invariant: reads arguments only; no file is touched and nothing is printed here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use forebay_rt::signals::Signal;

/// What the user asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// What nginx does.
    Nginx(Options),
    /// No argument at all: the embedded configuration on a loopback port, in the foreground.
    Welcome,
    /// `serve [DIR] [--listen ADDR]`.
    Serve {
        /// The folder.
        dir: PathBuf,
        /// An address as `listen` takes it; else a free loopback port.
        listen: Option<String>,
    },
    /// `fmt [--check] FILE...`.
    Fmt {
        /// Say whether files would change, and change none.
        check: bool,
        /// The files.
        files: Vec<PathBuf>,
    },
    /// `help`: the subcommands.
    Help,
}

/// nginx's options.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `-v`, and `-V` and `-h` with it.
    pub version: bool,
    /// `-h`, `-?`.
    pub help: bool,
    /// `-V`.
    pub configure: bool,
    /// `-t`, and `-T` with it.
    pub test: bool,
    /// `-T`.
    pub dump: bool,
    /// `-q`.
    pub quiet: bool,
    /// `-s`.
    pub signal: Option<Control>,
    /// `-p`.
    pub prefix: Option<PathBuf>,
    /// `-e`; empty for standard error.
    pub error_log: Option<PathBuf>,
    /// `-c`.
    pub conf: Option<PathBuf>,
    /// `-g`.
    pub globals: Option<OsString>,
}

/// The signals that `-s` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// `stop`: TERM.
    Stop,
    /// `quit`: QUIT.
    Quit,
    /// `reopen`: USR1.
    Reopen,
    /// `reload`: HUP.
    Reload,
}

impl Control {
    /// What is sent to the master.
    pub fn signal(self) -> Signal {
        match self {
            Control::Stop => Signal::Terminate,
            Control::Quit => Signal::Quit,
            Control::Reopen => Signal::Reopen,
            Control::Reload => Signal::Reload,
        }
    }

    fn parse(name: &[u8]) -> Option<Control> {
        match name {
            b"stop" => Some(Control::Stop),
            b"quit" => Some(Control::Quit),
            b"reopen" => Some(Control::Reopen),
            b"reload" => Some(Control::Reload),
            _ => None,
        }
    }
}

/// The name that we go by: scripts that replace the file `nginx` get nginx.
pub fn program_name(argv0: &OsStr) -> &'static str {
    match Path::new(argv0).file_name() {
        Some(name) if name == "nginx" => "nginx",
        _ => "forebay",
    }
}

/// Reads the arguments, of which the first is the program's name. The error is nginx's text,
/// without `nginx: ` in front.
pub fn parse(argv: &[OsString]) -> Result<Command, String> {
    let Some((name, args)) = argv.split_first() else {
        return Ok(Command::Nginx(Options::default()));
    };
    if program_name(name) == "nginx" {
        return nginx_options(args).map(Command::Nginx);
    }
    match args.first().map(|arg| arg.as_bytes()) {
        None => Ok(Command::Welcome),
        Some(b"serve") => serve(&args[1..]),
        Some(b"fmt") => fmt(&args[1..]),
        Some(b"help" | b"--help") => Ok(Command::Help),
        Some(b"--version") => Ok(Command::Nginx(Options { version: true, ..Options::default() })),
        Some(_) => nginx_options(args).map(Command::Nginx),
    }
}

fn nginx_options(args: &[OsString]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(letters) = arg.as_bytes().strip_prefix(b"-") else {
            return Err(format!("invalid option: \"{}\"", arg.to_string_lossy()));
        };
        for (at, letter) in letters.iter().enumerate() {
            match letter {
                b'?' | b'h' => (options.version, options.help) = (true, true),
                b'v' => options.version = true,
                b'V' => (options.version, options.configure) = (true, true),
                b't' => options.test = true,
                b'T' => (options.test, options.dump) = (true, true),
                b'q' => options.quiet = true,
                b'p' | b'e' | b'c' | b'g' | b's' => {
                    let rest = &letters[at + 1..];
                    let value = if rest.is_empty() { args.next().cloned() } else { os(rest) };
                    set_value(&mut options, *letter, value)?;
                    break;
                }
                other => return Err(format!("invalid option: \"{}\"", char::from(*other))),
            }
        }
    }
    Ok(options)
}

fn os(bytes: &[u8]) -> Option<OsString> {
    Some(OsString::from_vec(bytes.to_vec()))
}

fn set_value(options: &mut Options, letter: u8, value: Option<OsString>) -> Result<(), String> {
    let need = |what: &str| {
        let letter = char::from(letter);
        value.clone().ok_or_else(|| format!("option \"-{letter}\" requires {what}"))
    };
    match letter {
        b'p' => options.prefix = Some(need("directory name")?.into()),
        b'e' => {
            let name = need("file name")?;
            let name = if name == "stderr" { OsString::new() } else { name };
            options.error_log = Some(name.into());
        }
        b'c' => options.conf = Some(need("file name")?.into()),
        b'g' => options.globals = Some(need("parameter")?),
        _ => {
            let name = need("parameter")?;
            let control = Control::parse(name.as_bytes());
            options.signal = Some(
                control
                    .ok_or_else(|| format!("invalid option: \"-s {}\"", name.to_string_lossy()))?,
            );
        }
    }
    Ok(())
}

fn serve(args: &[OsString]) -> Result<Command, String> {
    let (mut dir, mut listen) = (None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let bytes = arg.as_bytes();
        if bytes == b"--listen" || bytes == b"-l" {
            let addr = args.next().ok_or("option \"--listen\" requires an address")?;
            listen = Some(addr.to_string_lossy().into_owned());
        } else if let Some(addr) = bytes.strip_prefix(b"--listen=") {
            listen = Some(String::from_utf8_lossy(addr).into_owned());
        } else if bytes.starts_with(b"-") || dir.is_some() {
            return Err(format!("invalid option: \"{}\"", arg.to_string_lossy()));
        } else {
            dir = Some(PathBuf::from(arg));
        }
    }
    Ok(Command::Serve { dir: dir.unwrap_or_else(|| ".".into()), listen })
}

fn fmt(args: &[OsString]) -> Result<Command, String> {
    let (mut check, mut files) = (false, Vec::new());
    for arg in args {
        match arg.as_bytes() {
            b"--check" => check = true,
            bytes if bytes.starts_with(b"-") => {
                return Err(format!("invalid option: \"{}\"", arg.to_string_lossy()));
            }
            _ => files.push(PathBuf::from(arg)),
        }
    }
    if files.is_empty() {
        return Err("\"fmt\" requires file name".into());
    }
    Ok(Command::Fmt { check, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        parse(&argv)
    }

    fn options(line: &str) -> Options {
        match parsed(line) {
            Ok(Command::Nginx(options)) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn letters_combine_and_values_are_joined_or_apart() {
        let test = || Options { test: true, ..Options::default() };
        for (line, expected) in [
            ("nginx", Options::default()),
            ("/usr/sbin/nginx -t", test()),
            ("forebay -tq", Options { quiet: true, ..test() }),
            ("forebay -T", Options { dump: true, ..test() }),
            ("forebay -tc/a", Options { conf: Some("/a".into()), ..test() }),
            ("forebay -tc /a", Options { conf: Some("/a".into()), ..test() }),
            ("forebay -c /a -t", Options { conf: Some("/a".into()), ..test() }),
            ("forebay -p/b -t", Options { prefix: Some("/b".into()), ..test() }),
            ("forebay -t -e stderr", Options { error_log: Some("".into()), ..test() }),
            ("forebay -t -e log", Options { error_log: Some("log".into()), ..test() }),
            ("forebay -t -g pid", Options { globals: Some("pid".into()), ..test() }),
            ("forebay -t -", test()),
            ("forebay -c -t", Options { conf: Some("-t".into()), ..Options::default() }),
            ("forebay -v", Options { version: true, ..Options::default() }),
            ("forebay -V", Options { version: true, configure: true, ..Options::default() }),
            ("forebay -?", Options { version: true, help: true, ..Options::default() }),
            ("forebay -h", Options { version: true, help: true, ..Options::default() }),
        ] {
            assert_eq!(options(line), expected, "{line}");
        }
        for (name, control) in [
            ("stop", Control::Stop),
            ("quit", Control::Quit),
            ("reopen", Control::Reopen),
            ("reload", Control::Reload),
        ] {
            assert_eq!(options(&format!("forebay -s {name}")).signal, Some(control));
            assert_eq!(options(&format!("forebay -qs{name}")).signal, Some(control));
        }
    }

    #[test]
    fn errors_are_nginx_s() {
        for (line, error) in [
            ("nginx foo", "invalid option: \"foo\""),
            ("nginx serve", "invalid option: \"serve\""),
            ("forebay -x", "invalid option: \"x\""),
            ("forebay -hx", "invalid option: \"x\""),
            ("forebay --foo", "invalid option: \"-\""),
            ("forebay -t foo", "invalid option: \"foo\""),
            ("forebay -c", "option \"-c\" requires file name"),
            ("forebay -te", "option \"-e\" requires file name"),
            ("forebay -p", "option \"-p\" requires directory name"),
            ("forebay -g", "option \"-g\" requires parameter"),
            ("forebay -s", "option \"-s\" requires parameter"),
            ("forebay -s foo", "invalid option: \"-s foo\""),
            ("forebay -sfoo", "invalid option: \"-s foo\""),
            ("forebay serve --foo", "invalid option: \"--foo\""),
            ("forebay serve a b", "invalid option: \"b\""),
            ("forebay serve --listen", "option \"--listen\" requires an address"),
            ("forebay fmt", "\"fmt\" requires file name"),
            ("forebay fmt -x", "invalid option: \"-x\""),
        ] {
            assert_eq!(parsed(line), Err(error.to_string()), "{line}");
        }
    }

    #[test]
    fn subcommands_are_forebay_s_alone() {
        assert_eq!(parsed("forebay"), Ok(Command::Welcome));
        assert_eq!(parsed("./target/forebay help"), Ok(Command::Help));
        let dir = |dir: &str, listen: Option<&str>| {
            Ok(Command::Serve { dir: dir.into(), listen: listen.map(Into::into) })
        };
        assert_eq!(parsed("forebay serve"), dir(".", None));
        assert_eq!(parsed("forebay serve /srv"), dir("/srv", None));
        assert_eq!(parsed("forebay serve --listen 81 a"), dir("a", Some("81")));
        assert_eq!(parsed("forebay serve a --listen=81"), dir("a", Some("81")));
        let fmt = |check| Ok(Command::Fmt { check, files: vec!["a".into(), "b".into()] });
        assert_eq!(parsed("forebay fmt a b"), fmt(false));
        assert_eq!(parsed("forebay fmt a --check b"), fmt(true));
    }
}
