//! Transport over cooperative `vmsplice` (section 2.1.5 of the paper).
//!
//! The writer's pages themselves go into a pipe, and the reader's `read` is the only copy. The
//! kernel does not report when that has happened, so the reader does: through a second pipe it
//! sends how many bytes of the stream it has read so far, in eight bytes. Until then the writer
//! does not change the pages. A reader that reports too much gets messages that change while it
//! reads them, and harms only itself; a reader that reports nothing stops the writer.
//!
//! A pipe has room for a number of pages, 16 at first, however little of each is used. Short
//! messages therefore share pages and, in a batch, an entry of the pipe. `SPLICE_F_GIFT` is not
//! set, because the pages are used again.
//!
//! A write to a pipe whose reader is dead raises `SIGPIPE`, and `vmsplice` has no flag against
//! that. The signal is blocked and removed, so the application never receives it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::framing::{Framed, Keeping, Link, Need, Received};
use super::pipe::{self, End};
use super::{Offer, PathOptions, Transport, sigpipe};
use crate::error::{TransportError, TransportResult};
use crate::kind::Kind;

/// The most unread memory of a writer. The lower bound leaves room for what the reader has read and
/// not acknowledged yet.
const UNREAD_BYTES_MIN: usize = 4 * ACKNOWLEDGE_BYTES as usize;
const UNREAD_BYTES_MAX: usize = 16 << 20;

/// The reader reports after this many bytes, and whenever it finds the pipe empty.
const ACKNOWLEDGE_BYTES: u64 = 64 << 10;

/// The writer reads acknowledgements at least this often, so that their pipe never fills: a writer
/// that waits for the last one would not get it. Each call of `vmsplice` sends 16 pieces at most,
/// and no piece or page is acknowledged in more than two parts.
const CALLS_UNHEARD_MAX: u32 = 128;
const BYTES_UNHEARD_MAX: u64 = 4 << 20;

/// The most reads of acknowledgements in a row.
const READS_MAX: usize = 64;

/// Makes a path, and the offer for the other end.
pub(super) fn create(options: PathOptions) -> TransportResult<(Box<dyn Transport>, Offer)> {
    let (data_in, peer_data_out) = pipe::make(options.ring_bytes)?;
    let (peer_data_in, data_out) = pipe::make(options.ring_bytes)?;
    let (read_in, peer_read_out) = pipe::make(0)?;
    let (peer_read_in, read_out) = pipe::make(0)?;
    let descriptors = vec![peer_data_in, peer_data_out, peer_read_in, peer_read_out];
    let transport = framed([data_in, data_out, read_in, read_out], options)?;
    Ok((transport, Offer { kind: Kind::VmspliceCoop, descriptors }))
}

/// Opens the other end of a path.
pub(super) fn open(offer: Offer) -> TransportResult<Box<dyn Transport>> {
    let pipes = <[_; 4]>::try_from(offer.descriptors)
        .map_err(|_| TransportError::BadOffer("vmsplice needs four pipes"))?;
    for (number, pipe) in pipes.iter().enumerate() {
        let end = if number % 2 == 0 { End::Reading } else { End::Writing };
        pipe::check(pipe.as_fd(), end)?;
    }
    // This end chooses its own memory limit; the pipe's size shows what the other end intended.
    let ring_bytes = pipe::bytes(pipes[1].as_fd())?;
    framed(pipes, PathOptions { ring_bytes, ..PathOptions::default() })
}

fn framed(pipes: [OwnedFd; 4], options: PathOptions) -> TransportResult<Box<dyn Transport>> {
    let bytes_max = options.ring_bytes.clamp(UNREAD_BYTES_MIN, UNREAD_BYTES_MAX);
    let [data_in, data_out, read_in, read_out] = pipes;
    let link = SpliceLink {
        data_in,
        data_out,
        read_in,
        read_out,
        heard: 0,
        calls_unheard: 0,
        bytes_unheard: 0,
        received: 0,
        told: 0,
    };
    Ok(Box::new(Framed::new(Kind::VmspliceCoop, link, Keeping::UntilRead { bytes_max })?))
}

