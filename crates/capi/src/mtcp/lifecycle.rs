//! Implements the calls that manage settings, stacks and contexts.

use super::signals::Waker;
use super::types::{mctx_t, mtcp_conf};
use super::{
    FORKED, NO_CONTEXT, ThreadContext, number_of, on_context, on_table, registry, settings,
};
use crate::failure::{Failure, status, value};
use crate::guard::contain;
use crate::text::str_from_c;
use channel::fork::CreatorProcess;
use libc::{POLLIN, c_char, c_int, pollfd};
use stack::{Config, Mtcp};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The settings and stacks of the process.
struct Process {
    /// Changes that mtcp_setconf() made before mtcp_init() read the file.
    early: mtcp_conf,
    config: Option<Config>,
    /// The stacks, from the first context on, and the process that created them.
    stacks: Option<(Mtcp, CreatorProcess)>,
}

static PROCESS: Mutex<Process> =
    Mutex::new(Process { early: settings::NOTHING, config: None, stacks: None });

fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the settings (paper, Table 1) from a file such as docs/mtcp.toml. NULL stands for the file
/// that the environment variable MTCP_CONFIG names. Earlier settings of mtcp_setconf() take
/// precedence.
///
/// It opens no device: the first mtcp_create_context() does. So mtcp_setconf() can still change
/// settings, and a parent can read settings for its children.
///
/// Errors:
///   ENOENT  there is no such file, or config_file is NULL and MTCP_CONFIG is not set
///   EINVAL  the file is wrong: mp_error() names line, setting and range
///   EBUSY   it was called before: call mtcp_destroy() first
///
/// # Safety
///
/// config_file must be NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_init(config_file: *const c_char) -> c_int {
    status(contain(|| {
        let mut config = match config_file.is_null() {
            true => Config::from_environment()?,
            // SAFETY: the caller guarantees a valid string.
            false => Config::load(Path::new(unsafe { str_from_c(config_file) }?))?,
        };
        let mut process = process();
        if process.config.is_some() {
            return Err(Failure::own(
                libc::EBUSY,
                "mtcp_init was called already: call mtcp_destroy before you call it again",
            ));
        }
        settings::apply(&mut config, &process.early);
        process.config = Some(config);
        Ok(())
    }))
}

/// Discards settings and stacks; then mtcp_init() may be called again. Contexts that still exist
/// keep what they need until their end. It cannot fail, and may be called without mtcp_init().
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy() {
    // After a panic during the end of the stacks, no usable state is left.
    let _ = contain(|| {
        let ended = {
            let mut process = process();
            process.early = settings::NOTHING;
            process.config = None;
            process.stacks.take()
        };
        match ended {
            Some((_, creator)) if !creator.is_here() => std::mem::forget(ended),
            _ => drop(ended),
        }
        Ok(())
    });
}

/// Reads the settings: those of the file after mtcp_init(), else the defaults, with the changes of
/// mtcp_setconf().
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
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { conf.write(told) };
        Ok(())
    }))
}

/// Changes settings, before or after mtcp_init(), until the first context is created. Fields of 0
/// and below change nothing, so start with { 0 }.
///
/// Errors:
///   EINVAL  a field is out of range
///   EBUSY   a context was created already
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
        // SAFETY: the caller guarantees that the pointer is valid.
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

/// Binds the calling thread to one CPU.
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

/// Creates the context of a core for the calling thread (paper, Table 1). The first context of a
/// process opens the device and creates the stacks of all cores.
///
/// cpu: the core, from 0 to mtcp_conf.num_cores - 1. It is not the number of a CPU: bind a thread
/// to a CPU by mtcp_core_affinitize(), and the thread of a paired stack by engine.cpus. Each core
/// can have one context until mtcp_destroy(). Connections that steer to a core without a context
/// get no answer, so create all contexts.
///
/// When a thread ends without mtcp_destroy_context(), its contexts are destroyed.
///
/// Returns the context, or NULL and errno.
///
/// Errors:
///   EINVAL  mtcp_init() is missing, there is no such core, or settings do not fit: mp_error() says
///           which
///   EBUSY   the core's context was created before
///   EMFILE  1024 contexts exist in the process, or there is no descriptor left
///   EPERM   a capability is missing: CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF for AF_XDP,
///           CAP_NET_RAW for AF_PACKET, CAP_NET_ADMIN for TAP; or the parent created the stacks
///           before a fork
///   ENODEV, ...  the device cannot be opened: mp_error() names the remedy
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_create_context(cpu: c_int) -> mctx_t {
    let created = on_table(|table| {
        if table.is_full() {
            return Err(Failure::own(
                libc::EMFILE,
                "this thread has a million contexts, the limit: destroy one",
            ));
        }
        let creator = CreatorProcess::here()?;
        let waker = Waker::new()?;
        let context = {
            let mut process = process();
            if process.stacks.is_none() {
                let config = process.config.clone();
                let config = config.ok_or(Failure::invalid(
                    "the stacks are not configured: call mtcp_init first",
                ))?;
                process.stacks = Some((Mtcp::start(config)?, creator));
            }
            match &process.stacks {
                Some((stacks, creator)) if creator.is_here() => {
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
            ThreadContext {
                context: ManuallyDrop::new(context),
                number: 0,
                creator,
                waker,
                polls,
                events: Vec::new(),
                writers: Vec::new(),
            },
        );
        if let Some(held) = table.get(number) {
            held.number = number;
        }
        registry::add(number, creator);
        Ok(ptr::without_provenance_mut(number as usize))
    });
    value(created, ptr::null_mut())
}

/// Destroys a context of the calling thread and closes all its sockets. Data that was written is
/// still sent, for at most socket.grace_ms; connections that need longer are reset.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy_context(mctx: mctx_t) -> c_int {
    status(
        on_context(mctx, |_| Ok(())).and_then(|()| {
            on_table(|table| table.take(number_of(mctx)).map(drop).ok_or(NO_CONTEXT))
        }),
    )
}
