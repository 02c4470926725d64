use super::*;
use std::path::Path;
use testkit::{documented, expected_fields};

const SAMPLE: &str = include_str!("../../../../docs/mtcp.toml");

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("test.toml"))
}

fn message(text: &str) -> String {
    parse(text).expect_err("an error").to_string()
}

#[test]
fn the_sample_file_is_read_and_its_comments_are_the_defaults() {
    let plain = parse(SAMPLE).expect("the sample");
    assert_eq!(plain.device.kind, DeviceKind::Tap);
    assert_eq!(plain.addresses.len(), 2);
    assert_eq!(plain.routes[0].length, 0);
    assert_eq!(plain.engine, EngineConfig::default());
    // If all commented settings are enabled, only the skipped ones change the configuration.
    let skipped = ["#zero_copy", "#socket =", "#mtu", "#ports", "#[capture]", "#file", "#bytes"];
    let is_setting = |line: &str| line.starts_with('#') && !line.starts_with("# ");
    let all: String = SAMPLE
        .lines()
        .filter(|line| !skipped.iter().any(|name| line.starts_with(name)))
        .map(
            |line| if is_setting(line) { format!("{}\n", &line[1..]) } else { format!("{line}\n") },
        )
        .collect();
    assert_eq!(parse(&all).expect("all settings"), plain);
}

#[test]
fn every_setting_of_the_sample_exists() {
    let all: String = SAMPLE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let config = parse(&all).expect("all settings");
    assert_eq!(config.capture.expect("a capture").bytes, 262_144);
    assert_eq!(config.stat.socket.as_deref(), Some(Path::new("/run/mtcp.sock")));
    assert_eq!(config.ports, [80..=80, 8080..=8099]);
    assert_eq!(config.device.zero_copy, Some(false));
}

#[test]
fn errors_name_file_line_setting_and_range() {
    let base = "[address]\nlist = [\"10.0.0.1/24\"]\n";
    assert_eq!(
        message(&format!("{base}[tcp]\n# a comment\nmtu = 100\n")),
        "test.toml:5: tcp.mtu is 100; it must be 576 to 65535"
    );
    let text = message(&format!("{base}[engine]\nmode = \"fast\"\n"));
    assert!(text.contains("line 4") && text.contains("`complete` or `paired`"), "{text}");
    let text = message(&format!("{base}[tcp]\nmtu = 70000\n"));
    assert!(text.contains("line 4") && text.contains("mtu = 70000"), "{text}");
    let text = message(&format!("{base}[tcp]\nminimum_rto_ms = 0\n"));
    assert!(text.contains(":4: tcp.minimum_rto_ms is 0; it must be 1 to 60000"), "{text}");
    let text = message(&format!("{base}[tcp]\nsend_buffer_bytes = 1\n"));
    assert!(text.contains(":4: tcp.send_buffer_bytes is 1; it must be 4096 to"), "{text}");
    let text = message(&format!("{base}ports = [[80, 80], [90, 89]]\n"));
    assert!(text.contains(":3: address.ports is 89; it must be 90 to 65535"), "{text}");
    let text = message("[address]\nlist = [\"10.0.0.1\"]\n");
    assert!(text.starts_with("test.toml:2: address.list is 10.0.0.1; it must be"), "{text}");
    let text = message(&format!("{base}[[route]]\nto = \"10.0.0.1/24\"\n"));
    assert!(text.starts_with("test.toml:4: route.to is 10.0.0.1/24"), "{text}");
    let text = message(&format!("{base}[engine]\ncores = 2\ncpus = [1]\n"));
    assert!(text.contains("one for each core"), "{text}");
    let text = message(&format!("{base}[tcp]\nephemeral_ports = [5000, 4000]\n"));
    assert!(text.contains("is 4000; it must be 5000 to 65535"), "{text}");
}

#[test]
fn unknown_settings_are_errors_with_their_line() {
    let text = message("[engine]\ncore = 2\n");
    assert!(text.contains("line 2") && text.contains("core"), "{text}");
    let text = message("[engines]\n");
    assert!(text.contains("engines"), "{text}");
}

#[test]
fn an_interface_and_an_address_are_needed() {
    let text = message("[device]\nkind = \"xdp\"\n");
    assert!(text.contains("device.interface is missing"), "{text}");
    let text = message("[device]\nkind = \"tap\"\n");
    assert!(text.contains("address.list is empty"), "{text}");
    let text = message("[address]\nlist = [\"10.0.0.1/24\"]\nownership = \"shared\"\n");
    assert!(text.contains("address.ownership is \"shared\""), "{text}");
    parse("[device]\nkind = \"xdp\"\ninterface = \"eth0\"\n[address]\nownership = \"shared\"\n")
        .expect("the kernel's addresses");
}

#[test]
fn every_setting_is_in_the_reference() {
    let expected = |head: &str| expected_fields(&message(&format!("{head}\nno_such_key = 1\n")));
    for section in expected("") {
        let brackets = if section == "route" { ("[[", "]]") } else { ("[", "]") };
        let settings = expected(&format!("{}{section}{}", brackets.0, brackets.1));
        assert_eq!(documented("configuration.md", &section), settings, "{section}");
    }
}
