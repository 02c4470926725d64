//! Makes containers with runc(8), with what Docker and Podman set by default, and with bwrap(1).

use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use systemtests_programs::target_dir;
use testkit::process::profile_directory;

/// Where a job runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Container {
    /// A container of runc.
    Engine { user: u32 },
    /// A user namespace of bwrap with a root of its own, without `/proc` and `/sys`.
    Sandbox,
    /// Namespaces of bwrap with the host's files, in which everything is permitted.
    Open,
}

/// Seconds after which a job is ended; only one that hangs takes as long.
const TIME_LIMIT_SECONDS: &str = "100";

/// Functions of the scripts. `up PORT [ADDRESS]` waits until something listens, and `holds WORDS`
/// until a command succeeds, both in vain if the last process in the background ends.
/// `exchange PORT TEXT` sends a text. `gone`, after a client that failed, lets the last process end
/// by itself before it is killed: it says why.
const FUNCTIONS: &str = r#"
holds() { until "$@"; do kill -0 $! || return; sleep 0.03; done 2>/dev/null; }
up() { holds timeout 1 bash -c "exec 3<>/dev/tcp/${2:-127.0.0.1}/$1"; }
gone() { timeout 5 tail -s 0.1 --pid=$! -f /dev/null; }
exchange() { python3 -c "$EXCHANGE" "$@"; }
"#;

/// A client in Python: connects to a port, sends, ends its direction, and prints what comes.
const EXCHANGE: &str = r"
import socket, sys
peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20)
peer.sendall(sys.argv[2].encode().decode('unicode_escape').encode())
peer.shutdown(socket.SHUT_WR)
while (found := peer.recv(1000)):
    print(found.decode(), flush=True)
";

/// Capabilities that root keeps in a container.
const CAPABILITIES: &[&str] = &[
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// System calls that the default profile of the engines refuses with EPERM, without those that
/// libseccomp 2.5.4 cannot name.
const REFUSED: &str = "acct add_key bpf clock_adjtime clock_settime create_module delete_module \
    fanotify_init finit_module fsconfig fsmount fsopen fspick get_mempolicy init_module \
    io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load \
    keyctl lookup_dcookie mbind mount mount_setattr move_mount move_pages name_to_handle_at \
    nfsservctl open_by_handle_at open_tree perf_event_open pivot_root quotactl quotactl_fd reboot \
    request_key set_mempolicy setns settimeofday swapoff swapon sysfs syslog umount2 unshare \
    userfaultfd vhangup";

/// Directories of the root that only lead to those of `/usr`.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// What is visible of the host's `/etc`.
const ETC: [&str; 3] = ["/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl"];

impl Container {
    /// Runs a shell script to its end; returns all its output, and its exit status if that is not
    /// 0.
    /// `$B` is the directory of our programs, `$A` that of nginx's module and memcached; `more` are
    /// further variables.
    pub(crate) fn run(self, script: &str, more: &[(&str, String)]) -> String {
        let bundle = tempfile::tempdir().expect("a temporary directory");
        let mut variables = vec![
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_string()),
            ("HOME", "/tmp".to_string()),
            ("EXCHANGE", EXCHANGE.to_string()),
            // The programs cannot find them where there is no /proc, and say so.
            ("FABLE_PRELOAD", library("fable")),
            ("MTCP_PRELOAD", library("mtcp")),
            ("B", profile_directory().display().to_string()),
            ("A", target_dir().join("apps").display().to_string()),
        ];
        variables.extend(more.iter().cloned());
        let words = ["timeout", "--kill-after=5", TIME_LIMIT_SECONDS, "bash", "-c"];
        let script = format!("exec 2>&1; cd /tmp; {FUNCTIONS} {script}");
        let words: Vec<&str> = words.into_iter().chain([script.as_str()]).collect();
        let mut command = match self {
            Container::Engine { user } => engine(bundle.path(), user, &variables, &words),
            Container::Sandbox => sandbox(&variables, &words),
            Container::Open => open(&variables, &words),
        };
        let output = command.stdin(Stdio::null()).output();
        let output =
            output.unwrap_or_else(|error| panic!("{command:?}: {error}: cargo xtask setup"));
        let text = [output.stdout, output.stderr].concat();
        let mut text = String::from_utf8_lossy(&text).into_owned();
        if !output.status.success() {
            text.push_str(&format!("\n{}", output.status));
        }
        text
    }
}

