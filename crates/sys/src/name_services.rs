//! Loads the code by which the C library looks names of hosts up, before a filter forbids new code.

use std::ffi::CString;

/// What the C library uses if the file does not say anything, and parts of it in some versions.
const ALWAYS: [&str; 2] = ["files", "dns"];

/// Loads the services that nsswitch.conf(5) names for hosts. The C library would load them at the
/// first look-up. One that is missing here is missing there, too: it goes on with the next one.
pub fn load() {
    let text = std::fs::read_to_string("/etc/nsswitch.conf").unwrap_or_default();
    for service in ALWAYS.into_iter().chain(services_of_hosts(&text)) {
        let Ok(library) = CString::new(format!("libnss_{service}.so.2")) else { continue };
        // SAFETY: the name is a C string. The code is the one that a look-up of a name runs.
        unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    }
}

/// Returns the services of the line `hosts`, without what to do after each of them.
fn services_of_hosts(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let services = lines.filter_map(|line| line.strip_prefix("hosts:"));
    let words = services.flat_map(str::split_whitespace);
    let is_name =
        |word: &&str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    // An action may have spaces: "[NOTFOUND=return SUCCESS=continue]".
    let mut in_action = false;
    words.filter(move |word| {
        let is_action = in_action || word.starts_with('[');
        in_action = is_action && !word.ends_with(']');
        !is_action && is_name(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_those_of_the_line_for_hosts() {
        let text = "passwd: files systemd\n\
                    hosts: files mdns4 [NOTFOUND=return !UNAVAIL=return] dns ../x # m\n";
        let services: Vec<&str> = services_of_hosts(text).collect();
        assert_eq!(services, ["files", "mdns4", "dns"]);
        assert_eq!(services_of_hosts("# hosts: dns").count(), 0);
    }
}
