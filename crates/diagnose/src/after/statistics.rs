//! Ranks, medians, and how sure a correlation is.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Times that a series is drawn anew: of a long one fewer, so that so many values are drawn in all,
/// which takes seconds.
const DRAWS: usize = 2000;
const DRAWS_MIN: usize = 200;
const DRAWN_MAX: usize = 20_000_000;

/// Of a sample that need not be in order; NaN of none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// The median distance from the median, as large as the standard deviation of what is normal.
pub(super) fn deviation(values: &[f64]) -> f64 {
    let middle = median(values);
    1.4826 * median(&values.iter().map(|value| (value - middle).abs()).collect::<Vec<_>>())
}

/// The ranks of values; those that are equal share theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|one, two| values[*one].total_cmp(&values[*two]));
    let mut ranks = vec![0.0; values.len()];
    let mut below = 0;
    for same in order.chunk_by(|one, two| values[*one] == values[*two]) {
        same.iter().for_each(|at| ranks[*at] = below as f64 + (same.len() as f64 - 1.0) / 2.0);
        below += same.len();
    }
    ranks
}

/// Spearman's correlation of ranks; 0 where one of them does not vary.
pub(super) fn correlation(pairs: &[(f64, f64)]) -> f64 {
    let (one, two): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (one, two) = (ranks(&one), ranks(&two));
    let middle = (pairs.len() as f64 - 1.0) / 2.0;
    let sum = |with: &dyn Fn(usize) -> f64| (0..pairs.len()).map(with).sum::<f64>();
    let both = sum(&|at| (one[at] - middle) * (two[at] - middle));
    let each = [&one, &two].map(|ranks| sum(&|at| (ranks[at] - middle).powi(2)));
    let all = (each[0] * each[1]).sqrt();
    if all > 0.0 { both / all } else { 0.0 }
}

/// The interval in which the correlation lies with 95 %, by a bootstrap of blocks: neighbours in
/// time are alike, so that they are drawn together. The same pairs give the same interval.
pub(super) fn interval(pairs: &[(f64, f64)]) -> [f64; 2] {
    let block = (pairs.len() as f64).sqrt().ceil().max(1.0) as usize;
    let mut random = StdRng::seed_from_u64(pairs.len() as u64);
    let draws = (DRAWN_MAX / pairs.len().max(1)).clamp(DRAWS_MIN, DRAWS);
    let mut drawn: Vec<f64> = (0..draws)
        .map(|_| {
            let mut sample = Vec::with_capacity(pairs.len() + block);
            while sample.len() < pairs.len() {
                let from = random.random_range(0..pairs.len());
                sample.extend((0..block).map(|step| pairs[(from + step) % pairs.len()]));
            }
            correlation(&sample[..pairs.len()])
        })
        .collect();
    drawn.sort_by(f64::total_cmp);
    [drawn[draws / 40], drawn[draws - 1 - draws / 40]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_a_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0, 3.0]), [3.0, 0.0, 3.0, 1.0, 3.0]);
        assert_eq!(ranks(&[]), Vec::<f64>::new());
    }

    #[test]
    fn a_long_series_has_an_interval_too() {
        let pairs: Vec<(f64, f64)> = (0..100_000).map(|at| (f64::from(at), f64::from(-at + at % 7 * 3000))).collect();
        let [low, high] = interval(&pairs);
        assert!(low < high && high < -0.9, "{low} {high}");
    }
}
