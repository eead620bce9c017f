//! Logs of GridFTP servers: one line for each transfer.

/// A transfer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transfer {
    /// When it began and ended, in seconds since 1970.
    pub time: [f64; 2],
    /// The server.
    pub host: String,
    /// The other side, as far as it is told.
    pub peer: String,
    /// The data were written here; else read.
    pub is_stored: bool,
    /// Their bytes.
    pub bytes: f64,
    /// Connections.
    pub streams: u64,
    /// Bytes of a connection's buffer.
    pub buffer: u64,
    /// It was whole.
    pub is_whole: bool,
}

impl Transfer {
    /// Bytes in a second.
    pub fn rate(&self) -> f64 {
        self.bytes / (self.time[1] - self.time[0]).max(1e-3)
    }
}

/// Reads a line; `None`: it tells of no transfer.
pub(super) fn parse(line: &str) -> Option<Transfer> {
    let line = line.split_once("Transfer stats: ").map_or(line, |(_, rest)| rest);
    // FILE may have blanks and equals signs, so that each is looked for behind it from the end.
    let of = |key: &str| {
        let marked = format!("{key}=");
        let from = |at: usize| line[at + marked.len()..].split(' ').next();
        let begins = |at: &usize| *at == 0 || line.as_bytes()[at - 1] == b' ';
        let mut places = line.match_indices(&marked).map(|(at, _)| at).filter(begins);
        if ["DATE", "START", "HOST"].contains(&key) {
            places.next().and_then(from)
        } else {
            places.last().and_then(from)
        }
    };
    let transfer = Transfer {
        time: [seconds(of("START")?)?, seconds(of("DATE")?)?],
        host: of("HOST")?.to_owned(),
        peer: of("DEST").unwrap_or_default().trim_matches(['[', ']']).to_owned(),
        is_stored: of("TYPE")?.starts_with("STOR"),
        bytes: of("NBYTES")?.parse().ok()?,
        streams: of("STREAMS").and_then(|streams| streams.parse().ok()).unwrap_or(0),
        buffer: of("BUFFER").and_then(|buffer| buffer.parse().ok()).unwrap_or(0),
        is_whole: of("CODE")? == "226",
    };
    (transfer.time[1] >= transfer.time[0]).then_some(transfer)
}

/// `20190731073044.992375`, in UTC.
fn seconds(text: &str) -> Option<f64> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
    if whole.len() != 14 || !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize, to: usize| whole[from..to].parse::<i8>().ok();
    let year = whole[..4].parse::<i16>().ok()?;
    let time = jiff::civil::datetime(1970, 1, 1, 0, 0, 0, 0)
        .with()
        .year(year)
        .month(part(4, 6)?)
        .day(part(6, 8)?)
        .hour(part(8, 10)?)
        .minute(part(10, 12)?)
        .second(part(12, 14)?)
        .build()
        .ok()?;
    let stamp = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
    Some(stamp.as_second() as f64 + format!("0.{rest}").parse::<f64>().ok()?)
}
