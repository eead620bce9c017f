//! Ranks, medians, and how sure a correlation is.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Times that a series is drawn anew.
const DRAWS: usize = 2000;

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
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let same = values.iter().filter(|other| *other == value).count();
        below as f64 + (same as f64 - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
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
    let mut drawn: Vec<f64> = (0..DRAWS)
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
    [drawn[DRAWS / 40], drawn[DRAWS - 1 - DRAWS / 40]]
}
