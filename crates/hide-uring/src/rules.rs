//! Parses the rules, and decides which requests, calls and flags are hidden.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Rules, separated by semicolons:
///
/// - `op=N`, followed by conditions: requests with this opcode for which all conditions hold.
///   `FIELD&BITS` holds if any of the bits is set, `FIELD!BITS` if none is, `FIELD=N` if the field
///   has this value. With `after=N` the first N such requests of the process are not hidden.
/// - `register=N`: this register call; `register&BITS`: those with any of these bits.
/// - `setup&BITS`: rings with any of these flags.
/// - `feature&BITS`: these bits among the features that io_uring_setup(2) returns.
///
/// The fields of a request are `flags`, `ioprio`, `cmd`, `len`, `op_flags` and `file_index` of
/// `struct io_uring_sqe`. Numbers are decimal, or hexadecimal with `0x`.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    requests: Vec<RequestRule>,
    registers: Vec<Condition>,
    set_up: u32,
    features: u32,
}

#[derive(Debug)]
struct RequestRule {
    opcode: u8,
    conditions: Vec<(Field, Condition)>,
    /// How many more requests are not hidden.
    left: AtomicU32,
}

#[derive(Clone, Copy, Debug)]
enum Condition {
    Any(u32),
    None(u32),
    Is(u32),
}

impl Condition {
    fn holds(self, value: u32) -> bool {
        match self {
            Condition::Any(bits) => value & bits != 0,
            Condition::None(bits) => value & bits == 0,
            Condition::Is(number) => value == number,
        }
    }
}

/// A field of a request: its offset, and its number of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Field {
    at: usize,
    bytes: usize,
}

impl Field {
    fn named(name: &str) -> Option<Field> {
        let (at, bytes) = match name {
            "cmd" => return Some(COMMAND),
            "flags" => (1, 1),
            "ioprio" => (2, 2),
            "len" => (24, 4),
            "op_flags" => (28, 4),
            "file_index" => (44, 4),
            _ => return None,
        };
        Some(Field { at, bytes })
    }

    fn of(self, request: &Request) -> u32 {
        let mut value = [0; 4];
        value[..self.bytes].copy_from_slice(&request[self.at..self.at + self.bytes]);
        u32::from_le_bytes(value)
    }
}

/// `struct io_uring_sqe`.
pub(crate) type Request = [u8; 64];

impl RequestRule {
    fn names_a_command(&self) -> bool {
        self.conditions.iter().any(|(field, _)| *field == COMMAND)
    }
}

/// The command of an `IORING_OP_URING_CMD`.
const COMMAND: Field = Field { at: 8, bytes: 4 };

/// An opcode that no kernel supports, and the bytes of a command that no socket supports.
const UNKNOWN: u8 = 255;

impl Rules {
    /// Changes a request that a rule hides into one that the kernel does not support: its command
    /// if the rule names one, which the kernel answers by `EOPNOTSUPP`, else the whole request
    /// (`EINVAL`).
    pub(crate) fn apply(&self, request: &mut Request) {
        // `try_update` is newer than the oldest Rust that builds this.
        #[allow(deprecated)]
        let hides = |rule: &RequestRule| {
            let mut conditions = rule.conditions.iter();
            rule.opcode == request[0]
                && conditions.all(|(field, condition)| condition.holds(field.of(request)))
                && rule
                    .left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                    .is_err()
        };
        match self.requests.iter().find(|rule| hides(rule)) {
            Some(rule) if rule.names_a_command() => {
                request[COMMAND.at..COMMAND.at + COMMAND.bytes].fill(UNKNOWN);
            }
            Some(_) => request[0] = UNKNOWN,
            None => {}
        }
    }

    /// Returns whether a rule hides the register call.
    pub(crate) fn hide_register(&self, call: u32) -> bool {
        self.registers.iter().any(|condition| condition.holds(call))
    }

    /// Returns whether a rule hides one of the set-up flags.
    pub(crate) fn hide_set_up(&self, flags: u32) -> bool {
        flags & self.set_up != 0
    }

