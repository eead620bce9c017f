//! What may stand before the fields of any request's or reply's body, with the flag EXTENDED:
//! things that few frames carry, or that came later.
//!
//! The prefix is a length (u16) and so many bytes of entries: type u16, length u16, value. Entries
//! stand in the order of their types, each at most once. A type of 32,768 or more is *critical*:
//! who does not know it must not act on the frame. Other types that are not known are skipped.

use aqueduct_fs::{Staged, TRANSFER_SIZE_MAX};

use crate::field::*;

/// The most bytes of all entries together.
pub const EXTENSIONS_LENGTH_MAX: usize = 512;

/// The longest id of a job in bytes.
pub const JOB_LENGTH_MAX: usize = 64;

/// The longest token of a right in bytes.
pub const RIGHT_LENGTH_MAX: usize = 128;

/// Replies to TIMED requests that took fewer microseconds at the server than this say nothing of
/// it. The time counts from when the request was whole.
pub const TOLD_MIN_US: u32 = 500;

/// From this type on entries are critical.
const CRITICAL: u16 = 1 << 15;

const JOB: u16 = 1;
const TRACE: u16 = 2;
const ASKS_QUEUE_TIME: u16 = 3;
const QUEUE_TIME: u16 = 4;
const TIMES: u16 = 5;
const RIGHT: u16 = CRITICAL | 1;
const ORDINAL: u16 = CRITICAL | 2;
const STAGED: u16 = CRITICAL | 3;

/// Of a write beside other clients: what of this client's at the same server it may repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ordinal {
    /// Grows from write to write of a client.
    pub number: u64,
    /// The client knows what became of all its writes below this number, and repeats none of them.
    pub settled: u64,
}

/// How long a request took at the server, beside its queue time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Microseconds that it waited for others to give back leases.
    pub lease_us: u32,
    /// Microseconds of the rest, until its reply was made.
    pub served_us: u32,
}

/// What a frame says beside its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Of a request: the job that it belongs to, for logs and status. Printable ASCII without
    /// spaces, 1 to [`JOB_LENGTH_MAX`] bytes.
    pub job: Option<Box<str>>,
    /// Of a request: the trace that it belongs to.
    pub trace: Option<[u8; 16]>,
    /// Of a request: its reply is to say how long it was queued.
    pub asks_queue_time: bool,
    /// Of a reply: microseconds from when its request had come whole until it was begun.
    pub queue_time: Option<u32>,
    /// Of a reply: how long its request took from then on.
    pub times: Option<Times>,
    /// Of a request, critical: the token of the right under which it is made, 1 to
    /// [`RIGHT_LENGTH_MAX`] bytes.
    pub right: Option<Box<[u8]>>,
    /// Of a write under a right that several clients have, critical.
    pub ordinal: Option<Ordinal>,
    /// Of a write without data, critical: what it writes was staged at the server that has the
    /// place.
    pub staged: Option<Staged>,
}

fn put(kind: u16, value: &[u8], out: &mut Vec<u8>) {
    U16::put(&kind, out);
    Text::put(&value, out);
}

