//! Compares windows with the formulas of the RFCs.

use super::*;

const SEGMENT: u32 = 1000;
const SEGMENT_BYTES: u16 = SEGMENT as u16;

fn at(milliseconds: u64) -> Instant {
    Instant::from_nanos(milliseconds * 1_000_000)
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn control(kind: Congestion) -> CongestionControl {
    CongestionControl::new(kind, SEGMENT_BYTES, 10)
}

/// Acknowledges a window's worth of segments within one round trip that ends at `now`.
fn round(control: &mut CongestionControl, now: u64, round_trip_ms: u64) {
    for _ in 0..control.window() / SEGMENT {
        // Each acknowledgement lets the same number of bytes be sent again.
        let outstanding = control.window() - SEGMENT;
        control.on_ack(at(now), SEGMENT, Some(ms(round_trip_ms)), outstanding, false);
    }
}

/// A control in congestion avoidance after a loss at a window of this many segments.
fn after_loss(kind: Congestion, segments: u32) -> CongestionControl {
    let mut control = CongestionControl::new(kind, SEGMENT_BYTES, segments as u16);
    control.on_loss(segments * SEGMENT);
    control.on_recovery_end();
    control
}

#[test]
fn slow_start_doubles_the_window_in_a_round_trip() {
    for kind in [Congestion::NewReno, Congestion::Cubic] {
        let mut control = control(kind);
        assert_eq!((control.window(), control.threshold()), (10_000, u32::MAX));
        assert!(control.in_slow_start());
        for doubled in [20_000, 40_000, 80_000] {
            round(&mut control, 1, 50);
            assert_eq!(control.window(), doubled);
        }
        // One acknowledgement counts for at most eight segments, however much it acknowledges (RFC
        // 9406).
        control.on_ack(at(2), 60_000, None, 0, false);
        assert_eq!(control.window(), 88_000);
    }
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for kind in [Congestion::NewReno, Congestion::Cubic] {
        let mut control = control(kind);
        for _ in 0..100 {
            control.on_ack(at(1), SEGMENT, None, 0, true);
        }
        assert_eq!(control.window(), 10_000);
    }
}

#[test]
fn new_reno_halves_and_then_grows_by_a_segment_in_a_round_trip() {
    let mut control = after_loss(Congestion::NewReno, 40);
    assert_eq!((control.window(), control.threshold()), (20_000, 20_000));
    for rounds in 1..50 {
        round(&mut control, rounds * 50, 50);
        let expected = 20_000 + rounds as u32 * SEGMENT;
        assert!(control.window().abs_diff(expected) <= SEGMENT, "{rounds}: {}", control.window());
    }
}

#[test]
fn the_threshold_is_never_below_two_segments() {
    for kind in [Congestion::NewReno, Congestion::Cubic] {
        let mut control = control(kind);
        control.on_loss(SEGMENT);
        control.on_recovery_end();
        assert_eq!((control.window(), control.threshold()), (2000, 2000));
        control.on_timeout(0);
        assert_eq!((control.window(), control.threshold()), (1000, 2000));
    }
}

/// Tests RFC 9438, equations 1 and 2, with a long round trip, so that the cubic is above Reno's
/// window.
#[test]
fn cubic_follows_its_curve() {
    let (flat, round_trip_ms) = (1000.0, 200);
    let mut control = after_loss(Congestion::Cubic, 1000);
    assert_eq!(control.window(), 700_000);
    let delay = ((flat - 700.0) / 0.4f64).cbrt();
    let mut now = 0;
    // The stage begins with the first acknowledgement after the loss.
    round(&mut control, now, round_trip_ms);
    while now < 15_000 {
        now += round_trip_ms;
        round(&mut control, now, round_trip_ms);
        // The target of the window is the curve's value one round trip later.
        let seconds = (now + round_trip_ms) as f64 / 1000.0;
        let expected = 0.4 * (seconds - delay).powi(3) + flat;
        let window = f64::from(control.window() / SEGMENT);
        let tolerance = expected * 0.04 + 2.0;
        assert!((window - expected).abs() < tolerance, "{seconds}: {window}, not {expected}");
    }
    assert!(control.window() > 1_050_000, "it has left the flat behind: {}", control.window());
}

/// RFC 9438, section 4.3: on a short path the window is that of Reno with the same decrease.
#[test]
fn cubic_is_no_slower_than_reno_on_a_short_path() {
    let mut control = after_loss(Congestion::Cubic, 20);
    assert_eq!(control.window(), 14_000);
    let (mut friendly, mut now) = (14.0, 0);
    let alpha = 3.0 * 0.3 / 1.7;
    while now < 400 {
        now += 1;
        let segments = control.window() / SEGMENT;
        for _ in 0..segments {
            let window = f64::from(control.window()) / 1000.0;
            friendly += if friendly < 20.0 { alpha } else { 1.0 } / window;
            control.on_ack(at(now), SEGMENT, Some(ms(1)), 0, false);
        }
        let window = f64::from(control.window()) / 1000.0;
        assert!((window - friendly).abs() < 0.5, "{now}: {window}, not {friendly}");
    }
    assert!(control.window() > 300_000);
}

/// Tests RFC 9438, section 4.7.
#[test]
fn cubic_gives_way_when_it_has_not_come_back_to_its_old_window() {
    let flat = |control: &CongestionControl| match control
        .past
        .as_ref()
        .expect("there was a loss")
        .algorithm
    {
        Algorithm::Cubic(algorithm) => algorithm.flat_segments(),
        Algorithm::NewReno(_) => panic!("this is CUBIC"),
    };
    let mut control = after_loss(Congestion::Cubic, 100);
    assert_eq!((control.window(), flat(&control)), (70_000, 100.0));
    control.on_congestion_mark(70_000);
    assert_eq!(control.window(), 49_000);
    assert!((flat(&control) - 70.0 * 0.85).abs() < 0.001);
}

#[test]
fn the_time_without_use_of_the_window_does_not_count_for_cubic() {
    let grow = |pause_ms: u64| {
        let mut control = after_loss(Congestion::Cubic, 1000);
        round(&mut control, 0, 200);
        control.on_ack(at(200), SEGMENT, None, 0, true);
        control.on_ack(at(200 + pause_ms), SEGMENT, None, 0, true);
        round(&mut control, 400 + pause_ms, 200);
        control.window()
    };
    assert_eq!(grow(0), grow(100_000));
}

#[test]
fn windows_stay_within_their_bounds_for_any_input() {
    for kind in [Congestion::NewReno, Congestion::Cubic] {
        for initial in [0, 1, 10, u16::MAX] {
            let mut control = CongestionControl::new(kind, initial, initial);
            let mut random = 7u64;
            let mut now = 0u64;
            for _ in 0..20_000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let value = (random >> 33) as u32;
                now = now.wrapping_add(u64::from(value >> (value % 32)));
                let time = Instant::from_nanos(now);
                let span = Duration::from_nanos(u64::from(value) << (value % 32));
                match value % 11 {
                    0 => control.on_loss(value),
                    1 => control.on_timeout(value),
                    2 => control.on_congestion_mark(value),
                    3 => control.undo(),
                    4 => control.on_recovery_end(),
                    5 => control.on_idle(time, span, Duration::from_nanos(u64::from(value % 5))),
                    6 => {
                        let safe = value.is_multiple_of(2);
                        let allowed = control.recovery_allowance(value, value, safe);
                        assert!(control.in_recovery() || allowed <= control.window());
                    }
                    7 => control.on_sent(value),
                    8 => control.set_maximum_segment(value as u16),
                    _ => control.on_ack(time, value, Some(span), value, value.is_multiple_of(5)),
                }
                assert!(control.window() > 0 && control.threshold() > 0);
            }
        }
    }
}

