//! Certificates, keys and revocation lists from where the configuration says, with nginx's words for
//! what is wrong with them (`ngx_ssl_cache_open_bio` and its callers).
//!
//! Invariant: files are read through the loader only, so that a worker finds what its master read.

use std::{
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

use forebay_conf::{Arg, Error, Loader};
use forebay_tls::{
    CertificateDer, CertificateRevocationListDer, Chain, KeyPair, PrivateKey,
    certificates_from_pem, crls_from_pem,
};

use super::settings::Passwords;

/// Where PEM text stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source<'a> {
    /// In a file.
    File(PathBuf),
    /// In the word itself, after `data:`.
    Data(&'a [u8]),
}

impl<'a> Source<'a> {
    /// Of a word; relative names belong to `prefix`.
    pub(super) fn of(word: &'a [u8], prefix: &Path) -> Source<'a> {
        use std::os::unix::ffi::OsStrExt as _;
        match word.strip_prefix(b"data:") {
            Some(text) => Source::Data(text),
            None => Source::File(prefix.join(std::ffi::OsStr::from_bytes(word))),
        }
    }

    /// The text; the error is nginx's, to stand behind the name.
    pub(super) fn read(
        &self,
        read: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Vec<u8>, String> {
        match self {
            Source::File(path) => read(path).map_err(|error| not_opened(path, &error)),
            Source::Data(text) => Ok(text.to_vec()),
        }
    }
}

impl Display for Source<'_> {
    /// As messages name it. What stands after `data:` may be a key, and is kept to itself.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::File(path) => path.display().fmt(f),
            Source::Data(_) => f.write_str("data:..."),
        }
    }
}

/// OpenSSL's error for a file that cannot be opened.
fn not_opened(path: &Path, error: &io::Error) -> String {
    let (path, code) = (path.display(), error.raw_os_error().unwrap_or(5));
    let text = forebay_conf::error::errno_text(error);
    let text = text.split_once(": ").map_or(&*text, |(_, text)| text);
    // ERR_LIB_BIO with BIO_R_NO_SUCH_FILE, or ERR_R_SYS_LIB.
    let bio = match error.kind() {
        io::ErrorKind::NotFound => "error:10000080:BIO routines::no such file",
        _ => "error:10080002:BIO routines::system lib",
    };
    format!(
        "BIO_new_file() failed (SSL: error:{:08X}:system library::{text}:calling fopen({path}, r) \
         {bio})",
        0x8000_0000u32 | code.unsigned_abs()
    )
}

/// The text that a directive names.
fn text<'a>(
    arg: &'a Arg,
    what: &str,
    loader: &mut Loader<'_>,
) -> Result<(Source<'a>, Vec<u8>), Error> {
    let source = Source::of(&arg.value, &loader.conf_prefix);
    match source.read(|path| loader.files.read(path)) {
        Ok(text) => Ok((source, text)),
        Err(why) => Err(failed(arg, what, &source, why)),
    }
}

fn failed(arg: &Arg, what: &str, source: &Source<'_>, why: impl Display) -> Error {
    Error::emerg(arg.span, format!("{what} \"{source}\": {why}"))
}

/// A certificate with those behind it; what is doubtful is warned of.
pub fn chain(arg: &Arg, loader: &mut Loader<'_>) -> Result<Chain, Error> {
    const WHAT: &str = "cannot load certificate";
    let (source, text) = text(arg, WHAT, loader)?;
    let chain = Chain::from_pem(&text).map_err(|why| failed(arg, WHAT, &source, why))?;
    for warning in chain.warnings((forebay_rt::clock::wall_ms() / 1000) as i64) {
        loader.warn(arg.span, format!("{warning}, in \"{source}\""));
    }
    Ok(chain)
}

