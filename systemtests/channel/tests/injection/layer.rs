//! Decides which system call fails: the nth call of one kind that the channel makes while a thread
//! is armed.
//!
//! [`symbols`](crate::symbols) asks [`admit`] before each call. The plan and the counts are in
//! memory that a forked child shares with its parent, so that the parent reads them even if the
//! child was killed. A thread that an armed thread creates is armed until it ends, because it works
//! for the channel.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// Defines [`Call`] and the errnos with which each call fails in a sweep.
macro_rules! calls {
    ($($variant:ident $name:literal [$($errno:ident),*];)+) => {
        /// A call that the layer counts and fails.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Call {
            $($variant,)+
        }

        impl Call {
            pub(crate) const ALL: &[Call] = &[$(Call::$variant,)+];

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Call::$variant => $name,)+
                }
            }

            /// Returns the errnos that Linux may return although the arguments are correct and the
            /// object is in the state that the caller expects.
            pub(crate) fn errnos(self) -> &'static [i32] {
                match self {
                    $(Call::$variant => &[$(libc::$errno),*],)+
                }
            }
        }
    };
}

// A write to an eventfd that is not full cannot fail. EAGAIN is not among the errnos of calls on
// sockets, pipes and counters: it means that an edge will follow, which a test cannot guarantee.
calls! {
    IoUringSetup "io_uring_setup" [ENOMEM, EMFILE, ENFILE];
    IoUringRegister "io_uring_register" [ENOMEM, EMFILE, EBUSY];
    IoUringEnter "io_uring_enter" [EINTR, EAGAIN, EBUSY, ENOMEM, EIO];
    EpollCreate1 "epoll_create1" [EMFILE, ENFILE, ENOMEM];
    EpollCtl "epoll_ctl" [ENOMEM, ENOSPC];
    EpollWait "epoll_wait" [EINTR];
    EpollPwait2 "epoll_pwait2" [EINTR, ENOSYS, EPERM];
    Mmap "mmap" [ENOMEM, EAGAIN];
    Madvise "madvise" [ENOMEM, EAGAIN];
    PthreadCreate "pthread_create" [EAGAIN];
    Eventfd "eventfd" [EMFILE, ENFILE, ENOMEM];
    Dup "fcntl(F_DUPFD)" [EMFILE, ENOMEM];
    Flags "fcntl(F_GETFL or F_SETFL)" [EACCES];
    Fstat "fstat" [EIO];
    Socket "socket" [EMFILE, ENFILE, ENOBUFS];
    Bind "bind" [ENOMEM, EADDRINUSE];
    Listen "listen" [EADDRINUSE];
    Getsockname "getsockname" [ENOBUFS];
    Getpeername "getpeername" [ENOBUFS];
    Setsockopt "setsockopt" [ENOMEM];
    Getsockopt "getsockopt" [ENOBUFS];
    Accept4 "accept4" [EINTR, EMFILE, ENFILE, ENOBUFS, ECONNABORTED];
    Connect "connect" [ENOBUFS, ENOMEM];
    Shutdown "shutdown" [ENOBUFS];
    Recv "recv" [EINTR, ENOMEM, ENOBUFS];
    Recvmsg "recvmsg" [EINTR, ENOMEM, ENOBUFS];
    Send "send" [EINTR, ENOMEM, ENOBUFS];
    Sendmsg "sendmsg" [EINTR, ENOMEM, ENOBUFS];
    Read "read" [EINTR, EIO, ENOMEM];
    Readv "readv" [EINTR, EIO, ENOMEM];
    Sendfile "sendfile" [EINTR, EIO, ENOMEM];
    Preadv2 "preadv2" [EINTR, EAGAIN, EIO, EOPNOTSUPP];
    Write "write" [EINTR, EIO, ENOMEM];
    Ring "write(eventfd)" [];
    Writev "writev" [EINTR, EIO, ENOMEM];
    Pwritev "pwritev" [EINTR, EIO, ENOMEM];
    Pwritev2 "pwritev2" [EINTR, EIO, EOPNOTSUPP];
    Fsync "fsync" [EINTR, EIO];
    Fdatasync "fdatasync" [EINTR, EIO];
    Poll "poll" [EINTR, ENOMEM];
    Close "close" [EINTR, EIO];
}

/// The number of kinds of calls.
pub(crate) const CALLS: usize = Call::ALL.len();

/// The exit status of a child that made more calls than its budget.
pub(crate) const SPUN: i32 = 103;

/// One failure to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) call: Call,
    pub(crate) errno: i32,
    /// The number of the call that fails: the first is 1.
    pub(crate) nth: u32,
    /// How many consecutive calls fail.
    pub(crate) times: u32,
}

/// The memory that parent and child share.
#[repr(C)]
pub(crate) struct Shared {
    /// The index of the call that fails, or -1.
    call: AtomicI32,
    errno: AtomicI32,
    nth: AtomicU32,
    times: AtomicU32,
    budget: AtomicU32,
    total: AtomicU32,
    fired: AtomicU32,
    counts: [AtomicU32; CALLS],
    /// The length of the child's failure message, in UTF-8.
    message_bytes: AtomicU32,
    message: [AtomicU32; 512],
}

