//! What the pages of one request, included ones too, have in common: variables, captures, blocks
//! (nginx's context of `r->main`).
//!
//! Invariant: holds no more than [`MAX_KEPT`] bytes, however a page sets its variables.

use forebay_session::var::Captures;

/// How many bytes of variables and blocks a request keeps.
///
/// DIFFERS(ssi-bounded): nginx keeps all; `set var="x" value="$x$x"` doubles it each time.
pub const MAX_KEPT: usize = 4 << 20;

/// Too much to keep.
#[derive(Debug)]
pub struct TooMuch;

/// It.
#[derive(Default)]
pub struct Shared {
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of the last regular expression of an `if`.
    pub captures: Captures,
    blocks: Vec<(Vec<u8>, Vec<u8>)>,
    kept: usize,
}

impl Shared {
    /// The variable that a `set` or an `include` gave that name, in lower case; or a capture.
    pub fn variable(&self, name: &[u8]) -> Option<&[u8]> {
        if let [digit @ b'0'..=b'9'] = name
            && let Some(group) = self.captures.group(usize::from(digit - b'0'))
        {
            return Some(group);
        }
        let found = self.variables.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| &value[..])
    }

    fn keep(&mut self, bytes: usize) -> Result<(), TooMuch> {
        if self.kept + bytes > MAX_KEPT {
            return Err(TooMuch);
        }
        self.kept += bytes;
        Ok(())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &[u8], value: Vec<u8>) -> Result<(), TooMuch> {
        if let Some(at) = self.variables.iter().position(|(known, _)| known == name) {
            self.kept -= self.variables[at].1.len();
            self.variables[at].1.clear();
            self.keep(value.len())?;
            self.variables[at].1 = value;
            return Ok(());
        }
        self.keep(name.len() + value.len())?;
        self.variables.push((name.to_vec(), value));
        Ok(())
    }

    /// Begins a block of that name.
    pub fn begin_block(&mut self, name: &[u8]) -> Result<(), TooMuch> {
        self.keep(name.len())?;
        self.blocks.push((name.to_vec(), Vec::new()));
        Ok(())
    }

    /// Adds to the block that was begun last.
    pub fn extend_block(&mut self, text: &[u8]) -> Result<(), TooMuch> {
        self.keep(text.len())?;
        if let Some((_, block)) = self.blocks.last_mut() {
            block.extend_from_slice(text);
        }
        Ok(())
    }

    /// The first block of that name.
    pub fn block(&self, name: &[u8]) -> Option<&[u8]> {
        self.blocks.iter().find(|(known, _)| known == name).map(|(_, block)| &block[..])
    }
}
