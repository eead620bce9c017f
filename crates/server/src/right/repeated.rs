//! What clients have written again at the server of the names that they wrote beside others
//! elsewhere: see [`right`](super). The next start knows it as well, as long as it has not had all
//! back who may repeat something.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use aqueduct_wire::Ordinal;
use aqueduct_worker::lock;

use super::unsettled::{Piece, Unsettled};

/// The longest note in bytes: some 10,000 repeats. Beyond, nothing is repeated.
const NOTE_MAX: u64 = 1 << 20;

/// What is repeated in a recovery belongs to no tenure of this start.
pub(crate) const RECOVERED: u64 = 0;

/// See the module.
pub(super) struct Repeated {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: Unsettled,
    /// Of this start, which has nothing more to do with those of before.
    note: Option<File>,
}

fn line(piece: &Piece<'_>) -> String {
    let handle: String = piece.handle.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} {handle} {} {}\n", piece.session, piece.range.start, piece.range.end)
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = |at| hex.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn read(known: &mut Unsettled, line: &str) -> Option<()> {
    let mut words = line.split(' ');
    let (session, handle) = (words.next()?.parse().ok()?, bytes(words.next()?)?);
    let range = words.next()?.parse().ok()?..words.next()?.parse().ok()?;
    if words.next().is_some() {
        return None; // two, of which the first was not written whole
    }
    known.admit(RECOVERED, &Piece { session, handle: &handle, range, number: Ordinal::default() });
    Some(())
}

impl Repeated {
    pub(super) fn new(folder: &Path) -> Repeated {
        let path = folder.join("repeated");
        let mut known = Unsettled::default();
        match fs::read_to_string(&path) {
            // What was not noted whole was not repeated.
            Ok(text) => {
                let whole = text.rfind('\n').map_or("", |end| &text[..end]);
                if !whole.lines().all(|line| read(&mut known, line).is_some()) {
                    known.forget();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => known.forget(),
        }
        Repeated { path, state: Mutex::new(State { known, note: None }) }
    }

    /// Whether a write may be repeated: no other client has repeated anything there in this
    /// tenure, or in this recovery and before. It is noted before it may be executed.
    pub(super) fn admit(&self, tenure: u64, piece: &Piece<'_>) -> io::Result<bool> {
        let mut state = lock(&self.state);
        if !state.known.admit(tenure, piece) {
            return Ok(false);
        }
        if state.note.is_none() || tenure == RECOVERED {
            // Whoever writes beside others again has been let in after all of before were back.
            let begins = tenure != RECOVERED;
            let note = OpenOptions::new().create(true).write(true).append(!begins).truncate(begins).open(&self.path)?;
            if let Some(folder) = self.path.parent() {
                File::open(folder)?.sync_all()?;
            }
            if !begins {
                return self.write(&note, piece);
            }
            state.note = Some(note);
        }
        state.note.as_ref().map_or(Ok(false), |note| self.write(note, piece))
    }

    fn write(&self, mut note: &File, piece: &Piece<'_>) -> io::Result<bool> {
        if note.metadata()?.len() >= NOTE_MAX {
            return Ok(false);
        }
        note.write_all(line(piece).as_bytes())?;
        note.sync_data()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(session: u64, range: std::ops::Range<u64>) -> Piece<'static> {
        Piece { session, handle: b"file", range, number: Ordinal::default() }
    }

    #[test]
    fn the_next_start_knows_what_was_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let start = || Repeated::new(folder.path());
        let first = start();
        assert!(first.admit(3, &piece(1, 0..10)).unwrap() && !first.admit(3, &piece(2, 5..15)).unwrap());
        assert!(first.admit(3, &piece(1, 20..30)).unwrap(), "its own");
        let second = start();
        assert!(
            !second.admit(RECOVERED, &piece(2, 5..15)).unwrap() && !second.admit(RECOVERED, &piece(2, 29..40)).unwrap()
        );
        assert!(
            second.admit(RECOVERED, &piece(2, 10..20)).unwrap() && second.admit(RECOVERED, &piece(1, 0..10)).unwrap()
        );
        let third = start();
        assert!(!third.admit(RECOVERED, &piece(3, 19..20)).unwrap(), "nor had the second one all back");
        assert!(third.admit(8, &piece(3, 0..40)).unwrap(), "all were back, and began anew");
        let fourth = start();
        assert!(!fourth.admit(RECOVERED, &piece(4, 0..1)).unwrap());
        let lines = fs::read_to_string(folder.path().join("repeated")).unwrap().lines().count();
        assert_eq!(lines, 1, "the others are forgotten");
    }

    #[test]
    fn a_note_that_is_full_lets_nothing_more_be_repeated_before_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let first = Repeated::new(folder.path());
        assert!(first.admit(3, &piece(1, 0..1)).unwrap());
        let mut note = OpenOptions::new().append(true).open(folder.path().join("repeated")).unwrap();
        note.write_all(line(&piece(1, 1..2)).repeat(NOTE_MAX as usize / 8).as_bytes()).unwrap();
        assert!(!first.admit(3, &piece(1, 100..101)).unwrap());
        assert!(Repeated::new(folder.path()).admit(4, &piece(1, 100..101)).unwrap());
    }

    #[test]
    fn a_note_that_cannot_be_read_lets_nothing_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("repeated"), "1 66 0 10\nwhat\n1 66 20").unwrap();
        let repeated = Repeated::new(folder.path());
        assert!(!repeated.admit(RECOVERED, &piece(1, 70..80)).unwrap());
        fs::write(folder.path().join("repeated"), "1 66696c65 0 10\n1 66 20").unwrap();
        let repeated = Repeated::new(folder.path());
        assert!(
            repeated.admit(RECOVERED, &piece(2, 70..80)).unwrap()
                && !repeated.admit(RECOVERED, &piece(2, 5..6)).unwrap()
        );
    }
}
