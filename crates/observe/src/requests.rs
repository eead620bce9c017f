//! The request log: a line of JSON for each request that took long, or that was drawn, in files of
//! a bounded size. Whoever answers requests waits for nothing here: what the writer cannot take is
//! dropped, counted, and said in the log itself.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use aqueduct_metrics::trace::{Record, SlowOperation};

/// Requests that wait for the writer at most, about 500 bytes each.
const QUEUE_MAX: usize = 4096;

/// Lines are written together, up to so many bytes.
const BATCH_MAX: usize = 64 << 10;

/// What is logged, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLogConfig {
    /// The file; older ones have `.1`, `.2` and so on behind.
    pub path: PathBuf,
    /// Requests that took so many microseconds or longer.
    pub over_us: u64,
    /// Of the others this share, drawn evenly: 0 to 1.
    pub sample: f64,
    /// A file has about so many bytes at most.
    pub file_size_max: u64,
    /// Files in all, 1 or more.
    pub files_max: usize,
}

/// Writes requests down until it is dropped.
pub struct RequestLog {
    over_us: u64,
    /// Of 2^64.
    sample: u64,
    drawn: AtomicU64,
    dropped: Arc<AtomicU64>,
    queue: Option<SyncSender<Arc<SlowOperation>>>,
    writer: Option<JoinHandle<()>>,
}

impl RequestLog {
    /// Opens the file, and starts the thread that writes.
    pub fn start(config: &RequestLogConfig) -> io::Result<RequestLog> {
        let (queue, requests) = sync_channel(QUEUE_MAX);
        let dropped = Arc::<AtomicU64>::default();
        let files = Files::open(config)?;
        let of_writer = dropped.clone();
        let write = move || files.write_all(&requests, &of_writer);
        let writer = thread::Builder::new().name("request-log".into()).spawn(write)?;
        Ok(RequestLog {
            over_us: config.over_us,
            sample: (config.sample.clamp(0.0, 1.0) * u64::MAX as f64) as u64,
            drawn: AtomicU64::new(0),
            dropped,
            queue: Some(queue),
            writer: Some(writer),
        })
    }
}

/// Well mixed bits of a counter (splitmix64, Steele, Lea, Flood 2014).
fn mixed(count: u64) -> u64 {
    let mut bits = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

impl Record for RequestLog {
    fn wants(&self, took_us: u64) -> bool {
        took_us >= self.over_us
            || self.sample > 0 && mixed(self.drawn.fetch_add(1, Ordering::Relaxed).wrapping_add(1)) <= self.sample
    }

    fn record(&self, operation: &Arc<SlowOperation>) {
        let Some(queue) = &self.queue else { return };
        match queue.try_send(operation.clone()) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                _ = self.dropped.fetch_add(1, Ordering::Relaxed)
            }
        }
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        self.queue = None; // the writer ends with the last of them
        if let Some(writer) = self.writer.take() {
            let _ = writer.join(); // it has told what went wrong
        }
    }
}

/// The file that is written, and those before it.
struct Files {
    path: PathBuf,
    size_max: u64,
    count_max: usize,
    file: File,
    size: u64,
    /// Writing has failed, and that was said.
    is_broken: bool,
}

