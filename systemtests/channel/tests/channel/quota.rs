//! Tests the runtime in a control group with a quota of CPU time, see the kernel's
//! Documentation/admin-guide/cgroup-v2.rst.

use megapipe_rt::Runtime;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use testkit::process::alone;

const PERIOD_US: u64 = 100_000;
/// 1.5 CPUs.
const QUOTA_US: u64 = 150_000;

/// A control group with the quota, which is removed at the end.
struct Group {
    directory: PathBuf,
    /// The group above and whether its children got the controller only now.
    above: (PathBuf, bool),
}

impl Group {
    /// Makes a group of version 2 or, where the controller of CPU time belongs to it, of version 1;
    /// `None` if there is no such controller.
    fn new() -> Option<Group> {
        let name = format!("megapipe-quota-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let control = root.join("cgroup.subtree_control");
        let has_cpu = |file: &Path| {
            fs::read_to_string(file).is_ok_and(|list| list.split_whitespace().any(|it| it == "cpu"))
        };
        if has_cpu(&root.join("cgroup.controllers")) {
            let enabled = !has_cpu(&control);
            if enabled {
                fs::write(&control, "+cpu").expect("children get the controller");
            }
            let group = Group { directory: root.join(name), above: (root.to_owned(), enabled) };
            fs::create_dir(&group.directory).expect("a group");
            group.set("cpu.max", &format!("{QUOTA_US} {PERIOD_US}"));
            return Some(group);
        }
        let root = ["cpu", "cpu,cpuacct"].map(|name| root.join(name));
        let root = root.into_iter().find(|root| root.join("cpu.cfs_quota_us").exists())?;
        let group = Group { directory: root.join(name), above: (root, false) };
        fs::create_dir(&group.directory).expect("a group");
        group.set("cpu.cfs_period_us", &PERIOD_US.to_string());
        group.set("cpu.cfs_quota_us", &QUOTA_US.to_string());
        Some(group)
    }

    fn set(&self, file: &str, value: &str) {
        let path = self.directory.join(file);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Moves this process into a group.
    fn enter(group: &Path) -> io::Result<()> {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let (above, enabled) = &self.above;
        let left = Group::enter(above).and_then(|()| fs::remove_dir(&self.directory));
        if *enabled {
            let _ = fs::write(above.join("cgroup.subtree_control"), "-cpu");
        }
        assert!(left.is_ok() || std::thread::panicking(), "{}: {left:?}", self.directory.display());
    }
}

#[test]
fn a_runtime_has_as_many_cores_as_its_quota_keeps_busy() {
    const NAME: &str = "quota::a_runtime_has_as_many_cores_as_its_quota_keeps_busy";
    alone(NAME, || {
        let cores = || Runtime::new().expect("a runtime").handle().cores();
        let all = cores();
        let Some(group) = Group::new() else {
            return testkit::skip(NAME, "no controller of CPU time (CONFIG_CFS_BANDWIDTH)");
        };
        Group::enter(&group.directory).expect("this process enters the group");
        assert_eq!(cores(), 1, "of {all}");
        let asked = Runtime::builder().cores(all).build().expect("a runtime");
        assert_eq!(asked.handle().cores(), all, "who asks for cores gets them");
    });
}
