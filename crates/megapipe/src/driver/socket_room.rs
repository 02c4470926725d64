//! Computes how many bytes of a file a blocking stream socket takes without a wait.
//!
//! sendfile(2) has no flag against waiting. Its flag would be the socket's `O_NONBLOCK`, which
//! belongs to the open file description and so to all that share it. But Linux waits at one place
//! only: where it begins another buffer while the memory of those that are queued has reached
//! `SO_SNDBUF`. That memory is known (`SO_MEMINFO`), and so is the smallest buffer, so the number
//! of bytes that fit in any case can be computed.
//!
//! This holds for plain TCP and UNIX sockets that only this channel writes to. It does not for TCP
//! with an upper-layer protocol (TLS) or a limit on unsent bytes (`TCP_NOTSENT_LOWAT`), nor for
//! other protocols. The kernel also waits, up to 0.2 s at a time, when TCP sockets have reached the
//! memory limit of the system (`net.ipv4.tcp_mem`).

use crate::sys::{get_number, get_option, is_writable};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// The room of a blocking socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The socket takes this many bytes without a wait.
    Bytes(u32),
    /// Too few bytes fit; poll(2) reports when there is more room.
    Full,
    /// A call might wait, or to know it is not worth the calls.
    Unknown,
}

/// So many bytes are read and written in less time than the calls here take.
const COPIED_BYTES: u32 = 32 << 10;

/// Fewer bytes are not worth a call, unless they are all.
const PIECE_BYTES: u32 = 64 << 10;

/// The most that an empty buffer takes of the memory: its head and its description, 1,280 bytes on
/// x86-64 (`SKB_TRUESIZE` of `MAX_TCP_HEADER`, rounded by the allocator).
const BUFFER_OVERHEAD: u64 = 1536;

/// The most bytes that a buffer is assumed to carry. Before Linux 6.5 the kernel passes one page at
/// a time to the socket, which may begin a buffer with each.
const PAYLOAD_MAX: u64 = 4096;

/// Computes the room for up to `bytes` bytes.
pub(super) fn of(socket: RawFd, bytes: u32) -> Room {
    if bytes <= COPIED_BYTES {
        return Room::Unknown;
    }
    let Some(free) = free_bytes(socket) else { return Room::Unknown };
    let free = u32::try_from(free).unwrap_or(u32::MAX);
    if free >= bytes.min(PIECE_BYTES) {
        return Room::Bytes(free.min(bytes));
    }
    // A socket with a very small buffer counts as writable although no piece fits.
    if is_writable(socket) { Room::Unknown } else { Room::Full }
}

/// Returns the number of bytes that fit in any case; `None` if that is unknown.
fn free_bytes(socket: RawFd) -> Option<u64> {
    let payload = match get_number(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL).ok()? {
        libc::IPPROTO_TCP => tcp_payload(socket)?.min(PAYLOAD_MAX),
        0 if is_unix(socket) => PAYLOAD_MAX,
        _ => return None,
    };
    let free = free_memory(socket)?;
    // The first buffer and the last may carry fewer bytes.
    let free = free.saturating_sub(2 * BUFFER_OVERHEAD);
    Some(free * payload / (payload + BUFFER_OVERHEAD))
}

/// Returns the memory that the socket's queue may still take.
fn free_memory(socket: RawFd) -> Option<u64> {
    // `SK_MEMINFO_…` of `linux/sock_diag.h`. TCP counts its queue in the last of these, UNIX
    // sockets in the first.
    const WRITE_ALLOCATED: usize = 2;
    const WRITE_BUFFER: usize = 3;
    const WRITE_QUEUED: usize = 5;
    let mut values = [0; 4 * (WRITE_QUEUED + 1)];
    let filled = get_option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut values).ok()?;
    if filled < values.len() {
        return None;
    }
    let used = number_at(&values, WRITE_ALLOCATED)?.max(number_at(&values, WRITE_QUEUED)?);
    Some(u64::from(number_at(&values, WRITE_BUFFER)?.saturating_sub(used)))
}

/// Returns the fewest bytes with which a connection of plain TCP fills a buffer; `None` if the
/// socket is no such connection, or may wait for another reason than its memory.
fn tcp_payload(socket: RawFd) -> Option<u64> {
    /// Options of a segment that the size does not take into account.
    const OPTIONS_BYTES: u32 = 40;
    /// `tcpi_state`, and `tcpi_snd_mss` as a number of words.
    const STATE: usize = 0;
    const SEGMENT: usize = 4;
    const ESTABLISHED: u8 = 1;
    const CLOSE_WAIT: u8 = 8;
    let mut info = [0; 4 * (SEGMENT + 1)];
    let filled = get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
    let is_connected = matches!(info[STATE], ESTABLISHED | CLOSE_WAIT);
    if filled < info.len() || !is_connected || !has_no_unsent_limit(socket) || has_layer(socket) {
        return None;
    }
    let payload = number_at(&info, SEGMENT)?.saturating_sub(OPTIONS_BYTES);
    (payload > 0).then_some(payload.into())
}

