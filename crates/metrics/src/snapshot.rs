//! What all instruments say at one moment, as plain data.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::instrument::{Instrument, Kind, Value};
use crate::table::{Metric, Unit};
use crate::{Histogram, HistogramSnapshot, Indexed};

/// Who owns instruments.
pub trait Collect {
    /// Puts what they say into a snapshot.
    fn collect(&self, into: &mut Snapshot);
}

/// Metrics by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Snapshot(pub BTreeMap<Cow<'static, str>, MetricSnapshot>);

/// One metric: a sample for each set of labels that has recorded anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricSnapshot {
    /// What it is.
    pub kind: Kind,
    /// In which unit the values of this snapshot are.
    #[serde(default, skip_serializing_if = "Unit::is_none")]
    pub unit: Unit,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// One value of a metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<Cow<'static, str>, Cow<'static, str>>,
    /// What was recorded.
    pub value: Value,
}

impl Snapshot {
    /// Of one owner of instruments.
    pub fn of(source: &impl Collect) -> Snapshot {
        let mut snapshot = Snapshot::default();
        source.collect(&mut snapshot);
        snapshot
    }

    /// Adds what an instrument says, under the values of the metric's labels in their order. What
    /// has labels and recorded nothing is left out. The same labels twice: the sum of both.
    pub fn put<I: Instrument>(&mut self, metric: &'static Metric<I>, labels: &[&str], of: &I) {
        let labels = labels.iter().map(|label| Cow::Owned((*label).to_owned()));
        self.insert(metric, labels.collect(), of.read());
    }

    /// The same for a counter or gauge that is kept elsewhere as a number.
    pub fn put_number<I: Instrument>(&mut self, metric: &'static Metric<I>, labels: &[&str], number: u64) {
        let labels = labels.iter().map(|label| Cow::Owned((*label).to_owned()));
        self.insert(metric, labels.collect(), Value::Number(number));
    }

    /// The same for one instrument of each name of a list; the metric has one label.
    pub fn put_indexed<I: Instrument>(&mut self, metric: &'static Metric<I>, of: &Indexed<I>) {
        for (name, instrument) in of.iter() {
            self.insert(metric, vec![Cow::Borrowed(name)], instrument.read());
        }
    }

    fn insert<I: Instrument>(&mut self, metric: &'static Metric<I>, labels: Vec<Cow<'static, str>>, value: Value) {
        let definition = &metric.definition;
        debug_assert_eq!(labels.len(), definition.labels.len(), "{}", definition.name);
        if !labels.is_empty() && value.is_nothing() {
            return;
        }
        let names = definition.labels.iter().map(|name| Cow::Borrowed(*name));
        let sample = Sample { labels: names.zip(labels).collect(), value };
        let known = self.0.entry(Cow::Borrowed(definition.name));
        let (kind, unit) = (definition.kind, definition.unit);
        known.or_insert(MetricSnapshot { kind, unit, samples: Vec::new() }).add(sample);
    }

    /// Adds all of another snapshot: numbers and histograms with the same labels are summed.
    pub fn merge(&mut self, other: Snapshot) {
        for (name, metric) in other.0 {
            let MetricSnapshot { kind, unit, samples } = metric;
            let known = self.0.entry(name).or_insert(MetricSnapshot { kind, unit, samples: Vec::new() });
            samples.into_iter().for_each(|sample| known.add(sample));
        }
    }

    /// Leaves only the samples for which `keeps` holds.
    pub fn retain(&mut self, mut keeps: impl FnMut(&Sample) -> bool) {
        self.0.values_mut().for_each(|metric| metric.samples.retain(&mut keeps));
        self.0.retain(|_, metric| !metric.samples.is_empty());
    }

    /// Makes histograms coarse, so that a snapshot takes little room: see
    /// [`HistogramSnapshot::coarsen`].
    pub fn coarsen(&mut self) {
        for sample in self.0.values_mut().flat_map(|metric| &mut metric.samples) {
            if let Value::Histogram(histogram) = &mut sample.value {
                histogram.coarsen();
            }
        }
    }

    /// The samples of a metric.
    pub fn samples(&self, name: &str) -> &[Sample] {
        self.0.get(name).map(|metric| metric.samples.as_slice()).unwrap_or_default()
    }

