//! SETTINGS: what the peer says it takes (RFC 9113 §6.5, RFC 8441, RFC 9218).

use super::{
    DEFAULT_WINDOW, MAX_WINDOW,
    frame::{ErrorCode, MAX_PAYLOAD, Violation},
};

/// Identifiers.
pub mod id {
    #![allow(missing_docs)]
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    pub const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// The settings of a peer that mean something to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How large a table it keeps for what we compress, in bytes.
    pub header_table_size: u32,
    /// How many streams we may have open.
    pub max_concurrent_streams: u32,
    /// How much of a body it takes on a new stream.
    pub initial_window: u32,
    /// The longest payload that it takes.
    pub max_frame_size: u32,
    /// Whether it takes CONNECT with `:protocol` (RFC 8441).
    pub connect_protocol: bool,
}

impl Default for Settings {
    /// What holds before the first SETTINGS.
    fn default() -> Settings {
        Settings {
            header_table_size: 4096,
            max_concurrent_streams: u32::MAX,
            initial_window: DEFAULT_WINDOW,
            max_frame_size: MAX_PAYLOAD as u32,
            connect_protocol: false,
        }
    }
}

impl Settings {
    /// Takes over what a SETTINGS frame says, in its order; unknown settings are passed over.
    pub fn apply(&mut self, entries: &[u8]) -> Result<(), Violation> {
        for entry in entries.chunks_exact(6) {
            let id = u16::from_be_bytes([entry[0], entry[1]]);
            let value = u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]);
            match id {
                id::HEADER_TABLE_SIZE => self.header_table_size = value,
                id::ENABLE_PUSH | id::NO_RFC7540_PRIORITIES => _ = flag(value)?,
                id::MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = value,
                id::INITIAL_WINDOW_SIZE if value > MAX_WINDOW => {
                    let reason = "client sent SETTINGS frame with incorrect INITIAL_WINDOW_SIZE";
                    return Err(Violation::connection(ErrorCode::FlowControlError, reason));
                }
                id::INITIAL_WINDOW_SIZE => self.initial_window = value,
                id::MAX_FRAME_SIZE if !(MAX_PAYLOAD as u32..1 << 24).contains(&value) => {
                    let reason = "client sent SETTINGS frame with incorrect MAX_FRAME_SIZE";
                    return Err(Violation::connection(ErrorCode::ProtocolError, reason));
                }
                id::MAX_FRAME_SIZE => self.max_frame_size = value,
                id::ENABLE_CONNECT_PROTOCOL => self.connect_protocol = flag(value)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn flag(value: u32) -> Result<bool, Violation> {
    let reason = "client sent SETTINGS frame with a flag that is neither 0 nor 1";
    match value {
        0 | 1 => Ok(value == 1),
        _ => Err(Violation::connection(ErrorCode::ProtocolError, reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(entries: &[(u16, u32)]) -> Result<Settings, ErrorCode> {
        let mut bytes = Vec::new();
        for (id, value) in entries {
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.extend_from_slice(&value.to_be_bytes());
        }
        let mut settings = Settings::default();
        settings.apply(&bytes).map_err(|violation| violation.code)?;
        Ok(settings)
    }

    #[test]
    fn the_last_word_on_a_setting_holds() {
        let settings = apply(&[(4, 1), (1, 0), (4, 0x7fff_ffff), (5, 16_385), (0xff, 9), (8, 1)]);
        let expected = Settings {
            initial_window: MAX_WINDOW,
            header_table_size: 0,
            max_frame_size: 16_385,
            connect_protocol: true,
            ..Settings::default()
        };
        assert_eq!(settings, Ok(expected));
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        for (id, value, code) in [
            (2, 2, ErrorCode::ProtocolError),
            (4, 0x8000_0000, ErrorCode::FlowControlError),
            (5, 16_383, ErrorCode::ProtocolError),
            (5, 1 << 24, ErrorCode::ProtocolError),
            (8, 2, ErrorCode::ProtocolError),
            (9, 2, ErrorCode::ProtocolError),
        ] {
            assert_eq!(apply(&[(id, value)]), Err(code), "{id}");
        }
    }
}
