use proptest::prelude::*;

use super::*;

/// Values of all magnitudes.
fn values() -> impl Strategy<Value = Vec<u64>> {
    let value = (0..VALUE_BITS, any::<u64>()).prop_map(|(bits, random)| (1 << bits) - 1 + random % (1 << bits));
    prop::collection::vec(value, 1..300)
}

fn recorded(values: &[u64]) -> HistogramSnapshot {
    let histogram = Histogram::sharded();
    values.iter().for_each(|value| histogram.record(*value));
    histogram.snapshot()
}

#[test]
fn buckets_cover_all_values_without_gaps() {
    let mut next = 0;
    for index in 0..BUCKETS {
        let (first, width) = range(index);
        assert_eq!(first, next, "bucket {index}");
        assert_eq!([bucket(first), bucket(first + width - 1)], [index, index]);
        assert!(width == 1 || width * 8 <= first, "bucket {index} is {width} wide from {first}");
        next = first + width;
    }
    assert_eq!(next, VALUE_MAX);
    assert_eq!(bucket(u64::MAX), BUCKETS - 1);
}

#[test]
fn what_is_none_has_no_quantile() {
    let none = Histogram::single().snapshot();
    assert_eq!((none.count(), none.quantile(0.5), none.mean()), (0, None, 0.0));
    let mut unsound = HistogramSnapshot { sum: 0, buckets: vec![(u16::MAX, u64::MAX), (7, 1)] };
    assert!(unsound.quantile(1.0).is_some(), "numbers from a peer do no harm");
    assert_eq!(unsound.ranges().count(), 2);
    unsound.merge(&unsound.clone());
    unsound.coarsen();
    assert_eq!(unsound.count(), u64::MAX);
}

#[test]
fn durations_are_nanoseconds() {
    let histogram = Histogram::single();
    histogram.record_duration(Duration::from_micros(3));
    histogram.record_duration(Duration::MAX);
    let snapshot = histogram.snapshot();
    assert_eq!(snapshot.count(), 2);
    assert!(snapshot.buckets[0].0 == bucket(3000) as u16, "{snapshot:?}");
}

#[test]
fn threads_record_together() {
    let histogram = Histogram::sharded();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let histogram = &histogram;
            scope.spawn(move || (0..1000).for_each(|value| histogram.record(value * 4 + thread)));
        }
    });
    assert_eq!(histogram.snapshot(), recorded(&Vec::from_iter(0..4000)));
}

proptest! {
    #[test]
    fn quantiles_are_within_the_stated_error(mut values in values(), quantile in 0.0..=1.0f64) {
        let found = recorded(&values).quantile(quantile).unwrap();
        values.sort_unstable();
        let rank = ((values.len() as f64 * quantile).ceil() as usize).clamp(1, values.len());
        let exact = values[rank - 1] as f64;
        prop_assert!((found - exact).abs() <= exact * QUANTILE_ERROR_MAX, "{found} for {exact}");
    }

    #[test]
    fn merging_is_recording_both(one in values(), other in values()) {
        let mut merged = recorded(&one);
        merged.merge(&recorded(&other));
        let both = recorded(&[one.clone(), other.clone()].concat());
        prop_assert_eq!(&merged, &both);
        merged.subtract(&recorded(&other));
        prop_assert_eq!(merged, recorded(&one));
    }

    #[test]
    fn what_is_coarse_is_off_by_no_more_than_stated(values in values(), quantile in 0.0..=1.0f64) {
        let fine = recorded(&values);
        let mut coarse = fine.clone();
        coarse.coarsen();
        prop_assert_eq!((coarse.count(), coarse.sum), (fine.count(), fine.sum));
        prop_assert!(coarse.buckets.len() <= BUCKETS / 8);
        let exact = fine.quantile(quantile).unwrap();
        let found = coarse.quantile(quantile).unwrap();
        prop_assert!((found - exact).abs() <= exact.max(8.0) * 0.6, "{} for {}", found, exact);
    }

    #[test]
    fn a_snapshot_survives_json(values in values()) {
        let snapshot = recorded(&values);
        let text = serde_json::to_string(&snapshot).unwrap();
        prop_assert_eq!(serde_json::from_str::<HistogramSnapshot>(&text).unwrap(), snapshot);
    }
}
