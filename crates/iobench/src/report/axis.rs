//! Axes of charts: positions of values, and ticks.

/// A range of values along an edge of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    pub(crate) label: String,
    pub(crate) ticks: Vec<Tick>,
}

/// A labelled value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    pub(crate) value: f64,
    pub(crate) text: String,
}

/// Formats the labels of ticks.
pub(crate) type Format = fn(f64) -> String;

impl Axis {
    /// Returns a linear axis from zero to at least `high`, because lengths from another origin
    /// mislead.
    pub(crate) fn from_zero(high: f64, label: &str, format: Format) -> Axis {
        let high = if high > 0.0 { high } else { 1.0 };
        let step = nice_step(high / 5.0);
        let steps = (high / step).ceil().max(1.0);
        let ticks = (0..=steps as usize).map(|index| named(index as f64 * step, format));
        let (low, high) = (0.0, steps * step);
        Axis { low, high, is_log: false, label: label.to_owned(), ticks: ticks.collect() }
            .with_units()
    }

    /// Returns a logarithmic axis of whole decades around the positive values between `low` and
    /// `high`.
    pub(crate) fn log(low: f64, high: f64, label: &str, format: Format) -> Axis {
        let low = if low > 0.0 { low } else { 1.0 };
        let high = high.max(low);
        let (first, last) = (below(low), above(high));
        let decades = (last / first).log10();
        let factors: &[f64] = if decades <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let exponents = first.log10().floor() as i32..=last.log10().ceil() as i32;
        // With more than eight decades, a tick for each decade would be unreadable.
        let every = (decades / 8.0).ceil().max(1.0) as i32;
        let ticks = exponents
            .filter(|exponent| exponent % every == 0)
            .flat_map(|exponent| factors.iter().map(move |f| f * 10_f64.powi(exponent)))
            .filter(|value| *value >= first * 0.999 && *value <= last * 1.001)
            .map(|value| named(value, format));
        let ticks = ticks.collect();
        Axis { low: first, high: last, is_log: true, label: label.to_owned(), ticks }.with_units()
    }

    /// Returns a category axis with equal widths; the centre of the first category is 0.5.
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
        .with_units()
    }

    /// Returns an axis of quantiles by their distance from the maximum: 90 %, 99 %, 99.9 % have
    /// equal distances. Values are made with [`tail`].
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
        .with_units()
    }

    /// Appends the units of the ticks to the axis label. If all ticks have the same unit it is
    /// removed from them.
    fn with_units(mut self) -> Axis {
        let texts = || self.ticks.iter().map(|tick| tick.text.as_str());
        let label = with_units(&self.label, texts());
        // Zero has no unit.
        let has_one = |text: &str| unit(text).is_some() || text == "0";
        if units(texts()).len() == 1 && texts().all(has_one) {
            for tick in &mut self.ticks {
                tick.text.truncate(tick.text.find(' ').unwrap_or(tick.text.len()));
            }
        }
        Axis { label, ..self }
    }

    /// Returns the position of a value, from 0 to 1; values outside are clamped.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let (value, low, high) = if self.is_log {
            (value.max(self.low).ln(), self.low.ln(), self.high.ln())
        } else {
            (value, self.low, self.high)
        };
        ((value - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// Returns the smallest value.
    pub(crate) fn origin(&self) -> f64 {
        self.low
    }
}

/// Returns a label with the units of its figures.
pub(crate) fn with_units<'a>(label: &str, figures: impl Iterator<Item = &'a str>) -> String {
    match units(figures).as_slice() {
        [] => label.to_owned(),
        units => format!("{label} ({})", units.join(", ")),
    }
}

/// Returns the units of figures, each once.
fn units<'a>(figures: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut units = Vec::new();
    for unit in figures.filter_map(unit) {
        if !units.contains(&unit) {
            units.push(unit);
        }
    }
    units
}

/// Returns the unit of a figure, if it has one.
fn unit(text: &str) -> Option<&str> {
    const UNITS: [&str; 8] = ["ns", "µs", "ms", "s", "%", "B", "KiB", "MiB"];
    text.split_once(' ').map(|(_, unit)| unit).filter(|unit| UNITS.contains(unit))
}

/// Returns the position of a quantile on a tail axis.
pub(crate) fn tail(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-9).log10()
}

fn named(value: f64, format: Format) -> Tick {
    Tick { value, text: format(value) }
}

/// Returns the nearest of 1, 2 and 5 times a power of ten that is not less.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|f| f * power)
        .find(|nice| *nice >= step)
        .unwrap_or(power * 10.0)
}

/// Returns the nearest of 1, 2 and 5 times a power of ten that is less.
fn below(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|factor| factor * power);
    steps.into_iter().find(|nice| *nice < value).unwrap_or(power / 2.0)
}

/// Returns the nearest of 1, 2 and 5 times a power of ten that is more.
fn above(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|nice| *nice > value).unwrap_or(power * 20.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::number;

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
        let axis = Axis::log(30.0, 90_000.0, "service time", number::time);
        assert_eq!(texts(&axis), ["100 µs", "1 ms", "10 ms", "100 ms"]);
        assert_eq!(axis.label, "service time (µs, ms)");
        let axis = Axis::from_zero(41.0, "service time", number::time);
        assert_eq!(
            (texts(&axis), &axis.label[..]),
            (vec!["0", "10", "20", "30", "40", "50"], "service time (µs)")
        );
        let axis = Axis::log(30.0, 90_000.0, "service time", number::time);
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
        let axis = Axis::tail(4.2, "percentile");
        assert_eq!(texts(&axis), ["0", "50", "90", "99", "99.9", "99.99"]);
        assert_eq!(axis.label, "percentile (%)");
        assert!((axis.place(tail(0.99)) * 2.1 - 1.0).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn any_range_has_a_bounded_number_of_ticks(low in 1e-9..1e15_f64, high in 1e-9..1e15_f64) {
            for axis in [
                Axis::log(low.min(high), low.max(high), "", number::plain),
                Axis::from_zero(high, "", number::plain),
            ] {
                prop_assert!((1..=20).contains(&axis.ticks.len()), "{:?}", axis);
                for tick in &axis.ticks {
                    prop_assert!((0.0..=1.0).contains(&axis.place(tick.value)));
                }
            }
        }
    }
}
