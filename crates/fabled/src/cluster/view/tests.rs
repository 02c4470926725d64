use super::*;
use crate::cluster::wire::{Bytes, Number};
use fable::protocol::Peer;

const GRACE: Duration = Duration::from_secs(10);

fn entry(key: &str, value: &impl serde::Serialize, revision: i64) -> KeyValue {
    KeyValue {
        key: Bytes(format!("/fable/z/{key}").into_bytes()),
        value: Bytes(serde_json::to_vec(value).unwrap()),
        mod_revision: Number(revision),
        lease: Number(1),
    }
}

fn host_record(host: &str) -> HostRecord {
    HostRecord::new(&["10.0.0.1:7000".parse().unwrap()], host)
}

fn host(host: &str, revision: i64) -> KeyValue {
    entry(&format!("hosts/{host}"), &host_record(host), revision)
}

fn name(instance: &str, host: &str, revision: i64) -> KeyValue {
    let program = "kv".to_owned();
    let owner = Peer { host: host.to_owned(), pid: 1, uid: 2, gid: 3, program };
    let record = NameRecord::new(host, &owner);
    entry(&format!("names/kv/{instance}"), &record, revision)
}

fn listing(revision: i64, entries: Vec<KeyValue>) -> Listing {
    Listing { revision, entries, ..Listing::default() }
}

fn filled(now: Instant) -> View {
    let mut view = View::new("z", "own");
    let entries = vec![host("a", 3), host("b", 4), name("1", "a", 5), name("2", "b", 6)];
    let events = view.replace(&listing(8, entries), now, GRACE);
    assert_eq!(events.len(), 2, "{events:?}");
    view
}

fn found(view: &View, text: &str) -> Vec<(String, i64)> {
    let names = view.find(&text.parse().unwrap());
    names.into_iter().map(|name| (name.name.to_string(), name.epoch)).collect()
}

#[test]
fn a_service_has_instances_on_other_hosts() {
    let now = Instant::now();
    let mut view = filled(now);
    let both = [("fable://kv/1".to_owned(), 5), ("fable://kv/2".to_owned(), 6)];
    assert_eq!(found(&view, "fable://kv"), both);
    assert_eq!(found(&view, "fable://kv/2"), both[1..]);
    assert!(found(&view, "fable://other").is_empty());
    // Own names are not in the results.
    view.apply(&EventKind::Put, &host("own", 9), now);
    assert!(view.apply(&EventKind::Put, &name("3", "own", 10), now).is_empty());
    assert_eq!(found(&view, "fable://kv").len(), 2);
}

#[test]
fn a_name_counts_if_its_host_is_known_and_wrote_it() {
    let now = Instant::now();
    let mut view = filled(now);
    view.apply(&EventKind::Put, &name("3", "unknown", 9), now);
    assert_eq!(found(&view, "fable://kv").len(), 2);
    let impostor = entry("hosts/a", &host_record("other"), 10);
    view.apply(&EventKind::Put, &impostor, now);
    assert_eq!(found(&view, "fable://kv"), [("fable://kv/2".to_owned(), 6)]);
}

#[test]
fn changes_may_come_twice_and_late() {
    let now = Instant::now();
    let mut view = filled(now);
    assert!(view.apply(&EventKind::Put, &name("1", "a", 5), now).is_empty());
    let events = view.apply(&EventKind::Put, &name("1", "b", 9), now);
    assert!(matches!(&events[..], [ClusterEvent::NameFound { host, .. }] if host == "b"));
    assert!(view.apply(&EventKind::Delete, &name("1", "a", 7), now).is_empty());
    assert_eq!(found(&view, "fable://kv/1"), [("fable://kv/1".to_owned(), 9)]);
    let events = view.apply(&EventKind::Delete, &name("1", "b", 10), now);
    assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]));
    assert!(view.apply(&EventKind::Delete, &name("1", "b", 10), now).is_empty());
    assert_eq!(view.names_count, 1);
}

