//! What programs read that get a processor late: whatever happens to a file between the answer
//! to the kernel's request and the moment in which the kernel goes on with the program.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Pair, as_on_kernel, within};

/// As on Linux 4.18, 5.10 and 6.1, and as here.
const KERNELS: [&str; 4] = [
    "cache=lease,init_minor=27,init_without=22+23+28+29+30+35+36+38+41",
    "cache=lease,init_minor=32,init_without=28+29+30+35+36+38+41",
    "cache=lease,init_minor=37,init_without=35+36+38+41",
    "cache=lease",
];

/// What is written each time.
const TEXT: [u8; 100] = [b'x'; 100];

/// Each is read at least so often; a machine that does nothing else reads it some thousand times in
/// [`TIME`].
const READS_MIN: usize = 20;
const TIME: Duration = Duration::from_secs(5);
const TIME_MAX: Duration = Duration::from_secs(40);

/// For each processor so many threads never rest.
const BUSY: usize = 8;

/// Programs of two mounts empty a file and write it; others open and read it.
fn nobody_reads_zeros(options: &str) {
    let pair = Pair::with(options);
    let (began, reads, zeros) = (Instant::now(), AtomicUsize::new(0), AtomicUsize::new(0));
    fs::write(pair.left.join("file"), TEXT).unwrap();
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let goes_on = &|| {
        let is_enough = began.elapsed() > TIME && reads.load(Ordering::Relaxed) >= READS_MIN;
        !is_enough && began.elapsed() < TIME_MAX
    };
    thread::scope(|scope| {
        for mount in [&pair.left, &pair.right] {
            let path = mount.join("file");
            for _ in 0..3 {
                let (path, reads, zeros) = (path.clone(), &reads, &zeros);
                scope.spawn(move || {
                    while goes_on() {
                        let text = fs::read(&path).unwrap();
                        reads.fetch_add(1, Ordering::Relaxed);
                        zeros.fetch_add(usize::from(text.iter().any(|byte| *byte != b'x')), Ordering::Relaxed);
                    }
                });
            }
            scope.spawn(move || {
                while goes_on() {
                    fs::write(&path, TEXT).unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for _ in 0..processors * BUSY {
            scope.spawn(|| while goes_on() {});
        }
    });
    let (reads, zeros) = (reads.into_inner(), zeros.into_inner());
    println!("{options}: {reads} reads, {zeros} with zeros");
    assert!(zeros == 0 && reads >= READS_MIN, "{options}: {reads} reads, {zeros} with zeros");
}

#[test]
fn nobody_reads_zeros_who_runs_late() {
    within(Duration::from_secs(240), || {
        // On such a kernel itself it is tried as it is.
        let kernels = if as_on_kernel().is_some() { &KERNELS[3..] } else { &KERNELS };
        kernels.iter().for_each(|options| nobody_reads_zeros(options));
    });
}
