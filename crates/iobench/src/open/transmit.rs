//! When did a request really leave? The kernel's software transmit timestamps answer that for a
//! sample (Kawai and Yamaguchi, section 7, last issue): they are taken where the packet is handed
//! to the device, and read back from the socket's error queue.

use std::mem::size_of;
use std::os::fd::RawFd;

use crate::sys::errno;
use crate::sys::socket;
use crate::sys::tsc::Clock;

// From linux/net_tstamp.h and linux/errqueue.h.
const TX_SOFTWARE: u32 = 1 << 1;
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

/// Asks for the timestamp of every n-th request.
pub(crate) struct Sampler {
    every: u64,
    count: u64,
}

impl Sampler {
    pub(crate) fn new(rate: f64) -> Sampler {
        Sampler { every: (rate / SAMPLES_PER_SECOND).ceil().max(1.0) as u64, count: 0 }
    }

    /// Whether the request at hand belongs to the sample.
    pub(crate) fn picks(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(self.every)
    }
}

/// Prepares a connection for samples; an old kernel's refusal only means that there are none.
pub(crate) fn prepare(fd: RawFd) {
    let flags = REPORT_SOFTWARE | OPTION_ID | OPTION_TIMESTAMP_ONLY;
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
    let realtime_ns = stamp_in(&message)?;
    // The two clocks are compared now, a moment after the packet, so that their drift is nothing.
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
            return Some(stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64);
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
    fn samples_are_bounded_in_rate() {
        let mut sampler = Sampler::new(8_000.0);
        assert_eq!((0..8_000).filter(|_| sampler.picks()).count(), 200);
        let mut sampler = Sampler::new(10.0);
        assert!(sampler.picks());
    }
}
