//! Lists the features of io_uring that the driver uses, and what replaces those that the kernel
//! lacks.
//!
//! A kernel version is not enough: distributions backport features, and filters and containers
//! remove some. So [`attempts`](super::attempts) submits every kind of request once when a ring is
//! set up.
//!
//! The driver needs a ring with deferred task work, which came with Linux 6.1. Features of that
//! version and older ones are therefore required: without them the channel falls back to epoll.
//! Newer features are replaced.

use crate::sys::errno;
use std::fmt;
use std::io;

/// What the channel does without a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    /// The channel uses the epoll driver.
    Epoll,
    /// The driver uses this replacement.
    Replaced(&'static str),
}

/// Defines [`Feature`] and the properties of each.
macro_rules! features {
    ($(
        $feature:ident $name:literal since $since:literal for $used_for:literal $without:expr;
    )+) => {
        /// A feature of io_uring.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Feature {
            $($feature,)+
        }

        impl Feature {
            pub(crate) const ALL: &[Feature] = &[$(Feature::$feature,)+];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Feature::$feature => $name,)+ }
            }

            /// Returns the version of Linux that introduced the feature.
            pub(crate) fn since(self) -> &'static str {
                match self { $(Feature::$feature => $since,)+ }
            }

            pub(crate) fn used_for(self) -> &'static str {
                match self { $(Feature::$feature => $used_for,)+ }
            }

            pub(crate) fn without(self) -> Without {
                match self { $(Feature::$feature => $without,)+ }
            }
        }
    };
}

const DESCRIPTORS: Without = Without::Replaced("lightweight sockets are descriptors");
const EPOLL: Without = Without::Epoll;

features! {
    AcceptOne "accept" since "5.5" for "accepting connections one by one" EPOLL;
    AcceptMany "multishot accept" since "5.19" for "accepting connections" EPOLL;
    Connect "connect" since "5.5" for "opening connections" EPOLL;
    Read "read" since "5.6" for "files, pipes, signals, timers" EPOLL;
    ReadVectored "readv" since "5.1" for "reading into several buffers" EPOLL;
    ReadBuffer "read into a provided buffer" since "5.7" for "receiving from pipes" EPOLL;
    Receive "recv" since "5.6" for "reading from sockets" EPOLL;
    ReceiveBuffer "recv into a provided buffer" since "5.7" for "receiving a message" EPOLL;
    ReceiveMany "multishot recv" since "6.0" for "receiving messages" EPOLL;
    ReceiveMessage "recvmsg" since "5.3" for "messages with control data" EPOLL;
    ReceiveDatagrams "multishot recvmsg" since "6.0" for "receiving datagrams" EPOLL;
    Write "write" since "5.6" for "files and pipes" EPOLL;
    WriteVectored "writev" since "5.1" for "writing from several buffers" EPOLL;
    Send "send" since "5.6" for "writing to sockets" EPOLL;
    SendMessage "sendmsg" since "5.3" for "datagrams and control data" EPOLL;
    Shutdown "shutdown" since "5.11" for "ending one direction of a connection" EPOLL;
    Sync "fsync" since "5.1" for "writing files to the disk" EPOLL;
    PollOne "poll" since "5.1" for "waiting for readiness" EPOLL;
    PollMany "multishot poll" since "5.13" for "following readiness" EPOLL;
    Close "close" since "5.6" for "closing descriptors" EPOLL;
    Cancel "cancel by tag" since "5.5" for "cancelling requests" EPOLL;
    CancelAny "cancel all of a ring" since "5.19" for "ending a channel" EPOLL;
    BufferRing "buffer rings" since "5.19" for "receiving into the channel's buffers" EPOLL;
    FileTable "sparse file table" since "5.19" for "lightweight sockets" DESCRIPTORS;
    AcceptDirect "accept into the file table" since "5.19" for "lightweight sockets" DESCRIPTORS;
    SocketDirect "socket in the file table" since "5.19" for "outgoing lightweight sockets"
        DESCRIPTORS;
    CloseDirect "close of a file table entry" since "5.15" for "closing lightweight sockets"
        DESCRIPTORS;
    GetOption "getsockopt as a request" since "6.7" for "peers' addresses of lightweight sockets"
        DESCRIPTORS;
    SetOption "setsockopt as a request" since "6.7" for "options of lightweight sockets"
        DESCRIPTORS;
    InstallDescriptor "descriptor for a file table entry" since "6.8"
        for "giving a lightweight socket a descriptor" DESCRIPTORS;
    QueueState "state of the accept queue with a connection" since "6.10"
        for "telling how many connections wait"
        Without::Replaced("the queue's length is asked for after each batch of accepts");
    WatchedRead "read of timers and signals by the ring itself" since "6.10"
        for "timers and signals" Without::Replaced("they are polled before they are read");
    QuietWrite "write without a signal" since "6.18" for "broken pipes that are only errors"
        Without::Replaced("the thread blocks SIGPIPE while it enters the ring");
    MinimumWait "minimum wait" since "6.12" for "lingering for completions (Config::linger)"
        Without::Replaced("a wait ends with the first completion");
    NoIndexArray "ring without index array" since "6.6" for "less work per request"
        Without::Replaced("the ring has an index array");
    RegisteredRing "registered ring descriptor" since "5.18"
        for "entering the kernel without a look-up"
        Without::Replaced("each entry looks the ring's descriptor up");
    NoDescriptor "register calls by registered ring" since "6.3"
        for "a ring that forked children do not inherit"
        Without::Replaced("a forked child inherits the ring's descriptor until it calls execve");
    Restrictions "restrictions" since "5.10" for "a ring that takes no other requests"
        Without::Replaced("the ring takes every request");
    NoIoWait "wait that does not count as I/O wait" since "6.15" for "true CPU accounting"
        Without::Replaced("a channel that sleeps counts as I/O wait");
}

