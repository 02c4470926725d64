//! Defines the messages between controller and agent over pipes: frames of numbers and bytes.

use std::io;

/// Maximum number of numbers or bytes in a frame.
const LENGTH_MAX: u32 = 64 << 20;

/// Defines an enum whose values have numbers.
macro_rules! numbered {
    ($(#[$of:meta])* $name:ident { $($(#[$doc:meta])* $value:ident,)+ }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$doc])* $value,)+ }

        impl $name {
            /// Returns the value with this number.
            pub(crate) fn of(number: i64) -> Option<$name> {
                [$($name::$value,)+].get(usize::try_from(number).ok()?).copied()
            }
        }
    };
}

numbered! {
    /// The calls of the agent; each comment lists the arguments, which follow the number of the
    /// call.
    Call {
        /// Family, type.
        Socket,
        /// Descriptor, family, host.
        Bind,
        /// Descriptor, backlog.
        Listen,
        /// Descriptor, family, port, host.
        Connect,
        /// Descriptor, how ([`mod@crate::script`]), flags.
        Accept,
        /// Descriptor, count, how, flags.
        Read,
        /// Descriptor, how, flags; the bytes are those to write.
        Write,
        /// How, timeout in ms, then pairs of descriptor and events.
        Poll,
        /// No arguments.
        EpollCreate,
        /// Set, operation, descriptor, events, the data that is returned with them.
        EpollControl,
        /// Set, timeout in ms.
        EpollWait,
        /// Descriptor, direction.
        Shutdown,
        /// Descriptor, how.
        Close,
        /// Descriptor, how, target.
        Duplicate,
        /// Descriptor, 1 for nonblocking, how.
        Nonblocking,
        /// Descriptor.
        Unread,
        /// Descriptor, option, value.
        SetOption,
        /// Descriptor, option.
        GetOption,
        /// Descriptor, whether the peer's name is requested.
        Name,
        /// Descriptor.
        Flags,
        /// Descriptor, whether it reads, how it is started; the bytes are those that it writes.
        Execute,
        /// Name of the child's pipes (bytes).
        Fork,
        /// No arguments.
        Exit,
        /// Executes the agent again.
        Again,
        /// The id of the pending call.
        Interrupt,
        /// The id of the pending call, microseconds to wait for it.
        Collect,
        /// Counts the entries of /proc/self/fd.
        Descriptors,
        /// The descriptor, which is passed to the other process.
        Pass,
        /// Receives a descriptor from the other process.
        Take,
        /// The process that has ended.
        Reap,
        /// The descriptors to close so that their connections are reset.
        Reset,
    }
}

/// A message: numbers and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) numbers: Vec<i64>,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + 8 * self.numbers.len() + self.bytes.len());
        out.extend((self.numbers.len() as u32).to_le_bytes());
        out.extend((self.bytes.len() as u32).to_le_bytes());
        self.numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
        out.extend(&self.bytes);
        out
    }

    /// Reads one frame; `fill` fills its argument completely.
    pub(crate) fn decode(mut fill: impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<Frame> {
        let mut lengths = [[0; 4]; 2];
        for length in &mut lengths {
            fill(length)?;
        }
        let [numbers, bytes] = lengths.map(u32::from_le_bytes);
        if numbers > LENGTH_MAX || bytes > LENGTH_MAX {
            let text = format!("a frame of {numbers} numbers and {bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let mut words = vec![0; 8 * numbers as usize];
        fill(&mut words)?;
        let number = |word: &[u8]| word.try_into().map_or(0, i64::from_le_bytes);
        let mut frame = Frame {
            numbers: words.chunks(8).map(number).collect(),
            bytes: vec![0; bytes as usize],
        };
        fill(&mut frame.bytes)?;
        Ok(frame)
    }

    /// Returns a number of the frame, or zero if it is missing.
    pub(crate) fn number(&self, at: usize) -> i64 {
        self.numbers.get(at).copied().unwrap_or(0)
    }
}

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) result: i64,
    /// Only if the result is -1.
    pub(crate) errno: i64,
    /// Number of SIGPIPE signals that the call caused.
    pub(crate) signals: i64,
    /// Its duration in microseconds.
    pub(crate) took_us: i64,
    /// Its further results.
    pub(crate) more: Vec<i64>,
    pub(crate) bytes: Vec<u8>,
}

/// A call that took longer than this, and less in plain processes, has waited for the peer.
pub(crate) const SLOW_US: i64 = 300_000;

impl Answer {
    /// Returns whether the call failed with this error.
    pub(crate) fn fails(&self, errno: i32) -> bool {
        self.result == -1 && self.errno == i64::from(errno)
    }
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done(Answer),
    /// The call continues in this thread.
    Pending(i64),
}

impl Reply {
    pub(crate) fn into_frame(self) -> Frame {
        match self {
            Reply::Done(answer) => {
                let mut numbers =
                    vec![0, answer.result, answer.errno, answer.signals, answer.took_us];
                numbers.extend(answer.more);
                Frame { numbers, bytes: answer.bytes }
            }
            Reply::Pending(thread) => Frame { numbers: vec![1, thread], bytes: Vec::new() },
        }
    }

    pub(crate) fn from_frame(frame: Frame) -> Reply {
        if frame.number(0) == 1 {
            return Reply::Pending(frame.number(1));
        }
        Reply::Done(Answer {
            result: frame.number(1),
            errno: frame.number(2),
            signals: frame.number(3),
            took_us: frame.number(4),
            more: frame.numbers.get(5..).unwrap_or_default().to_vec(),
            bytes: frame.bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let answer = Answer { result: -1, errno: 11, more: vec![7, -8], ..Answer::default() };
        let reply = Reply::Done(Answer { bytes: vec![1, 2, 3], ..answer });
        let encoded = reply.clone().into_frame().encode();
        let mut rest = &encoded[..];
        let decoded = Frame::decode(|into| io::Read::read_exact(&mut rest, into)).unwrap();
        assert_eq!(Reply::from_frame(decoded), reply);
        assert!(rest.is_empty());
    }

    #[test]
    fn calls_have_numbers() {
        assert_eq!(Call::of(Call::Reset as i64), Some(Call::Reset));
        assert_eq!(Call::of(Call::Reset as i64 + 1), None);
    }
}
