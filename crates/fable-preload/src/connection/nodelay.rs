//! Turns Nagle's algorithm and TCP_CORK off while the outgoing direction is in its ring. Nagle's
//! algorithm (TCP_NODELAY unset) and TCP_CORK would hold a doorbell back until an earlier one is
//! acknowledged, which takes 40 ms. The application reads and sets the values that are kept here.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use preload::real;

use super::Connection;
use super::own::INSIDE;
use crate::sys;

const OPTIONS: [c_int; 2] = [libc::TCP_NODELAY, libc::TCP_CORK];

fn set(fd: c_int, name: c_int, value: c_int) {
    let size = size_of::<c_int>() as libc::socklen_t;
    let from = (&raw const value).cast();
    // SAFETY: `value` has the size `size`.
    unsafe { real::setsockopt(fd, libc::IPPROTO_TCP, name, from, size) };
}

impl Connection {
    fn remembered(&self, name: c_int) -> Option<&AtomicU32> {
        match name {
            libc::TCP_NODELAY => Some(&self.own().nodelay),
            libc::TCP_CORK => Some(&self.own().cork),
            _ => None,
        }
    }

    /// Turns both off when the direction switches to its ring.
    pub(super) fn make_prompt(&self, fd: c_int) {
        for name in OPTIONS {
            if let Some(word) = self.remembered(name) {
                let value = sys::option(fd, libc::IPPROTO_TCP, name).unwrap_or(0);
                word.store(value as u32, Ordering::Relaxed);
            }
        }
        set(fd, libc::TCP_CORK, 0);
        set(fd, libc::TCP_NODELAY, 1);
    }

    /// Sets the options to the application's values when the direction is back in TCP.
    pub(super) fn restore_options(&self, fd: c_int) {
        for name in OPTIONS {
            if let Some(word) = self.remembered(name) {
                set(fd, name, word.load(Ordering::Relaxed) as c_int);
            }
        }
    }

    /// Makes every later end of the connection a reset (SO_LINGER with a time of zero, socket(7)).
    pub(super) fn end_with_reset(&self, fd: c_int) {
        let before = sys::linger(fd);
        for (word, value) in self.own().linger.iter().zip([1, before.l_onoff, before.l_linger]) {
            word.store(value as u32, Ordering::Relaxed);
        }
        sys::set_linger(fd, libc::linger { l_onoff: 1, l_linger: 0 });
    }

    /// Ends [`Connection::end_with_reset`].
    pub(super) fn end_as_asked(&self, fd: c_int) {
        let [armed, on, time] = &self.own().linger;
        if armed.swap(0, Ordering::Relaxed) != 0 {
            let (on, time) = (on.load(Ordering::Relaxed), time.load(Ordering::Relaxed));
            sys::set_linger(fd, libc::linger { l_onoff: on as c_int, l_linger: time as c_int });
        }
    }

    /// Returns the word that holds an option of IPPROTO_TCP while the library controls it.
    pub(crate) fn stand_in(&self, name: c_int) -> Option<&AtomicU32> {
        let inside = self.own().outgoing.load(Ordering::Relaxed) == INSIDE;
        if inside { self.remembered(name) } else { None }
    }
}
