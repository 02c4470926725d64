//! Converts errors to `errno`, and to text on request.

use channel::{Error, ListenerError, TooManyLightweight};
use libc::c_int;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io;
use std::panic::catch_unwind;

/// The reason why a call failed.
pub(crate) enum Failure {
    Channel(Error),
    Flow(fable::Error),
    Transport(fable::UnknownKind),
    Settings(stack::ConfigError),
    Start(stack::StartError),
    /// A failed call on a context, by the errno of the man page.
    Socket(io::Error),
    Own {
        errno: c_int,
        text: &'static str,
    },
}

impl Failure {
    /// A required pointer is NULL.
    pub(crate) const NULL: Failure =
        Failure::own(libc::EFAULT, "a pointer argument is NULL: pass a valid address");
    pub(crate) const NO_CHANNEL: Failure = Failure::own(
        libc::EBADF,
        "the pointer is not of an open channel: pass the one that mp_create returned, and do not \
         use it after mp_destroy",
    );
    pub(crate) const NO_HANDLE: Failure = Failure::own(
        libc::EBADF,
        "the handle is not registered with a channel of this thread: use it in the thread that \
         registered it, and not after its MP_CLOSE event",
    );
    /// The call interrupted another call on the same state.
    pub(crate) const WITHIN: Failure = Failure::own(
        libc::EDEADLK,
        "another call on the same channel or flow is in progress: do not call the library in \
         signal handlers",
    );
    /// A call has panicked.
    pub(crate) const PANIC: Failure = Failure::own(
        libc::ENOTRECOVERABLE,
        "the call panicked, which is a defect of megapipe: destroy the channel (with flows: end \
         the thread), and report the lines on standard error",
    );
    /// An earlier call has panicked.
    pub(crate) const BROKEN: Failure = Failure::own(
        libc::ENOTRECOVERABLE,
        "an earlier call panicked, which is a defect of megapipe: destroy the channel (with flows: \
         end the thread), and report the lines on standard error",
    );

    /// Creates a failure of this library itself.
    pub(crate) const fn own(errno: c_int, text: &'static str) -> Failure {
        Failure::Own { errno, text }
    }

    pub(crate) const fn invalid(text: &'static str) -> Failure {
        Failure::own(libc::EINVAL, text)
    }

    /// Returns the error of the system call that has just failed.
    pub(crate) fn last(call: &'static str) -> Failure {
        Error::System { call, source: io::Error::last_os_error() }.into()
    }

    pub(crate) fn errno(&self) -> c_int {
        match self {
            Failure::Channel(error) => errno_of(error),
            Failure::Flow(error) => errno_of_flow(error),
            Failure::Transport(_) => libc::EINVAL,
            Failure::Settings(error) => errno_of_settings(error),
            Failure::Start(error) => errno_of_start(error),
            Failure::Socket(error) => cause_in(error).unwrap_or(libc::EIO),
            Failure::Own { errno, .. } => *errno,
        }
    }