#[test]
fn a_time_out_leaves_one_segment_and_lowers_the_threshold_once() {
    for (kind, threshold) in [(Congestion::NewReno, 50_000), (Congestion::Cubic, 70_000)] {
        let mut control = CongestionControl::new(kind, SEGMENT_BYTES, 100);
        control.on_timeout(100_000);
        assert_eq!((control.window(), control.threshold()), (1000, threshold));
        control.on_timeout(1000);
        assert_eq!((control.window(), control.threshold()), (1000, threshold));
        // For data in flight at the time-out, one acknowledgement counts as one segment (RFC 3465).
        control.on_ack(at(1), 90_000, None, 10_000, false);
        assert_eq!(control.window(), 2000);
        control.on_ack(at(1), 10_000, None, 2000, false);
        assert_eq!(control.window(), 3000);
        control.on_ack(at(1), 3000, None, 3000, false);
        assert_eq!(control.window(), 6000);
        control.on_timeout(8000);
        assert_eq!(control.threshold(), threshold / 100 * 8);
    }
}

#[test]
fn a_needless_reduction_is_undone() {
    for kind in [Congestion::NewReno, Congestion::Cubic] {
        let mut control = CongestionControl::new(kind, SEGMENT_BYTES, 100);
        control.on_timeout(100_000);
        control.on_timeout(1000);
        control.undo();
        assert_eq!((control.window(), control.threshold()), (100_000, u32::MAX));
        control.on_loss(100_000);
        control.recovery_allowance(1000, 90_000, true);
        control.undo();
        assert_eq!((control.window(), control.threshold()), (100_000, u32::MAX));
        assert!(!control.in_recovery());
        control.undo();
        assert_eq!(control.window(), 100_000, "there is nothing to undo");
    }
}

