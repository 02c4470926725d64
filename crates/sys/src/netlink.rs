//! Writes, sends and parses messages of netlink(7), such as those of rtnetlink(7) about network
//! devices, with every length checked. Numbers are in native byte order.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
const ALIGNMENT: usize = 4;
/// Size of the read buffer. The kernel makes its datagrams at most this long for a reader with such
/// a buffer.
const DUMP_READ_BYTES: usize = 32 << 10;
const DUMP_READS_MAX: usize = 4096;
/// Flags in an attribute's type: nested, network byte order.
const ATTRIBUTE_FLAGS: u16 = 0xc000;

/// A request under construction.
pub struct Request {
    bytes: Vec<u8>,
}

/// The position of an attribute whose length is not known yet.
pub struct Nest(usize);

impl Request {
    /// A request of this type (`RTM_…`), with flags (`NLM_F_…`) in addition to `NLM_F_REQUEST`.
    pub fn new(kind: u16, flags: libc::c_int) -> Request {
        let flags = (libc::NLM_F_REQUEST | flags) as u16;
        let mut bytes = 0_u32.to_ne_bytes().to_vec();
        bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
        // The sequence number, and the port, which the kernel fills in.
        bytes.extend([0; 8]);
        Request { bytes }
    }

    /// A request for all objects of a kind: RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE, RTM_GETNEIGH.
    pub fn all(kind: u16) -> Request {
        let mut request = Request::new(kind, libc::NLM_F_DUMP);
        // All families: a fixed part of zeros with the length of the kernel's longest one.
        request.body(&[0; size_of::<[u32; 4]>()]);
        request
    }

    /// Sets the sequence number, which the answers will have.
    pub fn number(&mut self, sequence: u32) {
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    }

    /// Appends the fixed part of this type of request.
    pub fn body(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an `ifinfomsg` for a device that an attribute names, with the flags (`IFF_…`) to
    /// set; without flags the device keeps its own.
    pub fn interface(&mut self, flags: libc::c_int) {
        self.bytes.extend([[0; 4], [0; 4], flags.to_ne_bytes(), [0; 4]].concat());
    }

    /// Appends an attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let nest = self.begin(kind);
        self.bytes.extend_from_slice(value);
        self.end(nest);
    }

    /// Appends an attribute with a zero-terminated string.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// Begins a nested attribute, up to [`Request::end`].
    pub fn begin(&mut self, kind: u16) -> Nest {
        let at = self.bytes.len();
        self.bytes.extend([0_u16.to_ne_bytes(), kind.to_ne_bytes()].concat());
        Nest(at)
    }

    /// Ends a nested attribute.
    pub fn end(&mut self, Nest(at): Nest) {
        let length = self.bytes.len() - at;
        debug_assert!(length >= ATTRIBUTE_HEADER_BYTES, "the attribute has been begun here");
        self.bytes[at..at + 2].copy_from_slice(&(length as u16).to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }

    /// The whole message.
    pub fn into_bytes(mut self) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes
    }

