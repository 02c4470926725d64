//! Schedules transmission: control segments before acknowledgements before data (mTCP,
//! priority-based packet queuing).

use super::lists::{Links, List};
use crate::tcp::Urgency;

/// Most segments that a connection sends before other connections are served.
pub(super) const TURN_SEGMENTS: usize = 16;

const ORDER: [Urgency; 3] = [Urgency::Control, Urgency::Acknowledgement, Urgency::Data];

/// The three transmit lists. A connection is in at most one of them; its table entry records which.
#[derive(Debug, Default)]
pub(super) struct Transmit {
    links: Links,
    lists: [List; 3],
}

impl Transmit {
    /// Moves a connection to another list. If it is in that list already, it keeps its position.
    #[inline]
    pub(super) fn set(
        &mut self,
        index: u32,
        listed: &mut Option<Urgency>,
        wanted: Option<Urgency>,
    ) {
        if *listed != wanted {
            self.change(index, listed, wanted);
        }
    }

    fn change(&mut self, index: u32, listed: &mut Option<Urgency>, wanted: Option<Urgency>) {
        if let Some(urgency) = *listed {
            self.links.remove(&mut self.lists[urgency as usize], index);
        }
        if let Some(urgency) = wanted {
            self.links.push_back(&mut self.lists[urgency as usize], index);
        }
        *listed = wanted;
    }

    /// Moves a connection to the end of its list.
    pub(super) fn rotate(&mut self, index: u32, listed: Option<Urgency>) {
        if let Some(urgency) = listed {
            let list = &mut self.lists[urgency as usize];
            self.links.remove(list, index);
            self.links.push_back(list, index);
        }
    }

    /// The connection that sends next.
    pub(super) fn first(&self) -> Option<u32> {
        ORDER.iter().find_map(|&urgency| self.lists[urgency as usize].first())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgency_goes_first_and_turns_go_round() {
        let mut transmit = Transmit::default();
        let mut listed = [None; 5];
        let wanted =
            [Urgency::Data, Urgency::Acknowledgement, Urgency::Data, Urgency::Control].map(Some);
        for (index, wanted) in wanted.into_iter().enumerate() {
            transmit.set(index as u32, &mut listed[index], wanted);
        }
        let drop_first = |transmit: &mut Transmit, listed: &mut [Option<Urgency>; 5]| {
            let index = transmit.first()?;
            transmit.set(index, &mut listed[index as usize], None);
            Some(index)
        };
        assert_eq!(drop_first(&mut transmit, &mut listed), Some(3));
        assert_eq!(drop_first(&mut transmit, &mut listed), Some(1));
        assert_eq!(transmit.first(), Some(0));
        transmit.rotate(0, listed[0]);
        assert_eq!(transmit.first(), Some(2));
        transmit.set(0, &mut listed[0], Some(Urgency::Acknowledgement));
        assert_eq!(drop_first(&mut transmit, &mut listed), Some(0));
        assert_eq!(drop_first(&mut transmit, &mut listed), Some(2));
        assert!(transmit.is_empty());
        assert_eq!(drop_first(&mut transmit, &mut listed), None);
    }
}
