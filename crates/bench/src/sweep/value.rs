//! Values of parameters as a sweep file writes them: sizes, ranges, conditions.

use serde::Serialize;
use serde_json::Value;

/// A range makes no more values than so.
pub const RANGE_MAX: usize = 1000;

/// The binary units of IOR's sizes.
const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

/// One value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// As it stands in options and commands: `64k`.
    pub text: String,
    /// As it is recorded, sizes in bytes: `65536`.
    pub value: Value,
}

/// `64k`, `1m`, `1.5g`, `4096` in bytes; `None` for what is no size.
pub fn size(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let bare = lower.strip_suffix("ib").filter(|bare| bare.ends_with(|c| UNITS.iter().any(|u| u.0 == c)));
    let bare = bare.unwrap_or(&lower);
    let unit = UNITS.iter().find(|unit| bare.ends_with(unit.0));
    let (digits, shift) = unit.map_or((bare, 0), |unit| (&bare[..bare.len() - 1], unit.1));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    match digits.parse::<u64>() {
        Ok(number) => number.checked_mul(1 << shift),
        Err(_) if shift > 0 => {
            let bytes = digits.parse::<f64>().ok()? * (1u64 << shift) as f64;
            (bytes < u64::MAX as f64).then_some(bytes as u64)
        }
        Err(_) => None,
    }
}

/// Bytes as IOR's options take them: `64k`.
pub fn size_text(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|unit| bytes != 0 && bytes.trailing_zeros() >= unit.1);
    unit.map_or_else(|| bytes.to_string(), |unit| format!("{}{}", bytes >> unit.1, unit.0))
}

/// `250ms`, `90s`, `10m`, `2h` in seconds.
pub fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [("ms", 0.001), ("s", 1.0), ("min", 60.0), ("m", 60.0), ("h", 3600.0)];
    let (unit, factor) = units.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: f64 = text[..text.len() - unit.len()].trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

/// `5%` or `0.05` as a share.
pub fn share(value: &toml::Value) -> Option<f64> {
    let share = match value {
        toml::Value::String(text) => match text.trim().strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().ok()? / 100.0,
            None => text.trim().parse().ok()?,
        },
        toml::Value::Float(number) => *number,
        _ => return None,
    };
    (share.is_finite() && share >= 0.0).then_some(share)
}

/// As the file has it, about.
pub fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(is) => is.to_string(),
        toml::Value::Datetime(time) => time.to_string(),
        toml::Value::Array(values) => format!("[{}]", values.iter().map(plain).collect::<Vec<_>>().join(", ")),
        toml::Value::Table(table) => format!("a table of {}", table.keys().cloned().collect::<Vec<_>>().join(", ")),
    }
}

impl Setting {
    /// One value: text, a number, or true or false.
    pub fn of(value: &toml::Value) -> Result<Setting, String> {
        let (text, value) = match value {
            toml::Value::String(text) => {
                (text.clone(), size(text).map_or_else(|| Value::from(text.as_str()), Value::from))
            }
            toml::Value::Integer(number) => (number.to_string(), Value::from(*number)),
            toml::Value::Float(number) if number.is_finite() => (number.to_string(), Value::from(*number)),
            toml::Value::Boolean(is) => (is.to_string(), Value::from(*is)),
            other => return Err(format!("{} is neither text nor a number", plain(other))),
        };
        Ok(Setting { text, value })
    }

    /// All values of a parameter: one, a list, or `{ from, to, times }` and `{ from, to, add }`.
    pub fn all(value: &toml::Value) -> Result<Vec<Setting>, String> {
        let settings = match value {
            toml::Value::Array(values) => values.iter().map(Setting::of).collect::<Result<Vec<_>, _>>()?,
            toml::Value::Table(table) => range(table)?,
            one => vec![Setting::of(one)?],
        };
        if settings.is_empty() {
            return Err("it has no values".to_owned());
        }
        for (index, setting) in settings.iter().enumerate() {
            if settings[..index].iter().any(|earlier| earlier.value == setting.value) {
                return Err(format!("{} stands in it twice", setting.text));
            }
        }
        Ok(settings)
    }
}

