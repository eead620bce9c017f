//! Which way data go that nobody has to see: by memory of this process, or within the kernel
//! (copy_file_range). Which is faster depends on file systems and kernels, so it is measured at
//! the start of the copy itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// So many bytes go each way before one is chosen: some 10 ms of memory, some 100 ms of a disk.
const TRIED: u64 = 32 << 20;

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By memory of this process.
    Memory,
    /// Within the kernel.
    Kernel,
}

/// What each way has cost so far, and what was chosen.
#[derive(Debug, Default)]
pub struct Ways {
    bytes: [AtomicU64; 2],
    nanos: [AtomicU64; 2],
    no_kernel: AtomicBool,
}

impl Ways {
    /// The way of the next step.
    pub fn choose(&self) -> Way {
        if self.no_kernel.load(Ordering::Relaxed) {
            return Way::Memory;
        }
        let [memory, kernel] =
            [0, 1].map(|way| (self.bytes[way].load(Ordering::Relaxed), self.nanos[way].load(Ordering::Relaxed).max(1)));
        if memory.0.min(kernel.0) < TRIED {
            return if kernel.0 <= memory.0 { Way::Kernel } else { Way::Memory };
        }
        let rate = |(bytes, nanos): (u64, u64)| bytes as f64 / nanos as f64;
        if rate(kernel) >= rate(memory) { Way::Kernel } else { Way::Memory }
    }

    /// A step of this way took so long.
    pub fn took(&self, way: Way, bytes: usize, time: Duration) {
        self.bytes[way as usize].fetch_add(bytes as u64, Ordering::Relaxed);
        self.nanos[way as usize].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The kernel cannot.
    pub fn forbid_kernel(&self) {
        self.no_kernel.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_chosen_once_both_were_tried() {
        for (faster, memory, kernel) in [(Way::Kernel, 300, 200), (Way::Memory, 200, 300)] {
            let ways = Ways::default();
            let mut steps = [0, 0];
            for _ in 0..200 {
                let way = ways.choose();
                steps[way as usize] += 1;
                ways.took(way, 1 << 20, Duration::from_micros([memory, kernel][way as usize]));
            }
            assert_eq!(ways.choose(), faster);
            assert!(steps[faster as usize] > 160 && steps.iter().all(|steps| *steps >= 32), "{steps:?}");
        }
        let ways = Ways::default();
        ways.forbid_kernel();
        assert_eq!(ways.choose(), Way::Memory);
    }
}
