//! Settings, stacks and contexts, from their beginning to their end.

use super::signals::Waker;
use super::types::{mctx_t, mtcp_conf};
use super::{FORKED, Held, NO_CONTEXT, number_of, on_context, on_table, registry, settings};
use crate::failure::{Failure, status, value};
use crate::guard::contain;
use crate::text::words;
use channel::fork::Birth;
use libc::{POLLIN, c_char, c_int, pollfd};
use stack::{Config, Mtcp};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the process has.
struct Process {
    /// Changes from before the file was read.
    early: mtcp_conf,
    config: Option<Config>,
    /// From the first context on, with the process that made it.
    stacks: Option<(Mtcp, Birth)>,
}

static PROCESS: Mutex<Process> =
    Mutex::new(Process { early: settings::NOTHING, config: None, stacks: None });

fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the settings (paper, Table 1): a file as docs/mtcp.toml shows it. NULL stands for the file
/// that the environment variable MTCP_CONFIG names. What mtcp_setconf() has set before wins.
///
/// Nothing is opened yet: that the first mtcp_create_context() does, so that mtcp_setconf() still
/// can change things, and a parent can read settings for its children.
///
/// Errors:
///   ENOENT  there is no such file, or NULL was given and there is no MTCP_CONFIG
///   EINVAL  the file is wrong: mp_error() names line, setting and range
///   EBUSY   it was called before: mtcp_destroy() comes first
///
/// # Safety
///
/// config_file must be NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_init(config_file: *const c_char) -> c_int {
    status(contain(|| {
        let mut config = match config_file.is_null() {
            true => Config::from_environment()?,
            // SAFETY: the caller vouches for the string.
            false => Config::load(Path::new(unsafe { words(config_file) }?))?,
        };
        let mut process = process();
        if process.config.is_some() {
            return Err(Failure::own(
                libc::EBUSY,
                "mtcp_init was called already: call mtcp_destroy before another time",
            ));
        }
        settings::apply(&mut config, &process.early);
        process.config = Some(config);
        Ok(())
    }))
}

/// Forgets settings and stacks; then mtcp_init() may be called again. Contexts that still exist
/// keep what they need until their end. It cannot fail, and may be called without mtcp_init().
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy() {
    // A panic while the stacks end leaves nothing that could be used.
    let _ = contain(|| {
        let ended = {
            let mut process = process();
            process.early = settings::NOTHING;
            process.config = None;
            process.stacks.take()
        };
        match ended {
            Some((_, birth)) if !birth.is_here() => std::mem::forget(ended),
            _ => drop(ended),
        }
        Ok(())
    });
}

/// Tells settings: those of the file after mtcp_init(), the defaults before, and in both cases
/// with what mtcp_setconf() has changed.
///
/// # Safety
///
/// conf must point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getconf(conf: *mut mtcp_conf) -> c_int {
    status(contain(|| {
        if conf.is_null() {
            return Err(Failure::NULL);
        }
        let process = process();
        let told = match &process.config {
            Some(config) => settings::told(config),
            None => {
                let mut config = Config::default();
                settings::apply(&mut config, &process.early);
                settings::told(&config)
            }
        };
        // SAFETY: the caller vouches for the pointer.
        unsafe { conf.write(told) };
        Ok(())
    }))
}

/// Changes settings, before or after mtcp_init(), until the first context is created. Fields of 0
/// and below change nothing, so that { 0 } is a good start.
///
/// Errors:
///   EINVAL  a field is out of range
///   EBUSY   there has been a context already
///
/// # Safety
///
/// conf must point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_setconf(conf: *const mtcp_conf) -> c_int {
    status(contain(|| {
        if conf.is_null() {
            return Err(Failure::NULL);
        }
        // SAFETY: the caller vouches for the pointer.
        let wanted = unsafe { conf.read() };
        settings::check(&wanted)?;
        let mut process = process();
        if process.stacks.is_some() {
            return Err(Failure::own(
                libc::EBUSY,
                "the stacks run already: call mtcp_setconf before the first mtcp_create_context",
            ));
        }
        match &mut process.config {
            Some(config) => settings::apply(config, &wanted),
            None => settings::merge(&mut process.early, &wanted),
        }
        Ok(())
    }))
}

/// Keeps the calling thread on one CPU.
///
/// Errors:
///   EINVAL  there is no such CPU, or the process may not use it
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_core_affinitize(cpu: c_int) -> c_int {
    status(contain(|| {
        let cpu = usize::try_from(cpu)
            .map_err(|_| Failure::invalid("the CPU's number must not be negative"))?;
        Ok(stack::pin(cpu)?)
    }))
}

/// Creates the context of a core for the calling thread (paper, Table 1). The first one of a
/// process opens the device and makes the stacks of all cores.
///
/// cpu: the core, from 0 to mtcp_conf.num_cores - 1. It is no CPU's number: a thread stays on a CPU
/// by mtcp_core_affinitize(), and a paired stack's thread by engine.cpus. Each core can be had once
/// until mtcp_destroy(). Connections that steer to a core without a context are not answered, so
/// create all of them.
///
/// A thread that ends without mtcp_destroy_context() has its contexts destroyed.
///
/// Returns the context, or NULL and errno.
///
/// Errors:
///   EINVAL  no mtcp_init(), no such core, or settings that do not fit: mp_error() says which
///   EBUSY   the core's context has been created before
///   EMFILE  1024 contexts exist in the process, or there is no descriptor left
///   EPERM   a capability is missing: CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF for AF_XDP,
///           CAP_NET_RAW for AF_PACKET, CAP_NET_ADMIN for TAP; or the stacks were made before a
///           fork, by the parent
///   ENODEV, ...  the device cannot be opened: mp_error() names the remedy
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_create_context(cpu: c_int) -> mctx_t {
    let created = on_table(|table| {
        if table.is_full() {
            return Err(Failure::own(libc::EMFILE, "there are a million contexts in this thread"));
        }
        let birth = Birth::here()?;
        let waker = Waker::new()?;
        let context = {
            let mut process = process();
            if process.stacks.is_none() {
                let config = process.config.clone();
                let config = config.ok_or(Failure::invalid("mtcp_init comes first"))?;
                process.stacks = Some((Mtcp::start(config)?, birth));
            }
            match &process.stacks {
                Some((stacks, birth)) if birth.is_here() => {
                    let core = usize::try_from(cpu).unwrap_or(usize::MAX);
                    stacks.context(core)?
                }
                _ => return Err(FORKED),
            }
        };
        let descriptors = context.system_descriptors().into_iter().chain([waker.descriptor()]);
        let polls = descriptors.map(|fd| pollfd { fd, events: POLLIN, revents: 0 }).collect();
        let number = table.keep_as(
            registry::serial(),
            Held {
                context: ManuallyDrop::new(context),
                number: 0,
                birth,
                waker,
                polls,
                events: Vec::new(),
                writers: Vec::new(),
            },
        );
        if let Some(held) = table.get(number) {
            held.number = number;
        }
        registry::add(number, birth);
        Ok(ptr::without_provenance_mut(number as usize))
    });
    value(created, ptr::null_mut())
}

/// Destroys a context of the calling thread: all of its sockets are closed. What was written is
/// still sent, for at most the time that socket.grace_ms says; connections that need longer are
/// reset.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy_context(mctx: mctx_t) -> c_int {
    status(
        on_context(mctx, |_| Ok(())).and_then(|()| {
            on_table(|table| table.take(number_of(mctx)).map(drop).ok_or(NO_CONTEXT))
        }),
    )
}
