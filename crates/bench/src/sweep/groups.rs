//! Samples by what they are repetitions of.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::Value;

use crate::record::Sample;
use crate::stats::Summary;

/// All repetitions of one operation at one point of one system.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The system's name.
    pub system: String,
    /// The operation.
    pub op: String,
    /// The point.
    pub parameters: BTreeMap<String, Value>,
    /// The unit of its values.
    pub unit: String,
    /// What was measured, in order of time.
    pub values: Vec<f64>,
}

impl Group {
    /// What can be said of it.
    pub fn summary(&self) -> Option<Summary> {
        Summary::of(&self.values).ok()
    }
}

/// All groups, sorted by system, point and operation, those in the order in which they come; warm-ups are left out.
pub fn groups<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<Group> {
    let mut ops: Vec<String> = Vec::new();
    let mut by_key: BTreeMap<(String, String, String, String), Group> = BTreeMap::new();
    for sample in samples.into_iter().filter(|sample| !sample.warmup) {
        if !ops.contains(&sample.op) {
            ops.push(sample.op.clone());
        }
        let parameters = serde_json::to_string(&sample.parameters).unwrap_or_default();
        // Figures in different units are no repetitions of each other.
        let key = (sample.system.clone(), sample.op.clone(), parameters, sample.unit.clone());
        let group = by_key.entry(key).or_insert_with(|| Group {
            system: sample.system.clone(),
            op: sample.op.clone(),
            parameters: sample.parameters.clone(),
            unit: sample.unit.clone(),
            values: Vec::new(),
        });
        group.values.push(sample.value);
    }
    let mut groups: Vec<Group> = by_key.into_values().collect();
    let place = |group: &Group| ops.iter().position(|op| *op == group.op);
    groups.sort_by(|a, b| {
        let points = a.parameters.values().zip(b.parameters.values()).map(|(a, b)| compare(a, b));
        let by_point = points.fold(Ordering::Equal, Ordering::then);
        a.system.cmp(&b.system).then(by_point).then_with(|| place(a).cmp(&place(b)))
    });
    groups
}

/// Numbers by size, everything else by its text.
pub fn compare(a: &Value, b: &Value) -> Ordering {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => text(a).cmp(&text(b)),
    }
}

/// A value of a parameter, as people read it.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if bytes >= 1024 && bytes.trailing_zeros() >= 10 => super::value::size_text(bytes),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn sample(system: &str, transfer: u64, op: &str, value: f64) -> Sample {
        Sample {
            system: system.to_owned(),
            parameters: [("transfer".to_owned(), Value::from(transfer))].into(),
            op: op.to_owned(),
            value,
            unit: "MiB/s".to_owned(),
            ..Sample::default()
        }
    }

    #[test]
    fn repetitions_come_together_in_order() {
        let mut warm = sample("a", 4096, "write", 9.0);
        warm.warmup = true;
        let samples = [
            sample("b", 4096, "write", 1.0),
            sample("a", 65536, "write", 2.0),
            warm,
            sample("a", 4096, "write", 3.0),
            sample("a", 4096, "read", 4.0),
            sample("a", 4096, "write", 5.0),
        ];
        let found = groups(&samples);
        let seen: Vec<_> = found
            .iter()
            .map(|group| {
                (group.system.as_str(), text(&group.parameters["transfer"]), group.op.as_str(), group.values.clone())
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("a", "4k".to_owned(), "write", vec![3.0, 5.0]),
                ("a", "4k".to_owned(), "read", vec![4.0]),
                ("a", "64k".to_owned(), "write", vec![2.0]),
                ("b", "4k".to_owned(), "write", vec![1.0]),
            ]
        );
    }

    #[test]
    fn figures_in_different_units_stay_apart() {
        let other = Sample { unit: "MB/s".to_owned(), ..sample("a", 4096, "write", 105.0) };
        let found = groups(&[sample("a", 4096, "write", 100.0), other]);
        assert_eq!(found.iter().map(|group| group.values.len()).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn values_are_shown_as_they_were_written() {
        let texts = [Value::from(65536), Value::from(4), Value::from(1.5), Value::from("posix"), Value::from(true)];
        assert_eq!(texts.map(|value| text(&value)), ["64k", "4", "1.5", "posix", "true"]);
    }
}