struct SpliceLink {
    data_in: OwnedFd,
    data_out: OwnedFd,
    /// The pipe with the peer's reports, and the pipe for the reports to the peer.
    read_in: OwnedFd,
    read_out: OwnedFd,
    heard: u64,
    calls_unheard: u32,
    bytes_unheard: u64,
    received: u64,
    told: u64,
}

impl SpliceLink {
    /// Reports to the peer what was read. If the pipe is full, the next report covers it.
    fn tell(&mut self) -> TransportResult<()> {
        if self.told == self.received {
            return Ok(());
        }
        let word = self.received.to_le_bytes();
        match pipe::write(self.read_out.as_fd(), &[IoSlice::new(&word)]) {
            Ok(0) | Err(TransportError::Closed) => Ok(()),
            Ok(_) => {
                self.told = self.received;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the peer's reports; the last one counts. Pipes transfer whole words, because a correct
    /// peer writes whole words. At most one full pipe of reports is read at once.
    fn hear(&mut self) -> TransportResult<()> {
        (self.calls_unheard, self.bytes_unheard) = (0, 0);
        let mut room = [0; 4096];
        for _ in 0..READS_MAX {
            let bytes = match pipe::read(self.read_in.as_fd(), &mut room)? {
                Received::Bytes(bytes) => bytes,
                Received::Nothing => return Ok(()),
                Received::End | Received::Failed => return Err(TransportError::Closed),
            };
            let (words, rest) = room[..bytes].as_chunks::<8>();
            if !rest.is_empty() {
                let what = "a broken acknowledgement";
                return Err(TransportError::Corrupt { transport: "vmsplice-coop", what });
            }
            self.heard = words.last().map_or(self.heard, |word| u64::from_le_bytes(*word));
            if bytes < room.len() {
                break;
            }
        }
        Ok(())
    }
}

/// Puts the pieces into the pipe as pages, without a copy.
fn splice(pipe: BorrowedFd<'_>, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    let (start, count) = (pieces.as_ptr().cast(), pieces.len());
    // SAFETY: `IoSlice` is guaranteed to have the layout of the kernel's `iovec`. The pages do not
    // change until the peer has read them, see `Keeping::UntilRead`.
    let spliced =
        unsafe { libc::vmsplice(pipe.as_raw_fd(), start, count, libc::SPLICE_F_NONBLOCK) };
    usize::try_from(spliced).map_err(|_| io::Error::last_os_error())
}

impl Link for SpliceLink {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> TransportResult<usize> {
        if self.calls_unheard >= CALLS_UNHEARD_MAX || self.bytes_unheard >= BYTES_UNHEARD_MAX {
            self.hear()?;
        }
        self.calls_unheard += 1;
        loop {
            let spliced = sigpipe::without(|| {
                let spliced = splice(self.data_out.as_fd(), pieces);
                let is_broken = matches!(&spliced, Err(e) if e.raw_os_error() == Some(libc::EPIPE));
                (spliced, is_broken)
            });
            let source = match spliced {
                Ok(bytes) => {
                    self.bytes_unheard += bytes as u64;
                    return Ok(bytes);
                }
                Err(source) => source,
            };
            match source.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(0),
                Some(libc::EINTR) => {}
                Some(libc::EPIPE) => return Err(TransportError::Closed),
                _ => return Err(TransportError::System { call: "vmsplice", source }),
            }
        }
    }

    fn receive(&mut self, room: &mut [u8]) -> TransportResult<Received> {
        let received = pipe::read(self.data_in.as_fd(), room)?;
        if let Received::Bytes(bytes) = received {
            self.received += bytes as u64;
        }
        if received == Received::Nothing || self.received - self.told >= ACKNOWLEDGE_BYTES {
            self.tell()?;
        }
        Ok(received)
    }

    fn acknowledged(&mut self) -> TransportResult<Option<u64>> {
        self.hear()?;
        Ok(Some(self.heard))
    }

    fn readiness(&self, need: Need) -> (RawFd, i16) {
        match need {
            Need::Arrival => (self.data_in.as_raw_fd(), libc::POLLIN),
            Need::Room => (self.data_out.as_raw_fd(), libc::POLLOUT),
            Need::Acknowledgement => (self.read_in.as_raw_fd(), libc::POLLIN),
        }
    }
}
