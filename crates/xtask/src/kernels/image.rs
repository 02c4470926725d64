//! Finds a kernel in a directory, and makes the initramfs that mounts the guest's root file system.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{make_directory, quietly};
use crate::setup;

/// The program that the initramfs needs in addition to the modules.
const BUSYBOX: &str = "/bin/busybox";
const BOOT: &str = include_str!("guest/boot.sh");

/// Modules for mounting the root file system, in this order.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "virtiofs", "overlay"];

/// Directories of the initramfs, for mounts.
const MOUNTS: [&str; 6] = ["proc", "sys", "dev", "host", "disk", "new"];

/// A kernel with its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    /// The output of `uname -r`.
    pub(super) release: String,
    pub(super) vmlinuz: PathBuf,
    /// The directory that becomes `/lib/modules/RELEASE`.
    pub(super) modules: PathBuf,
}

impl Kernel {
    /// Finds a kernel in the content of a package, or in a directory of the user.
    pub(super) fn find(root: &Path) -> Result<Kernel, String> {
        let modules = ["lib/modules", "usr/lib/modules", "modules"].map(|below| root.join(below));
        let modules = modules.iter().flat_map(|directory| entries(directory));
        let modules = modules.into_iter().find(|directory| directory.join("kernel").is_dir());
        let modules = modules.ok_or_else(|| {
            format!("{} has no lib/modules/RELEASE/kernel with a kernel's modules", root.display())
        })?;
        let places = [root.join("boot"), modules.clone(), root.to_path_buf()];
        let is_image = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("vmlinuz") && path.is_file()
        };
        let vmlinuz = places.iter().flat_map(|place| entries(place)).find(is_image);
        let vmlinuz = vmlinuz.ok_or_else(|| format!("{} has no vmlinuz", root.display()))?;
        let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Kernel { release, vmlinuz, modules })
    }

    /// Returns the version without the distribution's suffix: 6.1 of 6.1.0-50-cloud-amd64.
    pub(super) fn version(&self) -> String {
        self.release.split('.').take(2).collect::<Vec<_>>().join(".")
    }

    /// Makes the initramfs in the empty directory of a run; returns its path.
    pub(super) fn initramfs(&self, run: &Path) -> Result<PathBuf, String> {
        let tree = run.join("initramfs");
        for below in MOUNTS.iter().copied().chain(["bin", "modules"]) {
            make_directory(&tree.join(below))?;
        }
        let failed = |error| format!("cannot make the initramfs in {}: {error}", tree.display());
        fs::copy(BUSYBOX, tree.join("bin/busybox")).map_err(failed)?;
        fs::write(tree.join("init"), BOOT).map_err(failed)?;
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(tree.join("init"), executable).map_err(failed)?;
        let mut list = String::new();
        for file in self.needed_modules(run)? {
            let name = plain_name(&file);
            expand(&file, &tree.join("modules").join(&name))?;
            list.push_str(&(name + "\n"));
        }
        fs::write(tree.join("modules/list"), list).map_err(failed)?;
        let image = run.join("initramfs.cpio");
        let mut pack = Command::new("sh");
        pack.args(["-c", "find . | cpio --quiet -o -H newc > \"$0\""]).arg(&image);
        quietly(pack.current_dir(&tree), "cpio")?;
        Ok(image)
    }

    /// Returns the files of the modules, each after those that it depends on.
    fn needed_modules(&self, run: &Path) -> Result<Vec<PathBuf>, String> {
        let base = run.join("base");
        let below = base.join("lib/modules");
        make_directory(&below)?;
        let link = below.join(&self.release);
        symlink(&self.modules, &link).map_err(|error| format!("{}: {error}", link.display()))?;
        if !self.modules.join("modules.dep").is_file() {
            let mut depmod = administrators("depmod");
            quietly(depmod.arg("-b").arg(&base).arg(&self.release), "depmod")?;
        }
        let mut files = Vec::new();
        for module in MODULES {
            let mut modprobe = administrators("modprobe");
            modprobe.arg("-d").arg(&base).args(["-S", &self.release, "--show-depends", module]);
            let output = modprobe.output().map_err(|e| format!("cannot run modprobe: {e}"))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("the kernel {} has no {module}: {said}", self.release));
            }
            for file in insertions(&String::from_utf8_lossy(&output.stdout)) {
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }
}

/// Returns the command of a program that may not be on the PATH of all users.
fn administrators(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", setup::search_path()).env("LC_ALL", "C");
    command
}

/// Returns a directory's entries in order.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// Returns the files in lines such as `insmod /lib/modules/6.1/kernel/fs/fuse/virtiofs.ko.xz`;
/// other lines are about built-in modules.
fn insertions(said: &str) -> Vec<PathBuf> {
    let files = said.lines().filter_map(|line| line.strip_prefix("insmod "));
    files.filter_map(|line| line.split_whitespace().next()).map(PathBuf::from).collect()
}

/// Returns the module's name without the suffix of a compression.
fn plain_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.trim_end_matches(".xz").trim_end_matches(".zst").trim_end_matches(".gz").to_string()
}

fn expand(file: &Path, to: &Path) -> Result<(), String> {
    let program = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => "cat",
    };
    let failed = |error| format!("cannot unpack {} with {program}: {error}", file.display());
    let mut command = Command::new(program);
    if program != "cat" {
        command.arg("-dc");
    }
    let output = fs::File::create(to).map_err(failed)?;
    let status = command.arg(file).stdout(output).status().map_err(failed)?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{program} cannot unpack {}: {status}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    #[test]
    fn a_kernel_is_found_in_both_layouts_of_packages() {
        let old = directory(&[
            "boot/System.map-6.1.0-50-cloud-amd64",
            "boot/vmlinuz-6.1.0-50-cloud-amd64",
            "lib/modules/6.1.0-50-cloud-amd64/kernel/fs/fuse.ko",
        ]);
        let kernel = Kernel::find(old.path()).unwrap();
        assert_eq!((kernel.release.as_str(), kernel.version().as_str()), OLD);
        assert!(kernel.vmlinuz.ends_with("boot/vmlinuz-6.1.0-50-cloud-amd64"));
        let new = directory(&[
            "usr/lib/modules/7.2.13+deb14/kernel/fs/fuse.ko.xz",
            "usr/lib/modules/7.2.13+deb14/vmlinuz",
        ]);
        let kernel = Kernel::find(new.path()).unwrap();
        assert_eq!(kernel.version(), "7.2");
        assert!(kernel.vmlinuz.ends_with("7.2.13+deb14/vmlinuz"));
    }

    const OLD: (&str, &str) = ("6.1.0-50-cloud-amd64", "6.1");

    #[test]
    fn what_is_missing_of_a_kernel_is_named() {
        let bare = directory(&["vmlinuz"]);
        assert!(Kernel::find(bare.path()).unwrap_err().contains("lib/modules/RELEASE/kernel"));
        let imageless = directory(&["lib/modules/6.1/kernel/a.ko"]);
        assert!(Kernel::find(imageless.path()).unwrap_err().contains("no vmlinuz"));
    }

    #[test]
    fn modules_are_read_in_their_order_without_those_that_are_built_in() {
        let said = "builtin virtio_ring\ninsmod /m/kernel/fs/fuse/fuse.ko.zst \n\
                    insmod /m/kernel/fs/fuse/virtiofs.ko.zst param=1\n";
        let files = insertions(said);
        let names: Vec<String> = files.iter().map(|file| plain_name(file)).collect();
        assert_eq!(names, ["fuse.ko", "virtiofs.ko"]);
    }
}
