//! Forking: connections stay with the parent, and nothing of the stack lives on in the child.

use crate::state;
use crate::table::{self, Kind};
use core::ffi::c_int;

pub(crate) extern "C" fn before() {
    state::hold();
}

pub(crate) extern "C" fn in_parent() {
    state::let_go();
}

/// A child that kept descriptors of the device would keep the interface from being given back when
/// the parent ends.
pub(crate) extern "C" fn in_child() {
    for fd in state::inherit() {
        // SAFETY: the descriptor is the stack's, which this process does not have.
        unsafe { real::close(fd) };
        table::set(fd, Kind::Plain);
    }
    for (fd, kind) in table::known(0, c_int::MAX) {
        match kind {
            Kind::Socket(_) => table::set(fd, Kind::Inherited),
            Kind::Shadowed(_) => table::set(fd, Kind::Epoll),
            _ => {}
        }
    }
}

/// The descriptors of this process that are of the kinds that a stack opens.
pub(crate) fn open_descriptors() -> Vec<c_int> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let entries = entries.flatten().filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let target = target.to_str()?;
        let ours = ["socket:", "anon_inode:", "/dev/net/tun"];
        let is_one = ours.iter().any(|start| target.starts_with(start));
        if is_one { entry.file_name().to_str()?.parse().ok() } else { None }
    });
    entries.collect()
}

/// Mapped rings of the device hold it open, too; children shall not have them (madvise(2),
/// MADV_DONTFORK).
pub(crate) fn keep_from_children() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for line in maps.lines().filter(|line| line.contains("socket:[")) {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range else { continue };
        let number = |text| usize::from_str_radix(text, 16);
        let (Ok(start), Ok(end)) = (number(start), number(end)) else { continue };
        // SAFETY: the range is mapped, and only what a child sees of it changes.
        unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_DONTFORK) };
    }
}