fn range(table: &toml::Table) -> Result<Vec<Setting>, String> {
    if let Some(unknown) = table.keys().find(|key| !["from", "to", "times", "add"].contains(&key.as_str())) {
        return Err(format!("a range has from, to, and times or add, not {unknown}"));
    }
    let mut is_size = false;
    let mut number = |key: &str| match table.get(key) {
        Some(toml::Value::Integer(number)) => {
            u64::try_from(*number).map(Some).map_err(|_| format!("{key} is negative"))
        }
        Some(toml::Value::String(text)) => {
            is_size |= text.ends_with(|c: char| c.is_ascii_alphabetic());
            size(text).map(Some).ok_or_else(|| format!("{key}: {text} is no size"))
        }
        Some(other) => Err(format!("{key}: {} is neither a whole number nor a size", plain(other))),
        None => Ok(None),
    };
    let from = number("from")?.ok_or("from is missing")?;
    let to = number("to")?.ok_or("to is missing")?;
    let (times, add) = (number("times")?, number("add")?);
    let next: Box<dyn Fn(u64) -> Option<u64>> = match (times, add) {
        (Some(_), Some(_)) => return Err("it has times and add: one of them".to_owned()),
        (None, Some(0)) | (Some(0 | 1), None) => return Err("it never gets from from to to".to_owned()),
        (None, Some(add)) => Box::new(move |at| at.checked_add(add)),
        (times, None) if from > 0 => Box::new(move |at| at.checked_mul(times.unwrap_or(2))),
        _ => return Err("from is 0, which no factor makes more: say add".to_owned()),
    };
    let mut settings = Vec::new();
    let mut at = Some(from);
    while let Some(value) = at.filter(|at| *at <= to) {
        if settings.len() == RANGE_MAX {
            return Err(format!("it makes more than {RANGE_MAX} values"));
        }
        let text = if is_size { size_text(value) } else { value.to_string() };
        settings.push(Setting { text, value: Value::from(value) });
        at = next(value);
    }
    Ok(settings)
}

/// What a value shall be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Condition {
    /// One of these.
    Among(Vec<Value>),
    /// None of these.
    Not(Vec<Value>),
    /// `<`, `<=`, `>` or `>=` this.
    Compared(String, f64),
}

impl Condition {
    /// `"64k"`, `["64k", "1m"]`, `">= 64k"`, `"!= posix"`.
    pub fn of(value: &toml::Value) -> Result<Condition, String> {
        let one = |text: &str| Setting::of(&toml::Value::String(text.trim().to_owned())).map(|setting| setting.value);
        match value {
            toml::Value::Array(values) => {
                let values: Result<Vec<_>, _> =
                    values.iter().map(|value| Setting::of(value).map(|setting| setting.value)).collect();
                Ok(Condition::Among(values?))
            }
            toml::Value::String(text) => {
                let operators = [">=", "<=", "!=", ">", "<", "="];
                let Some(operator) = operators.into_iter().find(|operator| text.starts_with(operator)) else {
                    return Ok(Condition::Among(vec![one(text)?]));
                };
                let value = one(&text[operator.len()..])?;
                match operator {
                    "=" => Ok(Condition::Among(vec![value])),
                    "!=" => Ok(Condition::Not(vec![value])),
                    _ => {
                        let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
                        let number = number.ok_or_else(|| format!("{operator} takes a number or size, not {value}"))?;
                        Ok(Condition::Compared(operator.to_owned(), number))
                    }
                }
            }
            one => Ok(Condition::Among(vec![Setting::of(one)?.value])),
        }
    }