#[test]
fn idleness_halves_the_window_down_to_the_first() {
    let mut control = after_loss(Congestion::NewReno, 10);
    for rounds in 0..75 {
        round(&mut control, rounds, 1);
    }
    control.initial_segments = 10;
    assert_eq!(control.window(), 80_000);
    control.on_idle(at(100), ms(99), ms(100));
    assert_eq!(control.window(), 80_000);
    control.on_idle(at(300), ms(200), ms(100));
    assert_eq!((control.window(), control.threshold()), (20_000, 60_000));
    control.on_idle(at(9000), ms(8000), ms(100));
    assert_eq!((control.window(), control.threshold()), (10_000, 60_000));
    control.on_timeout(0);
    control.on_idle(at(99_000), ms(8000), ms(100));
    assert_eq!(control.window(), 1000, "it never grows by that");
    control.set_maximum_segment(1400);
    assert_eq!(control.window(), 1400);
}

/// RFC 9937: of the bytes that arrive in recovery, the share that is sent equals the threshold
/// divided by the flight. The window ends at the threshold.
#[test]
fn recovery_sends_in_proportion_to_what_arrives() {
    let mut control = CongestionControl::new(Congestion::NewReno, SEGMENT_BYTES, 100);
    control.on_loss(100_000);
    assert!(control.in_recovery() && control.threshold() == 50_000);
    let (mut in_flight, mut sent) = (99_000u32, 0u32);
    for arrived in 1..=95u32 {
        in_flight -= SEGMENT;
        let allowed = control.recovery_allowance(SEGMENT, in_flight, false);
        assert_eq!(control.window(), in_flight + allowed);
        let segments = allowed / SEGMENT * SEGMENT;
        control.on_sent(segments);
        (in_flight, sent) = (in_flight + segments, sent + segments);
        if in_flight > 50_000 {
            assert!(sent.abs_diff(arrived * SEGMENT / 2) <= SEGMENT, "{arrived}: {sent}");
        }
    }
    assert!((49_000..=51_000).contains(&in_flight), "{in_flight}");
    control.on_recovery_end();
    assert_eq!((control.window(), control.in_recovery()), (50_000, false));
}

#[test]
fn recovery_after_heavy_loss_sends_what_arrives_and_grows_when_safe() {
    let mut control = CongestionControl::new(Congestion::NewReno, SEGMENT_BYTES, 100);
    control.on_loss(100_000);
    // Nearly all data was lost: the first segment is sent again at once.
    assert_eq!(control.recovery_allowance(0, 10_000, false), 1000);
    control.on_sent(1000);
    // Another loss was found: only as much is sent as has arrived.
    assert_eq!(control.recovery_allowance(1000, 10_000, false), 1000);
    control.on_sent(1000);
    // After a safe acknowledgement one more segment is sent, as in slow start.
    assert_eq!(control.recovery_allowance(2000, 9000, true), 3000);
    // The window never exceeds the threshold.
    assert_eq!(control.recovery_allowance(90_000, 48_500, true), 1500);
}

/// RFC 9406: a round trip that has grown by an eighth ends slow start, after five rounds in which
/// the window grows a quarter as fast.
#[test]
fn slow_start_ends_when_the_queue_fills() {
    for kind in [Congestion::NewReno, Congestion::Cubic] {
        let mut control = control(kind);
        round(&mut control, 0, 80);
        round(&mut control, 80, 80);
        assert_eq!(control.window(), 40_000);
        let mut rounds = 0;
        let mut grown = Vec::new();
        while control.in_slow_start() {
            let before = control.window();
            round(&mut control, 160 + rounds * 100, 95);
            grown.push(f64::from(control.window()) / f64::from(before));
            rounds += 1;
            assert!(rounds < 20, "it never ended: {grown:?}");
        }
        assert!((5..=7).contains(&rounds), "{grown:?}");
        assert!(grown[1..4].iter().all(|grown| (1.2..1.3).contains(grown)), "{grown:?}");
        assert_eq!(control.threshold(), control.threshold().min(control.window()));
    }
}

#[test]
fn a_passing_delay_does_not_end_slow_start() {
    let mut control = control(Congestion::Cubic);
    round(&mut control, 0, 80);
    round(&mut control, 80, 80);
    round(&mut control, 160, 95);
    let before = control.window();
    round(&mut control, 260, 80);
    round(&mut control, 340, 80);
    assert!(control.window() > before * 3 && control.in_slow_start());
}
