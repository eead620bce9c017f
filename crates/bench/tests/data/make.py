#!/usr/bin/env python3
"""Writes stats.json: recorded and made-up samples, with what numpy and scipy say of them. Needs numpy and scipy >= 1.10.

    python3 make.py > stats.json
"""

import json
import warnings

import numpy as np
from scipy import stats

warnings.simplefilter("ignore")
rng = np.random.default_rng(8)

SAMPLES = {
    # Ten repetitions each of 16 writes and reads through a mount and natively, MiB/s.
    "write": [1421.3, 1398.7, 1440.2, 1433.9, 1102.4, 1429.5, 1436.1, 1418.8, 1441.7, 1427.0],
    "read": [3120.4, 3098.2, 3133.7, 3125.0, 3101.9, 3119.2, 3128.8, 3111.6, 3094.3, 3122.5],
    "native": [3190.1, 3201.7, 3188.4, 3195.3, 3210.0, 3179.9, 3199.2, 3204.4, 3192.8, 3186.6],
    "latency": [14.2, 14.1, 14.3, 14.2, 15.9, 14.2, 14.4],
    "two": [100.0, 104.0],
    "five": [10.0, 10.5, 9.5, 10.25, 9.75],
    "six": [10.0, 10.5, 9.5, 10.25, 9.75, 11.0],
    "equal": [42.0] * 8,
    "tiny": [1e-9, 2e-9, 3e-9, 2.5e-9, 1.5e-9, 2.25e-9],
    "normal": list(np.round(rng.normal(1000, 25, 101), 4)),
    "skewed": list(np.round(1000 - rng.exponential(60, 64), 4)),
    "many": list(np.round(rng.lognormal(5, 0.3, 1500), 4)),
}

PAIRS = [("read", "native"), ("write", "read"), ("skewed", "normal"), ("latency", "six")]


def number(value):
    return None if value is None or not np.isfinite(value) else float(value)


def summary(values):
    x = np.asarray(values)
    n = len(x)
    q1, median, q3 = np.quantile(x, [0.25, 0.5, 0.75])
    stdev = np.std(x, ddof=1)
    mean = stats.t.interval(0.95, n - 1, loc=np.mean(x), scale=stats.sem(x)) if stdev > 0 else (x[0], x[0])
    middle = stats.quantile_test(x, q=0, p=0.5).confidence_interval(0.95)
    reach = 1.5 * stats.iqr(x)
    far = np.flatnonzero((x < q1 - reach) | (x > q3 + reach)) if n >= 4 else []
    return {
        "mean": number(np.mean(x)),
        "max": number(np.max(x)),
        "min": number(np.min(x)),
        "stdev": number(stdev),
        "median": number(median),
        "q1": number(q1),
        "q3": number(q3),
        "cv": number(stats.variation(x, ddof=1)),
        "mean_interval": [number(end) for end in mean],
        "median_interval": [number(middle.low), number(middle.high)],
        "outliers": [int(index) for index in far],
    }


def ratio(new, base):
    statistic = lambda a, b, axis: np.median(a, axis=axis) / np.median(b, axis=axis)
    found = stats.bootstrap(
        (SAMPLES[new], SAMPLES[base]), statistic, n_resamples=200_000, method="percentile", batch=2000, rng=rng
    ).confidence_interval
    return {
        "new": new,
        "base": base,
        "ratio": float(np.median(SAMPLES[new]) / np.median(SAMPLES[base])),
        "low": float(found.low),
        "high": float(found.high),
    }


print(json.dumps({
    "samples": [{"name": name, "values": values, "expected": summary(values)} for name, values in SAMPLES.items()],
    "ratios": [ratio(new, base) for new, base in PAIRS],
}, indent=1))
