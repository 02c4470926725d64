//! Tests the adapted server under AddressSanitizer.

use std::path::Path;

use super::{Build, Tree};
use crate::apps::sanitizer;

/// Builds the server and runs the tests of memcached's clients; fails if they fail or the sanitizer
/// reports anything.
pub(super) fn test(root: &Path, build: &Build) -> Result<(), String> {
    let base = build.megapipe.path.parent().unwrap_or(&build.megapipe.path);
    let tree = Tree { path: base.join("sanitized"), adapted: true, flags: sanitizer::FLAGS };
    build.make(&tree, &["memcached"])?;
    sanitizer::run_tests(root, &sanitizer::reports_in(base), "memcached", |tests| {
        tests.args(["--package", "megapipe-apptests", "--test", "memcached"]);
        tests.env("MEGAPIPE_MEMCACHED", tree.path.join("memcached"));
    })
}
