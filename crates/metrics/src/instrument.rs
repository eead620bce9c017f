//! What every instrument can do: say what it has recorded, and take over another's.

use serde::{Deserialize, Serialize};

use crate::{Counter, Gauge, Histogram, HistogramSnapshot};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Rises and falls.
    Gauge,
    /// A distribution.
    Histogram,
}

/// What can take over what another has counted.
pub trait Absorb {
    /// Adds what another has recorded, which is not recorded into any more.
    fn absorb(&self, other: &Self);
}

/// What records, and can be read.
pub trait Instrument: Absorb {
    /// What a metric of this instrument is.
    const KIND: Kind;

    /// What it says now.
    fn read(&self) -> Value;
}

/// What an instrument says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A counter or a gauge.
    Number(u64),
    /// A histogram.
    Histogram(HistogramSnapshot),
}

impl Value {
    pub(crate) fn is_nothing(&self) -> bool {
        match self {
            Value::Number(number) => *number == 0,
            Value::Histogram(histogram) => histogram.buckets.is_empty(),
        }
    }

    /// The sum of both. Of a number and a histogram, which only a broken peer can mix, the first.
    pub(crate) fn merge(&mut self, other: &Value) {
        match (self, other) {
            (Value::Number(number), Value::Number(other)) => *number = number.wrapping_add(*other),
            (Value::Histogram(histogram), Value::Histogram(other)) => histogram.merge(other),
            _ => {}
        }
    }
}

impl Instrument for Counter {
    const KIND: Kind = Kind::Counter;
    fn read(&self) -> Value {
        Value::Number(self.get())
    }
}

impl Absorb for Counter {
    fn absorb(&self, other: &Counter) {
        self.add(other.get());
    }
}

impl Instrument for Gauge {
    const KIND: Kind = Kind::Gauge;
    fn read(&self) -> Value {
        Value::Number(self.get())
    }
}

impl Absorb for Gauge {
    fn absorb(&self, other: &Gauge) {
        self.add(other.get());
    }
}

impl Instrument for Histogram {
    const KIND: Kind = Kind::Histogram;
    fn read(&self) -> Value {
        Value::Histogram(self.snapshot())
    }
}

impl Absorb for Histogram {
    fn absorb(&self, other: &Histogram) {
        self.add(&other.snapshot());
    }
}
