//! The kernel's software timestamps of a sample of requests and replies (SO_TIMESTAMPING of
//! socket(7)): when a request was handed to the device (Kawai and Yamaguchi, section 7, last
//! issue), read back from the socket's error queue, and when the last packet of a reply arrived
//! from it, read with the reply itself. With the thread's own times they divide the service time
//! into send lag, server with network, and receive lag.

use std::mem::size_of;
use std::os::fd::RawFd;

use crate::sys::errno;
use crate::sys::socket;
use crate::sys::tsc::Clock;

// From linux/net_tstamp.h and linux/errqueue.h.
const TX_SOFTWARE: u32 = 1 << 1;
const RX_SOFTWARE: u32 = 1 << 3;
const REPORT_SOFTWARE: u32 = 1 << 4;
const OPTION_ID: u32 = 1 << 7;
const OPTION_TIMESTAMP_ONLY: u32 = 1 << 11;
/// At most so many samples a second, so that the samples do not become the load.
const SAMPLES_PER_SECOND: f64 = 200.0;
const CONTROL_BYTES: usize = 256;
/// Two clocks are read in tens of nanoseconds; a comparison that takes no longer was not
/// interrupted, and is taken at once.
const SHORT_COMPARISON_NS: u64 = 200;
/// Where none is short (an emulated counter, a sanitizer), the shortest of so many counts.
const COMPARISONS: usize = 5;
/// A comparison that takes longer says too little to be told in microseconds.
const LONGEST_COMPARISON_NS: u64 = 10_000;

/// Room for control messages, aligned as they have to be.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Asks for the timestamp of every n-th request, or read.
pub(crate) struct Sampler {
    every: u64,
    count: u64,
}

impl Sampler {
    pub(crate) fn new(rate: f64) -> Sampler {
        Sampler { every: (rate / SAMPLES_PER_SECOND).ceil().max(1.0) as u64, count: 0 }
    }

    /// Whether the request or read at hand belongs to the sample.
    pub(crate) fn picks(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(self.every)
    }
}

/// Prepares a connection for samples; an old kernel's refusal only means that there are none.
pub(crate) fn prepare(fd: RawFd) {
    let flags = REPORT_SOFTWARE | RX_SOFTWARE | OPTION_ID | OPTION_TIMESTAMP_ONLY;
    let _ = socket::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &flags);
}

/// send(2) with the wish for a transmit timestamp of this message alone.
pub(crate) fn send_stamped(fd: RawFd, bytes: &[u8]) -> Result<usize, i32> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid msghdr without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE is arithmetic on its argument.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<u32>() as u32) } as usize;
    // SAFETY: the control buffer is aligned, and larger than a header with four bytes of data, so
    // the first header exists and its data may be written.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SO_TIMESTAMPING;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<u32>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<u32>().write_unaligned(TX_SOFTWARE);
    }
    // SAFETY: the message and all that it points at live through the call; the kernel reads only.
    let count = unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(count).map_err(|_| errno())
}

/// The oldest transmit timestamp in the connection's error queue, on the clock's scale; nothing if
/// the packet has not left yet, or the clocks could not be compared.
pub(crate) fn take(fd: RawFd, clock: &Clock) -> Option<u64> {
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: all zeros is a valid msghdr without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the message and its control buffer live through the call, with their true sizes.
    if unsafe { libc::recvmsg(fd, &raw mut message, flags) } < 0 {
        return None;
    }
    on_clock(stamp_in(&message)?, clock)
}

/// recv(2), and the timestamp of the last packet that it took bytes from, in nanoseconds of
/// CLOCK_REALTIME, where the kernel took one.
pub(crate) fn receive_stamped(fd: RawFd, buffer: &mut [u8]) -> (Result<usize, i32>, Option<u64>) {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is a valid msghdr without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    // SAFETY: the message, the buffer and the control buffer live through the call, with their
    // true sizes.
    let count = unsafe { libc::recvmsg(fd, &raw mut message, 0) };
    match usize::try_from(count) {
        Ok(count) => (Ok(count), stamp_in(&message)),
        Err(_) => (Err(errno()), None),
    }
}

