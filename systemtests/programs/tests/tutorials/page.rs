//! Reads a tutorial page and makes a shell script of it.
//!
//! A page follows these conventions. Anything else is an error that names the page and the line.
//!
//! - A block marked `sh` has commands for bash.
//! - A block marked `text` has what the commands of the block before it print. A line `…` stands
//!   for any number of lines, `…` within a line for any text. Commands without such a block print
//!   nothing.
//! - A block in another of the [`FILES`] languages is a file. The line before it ends in
//!   ``as `NAME`:``; the name may contain variables of the shell.

/// Languages of files.
const FILES: [&str; 6] = ["c", "cpp", "diff", "nginx", "rust", "toml"];

/// The variable that names the directory for the output, in the environment of the script.
pub(crate) const OUTPUT: &str = "TUTORIAL_OUTPUT";

/// Stands for text that is left out.
const ELLIPSIS: char = '…';

/// The commands of a page.
#[derive(Debug)]
pub(crate) struct Page {
    /// A script whose line numbers are those of the page. It writes the output of each block of
    /// commands into a file that is named after the line of the block.
    pub(crate) script: String,
    pub(crate) blocks: Vec<Commands>,
}

/// A block of commands.
#[derive(Debug)]
pub(crate) struct Commands {
    /// The line at which the block begins.
    pub(crate) line: usize,
    /// Expected output; `None` before the block of output was read.
    expected: Option<Vec<String>>,
}

/// The block that a line belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Prose,
    Commands,
    Output,
    File,
}

impl Page {
    /// Parses the text of a page; the error is for a person who edits the page.
    pub(crate) fn read(name: &str, text: &str) -> Result<Page, String> {
        let mut page = Page { script: String::new(), blocks: Vec::new() };
        let (mut block, mut opened, mut before) = (Block::Prose, 0, "");
        for (number, line) in (1..).zip(text.lines()) {
            let failed = |what: String| format!("{name}:{number}: {what}");
            let in_script = match (block, line.trim_start().strip_prefix("```")) {
                (_, Some(_)) if line.starts_with(' ') => {
                    return Err(failed("a block is indented; begin it at the margin".to_string()));
                }
                (Block::Prose, Some(language)) => {
                    opened = number;
                    let (kind, command) = page.open(language, before, number).map_err(failed)?;
                    block = kind;
                    command
                }
                (Block::Prose, None) => {
                    before = if line.is_empty() { before } else { line };
                    String::new()
                }
                (_, Some("")) => {
                    let ended = std::mem::replace(&mut block, Block::Prose);
                    before = "";
                    (if ended == Block::File { "END_OF_FILE" } else { "" }).to_string()
                }
                (_, Some(_)) => return Err(failed("a block begins within a block".to_string())),
                (Block::Output, None) => {
                    page.expect(line);
                    String::new()
                }
                (Block::Commands | Block::File, None) => line.to_string(),
            };
            page.script += &in_script;
            page.script.push('\n');
        }
        match block {
            Block::Prose if page.blocks.is_empty() => Err(format!("{name}: no block of commands")),
            Block::Prose => Ok(page),
            _ => Err(format!("{name}:{opened}: the block has no end")),
        }
    }

    /// Begins a block; returns its kind and the command in the place of its first line.
    fn open(
        &mut self,
        language: &str,
        before: &str,
        line: usize,
    ) -> Result<(Block, String), String> {
        match language {
            "sh" => {
                self.blocks.push(Commands { line, expected: None });
                Ok((Block::Commands, format!("exec >\"${OUTPUT}/{line}\" 2>&1")))
            }
            "text" => match self.blocks.last_mut() {
                Some(commands) if commands.expected.is_none() => {
                    commands.expected = Some(Vec::new());
                    Ok((Block::Output, String::new()))
                }
                _ => Err("output without a block of commands before it".to_string()),
            },
            file if FILES.contains(&file) => match file_name(before) {
                Some(name) => Ok((Block::File, format!("cat >\"{name}\" <<'END_OF_FILE'"))),
                None => Err("a file without a name; write the line \"Save this as `NAME`:\" \
                             before it"
                    .to_string()),
            },
            "" => Err("a block without a language; write ```sh or ```text".to_string()),
            other => Err(format!(
                "the language `{other}` is unknown; sh, text, {} are known",
                FILES.join(", ")
            )),
        }
    }

    fn expect(&mut self, line: &str) {
        let expected = self.blocks.last_mut().and_then(|commands| commands.expected.as_mut());
        expected.expect("a block of output is open").push(line.to_string());
    }
}

/// The name at the end of the line before a file.
fn file_name(line: &str) -> Option<&str> {
    let name = line.strip_suffix("`:")?.rsplit_once("as `")?.1;
    (!name.is_empty() && !name.contains(['`', '"'])).then_some(name)
}

