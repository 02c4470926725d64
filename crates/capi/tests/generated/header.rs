//! The header, as cbindgen makes it, in the form in which people write comments.

use super::crate_directory;

/// What a line may have, as in all our files.
const COLUMNS_MAX: usize = 100;

pub(crate) fn generate() -> String {
    let root = crate_directory();
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::generate_with_config(&root, config).unwrap();
    let mut written = Vec::new();
    bindings.write(&mut written);
    tidy(&String::from_utf8(written).unwrap())
}

/// Comments of one line take one line; headings that only Rust's readers expect go, and so do
/// empty lines beyond the first.
fn tidy(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut lines = text.lines().map(str::trim_end).peekable();
    while let Some(line) = lines.next() {
        if line.trim_start() != "/**" {
            if !(line.is_empty() && out.last().is_some_and(String::is_empty)) {
                out.push(line.to_owned());
            }
            continue;
        }
        let indent = &line[..line.len() - 3];
        let mut comment: Vec<&str> = Vec::new();
        for line in lines.by_ref().take_while(|line| line.trim() != "*/") {
            let words = line.trim_start().strip_prefix('*').unwrap_or(line);
            let words = words.strip_prefix(' ').unwrap_or(words);
            let repeated = words.is_empty() && comment.last().is_some_and(|last| last.is_empty());
            if words != "# Safety" && !repeated {
                comment.push(words);
            }
        }
        match comment.as_slice() {
            [only] if indent.len() + only.len() + 6 <= COLUMNS_MAX => {
                out.push(format!("{indent}/* {only} */"));
            }
            _ => {
                out.push(format!("{indent}/*"));
                let line = |words: &&str| format!("{indent} * {words}").trim_end().to_owned();
                out.extend(comment.iter().map(line));
                out.push(format!("{indent} */"));
            }
        }
    }
    out.join("\n") + "\n"
}
