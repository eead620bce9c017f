//! Files as text, unpacked, a line at a time: logs are larger than memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

/// Of a longer line the rest is passed over: none of what is known has such lines.
const LINE_MAX: usize = 1 << 20;

/// What is read of a file at once, in bytes.
const BUFFER: usize = 1 << 18;

/// The first bytes of what gzip has packed.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// A file that is read from its beginning to its end, once: it may be a pipe.
pub(super) struct Text {
    /// Its first bytes, unpacked.
    pub(super) head: Vec<u8>,
    /// It was packed.
    pub(super) is_packed: bool,
    reader: Box<dyn BufRead>,
    left: u64,
}

/// Why it cannot be read on.
pub(super) enum Stop {
    /// It cannot be read.
    Failed(io::Error),
    /// It has more bytes than it may.
    Long,
}

fn first(reader: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.by_ref().take(count as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Text {
    /// Opens it, and reads so many bytes of it to know it by. It may have `length_max` bytes,
    /// unpacked.
    pub(super) fn open(path: &Path, head: usize, length_max: u64) -> io::Result<Text> {
        let mut file = File::open(path)?;
        let magic = first(&mut file, GZIP.len())?;
        let is_packed = magic == GZIP;
        let file = BufReader::with_capacity(BUFFER, io::Cursor::new(magic).chain(file));
        // What is packed may have several parts, one behind the other, as logs that are rotated.
        let mut reader: Box<dyn BufRead> = match is_packed {
            true => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file))),
            false => Box::new(file),
        };
        let head = first(&mut reader, head)?;
        let reader = Box::new(io::Cursor::new(head.clone()).chain(reader));
        Ok(Text { head, is_packed, reader, left: length_max })
    }

    /// Gives each line without its end. What is no UTF-8 in it is replaced.
    pub(super) fn lines(mut self, mut line: impl FnMut(&str) -> Result<(), Stop>) -> Result<(), Stop> {
        let mut bytes = Vec::new();
        while self.line(&mut bytes)? {
            let text = String::from_utf8_lossy(&bytes);
            line(text.strip_suffix('\r').unwrap_or(&text))?;
        }
        Ok(())
    }

    /// The next line; `false`: there is none.
    fn line(&mut self, line: &mut Vec<u8>) -> Result<bool, Stop> {
        line.clear();
        let mut has_any = false;
        loop {
            let part = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                part => part.map_err(Stop::Failed)?,
            };
            if part.is_empty() {
                return Ok(has_any);
            }
            has_any = true;
            let end = part.iter().position(|byte| *byte == b'\n');
            let text = &part[..end.unwrap_or(part.len())];
            line.extend_from_slice(&text[..text.len().min(LINE_MAX - line.len())]);
            let used = end.map_or(part.len(), |end| end + 1);
            self.reader.consume(used);
            self.left = self.left.checked_sub(used as u64).ok_or(Stop::Long)?;
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// All of it, if it has no more than so many bytes.
    pub(super) fn whole(self, length_max: u64) -> Result<String, Stop> {
        let mut bytes = Vec::new();
        self.reader.take(length_max + 1).read_to_end(&mut bytes).map_err(Stop::Failed)?;
        match bytes.len() as u64 <= length_max {
            true => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            false => Err(Stop::Long),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8], length_max: u64) -> Option<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, bytes).unwrap();
        let mut all = Vec::new();
        let text = Text::open(&path, 4, length_max).unwrap();
        assert_eq!(text.head, bytes[..bytes.len().min(4)]);
        let result = text.lines(|line| {
            all.push(line.to_owned());
            Ok(())
        });
        result.is_ok().then_some(all)
    }

    #[test]
    fn lines_are_whole_and_bounded() {
        assert_eq!(lines(b"", 9).unwrap(), Vec::<String>::new());
        assert_eq!(lines(b"a\r\n\nbcd\xff", 99).unwrap(), ["a", "", "bcd\u{fffd}"]);
        let long = [&vec![b'x'; 3 * LINE_MAX][..], b"\ny\n"].concat();
        let all = lines(&long, u64::MAX).unwrap();
        assert_eq!((all.len(), all[0].len(), all[1].as_str()), (2, LINE_MAX, "y"));
        assert_eq!(lines(b"abc\ndef\n", 8).unwrap().len(), 2);
        assert_eq!(lines(b"abc\ndef\n", 7), None);
    }
}