    /// Returns the feature bits that rules hide.
    pub(crate) fn hidden_features(&self) -> u32 {
        self.features
    }
}

impl FromStr for Rules {
    type Err = String;

    fn from_str(text: &str) -> Result<Rules, String> {
        let mut rules = Rules::default();
        for rule in text.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            let mut words = rule.split_whitespace().map(condition);
            let (name, first) = words.next().ok_or("an empty rule")??;
            match (name, first) {
                ("op", Condition::Is(number)) => {
                    let opcode = u8::try_from(number).map_err(|_| format!("no opcode: {rule}"))?;
                    let (mut conditions, mut left) = (Vec::new(), 0);
                    for word in words {
                        match word? {
                            ("after", Condition::Is(number)) => left = number,
                            (name, condition) => {
                                let unknown = || format!("no field of a request: {name}");
                                let field = Field::named(name).ok_or_else(unknown)?;
                                conditions.push((field, condition));
                            }
                        }
                    }
                    let left = AtomicU32::new(left);
                    rules.requests.push(RequestRule { opcode, conditions, left });
                }
                ("register", condition) => rules.registers.push(condition),
                ("setup", Condition::Any(bits)) => rules.set_up |= bits,
                ("feature", Condition::Any(bits)) => rules.features |= bits,
                _ => return Err(format!("no rule: {rule}")),
            }
        }
        Ok(rules)
    }
}

/// Reads `NAME&BITS`, `NAME!BITS` or `NAME=NUMBER`.
fn condition(word: &str) -> Result<(&str, Condition), String> {
    let wrong = || format!("neither NAME=NUMBER nor NAME&BITS nor NAME!BITS: {word}");
    let at = word.find(['&', '!', '=']).ok_or_else(wrong)?;
    let number = &word[at + 1..];
    let number = match number.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    let number = number.map_err(|_| wrong())?;
    let condition = match word.as_bytes()[at] {
        b'&' => Condition::Any(number),
        b'!' => Condition::None(number),
        _ => Condition::Is(number),
    };
    Ok((&word[..at], condition))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_hides_what_it_describes_and_nothing_else() {
        let rules: Rules =
            "op=27 ioprio&2; op=13 ioprio!1 file_index=0;register=20".parse().unwrap();
        let request = |opcode, ioprio, file_index: u8| {
            let mut request = [0; 64];
            (request[0], request[2], request[44]) = (opcode, ioprio, file_index);
            rules.apply(&mut request);
            request[0]
        };
        assert_eq!(request(27, 2, 0), UNKNOWN);
        assert_eq!(request(27, 1, 0), 27);
        assert_eq!(request(13, 0, 0), UNKNOWN);
        assert_eq!(request(13, 0, 1), 13);
        let socket: Rules = "op=46 cmd=2".parse().unwrap();
        let mut request = [0; 64];
        (request[0], request[8]) = (46, 2);
        socket.apply(&mut request);
        assert_eq!((request[0], &request[8..12]), (46, &[UNKNOWN; 4][..]));
        let after: Rules = "op=5 after=2".parse().unwrap();
        let opcodes = [5, 5, 5, 6].map(|opcode| {
            let mut request = [0; 64];
            request[0] = opcode;
            after.apply(&mut request);
            request[0]
        });
        assert_eq!(opcodes, [5, 5, UNKNOWN, 6]);
        assert!(rules.hide_register(20) && !rules.hide_register(21));
        assert!(!rules.hide_set_up(u32::MAX) && rules.hidden_features() == 0);
        let rules: Rules = "setup&0x10000;feature&0x8000;register&0x80000000".parse().unwrap();
        assert!(rules.hide_set_up(0x1_1000) && !rules.hide_set_up(0x1000));
        assert!(rules.hide_register(0x8000_0005) && rules.hidden_features() == 0x8000);
    }

    #[test]
    fn mistakes_are_named() {
        for wrong in ["op", "op=300", "op=1 iopri&1", "setup=1", "fetch&1", "op=1 ioprio&x"] {
            assert!(wrong.parse::<Rules>().is_err(), "{wrong}");
        }
        assert!("".parse::<Rules>().is_ok());
    }
}
