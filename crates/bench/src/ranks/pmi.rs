//! PMI-1, by which mpiexec lets ranks leave notes for each other: lines of `key=value` over a socket that it has left open.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, Read, Result, Write};

use super::sys;

/// The most that is read of one answer.
const LINE_LENGTH_MAX: u64 = 64 << 10;

/// Under which name rank 0's address is kept.
const KEY: &str = "aqueduct-bench-rank-0";

/// A connection to the launcher. Once begun it has to be [ended](Pmi::end): launchers take the end of a process that did not for a failure.
pub(super) struct Pmi {
    socket: File,
    reader: BufReader<File>,
    store: String,
    value_length_max: usize,
}

/// The value of a key in a line of `key=value` words.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn wrong(why: impl Into<String>) -> Error {
    Error::other(why.into())
}

impl Pmi {
    /// Greets the launcher at this descriptor.
    pub(super) fn start(number: i32) -> Result<Pmi> {
        let socket = File::from(sys::inherited(number)?);
        let reader = BufReader::new(socket.try_clone()?);
        let mut pmi = Pmi { socket, reader, store: String::new(), value_length_max: 0 };
        pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let maxes = pmi.ask("cmd=get_maxes", "maxes")?;
        pmi.value_length_max = value(&maxes, "vallen_max").and_then(|length| length.parse().ok()).unwrap_or(256);
        let name = pmi.ask("cmd=get_my_kvsname", "my_kvsname")?;
        pmi.store = value(&name, "kvsname").ok_or_else(|| wrong("it names no store"))?.to_owned();
        Ok(pmi)
    }

    fn ask(&mut self, question: &str, answer: &str) -> Result<String> {
        // One write: some launchers read a line at a time.
        self.socket.write_all(format!("{question}\n").as_bytes())?;
        let mut line = String::new();
        self.reader.by_ref().take(LINE_LENGTH_MAX).read_line(&mut line)?;
        if value(&line, "cmd") != Some(answer) || value(&line, "rc").is_some_and(|code| code != "0") {
            return Err(wrong(format!("'{question}' was answered '{}'", line.trim_end())));
        }
        Ok(line)
    }

    /// Leaves a note, which has no spaces.
    pub(super) fn put(&mut self, text: &str) -> Result<()> {
        if text.len() >= self.value_length_max || text.contains(char::is_whitespace) {
            return Err(wrong(format!(
                "it takes values of less than {} bytes, and this has {}",
                self.value_length_max,
                text.len()
            )));
        }
        self.ask(&format!("cmd=put kvsname={} key={KEY} value={text}", self.store), "put_result").map(drop)
    }

    /// Waits for all ranks; each finds then what others have left before.
    pub(super) fn barrier(&mut self) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    /// The note.
    pub(super) fn get(&mut self) -> Result<String> {
        let answer = self.ask(&format!("cmd=get kvsname={} key={KEY}", self.store), "get_result")?;
        Ok(value(&answer, "value").ok_or_else(|| wrong("the answer has no value"))?.to_owned())
    }

    /// Says goodbye.
    pub(super) fn end(mut self) -> Result<()> {
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A launcher that answers so.
    fn launcher(answers: &'static [&'static str]) -> (UnixStream, std::thread::JoinHandle<Vec<String>>) {
        let (near, far) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut reader = BufReader::new(far.try_clone().unwrap());
            let mut asked = Vec::new();
            for answer in answers {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                asked.push(line.trim_end().to_owned());
                (&far).write_all(format!("{answer}\n").as_bytes()).unwrap();
            }
            asked
        });
        (near, thread)
    }

    const BEGIN: [&str; 3] = [
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
        "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=40",
        "cmd=my_kvsname kvsname=kvs_7",
    ];

    #[test]
    fn notes_are_left_and_found() {
        let (near, far) = launcher(&[
            BEGIN[0],
            BEGIN[1],
            BEGIN[2],
            "cmd=put_result rc=0 msg=success",
            "cmd=barrier_out",
            "cmd=get_result rc=0 msg=success value={\"a\":1}",
            "cmd=finalize_ack",
        ]);
        let mut pmi = Pmi::start(near.as_raw_fd()).unwrap();
        assert!(pmi.put(&"x".repeat(40)).is_err() && pmi.put("a b").is_err());
        pmi.put("{\"a\":1}").unwrap();
        pmi.barrier().unwrap();
        assert_eq!(pmi.get().unwrap(), "{\"a\":1}");
        pmi.end().unwrap();
        assert!(far.join().unwrap().contains(&"cmd=get kvsname=kvs_7 key=aqueduct-bench-rank-0".to_owned()));
    }

    #[test]
    fn a_launcher_that_refuses_is_told_of() {
        let (near, _far) = launcher(&["cmd=response_to_init rc=-1"]);
        assert!(Pmi::start(near.as_raw_fd()).err().unwrap().to_string().contains("rc=-1"));
        let (near, _far) = launcher(&[BEGIN[0], BEGIN[1], "cmd=my_kvsname"]);
        assert!(Pmi::start(near.as_raw_fd()).is_err());
        assert!(Pmi::start(-1).is_err() && Pmi::start(1_000_000).is_err());
    }
}
