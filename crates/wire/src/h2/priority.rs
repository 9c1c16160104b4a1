//! Priorities of responses: the `Priority` field and what PRIORITY_UPDATE carries (RFC 9218 §4).
//!
//! *Invariant:* what cannot be read leaves the default; a priority is a wish, never an error.

/// How soon, and how, a response is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0: the soonest, to 7: in the background.
    pub urgency: u8,
    /// Whether a part of it is of use, so that several may share the connection.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Reads a dictionary of structured fields (RFC 8941 §3.2) as far as `u` and `i` go.
    pub fn parse(text: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in text.split(|ch| *ch == b',') {
            // Parameters of a value say nothing.
            let member = member.split(|ch| *ch == b';').next().unwrap_or_default().trim_ascii();
            match member {
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_read_as_far_as_they_make_sense() {
        for (text, urgency, incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=5, i", 5, true),
            ("i,u=7", 7, true),
            ("i=?1;x=1 ,u=1;y", 1, true),
            ("i, i=?0", 3, false),
            ("u=8", 3, false),
            ("u=-1, u=x, u=11", 3, false),
            ("x=1, \u{e9}", 3, false),
        ] {
            assert_eq!(
                Priority::parse(text.as_bytes()),
                Priority { urgency, incremental },
                "{text}"
            );
        }
    }
}
