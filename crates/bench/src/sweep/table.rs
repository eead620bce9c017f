//! The table of a sweep: what IOR and eeyore show, and how sure it is.

use super::expect::short;
use super::groups::{self, Group};
use crate::stats::{Interval, Summary};

/// The columns behind those of the parameters.
const COLUMNS: [&str; 15] = [
    "Op",
    "Unit",
    "Mean",
    "Max",
    "Min",
    "Stdev",
    "n",
    "Median",
    "Q1",
    "Q3",
    "CV%",
    "Mean95%",
    "Median95%",
    "Outliers",
    "Steal%",
];

/// One table of all groups; `stolen` says how much of the processors' time others took while a group was measured.
pub fn table(groups: &[Group], stolen: impl Fn(&Group) -> Option<f64>) -> String {
    let mut names: Vec<&String> = groups.iter().flat_map(|group| group.parameters.keys()).collect();
    names.sort();
    names.dedup();
    let head = ["System".to_owned()].into_iter().chain(names.iter().map(|name| (*name).clone()));
    let mut rows = vec![head.chain(COLUMNS.map(str::to_owned)).collect::<Vec<_>>()];
    for group in groups {
        let Some(summary) = group.summary() else { continue };
        let parameters = names.iter().map(|name| group.parameters.get(*name).map_or("-".to_owned(), groups::text));
        let row = [group.system.clone()].into_iter().chain(parameters).chain(figures(group, &summary, stolen(group)));
        rows.push(row.collect());
    }
    render(&rows, 1 + names.len() + 2)
}

fn figures(group: &Group, summary: &Summary, stolen: Option<f64>) -> [String; 15] {
    let some = |value: Option<f64>| value.map_or("-".to_owned(), short);
    let interval = |interval: Option<Interval>| {
        interval.map_or("-".to_owned(), |interval| format!("{}..{}", short(interval.low), short(interval.high)))
    };
    let outliers: Vec<String> = summary.outliers.iter().map(|&index| short(group.values[index])).collect();
    [
        group.op.clone(),
        group.unit.clone(),
        short(summary.mean),
        short(summary.max),
        short(summary.min),
        some(summary.stdev),
        summary.n.to_string(),
        short(summary.median),
        short(summary.q1),
        short(summary.q3),
        summary.cv.map_or("-".to_owned(), |cv| format!("{:.1}", 100.0 * cv)),
        interval(summary.mean_interval),
        interval(summary.median_interval),
        if outliers.is_empty() { "-".to_owned() } else { outliers.join(",") },
        stolen.map_or("-".to_owned(), |stolen| format!("{stolen:.1}")),
    ]
}

/// Columns as wide as need be: the first ones to the left, figures to the right.
fn render(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_can_be_pasted() {
        let group = |op: &str, values: &[f64]| Group {
            system: "native".to_owned(),
            op: op.to_owned(),
            parameters: [("transfer".to_owned(), 65536.into())].into(),
            unit: "MiB/s".to_owned(),
            values: values.to_vec(),
        };
        let groups = [group("write", &[100.0, 101.0, 99.0, 100.0, 100.5, 50.0]), group("read", &[2000.0])];
        let text = table(&groups, |group| (group.op == "write").then_some(1.25));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..7], ["System", "transfer", "Op", "Unit", "Mean", "Max", "Min"]);
        assert_eq!(lines[1][..7], ["native", "64k", "write", "MiB/s", "91.75", "101.0", "50.00"]);
        assert_eq!(lines[1][14..], ["50.00..101.0", "50.00", "1.2"]);
        assert_eq!(
            lines[2][2..],
            ["read", "MiB/s", "2000", "2000", "2000", "-", "1", "2000", "2000", "2000", "-", "-", "-", "-", "-"]
        );
    }
}
