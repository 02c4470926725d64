//! Makes a failing list of operations smaller as long as it fails in the same way.

/// Drops items as long as `fails` returns true; counts its calls down in `tries`.
pub fn shrink_list<T: Clone>(
    list: &[T],
    tries: &mut usize,
    mut fails: impl FnMut(&[T]) -> bool,
) -> Vec<T> {
    let mut best = list.to_vec();
    let mut chunk = best.len().div_ceil(2);
    while chunk > 0 && *tries > 0 {
        let mut at = 0;
        let before = best.len();
        while at < best.len() && *tries > 0 {
            let mut candidate = best.clone();
            candidate.drain(at..(at + chunk).min(best.len()));
            *tries -= 1;
            if fails(&candidate) {
                best = candidate;
            } else {
                at += chunk;
            }
        }
        if chunk > 1 {
            chunk = chunk.div_ceil(2);
        } else if best.len() == before {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn only_what_makes_it_fail_is_left() {
        let mut count = 0;
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let list: Vec<u64> = (0..30).map(|_| random.below(20)).collect();
            let fails = |list: &[u64]| {
                let has = |wanted| list.iter().position(|item| *item == wanted);
                matches!((has(3), has(4)), (Some(three), Some(four)) if three < four)
            };
            if fails(&list) {
                assert_eq!(shrink_list(&list, &mut 1000, fails), [3, 4]);
                count += 1;
            }
        }
        assert!(count > 20, "{count}");
    }
}
