//! Sizes as IOR reads and shows them.

/// Bytes of a size such as `8`, `4k`, `2m`, `1g` or `1t`: each letter is 1024 times the one before, in either case; `b` or `ib` may follow.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("'{text}' is no size; give it as 8, 4k, 2m or 1g"))?;
    let unit = unit.trim().to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => {
            return Err(format!(
                "'{unit}' is no unit of size; there are k, m, g, t and p, each 1024 times the one before"
            ));
        }
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is more than a file can have"))
}

/// As IOR's output has it: bytes below 1 MiB, then MiB, GiB and TiB, with two digits behind the point where they are not whole.
pub fn show(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..0x10_0000 => return format!("{bytes} bytes"),
        0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
        0x4000_0000..0x100_0000_0000 => (1 << 30, "GiB"),
        _ => (1u64 << 40, "TiB"),
    };
    if bytes.is_multiple_of(unit) {
        format!("{} {name}", bytes / unit)
    } else {
        format!("{:.2} {name}", bytes as f64 / unit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_ior_reads_them() {
        let read: Vec<_> =
            ["8", "4k", "4K", "2m", "1g", "1T", "3MiB", "5kb", " 7 "].iter().map(|text| parse(text)).collect();
        let bytes = [8, 4096, 4096, 2 << 20, 1 << 30, 1 << 40, 3 << 20, 5 << 10, 7];
        assert_eq!(read, bytes.map(Ok));
        for wrong in ["", "k", "-1", "1.5m", "4x", "99999999999g", "1 0"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_shown_as_ior_shows_them() {
        assert_eq!(show(262_144), "262144 bytes");
        assert_eq!(show(1 << 20), "1 MiB");
        assert_eq!(show(16 << 20), "16 MiB");
        assert_eq!(show((2 << 30) + (1 << 29)), "2.50 GiB");
        assert_eq!(show(3 << 40), "3 TiB");
    }
}
