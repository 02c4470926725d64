//! Parses a guest's reports, which are lines of its second serial port, and finds error messages on
//! its console.

use std::collections::VecDeque;

/// Most lines of a check's output that are kept.
const OUTPUT_LINES_MAX: usize = 600;

/// Prefixes of a kernel's error messages. Its console shows warnings and worse.
const COMPLAINTS: [&str; 12] = [
    "BUG:",
    "kernel BUG at",
    "Oops",
    "Call Trace:",
    "Kernel panic",
    "general protection fault",
    "double fault",
    "blocked for more than",
    "soft lockup",
    "WARNING: CPU:",
    "WARNING: at",
    "Out of memory: Killed process",
];

/// A report of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The kernel's release; the guest has booted.
    Release(String),
    Begin(String),
    /// The channel does not use io_uring, which the check needs.
    Refused(String),
    End(Ended),
    /// All checks have run.
    Done,
}

/// A check that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) name: String,
    pub(super) code: i32,
    pub(super) milliseconds: u64,
    /// The end of its output, and a line for each test that could not run.
    pub(super) output: String,
}

/// Splits a stream that arrives in arbitrary pieces into reports.
#[derive(Debug, Default)]
pub(super) struct Reports {
    unfinished: Vec<u8>,
    output: VecDeque<String>,
}

impl Reports {
    /// Parses the next piece, and returns the reports that end within it.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Vec<Report> {
        self.unfinished.extend_from_slice(piece);
        let mut reports = Vec::new();
        while let Some(end) = self.unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unfinished.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            reports.extend(self.line(line.trim_end()));
        }
        reports
    }

    fn line(&mut self, line: &str) -> Option<Report> {
        if let Some(output) = line.strip_prefix('|') {
            if self.output.len() == OUTPUT_LINES_MAX {
                self.output.pop_front();
            }
            self.output.push_back(output.strip_prefix(' ').unwrap_or(output).to_string());
            return None;
        }
        let words: Vec<&str> = line.strip_prefix("@@ ")?.split(' ').collect();
        match words.as_slice() {
            ["release", release] => Some(Report::Release(release.to_string())),
            ["begin", name] => {
                self.output.clear();
                Some(Report::Begin(name.to_string()))
            }
            ["refused", name] => Some(Report::Refused(name.to_string())),
            ["end", name, code, milliseconds] => Some(Report::End(Ended {
                name: name.to_string(),
                code: code.parse().ok()?,
                milliseconds: milliseconds.parse().ok()?,
                output: self.output.drain(..).map(|line| line + "\n").collect(),
            })),
            ["done"] => Some(Report::Done),
            _ => None,
        }
    }
}

/// Returns the lines of a kernel's console that report its own errors.
pub(super) fn complaints(console: &str) -> Vec<&str> {
    let is_complaint = |line: &&str| COMPLAINTS.iter().any(|text| line.contains(text));
    console.lines().filter(is_complaint).map(str::trim_end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "noise\n@@ release 6.1.0-50-cloud-amd64\n@@ begin doctor\n\
                          | driver: uring\n| @@ end doctor 1 1\n|\n@@ end doctor 0 1500\n\
                          @@ refused uring-accept\n@@ done\n";

    #[test]
    fn reports_are_found_wherever_the_stream_is_cut() {
        let ended = Ended {
            name: "doctor".to_string(),
            code: 0,
            milliseconds: 1500,
            output: "driver: uring\n@@ end doctor 1 1\n\n".to_string(),
        };
        let wanted = [
            Report::Release("6.1.0-50-cloud-amd64".to_string()),
            Report::Begin("doctor".to_string()),
            Report::End(ended),
            Report::Refused("uring-accept".to_string()),
            Report::Done,
        ];
        for cut in 0..STREAM.len() {
            let mut reports = Reports::default();
            let mut found = reports.feed(&STREAM.as_bytes()[..cut]);
            found.extend(reports.feed(&STREAM.as_bytes()[cut..]));
            assert_eq!(found, wanted, "cut at {cut}");
        }
    }

    #[test]
    fn the_end_of_a_long_output_is_kept() {
        let mut reports = Reports::default();
        let lines: String = (0..1000).map(|number| format!("| {number}\r\n")).collect();
        let text = format!("@@ begin x\n{lines}@@ end x 1 2\n");
        let Some(Report::End(ended)) = reports.feed(text.as_bytes()).pop() else { panic!() };
        assert_eq!(ended.output.lines().count(), OUTPUT_LINES_MAX);
        assert!(ended.output.ends_with("998\n999\n"));
    }

    #[test]
    fn what_is_cut_off_or_foreign_is_no_report() {
        let mut reports = Reports::default();
        assert!(reports.feed(b"@@ end x zero 1\n@@ dance\n@@ done").is_empty());
        assert_eq!(reports.feed(b"\n"), [Report::Done]);
    }

    #[test]
    fn faults_of_the_kernel_are_seen_on_its_console() {
        let console = "[    0.1] Booting\n[    9.1] BUG: kernel NULL pointer dereference\r\n\
                       [    9.2] Call Trace:\n[   10.0] INFO: task a:1 blocked for more than 9 s\n\
                       [   11.0] reboot: Power down\n";
        let found = complaints(console);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], "[    9.1] BUG: kernel NULL pointer dereference");
        let sound = "[  1.0] clocksource: Marking clocksource 'tsc' as unstable\n\
                     [ 68.1] virtio-fs: virtio_fs_enqueue_req() failed -5\n";
        assert!(complaints(sound).is_empty());
    }
}
