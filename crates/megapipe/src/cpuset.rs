//! Implements sets of CPU numbers from 0 to 1,023.

use std::fmt;
use std::io;

/// A set of CPU numbers in 0..1024, such as a channel's claim of CPUs.
///
/// ```
/// use megapipe::CpuSet;
/// let set: CpuSet = [0, 2].into_iter().collect();
/// assert!(set.contains(2) && !set.contains(1));
/// assert_eq!(set.to_string(), "0,2");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CpuSet {
    words: [u64; CpuSet::CAPACITY / 64],
}

impl CpuSet {
    /// The number of CPUs that a set can contain: 0 to 1,023, as in sched_setaffinity(2).
    pub const CAPACITY: usize = 1024;

    /// The set without any CPU.
    pub const fn empty() -> CpuSet {
        CpuSet { words: [0; CpuSet::CAPACITY / 64] }
    }

    /// The set of one CPU. A number of 1024 or more gives the empty set.
    pub fn one(cpu: usize) -> CpuSet {
        [cpu].into_iter().collect()
    }

    /// Adds a CPU; numbers of 1024 or more are ignored.
    pub fn insert(&mut self, cpu: usize) {
        if cpu < CpuSet::CAPACITY {
            self.words[cpu / 64] |= 1 << (cpu % 64);
        }
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        cpu < CpuSet::CAPACITY && self.words[cpu / 64] & (1 << (cpu % 64)) != 0
    }

    /// Whether there is no CPU in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The CPUs that are in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        self.combine(other, |a, b| a & b)
    }

    /// The CPUs that are in either set.
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        self.combine(other, |a, b| a | b)
    }

    /// The CPUs of this set that are not in the other.
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        self.combine(other, |a, b| a & !b)
    }

    /// The CPUs of the set in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..CpuSet::CAPACITY).filter(|cpu| self.contains(*cpu))
    }

    /// Binds the calling thread, and threads that it starts later, to the CPUs of the set, as
    /// sched_setaffinity(2) does. CPUs of the set that the thread may not use are left out.
    ///
    /// ```
    /// use megapipe::CpuSet;
    /// let here = CpuSet::of_current_thread()?.iter().next().expect("the CPU that it runs on");
    /// CpuSet::one(here).pin_current_thread()?;
    /// assert_eq!(CpuSet::of_current_thread()?, CpuSet::one(here));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` if the thread may use no CPU of the set, as with the empty set; the thread then
    /// keeps its CPUs. A sandbox may refuse the system call with another error.
    pub fn pin_current_thread(&self) -> io::Result<()> {
        sys::cpus::restrict_to(&sys::cpus::set_of(&self.iter().collect::<Vec<_>>()))
    }

    /// Returns the CPUs that the calling thread may use; see sched_getaffinity(2).
    ///
    /// # Errors
    /// `EINVAL` on a machine with more than 1,024 CPUs.
    pub fn of_current_thread() -> io::Result<CpuSet> {
        Ok(sys::cpus::allowed()?.into_iter().collect())
    }

    fn combine(&self, other: &CpuSet, operation: impl Fn(u64, u64) -> u64) -> CpuSet {
        let mut words = self.words;
        for (word, with) in words.iter_mut().zip(other.words) {
            *word = operation(*word, with);
        }
        CpuSet { words }
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> CpuSet {
        let mut set = CpuSet::empty();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, cpu) in self.iter().enumerate() {
            if position > 0 {
                out.write_str(",")?;
            }
            write!(out, "{cpu}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "CpuSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_on_the_cpus_that_it_is_pinned_to() {
        let allowed = CpuSet::of_current_thread().unwrap();
        for cpu in allowed.iter() {
            std::thread::spawn(move || {
                let wider: CpuSet = [cpu, CpuSet::CAPACITY - 1].into_iter().collect();
                wider.pin_current_thread().unwrap();
                assert!(CpuSet::of_current_thread().unwrap().contains(cpu));
                CpuSet::one(cpu).pin_current_thread().unwrap();
                assert_eq!(CpuSet::of_current_thread().unwrap(), CpuSet::one(cpu));
            })
            .join()
            .unwrap();
        }
        let error = CpuSet::empty().pin_current_thread().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(CpuSet::of_current_thread().unwrap(), allowed);
    }
}
