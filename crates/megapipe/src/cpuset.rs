//! Implements sets of CPU numbers from 0 to 1,023.

use std::fmt;

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
