//! Drives two stacks whose applications make random calls in any order, on a network with random
//! impairments.

use super::{MOVES_MAX, Player, Script, small_config};
use mtcp_proto::{Checksum, Instant};
use std::time::Duration;

/// Most packets in flight at once.
const UNDER_WAY_MAX: usize = 256;

/// Runs one game.
pub(super) fn play(script: &mut Script<'_>) {
    let mut now = Instant::from_nanos(1_000_000_000_000);
    let mut players =
        [Player::new(1, small_config(script), now), Player::new(2, small_config(script), now)];
    let addresses = [players[0].address, players[1].address];
    let mut under_way: [Vec<Vec<u8>>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..MOVES_MAX {
        if script.is_over() {
            break;
        }
        let one = script.below(2);
        match script.below(10) {
            0..=3 => players[one].call(now, addresses[1 - one], script),
            4 => now = now + script.duration(),
            5 => happen(&mut under_way[one], script),
            6 => {
                let packets = players[one].output(now, script.below(8));
                under_way[1 - one].extend(packets);
            }
            _ => {
                // A whole exchange, so that connections are established at all.
                for one in [one, 1 - one] {
                    for packet in under_way[one].drain(..) {
                        players[one].stack.input(now, &packet, Checksum::Unverified);
                    }
                    let packets = players[one].output(now, 10_000);
                    under_way[1 - one].extend(packets);
                }
                now = now + Duration::from_micros(100);
            }
        }
        under_way.iter_mut().for_each(|packets| packets.truncate(UNDER_WAY_MAX));
    }
    for player in &mut players {
        player.leave(now + Duration::from_millis(1));
    }
}

/// Applies random network events to packets.
fn happen(packets: &mut Vec<Vec<u8>>, script: &mut Script<'_>) {
    if packets.is_empty() {
        return;
    }
    let (at, other) = (script.below(packets.len()), script.below(packets.len()));
    match script.below(4) {
        0 => {
            packets.remove(at);
        }
        1 => packets.push(packets[at].clone()),
        2 => packets.swap(at, other),
        _ => {
            let bit = script.small() % (packets[at].len() * 8);
            packets[at][bit / 8] ^= 1 << (bit % 8);
        }
    }
}
