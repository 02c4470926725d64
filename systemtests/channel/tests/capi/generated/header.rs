//! Generates the headers with cbindgen, and brings them into the form of hand-written comments.

use super::crate_directory;
use std::fs;

/// Maximum length of a line, as in all files of the repository.
const COLUMNS_MAX: usize = 100;

/// One of the library's headers.
pub(crate) struct Source {
    /// The name in `#include`, without `.h`.
    pub(crate) name: &'static str,
    includes: &'static [&'static str],
    /// The source files, in the order of their calls.
    files: &'static [&'static str],
}

pub(crate) const HEADERS: [Source; 3] = [
    Source {
        name: "megapipe",
        includes: &["sched.h", "stddef.h", "stdint.h", "sys/socket.h", "sys/uio.h"],
        files: &[
            "types",
            "lifecycle",
            "members",
            "requests",
            "socket_requests",
            "messages",
            "timers",
            "dispatch",
            "sockets",
            "failure",
        ],
    },
    Source {
        name: "xio",
        includes: &["megapipe.h", "poll.h", "stddef.h", "stdint.h"],
        files: &["xio/types", "xio/names", "xio/buffers", "xio/flows", "xio/waiting"],
    },
    Source {
        name: "mtcp",
        includes: &[
            "megapipe.h",
            "netinet/in.h",
            "signal.h",
            "stddef.h",
            "stdint.h",
            "sys/socket.h",
            "sys/types.h",
            "sys/uio.h",
        ],
        files: &[
            "mtcp/types",
            "mtcp/lifecycle",
            "mtcp/signals",
            "mtcp/sockets",
            "mtcp/transfers",
            "mtcp/options",
            "mtcp/epoll",
        ],
    },
];

impl Source {
    pub(crate) fn generate(&self) -> String {
        let root = crate_directory();
        let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
        let top = root.join("headers").join(format!("{}.txt", self.name));
        config.header = Some(fs::read_to_string(top).unwrap());
        config.include_guard = Some(format!("{}_H", self.name.to_uppercase()));
        config.sys_includes = self.includes.iter().copied().map(String::from).collect();
        let mut builder = cbindgen::Builder::new().with_config(config);
        for file in self.files {
            builder = builder.with_src(root.join("src").join(file).with_extension("rs"));
        }
        let mut written = Vec::new();
        builder.generate().unwrap().write(&mut written);
        tidy(&String::from_utf8(written).unwrap())
    }
}

/// Puts a comment of one line on one line, keeps one empty line between items, and removes the `#
/// Safety` sections, which are for Rust.
fn tidy(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut lines = text.lines().map(str::trim_end).peekable();
    while let Some(line) = lines.next() {
        if line.trim_start() != "/**" {
            // Parentheses protect the value in an expression; C89 has no such comments.
            let line = line.replace("_NONE -1", "_NONE (-1)");
            let line = &match line.split_once(" // ") {
                Some((directive, note)) => format!("{} /* {note} */", directive.trim_end()),
                None => line,
            };
            if line.starts_with('}') {
                drop_last_comma(&mut out);
            }
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
            // The comment of a constant stands on the constant's line.
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

/// Removes the comma after the last constant of an enumeration, which C89 and C++98 do not allow.
fn drop_last_comma(out: &mut [String]) {
    let Some(last) = out.last_mut().filter(|last| is_constant(last)) else { return };
    let (constant, note) = last.split_once(" /*").unwrap_or((last, ""));
    let constant = constant.trim_end_matches(',');
    *last = if note.is_empty() { constant.to_owned() } else { format!("{constant} /*{note}") };
}

fn is_constant(line: &str) -> bool {
    ["    MP_", "    MTCP_", "    XIO_"].iter().any(|start| line.starts_with(start))
}

fn beside(constant: &str, note: &str) -> bool {
    is_constant(constant) && constant.len() + note.len() + 7 <= COLUMNS_MAX
}
