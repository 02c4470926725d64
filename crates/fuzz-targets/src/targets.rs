//! The targets by name, and those that need more than one call.

use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fable::{Form, Kind};
use fabled::policy::Policy;
use mtcp::stat::{Report, difference, json, table};

use crate::hostile_peer::{Script, play};
use crate::{drivers, offers, page, parsers};

/// Passes an input to the code under test; panics if a property does not hold.
pub type Check = fn(&[u8]);

/// All targets. Each has its kept inputs in `corpus/NAME`.
pub const TARGETS: &[(&str, Check)] = &[
    // The calls of two applications, and the network between their stacks.
    ("calls", drivers::play_calls),
    // What a peer sends on the control link of a flow.
    ("control_link", fable::fuzzing::control_link),
    // What three clients send to the name daemon.
    ("daemon", daemon),
    // The answers of etcd, and the copy of a zone's records that they make.
    ("etcd", fabled::cluster::fuzzing::etcd_answers),
    // Experiment files, and the points that they describe.
    ("experiments", iobench::fuzzing::experiment),
    // Calls with handles of the C library: live, closed and invented ones.
    ("handles", handles),
    // Messages of netlink, and the state of an interface that they make.
    ("netlink", mtcp::network::fuzzing::datagram),
    // What a listener receives through its rendezvous.
    ("offers", offers::check),
    // Packets between processes and the name daemon.
    ("packets", fable::fuzzing::packets),
    // The memory file that a peer offers.
    ("page", page::check),
    // A frame, a packet, a segment, or a message.
    ("parser", parsers::check),
    // Result files: reading, comparing, and the page about them.
    ("results", iobench::fuzzing::result_file),
    // What a hostile peer writes into a flow's rings and cache lines.
    ("rings", rings),
    // Segments for a stack with connections in every state.
    ("segments", drivers::play_segments),
    // The files of settings: those of user-level TCP, and the policy of the name daemon.
    ("settings", settings),
    // Reports of user-level stacks, which `mtcp stat` gets from other processes.
    ("statistics", statistics),
    // What a hostile peer writes into a flow's sockets, pipes and shared heaps.
    ("streams", streams),
    // The ticket of a process on another host, or the content that is signed.
    ("tickets", fabled::cluster::fuzzing::ticket),
];

/// Returns the target of this name.
pub fn target(name: &str) -> Option<Check> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, check)| *check)
}

fn daemon(bytes: &[u8]) {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("fuzz-daemon-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        directory
    });
    fabled::daemon::fuzzing::packets(directory, bytes);
    // Of services that have kept their owner.
    let _ = fs::remove_file(directory.join("fabled.owners"));
    let _ = fs::remove_dir(directory);
    fs::create_dir_all(directory).expect("a directory");
}

fn handles(bytes: &[u8]) {
    // The calls are in the C library.
    use capi as _;
    unsafe extern "C" {
        fn fuzz_handles(bytes: *const u8, count: usize) -> c_int;
    }
    // SAFETY: so many bytes are readable.
    unsafe { fuzz_handles(bytes.as_ptr(), bytes.len()) };
}

fn rings(bytes: &[u8]) {
    play_one_of([Kind::MempipeFutex(Form::Unsafe), Kind::MempipeFutex(Form::Safe)], bytes);
}

fn streams(bytes: &[u8]) {
    play_one_of([Kind::Unix, Kind::TcpNodelay], bytes);
}

/// The bytes select the kind, what the peer writes, and which calls the honest end makes meanwhile.
fn play_one_of<const COUNT: usize>(kinds: [Kind; COUNT], bytes: &[u8]) {
    let mut script = Script(bytes);
    let kind = kinds[usize::from(script.byte()) % kinds.len()];
    play(kind, &mut script);
}

fn settings(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let (Ok(text), path) = (std::str::from_utf8(bytes), Path::new("settings.toml")) else { return };
    let error = match choice % 2 {
        0 => mtcp::Config::parse(text, path).err().map(|error| error.to_string()),
        _ => Policy::parse(text, path).err().map(|error| error.to_string()),
    };
    assert!(error.is_none_or(|text| text.contains("settings.toml")), "an error without its file");
}

fn statistics(bytes: &[u8]) {
    let mut reports = bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Report>(line).ok());
    let (Some(first), second) = (reports.next(), reports.next()) else { return };
    let change = difference(&first, second.as_ref().unwrap_or(&first));
    for report in [&first, &change] {
        let written = json(report).expect("a report can be written");
        assert_eq!(*report, serde_json::from_str(&written).expect("and parsed"));
        for text in [written, table(report)] {
            let turns = |letter: char| matches!(letter, '\u{202a}'..='\u{202e}');
            let is_command = |letter: char| letter != '\n' && letter.is_control() || turns(letter);
            assert!(!text.contains(is_command), "a command for the terminal: {text:?}");
        }
    }
}
