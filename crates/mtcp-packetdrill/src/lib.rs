//! Implements a shared object through which packetdrill tests `mtcp-proto`: `packetdrill
//! --so_filename=libmtcp_packetdrill.so --so_flags=local=192.168.0.1 SCRIPT`.
//!
//! # Modules
//!
//! - `interface`: the layout of packetdrill's interface to a stack in a shared object.
//! - `calls`: the functions of that interface. `address`, `options`: their addresses and options.
//! - `world`: a stack with its clock, its device and its descriptors.
//!
//! packetdrill passes IP packets to `netdev_send`, takes the packets of the stack from
//! `netdev_receive`, and makes the script's system calls through the other functions. Time is
//! virtual: `usleep` advances it past every timer in between. If packetdrill waits for a packet,
//! time advances to the timers that send it. So scripts of minutes take no real time.
//!
//! `so_flags` are words separated by commas: `local=ADDRESS` names an address of the stack, and may
//! be repeated. Without it, the stack has the addresses that scripts bind to and send to.
//!
//! Functions that need a kernel, `pipe` and `splice`, fail with `ENOSYS`.

mod address;
mod calls;
mod interface;
mod options;
mod world;

use self::interface::Interface;
use self::world::{Shared, World};
use std::ffi::{CStr, c_char};

/// Fills the interface; packetdrill calls it once, and `free` at the end. If the flags are invalid,
/// it prints an error to standard error, and every call fails with `EFAULT`.
///
/// # Safety
/// `flags` is null or a C string; `interface` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut Interface,
) {
    let words = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: the caller guarantees a C string.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy().into_owned()
    };
    let userdata = match World::new(&words) {
        Ok(world) => Box::into_raw(Box::new(Shared::new(world))).cast(),
        Err(error) => {
            eprintln!("mtcp-packetdrill: {error}");
            std::ptr::null_mut()
        }
    };
    // SAFETY: the caller guarantees that the pointer is valid for writing.
    unsafe { interface.write(calls::interface(userdata)) };
}
