//! Restricts the system calls of threads for good, by filters of seccomp(2).
//!
//! A [`Filter`] sorts calls into four groups:
//!
//! - **permitted**: the lists that the program passes, such as [`calls::RUNTIME`].
//! - **refused** with `EPERM`: permitted calls with arguments that the program never uses.
//! - **fatal**: calls that only code of an attacker makes ([`calls::FATAL`]), such as execve(2).
//!   The kernel ends the process with `SIGSYS`.
//! - **all others** fail with `ENOSYS`, as on a kernel that does not have them. The C library then
//!   uses an older call, so a newer library does not end the program.
//!
//! The kernel's audit log has a line (type 1326) for each call that is not permitted. On
//! architectures without a filter ([`SeccompError::Architecture`]) nothing is restricted.
//!
//! A filter does not see what a thread does in memory that it shares with other threads, and
//! io_uring executes its requests without asking it.

pub mod calls;

use rustix::thread::set_no_new_privs;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::ffi::{c_long, c_ulong};
use std::io;

/// Arguments with which a permitted call is refused, by the low 32 bits of one of them.
#[derive(Clone, Copy, Debug)]
pub enum Refusal<'a> {
    /// The argument with this index has other values than these.
    Unless(c_long, u8, &'a [u32]),
    /// The argument with this index has this value in the bits of the mask.
    If(c_long, u8, Mask),
    /// The second argument is this command, and the third one has this value in the bits of the
    /// mask.
    Command(c_long, u32, Mask),
}

/// Bits of an argument and their value.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// The bits that are compared.
    pub bits: u32,
    /// Their value.
    pub value: u32,
}

impl Mask {
    /// All of these bits are set.
    pub const fn set(bits: u32) -> Mask {
        Mask { bits, value: bits }
    }

    /// None of these bits is set.
    pub const fn clear(bits: u32) -> Mask {
        Mask { bits, value: 0 }
    }
}

/// The threads that a filter restricts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The calling thread, and threads that it starts later.
    Thread,
    /// All threads of the process.
    Process,
}

/// Why a filter could not be entered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeccompError {
    /// There are no filters for this architecture.
    #[error("cannot restrict system calls: there is no filter for the architecture {0}")]
    Architecture(&'static str),
    /// The rules make no valid filter.
    #[error("cannot restrict system calls: the filter is invalid: {0}; report it")]
    Invalid(#[source] seccompiler::BackendError),
    /// The kernel refused.
    #[error("cannot restrict system calls: {source}; {}", cause(source))]
    Kernel {
        /// The error of prctl(2) or seccomp(2).
        source: io::Error,
    },
    /// A thread of the process has a filter that others do not have.
    #[error("cannot restrict system calls: thread {0} has a filter of its own")]
    Thread(c_long),
}

fn cause(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "a sandbox around the program bars seccomp(2)",
        _ => "the kernel has no CONFIG_SECCOMP_FILTER, or an emulator runs the program",
    }
}

/// A filter of system calls. It applies to this process only, not to its children.
#[derive(Clone, Debug)]
pub struct Filter {
    programs: [BpfProgram; 3],
}

impl Filter {
    /// Makes a filter that permits these calls, except with arguments that are refused. In any case
    /// signals are for threads of this process, and the limits that can be read or set its own.
    ///
    /// # Errors
    /// [`SeccompError::Architecture`], [`SeccompError::Invalid`].
    pub fn new(permitted: &[&[c_long]], refused: &[Refusal<'_>]) -> Result<Filter, SeccompError> {
        const ARCHITECTURE: &str = std::env::consts::ARCH;
        let target = TargetArch::try_from(ARCHITECTURE)
            .map_err(|_| SeccompError::Architecture(ARCHITECTURE))?;
        let all = |calls: &[c_long]| calls.iter().map(|call| (*call, Vec::new())).collect();
        let program = |rules, matching, other| {
            SeccompFilter::new(rules, other, matching, target)
                .and_then(BpfProgram::try_from)
                .map_err(SeccompError::Invalid)
        };
        let process = [std::process::id()];
        let own = [Refusal::Unless(libc::SYS_tgkill, 0, &process)];
        let mut refusals: BTreeMap<c_long, Vec<SeccompRule>> = BTreeMap::new();
        for refusal in calls::REFUSED.iter().chain(&own).chain(refused) {
            let (call, rule) = refusal.rule().map_err(SeccompError::Invalid)?;
            refusals.entry(call).or_default().push(rule);
        }
        let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
        let refuse = SeccompAction::Errno(libc::EPERM as u32);
        let programs = [
            program(all(calls::FATAL), SeccompAction::KillProcess, SeccompAction::Allow)?,
            program(refusals, refuse, SeccompAction::Allow)?,
            // The last one: it does not permit that another is added.
            program(all(&permitted.concat()), SeccompAction::Allow, unknown)?,
        ];
        Ok(Filter { programs })
    }

    /// Restricts the calls, for good. Also sets `no_new_privs`, see prctl(2). Allocates no memory.
    ///
    /// # Errors
    /// [`SeccompError::Kernel`], [`SeccompError::Thread`].
    pub fn enter(&self, scope: Scope) -> Result<(), SeccompError> {
        let kernel = |source| SeccompError::Kernel { source };
        set_no_new_privs(true).map_err(|errno| kernel(errno.into()))?;
        // Programs that run only their own code need no protection against speculation by it.
        let mut flags = libc::SECCOMP_FILTER_FLAG_LOG | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        if scope == Scope::Process {
            flags |= libc::SECCOMP_FILTER_FLAG_TSYNC;
        }
        for program in &self.programs {
            match load(program, flags) {
                0 => {}
                -1 => return Err(kernel(io::Error::last_os_error())),
                thread => return Err(SeccompError::Thread(thread)),
            }
        }
        Ok(())
    }
}

fn load(program: &BpfProgram, flags: c_ulong) -> c_long {
    let instructions =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel reads the program, whose instructions have the layout of `sock_filter`. It
    // has at most BPF_MAXINSNS (4,096) of them, which its maker has checked.
    unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER as c_ulong,
            flags,
            &raw const instructions,
        )
    }
}

impl Refusal<'_> {
    fn rule(&self) -> Result<(c_long, SeccompRule), seccompiler::BackendError> {
        let condition = |argument, operator, value: u32| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into())
        };
        let (call, conditions) = match *self {
            Refusal::Unless(call, argument, values) => {
                let differs = |value: &u32| condition(argument, SeccompCmpOp::Ne, *value);
                (call, values.iter().map(differs).collect::<Result<Vec<_>, _>>()?)
            }
            Refusal::If(call, argument, Mask { bits, value }) => {
                let masked = SeccompCmpOp::MaskedEq(bits.into());
                (call, vec![condition(argument, masked, value)?])
            }
            Refusal::Command(call, command, Mask { bits, value }) => {
                let command = condition(1, SeccompCmpOp::Eq, command)?;
                let masked = SeccompCmpOp::MaskedEq(bits.into());
                (call, vec![command, condition(2, masked, value)?])
            }
        };
        Ok((call, SeccompRule::new(conditions)?))
    }
}

#[cfg(test)]
mod tests;
