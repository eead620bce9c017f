//! Aligned tables, and figures as people read them.

use crate::output::shown;

/// Columns whose heading starts with '>' are aligned to the right. What is in the cells may be
/// anybody's names.
pub fn render(headings: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].trim_start_matches('>').chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let first: Vec<String> = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&first).chain(&rows) {
        let mut line = String::new();
        for ((cell, width), heading) in row.iter().zip(&widths).zip(headings) {
            let padding = " ".repeat(width - cell.chars().count());
            let (before, after) =
                if heading.starts_with('>') { (padding.as_str(), "") } else { ("", padding.as_str()) };
            line.push_str(&format!("  {before}{cell}{after}"));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Bytes with a binary unit and three digits or so.
pub fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut count = count;
    let mut unit = 0;
    while count >= 1024.0 && unit + 1 < units.len() {
        count /= 1024.0;
        unit += 1;
    }
    if unit == 0 || count >= 100.0 {
        format!("{count:.0} {}", units[unit])
    } else {
        format!("{count:.1} {}", units[unit])
    }
}

/// A time of so many microseconds.
pub fn micros(micros: f64) -> String {
    match micros {
        micros if micros < 1000.0 => format!("{micros:.1} us"),
        micros if micros < 1e6 => format!("{:.1} ms", micros / 1e3),
        micros => format!("{:.1} s", micros / 1e6),
    }
}

/// A time span, rounded to its two largest units.
pub fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["/mnt".to_owned(), "7".to_owned()], vec!["/a".to_owned(), "1234".to_owned()]];
        assert_eq!(render(&["ON", ">OPS"], &rows), "  ON     OPS\n  /mnt     7\n  /a    1234\n");
    }

    #[test]
    fn names_in_cells_cannot_move_the_cursor() {
        let rows = [vec!["/m\u{1b}[2J\n".to_owned()], vec!["/a".to_owned()]];
        assert_eq!(render(&["ON"], &rows), "  ON\n  /m\u{fffd}[2J\u{fffd}\n  /a\n");
    }

    #[test]
    fn figures_are_readable() {
        assert_eq!((bytes(0.0), bytes(1536.0), bytes(2e9)), ("0 B".into(), "1.5 KiB".into(), "1.9 GiB".into()));
        assert_eq!(
            (span(59), span(61), span(7200), span(90_000)),
            ("59 s".into(), "1 min 1 s".into(), "2 h 0 min".into(), "1 d 1 h".into())
        );
    }
}
