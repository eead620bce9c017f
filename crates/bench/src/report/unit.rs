//! Units, and figures with them as people read them. Units of powers of ten and of two are told apart, and never stand on one axis.

/// What a unit measures, so that two units may be converted into each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Bytes by time.
    Rate,
    /// Time.
    Time,
    /// Operations, messages or files by time.
    Operations,
}

/// Units that are known: the name, what it measures, and how many of the base (B/s, s, op/s) it is.
const KNOWN: [(&str, Kind, f64); 22] = [
    ("B/s", Kind::Rate, 1.0),
    ("KiB/s", Kind::Rate, 1024.0),
    ("MiB/s", Kind::Rate, 1_048_576.0),
    ("GiB/s", Kind::Rate, 1_073_741_824.0),
    ("TiB/s", Kind::Rate, 1_099_511_627_776.0),
    ("kB/s", Kind::Rate, 1e3),
    ("KB/s", Kind::Rate, 1e3),
    ("MB/s", Kind::Rate, 1e6),
    ("GB/s", Kind::Rate, 1e9),
    ("Mbit/s", Kind::Rate, 1e6 / 8.0),
    ("Gbit/s", Kind::Rate, 1e9 / 8.0),
    ("ns", Kind::Time, 1e-9),
    ("us", Kind::Time, 1e-6),
    ("µs", Kind::Time, 1e-6),
    ("ms", Kind::Time, 1e-3),
    ("s", Kind::Time, 1.0),
    ("op/s", Kind::Operations, 1.0),
    ("ops/s", Kind::Operations, 1.0),
    ("kop/s", Kind::Operations, 1e3),
    ("msg/s", Kind::Operations, 1.0),
    ("messages/s", Kind::Operations, 1.0),
    ("files/s", Kind::Operations, 1.0),
];

/// All names of units, longest first, so that the first which fits is the one that is meant.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = KNOWN.iter().map(|(name, ..)| *name).collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    names
}

fn known(unit: &str) -> Option<(Kind, f64)> {
    KNOWN.iter().find(|(name, ..)| *name == unit).map(|(_, kind, factor)| (*kind, *factor))
}

/// By what a figure in `from` is multiplied to be one in `to`; none where they measure different things.
pub fn factor(from: &str, to: &str) -> Option<f64> {
    if from == to {
        return Some(1.0);
    }
    let ((kind, one), (other, two)) = (known(from)?, known(to)?);
    (kind == other).then_some(one / two)
}

/// What an axis with this unit is called.
pub fn quantity(unit: &str) -> &'static str {
    match known(unit) {
        Some((Kind::Rate, _)) => "Throughput",
        Some((Kind::Time, _)) => "Time",
        Some((Kind::Operations, _)) => "Rate",
        None => "Value",
    }
}

/// What a unit measures, if it is known.
pub fn kind(unit: &str) -> Option<Kind> {
    known(unit).map(|(kind, _)| kind)
}

/// A figure with about four digits.
pub fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    if size == 0.0 {
        "0".to_owned()
    } else if !(1e-4..1e15).contains(&size) {
        format!("{value:.3e}")
    } else {
        let before = size.log10().floor() as i32;
        let decimals = usize::try_from((3 - before).clamp(0, 7)).unwrap_or(0);
        format!("{value:.decimals$}")
    }
}

/// How many decimals the figures of a table need, so that the least of these values has four digits.
pub fn decimals(values: impl Iterator<Item = f64>) -> usize {
    let least = values.map(f64::abs).filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    if least.is_finite() { (3.0 - least.log10().floor()).clamp(0.0, 6.0) as usize } else { 1 }
}

/// A figure with so many decimals; where they do not fit, as [`figure`] writes it.
pub fn fixed(value: f64, decimals: usize) -> String {
    if value.is_finite() && value.abs() < 1e15 { format!("{value:.decimals$}") } else { figure(value) }
}

/// The number of a size as people write it: 4096, "4k", "4 KiB", "1m", "1M". Letters mean powers of two, as in IOR; "kB" and "MB" are powers of ten.
pub fn size(text: &str) -> Option<f64> {
    let text = text.trim();
    let split = text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let number: f64 = number.parse().ok()?;
    let suffix = suffix.trim();
    let factor = match suffix {
        "" | "B" | "b" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        other => {
            let binary = ["k", "m", "g", "t"].iter().zip(1..).find(|(letter, _)| {
                let lower = other.to_ascii_lowercase();
                lower == **letter || lower == format!("{letter}ib") || lower == format!("{letter}i")
            });
            1024f64.powi(binary?.1)
        }
    };
    Some(number * factor).filter(|size| size.is_finite())
}

/// Bytes: `4 KiB`; exact, or with three digits.
pub fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut count, mut unit) = (count, 0);
    while count >= 1024.0 && unit + 1 < units.len() {
        (count, unit) = (count / 1024.0, unit + 1);
    }
    let number = if count.fract() == 0.0 { format!("{count:.0}") } else { format!("{count:.3}") };
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_ten_and_of_two_differ() {
        assert_eq!(factor("MiB/s", "MB/s"), Some(1.048576));
        assert_eq!(factor("us", "s"), Some(1e-6));
        assert_eq!(factor("MiB/s", "op/s"), None);
        assert_eq!(factor("furlong", "furlong"), Some(1.0));
        assert_eq!(factor("furlong", "us"), None);
    }

    #[test]
    fn figures_have_four_digits() {
        let all = [0.0, 1.0, 1234.5678, 12.345678, 0.012345, 1e20, 1e-9, f64::NAN, -5.25];
        let shown: Vec<_> = all.iter().map(|value| figure(*value)).collect();
        assert_eq!(shown, ["0", "1.000", "1235", "12.35", "0.01235", "1.000e20", "1.000e-9", "-", "-5.250"]);
    }

    #[test]
    fn figures_of_a_table_have_the_same_decimals() {
        let values = [152.31, 9.5];
        let decimals = decimals(values.into_iter());
        assert_eq!(values.map(|value| fixed(value, decimals)), ["152.310", "9.500"]);
        assert_eq!((super::decimals([0.0].into_iter()), super::decimals([20_500.0].into_iter())), (1, 0));
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, size_in_bytes) in [
            ("4096", 4096.0),
            ("4k", 4096.0),
            ("4 KiB", 4096.0),
            ("1M", 1_048_576.0),
            ("1.5m", 1_572_864.0),
            ("1MB", 1e6),
            ("2g", 2_147_483_648.0),
        ] {
            assert_eq!(size(text), Some(size_in_bytes), "{text}");
        }
        for text in ["", "k", "4x", "four", "4k4", "-4", "."] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn bytes_are_shown_exactly_where_they_can() {
        assert_eq!([0.0, 1000.0, 4096.0, 1_572_864.0].map(bytes), ["0 B", "1000 B", "4 KiB", "1.5 MiB"]);
    }
}
