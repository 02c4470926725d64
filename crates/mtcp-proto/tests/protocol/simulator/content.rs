//! Defines the content of streams: each byte is a function of connection, direction and offset.

use super::random::Random;
use std::sync::OnceLock;

/// The period of the content: a prime, so that streams with different starts never agree, and
/// longer than any stream in these tests.
const PERIOD: usize = 2_000_003;

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut random = Random::new(0);
        let mut bytes: Vec<u8> =
            (0..PERIOD.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        bytes.truncate(PERIOD);
        bytes
    })
}

/// The stream of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    start: usize,
}

impl Content {
    pub(crate) fn new(random: &mut Random) -> Content {
        Content { start: random.below(PERIOD as u64) as usize }
    }

    /// At most `bytes` bytes from `offset` on; fewer at the end of the table.
    pub(crate) fn slice(self, offset: u64, bytes: usize) -> &'static [u8] {
        let first = (self.start + offset as usize) % PERIOD;
        &table()[first..PERIOD.min(first + bytes)]
    }

    /// The position at which `data` differs from the stream at `offset`, if it does.
    pub(crate) fn difference(self, offset: u64, data: &[u8]) -> Option<u64> {
        let mut done = 0;
        while done < data.len() {
            let expected = self.slice(offset + done as u64, data.len() - done);
            let found = &data[done..done + expected.len()];
            if found != expected {
                let at = found.iter().zip(expected).take_while(|(one, other)| one == other).count();
                return Some(offset + (done + at) as u64);
            }
            done += expected.len();
        }
        None
    }
}

#[test]
fn a_wrong_byte_is_found_where_it_is() {
    let content = Content { start: PERIOD - 10 };
    let mut data: Vec<u8> = content.slice(0, 30).to_vec();
    data.extend_from_slice(content.slice(10, 20));
    assert_eq!((data.len(), content.difference(0, &data)), (30, None));
    data[25] ^= 1;
    assert_eq!(content.difference(0, &data), Some(25));
    assert_eq!(content.difference(5, &data[5..]), Some(25));
}
