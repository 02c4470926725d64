//! Calls that create, destroy and describe channels.

use crate::channel_table::{destroy, occupy, on_channel};
use crate::config::driver_of;
use crate::failure::{Failure, status, value};
use crate::guard::contain;
use crate::numbering::HANDLES_MAX;
use crate::state::State;
use crate::text::copy_sized;
use crate::types::{MP_NEVER, mp_channel, mp_counters, mp_options};
use channel::{BufferClass, Channel, Config, DriverKind};
use libc::{c_char, c_int};
use std::ptr;
use std::time::Duration;

/// Creates a channel for the calling thread (report, Table 3.1).
///
/// options may be NULL for the defaults; they are read during the call only. If io_uring is
/// unavailable or too old, or has no memory for a ring, MP_DRIVER_AUTO falls back to epoll, and
/// mp_driver_reason() gives the reason; it does not hide a lack of descriptors.
///
/// When a thread ends without mp_destroy(), its channels are destroyed. After a fork the channel
/// belongs to the parent: calls in the child fail with EPERM; create a channel there.
///
/// Returns the channel, or NULL and errno.
///
/// Errors:
///   EINVAL  an option is out of range, or MEGAPIPE_DRIVER names no driver
///   EBUSY   every engine of the stack has its channel: raise engine.cores
///   EMFILE  1024 channels exist in the process, or there is no descriptor left
///   ENOMEM, EPERM, ENOSYS, ...  the kernel refuses the channel: mp_error() names the remedy
///
/// # Safety
///
/// options must be NULL or point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_create(options: *const mp_options) -> *mut mp_channel {
    // SAFETY: the caller guarantees that the pointer is NULL or valid.
    let options = unsafe { options.as_ref() };
    let created = contain(|| {
        let config = config_or_default(options)?;
        let is_limited = config.max_connections != 0;
        let channel = Channel::with_config(config)?;
        occupy(|numbering| State::new(channel, numbering, is_limited))
    });
    value(created, ptr::null_mut())
}

/// Checks whether the locked memory for the io_uring rings of `channels` channels is free, before
/// they are created with these options in this or another process of the user.
///
/// From Linux 6.14 on, the rings of all processes of a user share RLIMIT_MEMLOCK, often 8 MiB; a
/// ring takes 104 KiB by default, and nothing in processes with CAP_IPC_LOCK. If there is too
/// little for all, MP_DRIVER_AUTO gives some channels a ring and others epoll: choose
/// MP_DRIVER_EPOLL for all instead, so that connections are served at the same cost. The memory is
/// not reserved. Call it with the user and the capabilities with which the channels are created.
/// options may be NULL for the defaults.
///
/// Succeeds where the kernel permits no ring, and if the options or MEGAPIPE_DRIVER name a driver:
/// mp_create() with MP_DRIVER_URING fails without a ring.
///
/// Errors:
///   ENOMEM  there is too little; mp_error() names both numbers and the remedy
///   EINVAL  an option is out of range, or MEGAPIPE_DRIVER names no driver
///
/// # Safety
///
/// options must be NULL or point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_check_locked_memory(
    options: *const mp_options,
    channels: u32,
) -> c_int {
    // SAFETY: the caller guarantees that the pointer is NULL or valid.
    let options = unsafe { options.as_ref() };
    status(contain(|| Ok(config_or_default(options)?.check_locked_memory(channels as usize)?)))
}

fn config_or_default(options: Option<&mp_options>) -> Result<Config, Failure> {
    match options {
        Some(options) => config_of(options),
        None => Ok(Config { driver: driver_of(0)?, ..Config::default() }),
    }
}