    /// Sends the request, which has to have `NLM_F_ACK`, to rtnetlink in the calling thread's
    /// namespace, and waits for its result.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn carry_out(self) -> io::Result<()> {
        let mut socket = self.send(None, SocketFlags::empty())?;
        let mut answer = [0_u8; 4096];
        let length = socket.read(&mut answer)?;
        let first = messages(&answer[..length]).next();
        let first = first.ok_or(io::ErrorKind::InvalidData)??;
        first.outcome().unwrap_or_else(|| Err(io::ErrorKind::InvalidData.into()))
    }

    /// Sends the request, which has to have `NLM_F_DUMP`, as [`Request::carry_out`] does, and
    /// passes the answers to `take`.
    ///
    /// # Errors
    /// The errors of the kernel, and `InvalidData` if an answer is truncated or the last one is
    /// missing.
    pub fn dump(self, mut take: impl FnMut(Message<'_>)) -> io::Result<()> {
        let mut socket = self.send(None, SocketFlags::empty())?;
        let mut answer = vec![0; DUMP_READ_BYTES];
        for _ in 0..DUMP_READS_MAX {
            let length = socket.read(&mut answer)?;
            for message in messages(&answer[..length]) {
                let message = message?;
                match message.outcome() {
                    Some(outcome) => return outcome,
                    None => take(message),
                }
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// Sends the request over a new socket of this netlink protocol, by default rtnetlink, created
    /// with these flags in addition to `SOCK_CLOEXEC`; the caller reads the answers from it.
    ///
    /// # Errors
    /// The errors of socket(2) and write(2).
    pub fn send(self, protocol: Option<Protocol>, flags: SocketFlags) -> io::Result<File> {
        let flags = SocketFlags::CLOEXEC | flags;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        let mut socket = File::from(socket);
        socket.write_all(&self.into_bytes())?;
        Ok(socket)
    }
}

/// A message of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// `RTM_…`, `NLMSG_…` or a type of another protocol.
    pub kind: u16,
    /// `NLM_F_…`.
    pub flags: u16,
    /// The sequence number of the request that it answers.
    pub sequence: u32,
    /// The bytes after the header.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Takes the first message from a datagram.
    fn take(datagram: &mut &'a [u8]) -> Option<Message<'a>> {
        let bytes = *datagram;
        let length = u32_at(bytes, 0)? as usize;
        let body = bytes.get(HEADER_BYTES..length)?;
        *datagram = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        let (kind, flags) = (u16_at(bytes, 4)?, u16_at(bytes, 6)?);
        Some(Message { kind, flags, sequence: u32_at(bytes, 8)?, body })
    }

    /// Whether this is the end of a dump.
    pub fn is_done(&self) -> bool {
        libc::c_int::from(self.kind) == libc::NLMSG_DONE
    }

    /// The result of a request, if this message has it: success, the end of its dump, or an error.
    pub fn outcome(&self) -> Option<io::Result<()>> {
        match self.error() {
            Some(0) => Some(Ok(())),
            Some(code) => Some(Err(io::Error::from_raw_os_error(code.saturating_neg()))),
            None => self.is_done().then_some(Ok(())),
        }
    }

    /// The error code of a request: zero or a negative errno. `None` if this message has none.
    pub fn error(&self) -> Option<i32> {
        let tells = libc::c_int::from(self.kind) == libc::NLMSG_ERROR;
        tells.then(|| u32_at(self.body, 0).map(u32::cast_signed))?
    }
}

/// The messages of a datagram, up to the first truncated one, which is an error.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = io::Result<Message<'_>>> {
    std::iter::from_fn(move || {
        let begun = !datagram.is_empty();
        begun.then(|| {
            Message::take(&mut datagram).ok_or_else(|| {
                datagram = &[];
                io::ErrorKind::InvalidData.into()
            })
        })
    })
}

/// The attributes after a message's fixed part, types and values, up to the first truncated one.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & !ATTRIBUTE_FLAGS;
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of this type.
pub fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// The IP address in an attribute's value, by its length.
pub fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(value).ok().map(IpAddr::from);
    v4().or_else(v6)
}

/// The two-byte number at a position; `None` if it is truncated.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The four-byte number at a position; `None` if it is truncated.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_nested_and_padded() {
        let mut request = Request::new(libc::RTM_NEWLINK, 0);
        let outer = request.begin(1);
        request.text(2, "ab");
        request.attribute(3, &[7; 4]);
        request.end(outer);
        let lengths: Vec<u16> =
            [16, 20, 28].into_iter().map(|at| u16_at(&request.bytes, at).unwrap()).collect();
        assert_eq!(lengths, [20, 7, 8]);
        assert_eq!(request.bytes.len(), 36);
    }

    #[test]
    fn what_is_written_is_read() {
        let mut request = Request::new(libc::RTM_NEWLINK, libc::NLM_F_ACK);
        request.number(7);
        request.text(2, "ab");
        let mut bytes = request.into_bytes().repeat(2);
        let read = |bytes: &[u8]| -> Vec<_> {
            messages(bytes).map(|found| found.ok().map(|found| found.sequence)).collect()
        };
        assert_eq!(read(&bytes), [Some(7), Some(7)]);
        let first = messages(&bytes).next().unwrap().unwrap();
        assert_eq!(i32::from(first.flags), libc::NLM_F_REQUEST | libc::NLM_F_ACK);
        assert_eq!((first.kind, attribute(first.body, 2)), (libc::RTM_NEWLINK, Some(&b"ab\0"[..])));
        bytes.pop();
        assert_eq!(read(&bytes), [Some(7), None]);
    }

    #[test]
    fn attributes_of_impossible_lengths_are_no_attributes() {
        for length in [0_u16, 1, 3, 200, u16::MAX] {
            let bytes = [length.to_ne_bytes(), 4_u16.to_ne_bytes(), [0; 2], [0; 2]].concat();
            assert_eq!(attribute(&bytes, 4), None, "{length}");
        }
        assert_eq!(attribute(&[], 4), None);
    }

    #[test]
    fn a_dump_hands_over_what_there_is() {
        let mut names = Vec::new();
        let take = |message: Message<'_>| {
            let attributes = message.body.get(16..).unwrap_or_default();
            names.extend(attribute(attributes, libc::IFLA_IFNAME).map(<[u8]>::to_vec));
        };
        Request::all(libc::RTM_GETLINK).dump(take).unwrap();
        assert!(names.contains(&b"lo\0".to_vec()), "{names:?}");
    }

    #[test]
    fn refusals_are_told() {
        let mut request = Request::new(libc::RTM_NEWLINK, libc::NLM_F_ACK);
        request.interface(0);
        request.text(libc::IFLA_IFNAME, "nothing");
        assert!(request.carry_out().is_err());
    }
}
