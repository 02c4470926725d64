//! Parses the output of `iobench doctor`.

/// doctor's line about the driver.
pub(super) fn driver(doctor: &str) -> String {
    let lines = doctor.lines().skip_while(|line| !line.starts_with("driver: "));
    let lines = lines.take_while(|line| !line.trim().is_empty());
    one_line(&lines.collect::<Vec<_>>().join("\n"))
}

/// Returns the names of the missing kernel features: doctor's lines with `no` between name and
/// purpose, before the line about the driver.
pub(super) fn lacking(doctor: &str) -> Vec<String> {
    let lines = doctor.lines().take_while(|line| !line.starts_with("driver: "));
    let name = |line: &str| {
        let name = line.split_once("  no  ")?.0;
        Some(name.trim_start_matches('*').trim().to_string()).filter(|name| !name.is_empty())
    };
    lines.filter_map(name).collect()
}

/// Returns the text with its white space as single spaces.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doctors_words_are_read() {
        let doctor = "What the kernel offers (* required by the uring driver)\n\
                      * ring (SINGLE_ISSUER)      no       the io_uring driver as a whole\n\
                      \u{20} minimum wait (MIN_TIMEOUT)  yes      no lingering\n\n\
                      driver: epoll, because the kernel\n        gives no ring\n\nLimits\n\
                      \u{20} net.ipv4.x   no   bbr\n";
        assert_eq!(lacking(doctor), ["ring (SINGLE_ISSUER)"]);
        let driver = driver(doctor);
        assert_eq!(driver, "driver: epoll, because the kernel gives no ring");
    }
}
