//! Schedules of reads played against the streams: what is asked for, and what of it was read.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// A file of which nothing is in the page cache but what was read or asked for, on a disk that takes `latency` and knows no limit otherwise.
struct Disk {
    streams: Streams,
    size: u64,
    latency: Duration,
    /// What the kernel reads ahead by itself, as far as the streams are told.
    kernel: u64,
    now: Duration,
    /// What was asked for or read, in pages, and when it is there.
    pages: std::collections::HashMap<u64, Duration>,
    waits: u64,
    asked: u64,
    used: u64,
    wasted: u64,
}

const PAGE: u64 = 16 << 10;

impl Disk {
    fn new(size: u64, latency: Duration) -> Disk {
        let (streams, now, pages) = (Streams::default(), Duration::ZERO, Default::default());
        Disk { streams, size, latency, kernel: WINDOW_MIN, now, pages, waits: 0, asked: 0, used: 0, wasted: 0 }
    }

    fn fetch(&mut self, at: u64, length: u64) {
        for page in at / PAGE..(at + length).div_ceil(PAGE) {
            self.pages.entry(page).or_insert(self.now + self.latency);
        }
    }

    /// Reads, and checks what must always hold.
    fn read(&mut self, at: u64, length: u64) -> Plan {
        let length = length.min(self.size.saturating_sub(at));
        let pages = || at / PAGE..(at + length).div_ceil(PAGE);
        let ready =
            pages().map(|page| self.pages.get(&page).copied().unwrap_or(Duration::MAX)).max().unwrap_or_default();
        let waits = ready > self.now;
        let seen = Seen { at, length, waits, now: self.now };
        let room = 1 << 40;
        let around = Around { size: self.size, latency: self.latency, room, kernel: self.kernel };
        let plan = self.streams.read(seen, &around);
        if let Some(ask) = plan.ask {
            let last = ask.pieces().last().unwrap();
            assert!(ask.bytes() > 0 && ask.bytes() <= UNREAD_MAX && ask.count <= RECORDS_MAX, "{ask:?}");
            // The last record of a strided stream may end where the file does.
            assert!(last.0 < self.size && (ask.stride > 0 || last.0 + last.1 <= self.size), "{ask:?} of {}", self.size);
            self.asked += ask.bytes();
            ask.pieces().for_each(|(at, length)| self.fetch(at, length));
        }
        self.used += plan.used;
        self.wasted += plan.wasted;
        assert_eq!(
            self.asked,
            self.used + self.wasted + self.streams.unread(),
            "every byte asked for is accounted for"
        );
        assert!(self.streams.unread() <= UNREAD_MAX);
        if waits {
            self.waits += 1;
            self.fetch(at, length);
            let ready = pages().map(|page| self.pages[&page]).max().unwrap_or_default();
            self.now = self.now.max(ready);
        }
        self.now += Duration::from_micros(300); // 3 GB/s for 1 MiB
        plan
    }
}

fn slow(size: u64) -> Disk {
    Disk::new(size, Duration::from_millis(5))
}

#[test]
fn a_sequential_reader_soon_waits_no_more() {
    let mut disk = slow(1 << 30);
    for read in 0..200 {
        disk.read(read * MIB, MIB);
    }
    let early = disk.waits;
    for read in 200..1000 {
        disk.read(read * MIB, MIB);
    }
    assert!(early < 30, "{early}");
    assert!(disk.waits - early < 80, "{} of 800", disk.waits - early);
    assert!(disk.asked - disk.used <= WINDOW_MAX);
}

#[test]
fn reads_of_one_client_in_any_order_are_one_stream() {
    for length in [64 << 10, 256 << 10, MIB] {
        let mut disk = slow(1 << 30);
        // What is under way at once is answered and asked for in another order.
        for batch in 0..100 {
            for place in [1, 0, 3, 2, 6, 4, 7, 5] {
                disk.read((batch * 8 + place) * length, length);
            }
        }
        assert!(disk.waits < 400, "{} of 800 reads of {length}", disk.waits);
        assert!(disk.streams.known() <= 2, "{:?}", disk.streams);
        assert!(disk.wasted < MIB, "{}", disk.wasted);
    }
}

#[test]
fn several_streams_of_one_open_are_told_apart() {
    let mut disk = slow(1 << 30);
    for read in 0..200 {
        for reader in 0..4 {
            disk.read(reader * (256 * MIB) + read * (256 << 10), 256 << 10);
        }
    }
    // The first reads lie as far apart as records would: what was asked for then is little, and soon given up.
    assert!((4..=6).contains(&disk.streams.known()), "{:?}", disk.streams);
    assert!(disk.waits < 100, "{} of 800", disk.waits);
    assert!(disk.asked - disk.used < 4 * WINDOW_MAX, "{} of {}", disk.used, disk.asked);
}

#[test]
fn records_that_lie_apart_are_asked_for_and_what_is_between_is_not() {
    for (length, stride) in [(MIB, 4 * MIB), (64 << 10, 2 * MIB), (4096, 64 << 10)] {
        let mut disk = slow(1 << 32);
        for record in 0..300 {
            disk.read(8 * MIB + record * stride, length);
        }
        assert!(disk.waits < 60, "{} of 300 records of {length}", disk.waits);
        assert!(disk.asked <= 300 * length + WINDOW_MAX, "{}", disk.asked);
        assert_eq!(disk.wasted, 0);
    }
}

