//! `mtcp-proto` as packetdrill tests a stack: a shared object, loaded by
//! `packetdrill --so_filename=libmtcp_packetdrill.so --so_flags=local=192.168.0.1 SCRIPT`.
//!
//! packetdrill gives IP packets to `netdev_send`, takes those that the
//! stack sends from `netdev_receive`, and makes the script's system calls through the other
//! functions. Time is the script's: `usleep` moves it, past every timer on the way, and a packet
//! that is waited for is found where the next timers send it. So scripts of minutes take no time.
//!
//! `so_flags` are words separated by commas: `local=ADDRESS` names an address of the stack, and may
//! be repeated. Without one, the addresses are those that scripts bind to and send to.
//!
//! What packetdrill knows and a TCP without a kernel has not, `pipe` and `splice`, fails with
//! `ENOSYS`.

mod address;
mod calls;
mod interface;
mod options;
mod world;

use self::interface::Interface;
use self::world::{Shared, World};
use std::ffi::{CStr, c_char};

/// Fills the interface; packetdrill calls it once, and `free` at the end. If the flags make no
/// sense, they are told on the standard error stream, and every call fails with `EFAULT`.
///
/// # Safety
/// `flags` is null or a string that ends in zero; `interface` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut Interface,
) {
    let words = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: a string that ends in zero, says the caller.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy().into_owned()
    };
    let userdata = match World::new(&words) {
        Ok(world) => Box::into_raw(Box::new(Shared::new(world))).cast(),
        Err(error) => {
            eprintln!("mtcp-packetdrill: {error}");
            std::ptr::null_mut()
        }
    };
    // SAFETY: it is valid for writing, says the caller.
    unsafe { interface.write(calls::interface(userdata)) };
}
