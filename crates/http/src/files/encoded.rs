//! What a small file became when it was compressed: a file that is asked for again is not compressed again.
//!
//! It is kept beside the contents in memory, so it lives no longer than they are valid.
//!
//! Invariant: what a thread keeps has a bound, whatever is asked for.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::{Rc, Weak},
};

use bytes::Bytes;

use crate::coding::Form;

/// How many bytes of them a thread keeps; those made last.
const MAX_BYTES: usize = 8 << 20;

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { made: VecDeque::new(), bytes: 0 }) };
}

/// What holds them: who asks for one has no part in it.
struct Kept {
    made: VecDeque<Rc<Bytes>>,
    bytes: usize,
}

impl Kept {
    fn add(&mut self, made: Rc<Bytes>) {
        self.bytes += made.len();
        self.made.push_back(made);
        while self.bytes > MAX_BYTES
            && let Some(first) = self.made.pop_front()
        {
            self.bytes -= first.len();
        }
    }
}

/// The forms that one file was asked for in: one for each coding that clients take.
#[derive(Default)]
pub(super) struct Encoded(RefCell<Vec<(Form, Weak<Bytes>)>>);

/// So many forms of one file are known: its locations may say different things of the same coding.
const MAX_FORMS: usize = 8;

impl Encoded {
    /// The file in that form; `make` compresses it. From the second time on it is kept: many files are asked
    /// for once.
    pub fn of(&self, form: Form, make: impl FnOnce() -> Option<Bytes>) -> Option<Bytes> {
        let mut forms = self.0.borrow_mut();
        let Some(at) = forms.iter().position(|(known, _)| *known == form) else {
            if forms.len() == MAX_FORMS {
                forms.remove(0);
            }
            forms.push((form, Weak::new()));
            return make();
        };
        if let Some(made) = forms[at].1.upgrade() {
            return Some(made.as_ref().clone());
        }
        let made = make()?;
        let kept = Rc::new(made.clone());
        forms[at].1 = Rc::downgrade(&kept);
        KEPT.with_borrow_mut(|all| all.add(kept));
        Some(made)
    }
}

/// A file that is kept anew may be another.
impl Clone for Encoded {
    fn clone(&self) -> Encoded {
        Encoded::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GZIP: Form = Form { name: "gzip", level: 1, window_bits: 15 };

    /// Whether it was made for this.
    fn is_made(encoded: &Encoded, form: Form, size: usize) -> bool {
        let mut made = false;
        let bytes = encoded.of(form, || {
            made = true;
            Some(vec![b'x'; size].into())
        });
        assert_eq!(bytes.unwrap().len(), size);
        made
    }

    #[test]
    fn what_is_asked_for_again_is_made_no_more() {
        let encoded = Encoded::default();
        let other = Form { level: 9, ..GZIP };
        for form in [GZIP, other] {
            let made = [0; 5].map(|_| is_made(&encoded, form, 10));
            assert_eq!(made, [true, true, false, false, false]);
        }
        assert!(is_made(&encoded.clone(), GZIP, 10), "another file");
        assert!(encoded.of(Form { level: 2, ..GZIP }, || None).is_none(), "what fails is not kept");
        assert!(is_made(&encoded, Form { level: 2, ..GZIP }, 10));
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        const SIZE: usize = 64 << 10;
        let files: Vec<_> = (0..2 * MAX_BYTES / SIZE).map(|_| Encoded::default()).collect();
        for file in &files {
            assert!(is_made(file, GZIP, SIZE) && is_made(file, GZIP, SIZE));
        }
        assert_eq!(
            KEPT.with_borrow(|kept| (kept.bytes, kept.made.len())),
            (MAX_BYTES, MAX_BYTES / SIZE)
        );
        let (first, last) = files.split_at(files.len() / 2);
        assert!(!last.iter().any(|file| is_made(file, GZIP, SIZE)), "those made last");
        assert!(is_made(&first[0], GZIP, SIZE));
        let forms = (2..100).map(|level| Form { level, ..GZIP });
        forms.for_each(|form| assert!(is_made(&first[0], form, 1)));
        assert_eq!(first[0].0.borrow().len(), MAX_FORMS);
    }
}
