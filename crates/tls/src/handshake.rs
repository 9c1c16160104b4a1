//! Drives a rustls handshake over a transport, and takes the traffic keys over when it is done.
//!
//! Answers `ngx_ssl_handshake`.
//! Invariant: holds at most [`MAX_INPUT`] bytes of what the peer sent, and nothing of it once done.

use std::{future::poll_fn, io, io::IoSlice};

use forebay_rt::{pool, transport::Transport};
use rustls::{
    Error, ProtocolVersion,
    client::UnbufferedClientConnection,
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncodeError, UnbufferedStatus},
};

use crate::{
    records::{Key, record_len},
    stream::{Kernel, State},
};

/// How much of a handshake may be waiting to be whole: a chain of certificates, in several records.
const MAX_INPUT: usize = 128 << 10;

/// With less room than that, a buffer grows before it is read into.
const MIN_ROOM: usize = 1024;

/// Where a handshake stands.
pub(crate) enum Step {
    /// Something was done, and there may be more to do.
    Again,
    /// It needs more of the peer's bytes.
    Blocked,
    Done,
    /// The peer said that it closes.
    Closed,
}

/// Why a handshake came to nothing.
pub(crate) enum Trouble {
    Closed(Option<io::Error>),
    Failed(Error),
}

/// What a handshake leaves behind.
#[derive(Default)]
pub(crate) struct Exchange {
    /// What came and was not used.
    pub(crate) input: Vec<u8>,
    /// How much of it rustls has seen. It gets one record at a time, so that what follows the
    /// handshake (data, key updates) is left to us, whole.
    shown: usize,
    /// What is to be sent.
    pub(crate) output: Vec<u8>,
    /// Data that came with the handshake, opened.
    pub(crate) plain: Vec<u8>,
}

impl Exchange {
    pub(crate) fn new(input: Vec<u8>) -> Exchange {
        Exchange { input, ..Exchange::default() }
    }

    /// What rustls may look at.
    pub(crate) fn shown(&mut self) -> &mut [u8] {
        &mut self.input[..self.shown]
    }

    /// Drops what rustls is done with.
    pub(crate) fn discard(&mut self, len: usize) {
        self.input.drain(..len);
        self.shown -= len;
    }

    /// Shows one more record; `false`: there is no whole one.
    pub(crate) fn show_next(&mut self) -> bool {
        let rest = &self.input[self.shown..];
        match record_len(rest) {
            Some(Ok(len)) if rest.len() >= len => self.shown += len,
            // rustls shall say what is wrong with it.
            Some(Err(_)) => self.shown = self.input.len(),
            _ => return false,
        }
        true
    }
}

/// Either side of a handshake.
pub(crate) trait Party {
    /// Works on the input, once: how much of it is done with, and where that leads.
    fn step(&mut self, exchange: &mut Exchange) -> Result<Step, Error>;

    /// Whether something is to be sent that no step has given yet.
    fn has_output(&self) -> bool;

    /// The records' keys, and what of rustls goes on.
    fn into_state(self, record_bytes: usize) -> Result<Box<State>, Error>;
}

macro_rules! party {
    ($connection:ty, $kernel:path, $early:pat => $read:expr) => {
        impl Party for $connection {
            fn step(&mut self, exchange: &mut Exchange) -> Result<Step, Error> {
                let Exchange { input, shown, output, plain } = exchange;
                let input = &mut input[..*shown];
                let UnbufferedStatus { discard, state, .. } = self.process_tls_records(input);
                let step = match state {
                    Err(error) => Err(error),
                    Ok(ConnectionState::EncodeTlsData(mut data)) => {
                        encode(output, |room| data.encode(room)).map(|()| Step::Again)
                    }
                    Ok(ConnectionState::TransmitTlsData(data)) => {
                        data.done();
                        Ok(Step::Again)
                    }
                    Ok(ConnectionState::ReadTraffic(mut data)) => {
                        while let Some(record) = data.next_record() {
                            plain.extend_from_slice(record?.payload);
                        }
                        Ok(Step::Again)
                    }
                    Ok($early) => $read(plain),
                    Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Done),
                    Ok(ConnectionState::BlockedHandshake) => Ok(Step::Blocked),
                    Ok(_) => Ok(Step::Closed),
                };
                exchange.discard(discard);
                match step {
                    // The server may write already, but the client has not finished.
                    Ok(Step::Done) if self.is_handshaking() => Ok(Step::Blocked),
                    step => step,
                }
            }

            fn has_output(&self) -> bool {
                self.wants_write()
            }

            fn into_state(self, record_bytes: usize) -> Result<Box<State>, Error> {
                let version = self.protocol_version().ok_or(Error::HandshakeNotComplete)?;
                let (secrets, kernel) = self.dangerous_into_kernel_connection()?;
                let key = |secrets| {
                    Key::new(secrets, version).ok_or(Error::General("unknown cipher".into()))
                };
                // TLS 1.2 changes no keys and sends no tickets after the handshake.
                let kernel = match version {
                    ProtocolVersion::TLSv1_3 => $kernel(kernel),
                    _ => Kernel::None,
                };
                Ok(State::new(key(secrets.tx)?, key(secrets.rx)?, kernel, record_bytes))
            }
        }
    };
}

