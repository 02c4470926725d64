//! Checks properties of the parsers of tickets and of etcd's answers that hold for all bytes; fuzz
//! targets call it.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use super::etcd::{Pages, changes};
use super::records::{Key, SECRET_BYTES};
use super::ticket::{BadTicket, Inspector, LINE_BYTES_MAX, seal, sign};
use super::view::{HOSTS_MAX, NAMES_MAX, View};
use super::wire::{EventKind, KeyValue, RangeResponse};
use super::zone_secret::ZoneKeys;
use crate::cluster_link::ClusterEvent;

const HOST: &str = "b";
const ZONE: &str = "zone";
const SECRET: [u8; SECRET_BYTES] = [5; SECRET_BYTES];
/// When tickets are presented, in seconds since 1970: those of the kept inputs are valid then.
const NOW_S: u64 = 1_800_000_000;
/// Most keys of a listing here.
const KEYS_MAX: usize = 64;

/// Checks the bytes behind the first one as the line of a ticket, or as its content, which is then
/// signed.
///
/// # Panics
/// If a property does not hold.
pub fn ticket(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let (now, shown) = (SystemTime::UNIX_EPOCH + Duration::from_secs(NOW_S), Instant::now());
    let is_signed = choice & 1 != 0;
    let line = match std::str::from_utf8(bytes) {
        Ok(content) if is_signed => sign(content, &SECRET).into_bytes(),
        _ => bytes.to_vec(),
    };
    let mut inspector = Inspector::default();
    let mut open = |line: &[u8]| inspector.open(line, HOST, &[SECRET], now, shown);
    let Ok(ticket) = open(&line) else { return };
    assert!(is_signed, "a ticket was accepted that has no valid signature");
    assert_eq!(open(&line), Err(BadTicket::Replayed));
    // Names and programs may be longer in other notations.
    if let Some(again) = seal(&ticket, HOST, &SECRET, [choice; 16], now) {
        assert!(again.len() < LINE_BYTES_MAX);
        assert_eq!(Inspector::default().open(again.as_bytes(), HOST, &[SECRET], now, shown), {
            Ok(ticket)
        });
    }
}

/// Reads each line of the bytes behind the first one as an answer of etcd: a page of a listing if
/// it begins with `R`, the last page with `L`, a change with any other byte. In a zone with a
/// secret, which the first byte selects, the values are sealed first.
///
/// # Panics
/// If a property does not hold.
pub fn etcd_answers(bytes: &[u8]) {
    static KEYS: OnceLock<ZoneKeys> = OnceLock::new();
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let keys = (choice & 1 != 0).then(|| KEYS.get_or_init(|| ZoneKeys::derive(&SECRET, ZONE)));
    let mut view = View::new(ZONE, HOST);
    if let Some(keys) = keys {
        view.protect(keys.clone());
    }
    let seal = |entry: &mut KeyValue| {
        let path = std::str::from_utf8(&entry.key.0);
        if let (Some(keys), Ok(path)) = (keys, path)
            && let Some(sealed) = keys.seal(path, entry.value.0.clone())
        {
            entry.value.0 = sealed;
        }
    };
    let mut pages = Pages::new(KEYS_MAX);
    let mut now = Instant::now();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some((&kind, answer)) = line.split_first() else { continue };
        now += Duration::from_secs(1);
        let mut events = Vec::new();
        if kind == b'R' || kind == b'L' {
            let Ok(mut page) = serde_json::from_slice::<RangeResponse>(answer) else { continue };
            page.kvs.iter_mut().for_each(seal);
            let next = pages.add(page);
            if kind == b'L' || next.is_none() {
                let listing = std::mem::replace(&mut pages, Pages::new(KEYS_MAX)).listing;
                assert!(listing.entries.len() <= KEYS_MAX);
                events.extend(view.replace(&listing, now, Duration::from_secs(2)));
            }
        } else if let Ok(mut change) = changes(answer) {
            for event in &mut change.events {
                if event.kind == EventKind::Put {
                    seal(&mut event.kv);
                }
                events.extend(view.apply(&event.kind, &event.kv, now));
            }
        }
        events.extend(view.expire(now));
        check(&view, &events);
    }
}

/// Checks what the daemon gets from the copy.
fn check(view: &View, events: &[ClusterEvent]) {
    let names: Vec<_> = view.each_name().map(|(name, _)| name).collect();
    assert!(names.len() <= NAMES_MAX && view.host_count() <= HOSTS_MAX);
    assert_eq!(names.len(), view.name_count(), "the count of names is wrong");
    for name in names {
        let path = Key::Name(name.clone()).path(ZONE).expect("it has an instance");
        let parsed = Key::parse(ZONE, path.as_bytes()).expect("its key is one of ours");
        assert_eq!(parsed, Key::Name(name));
    }
    for remote in view.remote_names() {
        assert_ne!(remote.owner.host, HOST, "a name of this host is no remote name");
        assert_eq!(view.find(&remote.name), [remote]);
    }
    for event in events {
        assert!(
            matches!(event, ClusterEvent::NameFound { .. } | ClusterEvent::NameGone { .. }),
            "{event:?}"
        );
    }
}
