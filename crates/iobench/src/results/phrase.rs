//! Joins notes that differ in their numbers only.

/// A note, or several in which only numbers differ.
pub(crate) struct Phrase<'a> {
    /// The text before each number, and after the last.
    words: Vec<&'a str>,
    /// The smallest and the largest value of each number.
    numbers: Vec<[&'a str; 2]>,
}

impl<'a> Phrase<'a> {
    pub(crate) fn new(note: &'a str) -> Phrase<'a> {
        let (mut words, mut numbers, mut rest) = (Vec::new(), Vec::new(), note);
        while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
            let is_number = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
            let digits = &rest[begin..];
            let end = digits.find(|c| !is_number(c)).unwrap_or(digits.len());
            // A comma or the end of the sentence does not belong to the number.
            let number = digits[..end].trim_end_matches(['.', ',']);
            words.push(&rest[..begin]);
            numbers.push([number, number]);
            rest = &digits[number.len()..];
        }
        words.push(rest);
        Phrase { words, numbers }
    }

    /// Returns whether two phrases differ in their numbers only.
    pub(crate) fn is_like(&self, other: &Phrase<'_>) -> bool {
        self.words == other.words
    }

    /// Extends the ranges of the numbers by those of a phrase that is like this one.
    pub(crate) fn join(&mut self, other: &Phrase<'a>) {
        let value = |number: &str| number.replace(',', "").parse().unwrap_or(f64::NAN);
        for ([low, high], [new_low, new_high]) in self.numbers.iter_mut().zip(&other.numbers) {
            if value(new_low) < value(low) {
                *low = *new_low;
            }
            if value(new_high) > value(high) {
                *high = *new_high;
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::from(self.words[0]);
        for ([low, high], words) in self.numbers.iter().zip(&self.words[1..]) {
            text.push_str(low);
            if low != high {
                text.push('–');
                text.push_str(high);
            }
            text.push_str(words);
        }
        text
    }
}
