//! Flat tables in Parquet files, for pandas, DuckDB and Polars.

use std::fs::File;
use std::io;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

/// A column; rows that have no value are `None`.
#[derive(Debug, PartialEq)]
pub enum Values {
    /// Whole numbers.
    Whole(Vec<Option<i64>>),
    /// Numbers.
    Number(Vec<Option<f64>>),
    /// Truth values.
    Truth(Vec<Option<bool>>),
    /// Text.
    Text(Vec<Option<String>>),
    /// Microseconds since 1970, UTC.
    Time(Vec<Option<i64>>),
}

/// A table that is written group of rows by group of rows.
pub struct Table {
    writer: SerializedFileWriter<File>,
}

impl Table {
    /// Begins one; `columns` say names and types, not rows.
    pub fn new(file: File, name: &str, columns: &[(String, Values)]) -> io::Result<Table> {
        let fields: Result<Vec<TypePtr>> = columns.iter().map(|(name, values)| field(name, values)).collect();
        let begun = fields.and_then(|fields| {
            let schema = Arc::new(Type::group_type_builder(name).with_fields(fields).build()?);
            let properties = Arc::new(WriterProperties::builder().set_compression(Compression::SNAPPY).build());
            SerializedFileWriter::new(file, schema, properties)
        });
        begun.map(|writer| Table { writer }).map_err(io::Error::other)
    }

    /// Adds rows: one group, of the same columns.
    pub fn add(&mut self, columns: &[(String, Values)]) -> io::Result<()> {
        self.group(columns).map_err(io::Error::other)
    }

    /// Writes bytes that are no part of the table, and that programs pass over which read it.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)
    }

    /// Ends the file: without this nobody can read it.
    pub fn finish(self) -> io::Result<()> {
        self.writer.into_inner().map_err(io::Error::other)?.sync_all()
    }

    fn group(&mut self, columns: &[(String, Values)]) -> Result<()> {
        let mut group = self.writer.next_row_group()?;
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
        Ok(())
    }
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

    use super::*;

    #[test]
    fn a_file_is_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let columns = |text: &[&str]| {
            let words = text.iter().map(|text| Some((*text).to_owned())).collect();
            let numbers = text.iter().map(|text| (!text.is_empty()).then_some(1.5)).collect();
            vec![("word".to_owned(), Values::Text(words)), ("number".to_owned(), Values::Number(numbers))]
        };
        let mut table = Table::new(file.reopen().unwrap(), "t", &columns(&[])).unwrap();
        table.raw(b"something else").unwrap();
        table.add(&columns(&["a", "b"])).unwrap();
        table.add(&columns(&[""])).unwrap();
        table.finish().unwrap();
        let reader = SerializedFileReader::new(file.reopen().unwrap()).unwrap();
        assert_eq!((reader.metadata().file_metadata().num_rows(), reader.num_row_groups()), (3, 2));
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!((rows[1].get_string(0).unwrap().as_str(), rows[1].get_double(1).unwrap()), ("b", 1.5));
        assert!(rows[2].get_double(1).is_err(), "it has no value");
    }
}
