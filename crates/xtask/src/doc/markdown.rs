//! Reads the links and the headings of a Markdown page. It knows as much of CommonMark as this
//! repository uses: no headings that are underlined, and no HTML.

use std::collections::{BTreeMap, BTreeSet};

/// What the link check reads of a page.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) links: Vec<Link>,
    /// The anchors of the headings.
    pub(super) anchors: BTreeSet<String>,
}

/// A link or an image, or the definition of a link's label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) line: usize,
    pub(super) target: String,
}

/// Reads a page. What is in blocks or spans of code is neither a link nor a heading.
pub(super) fn read(text: &str) -> Page {
    let lines = without_code_blocks(text);
    let mut page = Page::default();
    let mut slugs = BTreeMap::new();
    for heading in lines.iter().filter_map(|line| heading(line)) {
        page.anchors.insert(unique(slug(heading), &mut slugs));
    }
    for (index, line) in lines.iter().enumerate() {
        let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        if let Some((_, target)) = definition {
            page.links.push(Link { line: index + 1, target: destination(target) });
        }
    }
    // A span of code ends with its paragraph at the latest.
    let mut first = 0;
    for paragraph in lines.split(|line| line.trim().is_empty()) {
        links(&without_code_spans(&paragraph.join("\n")), first + 1, &mut page.links);
        first += paragraph.len() + 1;
    }
    page
}

/// The lines of a page, those of code emptied.
fn without_code_blocks(text: &str) -> Vec<&str> {
    let mut fence: Option<&str> = None;
    let (mut in_list, mut after_blank, mut indented) = (false, true, false);
    let emptied = |line: &'static str, _: &str| line;
    text.lines()
        .map(|line| {
            let content = line.trim_start();
            if let Some(open) = fence {
                let closes = content.starts_with(open)
                    && content.trim_end().chars().all(|c| open.starts_with(c));
                fence = fence.filter(|_| !closes);
                return emptied("", line);
            }
            fence = fence_of(content);
            let blank = content.is_empty();
            let deep = line.len() - content.len() >= 4;
            indented = deep && !in_list && (after_blank || indented);
            if !blank && !line.starts_with(' ') {
                in_list = is_item(content);
            }
            after_blank = blank;
            if fence.is_some() || indented { emptied("", line) } else { line }
        })
        .collect()
}

/// The run of characters that opens a fenced block of code, which a run as long closes.
fn fence_of(content: &str) -> Option<&str> {
    ['`', '~'].into_iter().find_map(|mark| {
        let length = content.len() - content.trim_start_matches(mark).len();
        let opens = length >= 3 && !(mark == '`' && content[length..].contains('`'));
        opens.then(|| &content[..length])
    })
}

fn is_item(content: &str) -> bool {
    let number = content.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "+ "].iter().any(|mark| content.starts_with(mark))
        || (number.len() < content.len() && number.starts_with(". "))
}

/// The text of a heading's line.
fn heading(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches('#');
    let level = line.len() - rest.len();
    let text = rest.strip_prefix(' ').filter(|_| (1..=6).contains(&level))?;
    Some(text.trim().trim_end_matches('#').trim_end())
}

/// The anchor that GitHub gives a heading: its letters in lower case, digits, `-` and `_`, and `-`
/// for each space. mdBook does the same.
fn slug(heading: &str) -> String {
    let text = shown(heading).to_lowercase();
    text.chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c => (c.is_alphanumeric() || c == '-' || c == '_').then_some(c),
        })
        .collect()
}

/// The heading with the text of its links in the links' place.
fn shown(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text + rest
}

/// Numbers the second and later headings of the same text.
fn unique(slug: String, slugs: &mut BTreeMap<String, usize>) -> String {
    let count = slugs.entry(slug.clone()).or_default();
    *count += 1;
    if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
}

/// The paragraph with spaces in place of its spans of code.
fn without_code_spans(paragraph: &str) -> String {
    let mut text = String::with_capacity(paragraph.len());
    let mut rest = paragraph;
    while let Some(at) = rest.find(['`', '\\']) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with('\\') {
            let escape = rest.chars().take(2).map(char::len_utf8).sum();
            text.push_str("  ");
            rest = &rest[escape..];
            continue;
        }
        let ticks = rest.len() - rest.trim_start_matches('`').len();
        let length = closing(&rest[ticks..], ticks).map_or(ticks, |end| ticks + end);
        let code = rest[..length].chars().map(|c| if c == '\n' { c } else { ' ' });
        text.extend(code);
        rest = &rest[length..];
    }
    text + rest
}

