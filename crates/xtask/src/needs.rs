//! Lists what test programs need besides a compiler, and selects the tests that can run without it.
//!
//! As root, with every package installed, this has no effect. Tests that report themselves that
//! they cannot run (`MEGAPIPE_SKIPS`) need no entry.

use crate::privilege::{self, Privilege};
use crate::setup;
use crate::test_capabilities::TestCapabilities;

/// Requirements of some tests.
struct Need {
    /// The package's directory and the test target; a star at the end matches any rest.
    program: &'static str,
    /// Prefixes of the tests' names; empty for all tests of the program.
    tests: &'static [&'static str],
    /// Packages of the distribution, as `setup` names them.
    packages: &'static [&'static str],
    privilege: Privilege,
    /// Whether they run in namespaces that xtask creates.
    confined: bool,
}

const fn packages(
    program: &'static str,
    tests: &'static [&'static str],
    packages: &'static [&'static str],
) -> Need {
    Need { program, tests, packages, privilege: Privilege::None, confined: false }
}

const fn privilege(
    program: &'static str,
    tests: &'static [&'static str],
    privilege: Privilege,
) -> Need {
    let confined = !matches!(privilege, Privilege::None | Privilege::Root);
    Need { program, tests, packages: &[], privilege, confined }
}

/// Makes the entry of tests that create a user namespace themselves, and so must not run in one.
const fn beside(program: &'static str, tests: &'static [&'static str]) -> Need {
    Need { program, tests, packages: &[], privilege: Privilege::Tun, confined: false }
}

const NEEDS: &[Need] = &[
    // Servers of the distribution.
    packages("apptests/attackers", &["memcached_"], setup::MEMCACHED),
    packages("apptests/attackers", &["nginx_"], setup::NGINX),
    packages("apptests/memcached", &[], setup::MEMCACHED),
    packages("apptests/nginx_*", &[], setup::NGINX),
    packages("apptests/nginx_operations", &["one_worker_gets_"], &["libnginx-mod-stream"]),
    packages("apptests/nginx_protocols", &[], &["curl", "openssl", "nghttp2-client"]),
    packages("apptests/operations", &["nginx_"], setup::NGINX),
    packages("apptests/operations", &["nginx_"], setup::NGINX_CLIENTS),
    packages("apptests/operations", &["memcached_"], setup::MEMCACHED),
    packages(
        "megapipe-rt/http",
        &["uring::curl_", "epoll::curl_", "uring::clients_", "epoll::clients_"],
        &["curl"],
    ),
    packages("megapipe-rt/http", &["uring::h2load_", "epoll::h2load_"], &["nghttp2-client"]),
    packages("megapipe-rt/grpc", &["uring::curl_", "epoll::curl_"], &["curl"]),
    packages("megapipe-rt/metrics", &[], &["curl"]),
    packages(
        "megapipe-rt/websocket",
        &["uring::python_", "epoll::python_"],
        &["python3-websockets"],
    ),
    packages("megapipe-rt/tls", &[], &["curl", "openssl"]),
    packages("iobench/apps", &["memcached_"], &["memcached"]),
    packages("iobench/apps", &["built_programs_"], &["nginx", "memcached"]),
    packages("iobench/apps", &["wrk_"], &["nginx", "wrk"]),
    packages(
        "iobench/apps",
        &["nginx_", "large_answers_", "nothing_is_left_", "workers_end_", "what_is_missing_"],
        &["nginx"],
    ),
    packages(
        "iobench/programs",
        &["redis_", "no_process_outlives_", "what_is_missing_", "a_library_that_is_missing_"],
        &["redis-server", "redis-tools"],
    ),
    packages(
        "iobench/programs",
        &["the_other_programs_"],
        &["memcached", "libmemcached-tools", "nginx", "wrk", "postgresql"],
    ),
    packages("iobench/programs", &["servers_of_another_user_"], &["postgresql"]),
    // Tools that examine generated files.
    packages("capi/generated", &[], &["groff-base"]),
    packages(
        "capi/programs",
        &[
            "examples::echo_",
            "examples::http_hello_",
            "examples::ping_pong_",
            "examples::send_file_",
            "sizes_and_offsets_",
            "the_static_library_",
            "stacks::the_echo_",
        ],
        &["clang"],
    ),
    packages("capi/programs", &["the_header_is_cpp17", "stacks::the_header_"], &["g++"]),
    packages("capi/programs", &[], &["valgrind"]),
    packages("fabled/commands", &["the_manual_page_"], &["mandoc"]),
    packages("iobench/manual", &[], &["groff-base", "mandoc"]),
    packages("iobench/report_page", &[], &["chromium"]),
    packages("megapipe/system_calls", &[], &["strace"]),
    packages("megapipe/readme", &["epoll::socat_", "uring::socat_"], &["socat"]),
    packages("megapipe/readme", &["epoll::ncat_", "uring::ncat_"], &["ncat"]),
    packages("megapipe/readme", &["epoll::curl_", "uring::curl_"], &["curl"]),
    // Networks.
    privilege("apptests/attackers", &[], Privilege::Namespace),
    beside("apptests/programs", &["nothing_differs_under_mtcp_"]),
    beside("iobench/network", &["a_comparison_", "a_user_namespace_", "conditions_"]),
    beside("iobench/iobench", &["network::tests::"]),
    privilege("capi/programs", &["stacks::"], Privilege::Tun),
    privilege("callfuzz/stack", &[], Privilege::Tun),
    privilege("channelfuzz/stacks", &[], Privilege::Tun),
    privilege("faults/short", &[], Privilege::Tun),
    privilege("fabled/cluster", &[], Privilege::Namespace),
    packages("fabled/cluster", &[], &["etcd-server", "etcd-client"]),
    // The tests expect root as the name of the operator.
    privilege("fabled/library", &["a_flow_goes_where_"], Privilege::Namespace),
    privilege("fable/fable", &["control::link::tests::a_host_is_"], Privilege::Namespace),
    privilege(
        "megapipe/fork",
        &["epoll::a_child_that_is_process_1_", "uring::a_child_that_is_process_1_"],
        Privilege::Root,
    ),
    privilege(
        "megapipe/conformance_messages",
        &["epoll::long_frames_", "uring::long_frames_"],
        Privilege::Root,
    ),
    packages(
        "megapipe/conformance_messages",
        &["epoll::long_frames_", "uring::long_frames_"],
        &["iproute2"],
    ),
    privilege(
        "megapipe/conformance_messages",
        &["epoll::an_overrun_", "uring::an_overrun_"],
        Privilege::Namespace,
    ),
    privilege("mtcp/mtcp", &["device::xdp::program::tests::"], Privilege::Root),
    privilege("mtcp/channel", &[], Privilege::Tun),
    privilege("mtcp/devices", &[], Privilege::Namespace),
    privilege("mtcp/devices", &["tap::", "packet_on_tap::"], Privilege::Tun),
    privilege(
        "mtcp/devices",
        &[
            "kernel::packets_for_",
            "kernel::the_kernel_answers_through_a_t",
            "offloads::a_frame_beyond_",
            "offloads::a_tap_device_",
            "offloads::long_frames_pass_in_one_piece_",
            "offloads::the_kernel_cuts_",
        ],
        Privilege::Tun,
    ),
    privilege(
        "mtcp/devices",
        &[
            "kernel::missing_privileges_",
            "offloads::a_native_program_",
            "offloads::frames_of_all_lengths_",
            "offloads::long_frames_are_taken_",
            "offloads::long_frames_of_af_xdp_",
            "offloads::long_frames_pass_between_",
            "xdp_",
        ],
        Privilege::Root,
    ),
    privilege("mtcp/interop", &[], Privilege::Namespace),
    privilege("mtcp/interop", &["bulk::a_tap_device_"], Privilege::Tun),
    privilege(
        "mtcp/interop",
        &[
            "attacks::",
            "basic::every_device_",
            "bulk::a_cable_",
            "crowd::",
            "loss::",
            "matrix::kernels_",
            "programs::",
            "soak::",
        ],
        Privilege::Root,
    ),
    privilege("mtcp/kernel", &["the_kernel_behind_a_tap_"], Privilege::Tun),
    privilege("mtcp/kernel", &["the_kernel_across_a_cable_"], Privilege::Root),
    privilege("mtcp/programs", &[], Privilege::Namespace),
    packages("mtcp/programs", &["speed::"], &["iperf3"]),
    packages("mtcp/programs", &["web::"], &["lighttpd", "apache2-utils", "curl"]),
    packages("mtcp/programs", &["ways::"], &["curl"]),
    privilege(
        "mtcp/programs",
        &["calls::calls_do_", "command::stat_shows_", "speed::", "ways::", "web::"],
        Privilege::Root,
    ),
    privilege("mtcp/shutdown", &[], Privilege::Namespace),
    privilege("mtcp/sockets", &[], Privilege::Namespace),
    privilege("mtcp/sockets", &["hostile_names::"], Privilege::Root),
    privilege("mtcp/xdp", &[], Privilege::Root),
    privilege("tls-proxy/proxy", &[], Privilege::Namespace),
    privilege("tls-proxy/proxy", &["tap::"], Privilege::Tun),
    privilege(
        "tls-proxy/proxy",
        &[
            "xdp::",
            "stacks::",
            "setup::all_addresses_",
            "setup::the_environment_",
            "epoll::all_threads_",
            "uring::all_threads_",
            "tap::all_threads_",
            "privileges::a_key_that_the_user_",
        ],
        Privilege::Root,
    ),
    packages(
        "tls-proxy/proxy",
        &[
            "epoll::ab_",
            "uring::ab_",
            "tap::ab_",
            "epoll::connections_are_kept",
            "uring::connections_are_kept",
            "tap::connections_are_kept",
            "epoll::curl_",
            "uring::curl_",
            "tap::curl_",
        ],
        &["lighttpd", "apache2-utils", "curl"],
    ),
    packages(
        "tls-proxy/proxy",
        &[
            "epoll::backends_are_told_",
            "uring::backends_are_told_",
            "tap::backends_are_told_",
            "xdp::backends_are_told_",
            "addresses::",
        ],
        &["haproxy", "nginx"],
    ),
];

/// Which tests of a program run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Group {
    #[default]
    All,
    /// Only these; there may be none.
    Only(Vec<String>),
}