impl Commands {
    /// Compares what the commands printed; the error shows both texts.
    pub(crate) fn check(&self, printed: &str) -> Result<(), String> {
        let expected: Vec<&str> =
            self.expected.iter().flatten().map(|line| line.trim_end()).collect();
        let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
        if lines_match(&expected, &lines) {
            return Ok(());
        }
        Err(format!("the page shows\n{}\nand bash prints\n{printed}", expected.join("\n")))
    }
}

fn lines_match(expected: &[&str], printed: &[&str]) -> bool {
    let Some((line, rest)) = expected.split_first() else { return printed.is_empty() };
    if line.strip_prefix(ELLIPSIS) == Some("") {
        return (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]));
    }
    let next = printed.split_first();
    next.is_some_and(|(next, others)| line_matches(line, next) && lines_match(rest, others))
}

fn line_matches(expected: &str, printed: &str) -> bool {
    let Some((start, rest)) = expected.split_once(ELLIPSIS) else { return expected == printed };
    let Some(after) = printed.strip_prefix(start) else { return false };
    let mut ends = after.char_indices().map(|(end, _)| end).chain([after.len()]);
    ends.any(|end| line_matches(rest, &after[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Page::read("page.md", text).unwrap_err()
    }

    #[test]
    fn the_script_has_the_lines_of_the_page() {
        let text = "# Title\n\n```sh\necho a\n```\n\n```text\na\n```\n\
                    Save this as `$d/x.c`:\n\n```c\nint x;\n```\n```sh\ntrue\n```\n";
        let page = Page::read("page.md", text).unwrap();
        let lines: Vec<&str> = page.script.lines().collect();
        assert_eq!(lines.len(), text.lines().count());
        assert_eq!(lines[2..4], ["exec >\"$TUTORIAL_OUTPUT/3\" 2>&1", "echo a"]);
        assert_eq!(lines[11..14], ["cat >\"$d/x.c\" <<'END_OF_FILE'", "int x;", "END_OF_FILE"]);
        assert_eq!(lines[15], "true");
        assert!([0, 1, 4, 5, 6, 7, 8, 9, 10, 16].iter().all(|&line| lines[line].is_empty()));
        let blocks: Vec<usize> = page.blocks.iter().map(|block| block.line).collect();
        assert_eq!(blocks, [3, 15]);
        assert!(page.blocks[0].check("a\n").is_ok());
        assert!(page.blocks[1].check("").is_ok());
        let error = page.blocks[1].check("surprise\n").unwrap_err();
        assert!(error.contains("surprise"), "{error}");
    }

    #[test]
    fn what_is_no_tutorial_is_refused_with_page_and_line() {
        let commands = "```sh\ntrue\n```\n";
        for (text, error) in [
            ("\n```\ntrue\n```\n", "page.md:2: a block without a language"),
            ("```python\n```\n", "page.md:1: the language `python` is unknown"),
            ("```text\nx\n```\n", "page.md:1: output without a block of commands"),
            ("A file:\n```c\n```\n", "page.md:2: a file without a name"),
            ("As `a\"b`:\n```c\n```\n", "page.md:2: a file without a name"),
            ("\n\n```sh\ntrue\n", "page.md:3: the block has no end"),
            ("- x\n\n  ```sh\n  true\n  ```\n", "page.md:3: a block is indented"),
            ("```sh\n```text\n```\n", "page.md:2: a block begins within a block"),
            ("# Title\n", "page.md: no block of commands"),
        ] {
            assert!(refused(text).starts_with(error), "{}", refused(text));
        }
        let twice = format!("{commands}```text\n```\n```text\n```\n");
        assert!(refused(&twice).starts_with("page.md:6: output without"), "{}", refused(&twice));
    }

    #[test]
    fn an_ellipsis_stands_for_lines_or_for_text() {
        let check = |expected: &[&str], printed: &str| {
            let expected = expected.iter().map(ToString::to_string).collect();
            Commands { line: 1, expected: Some(expected) }.check(printed).is_ok()
        };
        assert!(check(&["a", "b"], "a\nb \n"));
        assert!(!check(&["a", "b"], "a\nx\nb\n"));
        assert!(!check(&["a"], "a\nb\n"));
        assert!(check(&["…", "b", "…"], "b\n") && check(&["…", "b", "…"], "a\nb\nb\nc\n"));
        assert!(!check(&["…", "b", "…"], "a\nbb\n"));
        assert!(check(&["in … s, … left"], "in 3 s, 2 left\n"));
        assert!(!check(&["in … s"], "in 3 s, 2 left\n"));
        assert!(check(&["…"], "") && !check(&["a…"], "") && check(&["a…"], "a\n"));
    }
}
