//! What the kernel knows of a TCP connection (`getsockopt(TCP_INFO)`): nginx's `$tcpinfo_…`.
//!
//! Invariant: reads only; a number that is no TCP socket has no answer.

use std::{mem, os::fd::RawFd};

/// A few numbers of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// The round-trip time, microseconds.
    pub rtt: u32,
    /// How much it varies, microseconds.
    pub rtt_variance: u32,
    /// The congestion window, segments.
    pub send_window: u32,
    /// The receive buffer that the kernel aims at, bytes.
    pub receive_space: u32,
    /// How many segments with data have come.
    pub data_segments_in: u32,
}

/// Asks the kernel; `None` where the descriptor is not a TCP socket.
pub fn tcp_info(socket: RawFd) -> Option<TcpInfo> {
    let mut info: mem::MaybeUninit<libc::tcp_info> = mem::MaybeUninit::zeroed();
    let mut len = mem::size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has that many, and any number is
    // allowed as a descriptor; what it leaves out stays zero, which is a valid `tcp_info` of integers.
    #[allow(unsafe_code)]
    let (result, info) = unsafe {
        let result = libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        );
        (result, info.assume_init())
    };
    (result == 0).then_some(TcpInfo {
        rtt: info.tcpi_rtt,
        rtt_variance: info.tcpi_rttvar,
        send_window: info.tcpi_snd_cwnd,
        receive_space: info.tcpi_rcv_space,
        data_segments_in: info.tcpi_data_segs_in,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
        os::{fd::AsRawFd, unix::net::UnixStream},
    };

    use super::*;

    #[test]
    fn a_connected_socket_has_a_window() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(tcp_info(stream.as_raw_fd()).unwrap().send_window > 0);
    }

    #[test]
    fn segments_with_data_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        for n in 1..4 {
            stream.write_all(b"x").unwrap();
            other.read_exact(&mut [0]).unwrap();
            assert_eq!(tcp_info(other.as_raw_fd()).unwrap().data_segments_in, n);
        }
    }

    #[test]
    fn what_is_no_tcp_socket_has_no_answer() {
        let (unix, _other) = UnixStream::pair().unwrap();
        assert_eq!(tcp_info(unix.as_raw_fd()), None);
        assert_eq!(tcp_info(-1), None);
    }
}
