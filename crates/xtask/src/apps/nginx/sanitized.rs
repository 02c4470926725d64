//! Tests nginx with the event module under AddressSanitizer.

use std::path::Path;

use super::{Build, MODULE};
use crate::apps::sanitizer;
use crate::cargo::absolute_target;

/// Each allocation from nginx's pools becomes one of malloc(3), so that the sanitizer sees its
/// bounds.
const COMPILER_FLAGS: &str = "-DNGX_DEBUG_PALLOC=1";
const LINKER_FLAGS: &str = "-fsanitize=address";

/// The test programs that start nginx.
const TESTS: &[&str] = &[
    "nginx_clients",
    "nginx_files",
    "nginx_limits",
    "nginx_operations",
    "nginx_processes",
    "nginx_protocols",
    "nginx_transports",
];

/// Builds nginx and the module, and runs the tests of nginx; fails if they fail or the sanitizer
/// reports anything.
pub(super) fn test(root: &Path) -> Result<(), String> {
    let target = absolute_target(root)?;
    let build = Build {
        objects: target.join("apps/nginx/sanitized"),
        targets: &["binary", "modules"],
        arguments: vec![
            format!("--with-cc-opt={} {COMPILER_FLAGS}", sanitizer::FLAGS),
            format!("--with-ld-opt={LINKER_FLAGS}"),
        ],
    };
    drop(build.make(root, &target)?);
    let reports = sanitizer::reports_in(&target.join("apps/nginx"));
    sanitizer::run_tests(root, &reports, "nginx", |tests| {
        tests.args(["--package", "megapipe-apptests"]);
        tests.args(TESTS.iter().flat_map(|test| ["--test", test]));
        tests.env("MEGAPIPE_NGINX", build.objects.join("nginx"));
        tests.env("MEGAPIPE_NGINX_MODULE", build.objects.join(MODULE));
    })
}
