//! Tries attacks by system calls under a program's filter, and compares what it answers with the
//! table of `docs/threat-model.md`.

use crate::restricted::{CallOutcome, try_call};
use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_UNIX, AT_FDCWD, F_NOTIFY, F_SETFL, F_SETLEASE,
    F_SETOWN, MAP_ANONYMOUS, MAP_PRIVATE, O_ASYNC, O_CREAT, O_RDWR, O_TRUNC, O_WRONLY,
    PR_SET_DUMPABLE, PR_SET_PDEATHSIG, PROT_EXEC, PROT_READ, PROT_WRITE, SIGCHLD, TIOCSTI,
};
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::c_long;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// The heading of the table.
const HEADING: &str = "### What the filters answer to attacks";
// Linux ABI that libc does not have on every architecture.
const F_SETOWN_EX: c_long = 15;
const F_SETSIG: c_long = 10;
const FIOSETOWN: c_long = 0x8901;
const SIOCSPGRP: c_long = 0x8902;
const FIOASYNC: c_long = 0x5452;

/// A process that is not the one for which a filter was made, which is the test.
const OTHER: c_long = 1;

/// An attack by one system call.
struct Attack {
    /// What the page's first column has.
    name: &'static str,
    number: c_long,
    arguments: [c_long; 6],
}

/// What the attacks use; must live as long as them.
struct Stage {
    memory: OwnedFd,
    /// siginfo_t with the code `SI_QUEUE`, with which a process may signal others.
    information: [i32; 32],
    /// The owner of a descriptor: a process.
    owner: [i32; 2],
}

impl Stage {
    fn new() -> Stage {
        const F_OWNER_PID: i32 = 1;
        let victim = std::process::id().cast_signed();
        let mut information = [0; 32];
        information[2] = libc::SI_QUEUE;
        let memory = memfd_create("attacks", MemfdFlags::CLOEXEC).expect("memory");
        Stage { memory, information, owner: [F_OWNER_PID, victim] }
    }

    fn attacks(&self) -> Vec<Attack> {
        let mut list = Attacks(Vec::new());
        self.add_signals(&mut list);
        self.add_code(&mut list);
        add_rights(&mut list);
        add_files(&mut list);
        add_sockets(&mut list);
        list.0
    }

    /// Signals are for the test's process, the parent of the one that attacks, and have number 0.
    fn add_signals(&self, list: &mut Attacks) {
        let victim = c_long::from(std::process::id().cast_signed());
        let file = c_long::from(self.memory.as_raw_fd());
        let information = address(self.information.as_ptr());
        let owner = address(self.owner.as_ptr());
        list.add("`kill`", libc::SYS_kill, &[victim]);
        list.add("`tkill`", libc::SYS_tkill, &[victim]);
        list.add("`tgkill` of another process", libc::SYS_tgkill, &[OTHER, OTHER]);
        list.add("`rt_sigqueueinfo`", libc::SYS_rt_sigqueueinfo, &[victim, 0, information]);
        let of_thread = [victim, victim, 0, information];
        list.add("`rt_tgsigqueueinfo`", libc::SYS_rt_tgsigqueueinfo, &of_thread);
        list.add("`pidfd_send_signal`", libc::SYS_pidfd_send_signal, &[-1]);
        list.add("`fcntl` with `F_SETOWN`", libc::SYS_fcntl, &[file, F_SETOWN.into(), victim]);
        list.add("`fcntl` with `F_SETOWN_EX`", libc::SYS_fcntl, &[file, F_SETOWN_EX, owner]);
        list.add(
            "`fcntl` with `F_SETSIG`",
            libc::SYS_fcntl,
            &[file, F_SETSIG, libc::SIGTERM.into()],
        );
        let flags = [file, F_SETFL.into(), O_ASYNC.into()];
        list.add("`fcntl` with `F_SETFL` and `O_ASYNC`", libc::SYS_fcntl, &flags);
        list.add("`fcntl` with `F_NOTIFY`", libc::SYS_fcntl, &[file, F_NOTIFY.into()]);
        let lease = [file, F_SETLEASE.into(), libc::F_UNLCK.into()];
        list.add("`fcntl` with `F_SETLEASE`", libc::SYS_fcntl, &lease);
        list.add("`ioctl` with `FIOSETOWN`", libc::SYS_ioctl, &[file, FIOSETOWN, owner + 4]);
        list.add("`ioctl` with `SIOCSPGRP`", libc::SYS_ioctl, &[file, SIOCSPGRP, owner + 4]);
        list.add("`ioctl` with `FIOASYNC`", libc::SYS_ioctl, &[file, FIOASYNC, owner]);
        list.add("`ioctl` with `TIOCSTI`", libc::SYS_ioctl, &[file, TIOCSTI as c_long, owner]);
        list.add("`timer_create`", libc::SYS_timer_create, &[0, 0, 0]);
        list.add("`setitimer`", libc::SYS_setitimer, &[0, 0, 0]);
        list.add("`mq_notify`", libc::SYS_mq_notify, &[-1]);
        list.add("`prctl` with `PR_SET_PDEATHSIG`", libc::SYS_prctl, &[PR_SET_PDEATHSIG.into()]);
        list.add("`prctl` with `PR_SET_DUMPABLE`", libc::SYS_prctl, &[PR_SET_DUMPABLE.into(), 1]);
        list.add("`prlimit64` of another process", libc::SYS_prlimit64, &[victim]);
        list.add("`seccomp`", libc::SYS_seccomp, &[-1]);
    }