/// A test that does not run: its name and the reason.
pub(crate) type Skipped = (String, String);

/// Which tests of a program run, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) outside: Group,
    /// Tests that run as root of namespaces of their own.
    pub(crate) in_namespace: Group,
    pub(crate) skipped: Vec<Skipped>,
}

impl Plan {
    const NONE: Group = Group::Only(Vec::new());

    fn outside() -> Plan {
        Plan { outside: Group::All, in_namespace: Plan::NONE, skipped: Vec::new() }
    }

    fn in_namespace() -> Plan {
        Plan { outside: Plan::NONE, in_namespace: Group::All, skipped: Vec::new() }
    }
}

/// Plans a test program, `DIRECTORY/TARGET`. `tests` lists its tests, and is called only if some of
/// them need different treatment.
pub(crate) fn plan(
    program: &str,
    means: &TestCapabilities,
    tests: impl FnOnce() -> Result<Vec<String>, String>,
) -> Result<Plan, String> {
    if means.is_root() {
        return Ok(Plan::outside());
    }
    plan_by(NEEDS, program, means, tests)
}

fn plan_by(
    needs: &[Need],
    program: &str,
    means: &TestCapabilities,
    tests: impl FnOnce() -> Result<Vec<String>, String>,
) -> Result<Plan, String> {
    let needs: Vec<&Need> = needs.iter().filter(|need| need.is_of(program)).collect();
    let is_lacking = needs.iter().any(|need| need.lacks(means).is_some());
    let confined: Vec<&&Need> = needs.iter().filter(|need| need.confined).collect();
    if !is_lacking && confined.is_empty() {
        return Ok(Plan::outside());
    }
    if !is_lacking && confined.iter().any(|need| need.tests.is_empty()) {
        return Ok(Plan::in_namespace());
    }
    let (mut outside, mut in_namespace, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for test in tests()? {
        let own = || needs.iter().filter(|need| need.is_for(&test));
        if let Some(reason) = own().find_map(|need| need.lacks(means)) {
            skipped.push((test, reason));
        } else if own().any(|need| need.confined) {
            in_namespace.push(test);
        } else {
            outside.push(test);
        }
    }
    Ok(Plan { outside: Group::Only(outside), in_namespace: Group::Only(in_namespace), skipped })
}

impl Need {
    fn is_of(&self, program: &str) -> bool {
        match self.program.strip_suffix('*') {
            Some(beginning) => program.starts_with(beginning),
            None => self.program == program,
        }
    }

    fn is_for(&self, test: &str) -> bool {
        self.tests.is_empty() || self.tests.iter().any(|beginning| test.starts_with(beginning))
    }

    /// Returns why these tests cannot run; `None` if they can.
    fn lacks(&self, means: &TestCapabilities) -> Option<String> {
        if let Some(package) = self.packages.iter().find(|package| means.lacks(package)) {
            return Some(format!("the package {package} is missing"));
        }
        match self.privilege {
            needed if needed <= means.privilege => None,
            Privilege::Root => Some("needs root".to_string()),
            Privilege::Tun if means.privilege == Privilege::Namespace => {
                Some(format!("needs root, or to read and write {}", privilege::TUN))
            }
            _ => Some("needs root, or a user and network namespace".to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    const TABLE: &[Need] = &[
        privilege("stack/*", &[], Privilege::Namespace),
        privilege("stack/xdp", &[], Privilege::Root),
        privilege("stack/tap", &["curl_"], Privilege::Tun),
        packages("stack/web", &["server::", "curl_"], &["curl"]),
        packages("mixed/all", &["curl_"], &["curl"]),
        privilege("mixed/all", &["server::"], Privilege::Namespace),
        beside("mixed/own", &["server::"]),
    ];

    const TESTS: [&str; 3] = ["client::asks", "curl_asks", "server::answers"];

    fn planned(program: &str, privilege: Privilege, missing: &[&'static str]) -> Plan {
        let means = TestCapabilities { privilege, missing: missing.to_vec() };
        plan_by(TABLE, program, &means, || Ok(TESTS.map(String::from).to_vec())).unwrap()
    }

    fn names(plan: &Plan) -> Vec<&str> {
        plan.skipped.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn only(names: &[&str]) -> Group {
        Group::Only(names.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn root_skips_nothing_whatever_the_table_says() {
        for need in NEEDS {
            let program = need.program.trim_end_matches('*');
            let plan = plan(program, &TestCapabilities::ALL, || panic!("lists no tests")).unwrap();
            assert_eq!(plan, Plan::outside());
        }
    }

    #[test]
    fn a_program_without_needs_runs_whole_and_outside_of_namespaces() {
        assert_eq!(planned("other/web", Privilege::None, &["curl"]), Plan::outside());
        assert_eq!(planned("other/stack/", Privilege::Namespace, &[]), Plan::outside());
    }

    #[test]
    fn tests_of_networks_run_in_a_namespace_or_are_skipped_by_name() {
        assert_eq!(planned("stack/web", Privilege::Namespace, &[]), Plan::in_namespace());
        let plan = planned("stack/web", Privilege::None, &[]);
        assert_eq!(names(&plan), TESTS);
        assert_eq!((plan.outside, plan.in_namespace), (only(&[]), only(&[])));
        assert!(plan.skipped[0].1.contains("user and network namespace"), "{:?}", plan.skipped);
    }

    #[test]
    fn only_the_tests_that_need_it_run_in_a_namespace() {
        let plan = planned("mixed/all", Privilege::Namespace, &[]);
        assert_eq!(plan.in_namespace, only(&["server::answers"]));
        assert_eq!(plan.outside, only(&["client::asks", "curl_asks"]));
        let plan = planned("mixed/all", Privilege::None, &["curl"]);
        assert_eq!(names(&plan), ["curl_asks", "server::answers"]);
        assert_eq!(plan.outside, only(&["client::asks"]));
    }

    #[test]
    fn tests_that_make_their_own_namespace_stay_outside() {
        assert_eq!(planned("mixed/own", Privilege::Tun, &[]), Plan::outside());
        assert_eq!(names(&planned("mixed/own", Privilege::Namespace, &[])), ["server::answers"]);
    }

    #[test]
    fn what_needs_root_itself_is_skipped_even_in_a_namespace() {
        let plan = planned("stack/xdp", Privilege::Tun, &[]);
        assert_eq!(names(&plan), TESTS);
        assert!(plan.skipped.iter().all(|(_, reason)| reason == "needs root"), "{plan:?}");
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_named() {
        let plan = planned("stack/tap", Privilege::Namespace, &[]);
        assert_eq!(names(&plan), ["curl_asks"]);
        assert!(plan.skipped[0].1.contains("/dev/net/tun"), "{plan:?}");
        assert_eq!(plan.in_namespace, only(&["client::asks", "server::answers"]));
        assert_eq!(planned("stack/tap", Privilege::Tun, &[]), Plan::in_namespace());
        let plan = planned("stack/tap", Privilege::None, &[]);
        assert!(plan.skipped.iter().all(|(_, why)| why.contains("network namespace")), "{plan:?}");
    }

    #[test]
    fn only_the_tests_that_use_a_missing_package_are_skipped() {
        let plan = planned("stack/web", Privilege::Namespace, &["curl", "strace"]);
        assert_eq!(names(&plan), ["curl_asks", "server::answers"]);
        assert_eq!(plan.in_namespace, only(&["client::asks"]));
        assert_eq!(plan.skipped[0].1, "the package curl is missing");
    }

    /// Returns the text of all Rust files below a directory.
    fn sources(directory: &Path) -> String {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let text = |path: PathBuf| match path.extension() {
            _ if path.is_dir() => sources(&path),
            Some(extension) if extension == "rs" => fs::read_to_string(&path).unwrap(),
            _ => String::new(),
        };
        entries.map(text).collect()
    }

    #[test]
    fn every_test_in_the_table_is_still_there() {
        let crates = crate::root().join("crates");
        for need in NEEDS {
            let package = need.program.split('/').next().unwrap();
            let text = sources(&crates.join(package));
            let megapipe = sources(&crates.join("megapipe/tests"));
            for beginning in need.tests {
                let function = beginning.rsplit("::").next().unwrap();
                let is_there = |text: &str| text.contains(&format!("fn {function}"));
                assert!(
                    function.is_empty() || is_there(&text) || is_there(&megapipe),
                    "{}: no test begins with {beginning}",
                    need.program
                );
            }
        }
    }

    #[test]
    fn every_package_in_the_table_is_one_of_the_set_up() {
        for package in NEEDS.iter().flat_map(|need| need.packages) {
            assert!(crate::setup::knows(package), "setup does not install {package}");
        }
    }
}