fn number_at(values: &[u8], index: usize) -> Option<u32> {
    let (bytes, _) = values.get(4 * index..)?.split_first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn is_unix(socket: RawFd) -> bool {
    get_number(socket, libc::SOL_SOCKET, libc::SO_DOMAIN).is_ok_and(|it| it == libc::AF_UNIX)
}

/// Returns whether an upper-layer protocol works on the connection.
fn has_layer(socket: RawFd) -> bool {
    let mut name = [0; 16];
    !matches!(get_option(socket, libc::IPPROTO_TCP, libc::TCP_ULP, &mut name), Ok(0))
}

/// Returns whether neither the socket nor the system limits the bytes that are not sent yet.
fn has_no_unsent_limit(socket: RawFd) -> bool {
    match get_number(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) {
        Ok(0) => system_has_no_unsent_limit(),
        // The largest number.
        Ok(limit) => limit == -1,
        Err(_) => false,
    }
}

/// Returns whether new and existing TCP sockets have no limit by the system's setting, which is
/// read once a second at most.
fn system_has_no_unsent_limit() -> bool {
    const SETTING: &str = "/proc/sys/net/ipv4/tcp_notsent_lowat";
    const VALID: Duration = Duration::from_secs(1);
    thread_local! {
        static KNOWN: Cell<Option<(Instant, bool)>> = const { Cell::new(None) };
    }
    let now = Instant::now();
    match KNOWN.get() {
        Some((read, unlimited)) if now.saturating_duration_since(read) < VALID => unlimited,
        _ => {
            let setting = std::fs::read_to_string(SETTING).unwrap_or_default();
            let unlimited = matches!(setting.trim(), "4294967295" | "-1");
            KNOWN.set(Some((now, unlimited)));
            unlimited
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::set_number;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixStream;

    const MANY: u32 = 1 << 20;

    fn tcp_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // Whatever the system's setting is.
        set_number(near.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, -1).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Fills a socket by sendfile(2) as far as it has room. A call that waits never returns,
    /// because the peer does not read. Returns the number of bytes.
    fn fill(socket: RawFd, piece: u32) -> u64 {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; MANY as usize], 0).unwrap();
        let mut sent = 0;
        while let Room::Bytes(bytes) = of(socket, piece) {
            let mut offset = 0;
            // SAFETY: the offset is valid for the call.
            let result = unsafe {
                libc::sendfile(socket, file.as_raw_fd(), &raw mut offset, bytes as usize)
            };
            assert_eq!(result, bytes as isize);
            sent += u64::from(bytes);
        }
        sent
    }

    #[test]
    fn a_socket_is_filled_without_a_wait() {
        for piece in [MANY, PIECE_BYTES, COPIED_BYTES + 1] {
            let (near, mut far) = tcp_pair();
            let sent = fill(near.as_raw_fd(), piece);
            assert!(sent > PIECE_BYTES.into(), "{sent} bytes");
            assert_eq!(of(near.as_raw_fd(), piece), Room::Full, "pieces of {piece}");
            drop(near);
            let mut found = Vec::new();
            far.read_to_end(&mut found).unwrap();
            assert_eq!(found.len() as u64, sent);
        }
    }

    #[test]
    fn a_unix_socket_is_filled_without_a_wait() {
        for piece in [MANY, PIECE_BYTES, COPIED_BYTES + 1] {
            let (near, _far) = UnixStream::pair().unwrap();
            let sent = fill(near.as_raw_fd(), piece);
            assert!(sent > COPIED_BYTES.into(), "{sent} bytes");
            assert_eq!(of(near.as_raw_fd(), piece), Room::Full, "pieces of {piece}");
        }
    }

    #[test]
    fn a_full_socket_has_no_room_until_its_peer_reads() {
        let (near, mut far) = tcp_pair();
        let socket = near.as_raw_fd();
        let mut left = fill(socket, MANY);
        assert_eq!(of(socket, MANY), Room::Full);
        let mut found = vec![0; MANY as usize];
        while of(socket, MANY) == Room::Full {
            assert!(left > 0, "the peer has read all");
            left -= far.read(&mut found).unwrap() as u64;
        }
    }

    #[test]
    fn small_segments_need_more_room() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_number(listener.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG, 100).unwrap();
        let _near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        set_number(far.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, -1).unwrap();
        let payload = tcp_payload(far.as_raw_fd()).unwrap();
        assert!(payload < 100, "{payload} bytes");
        let free = free_memory(far.as_raw_fd()).unwrap();
        let bytes = free_bytes(far.as_raw_fd()).unwrap();
        assert!(bytes * (payload + BUFFER_OVERHEAD) <= free * payload, "{bytes} bytes");
        fill(far.as_raw_fd(), MANY);
    }

    #[test]
    fn a_small_send_buffer_leaves_the_bytes_to_writes() {
        let (near, _far) = tcp_pair();
        set_number(near.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 1).unwrap();
        assert_eq!(of(near.as_raw_fd(), MANY), Room::Unknown);
    }

    #[test]
    fn sockets_that_wait_for_other_reasons_are_left_to_writes() {
        let (near, _far) = tcp_pair();
        assert_eq!(of(near.as_raw_fd(), PIECE_BYTES), Room::Bytes(PIECE_BYTES));
        assert_eq!(of(near.as_raw_fd(), COPIED_BYTES), Room::Unknown, "few bytes");
        set_number(near.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 1 << 20).unwrap();
        assert_eq!(of(near.as_raw_fd(), PIECE_BYTES), Room::Unknown, "a limit on unsent bytes");
        set_number(near.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, -1).unwrap();
        assert_eq!(of(near.as_raw_fd(), PIECE_BYTES), Room::Bytes(PIECE_BYTES));
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(of(reader.as_raw_fd(), PIECE_BYTES), Room::Unknown, "no socket");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(of(listener.as_raw_fd(), PIECE_BYTES), Room::Unknown, "not connected");
    }
}