    fn add_code(&self, list: &mut Attacks) {
        let victim = c_long::from(std::process::id().cast_signed());
        let file = c_long::from(self.memory.as_raw_fd());
        let null = address(c"/dev/null".as_ptr());
        let at = c_long::from(AT_FDCWD);
        let code = c_long::from(PROT_READ | PROT_EXEC);
        let writable_code = code | c_long::from(PROT_WRITE);
        let anonymous = c_long::from(MAP_PRIVATE | MAP_ANONYMOUS);
        list.add("`io_uring_setup`", libc::SYS_io_uring_setup, &[1]);
        list.add("`bpf`, a map", libc::SYS_bpf, &[0]);
        let of_file = [0, 4096, code, c_long::from(MAP_PRIVATE), file];
        list.add("`mmap` of code", libc::SYS_mmap, &of_file);
        list.add(
            "`mmap` of writable code",
            libc::SYS_mmap,
            &[0, 4096, writable_code, anonymous, -1],
        );
        list.add("`mprotect` to code", libc::SYS_mprotect, &[0, 0, code]);
        list.add("`pkey_mprotect` to code", libc::SYS_pkey_mprotect, &[0, 0, code, -1]);
        list.add("`shmat` of code", libc::SYS_shmat, &[-1, 0, 0o100_000]);
        list.add("`personality`", libc::SYS_personality, &[0xffff_ffff]);
        list.add("`memfd_create`", libc::SYS_memfd_create, &[null]);
        list.add("`clone` of a process", libc::SYS_clone, &[SIGCHLD.into()]);
        list.add("`clone3`", libc::SYS_clone3, &[0]);
        list.add("`execve`", libc::SYS_execve, &[null]);
        list.add("`execveat`", libc::SYS_execveat, &[at, null]);
        list.add("`ptrace`", libc::SYS_ptrace, &[-1]);
        list.add("`process_vm_readv`", libc::SYS_process_vm_readv, &[victim]);
        list.add("`process_vm_writev`", libc::SYS_process_vm_writev, &[victim]);
        list.add("`pidfd_open`", libc::SYS_pidfd_open, &[victim]);
        list.add("`pidfd_getfd`", libc::SYS_pidfd_getfd, &[-1]);
        list.add("`kcmp` with another process", libc::SYS_kcmp, &[OTHER, OTHER]);
    }
}

/// The attacks of a stage, in the order of the page.
struct Attacks(Vec<Attack>);

