//! Disables services of installed packages: a set-up must not add any service to the boot.
//!
//! Debian's packages enable their services when they are installed, by links below these
//! directories. Links that did not exist before the installation are removed after it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Directory of systemd's links to enabled units.
const UNITS: &str = "etc/systemd/system";
/// Directories of sysvinit's links.
const SCRIPTS: [&str; 4] = ["etc/rc2.d", "etc/rc3.d", "etc/rc4.d", "etc/rc5.d"];

/// Returns the links that enable services, below `root`.
pub(crate) fn enabled(root: &Path) -> BTreeSet<PathBuf> {
    let wants = entries(&root.join(UNITS));
    let wants = wants.filter(|path| path.extension().is_some_and(|kind| kind == "wants"));
    let units = wants.flat_map(|directory| entries(&directory));
    let scripts = SCRIPTS.iter().flat_map(|directory| entries(&root.join(directory)));
    units.chain(scripts.filter(|link| starts(link))).collect()
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Returns whether a link of sysvinit starts a service instead of stopping it.
fn starts(link: &Path) -> bool {
    link.file_name().is_some_and(|name| name.to_string_lossy().starts_with('S'))
}

/// Commands that disable what was enabled since `before`, and the names of those services.
pub(crate) fn disabling(
    before: &BTreeSet<PathBuf>,
    after: &BTreeSet<PathBuf>,
) -> (Vec<Vec<String>>, BTreeSet<String>) {
    let fresh: Vec<&PathBuf> = after.difference(before).collect();
    let is_unit = |link: &&&PathBuf| link.components().any(|part| part.as_os_str() == "systemd");
    let name = |link: &PathBuf| link.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let units: Vec<&PathBuf> = fresh.iter().filter(is_unit).copied().collect();
    let scripts = fresh.iter().filter(|link| !is_unit(link));
    let scripts: BTreeSet<String> = scripts.map(|link| name(link).split_off(3)).collect();
    let mut commands = Vec::new();
    if !units.is_empty() {
        let links = units.iter().map(|link| link.display().to_string());
        commands.push(["rm".to_string(), "-f".to_string()].into_iter().chain(links).collect());
    }
    for script in &scripts {
        commands.push(["update-rc.d", script, "disable"].map(String::from).to_vec());
    }
    let names = units.iter().map(|link| name(link)).chain(scripts).collect();
    (commands, names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_an_installation_enables_is_disabled_and_the_rest_stays() {
        let root = tempfile::tempdir().unwrap();
        let link = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink("/dev/null", path).unwrap();
        };
        link("etc/systemd/system/multi-user.target.wants/cron.service");
        link("etc/rc2.d/S01cron");
        let before = enabled(root.path());
        assert_eq!(before.len(), 2);
        assert_eq!(disabling(&before, &before), (Vec::new(), BTreeSet::new()));
        link("etc/systemd/system/multi-user.target.wants/lighttpd.service");
        link("etc/systemd/system/lighttpd-alias.service");
        link("etc/rc2.d/S01lighttpd");
        link("etc/rc3.d/S01lighttpd");
        link("etc/rc2.d/K01etcd");
        let (commands, names) = disabling(&before, &enabled(root.path()));
        assert_eq!(commands.len(), 2, "{commands:?}");
        assert_eq!(commands[0][..2], ["rm", "-f"]);
        assert!(commands[0][2].ends_with("multi-user.target.wants/lighttpd.service"));
        assert_eq!(commands[0].len(), 3);
        assert_eq!(commands[1], ["update-rc.d", "lighttpd", "disable"]);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["lighttpd", "lighttpd.service"]);
    }

    #[test]
    fn a_system_without_services_has_none() {
        assert!(enabled(Path::new("/nonexistent")).is_empty());
    }
}