    /// Of histograms by the values of their one label: how many values each has, and their sum.
    pub fn sums(&self, metric: &Metric<Histogram>) -> Vec<(String, u64, u64)> {
        let label = metric.definition.labels.first().copied().unwrap_or_default();
        let sum = |sample: &Sample| {
            let histogram = sample.histogram()?;
            Some((sample.label(label).to_owned(), histogram.count(), histogram.sum))
        };
        self.samples(metric.definition.name).iter().filter_map(sum).collect()
    }

    /// The number of a counter or gauge without labels, or the sum over all labels; 0 where there
    /// is none.
    pub fn number<I>(&self, metric: &Metric<I>) -> u64 {
        self.samples(metric.definition.name).iter().map(|sample| sample.number()).fold(0, u64::wrapping_add)
    }
}

impl MetricSnapshot {
    fn add(&mut self, sample: Sample) {
        match self.samples.iter_mut().find(|known| known.labels == sample.labels) {
            Some(known) => known.value.merge(&sample.value),
            None => self.samples.push(sample),
        }
    }
}

impl Sample {
    /// The value of a label; empty where it has none of this name.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map(AsRef::as_ref).unwrap_or_default()
    }

    /// The number; of a histogram how many values it has.
    pub fn number(&self) -> u64 {
        match &self.value {
            Value::Number(number) => *number,
            Value::Histogram(histogram) => histogram.count(),
        }
    }

    /// The histogram, if it is one.
    pub fn histogram(&self) -> Option<&HistogramSnapshot> {
        match &self.value {
            Value::Number(_) => None,
            Value::Histogram(histogram) => Some(histogram),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;
    use crate::table::{self, EXPORT};

    static READ: Metric<Counter> = Metric::new("aqueduct_test_read_bytes_total", Unit::Bytes, &[EXPORT], "");
    static TOOK: Metric<Histogram> = Metric::new("aqueduct_test_seconds", Unit::Seconds, &[], "");

    fn snapshot(export: &str, bytes: u64, took: u64) -> Snapshot {
        let (counter, histogram) = (Counter::default(), Histogram::single());
        counter.add(bytes);
        histogram.record(took);
        let mut snapshot = Snapshot::default();
        snapshot.put(&READ, &[export], &counter);
        snapshot.put(&READ, &["idle"], &Counter::default());
        snapshot.put(&TOOK, &[], &histogram);
        snapshot
    }

    #[test]
    fn json_says_what_was_recorded_and_is_read_again() {
        let snapshot = snapshot("/x", 7, 100);
        let json = serde_json::to_value(&snapshot).unwrap();
        assert_eq!(
            json["aqueduct_test_read_bytes_total"],
            serde_json::json!({ "kind": "counter", "unit": "bytes",
                "samples": [{ "labels": { "export": "/x" }, "value": 7 }] })
        );
        assert_eq!(json["aqueduct_test_seconds"]["unit"], "nanoseconds");
        assert_eq!(json["aqueduct_test_seconds"]["samples"][0]["value"]["sum"], 100);
        assert_eq!(serde_json::from_value::<Snapshot>(json).unwrap(), snapshot);
    }

    #[test]
    fn snapshots_are_summed_by_labels() {
        let mut sum = snapshot("/x", 7, 100);
        sum.merge(snapshot("/x", 3, 200));
        sum.merge(snapshot("/y", 1, 300));
        assert_eq!(sum.number(&READ), 11);
        let read = sum.samples("aqueduct_test_read_bytes_total");
        let found: Vec<_> = read.iter().map(|sample| (sample.label("export"), sample.number())).collect();
        assert_eq!(found, [("/x", 10), ("/y", 1)]);
        let took = sum.samples("aqueduct_test_seconds")[0].histogram().unwrap();
        assert_eq!((took.count(), took.sum), (3, 600));
        assert_eq!(sum.sums(&TOOK), [(String::new(), 3, 600)]);
        sum.coarsen();
        assert_eq!(sum.samples("aqueduct_test_seconds")[0].number(), 3);
        assert_eq!(sum.samples("no_such"), []);
        assert!(!table::all().iter().any(|metric| metric.name == "no_such"));
    }
}
