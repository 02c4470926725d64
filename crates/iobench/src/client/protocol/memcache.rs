//! The client side of memcached's ASCII protocol and of redis' protocol: gets and sets of values
//! that are functions of their keys.

use std::io::Write;
use std::sync::Arc;

use crate::client::protocol::answer::{Answer, shown};
use crate::client::protocol::pattern::Pattern;
use crate::client::protocol::requests::Requests;
use crate::client::protocol::{Complaint, Fed, Intake, Protocol};
use crate::random::SplitMix64;

const LINE_END: &[u8] = b"\r\n";
/// Prefix of the number in a key.
const KEY_PREFIX: &str = "iobench-";
/// Sizes of keys and values as in the report, section 5.2.
pub(crate) const KEY_BYTES: usize = 64;
pub(crate) const VALUE_BYTES: usize = 1_024;

/// One operation on a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) key: u32,
    pub(crate) sets: bool,
}

/// Number of keys and ratio of operations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) keys: u32,
    /// Number of gets for every `sets` sets.
    pub(crate) gets: u32,
    pub(crate) sets: u32,
}

/// The protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Memcached,
    /// Arrays of bulk strings (RESP).
    Redis,
}

impl Dialect {
    /// Returns the answer to a set, without the end of its line.
    fn stored(self) -> &'static [u8] {
        match self {
            Dialect::Memcached => b"STORED",
            Dialect::Redis => b"+OK",
        }
    }

    /// Returns what follows a value.
    fn after_value(self) -> &'static [u8] {
        match self {
            Dialect::Memcached => b"\r\nEND\r\n",
            Dialect::Redis => LINE_END,
        }
    }

    /// Returns the length of the answer to a set or a get.
    pub(crate) fn answer_bytes(self, sets: bool) -> usize {
        if sets {
            return self.stored().len() + LINE_END.len();
        }
        let line_bytes = match self {
            Dialect::Memcached => "VALUE  0 1024\r\n".len() + KEY_BYTES,
            Dialect::Redis => "$1024\r\n".len(),
        };
        line_bytes + VALUE_BYTES + self.after_value().len()
    }

    /// Checks the line before a value, of which only one form is right.
    fn check_value_line(self, line: &[u8], key: u32) -> Result<(), Complaint> {
        let (miss, is_right) = match self {
            Dialect::Memcached => (&b"END"[..], is_value_line(line, key)),
            Dialect::Redis => (&b"$-1"[..], line == format!("${VALUE_BYTES}").as_bytes()),
        };
        match is_right {
            true => Ok(()),
            false if line == miss => Err(Complaint(format!("is a miss of key {key}"))),
            false => Err(Complaint(format!("is {} to the get of key {key}", shown(line)))),
        }
    }
}

/// Gets and sets in a ratio, with keys drawn uniformly.
pub(crate) struct Cache {
    dialect: Dialect,
    usage: Usage,
    pattern: Arc<Pattern>,
    requests: Requests,
    random: SplitMix64,
    seed: u64,
    request: Vec<u8>,
}

impl Cache {
    pub(crate) fn new(
        dialect: Dialect,
        usage: Usage,
        pattern: Arc<Pattern>,
        requests: Requests,
        seed: u64,
    ) -> Cache {
        let random = SplitMix64::new(seed);
        let request = Vec::with_capacity(2_048);
        Cache { dialect, usage, pattern, requests, random, seed, request }
    }

    fn value(&self, key: u32) -> &[u8] {
        &self.pattern.piece(key, 0)[..VALUE_BYTES]
    }
}

impl Protocol for Cache {
    type Request = Operation;
    type Answer = Answer;

    fn restart(&mut self, _is_ours: bool) {
        self.random = SplitMix64::new(self.seed);
    }

    fn connection_requests(&mut self) -> u32 {
        self.requests.draw(&mut self.random)
    }

    fn next_request(&mut self) -> Operation {
        let Usage { keys, gets, sets } = self.usage;
        let key = self.random.below(keys as usize) as u32;
        Operation { key, sets: self.random.below((gets + sets) as usize) >= gets as usize }
    }

