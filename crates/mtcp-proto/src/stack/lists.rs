//! Implements doubly linked lists over indices. An index is in at most one list of a family, and
//! removing it from any position takes constant time.

/// The end of a list.
const NONE: u32 = u32::MAX;
/// The index is in no list.
const ALONE: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// The links of one family of lists, by index.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

/// The ends of one list.
#[derive(Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
    length: u32,
}

impl Default for List {
    fn default() -> List {
        List { first: NONE, last: NONE, length: 0 }
    }
}

impl List {
    pub(super) const fn len(&self) -> u32 {
        self.length
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }
}

impl Links {
    /// Whether the index is in one of the family's lists.
    pub(super) fn contains(&self, index: u32) -> bool {
        self.0.get(index as usize).is_some_and(|link| link.next != ALONE)
    }

    /// The index that follows in the same list.
    pub(super) fn next(&self, index: u32) -> Option<u32> {
        let next = self.0.get(index as usize)?.next;
        (next < ALONE).then_some(next)
    }

    /// Appends an index that is in no list of the family.
    pub(super) fn push_back(&mut self, list: &mut List, index: u32) {
        let place = index as usize;
        if place >= self.0.len() {
            self.0.resize(place + 1, Link { previous: NONE, next: ALONE });
        }
        debug_assert!(!self.contains(index), "{index} is in a list already");
        self.0[place] = Link { previous: list.last, next: NONE };
        match list.last {
            NONE => list.first = index,
            last => self.0[last as usize].next = index,
        }
        list.last = index;
        list.length += 1;
    }

    /// Removes the index from the list, which must be the one that contains it.
    pub(super) fn remove(&mut self, list: &mut List, index: u32) {
        debug_assert!(self.contains(index), "{index} is in no list");
        let Link { previous, next } = self.0[index as usize];
        match previous {
            NONE => list.first = next,
            previous => self.0[previous as usize].next = next,
        }
        match next {
            NONE => list.last = previous,
            next => self.0[next as usize].previous = previous,
        }
        self.0[index as usize].next = ALONE;
        list.length -= 1;
    }

    pub(super) fn pop_front(&mut self, list: &mut List) -> Option<u32> {
        let first = list.first()?;
        self.remove(list, first);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn lists_behave_like_queues(steps in prop::collection::vec((0..3u8, 0..40u32), 0..400)) {
            let (mut links, mut lists) = (Links::default(), [List::default(), List::default()]);
            let mut models = [VecDeque::new(), VecDeque::new()];
            for (action, index) in steps {
                let which = usize::from(action == 1);
                match models.iter().position(|model| model.contains(&index)) {
                    Some(holder) if action == 2 => {
                        links.remove(&mut lists[holder], index);
                        models[holder].retain(|&other| other != index);
                    }
                    Some(_) => {
                        prop_assert!(links.contains(index));
                        let popped = links.pop_front(&mut lists[which]);
                        prop_assert_eq!(popped, models[which].pop_front());
                    }
                    None => {
                        prop_assert!(!links.contains(index));
                        links.push_back(&mut lists[which], index);
                        models[which].push_back(index);
                    }
                }
                for (list, model) in lists.iter().zip(&models) {
                    prop_assert_eq!(list.len() as usize, model.len());
                    let mut at = list.first();
                    for &expected in model {
                        prop_assert_eq!(at, Some(expected));
                        at = links.next(expected);
                    }
                    prop_assert_eq!(at, None);
                }
            }
        }
    }
}
