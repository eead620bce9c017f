//! Samples as one flat table in a Parquet file, for pandas, DuckDB and Polars.
//!
//! Each sample is a row. Columns are those of [`Sample`](crate::record::Sample), one for each parameter, by its name, and one for each figure in `more`, as `more_NAME`. A
//! name that a column has already becomes `parameter_NAME`. A column holds whole numbers, numbers, truth values or text, whichever all its values are.

use std::path::Path;

use crate::Failure;
use crate::record::Line;

/// Whether this program can write Parquet.
pub fn check() -> Result<(), Failure> {
    if cfg!(feature = "reports") {
        return Ok(());
    }
    let hint = "build it with --features reports, or read samples.jsonl, which pandas, DuckDB and Polars do as well";
    Err(Failure::usage("cannot write Parquet", "this program was built without it", hint))
}

/// Writes all samples.
#[cfg(feature = "reports")]
pub fn write(path: &Path, lines: &[Line]) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(format!("cannot write {}", path.display()), error, "name a file in a directory with room")
    };
    let columns = columns::of(lines);
    let file = std::fs::File::create(path).map_err(|error| failed(&error))?;
    columns::write(&columns, file).map_err(|error| failed(&error))
}

/// Writes all samples.
#[cfg(not(feature = "reports"))]
pub fn write(_path: &Path, _lines: &[Line]) -> Result<(), Failure> {
    check()
}

#[cfg(feature = "reports")]
mod columns {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs::File;
    use std::io;

    use aqueduct_observe::parquet::{Table, Values};
    use serde_json::Value;

    use crate::record::{Line, Sample};

