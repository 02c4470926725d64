//! Axes: where a value lies, and which values are named.

use crate::report::number;

/// A range of values along an edge of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    pub(crate) label: String,
    pub(crate) ticks: Vec<Tick>,
}

/// A named value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    pub(crate) value: f64,
    pub(crate) text: String,
}

/// How ticks are written.
pub(crate) type Format = fn(f64) -> String;

impl Axis {
    /// From zero to at least `high`, because lengths from another origin mislead.
    pub(crate) fn from_zero(high: f64, label: &str, format: Format) -> Axis {
        let high = if high > 0.0 { high } else { 1.0 };
        let step = nice_step(high / 5.0);
        let steps = (high / step).ceil().max(1.0);
        let ticks = (0..=steps as usize).map(|index| named(index as f64 * step, format));
        Axis {
            low: 0.0,
            high: steps * step,
            is_log: false,
            label: label.to_owned(),
            ticks: ticks.collect(),
        }
    }

    /// A linear axis that ends where the values end, for times along the bottom.
    pub(crate) fn exactly(high: f64, label: &str, format: Format) -> Axis {
        let mut axis = Axis::from_zero(high, label, format);
        if high > 0.0 {
            axis.high = high;
            axis.ticks.retain(|tick| tick.value <= high);
        }
        axis
    }

    /// Decades around the positive values between `low` and `high`.
    pub(crate) fn log(low: f64, high: f64, label: &str, format: Format) -> Axis {
        let low = if low > 0.0 { low } else { 1.0 };
        let high = high.max(low);
        let (first, last) = (below(low), above(high));
        let decades = (last / first).log10();
        let factors: &[f64] = if decades <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let exponents = first.log10().floor() as i32..=last.log10().ceil() as i32;
        // Beyond eight decades every decade would be too much to read.
        let every = (decades / 8.0).ceil().max(1.0) as i32;
        let ticks = exponents
            .filter(|exponent| exponent % every == 0)
            .flat_map(|exponent| factors.iter().map(move |f| f * 10_f64.powi(exponent)))
            .filter(|value| *value >= first * 0.999 && *value <= last * 1.001)
            .map(|value| named(value, format));
        let ticks = ticks.collect();
        Axis { low: first, high: last, is_log: true, label: label.to_owned(), ticks }
    }

    /// One place of equal width for each name; the first one's centre is 0.5.
    pub(crate) fn categories(names: &[String], label: &str) -> Axis {
        let ticks = names
            .iter()
            .enumerate()
            .map(|(index, name)| Tick { value: index as f64 + 0.5, text: name.clone() });
        Axis {
            low: 0.0,
            high: names.len().max(1) as f64,
            is_log: false,
            label: label.to_owned(),
            ticks: ticks.collect(),
        }
    }

    /// Quantiles by their distance from the maximum: 90 %, 99 %, 99.9 % are equally far apart.
    /// Values are made with [`tail`].
    pub(crate) fn tail(nines: f64, label: &str) -> Axis {
        let names = ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];
        let values = [0.0, tail(0.5), 1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let high = nines.clamp(1.0, 6.5);
        let ticks = names.iter().zip(values).filter(|(_, value)| *value <= high);
        Axis {
            low: 0.0,
            high,
            is_log: false,
            label: label.to_owned(),
            ticks: ticks.map(|(name, value)| Tick { value, text: (*name).to_owned() }).collect(),
        }
    }

    /// Where the value lies, from 0 to 1; values outside lie on the edge.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let (value, low, high) = if self.is_log {
            (value.max(self.low).ln(), self.low.ln(), self.high.ln())
        } else {
            (value, self.low, self.high)
        };
        ((value - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// The smallest value.
    pub(crate) fn origin(&self) -> f64 {
        self.low
    }
}

/// The place of a quantile on a tail axis.
pub(crate) fn tail(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-9).log10()
}

fn named(value: f64, format: Format) -> Tick {
    Tick { value, text: format(value) }
}

/// The nearest of 1, 2 and 5 times a power of ten that is not less.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|f| f * power)
        .find(|nice| *nice >= step)
        .unwrap_or(power * 10.0)
}

/// The nearest of 1, 2 and 5 times a power of ten that is less.
fn below(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|factor| factor * power);
    steps.into_iter().find(|nice| *nice < value).unwrap_or(power / 2.0)
}

/// The nearest of 1, 2 and 5 times a power of ten that is more.
fn above(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|nice| *nice > value).unwrap_or(power * 20.0)
}

/// Percentages of something between 0 and 1.
pub(crate) fn share(value: f64) -> String {
    format!("{} %", number::plain(value * 100.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.text.as_str()).collect()
    }

    #[test]
    fn linear_axes_start_at_zero() {
        let axis = Axis::from_zero(930.0, "", number::plain);
        assert_eq!(texts(&axis), ["0", "200", "400", "600", "800", "1,000"]);
        assert_eq!((axis.place(0.0), axis.place(500.0), axis.place(1e9)), (0.0, 0.5, 1.0));
        assert_eq!(texts(&Axis::from_zero(0.0, "", number::plain)).first(), Some(&"0"));
    }

    #[test]
    fn logarithmic_axes_name_decades() {
        let axis = Axis::log(30.0, 90_000.0, "", number::time);
        assert_eq!(texts(&axis), ["100 µs", "1 ms", "10 ms", "100 ms"]);
        assert!(
            (axis.place(1_000.0) - axis.place(100.0) - axis.place(100_000.0)
                + axis.place(10_000.0))
            .abs()
                < 1e-9
        );
        assert_eq!(axis.place(0.0), 0.0);
    }

    #[test]
    fn the_tail_axis_spaces_nines_evenly() {
        let axis = Axis::tail(4.2, "");
        assert_eq!(texts(&axis), ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert!((axis.place(tail(0.99)) * 2.1 - 1.0).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn any_range_has_a_bounded_number_of_ticks(low in 1e-9..1e15_f64, high in 1e-9..1e15_f64) {
            for axis in [
                Axis::log(low.min(high), low.max(high), "", number::plain),
                Axis::from_zero(high, "", number::plain),
                Axis::exactly(high, "", number::plain),
            ] {
                prop_assert!((1..=20).contains(&axis.ticks.len()), "{:?}", axis);
                for tick in &axis.ticks {
                    prop_assert!((0.0..=1.0).contains(&axis.place(tick.value)));
                }
            }
        }
    }
}
