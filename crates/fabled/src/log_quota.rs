//! Charges the log lines of the daemon's thread to users.
//!
//! The daemon's thread says with `acting` for whom it works. [`Writer`] then drops the lines that
//! exceed the user's rate (`crate::quota`); the daemon reports how many. Lines of other threads, of
//! root and of the user who runs the daemon are not limited.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use sys::output::STDERR;
use tracing_subscriber::fmt::MakeWriter;

use crate::quota::Holder;

thread_local! {
    static ACTING: RefCell<Option<Rc<Holder>>> = const { RefCell::new(None) };
}

/// Restores for whom the thread worked before.
pub(crate) struct Acting(Option<Rc<Holder>>);

impl Drop for Acting {
    fn drop(&mut self) {
        ACTING.set(self.0.take());
    }
}

/// Charges the lines of this thread to an account until the result is dropped; to none with `None`.
#[must_use]
pub(crate) fn acting(account: Option<Rc<Holder>>) -> Acting {
    Acting(ACTING.replace(account))
}

/// Takes one line from the acting user's rate. Returns false if the line is to be suppressed.
pub(crate) fn take_line() -> bool {
    let take = |holder: &Rc<Holder>| holder.take_line(Instant::now());
    ACTING.with_borrow(|acting| acting.as_ref().is_none_or(take))
}

/// Writes log lines to standard error, except those that exceed the rate of the acting user. It
/// reports no error, of which `tracing_subscriber` would print a message and panic.
#[derive(Clone, Copy, Debug)]
pub struct Writer;

/// The place of one line.
#[derive(Debug)]
pub enum Line {
    /// Standard error.
    Written,
    /// Nowhere.
    Suppressed,
}

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Line::Written => STDERR.write(bytes),
            Line::Suppressed => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        if take_line() { Line::Written } else { Line::Suppressed }
    }
}