/// Opens a log. It has to be a regular file and no link to one, since root renames and truncates
/// it. Nobody but its owner may read it, also where the file was there before.
fn open(path: &Path) -> io::Result<File> {
    // A FIFO without a reader would be waited for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let wrong = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => wrong("it is a symbolic link"),
        _ => error,
    })?;
    if !file.metadata()?.is_file() {
        return Err(wrong("it is no regular file"));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

impl Files {
    fn open(config: &RequestLogConfig) -> io::Result<Files> {
        let file = open(&config.path)?;
        let size = file.metadata()?.len();
        Ok(Files {
            path: config.path.clone(),
            size_max: config.file_size_max,
            count_max: config.files_max.max(1),
            file,
            size,
            is_broken: false,
        })
    }

    /// Until nobody sends any more.
    fn write_all(mut self, requests: &Receiver<Arc<SlowOperation>>, dropped: &AtomicU64) {
        let mut batch = Vec::new();
        while let Ok(first) = requests.recv() {
            put(&first, &mut batch);
            while batch.len() < BATCH_MAX
                && let Ok(next) = requests.try_recv()
            {
                put(&next, &mut batch);
            }
            self.say_dropped(dropped, &mut batch);
            self.write(&batch, dropped);
            batch.clear();
        }
        self.say_dropped(dropped, &mut batch);
        self.write(&batch, dropped);
    }

    fn say_dropped(&self, dropped: &AtomicU64, out: &mut Vec<u8>) {
        let count = dropped.swap(0, Ordering::Relaxed);
        if count > 0 {
            tracing::warn!(count, log = %self.path.display(), "requests came faster than the request log is written: these are not in it");
            out.extend_from_slice(format!("{{\"dropped\":{count}}}\n").as_bytes());
        }
    }

    fn write(&mut self, lines: &[u8], dropped: &AtomicU64) {
        let written = self.turn_over(lines.len() as u64).and_then(|()| self.file.write_all(lines));
        match written {
            Ok(()) => {
                self.size += lines.len() as u64;
                self.is_broken = false;
            }
            Err(error) => {
                // No half line; what is missing is said once it can be.
                _ = self.file.set_len(self.size);
                _ = dropped.fetch_add(lines.iter().filter(|byte| **byte == b'\n').count() as u64, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_broken, true) {
                    tracing::error!(%error, log = %self.path.display(), "the request log cannot be written: requests are missing in it until it can");
                }
            }
        }
    }

    /// Begins another file where this one is full.
    fn turn_over(&mut self, more: u64) -> io::Result<()> {
        if self.size == 0 || self.size + more <= self.size_max {
            return Ok(());
        }
        let named = |end: &str| {
            let mut name = self.path.clone().into_os_string();
            name.push(end);
            PathBuf::from(name)
        };
        let numbered = |number: usize| named(&format!(".{number}"));
        // Before the others move: where none can be made, each try would move them once more.
        let new = named(".new");
        let next = if self.count_max > 1 { Some(open(&new)?) } else { None };
        for number in (1..self.count_max).rev() {
            let from = if number == 1 { self.path.clone() } else { numbered(number - 1) };
            match std::fs::rename(&from, numbered(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match next {
            None => self.file.set_len(0)?,
            Some(file) => {
                std::fs::rename(&new, &self.path)?;
                self.file = file;
            }
        }
        self.size = 0;
        Ok(())
    }
}

fn put(operation: &SlowOperation, out: &mut Vec<u8>) {
    // Its keys are strings, and memory takes what is written.
    let _ = serde_json::to_writer(&mut *out, operation);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &Path) -> RequestLogConfig {
        RequestLogConfig { path: folder.join("log"), over_us: 100, sample: 0.0, file_size_max: 2000, files_max: 3 }
    }

    fn request(took_us: u64) -> Arc<SlowOperation> {
        Arc::new(SlowOperation { took_us, operation: "Read".into(), ..SlowOperation::default() })
    }

    #[test]
    fn what_took_long_is_written_and_files_are_as_many_as_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let log = RequestLog::start(&config(folder.path())).unwrap();
        assert!(!log.wants(99) && log.wants(100));
        // One at a time: what is written together turns over together.
        for took_us in 100..160 {
            log.record(&request(took_us));
            thread::sleep(std::time::Duration::from_millis(1));
        }
        drop(log);
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let last: SlowOperation = serde_json::from_str(read("log").lines().last().unwrap()).unwrap();
        assert_eq!((last.took_us, &*last.operation), (159, "Read"));
        assert!(read("log.1").len() <= 2000 && !read("log.2").is_empty());
        assert!(!folder.path().join("log.3").exists());
        // What is there is gone on with.
        let before = read("log").len();
        drop(RequestLog::start(&config(folder.path())).unwrap());
        assert_eq!(read("log").len(), before);
    }

    /// It is renamed and cut as whoever runs the server.
    #[test]
    fn what_is_no_file_of_its_own_is_not_taken_for_a_log() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let other = folder.path().join("other");
        std::fs::write(&other, "something").unwrap();
        std::os::unix::fs::symlink(&other, &config.path).unwrap();
        assert!(RequestLog::start(&config).is_err());
        assert!(RequestLog::start(&RequestLogConfig { path: "/dev/null".into(), ..config.clone() }).is_err());
        std::fs::remove_file(&config.path).unwrap();
        std::fs::write(&config.path, "").unwrap();
        std::fs::set_permissions(&config.path, Permissions::from_mode(0o644)).unwrap();
        drop(RequestLog::start(&config).unwrap());
        assert_eq!(std::fs::metadata(&config.path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// Where the next file cannot be made those before it stay where they are.
    #[test]
    fn a_log_that_cannot_be_turned_over_loses_none_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = RequestLogConfig { file_size_max: 1, ..config(folder.path()) };
        std::fs::write(&config.path, "{}\n").unwrap();
        std::fs::write(folder.path().join("log.1"), "older\n").unwrap();
        std::fs::create_dir(folder.path().join("log.new")).unwrap();
        let log = RequestLog::start(&config).unwrap();
        log.record(&request(100));
        drop(log);
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!((read("log").as_str(), read("log.1").as_str()), ("{}\n", "older\n"));
    }

    #[test]
    fn a_share_of_the_others_is_drawn_evenly() {
        let folder = tempfile::tempdir().unwrap();
        let log = RequestLog::start(&RequestLogConfig { sample: 0.25, ..config(folder.path()) }).unwrap();
        let drawn = (0..100_000).filter(|_| log.wants(0)).count();
        assert!((24_000..26_000).contains(&drawn), "{drawn}");
        let all = RequestLog::start(&RequestLogConfig { sample: 1.0, ..config(folder.path()) }).unwrap();
        assert!((0..1000).all(|_| all.wants(0)));
    }

    #[test]
    fn what_the_writer_cannot_take_is_dropped_and_said() {
        let folder = tempfile::tempdir().unwrap();
        let (queue, requests) = sync_channel(2);
        let log = RequestLog {
            over_us: 0,
            sample: 0,
            drawn: AtomicU64::new(0),
            dropped: Arc::default(),
            queue: Some(queue),
            writer: None,
        };
        (0..5).for_each(|took_us| log.record(&request(took_us)));
        let (dropped, files) = (log.dropped.clone(), Files::open(&config(folder.path())).unwrap());
        drop(log);
        files.write_all(&requests, &dropped);
        let text = std::fs::read_to_string(folder.path().join("log")).unwrap();
        assert_eq!((text.lines().count(), text.lines().last()), (3, Some("{\"dropped\":3}")));
    }
}