/// A private key.
pub fn key(
    arg: &Arg,
    passwords: Option<&Passwords>,
    loader: &mut Loader<'_>,
) -> Result<PrivateKey, Error> {
    const WHAT: &str = "cannot load certificate key";
    let (source, text) = text(arg, WHAT, loader)?;
    let passwords = passwords.map_or(&[][..], |passwords| passwords);
    let key = PrivateKey::from_pem(&text, passwords).map_err(|why| {
        let error = failed(arg, WHAT, &source, why);
        match memchr::memmem::find(&text, b"ENCRYPTED").is_some() && passwords.is_empty() {
            true => error.with_hint("the key is encrypted: name a password file"),
            false => error,
        }
    })?;
    if let Source::File(path) = &source
        && let Some(mode) = loader.files.mode(path)
        && mode & 0o004 != 0
    {
        let text = format!("the key \"{source}\" is readable by everybody (mode {mode:04o})");
        loader.diags.push(Error::warn(arg.span, text).with_hint("chmod 600 keeps it secret"));
    }
    Ok(key)
}

/// A certificate and its key, which fit each other.
pub fn pair(
    certificate: &Arg,
    key: &Arg,
    passwords: Option<&Passwords>,
    loader: &mut Loader<'_>,
) -> Result<KeyPair, Error> {
    let chain = self::chain(certificate, loader)?;
    let secret = self::key(key, passwords, loader)?;
    KeyPair::new(&chain, &secret).map_err(|why| {
        let source = Source::of(&key.value, &loader.conf_prefix);
        let error =
            Error::emerg(key.span, format!("SSL_CTX_use_PrivateKey(\"{source}\") failed {why}"));
        error.with_hint(match fits_another(certificate, &secret, loader) {
            true => "the certificate of this key must come first in its file".to_owned(),
            false => format!("this is not the key of \"{}\"", certificate.lossy()),
        })
    })
}

/// Whether a key belongs to one of the certificates behind the first.
fn fits_another(certificate: &Arg, secret: &PrivateKey, loader: &mut Loader<'_>) -> bool {
    let source = Source::of(&certificate.value, &loader.conf_prefix);
    let text = source.read(|path| loader.files.read(path)).unwrap_or_default();
    let all = certificates_from_pem(&text).unwrap_or_default();
    all.iter().any(|der| {
        let alone = Chain::from_pem(forebay_tls::pem(der).as_bytes());
        alone.is_ok_and(|alone| KeyPair::new(&alone, secret).is_ok())
    })
}

/// The certificates of a file of authorities.
pub fn authorities(
    arg: Option<&Arg>,
    loader: &mut Loader<'_>,
) -> Result<Vec<CertificateDer<'static>>, Error> {
    const WHAT: &str = "failed to load certificate";
    let Some(arg) = arg.filter(|arg| !arg.value.is_empty()) else { return Ok(Vec::new()) };
    let (source, text) = text(arg, WHAT, loader)?;
    certificates_from_pem(&text).map_err(|why| {
        failed(arg, WHAT, &source, format!("PEM_read_bio_X509() failed (SSL: {why})"))
    })
}

/// The revocation lists of a file.
pub fn crls(
    arg: Option<&Arg>,
    loader: &mut Loader<'_>,
) -> Result<Vec<CertificateRevocationListDer<'static>>, Error> {
    const WHAT: &str = "failed to load CRL";
    let Some(arg) = arg.filter(|arg| !arg.value.is_empty()) else { return Ok(Vec::new()) };
    let (source, text) = text(arg, WHAT, loader)?;
    crls_from_pem(&text).map_err(|why| {
        failed(arg, WHAT, &source, format!("PEM_read_bio_X509_CRL() failed (SSL: {why})"))
    })
}

/// A file that holds something in another form.
pub(super) fn bytes(arg: &Arg, loader: &mut Loader<'_>) -> Result<Vec<u8>, Error> {
    let path = loader.conf_path(arg.path());
    loader.files.read(&path).map_err(|error| {
        let why = not_opened(&path, &error);
        let why = why.strip_prefix("BIO_new_file()").unwrap_or(&why);
        Error::emerg(arg.span, format!("BIO_new_file(\"{}\"){why}", path.display()))
    })
}
