//! Axes: which numbers stand beside them, and where a value lies.

use super::{Axis, Format, Scale};
use crate::report::unit;

/// About so many ticks on a linear axis.
const TICKS: f64 = 6.0;

/// An axis for given data, on a range of pixels.
#[derive(Clone, Debug)]
pub struct Ruler {
    scale: Scale,
    format: Format,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    /// Where ticks stand.
    pub ticks: Vec<f64>,
}

impl Ruler {
    /// For values between `low` and `high`, drawn between the pixels `from` and `to`.
    pub fn of(axis: &Axis, (low, high): (f64, f64), (from, to): (f64, f64)) -> Ruler {
        let (low, high) = if low <= high && low.is_finite() && high.is_finite() { (low, high) } else { (0.0, 1.0) };
        let (low, high, ticks) = match axis.scale {
            Scale::Linear => linear(axis, low, high),
            Scale::Log2 => logarithmic(axis, low, high, 2.0),
            Scale::Log10 => logarithmic(axis, low, high, 10.0),
        };
        Ruler { scale: axis.scale, format: axis.format, low, high, from, to, ticks }
    }

    /// The pixel of a value; of one that does not fit, the nearer end.
    pub fn at(&self, value: f64) -> f64 {
        let place = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Log2 | Scale::Log10 => value.max(f64::MIN_POSITIVE).ln(),
        };
        let (low, high) = (place(self.low), place(self.high));
        let share = if high > low { ((place(value) - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
        self.from + share * (self.to - self.from)
    }

    /// The number beside a tick.
    pub fn label(&self, tick: f64) -> String {
        match self.format {
            Format::Bytes => unit::bytes(tick),
            Format::Number => number(tick, self.step()),
        }
    }

    /// The distance of ticks, which says how many digits they need.
    fn step(&self) -> f64 {
        match self.scale {
            Scale::Linear if self.ticks.len() > 1 => {
                self.ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min)
            }
            _ => 0.0,
        }
    }
}

/// A tick's number with as few digits as tell it from its neighbours.
fn number(tick: f64, step: f64) -> String {
    let size = tick.abs();
    if size >= 1e7 || (size > 0.0 && size < 1e-4) {
        return format!("{tick:e}");
    }
    let decimals = if step > 0.0 { (1.0 - step.log10().floor()).clamp(0.0, 7.0) } else { 6.0 };
    let text = format!("{tick:.*}", decimals as usize);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

fn linear(axis: &Axis, low: f64, high: f64) -> (f64, f64, Vec<f64>) {
    let low = if axis.from_zero { low.min(0.0) } else { low };
    let high = if axis.from_zero { high.max(0.0) } else { high };
    let span = if high > low { high - low } else { high.abs().max(1.0) };
    if !axis.ticks.is_empty() {
        // What was measured stands a little away from the frame.
        return (low - span * 0.04, high + span * 0.04, axis.ticks.clone());
    }
    let step = nice(span / TICKS);
    let first = (low / step).floor();
    let last = (high / step).ceil().max(first + 1.0);
    let ticks = (0..=(last - first) as usize).map(|count| (first + count as f64) * step).collect();
    (first * step, last * step, ticks)
}

/// The nearest of 1, 2, 2.5, 5 times a power of ten that is not less.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * power >= step * 0.999).unwrap_or(10.0);
    factor * power
}

fn logarithmic(axis: &Axis, low: f64, high: f64, base: f64) -> (f64, f64, Vec<f64>) {
    let high = if high > 0.0 { high } else { 1.0 };
    let low = if low > 0.0 { low.min(high) } else { high / base };
    if !axis.ticks.is_empty() {
        let room = (high / low).max(base).powf(0.03);
        return (low / room, high * room, axis.ticks.clone());
    }
    let first = (low.ln() / base.ln() + 1e-9).floor();
    let last = (high.ln() / base.ln() - 1e-9).ceil().max(first + 1.0);
    let every = (((last - first) / 10.0).ceil()).max(1.0);
    let mut ticks: Vec<f64> =
        (0..=((last - first) / every) as usize).map(|count| base.powf(first + count as f64 * every)).collect();
    if base == 10.0 && last - first <= 2.0 {
        let fine =
            ticks.iter().flat_map(|tick| [2.0, 5.0].map(|factor| factor * tick)).filter(|tick| *tick < base.powf(last));
        ticks = ticks.iter().copied().chain(fine.collect::<Vec<_>>()).collect();
        ticks.sort_by(f64::total_cmp);
    }
    (base.powf(first), base.powf(last), ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axis(scale: Scale, from_zero: bool) -> Axis {
        Axis { label: String::new(), scale, format: Format::Number, ticks: Vec::new(), from_zero }
    }

    #[test]
    fn a_linear_axis_begins_at_zero_when_it_must() {
        let ruler = Ruler::of(&axis(Scale::Linear, true), (90.0, 163.0), (0.0, 100.0));
        let labels: Vec<_> = ruler.ticks.iter().map(|tick| ruler.label(*tick)).collect();
        assert_eq!(labels, ["0", "50", "100", "150", "200"]);
        assert_eq!((ruler.at(0.0), ruler.at(200.0), ruler.at(100.0)), (0.0, 100.0, 50.0));
    }

    #[test]
    fn small_steps_have_their_digits() {
        let ruler = Ruler::of(&axis(Scale::Linear, true), (0.0, 0.013), (0.0, 100.0));
        assert_eq!(ruler.label(ruler.ticks[1]), "0.0025");
    }

    #[test]
    fn a_logarithmic_axis_doubles() {
        let sizes = Axis { format: Format::Bytes, ..axis(Scale::Log2, false) };
        let ruler = Ruler::of(&sizes, (4096.0, 1_048_576.0), (0.0, 80.0));
        assert_eq!(ruler.label(ruler.ticks[0]), "4 KiB");
        assert!((ruler.at(65_536.0) - 40.0).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn every_value_lies_on_the_axis(low in -1e12..1e12f64, more in 0.0..1e12f64, kind in 0..3, zero: bool) {
            let scale = [Scale::Linear, Scale::Log2, Scale::Log10][kind as usize];
            let ruler = Ruler::of(&axis(scale, zero), (low, low + more), (10.0, 20.0));
            for value in [low, low + more, f64::NAN, 0.0, -1.0] {
                let at = ruler.at(value);
                prop_assert!(at.is_nan() == (value.is_nan() && scale == Scale::Linear), "{value} at {at}");
            }
            prop_assert!(ruler.ticks.len() < 100);
        }
    }
}
