//! The writer's pages spliced into a pipe; a second pipe tells it how many messages were read
//! (section 2.1.3 of the paper).

use std::os::fd::OwnedFd;

use ipcload::{End, Load, Result};
use rustix::io::Errno;
use rustix::pipe::{IoSliceRaw, SpliceFlags, fcntl_setpipe_size, vmsplice};

use super::{LoopEnd, Notes, failed, no_longer_blocking, pipes, read_all, taken};
use crate::ipc::baseline::{broken, check_stop};

/// The most bytes of messages that are under way, unless the fewest messages have more.
const BYTES_MAX: usize = 1 << 20;
/// How many messages can be under way.
const MESSAGES: std::ops::RangeInclusive<usize> = 4..=1024;

pub(super) struct Vmsplice {
    input: OwnedFd,
    output: OwnedFd,
    /// The numbers of messages that were read, there and back.
    counts: Notes,
    /// The memory of messages that are under way, one after the other in turn.
    memory: Vec<u8>,
    messages: usize,
    next: usize,
    free: usize,
    incoming: Vec<u8>,
    /// Messages that were read, which the writer does not know.
    read: u64,
}

impl Vmsplice {
    fn new([input, output]: [OwnedFd; 2], counts: Notes, load: &Load) -> Vmsplice {
        let bytes = load.bytes();
        let messages = (BYTES_MAX / bytes).clamp(*MESSAGES.start(), *MESSAGES.end());
        // The kernel may refuse for a user with many pipes; the pipe then keeps its default size.
        let _ = fcntl_setpipe_size(&output, BYTES_MAX);
        Vmsplice {
            input,
            output,
            counts,
            memory: vec![0; messages * bytes],
            messages,
            next: 0,
            free: messages,
            incoming: vec![0; bytes],
            read: 0,
        }
    }
}

/// Splices all the bytes; their pages must not change before they are read.
fn splice_all(output: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let piece = IoSliceRaw::from_slice(bytes);
        // SAFETY: the piece is a borrowed slice, which the call only reads.
        match unsafe { vmsplice(output, &[piece], SpliceFlags::empty()) } {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => check_stop()?,
            Err(errno) => return Err(broken("splice into the path", errno)),
        }
    }
    Ok(())
}

impl LoopEnd for Vmsplice {
    fn create(load: &Load) -> Result<(Vmsplice, Vec<OwnedFd>)> {
        let (own, [input, output]) = pipes().map_err(|error| failed("make pipes", error))?;
        let (counts, [counts_input, counts_output]) = Notes::create()?;
        let others = vec![input, output, counts_input, counts_output];
        Ok((Vmsplice::new(own, counts, load), others))
    }

    fn open(load: &Load, inherited: Vec<OwnedFd>) -> Result<Vmsplice> {
        let [input, output, counts_input, counts_output] = taken(inherited)?;
        Ok(Vmsplice::new([input, output], Notes::new([counts_input, counts_output]), load))
    }
}

impl End for Vmsplice {
    #[inline]
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> Result<bool> {
        if self.free == 0 {
            self.free = self.counts.receive()? as usize;
        }
        let message = &mut self.memory[self.next * bytes..][..bytes];
        fill(message);
        splice_all(&self.output, message)?;
        self.next = (self.next + 1) % self.messages;
        self.free -= 1;
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    #[inline]
    fn receive(&mut self, look: impl FnOnce(&[u8])) -> Result<bool> {
        read_all(&self.input, &mut self.incoming, no_longer_blocking)?;
        look(&self.incoming);
        self.read += 1;
        if self.read as usize * 2 >= self.messages {
            self.counts.send(&[self.read])?;
            self.read = 0;
        }
        Ok(true)
    }
}