#[test]
fn a_value_that_is_no_record_takes_the_name_away() {
    let now = Instant::now();
    let mut view = filled(now);
    let garbage = KeyValue { value: Bytes::of("garbage"), ..name("1", "a", 9) };
    let events = view.apply(&EventKind::Put, &garbage, now);
    assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]));
    let foreign = KeyValue { key: Bytes::of("/fable/z/else"), ..name("1", "a", 10) };
    assert!(view.apply(&EventKind::Put, &foreign, now).is_empty());
    assert_eq!(found(&view, "fable://kv"), [("fable://kv/2".to_owned(), 6)]);
}

#[test]
fn what_a_later_listing_lacks_is_gone() {
    let now = Instant::now();
    let mut view = filled(now);
    let entries = vec![host("b", 4), name("2", "b", 6)];
    let events = view.replace(&listing(9, entries), now, GRACE);
    assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]));
    assert_eq!(found(&view, "fable://kv"), [("fable://kv/2".to_owned(), 6)]);
}

#[test]
fn what_the_store_has_lost_is_kept_for_a_while() {
    let now = Instant::now();
    let mut view = filled(now);
    assert!(view.replace(&listing(1, Vec::new()), now, GRACE).is_empty());
    assert_eq!(found(&view, "fable://kv").len(), 2);
    // One host writes its record again, with a revision of the new count.
    view.apply(&EventKind::Put, &host("a", 2), now);
    assert!(view.apply(&EventKind::Put, &name("1", "a", 3), now).is_empty());
    assert_eq!(found(&view, "fable://kv/1"), [("fable://kv/1".to_owned(), 3)]);
    assert!(view.expire(now + GRACE / 2).is_empty());
    let events = view.expire(now + GRACE);
    assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]), "{events:?}");
    assert_eq!(found(&view, "fable://kv"), [("fable://kv/1".to_owned(), 3)]);
    assert!(view.host("b").is_none());
}

#[test]
fn another_store_is_noticed_however_far_it_has_come() {
    let now = Instant::now();
    let key = |store| entry("key", &KeyRecord::new(Some(&[1; SECRET_BYTES]), [store; 16]), 2);
    let mut view = filled(now);
    view.apply(&EventKind::Put, &key(1), now);
    assert!(view.replace(&listing(1000, vec![key(2)]), now, GRACE).is_empty());
    assert_eq!(found(&view, "fable://kv").len(), 2);
    // The same store again: records that it does not have are removed.
    let lost = listing(1001, vec![key(2), host("a", 900), name("1", "a", 901)]);
    let events = view.replace(&lost, now, GRACE);
    assert!(matches!(&events[..], [ClusterEvent::NameGone { .. }]), "{events:?}");
    assert_eq!(found(&view, "fable://kv"), [("fable://kv/1".to_owned(), 901)]);
}

#[test]
fn a_replaced_secret_is_still_taken_for_a_while() {
    let now = Instant::now();
    let mut view = View::new("z", "own");
    assert!(view.secrets(now).is_empty());
    for secret in [[1; SECRET_BYTES], [2; SECRET_BYTES]] {
        view.apply(&EventKind::Put, &entry("key", &KeyRecord::new(Some(&secret), [0; 16]), 2), now);
    }
    assert_eq!(view.secret(), Some(&[2; SECRET_BYTES]));
    assert_eq!(view.secrets(now).len(), 2);
    assert_eq!(view.secrets(now + FORMER_SECRET_LIFE), [[2; SECRET_BYTES]]);
    view.apply(&EventKind::Delete, &entry("key", &(), 3), now);
    assert_eq!(view.secret(), Some(&[2; SECRET_BYTES]));
}

