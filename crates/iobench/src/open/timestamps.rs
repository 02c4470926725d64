//! Takes the kernel's software timestamps (SO_TIMESTAMPING of socket(7)) of a sample of requests:
//! when a request was handed to the device (Kawai and Yamaguchi, section 7, last issue), read from
//! the socket's error queue; and of every read: when the last packet of the replies was received,
//! read with them. With the thread's own times they divide the service time into send lag,
//! turnaround, and receive lag.

use std::mem::size_of;
use std::os::fd::RawFd;

use ::sys::clock::realtime_ns;

use crate::sys::clock::now_ns;
use crate::sys::errno;
use crate::sys::socket;

// From linux/net_tstamp.h and linux/errqueue.h.
const TX_SOFTWARE: u32 = 1 << 1;
const RX_SOFTWARE: u32 = 1 << 3;
const REPORT_SOFTWARE: u32 = 1 << 4;
const OPTION_ID: u32 = 1 << 7;
const OPTION_TIMESTAMP_ONLY: u32 = 1 << 11;
/// Most samples per second, so that sampling does not become a load.
const SAMPLES_PER_SECOND: f64 = 200.0;
const CONTROL_BYTES: usize = 256;
/// A control message's length, level and kind, of 8, 4 and 4 bytes.
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const ALIGNMENT: usize = size_of::<usize>();
/// Reading two clocks takes tens of nanoseconds. A comparison that takes no longer than this was
/// not interrupted and is accepted at once.
const SHORT_COMPARISON_NS: u64 = 200;
/// Otherwise (an emulated clock, a sanitizer) the shortest of this many comparisons is used.
const COMPARISONS: usize = 5;
/// A comparison that takes longer is too inexact for microseconds.
const LONGEST_COMPARISON_NS: u64 = 10_000;

/// Buffer for control messages, with their alignment. Each is a `cmsghdr`, see cmsg(3), and data up
/// to the next multiple of eight bytes.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Selects every n-th request.
pub(crate) struct Sampler {
    every: u64,
    count: u64,
}

impl Sampler {
    pub(crate) fn new(rate: f64) -> Sampler {
        Sampler { every: (rate / SAMPLES_PER_SECOND).ceil().max(1.0) as u64, count: 0 }
    }

    /// Returns whether the present request is in the sample.
    pub(crate) fn picks(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(self.every)
    }
}

/// Prepares a connection for samples; if an old kernel refuses, there are none.
pub(crate) fn prepare(fd: RawFd) {
    let flags = REPORT_SOFTWARE | RX_SOFTWARE | OPTION_ID | OPTION_TIMESTAMP_ONLY;
    let _ = socket::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &flags);
}

/// send(2) with a request for a transmit timestamp of this message alone.
pub(crate) fn send_stamped(fd: RawFd, bytes: &[u8]) -> Result<usize, i32> {
    let mut control = Control([0; CONTROL_BYTES]);
    let length = HEADER_BYTES + size_of::<u32>();
    control.0[..8].copy_from_slice(&length.to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::SO_TIMESTAMPING.to_ne_bytes());
    control.0[HEADER_BYTES..length].copy_from_slice(&TX_SOFTWARE.to_ne_bytes());
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = message(&mut control);
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_controllen = length.next_multiple_of(ALIGNMENT);
    // SAFETY: the message and the memory it points to live through the call; the kernel only reads.
    let count = unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(count).map_err(|_| errno())
}

