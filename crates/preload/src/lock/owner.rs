//! Identifies the owners of locks, and detects those that have died.

use core::cell::Cell;

use crate::errno::{errno, set_errno};
use crate::real;

/// The unit of start times in /proc/PID/stat (USER_HZ), as the kernel shows it to programs.
const TICKS_PER_SECOND: u64 = 100;
const TICK_NS: u64 = 1_000_000_000 / TICKS_PER_SECOND;

/// A thread number has fewer bits (PID_MAX_LIMIT of the kernel is 2^22).
const NUMBER_BITS: u32 = 24;

/// A thread in a lock word. The low bits are its number, which the kernel gives to another thread
/// later. The others are a time at which the thread existed, in ticks since the system started: a
/// thread of this number that started later is another one. Zero is no thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u64);

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

impl Owner {
    /// Returns this thread.
    pub fn this_thread() -> Owner {
        THREAD.with(|cell| {
            if cell.get() == 0 {
                // SAFETY: no arguments.
                let number = unsafe { libc::gettid() } as u32;
                cell.set(Owner::seen(number, ticks_now()).0);
            }
            Owner(cell.get())
        })
    }

    /// Returns the thread of a number that existed at a time, in ticks since the system started.
    pub(super) fn seen(number: u32, ticks: u64) -> Owner {
        Owner(u64::from(number) | ticks << NUMBER_BITS)
    }

    /// Returns the thread as the word of a lock that it holds.
    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// Returns the thread that holds a lock with this word.
    pub(super) fn from_word(word: u64) -> Owner {
        Owner(word)
    }

    fn number(self) -> u32 {
        self.0 as u32 & ((1 << NUMBER_BITS) - 1)
    }

    /// Returns whether the thread cannot release a lock any more.
    pub(super) fn is_dead(self) -> bool {
        match Status::of(self.number()) {
            Some(status) => status.has_ended || status.started_ticks > self.0 >> NUMBER_BITS,
            // /proc may be missing, or hide what belongs to other users.
            None => !self.has_number(),
        }
    }

    /// Returns whether some thread has the number.
    fn has_number(self) -> bool {
        let before = errno();
        // SAFETY: signal 0 only asks whether the thread exists.
        let found = unsafe { libc::kill(self.number() as i32, 0) == 0 || errno() != libc::ESRCH };
        set_errno(before);
        found
    }
}

/// Clears the cached identity: a forked child's thread has another one.
pub fn forget_thread() {
    THREAD.with(|cell| cell.set(0));
}

pub(super) fn ticks_now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    time.tv_sec as u64 * TICKS_PER_SECOND + time.tv_nsec as u64 / TICK_NS
}

/// What /proc/PID/stat says about a thread (proc_pid_stat(5)).
pub(super) struct Status {
    /// It is a zombie, or dead.
    pub(super) has_ended: bool,
    pub(super) started_ticks: u64,
}

impl Status {
    /// Reads the status of the thread with this number. `None` if it cannot be read.
    fn of(number: u32) -> Option<Status> {
        let before = errno();
        let mut room = [0_u8; 1024];
        let status = read_file(&stat_path(number), &mut room).and_then(Status::parse);
        set_errno(before);
        status
    }

    /// Parses the line. The name of the program, in parentheses, may contain any character.
    pub(super) fn parse(line: &[u8]) -> Option<Status> {
        let name_end = line.iter().rposition(|byte| *byte == b')')?;
        let mut fields = core::str::from_utf8(&line[name_end + 1..]).ok()?.split_ascii_whitespace();
        // Field 3 is the state and field 22 the start time.
        let has_ended = matches!(fields.next()?, "Z" | "X" | "x");
        Some(Status { has_ended, started_ticks: fields.nth(18)?.parse().ok()? })
    }
}

/// Returns "/proc/NUMBER/stat" with a zero behind it. It does not allocate, because signal handlers
/// take locks.
fn stat_path(number: u32) -> [u8; 32] {
    let mut digits = [0_u8; 10];
    let (mut count, mut left) = (0, number);
    while left > 0 || count == 0 {
        digits[count] = b'0' + (left % 10) as u8;
        (count, left) = (count + 1, left / 10);
    }
    let mut path = [0; 32];
    let text = b"/proc/".iter().chain(digits[..count].iter().rev()).chain(b"/stat");
    path.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    path
}

fn read_file<'a>(path: &[u8; 32], room: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the path ends with zero; the room has the size that is announced; the descriptor is
    // closed where it was opened.
    unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let read = real::read(fd, room.as_mut_ptr().cast(), room.len());
        real::close(fd);
        room.get(..usize::try_from(read).ok()?)
    }
}