/// A feature that the kernel lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    pub(crate) feature: Feature,
    /// The kernel's errno for the attempt; 0 if no call was made.
    pub(crate) errno: i32,
}

/// Formats such as "multishot recv (Linux 6.0): Invalid argument (os error 22)".
impl fmt::Display for Lack {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (Linux {})", self.feature.name(), self.feature.since())?;
        match self.errno {
            0 => Ok(()),
            libc::EACCES => write!(
                out,
                ": {}: a security module, a seccomp filter or the ring's own restrictions bar it",
                io::Error::from_raw_os_error(libc::EACCES)
            ),
            errno => write!(out, ": {}", io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The features that the kernel lacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lacks(Vec<Lack>);

impl Lacks {
    pub(crate) fn add(&mut self, feature: Feature, errno: i32) {
        if !self.has(feature) {
            self.0.push(Lack { feature, errno });
        }
    }

    /// Returns the result of the register calls of a feature. If the kernel does not support them,
    /// adds the feature to the list and returns `None`.
    pub(super) fn judge<T>(
        &mut self,
        feature: Feature,
        result: io::Result<T>,
    ) -> io::Result<Option<T>> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if is_unknown(errno(&error)) => {
                self.add(feature, errno(&error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the entry of a feature, if the kernel lacks it.
    pub(crate) fn of(&self, feature: Feature) -> Option<&Lack> {
        self.0.iter().find(|lack| lack.feature == feature)
    }

    /// Returns whether the kernel lacks the feature.
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.of(feature).is_some()
    }

    /// Iterates over the missing features without which the channel uses the epoll driver.
    pub(crate) fn required(&self) -> impl Iterator<Item = &Lack> {
        self.0.iter().filter(|lack| lack.feature.without() == Without::Epoll)
    }

    /// Iterates over the other missing features, with their replacements.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = (&Lack, &'static str)> {
        self.0.iter().filter_map(|lack| match lack.feature.without() {
            Without::Replaced(by) => Some((lack, by)),
            Without::Epoll => None,
        })
    }

    /// Returns whether lightweight sockets can be entries of the ring's file table.
    pub(super) fn leave_direct_sockets(&self) -> bool {
        !self.0.iter().any(|lack| lack.feature.without() == DESCRIPTORS)
    }
}

/// Returns whether an errno means that the kernel does not support a request, or does not permit it
/// on this ring.
pub(super) fn is_unknown(errno: i32) -> bool {
    [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS, libc::EACCES, libc::EPERM].contains(&errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_every_feature_that_is_replaced() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kernels.md");
        let manual = std::fs::read_to_string(path).unwrap();
        let mut lacks = Lacks::default();
        Feature::ALL.iter().for_each(|feature| lacks.add(*feature, libc::EINVAL));
        for (lack, by) in lacks.replaced() {
            let feature = lack.feature;
            let (name, since, used_for) = (feature.name(), feature.since(), feature.used_for());
            let row = format!("| {name} | {since} | {used_for} | {by} |");
            assert!(manual.contains(&row), "docs/kernels.md lacks: {row}");
        }
    }
}