#[test]
fn what_is_in_memory_is_not_asked_for() {
    let mut disk = Disk::new(1 << 30, Duration::ZERO);
    disk.fetch(0, 1 << 30);
    for read in 0..1000 {
        disk.read(read * MIB, MIB);
    }
    assert_eq!((disk.asked, disk.waits), (0, 0));
}

#[test]
fn a_stream_that_finds_all_present_is_left_alone() {
    let (mut streams, around) =
        (Streams::default(), Around { size: 1 << 40, latency: Duration::from_millis(5), room: 1 << 40, kernel: 0 });
    let mut asked = 0;
    for read in 0..10_000 {
        let now = Duration::from_micros(300 * read);
        let seen = Seen { at: read * MIB, length: MIB, waits: read < 10, now };
        if let Some(ask) = streams.read(seen, &around).ask {
            asked += ask.bytes();
            if ask.verify {
                streams.present(&ask);
            }
        }
    }
    assert!(asked <= 2 * VERIFY_EVERY + WINDOW_MAX, "{asked}");
}

#[test]
fn what_the_kernel_does_well_is_left_to_it() {
    // 64 KiB in 300 us and 100 us of latency: 20 KiB must be ahead, and the kernel has 128.
    let mut disk = Disk::new(1 << 30, Duration::from_micros(100));
    let mut left = 0;
    for read in 0..1000 {
        disk.pages.clear();
        left += u64::from(disk.read(read * (64 << 10), 64 << 10).leave);
    }
    assert!(left > 900, "{left}");
    disk.kernel = 0;
    assert!(!disk.read(1000 * (64 << 10), 64 << 10).leave);
}

#[test]
fn a_window_follows_latency_and_rate_and_has_an_end() {
    let mut disk = Disk::new(1 << 40, Duration::from_secs(1));
    for read in 0..2000 {
        disk.read(read * MIB, MIB);
    }
    let window = disk.streams.streams.iter().map(|stream| stream.window).max().unwrap();
    assert_eq!(window, WINDOW_MAX, "3 GB/s times 1 s is far more");
    let mut disk = Disk::new(1 << 40, Duration::from_millis(1));
    for read in 0..5000 {
        disk.read(read * MIB, MIB);
    }
    let window = disk.streams.streams.iter().map(|stream| stream.window).max().unwrap();
    assert!((2 * MIB..=16 * MIB).contains(&window), "3 GB/s times 1 ms is 3.3 MiB, not {window}");
}

#[test]
fn no_room_asks_for_nothing() {
    let mut streams = Streams::default();
    for read in 0..100 {
        let seen = Seen { at: read * MIB, length: MIB, waits: true, now: Duration::from_millis(read) };
        let around = Around { size: 1 << 40, latency: Duration::from_millis(1), room: 0, kernel: 0 };
        assert_eq!(streams.read(seen, &around).ask, None);
    }
}

#[test]
fn a_stream_takes_little_memory() {
    assert!(std::mem::size_of::<Streams>() <= 1280, "{}", std::mem::size_of::<Streams>());
}

/// Random numbers, the same in each run.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn random_reads_ask_for_next_to_nothing() {
    for length in [4096, 64 << 10, MIB] {
        let (mut disk, mut state) = (slow(1 << 36), length);
        for _ in 0..5000 {
            disk.read(random(&mut state) % ((1 << 36) / length) * length, length);
        }
        assert!(disk.asked < 5000 * length / 50, "{} of reads of {length}", disk.asked);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever comes: what is asked for lies in the file, is bounded, and each byte is used, wasted or still unread.
    #[test]
    fn any_schedule_keeps_its_bounds(
        size in 1u64..1 << 34,
        latency in 0u64..50_000,
        reads in prop::collection::vec((any::<u64>(), 0u64..2 << 20, 0u8..4, 1u64..40), 1..60),
    ) {
        let mut disk = Disk::new(size, Duration::from_micros(latency));
        let mut at = 0;
        for (random, length, kind, repeats) in reads {
            for repeat in 0..repeats {
                at = match kind {
                    0 => at + length,
                    1 => at + length * 3,
                    2 => (at + length).wrapping_sub(random % (4 * length + 1)),
                    _ => random.wrapping_mul(repeat + 1),
                } % size;
                disk.read(at, length);
            }
        }
    }

    /// Reads at the end of all that can be read do no harm.
    #[test]
    fn no_offset_is_too_far(at in any::<u64>(), length in any::<u64>(), waits in any::<bool>()) {
        let mut streams = Streams::default();
        let around = Around { size: u64::MAX, latency: Duration::from_secs(1), room: u64::MAX, kernel: 0 };
        for step in 0..10u64 {
            let seen = Seen { at: at.wrapping_add((length & 0xffff_ffff).wrapping_mul(step)), length, waits, now: Duration::from_millis(step) };
            streams.read(seen, &around);
        }
    }
}