/// A moment of CLOCK_REALTIME on the clock's scale; nothing if the clocks could not be compared.
/// They are compared now, a moment after the packet, so that their drift is nothing.
pub(crate) fn on_clock(realtime_ns: u64, clock: &Clock) -> Option<u64> {
    let (clock_ns, now_realtime_ns) = compare(clock)?;
    Some(clock_ns.saturating_sub(now_realtime_ns.saturating_sub(realtime_ns)))
}

/// The clock and CLOCK_REALTIME at one moment; nothing if the thread was interrupted again and
/// again.
fn compare(clock: &Clock) -> Option<(u64, u64)> {
    let mut shortest = (LONGEST_COMPARISON_NS, None);
    for _ in 0..COMPARISONS {
        let before_ns = clock.now_ns();
        let realtime_ns = realtime_now_ns();
        let took_ns = clock.now_ns().saturating_sub(before_ns);
        if took_ns < shortest.0 {
            shortest = (took_ns, Some((before_ns + took_ns / 2, realtime_ns)));
        }
        if took_ns < SHORT_COMPARISON_NS {
            break;
        }
    }
    shortest.1
}

/// The software timestamp among a message's control data, in nanoseconds of CLOCK_REALTIME.
fn stamp_in(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel filled the control buffer and set its length; the macros stay within it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: a header that the macros gave lies within the control buffer.
        let (level, kind, length) =
            unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
        // SAFETY: CMSG_LEN is arithmetic on its argument.
        let needed = unsafe { libc::CMSG_LEN(size_of::<libc::timespec>() as u32) } as usize;
        if level == libc::SOL_SOCKET && kind == libc::SCM_TIMESTAMPING && length >= needed {
            // SAFETY: the length says that a timespec follows the header; the first of the three
            // is the software timestamp.
            let stamp =
                unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
            let stamp_ns = stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64;
            // Zero: the packet came before the kernel took timestamps.
            return (stamp_ns > 0).then_some(stamp_ns);
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn realtime_now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_kernel_stamps_a_message_between_send_and_arrival() {
        let clock = Clock::calibrate();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = stream.as_raw_fd();
        prepare(fd);
        assert_eq!(socket::send(fd, b"plain"), Ok(5));
        assert_eq!(take(fd, &clock), None, "only marked messages are stamped");
        // The loopback device stamps at once; a try that is interrupted gives no stamp.
        let attempt = || {
            let before_ns = clock.now_ns();
            assert_eq!(send_stamped(fd, b"marked"), Ok(6));
            let stamp_ns = take(fd, &clock)?;
            Some((before_ns, stamp_ns, clock.now_ns()))
        };
        let (before_ns, stamp_ns, after_ns) =
            (0..100).find_map(|_| attempt()).expect("a stamp in a hundred tries");
        // Two clocks are involved, each read in tens of nanoseconds.
        assert!(before_ns <= stamp_ns + 2_000 && stamp_ns <= after_ns + 2_000);
        assert_eq!(take(fd, &clock), None, "one stamp per message");
    }

    #[test]
    fn the_kernel_stamps_a_reply_between_send_and_receipt() {
        use std::io::Write;
        use std::time::Duration;

        let clock = Clock::calibrate();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        prepare(stream.as_raw_fd());
        let mut buffer = [0; 64];
        // The kernel may begin to take receive timestamps a moment after the first socket asks.
        let mut attempt = || {
            let before_ns = clock.now_ns();
            peer.write_all(b"reply").unwrap();
            let (count, stamp) = receive_stamped(stream.as_raw_fd(), &mut buffer);
            assert_eq!(count, Ok(5));
            let stamp_ns = stamp.and_then(|stamp_ns| on_clock(stamp_ns, &clock));
            std::thread::sleep(Duration::from_millis(1));
            Some((before_ns, stamp_ns?, clock.now_ns()))
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