    fn render(&mut self, Operation { key, sets }: Operation) -> &[u8] {
        self.request.clear();
        let digits = KEY_BYTES - KEY_PREFIX.len();
        // Writing to memory cannot fail.
        let _ = match (self.dialect, sets) {
            (Dialect::Memcached, true) => {
                write!(self.request, "set {KEY_PREFIX}{key:0digits$} 0 0 {VALUE_BYTES}\r\n")
            }
            (Dialect::Memcached, false) => {
                write!(self.request, "get {KEY_PREFIX}{key:0digits$}\r\n")
            }
            (Dialect::Redis, _) => {
                let (words, name) = if sets { (3, "SET") } else { (2, "GET") };
                let head = format!("*{words}\r\n$3\r\n{name}\r\n${KEY_BYTES}\r\n");
                let value = if sets { format!("${VALUE_BYTES}\r\n") } else { String::new() };
                write!(self.request, "{head}{KEY_PREFIX}{key:0digits$}\r\n{value}")
            }
        };
        if sets {
            self.request.extend_from_slice(&self.pattern.piece(key, 0)[..VALUE_BYTES]);
            self.request.extend_from_slice(LINE_END);
        }
        &self.request
    }

    fn begin_answer(answer: &mut Answer) {
        answer.reset();
    }

    fn intake(&self, _answer: &Answer, _operation: Operation) -> Intake {
        Answer::INTAKE
    }

    fn feed(
        &mut self,
        answer: &mut Answer,
        Operation { key, sets }: Operation,
        bytes: &[u8],
    ) -> Result<Fed, Complaint> {
        let mut begun = 0;
        if !answer.is_in_body() {
            let Some((line, taken)) = answer.head(bytes, LINE_END)? else {
                return Ok(Fed { used: bytes.len(), complete: false });
            };
            begun = taken;
            if sets {
                return match line == self.dialect.stored() {
                    true => Ok(Fed { used: begun, complete: true }),
                    false => Err(Complaint(format!("is {} to the set of key {key}", shown(line)))),
                };
            }
            self.dialect.check_value_line(line, key)?;
            answer.begin_body();
        }
        let after_value = self.dialect.after_value();
        let length = (VALUE_BYTES + after_value.len()) as u64;
        let expected = |at: u64| match (at as usize).checked_sub(VALUE_BYTES) {
            None => &self.value(key)[at as usize..],
            Some(behind) => &after_value[behind..],
        };
        match answer.body(&bytes[begun..], length, expected) {
            Ok(Fed { used, complete }) => Ok(Fed { used: begun + used, complete }),
            Err(Complaint(what)) => Err(Complaint(format!("with the value of key {key} {what}"))),
        }
    }

    /// Not called, because `intake` asks to see every byte.
    fn feed_unseen(&mut self, _answer: &mut Answer, count: usize) -> Fed {
        Fed { used: count, complete: false }
    }
}

/// Returns whether it is the line `VALUE KEY FLAGS BYTES` of memcached.
fn is_value_line(line: &[u8], key: u32) -> bool {
    let mut words = line.split(|&byte| byte == b' ');
    words.next() == Some(b"VALUE")
        && words.next().is_some_and(|word| number_of_key(word) == Some(key))
        && words.next() == Some(b"0")
        && words.next() == Some(b"1024")
        && words.next().is_none()
}

