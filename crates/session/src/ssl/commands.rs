//! `ssl_conf_command`: those commands of OpenSSL's `SSL_CONF_cmd` that mean something here; all others
//! are refused, as a server that does not obey what is written would be a surprise.

use forebay_conf::{Arg, Error, Loader};
use forebay_tls::{Ciphers, Groups, Protocols, ServerSettings};

/// What commands change, of a server or of a client's side.
pub struct Changes<'a> {
    /// Versions.
    pub protocols: &'a mut Protocols,
    /// Cipher suites.
    pub ciphers: &'a mut Ciphers,
    /// Groups.
    pub groups: &'a mut Groups,
    /// Whose order of ciphers counts; a client has no say.
    pub prefer_server_ciphers: Option<&'a mut bool>,
    /// Whether clients that would rather have ChaCha20 get it all the same.
    pub prioritize_chacha: Option<&'a mut bool>,
}

/// Obeys the commands of a server.
pub fn of_server(
    settings: &mut ServerSettings,
    commands: &[(Arg, Arg)],
    loader: &mut Loader<'_>,
) -> Result<(), Error> {
    let mut changes = Changes {
        protocols: &mut settings.protocols,
        ciphers: &mut settings.ciphers,
        groups: &mut settings.groups,
        prefer_server_ciphers: Some(&mut settings.prefer_server_ciphers),
        prioritize_chacha: Some(&mut settings.prioritize_chacha),
    };
    obey(&mut changes, commands, loader)
}

/// Obeys commands. The suites of TLS 1.3 come last: OpenSSL keeps them apart from the others.
pub fn obey(
    to: &mut Changes<'_>,
    commands: &[(Arg, Arg)],
    loader: &mut Loader<'_>,
) -> Result<(), Error> {
    let of_tls13 = |name: &Arg| name.value.eq_ignore_ascii_case(b"Ciphersuites");
    let (last, first): (Vec<_>, Vec<_>) = commands.iter().partition(|(name, _)| of_tls13(name));
    for (name, value) in first.into_iter().chain(last) {
        change(to, name, value, loader)?;
    }
    Ok(())
}

fn change(
    to: &mut Changes<'_>,
    name: &Arg,
    value: &Arg,
    loader: &mut Loader<'_>,
) -> Result<(), Error> {
    let refuse = |why: String| {
        let text =
            format!("SSL_CONF_cmd(\"{}\", \"{}\") failed: {why}", name.lossy(), value.lossy());
        Error::emerg(name.span, text)
    };
    let text = value.text()?;
    let mut warn = |warnings: Vec<String>| {
        warnings.into_iter().for_each(|warning| loader.warn(value.span, warning));
    };
    match name.text()?.to_ascii_lowercase().as_str() {
        "cipherstring" => {
            let (ciphers, warnings) = Ciphers::parse(text).map_err(refuse)?;
            *to.ciphers = ciphers;
            warn(warnings);
        }
        "ciphersuites" => {
            let (ciphers, warnings) = to.ciphers.clone().with_ciphersuites(text).map_err(refuse)?;
            *to.ciphers = ciphers;
            warn(warnings);
        }
        "curves" | "groups" => {
            let (groups, warnings) = Groups::parse(text).map_err(refuse)?;
            *to.groups = groups;
            warn(warnings);
        }
        "minprotocol" => match version(text) {
            Some(version) => to.protocols.tls12 &= version <= 2,
            None => return Err(refuse("unknown protocol".to_owned())),
        },
        "maxprotocol" => match version(text) {
            Some(2) => to.protocols.tls13 = false,
            Some(3) => {}
            // OpenSSL's word for no bound.
            _ if text == "None" => {}
            _ => return Err(refuse("no protocol is left".to_owned())),
        },
        "options" => {
            for remark in options(to, text).map_err(refuse)? {
                loader.info(value.span, remark);
            }
        }
        _ => return Err(refuse("this command is not supported".to_owned())),
    }
    match to.protocols.tls12 || to.protocols.tls13 {
        true => Ok(()),
        false => Err(refuse("no protocol is left".to_owned())),
    }
}

/// The minor number of a version; 0: any.
fn version(text: &str) -> Option<u8> {
    Some(match text {
        "None" | "SSLv3" | "TLSv1" => 0,
        "TLSv1.1" => 1,
        "TLSv1.2" => 2,
        "TLSv1.3" => 3,
        _ => return None,
    })
}

/// Obeys a list of options; what is taken and changes nothing is remarked on.
fn options(to: &mut Changes<'_>, list: &str) -> Result<Vec<String>, String> {
    let mut remarks = Vec::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (on, option) = match word.strip_prefix('-') {
            Some(option) => (false, option),
            None => (true, word.strip_prefix('+').unwrap_or(word)),
        };
        match option.to_ascii_lowercase().as_str() {
            "serverpreference" => {
                if let Some(prefer) = &mut to.prefer_server_ciphers {
                    **prefer = on;
                }
            }
            "prioritizechacha" => {
                if let Some(prioritize) = &mut to.prioritize_chacha {
                    **prioritize = on;
                }
            }
            // As it is here anyway: what costs nothing to promise.
            "norenegotiation"
            | "noresumptiononrenegotiation"
            | "extendedmastersecret"
            | "ecdhsingle"
            | "dhsingle"
            | "antireplay"
            | "nocompression"
            | "middleboxcompat"
                if on => {}
            "compression"
            | "unsafelegacyrenegotiation"
            | "unsafelegacyserverconnect"
            | "clientrenegotiation"
            | "allownodhekex"
            | "ktls"
                if !on => {}
            // nginx sends files through it; here they are sealed where they are read.
            "ktls" => remarks.push("the option KTLS changes nothing here".to_owned()),
            // Of versions and ciphers that are not spoken.
            "bugs" | "emptyfragments" => {
                remarks.push(format!("the option {option} changes nothing here"));
            }
            _ => return Err(format!("the option {word} is not supported")),
        }
    }
    Ok(remarks)
}