    /// Whether this value is so.
    pub fn holds(&self, value: &Value) -> bool {
        let same = |other: &Value| match (value.as_f64(), other.as_f64()) {
            (Some(value), Some(other)) => value == other,
            _ => value == other,
        };
        match self {
            Condition::Among(values) => values.iter().any(same),
            Condition::Not(values) => !values.iter().any(same),
            Condition::Compared(operator, bound) => value.as_f64().is_some_and(|value| match operator.as_str() {
                ">=" => value >= *bound,
                "<=" => value <= *bound,
                ">" => value > *bound,
                _ => value < *bound,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn toml(text: &str) -> toml::Value {
        text.parse::<toml::Table>().map(|table| table["x"].clone()).unwrap()
    }

    fn texts(text: &str) -> Result<Vec<String>, String> {
        Setting::all(&toml(text)).map(|all| all.into_iter().map(|setting| setting.text).collect())
    }

    #[test]
    fn sizes_are_iors() {
        let sizes = ["4096", "4k", "1M", "1.5g", "2t", "64KiB"].map(size);
        assert_eq!(sizes, [4096, 4096, 1 << 20, 3 << 29, 2 << 40, 65536].map(Some));
        for text in ["", "k", "posix", "4x", "-4k", "1.5", "ib", "20000000t", "1e3", "µ"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(
            ["250ms", "90s", "2m", "2min", "1h", "0s"].map(seconds),
            [0.25, 90.0, 120.0, 120.0, 3600.0, 0.0].map(Some)
        );
        assert_eq!(["", "5", "s", "-1s", "nans"].map(seconds), [None; 5]);
    }

    #[test]
    fn shares_are_percent_or_fractions() {
        assert_eq!(share(&toml("x = '5%'")), Some(0.05));
        assert_eq!(share(&toml("x = 0.05")), Some(0.05));
        assert_eq!(share(&toml("x = '-5%'")), None);
        assert_eq!(share(&toml("x = 5")), None, "five times, or per cent?");
    }

    #[test]
    fn values_are_one_many_or_a_range() {
        assert_eq!(texts("x = 'posix'").unwrap(), ["posix"]);
        assert_eq!(texts("x = [1, '2k', true]").unwrap(), ["1", "2k", "true"]);
        assert_eq!(texts("x = { from = '4k', to = '64k' }").unwrap(), ["4k", "8k", "16k", "32k", "64k"]);
        assert_eq!(texts("x = { from = '512k', to = '4m', times = 4 }").unwrap(), ["512k", "2m"]);
        assert_eq!(texts("x = { from = 4, to = 20, add = 4 }").unwrap(), ["4", "8", "12", "16", "20"]);
        let settings = Setting::all(&toml("x = ['64k', 'posix']")).unwrap();
        assert_eq!((settings[0].value.clone(), settings[1].value.clone()), (65536.into(), "posix".into()));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let all = [
            "x = []",
            "x = [1, 1]",
            "x = ['1k', 1024]",
            "x = { from = 1 }",
            "x = { from = 0, to = 4 }",
            "x = { from = 8, to = 4 }",
            "x = { from = 1, to = 4, times = 1 }",
            "x = { from = 1, to = 4, add = 0 }",
            "x = { from = 1, to = 4, add = 1, times = 2 }",
            "x = { from = 1, to = 4, step = 1 }",
            "x = { from = 1, to = 4000, add = 1 }",
            "x = { from = -1, to = 4, add = 1 }",
            "x = [[1]]",
            "x = [nan]",
        ];
        for text in all {
            assert!(texts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn conditions_compare_sizes_and_names() {
        let holds = |text: &str, value: Value| Condition::of(&toml(text)).unwrap().holds(&value);
        assert!(holds("x = '>= 64k'", 65536.into()) && !holds("x = '> 64k'", 65536.into()));
        assert!(holds("x = '<64k'", 4096.into()) && holds("x = '<= 1m'", 4096.into()));
        assert!(holds("x = '64k'", 65536.into()) && holds("x = 65536", 65536.0.into()));
        assert!(holds("x = ['4k', '1m']", 4096.into()) && !holds("x = ['4k', '1m']", 8192.into()));
        assert!(holds("x = '!= posix'", "uring".into()) && !holds("x = '!=posix'", "posix".into()));
        assert!(!holds("x = '>= 1'", "posix".into()), "a name is not compared");
        assert!(Condition::of(&toml("x = '>= posix'")).is_err());
    }

    proptest! {
        #[test]
        fn sizes_come_back(bytes: u64) {
            prop_assert_eq!(size(&size_text(bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_a_size_or_none(text in ".{0,12}") {
            let _ = (size(&text), seconds(&text), Condition::of(&toml::Value::String(text)));
        }
    }
}