fn number_of_key(word: &[u8]) -> Option<u32> {
    let digits = word.strip_prefix(KEY_PREFIX.as_bytes()).filter(|_| word.len() == KEY_BYTES)?;
    digits.iter().try_fold(0_u32, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u32::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::client::protocol::feed_all;

    fn cache() -> Cache {
        of(Dialect::Memcached)
    }

    fn of(dialect: Dialect) -> Cache {
        let usage = Usage { keys: 1_000, gets: 9, sets: 1 };
        Cache::new(dialect, usage, Arc::new(Pattern::new()), Requests::Fixed(1), 5)
    }

    const GET: Operation = Operation { key: 7, sets: false };
    const SET: Operation = Operation { key: 7, sets: true };

    /// Returns the answer of a server that holds all values.
    fn response(cache: &Cache, operation: Operation) -> Vec<u8> {
        if operation.sets {
            return [cache.dialect.stored(), LINE_END].concat();
        }
        let line = match cache.dialect {
            Dialect::Memcached => format!("VALUE iobench-{:056} 0 1024\r\n", operation.key),
            Dialect::Redis => "$1024\r\n".to_owned(),
        };
        [line.as_bytes(), cache.value(operation.key), cache.dialect.after_value()].concat()
    }

    #[test]
    fn requests_have_keys_of_64_and_values_of_1024_bytes() {
        let mut cache = cache();
        let get = cache.render(GET).to_vec();
        assert_eq!(get.len(), "get ".len() + 64 + 2);
        let set = cache.render(SET).to_vec();
        assert_eq!(set.len(), "set ".len() + 64 + " 0 0 1024\r\n".len() + 1_024 + 2);
        assert_eq!(set[4..68], get[4..68]);
        assert!(set.ends_with(b"\r\n"));
    }

    #[test]
    fn one_in_ten_is_a_set_and_the_sequence_repeats() {
        let mut cache = cache();
        let draw = |cache: &mut Cache| -> Vec<Operation> {
            (0..20_000).map(|_| cache.next_request()).collect()
        };
        let first = draw(&mut cache);
        let sets = first.iter().filter(|operation| operation.sets).count();
        assert!((1_800..2_200).contains(&sets), "{sets}");
        assert!(first.iter().all(|operation| operation.key < 1_000));
        cache.restart(false);
        assert_eq!(draw(&mut cache), first);
    }

    #[test]
    fn answers_may_be_split_at_every_byte() {
        for dialect in [Dialect::Memcached, Dialect::Redis] {
            let mut cache = of(dialect);
            for operation in [GET, SET] {
                let bytes = response(&cache, operation);
                for cut in 0..=bytes.len() {
                    let pieces = [&bytes[..cut], &bytes[cut..]];
                    assert_eq!(feed_all(&mut cache, &[operation], &pieces), Ok(1), "{cut}");
                }
            }
        }
    }

    #[test]
    fn wrong_answers_are_noticed() {
        let cache = cache();
        let complaint = |operation, bytes: &[u8]| {
            feed_all(&mut self::cache(), &[operation, operation], &[bytes]).unwrap_err().0
        };
        assert!(complaint(GET, b"END\r\n").contains("a miss of key 7"));
        assert!(complaint(GET, b"SERVER_ERROR out of memory\r\n").contains("SERVER_ERROR"));
        assert!(complaint(SET, b"NOT_STORED\r\n").contains("NOT_STORED"));
        let other = response(&cache, Operation { key: 8, sets: false });
        assert!(complaint(GET, &other).contains("get of key 7"));
        let mut short = response(&cache, GET);
        let end = Dialect::Memcached.after_value();
        short.truncate(short.len() - end.len() - 1);
        short.extend(end);
        assert!(complaint(GET, &short).contains("differs at byte 1023: "));
        let mut flipped = response(&cache, GET);
        flipped[200] ^= 1;
        assert!(complaint(GET, &flipped).contains("the value of key 7"));
    }

    #[test]
    fn redis_has_arrays_of_strings_and_its_own_answers() {
        let mut cache = of(Dialect::Redis);
        let key = format!("$64\r\niobench-{:056}\r\n", 7);
        assert_eq!(cache.render(GET), format!("*2\r\n$3\r\nGET\r\n{key}").as_bytes());
        let set = format!("*3\r\n$3\r\nSET\r\n{key}$1024\r\n");
        let value = cache.value(7).to_vec();
        assert_eq!(cache.render(SET), [set.as_bytes(), &value, LINE_END].concat());
        let mut complaint =
            |operation, bytes: &[u8]| feed_all(&mut cache, &[operation], &[bytes]).unwrap_err().0;
        assert!(complaint(GET, b"$-1\r\n").contains("a miss of key 7"));
        assert!(complaint(GET, b"$1023\r\n").contains("`$1023` to the get of key 7"));
        assert!(complaint(SET, b"-ERR OOM\r\n").contains("`-ERR OOM` to the set of key 7"));
    }

    #[test]
    fn only_whole_keys_are_numbers() {
        assert_eq!(number_of_key(format!("iobench-{:056}", 42).as_bytes()), Some(42));
        assert_eq!(number_of_key(b"iobench-42"), None);
        assert_eq!(number_of_key(format!("iobench-{:9>56}", 42).as_bytes()), None);
        assert_eq!(number_of_key(format!("iobench-{:x>56}", 42).as_bytes()), None);
    }

    proptest! {
        #[test]
        fn answers_in_a_row_survive_any_split(
            operations in prop::collection::vec((0_u32..1_000, any::<bool>()), 1..6),
            mut cuts in prop::collection::vec(0_usize..10_000, 0..10),
        ) {
            let mut cache = cache();
            let operations: Vec<Operation> =
                operations.into_iter().map(|(key, sets)| Operation { key, sets }).collect();
            let stream: Vec<u8> =
                operations.iter().flat_map(|&operation| response(&cache, operation)).collect();
            cuts.iter_mut().for_each(|cut| *cut %= stream.len() + 1);
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            prop_assert_eq!(feed_all(&mut cache, &operations, &pieces), Ok(operations.len()));
        }

        #[test]
        fn no_bytes_upset_the_parser(
            bytes in prop::collection::vec(any::<u8>(), 0..300), sets: bool
        ) {
            let operation = Operation { key: 7, sets };
            if let Ok(fed) = cache().feed(&mut Answer::default(), operation, &bytes) {
                prop_assert!(fed.used <= bytes.len());
            }
        }
    }
}