impl Attacks {
    fn add(&mut self, name: &'static str, number: c_long, arguments: &[c_long]) {
        let mut six = [0; 6];
        six[..arguments.len()].copy_from_slice(arguments);
        self.0.push(Attack { name, number, arguments: six });
    }
}

fn address<T>(pointer: *const T) -> c_long {
    pointer.addr().cast_signed() as c_long
}

fn add_rights(list: &mut Attacks) {
    let absent = address(c"/nosuch/file".as_ptr());
    // SAFETY: the call has no arguments and cannot fail.
    let user = unsafe { libc::getuid() };
    list.add("`setuid`", libc::SYS_setuid, &[user.into()]);
    list.add("`capset`", libc::SYS_capset, &[0]);
    list.add("`setns`", libc::SYS_setns, &[-1]);
    list.add("`unshare`", libc::SYS_unshare, &[0]);
    list.add("`chroot`", libc::SYS_chroot, &[absent]);
    list.add("`mount`", libc::SYS_mount, &[absent, absent]);
    list.add("`umount2`", libc::SYS_umount2, &[absent]);
    list.add("`add_key`", libc::SYS_add_key, &[0]);
    list.add("`keyctl`", libc::SYS_keyctl, &[-1]);
    list.add("`init_module`", libc::SYS_init_module, &[0]);
    list.add("`finit_module`", libc::SYS_finit_module, &[-1]);
    list.add("`perf_event_open`", libc::SYS_perf_event_open, &[0]);
    list.add("`userfaultfd`", libc::SYS_userfaultfd, &[-1]);
    list.add("`open_by_handle_at`", libc::SYS_open_by_handle_at, &[-1]);
    list.add("`reboot`", libc::SYS_reboot, &[0]);
    list.add("`clock_settime`", libc::SYS_clock_settime, &[-1]);
}

fn add_files(list: &mut Attacks) {
    let null = address(c"/dev/null".as_ptr());
    let absent = address(c"/nosuch/file".as_ptr());
    let at = c_long::from(AT_FDCWD);
    list.add("`openat` to read", libc::SYS_openat, &[at, null]);
    list.add("`openat` to write", libc::SYS_openat, &[at, null, O_WRONLY.into()]);
    list.add("`openat` to read and write", libc::SYS_openat, &[at, null, O_RDWR.into()]);
    list.add("`openat` to create", libc::SYS_openat, &[at, null, O_CREAT.into(), 0o600]);
    list.add("`openat` to truncate", libc::SYS_openat, &[at, null, O_TRUNC.into()]);
    list.add("`openat2`", libc::SYS_openat2, &[at, null]);
    list.add("`unlinkat`", libc::SYS_unlinkat, &[at, absent]);
    list.add("`renameat2`", libc::SYS_renameat2, &[at, absent, at, absent]);
    list.add("`mkdirat`", libc::SYS_mkdirat, &[at, absent]);
    list.add("`linkat`", libc::SYS_linkat, &[at, absent, at, absent]);
    list.add("`symlinkat`", libc::SYS_symlinkat, &[absent, at, absent]);
    list.add("`fchmodat`", libc::SYS_fchmodat, &[at, absent]);
    list.add("`fchownat`", libc::SYS_fchownat, &[at, absent, -1, -1]);
    list.add("`ftruncate`", libc::SYS_ftruncate, &[-1]);
}

fn add_sockets(list: &mut Attacks) {
    let stream = c_long::from(libc::SOCK_STREAM);
    list.add("`socket` of IPv4", libc::SYS_socket, &[AF_INET.into(), stream]);
    list.add("`socket` of IPv6", libc::SYS_socket, &[AF_INET6.into(), stream]);
    list.add("`socket` of UNIX", libc::SYS_socket, &[AF_UNIX.into(), stream]);
    list.add("`socket` of netlink", libc::SYS_socket, &[AF_NETLINK.into(), 3]);
    list.add("`socket` of packets", libc::SYS_socket, &[AF_PACKET.into(), 3]);
    list.add("`socketpair`", libc::SYS_socketpair, &[AF_UNIX.into(), stream]);
    list.add("`bind`", libc::SYS_bind, &[-1]);
    list.add("`connect`", libc::SYS_connect, &[-1]);
    list.add("`listen`", libc::SYS_listen, &[-1]);
}

