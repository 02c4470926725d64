//! Checks, before a server starts, the limits of its number of connections.

use rustix::process::{Resource, getrlimit, getuid};
use rustix::thread::{CapabilitySet, capabilities};

use crate::error::{Error, Result};
use crate::sys::limits::read_trimmed;

/// Descriptors of a server that are not connections.
const SPARE_FILES: u64 = 64;
/// Tasks of a server that are not for connections, and of other programs that start meanwhile.
const SPARE_TASKS: u64 = 64;
/// Memory mappings of a thread: its stack, its signal stack, and a guard page for each.
const MAPPINGS_PER_THREAD: u64 = 4;
const SPARE_MAPPINGS: u64 = 1_024;

/// Fails if the limit of open files is too low for the connections.
pub(crate) fn check_files(connections: usize) -> Result<()> {
    let most = hard_limit(Resource::Nofile);
    refuse_above(connections, most, SPARE_FILES, "files", "ulimit -Hn", "raise LimitNOFILE=")
}

/// Fails if the limits of threads and processes are too low for one per connection.
pub(crate) fn check_tasks(connections: usize, tasks: &str) -> Result<()> {
    for bound in task_bounds()? {
        let most = bound.most.saturating_sub(bound.used);
        refuse_above(connections, most, SPARE_TASKS, tasks, &bound.name, "raise it")?;
    }
    Ok(())
}

/// Fails if the limit of memory mappings is too low for one stack per connection.
pub(crate) fn check_stacks(connections: usize) -> Result<()> {
    let Some(mappings) = number("/proc/sys/vm/max_map_count") else { return Ok(()) };
    let most = mappings.saturating_sub(SPARE_MAPPINGS) / MAPPINGS_PER_THREAD;
    refuse_above(connections, most, 0, "threads", "vm.max_map_count", "raise it")
}

fn refuse_above(
    connections: usize,
    most: u64,
    spare: u64,
    what: &str,
    bound: &str,
    remedy: &str,
) -> Result<()> {
    if connections as u64 + spare <= most {
        return Ok(());
    }
    Err(Error::setup(
        format!("{connections} connections need as many {what}, but {bound} permits {most}"),
        format!("{remedy} or ask for fewer --connections"),
    ))
}

/// A limit of the number of threads and processes.
#[derive(Debug)]
struct Bound {
    name: String,
    most: u64,
    used: u64,
}

fn task_bounds() -> Result<Vec<Bound>> {
    let used = tasks_of_the_system();
    let mut bounds = Vec::new();
    for name in ["pid_max", "threads-max"] {
        if let Some(most) = number(&format!("/proc/sys/kernel/{name}")) {
            bounds.push(Bound { name: format!("kernel.{name}"), most, used });
        }
    }
    if !is_exempt_from_nproc() {
        // The kernel does not report the user's tasks; there are at most as many as in the whole
        // system.
        let most = hard_limit(Resource::Nproc);
        bounds.push(Bound { name: "ulimit -Hu".to_owned(), most, used: 0 });
    }
    bounds.extend(cgroup_bounds());
    Ok(bounds)
}

/// Returns whether `ulimit -u` does not bind this process. In a user namespace it binds root, too,
/// whose capabilities do not count there.
fn is_exempt_from_nproc() -> bool {
    let exempting = CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    let has_rights = getuid().is_root()
        || capabilities(None).is_ok_and(|own| own.effective.intersects(exempting));
    has_rights && is_first_user_namespace(read_trimmed("/proc/self/uid_map").as_deref())
}

/// Returns whether a user namespace, given its map of users, is the one that the system began with:
/// all users are themselves. Without a map, it is taken for that one.
fn is_first_user_namespace(map: Option<&str>) -> bool {
    map.is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// Returns the limits of this process's control group and of its ancestors.
fn cgroup_bounds() -> Vec<Bound> {
    let text = read_trimmed("/proc/self/cgroup").unwrap_or_default();
    let mut bounds = Vec::new();
    for group in text.lines().filter_map(pids_group) {
        let mut directory = group.as_str();
        while directory.len() >= "/sys/fs/cgroup".len() {
            let most = number(&format!("{directory}/pids.max"));
            let used = number(&format!("{directory}/pids.current"));
            if let (Some(most), Some(used)) = (most, used) {
                bounds.push(Bound { name: format!("{directory}/pids.max"), most, used });
            }
            directory = directory.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }
    bounds
}

/// Returns the directory of a line of /proc/self/cgroup if it counts tasks, in either version.
fn pids_group(line: &str) -> Option<String> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let path = path.trim_end_matches('/');
    match controllers {
        "" => Some(format!("/sys/fs/cgroup{path}")),
        _ if controllers.split(',').any(|name| name == "pids") => {
            Some(format!("/sys/fs/cgroup/pids{path}"))
        }
        _ => None,
    }
}

/// Threads of all processes, from the fourth field of /proc/loadavg (running/all).
fn tasks_of_the_system() -> u64 {
    let text = read_trimmed("/proc/loadavg").unwrap_or_default();
    let tasks = text.split_whitespace().nth(3).and_then(|field| field.split_once('/'));
    tasks.and_then(|(_, all)| all.parse().ok()).unwrap_or(0)
}

fn number(path: &str) -> Option<u64> {
    read_trimmed(path)?.parse().ok()
}

/// Returns the hard limit of a resource; it counts because the server raises its soft limits.
fn hard_limit(resource: Resource) -> u64 {
    getrlimit(resource).maximum.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_of_user_namespaces_are_bound_by_limits() {
        assert!(is_first_user_namespace(Some("0          0 4294967295")));
        assert!(is_first_user_namespace(None));
        for map in ["0 1000 1", "0 100000 65536", "0 0 4294967295\n1 1 1", ""] {
            assert!(!is_first_user_namespace(Some(map)), "{map}");
        }
    }

    #[test]
    fn what_fits_is_allowed_and_what_does_not_is_refused_by_name() {
        assert!(check_files(10).is_ok() && check_tasks(10, "threads").is_ok());
        assert!(check_stacks(10).is_ok());
        let files = check_files(usize::MAX >> 1).unwrap_err().to_string();
        assert!(files.contains("ulimit -Hn") && files.contains("--connections"), "{files}");
        let tasks = check_tasks(usize::MAX >> 1, "processes").unwrap_err().to_string();
        assert!(tasks.contains("processes") && tasks.contains("kernel.pid_max"), "{tasks}");
        let stacks = check_stacks(usize::MAX >> 1).unwrap_err().to_string();
        assert!(stacks.contains("max_map_count"), "{stacks}");
    }

    #[test]
    fn both_versions_of_control_groups_are_understood() {
        assert_eq!(pids_group("0::/user.slice"), Some("/sys/fs/cgroup/user.slice".to_owned()));
        assert_eq!(pids_group("8:pids:/"), Some("/sys/fs/cgroup/pids".to_owned()));
        assert_eq!(pids_group("3:cpuset:/"), None);
        assert_eq!(pids_group("nonsense"), None);
    }
}
