//! Computes the rest of an array of buffers after some of its bytes are transferred.

use super::calls::TRANSFER_MAX;

/// Returns the array that an operation points to.
///
/// The operation's contract keeps the array in place until the last outcome, which is longer than
/// any use of the slice: a driver reads it only while the operation is in flight.
pub(super) fn view<'a>(vector: *const libc::iovec, count: u32) -> &'a [libc::iovec] {
    if vector.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the operation's submitter keeps `count` elements readable and unchanged until
    // its last outcome.
    unsafe { std::slice::from_raw_parts(vector, count as usize) }
}

/// Counts the bytes of all parts, limited to what one operation transfers.
pub(super) fn total(vector: &[libc::iovec]) -> usize {
    let sum = vector.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len));
    sum.min(TRANSFER_MAX)
}

/// Returns a copy without the first `skip` bytes, and of `keep` bytes at most.
pub(super) fn rest(vector: &[libc::iovec], mut skip: usize, mut keep: usize) -> Vec<libc::iovec> {
    let mut left = Vec::with_capacity(vector.len());
    for part in vector {
        let passed = skip.min(part.iov_len);
        skip -= passed;
        let bytes = (part.iov_len - passed).min(keep);
        keep -= bytes;
        if bytes > 0 {
            let address = part.iov_base.cast::<u8>().wrapping_add(passed).cast();
            left.push(libc::iovec { iov_base: address, iov_len: bytes });
        }
    }
    left
}

/// Drops the first `skip` bytes in place.
pub(super) fn consume(vector: &mut Vec<libc::iovec>, mut skip: usize) {
    let mut whole = 0;
    for part in vector.iter_mut() {
        if skip < part.iov_len {
            part.iov_base = part.iov_base.cast::<u8>().wrapping_add(skip).cast();
            part.iov_len -= skip;
            break;
        }
        skip -= part.iov_len;
        whole += 1;
    }
    vector.drain(..whole);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vector_over(bytes: &[u8], lengths: &[usize]) -> Vec<libc::iovec> {
        let mut at = 0;
        let part = |length: &usize| {
            let part = libc::iovec {
                iov_base: bytes.as_ptr().wrapping_add(at).cast_mut().cast(),
                iov_len: *length,
            };
            at += length;
            part
        };
        lengths.iter().map(part).collect()
    }

    fn gather(vector: &[libc::iovec]) -> Vec<u8> {
        let slice = |part: &libc::iovec| {
            // SAFETY: the parts were cut from one live array by `vector_over`.
            unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) }.to_vec()
        };
        vector.iter().flat_map(slice).collect()
    }

    proptest! {
        #[test]
        fn what_is_left_is_what_has_not_moved(
            lengths in prop::collection::vec(0usize..20, 0..12),
            first in 0usize..120,
            second in 0usize..120,
        ) {
            let sum: usize = lengths.iter().sum();
            let bytes: Vec<u8> = (0..sum).map(|at| at as u8).collect();
            let vector = vector_over(&bytes, &lengths);
            prop_assert_eq!(total(&vector), sum);

            let first = first.min(sum);
            let mut left = rest(&vector, first, usize::MAX);
            prop_assert_eq!(gather(&left), &bytes[first..]);
            let second = second.min(sum - first);
            consume(&mut left, second);
            prop_assert_eq!(gather(&left), &bytes[first + second..]);
            let some = rest(&vector, first, second);
            prop_assert_eq!(gather(&some), &bytes[first..first + second]);
        }
    }

    #[test]
    fn an_operation_is_cut_to_what_a_result_can_tell() {
        let part = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: usize::MAX };
        assert_eq!(total(&[part, part]), TRANSFER_MAX);
        let left = rest(&[part, part], 10, TRANSFER_MAX - 10);
        assert_eq!(total(&left), TRANSFER_MAX - 10);
        assert_eq!(left.len(), 1);
    }
}