/// The path of a preload library.
fn library(name: &str) -> String {
    profile_directory().join(format!("lib{name}_preload.so")).display().to_string()
}

/// The command that runs words in a container, whose files are made in `bundle`.
fn engine(bundle: &Path, user: u32, variables: &[(&str, String)], words: &[&str]) -> Command {
    let root = bundle.join("root");
    for directory in ["dev", "etc", "proc", "sys", "tmp", "usr"] {
        fs::create_dir_all(root.join(directory)).expect("a directory of the container");
    }
    for name in MERGED {
        symlink(format!("usr/{name}"), root.join(name)).expect("a link of the container");
    }
    // runc gives the file system the mode of the directory below it.
    fs::set_permissions(root.join("tmp"), Permissions::from_mode(0o1777)).expect("our directory");
    let users = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";
    fs::write(root.join("etc/passwd"), users).expect("a file");
    fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n").expect("a file");
    let config = configuration(user, variables, words).to_string();
    fs::write(bundle.join("config.json"), config).expect("the container's configuration");
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut command = Command::new("runc");
    command.arg("--root").arg(bundle.join("state")).args(["run", "--bundle"]).arg(bundle);
    command.arg(format!("megapipe-test-{}-{number}", std::process::id()));
    command
}

/// A configuration by the runtime specification of the Open Container Initiative.
fn configuration(user: u32, variables: &[(&str, String)], words: &[&str]) -> Value {
    let own: &[&str] = if user == 0 { CAPABILITIES } else { &[] };
    let namespaces = ["ipc", "mount", "network", "pid", "uts"].map(|kind| json!({ "type": kind }));
    let refused: Vec<&str> = REFUSED.split_whitespace().collect();
    let environment: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let target = target_dir().display().to_string();
    let visible = ETC.into_iter().chain(["/usr", &target]);
    let file_system = |kind: &str, place: &str, options: &[&str]| {
        json!({
            "destination": place, "type": kind, "source": kind, "options": options,
        })
    };
    let mut mounts = vec![
        file_system("proc", "/proc", &[]),
        file_system("sysfs", "/sys", &["nosuid", "noexec", "nodev", "ro"]),
        file_system("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        file_system(
            "tmpfs",
            "/dev/shm",
            &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
        ),
        file_system("tmpfs", "/tmp", &["mode=1777"]),
    ];
    mounts.extend(visible.map(|path| {
        json!({
            "destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"],
        })
    }));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": user, "gid": user },
            "args": words,
            "env": environment,
            "cwd": "/",
            "capabilities": { "bounding": CAPABILITIES, "effective": own, "permitted": own },
            "rlimits": [{ "type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1024 }],
        },
        "root": { "path": "root", "readonly": true },
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces,
            "maskedPaths": [
                "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
                "/sys/firmware",
            ],
            "readonlyPaths": [
                "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
            ],
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": ["SCMP_ARCH_X86_64"],
                "syscalls": [
                    { "names": refused, "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM },
                    { "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS },
                ],
            },
        },
    })
}

/// The command that runs words in a sandbox.
fn sandbox(variables: &[(&str, String)], words: &[&str]) -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--die-with-parent", "--uid", "12345", "--gid", "12345"]);
    command.args(["--dev", "/dev", "--tmpfs", "/tmp", "--clearenv"]);
    for name in MERGED {
        command.args(["--symlink", &format!("usr/{name}"), &format!("/{name}")]);
    }
    let target = target_dir().display().to_string();
    for path in ETC.into_iter().chain(["/usr", &target]) {
        command.args(["--ro-bind", path, path]);
    }
    give(&mut command, variables, words);
    command
}

/// The command that runs words in namespaces with files of their own in usual places.
fn open(variables: &[(&str, String)], words: &[&str]) -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent"]);
    command.args(["--cap-add", "ALL", "--clearenv", "--dev-bind", "/", "/", "--proc", "/proc"]);
    for path in ["/tmp", "/run", "/dev/shm"] {
        command.args(["--tmpfs", path]);
    }
    // It may be below one of these.
    let target = target_dir().display().to_string();
    command.args(["--bind", &target, &target]);
    give(&mut command, variables, words);
    command
}

/// Adds the variables and the words to a command of bwrap.
fn give(command: &mut Command, variables: &[(&str, String)], words: &[&str]) {
    for (name, value) in variables {
        command.args(["--setenv", name, value]);
    }
    command.args(words);
}