party!(UnbufferedServerConnection, Kernel::Server, ConnectionState::ReadEarlyData(mut data) =>
    |plain: &mut Vec<u8>| {
        while let Some(record) = data.next_record() {
            plain.extend_from_slice(record?.payload);
        }
        Ok(Step::Again)
    }
);
party!(UnbufferedClientConnection, Kernel::Client, ConnectionState::PeerClosed =>
    |_: &mut Vec<u8>| Ok(Step::Closed));

/// Appends what rustls has to send.
pub(crate) fn encode(
    output: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), Error> {
    let start = output.len();
    let mut room = 4096;
    loop {
        output.resize(start + room, 0);
        match encode(&mut output[start..]) {
            Ok(written) => {
                output.truncate(start + written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(size)) => room = size.required_size,
            Err(error @ EncodeError::AlreadyEncoded) => {
                output.truncate(start);
                return Err(Error::General(error.to_string()));
            }
        }
    }
}

/// Goes on until both sides have finished, or early data is there. What is then in `exchange.output`
/// is not sent yet.
pub(crate) async fn run<T: Transport>(
    io: &mut T,
    party: &mut impl Party,
    exchange: &mut Exchange,
) -> Result<(), Trouble> {
    loop {
        match party.step(exchange) {
            Ok(Step::Again) => {}
            Ok(Step::Done) => return Ok(()),
            Ok(Step::Closed) => return Err(Trouble::Closed(None)),
            Ok(Step::Blocked) if !exchange.plain.is_empty() => return Ok(()),
            Ok(Step::Blocked) if exchange.show_next() => {}
            Ok(Step::Blocked) => {
                flush(io, &mut exchange.output).await.map_err(closed)?;
                if read(io, &mut exchange.input).await? == 0 {
                    return Err(Trouble::Closed(None));
                }
            }
            Err(error) => {
                // The alert that says why.
                while party.has_output() && party.step(exchange).is_ok() {}
                let _ = flush(io, &mut exchange.output).await;
                return Err(Trouble::Failed(error));
            }
        }
    }
}

fn closed(error: io::Error) -> Trouble {
    Trouble::Closed(Some(error))
}

/// Receives more; 0: there is no more.
pub(crate) async fn read<T: Transport>(io: &mut T, input: &mut Vec<u8>) -> Result<usize, Trouble> {
    if input.capacity() == 0 {
        *input = pool::buffer();
    }
    if input.len() >= MAX_INPUT {
        return Err(Trouble::Failed(Error::PeerSentOversizedRecord));
    }
    if input.capacity() - input.len() < MIN_ROOM {
        input.reserve(pool::BUFFER_BYTES);
    }
    poll_fn(|cx| io.poll_read(cx, input)).await.map_err(closed)
}

/// Sends all of it and empties it.
pub(crate) async fn flush<T: Transport>(io: &mut T, output: &mut Vec<u8>) -> io::Result<()> {
    let mut at = 0;
    while at < output.len() {
        let slices = [IoSlice::new(&output[at..])];
        match poll_fn(|cx| io.poll_write(cx, &slices, false)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => at += sent,
        }
    }
    output.clear();
    Ok(())
}
