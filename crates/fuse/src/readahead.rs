//! How far the kernel reads ahead on a mount: 128 KiB unless it is told, and INIT can only lower it. A setting of the mount's "backing device", for root.

use std::fs;
use std::io;
use std::path::Path;

use crate::mount::line_of;

/// Has the kernel read so many bytes ahead for who reads a file from its beginning to its end. What cannot be set stays as it is, and is slower.
pub(crate) fn set(target: &Path, bytes: usize) {
    let done = device_number(target)
        .and_then(|number| fs::write(format!("/sys/class/bdi/{number}/read_ahead_kb"), (bytes >> 10).to_string()));
    if let Err(error) = done {
        tracing::debug!(%error, target = %target.display(), "the kernel reads ahead as far as it does anyway");
    }
}

/// `major:minor` of what is mounted at `target`. Asked of the kernel's table: the file system itself might have to wait for its server.
fn device_number(target: &Path) -> io::Result<String> {
    let table = fs::read("/proc/self/mountinfo")?;
    let line = line_of(&table, target).ok_or(io::ErrorKind::NotFound)?;
    let number = line.split(|byte| *byte == b' ').nth(2).unwrap_or_default();
    Ok(String::from_utf8_lossy(number).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_of_a_mount_that_is_there() {
        assert_eq!(device_number(Path::new("/no/such/mount")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let number = device_number(Path::new("/proc")).unwrap();
        assert!(number.split_once(':').is_some_and(|(major, minor)| major == "0" && minor.parse::<u32>().is_ok()));
    }
}
