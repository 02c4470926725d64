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

/// Comments of one line take one line, only one empty line follows another thing, and what is said
/// to Rust's readers about safety goes.
fn tidy(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut lines = text.lines().map(str::trim_end).peekable();
    while let Some(line) = lines.next() {
        if line.trim_start() != "/**" {
            // What an expression could tear apart.
            let line = &line.replace("#define MP_NONE -1", "#define MP_NONE (-1)");
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
            comment.push(words);
        }
        if let Some(safety) = comment.iter().position(|words| *words == "# Safety") {
            comment.truncate(safety.saturating_sub(1));
        }
        match comment.as_slice() {
            // A constant's note stands beside it.
            [only] if lines.peek().is_some_and(|next| beside(next, only)) => {
                let constant = lines.next().unwrap_or_default();
                out.push(format!("{constant} /* {only} */"));
            }
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

fn beside(constant: &str, note: &str) -> bool {
    constant.starts_with("    MP_") && constant.len() + note.len() + 7 <= COLUMNS_MAX
}
