//! Checks single lines, in files of every language.

use super::Report;

const COLUMNS_MAX: usize = 100;

/// Checks width, tabs, trailing white space and the final newline.
pub(super) fn check(text: &str, report: &mut Report<'_>) {
    // `lines` would remove carriage returns.
    for (index, line) in text.split('\n').enumerate() {
        let number = index + 1;
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let what = format!("{columns} columns, {COLUMNS_MAX} allowed");
            report.add(number, what, "break the line");
        }
        if line.contains('\t') {
            report.add(number, "a tab", "indent with spaces, write \\t in a literal");
        }
        if line.ends_with(char::is_whitespace) {
            report.add(number, "white space at the end of the line", "delete it");
        }
    }
    ends_in_newline(text, report);
}

/// Checks that the last line ends with a newline.
pub(super) fn ends_in_newline(text: &str, report: &mut Report<'_>) {
    if !text.is_empty() && !text.ends_with('\n') {
        report.add(text.lines().count(), "no newline at the end", "add one");
    }
}

/// Checks that no test and no example is marked as ignored: the full run skips nothing.
pub(super) fn ignored_tests(text: &str, report: &mut Report<'_>) {
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        let fence = line.strip_prefix("```").map(|words| words.split(','));
        let example = fence.is_some_and(|mut words| words.any(|word| word.trim() == "ignore"));
        if example || line.starts_with("#[ignore") {
            report.add(index + 1, "an ignored test", "run it, or compile it (`no_run`)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    fn lines_of(text: &str) -> Vec<String> {
        found(text, |_, report| check(text, report))
    }

    #[test]
    fn a_clean_file_and_an_empty_one_pass() {
        let widest = "\u{e9}".repeat(COLUMNS_MAX);
        assert!(lines_of(&format!("fn a() {{}}\n\n// {}\n", &widest[6..])).is_empty());
        assert!(lines_of(&format!("{widest}\n")).is_empty(), "columns are not bytes");
        assert!(lines_of("").is_empty());
    }

    #[test]
    fn wide_lines_are_found() {
        let text = format!("a\n{}\n", "x".repeat(COLUMNS_MAX + 1));
        assert_eq!(lines_of(&text), ["2: 101 columns, 100 allowed"]);
    }

    #[test]
    fn tabs_and_trailing_space_are_found() {
        let end = "white space at the end of the line";
        assert_eq!(
            lines_of("\ta\nb \nc\r\n"),
            ["1: a tab".to_string(), format!("2: {end}"), format!("3: {end}"),]
        );
    }

    #[test]
    fn a_missing_newline_is_found() {
        assert_eq!(lines_of("a\nb"), ["2: no newline at the end"]);
    }

    #[test]
    fn ignored_tests_are_found() {
        let text = "```rust,ignore\n/// ```ignore\n```rust,no_run\n    #[ignore = \"slow\"]\n";
        let found = found(text, |_, report| ignored_tests(text, report));
        assert_eq!(found, ["1: an ignored test", "2: an ignored test", "4: an ignored test"]);
    }
}