/// Makes each attack in a child of this process that is restricted as [`try_call`] describes, and
/// asserts that the outcome is the one that the page has in the column with this heading. Also
/// asserts that the page has a row for each attack, and no others.
///
/// # Panics
/// If that is not so.
#[track_caller]
pub fn assert_attacks(column: &str, restrict: impl Fn() -> bool) {
    let stage = Stage::new();
    let attacks = stage.attacks();
    let promised = promised(&page(), column);
    let names: Vec<&str> = attacks.iter().map(|attack| attack.name).collect();
    let rows: Vec<&str> = promised.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(rows, names, "the rows below {HEADING:?} are not the attacks of this test");
    let mut wrong = Vec::new();
    for (attack, (name, promise)) in attacks.iter().zip(&promised) {
        let outcome = try_call(&restrict, attack.number, attack.arguments);
        let is = match outcome {
            CallOutcome::Failed(libc::EPERM) => "refused",
            CallOutcome::Failed(libc::ENOSYS) => "unknown",
            CallOutcome::Killed(libc::SIGSYS) => "fatal",
            CallOutcome::Succeeded | CallOutcome::Failed(_) => "permitted",
            CallOutcome::Killed(_) | CallOutcome::Unrestricted => "",
        };
        if is != promise {
            wrong.push(format!("{name}: {promise:?} in the page, but {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "in the column {column:?}:\n{}", wrong.join("\n"));
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/threat-model.md");
    std::fs::read_to_string(path).expect("the page")
}

/// Returns the names of the rows, and what they have in a column.
#[track_caller]
fn promised(page: &str, column: &str) -> Vec<(String, String)> {
    let below = page.lines().skip_while(|line| *line != HEADING).skip(1);
    let mut table = below.skip_while(|line| !line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let heads = cells(table.next().expect("a table"));
    let at = heads.iter().position(|head| head == column);
    let at = at.unwrap_or_else(|| panic!("no column {column:?} in {heads:?}"));
    let rows = table.skip(1).take_while(|line| line.starts_with('|')).map(cells);
    rows.map(|row| (row[0].clone(), row[at].clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attacks that need privileges, a kernel's option, or that are never possible.
    const NOT_FOR_ALL: [&str; 6] = [
        "`io_uring_setup`",
        "`bpf`, a map",
        "`socket` of packets",
        "`mq_notify`",
        "`tgkill` of another process",
        "`kcmp` with another process",
    ];

    /// Otherwise a filter that permits everything would pass.
    #[test]
    fn without_a_filter_the_kernel_answers_otherwise() {
        let stage = Stage::new();
        let columns = ["`fabled`", "`fabled` in a zone", "`tls-proxy`", "`mtcp run`"];
        let tables = columns.map(|column| promised(&page(), column));
        for (index, attack) in stage.attacks().iter().enumerate() {
            let promises = tables.each_ref().map(|table| table[index].1.as_str());
            // Nothing but a filter ends a process so; and the call might do harm.
            if promises == ["fatal"; 4] || NOT_FOR_ALL.contains(&attack.name) {
                continue;
            }
            let outcome = try_call(|| true, attack.number, attack.arguments);
            let refusals = [libc::EPERM, libc::ENOSYS].map(CallOutcome::Failed);
            assert!(!refusals.contains(&outcome), "{}: {outcome:?}", attack.name);
        }
    }

    #[test]
    fn a_column_is_found_by_its_heading() {
        let page =
            format!("{HEADING}\n\nText.\n\n| a | b |\n| --- | --- |\n| x | 1 |\n| y | 2 |\n\n");
        let row = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(promised(&page, "b"), [row("x", "1"), row("y", "2")]);
    }
}