/// The end of the next run of exactly so many backticks.
fn closing(text: &str, ticks: usize) -> Option<usize> {
    let mut at = 0;
    loop {
        at += text[at..].find('`')?;
        let run = text[at..].len() - text[at..].trim_start_matches('`').len();
        at += run;
        if run == ticks {
            return Some(at);
        }
    }
}

/// Finds the inline links of a paragraph that begins at the line `first`.
fn links(paragraph: &str, first: usize, found: &mut Vec<Link>) {
    for (at, mark) in paragraph.match_indices("](") {
        let line = first + paragraph[..at].matches('\n').count();
        found.push(Link { line, target: destination(&paragraph[at + mark.len()..]) });
    }
}

/// The target at the beginning of a text: to `>` if it begins with `<`, else to the first space or
/// the parenthesis that closes the link.
fn destination(text: &str) -> String {
    let text = text.trim_start();
    if let Some(rest) = text.strip_prefix('<') {
        return rest.split('>').next().unwrap_or_default().to_string();
    }
    let mut open = 0_usize;
    let end = text.find(|c: char| {
        open += usize::from(c == '(');
        let closed = c == ')' && open == 0;
        open -= usize::from(c == ')' && open > 0);
        closed || c.is_whitespace()
    });
    text[..end.unwrap_or(text.len())].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<String> {
        read(text).links.iter().map(|link| format!("{}: {}", link.line, link.target)).collect()
    }

    fn anchors(text: &str) -> Vec<String> {
        read(text).anchors.into_iter().collect()
    }

    #[test]
    fn links_have_their_lines_and_targets() {
        let text =
            "[a](b.md) and ![c](d.png \"title\")\n\n- [two\n  lines](<e f.md>), [g](h(i).md)\n";
        assert_eq!(targets(text), ["1: b.md", "1: d.png", "4: e f.md", "4: h(i).md"]);
        assert_eq!(targets("x\n\n[label]: j.md#k\n"), ["3: j.md#k"]);
    }

    #[test]
    fn blocks_of_code_have_no_links() {
        assert_eq!(targets("```sh\n[a](b)\n```\n[c](d)\n"), ["4: d"]);
        assert_eq!(targets("~~~~\n[a](b)\n~~~\n[a](b)\n~~~~\n[c](d)\n"), ["6: d"]);
        assert_eq!(targets("````\n```\n[a](b)\n````\n[c](d)\n"), ["5: d"]);
        assert_eq!(targets("1. x\n   ```\n   [a](b)\n   ```\n   [c](d)\n"), ["5: d"]);
        assert_eq!(targets("text\n\n    [a](b)\n    [a](b)\n\n[c](d)\n"), ["6: d"]);
    }

    #[test]
    fn the_text_of_items_is_no_code() {
        assert_eq!(targets("- x\n\n    [a](b)\n"), ["3: b"]);
        assert_eq!(targets("10. x\n    [a](b)\n"), ["2: b"]);
        assert_eq!(targets("text\n    [a](b)\n"), ["2: b"], "a paragraph goes on");
    }

    #[test]
    fn spans_of_code_have_no_links() {
        assert_eq!(targets("`[a](b)` ``[a](b)` [a](b)`` [c](d)\n"), ["1: d"]);
        assert_eq!(targets("`code\n[a](b)` [c](d)\n"), ["2: d"]);
        assert_eq!(targets("one ` tick\n\n[a](b) ` [c](d)\n"), ["3: b", "3: d"]);
        assert_eq!(targets("\\` [a](b) \\`\n"), ["1: b"]);
        assert_eq!(targets("[`a`](b)\n"), ["1: b"]);
    }

    #[test]
    fn anchors_follow_the_rule_of_the_forge() {
        let text =
            "# What `fable run` does, and *why*\n## A_b: 2.5 µs – [x](y.md)?\n#no\n####### no\n";
        assert_eq!(anchors(text), ["a_b-25-µs--x", "what-fable-run-does-and-why"]);
        assert_eq!(anchors("### Closed ###\n"), ["closed"]);
    }

    #[test]
    fn headings_of_the_same_text_are_numbered() {
        assert_eq!(anchors("# A\n## A\n## B\n### A\n"), ["a", "a-1", "a-2", "b"]);
    }

    #[test]
    fn comments_of_a_shell_are_no_headings() {
        assert_eq!(anchors("```sh\n# A\n```\n# B\n"), ["b"]);
    }
}
