//! Variables of the time.

use forebay_rt::clock;
use forebay_session::{log::time, var::Registry};

use super::put_seconds;
use crate::request::Request;

pub(super) fn register(registry: &mut Registry<Request>) {
    registry.builtin("msec", |_, out| put_seconds(out, clock::wall_ms()));
    registry.builtin("time_local", |_, out| {
        time::write_local(clock::wall_ms(), out);
        true
    });
    registry.builtin("time_iso8601", |_, out| {
        time::write_iso8601(clock::wall_ms(), out);
        true
    });
    registry.builtin("time_iso8601_ms", |_, out| {
        time::write_iso8601_ms(clock::wall_ms(), out);
        true
    });
}