#[test]
fn with_a_secret_only_authenticated_records_are_believed() {
    let now = Instant::now();
    let keys = ZoneKeys::derive(&[1; 32], "z");
    let sealed = |found: KeyValue| {
        let path = String::from_utf8(found.key.0.clone()).unwrap();
        KeyValue { value: Bytes(keys.seal(&path, found.value.0).unwrap()), ..found }
    };
    let mut view = View::new("z", "own");
    view.protect(keys.clone());
    let good = [host("a", 3), name("1", "a", 4)].map(sealed);
    view.replace(&listing(5, good.to_vec()), now, GRACE);
    assert_eq!(found(&view, "fable://kv"), [("fable://kv/1".to_owned(), 4)]);
    let secret = entry("key", &KeyRecord::new(Some(&[9; SECRET_BYTES]), [1; 16]), 6);
    view.apply(&EventKind::Put, &secret, now);
    assert_eq!(view.secrets(now), [keys.tickets()], "etcd has no say in what signs tickets");
    // A name without authentication, and one that was copied from another key.
    view.apply(&EventKind::Put, &name("2", "a", 7), now);
    let copied = KeyValue { key: name("3", "a", 8).key, ..good[1].clone() };
    view.apply(&EventKind::Put, &copied, now);
    assert_eq!(found(&view, "fable://kv"), [("fable://kv/1".to_owned(), 4)]);
    // A record that is not authenticated takes the host and its names away, and is not used.
    view.apply(&EventKind::Put, &entry("hosts/a", &host_record("impostor"), 9), now);
    assert!(view.host("a").is_none() && found(&view, "fable://kv").is_empty());
}

#[test]
fn a_record_of_the_store_has_no_secret_if_a_file_has() {
    let mut view = View::new("z", "own");
    let text = |view: &View| {
        String::from_utf8(view.new_store([3; SECRET_BYTES], [4; 16]).unwrap()).unwrap()
    };
    assert!(text(&view).contains("secret"));
    view.protect(ZoneKeys::derive(&[1; 32], "z"));
    assert!(!text(&view).contains("secret"), "{}", text(&view));
}

#[test]
fn the_number_of_names_is_bounded() {
    let now = Instant::now();
    let mut view = filled(now);
    for number in 2..NAMES_MAX {
        view.apply(&EventKind::Put, &name(&format!("x{number}"), "a", 9), now);
    }
    assert_eq!(view.names_count, NAMES_MAX);
    assert!(view.apply(&EventKind::Put, &name("more", "a", 9), now).is_empty());
    assert_eq!(view.names_count, NAMES_MAX);
}

#[test]
fn a_zone_may_have_ten_thousand_hosts() {
    let now = Instant::now();
    let mut view = View::new("z", "own");
    for number in 0..10_000 {
        let name = format!("h{number}");
        view.apply(&EventKind::Put, &host(&name, 3), now);
        view.apply(&EventKind::Put, &self::name(&name, &name, 4), now);
    }
    assert_eq!(view.remote_names().len(), 10_000);
}

#[test]
fn own_names_are_known_in_a_zone_that_is_full() {
    let now = Instant::now();
    let mut view = View::new("z", "own");
    view.limit(1);
    for (number, host) in ["a", "b", "own"].into_iter().enumerate() {
        view.apply(&EventKind::Put, &name(&number.to_string(), host, 4), now);
    }
    let known: Vec<String> = view.each_name().map(|(name, _)| name.to_string()).collect();
    assert_eq!(known, ["fable://kv/0", "fable://kv/2"]);
}

#[test]
fn a_watch_continues_in_the_same_store_only() {
    let now = Instant::now();
    let mut view = View::new("z", "own");
    let store = |number| entry("key", &KeyRecord::new(Some(&[1; SECRET_BYTES]), [number; 16]), 2);
    let of = |revision, store| listing(revision, vec![store]);
    assert!(!view.continues_in(&of(8, store(7))), "there is no copy");
    view.replace(&of(8, store(7)), now, GRACE);
    assert!(view.continues_in(&of(8, store(7))) && view.continues_in(&of(9, store(7))));
    assert!(!view.continues_in(&of(7, store(7))), "it went back");
    assert!(!view.continues_in(&of(9, store(6))), "it is another one");
    assert!(!view.continues_in(&listing(9, Vec::new())), "it has lost its data");
    let restored = Listing { cluster: "2".to_owned(), ..of(9, store(7)) };
    assert!(!view.continues_in(&restored), "it is a snapshot of another cluster");
}
