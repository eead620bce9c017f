//! Which requests of a server are slow, and where requests are written down: as a person wrote it,
//! and what it comes to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_metrics::trace::Record;
use aqueduct_observe::{OtlpConfig, RequestLog, RequestLogConfig};
use aqueduct_server::TraceConfig;
use serde::Deserialize;

use crate::failure::Failure;
use crate::options::{TRACE_THRESHOLD, milliseconds, size};
use crate::spans;

/// A file of the request log, and how many there are, unless said otherwise: half a million
/// requests or so.
const FILE_SIZE_MAX: u64 = 64 << 20;
const FILES_MAX: usize = 4;

/// Less than this holds too few requests to be of use.
const FILE_SIZE_MIN: usize = 64 << 10;

/// Which requests are slow, and the log of requests, as a person wrote it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlowSettings {
    /// Requests are slow that take so many milliseconds or longer, or `off`.
    pub over_ms: Option<String>,
    /// The request log; `None`: there is none.
    pub log: Option<PathBuf>,
    /// Of requests that are not slow this share is in it as well, 0 to 1.
    pub sample: Option<f64>,
    /// A file of it has so many bytes at most, as `64M`.
    pub file_size: Option<String>,
    /// Files of it at most.
    pub files: Option<usize>,
    /// A collector of OpenTelemetry to which slow requests are sent, `http://HOST:4318`.
    pub otlp: Option<String>,
}

/// The same, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowConfig {
    /// Requests are slow that take so long or longer; `None`: nobody looks.
    pub threshold: Option<Duration>,
    /// The request log; `None`: there is none.
    pub log: Option<RequestLogConfig>,
    /// The collector to which they are sent; `None`: there is none.
    pub otlp: Option<OtlpConfig>,
}

impl Default for SlowConfig {
    fn default() -> SlowConfig {
        SlowConfig { threshold: Some(TRACE_THRESHOLD), log: None, otlp: None }
    }
}

impl SlowSettings {
    /// What they come to.
    pub fn resolve(&self) -> Result<SlowConfig, Failure> {
        let threshold = match self.over_ms.as_deref() {
            None => Some(TRACE_THRESHOLD),
            Some("off") => None,
            Some(text) => Some(milliseconds("over_ms", text)?),
        };
        let over_us = threshold.map_or(u64::MAX, |threshold| threshold.as_micros() as u64);
        let otlp = self.otlp.as_deref().map(|text| spans::collector(text, spans::SERVER, over_us)).transpose()?;
        let wrong = |why: String| {
            Failure::usage("cannot keep a request log", why, "see 'aqueduct serve --help' for an example of [slow]")
        };
        let sample = self.sample.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&sample) {
            return Err(wrong(format!("sample is {sample}, and no share from 0 to 1")));
        }
        let Some(path) = self.log.clone() else {
            let others = self.sample.is_some() || self.file_size.is_some() || self.files.is_some();
            return if others {
                Err(wrong("it has no file: say log".into()))
            } else {
                Ok(SlowConfig { threshold, log: None, otlp })
            };
        };
        let file_size_max = match self.file_size.as_deref() {
            None => FILE_SIZE_MAX,
            Some(text) => {
                let bytes = size(text).filter(|bytes| *bytes >= FILE_SIZE_MIN);
                bytes.ok_or_else(|| wrong(format!("file_size is '{text}', and no size from 64K on")))? as u64
            }
        };
        let files_max = self.files.unwrap_or(FILES_MAX);
        if !(1..=1000).contains(&files_max) {
            return Err(wrong(format!("files is {files_max}, and not 1 to 1000")));
        }
        // Without a threshold only those that are drawn are written down.
        Ok(SlowConfig {
            threshold,
            otlp,
            log: Some(RequestLogConfig { path, over_us, sample, file_size_max, files_max }),
        })
    }
}

impl SlowConfig {
    /// Opens the log.
    pub(crate) fn start(&self) -> Result<TraceConfig, Failure> {
        let mut records: Vec<Arc<dyn Record>> = Vec::new();
        if let Some(log) = &self.log {
            let opened = RequestLog::start(log).map_err(|error| {
                let what = format!("cannot write the request log {}", log.path.display());
                Failure::new(
                    what,
                    error,
                    "name a regular file, or one to be made, in a folder that the server's user may write to",
                )
            })?;
            records.push(Arc::new(opened));
        }
        records.extend(self.otlp.clone().map(spans::sends).transpose()?);
        Ok(TraceConfig { threshold: self.threshold, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_meant() {
        let read = |text: &str| toml::from_str::<SlowSettings>(text).unwrap().resolve();
        assert_eq!(read("").unwrap(), SlowConfig::default());
        let all = read("over_ms = '2.5'\nlog = '/l'\nsample = 0.01\nfile_size = '1M'\nfiles = 2").unwrap();
        let log =
            RequestLogConfig { path: "/l".into(), over_us: 2500, sample: 0.01, file_size_max: 1 << 20, files_max: 2 };
        assert_eq!(all, SlowConfig { threshold: Some(Duration::from_micros(2500)), log: Some(log), otlp: None });
        let sent = read("over_ms = '1'\notlp = 'http://[::1]'").unwrap().otlp.unwrap();
        assert_eq!((sent.endpoint.to_string(), sent.over_us), ("http://[::1]:4318/v1/traces".into(), 1000));
        let drawn = read("over_ms = 'off'\nlog = '/l'\nsample = 1").unwrap();
        assert_eq!((drawn.threshold, drawn.log.unwrap().over_us), (None, u64::MAX));
        for wrong in [
            "over_ms = '-1'",
            "sample = 0.5",
            "log = '/l'\nsample = 2",
            "log = '/l'\nfile_size = '1K'",
            "log = '/l'\nfiles = 0",
            "files = 3",
            "otlp = 'collector:4318'",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
