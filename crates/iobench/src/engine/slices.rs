//! Slices of time. Only slices that no other work disturbed count.

use serde::{Deserialize, Serialize};

/// The state of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    Clean,
    /// The host ran another virtual machine.
    Stolen,
    /// Another program used the measured CPUs.
    Delayed,
    /// The border was sampled too late.
    Late,
}

/// Slices of time by what was found of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SliceCounts {
    pub(crate) clean: u32,
    /// The host ran somebody else's virtual machine.
    pub(crate) stolen: u32,
    /// Another program used our CPUs.
    pub(crate) delayed: u32,
    /// The sample came too late.
    pub(crate) late: u32,
}

impl SliceCounts {
    /// Returns the number of slices that do not count.
    pub(crate) fn discarded(&self) -> u32 {
        self.stolen + self.delayed + self.late
    }

    pub(crate) fn count(&mut self, finding: Finding) {
        *match finding {
            Finding::Clean => &mut self.clean,
            Finding::Stolen => &mut self.stolen,
            Finding::Delayed => &mut self.delayed,
            Finding::Late => &mut self.late,
        } += 1;
    }

    pub(crate) fn add(&mut self, other: &SliceCounts) {
        self.clean += other.clean;
        self.stolen += other.stolen;
        self.delayed += other.delayed;
        self.late += other.late;
    }
}

/// A row with fewer clean slices is not valid.
pub(crate) const LEAST_CLEAN_SLICES: u32 = 12;

/// Returns the least number of clean slices for which a slot with so many slices has figures.
pub(crate) fn least_clean(slices: usize) -> usize {
    slices.div_ceil(2).min(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_slices_but_no_more_than_three_must_be_clean() {
        assert_eq!([1, 2, 3, 5, 10].map(least_clean), [1, 1, 2, 3, 3]);
    }
}
