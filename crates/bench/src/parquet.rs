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
    use std::sync::Arc;

    use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
    use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
    use parquet::errors::{ParquetError, Result};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::schema::types::{Type, TypePtr};
    use serde_json::Value;

    use crate::record::{Line, Sample};

    /// A column; rows that have no value are `None`.
    #[derive(Debug, PartialEq)]
    pub enum Values {
        Whole(Vec<Option<i64>>),
        Number(Vec<Option<f64>>),
        Truth(Vec<Option<bool>>),
        Text(Vec<Option<String>>),
        /// Microseconds since 1970, UTC.
        Time(Vec<Option<i64>>),
    }

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
    pub fn write(columns: &[(String, Values)], file: File) -> Result<()> {
        let fields: Result<Vec<TypePtr>> = columns.iter().map(|(name, values)| field(name, values)).collect();
        let schema = Arc::new(Type::group_type_builder("samples").with_fields(fields?).build()?);
        let properties = Arc::new(WriterProperties::builder().set_compression(Compression::SNAPPY).build());
        let mut writer = SerializedFileWriter::new(file, schema, properties)?;
        let mut group = writer.next_row_group()?;
        for (_, values) in columns {
            match values {
                Values::Whole(values) | Values::Time(values) => column::<Int64Type>(&mut group, values)?,
                Values::Number(values) => column::<DoubleType>(&mut group, values)?,
                Values::Truth(values) => column::<BoolType>(&mut group, values)?,
                Values::Text(values) => {
                    let bytes = |text: &Option<String>| text.as_ref().map(|text| ByteArray::from(text.as_str()));
                    column::<ByteArrayType>(&mut group, &values.iter().map(bytes).collect::<Vec<_>>())?;
                }
            }
        }
        group.close()?;
        let file = writer.into_inner()?;
        file.sync_all().map_err(|error| ParquetError::External(Box::new(error)))
    }

    fn field(name: &str, values: &Values) -> Result<TypePtr> {
        let (physical, logical) = match values {
            Values::Whole(_) => (Physical::INT64, None),
            Values::Number(_) => (Physical::DOUBLE, None),
            Values::Truth(_) => (Physical::BOOLEAN, None),
            Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Values::Time(_) => {
                let micros = LogicalType::timestamp(true, TimeUnit::MICROS);
                (Physical::INT64, Some(micros))
            }
        };
        let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        Ok(Arc::new(builder.with_logical_type(logical).build()?))
    }

    fn column<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, values: &[Option<T::T>]) -> Result<()> {
        let present: Vec<T::T> = values.iter().flatten().cloned().collect();
        let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
        let mut column = group.next_column()?.ok_or_else(|| ParquetError::General("a column is missing".to_owned()))?;
        column.typed::<T>().write_batch(&present, Some(&levels), None)?;
        column.close()
    }

    #[cfg(test)]
    mod tests {
        use parquet::file::reader::{FileReader, SerializedFileReader};
        use parquet::record::RowAccessor;
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
        fn a_file_is_read_again() {
            let file = tempfile::NamedTempFile::new().unwrap();
            super::super::write(file.path(), &lines()).unwrap();
            let reader = SerializedFileReader::new(file.reopen().unwrap()).unwrap();
            assert_eq!(reader.metadata().file_metadata().num_rows(), 2);
            let row = reader.get_row_iter(None).unwrap().next().unwrap().unwrap();
            assert_eq!(row.get_string(0).unwrap(), "r");
            assert_eq!(row.get_double(8).unwrap(), 1.5);
            let empty = tempfile::NamedTempFile::new().unwrap();
            super::super::write(empty.path(), &[]).unwrap();
        }
    }
}
