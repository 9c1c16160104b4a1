//! `limit_rate` and `proxy_limit_rate`: how fast a response may leave, or come.
//!
//! Answers the rate halves of nginx's `ngx_http_write_filter` and `ngx_event_pipe_read_upstream`.

use forebay_rt::{clock, timer::Timer};
use forebay_session::log::{Severity, Shown};

use crate::{core::SizeValue, request::Request};

/// How much may have been sent by now.
pub struct Pace {
    rate: u64,
    after: u64,
    start_ms: u64,
    /// Fires when more may be sent.
    pub timer: Timer,
}

impl Pace {
    /// What holds for a response that begins; `None`: no limit.
    pub fn of(r: &Request) -> Option<Pace> {
        let core = &r.location().core;
        let rate = match r.limit_rate {
            Some(rate) => rate,
            None => size(&core.limit_rate, r),
        };
        if rate == 0 {
            return None;
        }
        Some(Pace { after: size(&core.limit_rate_after, r), ..Pace::new(rate) })
    }

    /// So many bytes a second from now on, which must not be 0.
    pub fn new(rate: u64) -> Pace {
        Pace { rate, after: 0, start_ms: clock::now_ms(), timer: Timer::new() }
    }

    /// How many bytes may be sent now; 0: the timer says when to ask again.
    pub fn allowance(&self, sent: u64) -> u64 {
        let seconds = clock::now_ms().saturating_sub(self.start_ms) / 1000 + 1;
        let total = self.rate.saturating_mul(seconds).saturating_add(self.after);
        let allowed = total.saturating_sub(sent);
        if allowed == 0 {
            let over = sent - total;
            self.timer.arm(over.saturating_mul(1000) / self.rate + 1);
        }
        allowed
    }
}

fn size(value: &SizeValue, r: &Request) -> u64 {
    match value {
        SizeValue::Fixed(size) => *size,
        SizeValue::Computed(template) => {
            let value = template.value(r);
            forebay_conf::value::size(&value).unwrap_or_else(|| invalid(r, &value))
        }
    }
}

/// A value that is no size counts as none (`ngx_http_complex_value_size`).
#[cold]
fn invalid(r: &Request, value: &[u8]) -> u64 {
    let (value, doing) = (Shown(value), r.main.doing.get());
    r.log_error(Severity::Error, format_args!("invalid size \"{value}\"{doing}"));
    0
}