fn config_of(options: &mp_options) -> Result<Config, Failure> {
    if options.reserved != 0 {
        return Err(Failure::invalid("mp_options.reserved must be zero: start from { 0 }"));
    }
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let size = |value: u32, default: usize| if value == 0 { default } else { value as usize };
    let driver = driver_of(options.driver)?;
    let defaults = Config { max_handles: HANDLES_MAX, ..Config::default() };
    let class = |count: u32, bytes: u32, default: BufferClass| {
        let count = u16::try_from(or(count, default.count.into())).map_err(|_| {
            Failure::invalid("a class has 2 to 32768 buffers: mp_options.small_, .large_buffers")
        })?;
        Ok::<_, Failure>(BufferClass { count, bytes: or(bytes, default.bytes) })
    };
    if options.max_handles > HANDLES_MAX {
        return Err(Failure::invalid("mp_options.max_handles must be at most 1048575"));
    }
    Ok(Config {
        driver,
        batch: or(options.batch, defaults.batch),
        completions: or(options.completions, defaults.completions),
        max_handles: or(options.max_handles, defaults.max_handles),
        max_requests: or(options.max_requests, defaults.max_requests),
        max_connections: options.max_connections,
        max_lightweight: or(options.max_lwsockets, defaults.max_lightweight),
        linger: match options.linger_us {
            0 => defaults.linger,
            MP_NEVER => Duration::ZERO,
            linger_us => Duration::from_micros(linger_us.into()),
        },
        small_buffers: class(
            options.small_buffers,
            options.small_buffer_bytes,
            defaults.small_buffers,
        )?,
        large_buffers: class(
            options.large_buffers,
            options.large_buffer_bytes,
            defaults.large_buffers,
        )?,
        steal_interval: match options.steal_interval_us {
            0 => None,
            interval_us => Some(Duration::from_micros(interval_us.into())),
        },
        output_pause: size(options.output_pause, defaults.output_pause),
        output_limit: size(options.output_limit, defaults.output_limit),
        close_timeout: match options.close_timeout_ms {
            0 => defaults.close_timeout,
            timeout_ms => Duration::from_millis(timeout_ms.into()),
        },
        events_after_close: match options.events_after_close {
            0 => false,
            1 => true,
            _ => return Err(Failure::invalid("mp_options.events_after_close must be 0 or 1")),
        },
        rebalance: match options.keep_steering {
            0 => true,
            1 => false,
            _ => return Err(Failure::invalid("mp_options.keep_steering must be 0 or 1")),
        },
    })
}

/// Destroys a channel. Its pending requests are cancelled and never delivered.
///
/// It closes lightweight sockets, including those that were accepted and not registered, and
/// descriptors whose mp_close() is not complete; it resets those that have output left, after a
/// second if mp_close() was called. Other descriptors stay open and belong to the
/// caller again. Buffers of mp_recv() become invalid. The caller may use the memory of requests
/// again after the return, unless a device keeps the kernel busy for more than two seconds, the
/// longest time that the call waits. The channel's shares of a listener go to the other channels
/// that share it.
///
/// Errors:
///   EDEADLK  called in a signal handler that interrupted a call on this channel
#[unsafe(no_mangle)]
pub extern "C" fn mp_destroy(channel: *mut mp_channel) -> c_int {
    status(destroy(channel))
}

/// The driver of a channel: "uring", "epoll" or "mtcp"; NULL and errno if there is no such channel.
#[unsafe(no_mangle)]
pub extern "C" fn mp_driver(channel: *mut mp_channel) -> *const c_char {
    let name = on_channel(channel, |state| {
        Ok(match state.channel.driver().kind {
            DriverKind::Uring => c"uring".as_ptr(),
            DriverKind::Epoll => c"epoll".as_ptr(),
            DriverKind::Installed(_) => c"mtcp".as_ptr(),
        })
    });
    value(name, ptr::null())
}

/// The reason why the channel has its driver, as text for people. Valid until mp_destroy().
#[unsafe(no_mangle)]
pub extern "C" fn mp_driver_reason(channel: *mut mp_channel) -> *const c_char {
    value(on_channel(channel, |state| Ok(state.driver_reason.as_ptr())), ptr::null())
}

/// Copies the channel's counters into *counters. bytes is its size: pass sizeof *counters. Fields
/// that this version of the library does not have are set to 0.
///
/// # Safety
///
/// counters must point to that many writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_statistics(
    channel: *mut mp_channel,
    counters: *mut mp_counters,
    bytes: usize,
) -> c_int {
    status(on_channel(channel, |state| {
        let counted = state.channel.counters();
        let current = mp_counters {
            requests: counted.requests,
            completions: counted.completions,
            operations: counted.operations,
            system_calls: counted.system_calls,
            waits: counted.waits,
            batched: counted.batched,
            largest_batch: counted.largest_batch,
            buffer_waits: counted.buffer_waits,
            overflows: counted.overflows,
            refused: counted.refused,
            cancelled: counted.cancelled,
            stolen: counted.stolen,
            adopted: counted.adopted,
            orphaned: counted.orphaned,
            rebalanced: counted.rebalanced,
        };
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { copy_sized(&current, counters, bytes) }
    }))
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn mp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
