//! Text from others, for terminals and logs.

/// At most `chars_max` characters of the text, without any that move the cursor.
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
