//! Reads the dependencies between the crates of the workspace from their manifests.

/// Returns the package's name and the names of its dependencies: normal ones and those of the build
/// script, also of single targets, but not those of tests.
pub(super) fn read(manifest: &str) -> (Option<String>, Vec<String>) {
    let (mut section, mut package) = ("", None);
    let mut dependencies = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            // `[dependencies.name]`
            if let Some((kind, name)) = section.rsplit_once('.')
                && is_counted(kind)
            {
                dependencies.push(name.to_string());
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim().split('.').next().unwrap_or_default();
        if section == "package" && key == "name" {
            package = Some(value.trim().trim_matches('"').to_string());
        } else if is_counted(section) && !line.starts_with('#') {
            dependencies.push(renamed(value).unwrap_or(key).to_string());
        }
    }
    (package, dependencies)
}

fn is_counted(section: &str) -> bool {
    let kind = match section.strip_prefix("target.") {
        Some(target) => target.rsplit_once('.').map_or("", |(_, kind)| kind),
        None => section,
    };
    matches!(kind, "dependencies" | "build-dependencies")
}

/// Returns the name in `{ package = "name", ... }`.
fn renamed(value: &str) -> Option<&str> {
    let (_, rest) = value.split_once("package")?;
    rest.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_but_for_those_of_tests() {
        let manifest = "[package]\nname = \"a\"\nversion.workspace = true\n\n[dependencies]\n\
                        b.workspace = true\n# c = \"1\"\n\
                        d = { workspace = true, optional = true }\n\
                        e = { path = \"../e\", package = \"f\" }\n\n[dev-dependencies]\n\
                        g.workspace = true\n\n[target.'cfg(a.b)'.build-dependencies]\n\
                        h = \"1\"\n\n[dependencies.i]\npath = \"../i\"\n\n\
                        [features]\nj = []\n";
        let (package, dependencies) = read(manifest);
        assert_eq!(package.as_deref(), Some("a"));
        assert_eq!(dependencies, ["b", "d", "f", "h", "i"]);
    }
}
