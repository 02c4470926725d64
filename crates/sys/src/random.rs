//! Random numbers of the kernel, also where a sandbox refuses getrandom(2).

use std::fs::File;
use std::hash::RandomState;
use std::io::{self, Read};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns `N` random bytes, 256 at most: from getrandom(2) or, if that is refused, /dev/urandom.
///
/// # Errors
/// That of getrandom(2), if neither gives any.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "more may come in parts") };
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(_) => Ok(bytes),
        Err(refused) => {
            let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
            read.map(|()| bytes).map_err(|_| refused.into())
        }
    }
}

/// Checks that the hash tables of the standard library can draw their keys, which panic otherwise.
///
/// The library reads /dev/urandom only if getrandom(2) fails with `EPERM` or `ENOSYS`; it keeps the
/// file open, so a program may forbid itself to open files afterwards. Programs whose tables come
/// from other crates call this first.
///
/// # Errors
/// That of getrandom(2), with which the tables panic.
pub fn check_tables() -> io::Result<()> {
    match getrandom(&mut [0; 1], GetRandomFlags::NONBLOCK) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
        Err(Errno::PERM | Errno::NOSYS) => drop(bytes::<1>()?),
        Err(refused) => return Err(refused.into()),
    }
    let _ = RandomState::new();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use testkit::bar_call_in_thread;

    #[test]
    fn a_refused_getrandom_is_replaced_and_the_errno_with_which_tables_panic_is_told() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
        check_tables().unwrap();
        for errno in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
            let refused = move || {
                bar_call_in_thread(libc::SYS_getrandom, errno);
                assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
                check_tables().err().and_then(|error| error.raw_os_error())
            };
            let told = (errno == libc::EACCES).then_some(errno);
            assert_eq!(thread::spawn(refused).join().unwrap(), told);
        }
    }
}