static SHARED: OnceLock<&'static Shared> = OnceLock::new();

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the memory that is shared with children that are forked from now on.
pub(crate) fn shared() -> &'static Shared {
    SHARED.get_or_init(|| {
        let bytes = size_of::<Shared>();
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping touches no existing memory.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        // SAFETY: the mapping is page-aligned, large enough, never unmapped, and zeroes are valid
        // atomics.
        unsafe { &*address.cast::<Shared>() }
    })
}

impl Shared {
    /// Prepares a run in which `fault` is injected, with at most `budget` calls.
    pub(crate) fn prepare(&self, fault: Option<Fault>, budget: u32) {
        let index = |call: Call| call as i32;
        self.call.store(fault.map_or(-1, |fault| index(fault.call)), Ordering::SeqCst);
        self.errno.store(fault.map_or(0, |fault| fault.errno), Ordering::SeqCst);
        self.nth.store(fault.map_or(0, |fault| fault.nth), Ordering::SeqCst);
        self.times.store(fault.map_or(0, |fault| fault.times), Ordering::SeqCst);
        self.budget.store(budget, Ordering::SeqCst);
        for count in self.counts.iter().chain([&self.total, &self.fired, &self.message_bytes]) {
            count.store(0, Ordering::SeqCst);
        }
    }

    /// Returns the fault of this run.
    pub(crate) fn fault(&self) -> Option<Fault> {
        let call = *Call::ALL.get(self.call.load(Ordering::SeqCst) as usize)?;
        Some(Fault {
            call,
            errno: self.errno.load(Ordering::SeqCst),
            nth: self.nth.load(Ordering::SeqCst),
            times: self.times.load(Ordering::SeqCst),
        })
    }

    /// Returns how many calls of a kind armed threads have made.
    pub(crate) fn count(&self, call: Call) -> u32 {
        self.counts[call as usize].load(Ordering::SeqCst)
    }

    /// Returns how many calls of all kinds armed threads have made.
    pub(crate) fn total(&self) -> u32 {
        self.total.load(Ordering::SeqCst)
    }

    /// Returns how many calls have failed by the plan.
    pub(crate) fn fired(&self) -> u32 {
        self.fired.load(Ordering::SeqCst)
    }

    /// Counts a failure that the layer does not inject itself.
    pub(crate) fn note_failure(&self) {
        self.fired.fetch_add(1, Ordering::SeqCst);
    }

    /// Stores a message for the parent; allocates nothing.
    pub(crate) fn tell(&self, text: &str) {
        let bytes = text.len().min(self.message.len() * 4);
        for (word, four) in self.message.iter().zip(text.as_bytes()[..bytes].chunks(4)) {
            let mut whole = [0; 4];
            whole[..four.len()].copy_from_slice(four);
            word.store(u32::from_ne_bytes(whole), Ordering::SeqCst);
        }
        self.message_bytes.store(bytes as u32, Ordering::SeqCst);
    }

    /// Returns the child's message.
    pub(crate) fn message(&self) -> String {
        let bytes = self.message_bytes.load(Ordering::SeqCst) as usize;
        let words = self.message.iter().flat_map(|word| word.load(Ordering::SeqCst).to_ne_bytes());
        String::from_utf8_lossy(&words.take(bytes).collect::<Vec<u8>>()).into_owned()
    }
}

/// Returns whether the calling thread's calls are counted and may fail.
pub(crate) fn is_armed() -> bool {
    ARMED.get()
}

/// Arms a thread that works for the channel.
pub(crate) fn arm_thread() {
    ARMED.set(true);
}

/// Runs `body`, whose calls are counted and may fail.
pub(crate) fn armed<T>(body: impl FnOnce() -> T) -> T {
    let before = ARMED.replace(true);
    mark();
    let result = body();
    mark();
    ARMED.set(before);
    result
}

/// Whether marks in the trace show where armed code begins and ends.
static MARKS: AtomicBool = AtomicBool::new(false);

/// Marks armed code in the trace from now on.
pub(crate) fn mark_for_trace() {
    MARKS.store(true, Ordering::SeqCst);
}

/// Makes a call that is not made otherwise in this program.
fn mark() {
    if MARKS.load(Ordering::Relaxed) {
        // SAFETY: the call takes no pointers and cannot fail.
        unsafe { libc::getppid() };
    }
}

/// Runs a part of `body` whose calls belong to the test.
pub(crate) fn disarmed<T>(body: impl FnOnce() -> T) -> T {
    let before = ARMED.replace(false);
    let result = body();
    ARMED.set(before);
    result
}

/// Counts a call of an armed thread; returns the errno with which it must fail.
pub(crate) fn admit(call: Call) -> Option<i32> {
    if !ARMED.get() {
        return None;
    }
    let shared = *SHARED.get()?;
    let count = shared.counts[call as usize].fetch_add(1, Ordering::SeqCst) + 1;
    let total = shared.total.fetch_add(1, Ordering::SeqCst) + 1;
    let budget = shared.budget.load(Ordering::SeqCst);
    if budget > 0 && total > budget {
        // SAFETY: the call takes no pointers and does not return.
        unsafe { libc::_exit(SPUN) };
    }
    let (first, times) = (shared.nth.load(Ordering::SeqCst), shared.times.load(Ordering::SeqCst));
    let fails = shared.call.load(Ordering::SeqCst) == call as i32
        && (first..first.saturating_add(times)).contains(&count);
    if !fails {
        return None;
    }
    shared.fired.fetch_add(1, Ordering::SeqCst);
    Some(shared.errno.load(Ordering::SeqCst))
}