    /// All columns, by name and in order.
    pub fn of(lines: &[Line]) -> Vec<(String, Values)> {
        let mut name = String::new();
        let mut rows: Vec<(String, &Sample)> = Vec::new();
        for line in lines {
            match line {
                Line::Environment(environment) => name.clone_from(&environment.name),
                Line::Sample(sample) => rows.push((name.clone(), sample)),
            }
        }
        let text = |of: &dyn Fn(&Sample) -> &str| {
            Values::Text(rows.iter().map(|(_, sample)| Some(of(sample).to_owned())).collect())
        };
        let number = |of: &dyn Fn(&Sample) -> f64| Values::Number(rows.iter().map(|(_, s)| Some(of(s))).collect());
        let whole = |of: &dyn Fn(&Sample) -> u32| {
            Values::Whole(rows.iter().map(|(_, sample)| Some(i64::from(of(sample)))).collect())
        };
        let time = |text: &str| text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_microsecond);
        let series = |sample: &Sample| {
            (!sample.series.is_empty()).then(|| serde_json::to_string(&sample.series).unwrap_or_default())
        };
        let mut columns = vec![
            ("run".to_owned(), text(&|sample| &sample.run)),
            ("name".to_owned(), Values::Text(rows.iter().map(|(name, _)| Some(name.clone())).collect())),
            ("time".to_owned(), Values::Time(rows.iter().map(|(_, sample)| time(&sample.time)).collect())),
            ("system".to_owned(), text(&|sample| &sample.system)),
            ("op".to_owned(), text(&|sample| &sample.op)),
            ("repeat".to_owned(), whole(&|sample| sample.repeat)),
            ("order".to_owned(), whole(&|sample| sample.order)),
            ("warmup".to_owned(), Values::Truth(rows.iter().map(|(_, sample)| Some(sample.warmup)).collect())),
            ("value".to_owned(), number(&|sample| sample.value)),
            ("unit".to_owned(), text(&|sample| &sample.unit)),
            ("seconds".to_owned(), number(&|sample| sample.seconds)),
        ];
        let samples: Vec<&Sample> = rows.iter().map(|(_, sample)| *sample).collect();
        let series = Values::Text(samples.iter().map(|sample| series(sample)).collect());
        add(&mut columns, "parameter_", false, samples.iter().map(|sample| &sample.parameters).collect());
        add(&mut columns, "more_", true, samples.iter().map(|sample| &sample.more).collect());
        columns.push((free(&columns, "series", ""), series));
        columns
    }

    fn add(columns: &mut Vec<(String, Values)>, prefix: &str, always: bool, rows: Vec<&BTreeMap<String, Value>>) {
        let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.keys()).collect();
        for name in names {
            let values = typed(rows.iter().map(|row| row.get(name)).collect());
            let column = free(columns, &if always { format!("{prefix}{name}") } else { name.clone() }, prefix);
            columns.push((column, values));
        }
    }

    /// The name, or one like it that no column has; databases do not tell capitals from others.
    fn free(columns: &[(String, Values)], name: &str, prefix: &str) -> String {
        let is_free =
            |name: &str| name != "series" && !columns.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        let mut free = name.to_owned();
        if prefix.is_empty() {
            return free;
        }
        while !is_free(&free) {
            free = format!("{prefix}{free}");
        }
        free
    }

    fn typed(values: Vec<Option<&Value>>) -> Values {
        let all = |is: fn(&Value) -> bool| values.iter().flatten().all(|value| value.is_null() || is(value));
        if all(Value::is_i64) {
            Values::Whole(values.iter().map(|value| value.and_then(Value::as_i64)).collect())
        } else if all(Value::is_number) {
            Values::Number(values.iter().map(|value| value.and_then(Value::as_f64)).collect())
        } else if all(Value::is_boolean) {
            Values::Truth(values.iter().map(|value| value.and_then(Value::as_bool)).collect())
        } else {
            let text = |value: &Value| match value {
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                other => Some(other.to_string()),
            };
            Values::Text(values.iter().map(|value| value.and_then(text)).collect())
        }
    }

    /// One row group: a sweep has thousands of samples, not millions.
    pub fn write(columns: &[(String, Values)], file: File) -> io::Result<()> {
        let mut table = Table::new(file, "samples", columns)?;
        table.add(columns)?;
        table.finish()
    }

    #[cfg(test)]
    mod tests {
        use serde_json::json;

        use super::*;
        use crate::record::Environment;

        fn lines() -> Vec<Line> {
            let sample = |parameters: Value, more: Value, series: &[u64]| {
                Line::Sample(Sample {
                    run: "r".to_owned(),
                    time: "2026-01-02T03:04:05.678Z".to_owned(),
                    parameters: serde_json::from_value(parameters).unwrap(),
                    more: serde_json::from_value(more).unwrap(),
                    series: series.to_vec(),
                    value: 1.5,
                    ..Sample::default()
                })
            };
            vec![
                Line::Environment(Environment { name: "sweep".to_owned(), ..Environment::default() }),
                sample(
                    json!({"transfer": 4096, "api": "posix", "op": 1}),
                    json!({"steal_percent": 0, "x": [1]}),
                    &[1, 2],
                ),
                sample(json!({"transfer": 8192, "api": "uring"}), json!({"steal_percent": 0.5}), &[]),
            ]
        }

        #[test]
        fn columns_have_the_type_of_all_their_values() {
            let columns: BTreeMap<String, Values> = of(&lines()).into_iter().collect();
            assert_eq!(columns["transfer"], Values::Whole(vec![Some(4096), Some(8192)]));
            assert_eq!(columns["more_steal_percent"], Values::Number(vec![Some(0.0), Some(0.5)]));
            assert_eq!(columns["more_x"], Values::Text(vec![Some("[1]".to_owned()), None]));
            assert_eq!(columns["parameter_op"], Values::Whole(vec![Some(1), None]), "op is a column already");
            assert_eq!(columns["time"], Values::Time(vec![Some(1_767_323_045_678_000); 2]));
            assert_eq!(columns["series"], Values::Text(vec![Some("[1,2]".to_owned()), None]));
            assert_eq!(columns["name"], Values::Text(vec![Some("sweep".to_owned()); 2]));
        }

        #[test]
        fn a_file_is_written_whole() {
            // That such a file is read again is tested where it is written.
            let file = tempfile::NamedTempFile::new().unwrap();
            for lines in [lines(), Vec::new()] {
                super::super::write(file.path(), &lines).unwrap();
                let bytes = std::fs::read(file.path()).unwrap();
                assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"), "{} bytes", bytes.len());
            }
        }
    }
}