/// Returns the oldest transmit timestamp in the connection's error queue, on the scale of
/// CLOCK_MONOTONIC;
/// `None` if the packet was not transmitted yet, or the clocks could not be compared.
pub(crate) fn take(fd: RawFd) -> Option<u64> {
    let (count, stamp) = receive(fd, &mut [], libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
    count.ok()?;
    on_clock(stamp?)
}

/// recv(2) with the timestamp of the last packet from which it took bytes, in nanoseconds of
/// CLOCK_REALTIME, if the kernel took one.
pub(crate) fn receive_stamped(fd: RawFd, buffer: &mut [u8]) -> (Result<usize, i32>, Option<u64>) {
    receive(fd, buffer, 0)
}

fn receive(fd: RawFd, buffer: &mut [u8], flags: i32) -> (Result<usize, i32>, Option<u64>) {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = message(&mut control);
    message.msg_iov = &raw mut part;
    message.msg_iovlen = usize::from(!buffer.is_empty());
    // SAFETY: the message, the buffer and the control buffer live through the call, with their
    // true sizes.
    let count = unsafe { libc::recvmsg(fd, &raw mut message, flags) };
    match usize::try_from(count) {
        Ok(count) => (Ok(count), stamp_in(&control.0[..message.msg_controllen])),
        Err(_) => (Err(errno()), None),
    }
}

/// Returns an empty message with a buffer for control messages.
fn message(control: &mut Control) -> libc::msghdr {
    // SAFETY: all zeros is a valid msghdr without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    message
}

/// Converts a time of CLOCK_REALTIME to that of CLOCK_MONOTONIC; `None` if the clocks could not be
/// compared. They are compared now, just after the packet, so that their drift is negligible.
pub(crate) fn on_clock(realtime_ns: u64) -> Option<u64> {
    let (clock_ns, now_realtime_ns) = compare()?;
    Some(clock_ns.saturating_sub(now_realtime_ns.saturating_sub(realtime_ns)))
}

/// Returns CLOCK_MONOTONIC and CLOCK_REALTIME at one moment; `None` if the thread was interrupted
/// repeatedly.
fn compare() -> Option<(u64, u64)> {
    let mut shortest = (LONGEST_COMPARISON_NS, None);
    for _ in 0..COMPARISONS {
        let before_ns = now_ns();
        let realtime_ns = realtime_ns();
        let took_ns = now_ns().saturating_sub(before_ns);
        if took_ns < shortest.0 {
            shortest = (took_ns, Some((before_ns + took_ns / 2, realtime_ns)));
        }
        if took_ns < SHORT_COMPARISON_NS {
            break;
        }
    }
    shortest.1
}

/// Returns the software timestamp among control messages, in nanoseconds of CLOCK_REALTIME.
fn stamp_in(mut control: &[u8]) -> Option<u64> {
    loop {
        let length = usize::from_ne_bytes(*control.first_chunk()?);
        let data = control.get(HEADER_BYTES..length)?;
        let field = |at: usize| control[at..].first_chunk().copied().map(i32::from_ne_bytes);
        if (field(8), field(12)) == (Some(libc::SOL_SOCKET), Some(libc::SCM_TIMESTAMPING)) {
            // The first of the three times is the software timestamp.
            let seconds = u64::from_ne_bytes(*data.first_chunk()?);
            let nanoseconds = u64::from_ne_bytes(*data.get(8..)?.first_chunk()?);
            let stamp_ns = seconds * 1_000_000_000 + nanoseconds;
            // Zero means that the packet arrived before the kernel took timestamps.
            return (stamp_ns > 0).then_some(stamp_ns);
        }
        control = control.get(length.next_multiple_of(ALIGNMENT)..)?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_kernel_stamps_a_message_between_send_and_arrival() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = stream.as_raw_fd();
        prepare(fd);
        assert_eq!(socket::send(fd, b"plain"), Ok(5));
        assert_eq!(take(fd), None, "only marked messages are stamped");
        // The loopback device stamps at once; a try that is interrupted gives no stamp.
        let attempt = || {
            let before_ns = now_ns();
            assert_eq!(send_stamped(fd, b"marked"), Ok(6));
            let stamp_ns = take(fd)?;
            Some((before_ns, stamp_ns, now_ns()))
        };
        let (before_ns, stamp_ns, after_ns) =
            (0..100).find_map(|_| attempt()).expect("a stamp in a hundred tries");
        // Two clocks are involved, each read in tens of nanoseconds.
        assert!(before_ns <= stamp_ns + 2_000 && stamp_ns <= after_ns + 2_000);
        assert_eq!(take(fd), None, "one stamp per message");
    }

    #[test]
    fn the_kernel_stamps_a_reply_between_send_and_receipt() {
        use std::io::Write;
        use std::time::Duration;

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        prepare(stream.as_raw_fd());
        let mut buffer = [0; 64];
        // The kernel may start to take receive timestamps a moment after the first socket requests
        // them.
        let mut attempt = || {
            let before_ns = now_ns();
            peer.write_all(b"reply").unwrap();
            let (count, stamp) = receive_stamped(stream.as_raw_fd(), &mut buffer);
            assert_eq!(count, Ok(5));
            let stamp_ns = stamp.and_then(on_clock);
            std::thread::sleep(Duration::from_millis(1));
            Some((before_ns, stamp_ns?, now_ns()))
        };
        let (before_ns, stamp_ns, after_ns) =
            (0..1_000).find_map(|_| attempt()).expect("a stamp in a thousand tries");
        assert!(before_ns <= stamp_ns + 2_000 && stamp_ns <= after_ns + 2_000);
        assert_eq!(&buffer[..5], b"reply");
    }

    #[test]
    fn samples_are_bounded_in_rate() {
        let mut sampler = Sampler::new(8_000.0);
        assert_eq!((0..8_000).filter(|_| sampler.picks()).count(), 200);
        let mut sampler = Sampler::new(10.0);
        assert!(sampler.picks());
    }
}