    fn describe(&self) -> String {
        match self {
            Failure::Channel(error) => in_c(&error.to_string()),
            Failure::Flow(error) => error.to_string(),
            Failure::Transport(error) => error.to_string(),
            Failure::Settings(error) => error.to_string(),
            Failure::Start(error) => error.to_string(),
            Failure::Socket(error) => error.to_string(),
            Failure::Own { text, .. } => (*text).to_owned(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Channel(error)
    }
}

impl From<fable::Error> for Failure {
    fn from(error: fable::Error) -> Failure {
        Failure::Flow(error)
    }
}

impl From<stack::ConfigError> for Failure {
    fn from(error: stack::ConfigError) -> Failure {
        Failure::Settings(error)
    }
}

impl From<stack::StartError> for Failure {
    fn from(error: stack::StartError) -> Failure {
        Failure::Start(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Socket(error)
    }
}

/// Replaces the names of Rust in an error's text by those of C.
fn in_c(text: &str) -> String {
    let names = [
        ("field of Config", "field of mp_options"),
        ("Config::max_lightweight", "mp_options.max_lwsockets"),
        ("Config::", "mp_options."),
        ("Event::Close", "MP_CLOSE"),
        ("Write completions", "MP_WRITE events"),
        ("receive_from,", "mp_recvfrom(),"),
    ];
    names.iter().fold(text.to_owned(), |text, (rust, c)| text.replace(rust, c))
}

/// Returns the errno of an error; the table in `megapipe.h` lists the same.
fn errno_of(error: &Error) -> c_int {
    match error {
        Error::Setup { source, .. }
        | Error::MissingFeature { source, .. }
        | Error::System { source, .. } => errno_in(source),
        Error::Installed { source, .. } => match source.kind() {
            io::ErrorKind::ResourceBusy => libc::EBUSY,
            io::ErrorKind::InvalidInput => libc::EINVAL,
            _ => errno_in(source),
        },
        Error::LockedMemory { .. } => libc::ENOMEM,
        Error::UnknownHandle => libc::EBADF,
        Error::WrongKind { .. } => libc::EOPNOTSUPP,
        Error::TooManyRequests { .. } | Error::QueueFull | Error::OutputFull { .. } => libc::EAGAIN,
        Error::TooManyHandles { .. } => libc::ENFILE,
        Error::MixedAccept => libc::EBUSY,
        Error::Forked => libc::EPERM,
        Error::Listener(error) => match error {
            ListenerError::Overlap { .. } => libc::EBUSY,
            ListenerError::TooIntricate { .. } => libc::E2BIG,
            ListenerError::NotTcp => libc::EOPNOTSUPP,
            ListenerError::AlreadyShared => libc::EADDRINUSE,
            ListenerError::OtherUser { .. } => libc::EACCES,
            ListenerError::OtherNamespace => libc::EXDEV,
            ListenerError::Setup { source, .. } => errno_in(source),
            _ => libc::EINVAL,
        },
        _ => libc::EINVAL,
    }
}

/// Returns the errno of an error of a flow; the table in `xio.h` lists the same.
fn errno_of_flow(error: &fable::Error) -> c_int {
    match error {
        fable::Error::WouldBlock => libc::EAGAIN,
        fable::Error::TimedOut | fable::Error::Undelivered { .. } => libc::ETIMEDOUT,
        fable::Error::TooLong { .. } => libc::EMSGSIZE,
        fable::Error::TooManyBuffers { .. } => libc::ENOSPC,
        fable::Error::Ended => libc::EPIPE,
        fable::Error::PeerDied => libc::ECONNRESET,
        fable::Error::Corrupt { .. } => libc::EPROTO,
        fable::Error::Refused { .. } => libc::ECONNREFUSED,
        fable::Error::OtherOwner { .. } => libc::EACCES,
        fable::Error::NoDaemon { .. } => libc::ENOENT,
        fable::Error::Forked => libc::EPERM,
        fable::Error::System { source, .. } => errno_in(source),
        fable::Error::Channel(error) => errno_of(error),
        fable::Error::Transport(_) => libc::EIO,
        _ => libc::EINVAL,
    }
}

fn errno_of_settings(error: &stack::ConfigError) -> c_int {
    match error {
        stack::ConfigError::NoFile => libc::ENOENT,
        _ => cause_in(error).unwrap_or(libc::EINVAL),
    }
}

fn errno_of_start(error: &stack::StartError) -> c_int {
    match error {
        stack::StartError::Taken(_) => libc::EBUSY,
        _ => cause_in(error).unwrap_or(libc::EINVAL),
    }
}

/// Returns the errno of the system call that caused an error, if there is one.
fn cause_in(error: &(dyn std::error::Error + 'static)) -> Option<c_int> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

/// Returns the kernel's errno. An error without one has two possible sources: the channel's own
/// lack of lightweight sockets, which differs from the system's `ENFILE`; or the standard library,
/// which refuses only what the system cannot do.
pub(crate) fn errno_in(error: &io::Error) -> c_int {
    let full =
        |error: &io::Error| error.get_ref().is_some_and(|cause| cause.is::<TooManyLightweight>());
    match error.raw_os_error() {
        Some(errno) => errno,
        None if full(error) => libc::EUSERS,
        None => libc::EIO,
    }
}

/// The last failure of a thread; it is converted to text only on request.
struct Last {
    failure: Option<Failure>,
    str_from_c: CString,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Ends a call that returns 0 or -1: stores a failure.
#[inline]
pub(crate) fn status(result: Result<(), Failure>) -> c_int {
    value(result.map(|()| 0), -1)
}

/// Ends a call that returns a value: returns `failed` and stores the failure if it failed.
#[inline]
pub(crate) fn value<T>(result: Result<T, Failure>, failed: T) -> T {
    match result {
        Ok(value) => value,
        Err(failure) => {
            note(failure);
            failed
        }
    }
}

#[cold]
fn note(failure: Failure) {
    let errno = failure.errno();
    // While the thread ends, no call can ask for the text any more.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.get_or_insert_with(|| Last { failure: None, str_from_c: CString::default() })
                .failure = Some(failure);
        }
    });
    // SAFETY: the C library gives each thread a place for its errno, always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// Describes this thread's last error in words: what failed, and the remedy.
///
/// The text is valid until the next call of mp_error() in the same thread, and does not change
/// while calls succeed. It is empty if no call has failed. errno does not change.
///
/// Failures of requests are not errors of calls: they arrive as events, with their number in
/// mp_event.error.
#[unsafe(no_mangle)]
pub extern "C" fn mp_error() -> *const c_char {
    let str_from_c = catch_unwind(|| {
        LAST.try_with(|last| {
            let mut last = last.try_borrow_mut().ok()?;
            let last = last.as_mut()?;
            if let Some(failure) = last.failure.take() {
                let text = failure.describe().replace('\0', " ");
                last.str_from_c = CString::new(text).unwrap_or_default();
            }
            Some(last.str_from_c.as_ptr())
        })
        .ok()
        .flatten()
    });
    str_from_c.ok().flatten().unwrap_or(c"".as_ptr())
}
