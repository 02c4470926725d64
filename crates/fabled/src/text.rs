//! Makes text from other processes safe for terminals and logs.

/// Returns at most `chars_max` characters of the text, with a space for each control character.
pub(crate) fn plain(text: &str, chars_max: usize) -> String {
    let seen = text.chars().take(chars_max);
    seen.map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_not_told_what_to_do() {
        assert_eq!(plain("a\x1b[2Jb\nc", 64), "a [2Jb c");
        assert_eq!(plain("abcdef", 3), "abc");
    }
}
