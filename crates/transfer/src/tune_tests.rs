//! The search for a setting, over models of links and disks.

use super::*;

/// Something that moves data: bytes in a second, of threads and bytes at a time.
type Model = fn(f64, f64) -> f64;

/// A link of 1,200 MB/s and a round trip of 2 ms, as long as a request is under way.
fn long_link(streams: f64, step: f64) -> f64 {
    (streams * step / (0.002 + step / 1.2e9)).min(1.2e9)
}

/// A link of 100 Gb/s in one room, whose server does 60,000 requests in a second.
fn short_link(streams: f64, step: f64) -> f64 {
    (streams * step / (60e-6 + step / 3e9)).min(12e9).min(60e3 * step)
}

/// A disk that turns: going on with another file costs it 8 ms, and of several threads the next is
/// another with that chance.
fn turning_disk(streams: f64, step: f64) -> f64 {
    step / (step / 180e6 + 0.008 * (streams - 1.0) / streams)
}

/// Memory: four processors, and caches that hold 256 KiB of each thread's.
fn memory(streams: f64, step: f64) -> f64 {
    let missed = if step > 256.0 * 1024.0 { 1.35 } else { 1.0 };
    let crowded = (streams / 4.0).max(1.0).powf(0.15);
    streams.min(4.0) * step / (1e-6 + step * missed / 5e9) / crowded
}

/// An array: 32 requests at a time, full stripes only of 512 KiB.
fn array(streams: f64, step: f64) -> f64 {
    let stripes = if step >= 512.0 * 1024.0 { 1.0 } else { 0.5 };
    streams.min(32.0) * 90e6 * stripes
}

/// Whatever is asked, as much comes.
fn shaped(_: f64, _: f64) -> f64 {
    117e6
}

/// Where it begins, and the most threads.
const MODELS: [(&str, Model, usize, usize); 6] = [
    ("a long link", long_link, 16, 64),
    ("a short link", short_link, 16, 64),
    ("a turning disk", turning_disk, 4, 16),
    ("memory", memory, 4, 16),
    ("an array", array, 4, 64),
    ("a shaped link", shaped, 16, 64),
];

/// Plays a model for so long: rates are off by up to `noise`.
struct Played {
    model: Model,
    noise: f64,
    random: u64,
    lasts: Duration,
    /// What was asked for, and for how long.
    log: Vec<(Setting, Duration)>,
}

impl Played {
    fn new(model: Model, lasts: u64) -> Played {
        Played { model, noise: 0.0, random: 0, lasts: Duration::from_secs(lasts), log: Vec::new() }
    }

    fn rate(&self, setting: Setting) -> f64 {
        (self.model)(setting.streams as f64, setting.step as f64)
    }

    fn time(&self) -> Duration {
        self.log.iter().map(|(_, length)| *length).sum()
    }

    fn goes_on(&mut self, setting: Setting, length: Duration) -> bool {
        self.log.push((setting, length));
        self.time() < self.lasts
    }
}

impl Trial for Played {
    fn measure(&mut self, setting: Setting) -> Option<f64> {
        let rate = self.rate(setting);
        let length = Duration::from_secs_f64(MOVED_MIN as f64 / rate).clamp(WINDOW_MIN, WINDOW_MAX);
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let off = (self.random >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0;
        self.goes_on(setting, length).then_some(rate * (1.0 + off * self.noise))
    }

    fn rest(&mut self, setting: Setting, length: Duration) -> bool {
        self.goes_on(setting, length)
    }
}

/// The best that a fixed setting gets.
fn best(model: Model, most: usize) -> f64 {
    let steps = (0..).map(|by| STEP_MIN << by).take_while(|step| *step <= STEP);
    let rates = steps.flat_map(|step| (1..=most).map(move |streams| model(streams as f64, step as f64)));
    rates.fold(0.0, f64::max)
}

fn begins(streams: usize) -> Setting {
    Setting { streams, step: STEP }
}

#[test]
fn within_15_seconds_the_choice_has_nine_tenths_of_the_best() {
    for (what, model, usual, most) in MODELS {
        let least = 0.9 * best(model, most);
        for (noise, seed) in [(0.0, 1), (0.01, 2), (0.01, 3), (0.02, 4), (0.02, 5)] {
            for lasts in [15, 30, 60] {
                let mut played = Played { noise, random: seed, ..Played::new(model, lasts) };
                let found = search(begins(usual), most, &mut played);
                let rate = played.rate(found);
                assert!(rate >= least, "{what}, noise {noise}, {lasts} s: {found:?} has {rate:e} of {least:e}");
            }
        }
    }
}

#[test]
fn the_best_is_found_from_either_side() {
    let found = |model: Model, usual, most| search(begins(usual), most, &mut Played::new(model, 30));
    assert_eq!(found(array, 4, 32), begins(32));
    assert_eq!(found(turning_disk, 4, 16), begins(1));
    assert_eq!(found(memory, 1, 16), Setting { streams: 4, step: 256 << 10 });
    // What gains nothing changes nothing.
    assert_eq!(found(shaped, 4, 32), begins(4));
}

#[test]
fn what_is_tried_costs_little_once_it_is_found() {
    let mut played = Played::new(shaped, 600);
    search(begins(16), 64, &mut played);
    let others = played.log.iter().filter(|(setting, _)| *setting != begins(16));
    let tried: Duration = others.map(|(_, length)| *length).sum();
    assert!(tried < played.time() / 20, "{tried:?} of {:?}", played.time());
}

/// Whatever is done, the next window is faster by as much.
struct Grows(f64);

impl Trial for Grows {
    fn measure(&mut self, _: Setting) -> Option<f64> {
        self.0 += 1.0;
        (self.0 < 60.0).then_some(self.0)
    }

    fn rest(&mut self, _: Setting, _: Duration) -> bool {
        true
    }
}

#[test]
fn what_gets_faster_by_itself_is_not_taken_for_a_gain() {
    assert_eq!(search(begins(4), 32, &mut Grows(0.0)), begins(4));
}
