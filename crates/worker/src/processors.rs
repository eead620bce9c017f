//! What the kernel says of this process's threads, and of its machine.

use std::fs;

/// As much of the id of this machine's boot as tells machines apart, and no more; empty: the kernel
/// does not say.
pub fn boot_of_machine() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.chars().take(8).collect()
}

/// What this process's threads had of processors so far, and for how long they waited for one, in
/// seconds. Of threads that have ended nothing is told.
pub fn own_processors() -> [f64; 2] {
    let mut sum = [0.0; 2];
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let nanos = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        sum.iter_mut().zip(nanos).for_each(|(sum, nanos)| *sum += nanos / 1e9);
    }
    sum
}
