//! Records where the time of a run goes, for `cargo xtask test --timings FILE`.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// The file that `cargo build --timings` writes below the target directory.
const CARGO_REPORT: &str = "cargo-timings/cargo-timing.html";

/// Time of a step, of a compilation or of a test program.
pub(crate) struct Timing {
    pub(crate) what: String,
    pub(crate) wall: Duration,
    /// CPU time with that of child processes; `None` if it is not known.
    pub(crate) cpu: Option<Duration>,
}

/// Returns the wall time of each compilation of the last `cargo build --timings`.
pub(crate) fn of_build(target: &Path) -> Result<Vec<Timing>, String> {
    let path = target.join(CARGO_REPORT);
    let page = fs::read_to_string(&path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    units(&page).ok_or_else(|| format!("{} has no list of units", path.display()))
}

fn units(page: &str) -> Option<Vec<Timing>> {
    let (_, rest) = page.split_once("UNIT_DATA = ")?;
    let (list, _) = rest.split_once("];")?;
    let units: Vec<Value> = serde_json::from_str(&format!("{list}]")).ok()?;
    let timing = |unit: &Value| {
        let target = unit["target"].as_str().unwrap_or_default();
        let what = format!("compile {}{target}", unit["name"].as_str()?);
        let wall = Duration::try_from_secs_f64(unit["duration"].as_f64()?).ok()?;
        Some(Timing { what, wall, cpu: None })
    };
    units.iter().map(timing).collect()
}

/// Writes a table, the longest first.
pub(crate) fn write(path: &Path, mut timings: Vec<Timing>) -> Result<(), String> {
    timings.sort_by_key(|timing| std::cmp::Reverse(timing.wall));
    let mut table = String::from("| wall s | CPU s | what |\n| ---: | ---: | --- |\n");
    for Timing { what, wall, cpu } in timings {
        let cpu = cpu.map_or("-".to_string(), |cpu| format!("{:.1}", cpu.as_secs_f64()));
        let _ = writeln!(table, "| {:.1} | {cpu} | {} |", wall.as_secs_f64(), what.trim_end());
    }
    fs::write(path, table).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilations_are_read_from_the_report_of_cargo() {
        let page = r#"<script>const UNIT_DATA = [
            {"name": "sys", "target": "", "duration": 1.25},
            {"name": "iobench", "target": " test \"apps\"", "duration": 3}];
            const CPU = [];"#;
        let units = units(page).unwrap();
        assert_eq!(units[0].what, "compile sys");
        assert_eq!(units[0].wall, Duration::from_millis(1250));
        assert_eq!(units[1].what, "compile iobench test \"apps\"");
    }

    #[test]
    fn the_table_begins_with_the_longest() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let timing = |what: &str, seconds| Timing {
            what: what.to_string(),
            wall: Duration::from_secs(seconds),
            cpu: (seconds > 2).then(|| Duration::from_millis(500)),
        };
        write(file.path(), vec![timing("a", 1), timing("b", 3)]).unwrap();
        let table = fs::read_to_string(file.path()).unwrap();
        assert!(table.ends_with("| 3.0 | 0.5 | b |\n| 1.0 | - | a |\n"), "{table}");
    }
}