/// Whether a request may say that it belongs to a job of this name.
pub fn is_job(text: &[u8]) -> bool {
    (1..=JOB_LENGTH_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
}

impl Extensions {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        *self == Extensions::default()
    }

    /// Appends the prefix, which then stands before everything else in the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        U16::put(&0, out);
        if let Some(job) = &self.job {
            put(JOB, job.as_bytes(), out);
        }
        if let Some(trace) = &self.trace {
            put(TRACE, trace, out);
        }
        if self.asks_queue_time {
            put(ASKS_QUEUE_TIME, &[], out);
        }
        if let Some(queue_time) = self.queue_time {
            put(QUEUE_TIME, &queue_time.to_le_bytes(), out);
        }
        if let Some(Times { lease_us, served_us }) = self.times {
            put(TIMES, &(u64::from(lease_us) | u64::from(served_us) << 32).to_le_bytes(), out);
        }
        if let Some(right) = &self.right {
            put(RIGHT, right, out);
        }
        if let Some(Ordinal { number, settled }) = self.ordinal {
            let [number, settled] = [number, settled].map(u64::to_le_bytes);
            put(ORDINAL, &[number, settled].concat(), out);
        }
        if let Some(Staged { id, length }) = &self.staged {
            put(STAGED, &[&id[..], &length.to_le_bytes()].concat(), out);
        }
        let length = (out.len() - start - 2) as u16;
        out[start..start + 2].copy_from_slice(&length.to_le_bytes());
    }

    /// The prefix of a body, and what is behind it.
    pub fn take(body: &[u8]) -> Result<(Extensions, &[u8]), BodyError> {
        let mut reader = Reader::new(body);
        let length = usize::from(reader.get::<U16>()?);
        if length > EXTENSIONS_LENGTH_MAX {
            return Err(BodyError::Value("the length of the extensions"));
        }
        let mut entries = Reader::new(reader.take(length, "the extensions")?);
        let (mut extensions, mut last) = (Extensions::default(), None);
        while !entries.is_empty() {
            let (kind, value) = (entries.get::<U16>()?, entries.get::<Text>()?);
            if last.is_some_and(|last| kind <= last) {
                return Err(BodyError::Value("the order of the extensions"));
            }
            last = Some(kind);
            extensions.set(kind, value)?;
        }
        Ok((extensions, reader.rest()))
    }

    fn set(&mut self, kind: u16, value: &[u8]) -> Result<(), BodyError> {
        let wrong = |what| BodyError::Value(what);
        match kind {
            JOB if is_job(value) => self.job = std::str::from_utf8(value).ok().map(Into::into),
            JOB => return Err(wrong("the id of a job")),
            TRACE => self.trace = Some(value.try_into().map_err(|_| wrong("the id of a trace"))?),
            ASKS_QUEUE_TIME if value.is_empty() => self.asks_queue_time = true,
            ASKS_QUEUE_TIME => return Err(wrong("the question for a queue time")),
            QUEUE_TIME => {
                let bytes = value.try_into().map_err(|_| wrong("a queue time"))?;
                self.queue_time = Some(u32::from_le_bytes(bytes));
            }
            TIMES => {
                let both = u64::from_le_bytes(value.try_into().map_err(|_| wrong("the times"))?);
                self.times = Some(Times { lease_us: both as u32, served_us: (both >> 32) as u32 });
            }
            RIGHT if (1..=RIGHT_LENGTH_MAX).contains(&value.len()) => self.right = Some(value.into()),
            RIGHT => return Err(wrong("the token of a right")),
            ORDINAL if value.len() != 16 => return Err(wrong("the ordinal of a write")),
            ORDINAL => {
                let mut reader = Reader::new(value);
                let write = Ordinal { number: reader.get::<U64>()?, settled: reader.get::<U64>()? };
                if write.settled > write.number {
                    return Err(wrong("the ordinal of a write"));
                }
                self.ordinal = Some(write);
            }
            STAGED => {
                let (id, length) = value.split_first_chunk().ok_or(wrong("what was staged"))?;
                let length = length.try_into().map_err(|_| wrong("what was staged"))?;
                let staged = Staged { id: *id, length: u32::from_le_bytes(length) };
                if !(1..=TRANSFER_SIZE_MAX as u32).contains(&staged.length) {
                    return Err(wrong("what was staged"));
                }
                self.staged = Some(staged);
            }
            CRITICAL.. => return Err(BodyError::Critical(kind)),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(entries: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = vec![0, 0];
        entries.iter().for_each(|(kind, value)| put(*kind, value, &mut out));
        let length = (out.len() - 2) as u16;
        out[..2].copy_from_slice(&length.to_le_bytes());
        out.extend_from_slice(b"fields");
        out
    }

    #[test]
    fn what_is_said_is_read() {
        let all = Extensions {
            job: Some("slurm-4711.3".into()),
            trace: Some([7; 16]),
            asks_queue_time: true,
            queue_time: Some(1234),
            times: Some(Times { lease_us: 5, served_us: u32::MAX }),
            right: Some([9; RIGHT_LENGTH_MAX].into()),
            ordinal: Some(Ordinal { number: 5, settled: 4 }),
            staged: Some(Staged { id: [3; 16], length: TRANSFER_SIZE_MAX as u32 }),
        };
        let longest = Extensions { job: Some("j".repeat(JOB_LENGTH_MAX).into()), ..all.clone() };
        for extensions in [Extensions::default(), all, longest] {
            let mut out = Vec::new();
            extensions.encode(&mut out);
            assert!(out.len() <= 2 + EXTENSIONS_LENGTH_MAX);
            out.extend_from_slice(b"fields");
            assert_eq!(Extensions::take(&out), Ok((extensions, &b"fields"[..])));
        }
    }

    #[test]
    fn what_is_not_known_is_skipped_unless_it_is_critical() {
        let job = Extensions { job: Some("j".into()), ..Extensions::default() };
        let body = entries(&[(JOB, b"j"), (CRITICAL - 1, b"whatever")]);
        assert_eq!(Extensions::take(&body), Ok((job, &b"fields"[..])));
        let body = entries(&[(JOB, b"j"), (CRITICAL | 77, b"")]);
        assert_eq!(Extensions::take(&body), Err(BodyError::Critical(CRITICAL | 77)));
        assert_eq!(BodyError::Critical(0).errno(), aqueduct_fs::Errno::EOPNOTSUPP);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let long = [b'j'; JOB_LENGTH_MAX + 1];
        for wrong in [
            &[(JOB, &b"j"[..]), (JOB, b"j")][..],
            &[(TRACE, &[0; 16]), (JOB, b"j")],
            &[(JOB, b"")],
            &[(JOB, b"a b")],
            &[(JOB, b"\x1b[2J")],
            &[(JOB, &long)],
            &[(TRACE, &[0; 15])],
            &[(ASKS_QUEUE_TIME, b"x")],
            &[(QUEUE_TIME, b"123")],
            &[(TIMES, b"1234567")],
            &[(RIGHT, b"")],
            &[(RIGHT, &[0; RIGHT_LENGTH_MAX + 1])],
            &[(ORDINAL, &[[0; 8], [1; 8]].concat())],
            &[(ORDINAL, &[0; 17])],
            &[(STAGED, &[1; 15])],
            &[(STAGED, &[1; 19])],
            &[(STAGED, &[0; 20])],
            &[(STAGED, &[0xff; 20])],
            &[(77, &[0; EXTENSIONS_LENGTH_MAX])],
        ] {
            assert!(matches!(Extensions::take(&entries(wrong)), Err(BodyError::Value(_))), "{wrong:?}");
        }
        for short in [&b""[..], b"\x01", b"\x01\x00", b"\x04\x00\x01\x00\x01\x00"] {
            assert!(matches!(Extensions::take(short), Err(BodyError::Short(_))), "{short:?}");
        }
    }
}
