//! The sample that `make test` runs, and what `make soak` asks for.

use std::time::{Duration, Instant};

use crate::checker::Promise;
use crate::common::within;
use crate::plan::{Theme, Trouble, Weather, plan};
use crate::run::{Arena, Setting, Tally};

/// Mounts of a soak.
const MOUNTS: usize = 8;

/// Most histories have no trouble; a hundredth of what they have holds the clients' time for seconds.
const SOAK_WEATHER: Weather = Weather { far: 60, short: 35, long: 5, longest: 6 };

/// The sample: some of everything, no trouble that takes long.
const SAMPLE_WEATHER: Weather = Weather { far: 80, short: 80, long: 0, longest: 0 };

/// Mounts of the sample.
const SAMPLE_MOUNTS: usize = 4;

/// Histories until a lie is found, at most; mostly it takes ten.
const LIES_MAX: usize = 1000;

/// What a sample takes at most, on a busy machine.
const SAMPLE_MAX: Duration = Duration::from_secs(240);

/// A volume that is read through all its servers, and one that is written through them, too.
const CLUSTER: &str = "mode = 'cluster'";
const STRAIGHT: &str = "mode = 'stripe'\nstripe_size = '64KiB'\nwrites = 'data'";

/// The same, and by several clients into one file at the same time.
const BESIDE: &str = "mode = 'stripe'\nstripe_size = '64KiB'\nwrites = 'data'\nconcurrent = true";

/// Directories that share nothing, with objects of files that are not tiny.
const PLAIN: &str = "mode = 'striped'\nstripe_size = '64KiB'\ninline_max = '1KiB'";

/// So little goes straight to a server of data here: files of histories are small.
const STRAIGHT_FROM: &str = "straight_from=2K";

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not '{text}'")))
}

/// How many of a thousand histories have which trouble, as `WEATHER=far,short,long,longest` says.
fn soak_weather() -> Weather {
    let Some(text) = std::env::var("WEATHER").ok().filter(|text| !text.is_empty()) else { return SOAK_WEATHER };
    let shares: Vec<usize> = text.split(',').map(|share| share.parse().expect("WEATHER is four numbers")).collect();
    let [far, short, long, longest] = shares[..] else { panic!("WEATHER is four numbers, not {text}") };
    Weather { far, short, long, longest }
}

/// The mode of caching, with more options of the mounts behind it.
fn setting(mounts: usize, cache: &str, options: &str) -> Setting {
    let promise = if cache == "close-to-open" { Promise::CloseToOpen } else { Promise::Linearizable };
    let more = if options.is_empty() { String::new() } else { format!(",{options}") };
    Setting { mounts, options: format!("cache={cache}{more}"), promise, servers: 0, volume: CLUSTER.to_owned() }
}

/// Plays histories, until something with the word `wanted` is found if there is one; what was found is printed.
fn play(setting: &Setting, seeds: impl Iterator<Item = u64>, weather: &Weather, wanted: Option<&str>) -> Tally {
    let mut arena = Arena::start(setting);
    let (mut tally, started) = (Tally::default(), Instant::now());
    for seed in seeds {
        let plan = plan(seed, setting.mounts, weather);
        let (history, violations) = arena.play(&plan, &mut tally);
        for violation in &violations {
            println!("\nseed {seed} ({:?}, mounts {:?}): {violation}", plan.theme, plan.mounts);
            history.troubles.iter().for_each(|trouble| println!("   {}", history.trouble_line(trouble)));
            if std::env::var_os("WHOLE").is_some() {
                (0..history.events.len()).for_each(|number| println!("   | {}", history.line(number)));
            }
        }
        if tally.histories.is_multiple_of(500) {
            println!("{} [{:.0} s]", line(&tally), started.elapsed().as_secs_f64());
        }
        if wanted.is_some_and(|word| violations.iter().any(|violation| violation.what.contains(word))) {
            break;
        }
    }
    (tally.gathered, tally.straight) = (arena.gathered(), arena.straight());
    let wrong = arena.end();
    assert!(wrong.is_empty(), "{wrong:?}");
    tally
}

fn line(tally: &Tally) -> String {
    let troubles: Vec<_> = tally.troubles.iter().map(|(name, count)| format!("{name} {count}")).collect();
    format!(
        "{} histories, {} operations, {} in conflict, {} in the midst of writes, {} writes held back ({} requests), {} of unknown outcome, {} troubles ({}), {} servers of data killed, {} MiB straight: {} violations",
        tally.histories,
        tally.operations,
        tally.conflicts,
        tally.midst,
        tally.gathered.0,
        tally.gathered.1,
        tally.unknown,
        tally.troubles.values().sum::<usize>(),
        troubles.join(", "),
        tally.deaths,
        tally.straight >> 20,
        tally.violations
    )
}

fn sample(cache: &'static str, seeds: std::ops::Range<u64>) {
    sample_of(0, cache, seeds);
}

/// Histories in which a server is killed or stopped.
fn with_servers_in_trouble(first: u64, count: usize) -> impl Iterator<Item = u64> {
    let is_one = |trouble: &Trouble| matches!(trouble, Trouble::KillServer(_) | Trouble::StopServer(_));
    let has_one = move |seed: &u64| {
        plan(*seed, SAMPLE_MOUNTS, &SAMPLE_WEATHER).troubles.iter().any(|(_, trouble)| is_one(trouble))
    };
    (first..).filter(has_one).take(count)
}

/// Of a volume of so many servers; 0: of one server.
fn sample_of(servers: usize, cache: &'static str, seeds: impl Iterator<Item = u64> + Send + 'static) {
    sample_with(Setting { servers, ..setting(SAMPLE_MOUNTS, cache, "") }, cache, seeds);
}

fn sample_with(setting: Setting, cache: &'static str, seeds: impl Iterator<Item = u64> + Send + 'static) {
    within(SAMPLE_MAX, move || {
        let is_straight = setting.volume != CLUSTER;
        let tally = play(&setting, seeds, &SAMPLE_WEATHER, None);
        println!("{cache}: {}", line(&tally));
        assert_eq!(tally.violations, 0);
        assert_eq!(tally.straight > 0, is_straight, "{} bytes went straight", tally.straight);
        let (held, requests) = tally.gathered;
        let holds_back = held > 200 && requests * 2 < held && tally.midst > 50;
        assert!(holds_back || cache != "lease", "a sample of nothing held back: {}", line(&tally));
        assert!(tally.conflicts > 100 && !tally.troubles.is_empty(), "a sample of nothing: {}", line(&tally));
    });
}

#[test]
fn every_history_has_an_order() {
    sample("none", 0..40);
}

#[test]
fn every_history_under_leases_has_an_order() {
    sample("lease", 100..150);
}

#[test]
fn every_history_of_a_volume_has_an_order() {
    sample_of(3, "lease", (200..240).chain(with_servers_in_trouble(300, 12)));
}

/// The same where what is held back goes straight to servers of data, under rights.
#[test]
fn every_history_of_what_goes_straight_has_an_order() {
    let straight =
        Setting { servers: 3, volume: STRAIGHT.to_owned(), ..setting(SAMPLE_MOUNTS, "lease", STRAIGHT_FROM) };
    let gathered = |seed: &u64| plan(*seed, SAMPLE_MOUNTS, &SAMPLE_WEATHER).theme == Theme::Gathered;
    sample_with(straight, "lease", (400..).filter(gathered).take(30).chain(with_servers_in_trouble(500, 10)));
}

/// And where several clients write one file straight at the same time.
#[test]
fn every_history_of_what_is_written_beside_others_has_an_order() {
    let beside = Setting { servers: 3, volume: BESIDE.to_owned(), ..setting(SAMPLE_MOUNTS, "lease", STRAIGHT_FROM) };
    let gathered = |seed: &u64| plan(*seed, SAMPLE_MOUNTS, &SAMPLE_WEATHER).theme == Theme::Gathered;
    sample_with(beside, "lease", (600..).filter(gathered).take(30).chain(with_servers_in_trouble(700, 10)));
}

/// And where directories share nothing.
#[test]
fn every_history_of_plain_directories_has_an_order() {
    let plain = Setting { servers: 3, volume: PLAIN.to_owned(), ..setting(SAMPLE_MOUNTS, "lease", STRAIGHT_FROM) };
    let gathered = |seed: &u64| plan(*seed, SAMPLE_MOUNTS, &SAMPLE_WEATHER).theme == Theme::Gathered;
    let seeds = (800..).filter(gathered).take(20).chain(900..915).chain(with_servers_in_trouble(1000, 10));
    sample_with(plain, "lease", seeds);
}

#[test]
fn who_opens_after_a_close_sees_what_was_written() {
    sample("close-to-open", 0..30);
}

/// Mounts that may lie are found to lie, each in what it may lie about.
#[test]
fn caches_that_lie_are_found() {
    let fair = Weather { far: 0, short: 0, long: 0, longest: 0 };
    let lies = move |cache: &str, options: &str, theme: Theme, about: &str| {
        let setting = Setting { promise: Promise::Linearizable, ..setting(2, cache, options) };
        let seeds = (0..u64::MAX).filter(|seed| plan(*seed, setting.mounts, &fair).theme == theme).take(LIES_MAX);
        let tally = play(&setting, seeds, &fair, Some(about));
        assert!(tally.histories < LIES_MAX, "{} does not lie about {about}: {}", setting.options, line(&tally));
    };
    within(SAMPLE_MAX, move || {
        lies("none", "entry_timeout=3", Theme::Names, "names");
        lies("none", "attr_timeout=3", Theme::Data, "size");
        lies("close-to-open", "attr_timeout=3", Theme::Data, "block");
    });
}

/// `make soak`: HISTORIES of them, with the mode CACHE and more OPTIONS for the mounts, of a
/// volume of so many SERVERS. STRAIGHT=1 has it written through all of them, CONCURRENT=1 also by
/// several clients into one file at the same time; PLAIN=1 has it of directories that share nothing.
/// FIRST_SEED is where the seeds begin; SEED replays one as often. THEME plays those of one theme
/// alone, KILLS=1 those in which a server is killed.
#[test]
#[ignore = "make soak"]
fn soak() {
    let cache = std::env::var("CACHE").ok().filter(|cache| !cache.is_empty()).unwrap_or("lease".to_owned());
    let servers = variable("SERVERS").unwrap_or_default() as usize;
    let options = std::env::var("OPTIONS").unwrap_or_default();
    let setting = match variable("STRAIGHT").unwrap_or_default() {
        0 => Setting { servers, ..setting(MOUNTS, &cache, &options) },
        _ => {
            let options = if options.is_empty() { options } else { format!(",{options}") };
            let of_mounts = setting(MOUNTS, &cache, &format!("{STRAIGHT_FROM}{options}"));
            let is_beside = variable("CONCURRENT").unwrap_or_default() > 0;
            let is_plain = variable("PLAIN").unwrap_or_default() > 0;
            let volume = match (is_plain, is_beside) {
                (true, _) => PLAIN,
                (false, true) => BESIDE,
                (false, false) => STRAIGHT,
            };
            Setting { servers: servers.max(2), volume: volume.to_owned(), ..of_mounts }
        }
    };
    let count = variable("HISTORIES").unwrap_or(if variable("SEED").is_some() { 1 } else { 10_000 });
    let seed = variable("SEED");
    let first = variable("FIRST_SEED").unwrap_or(1);
    within(Duration::from_secs(120 + count * 20), move || {
        let started = Instant::now();
        let theme = std::env::var("THEME").ok().filter(|theme| !theme.is_empty());
        let weather = soak_weather();
        let kills = variable("KILLS").unwrap_or_default() > 0;
        let is_kill = |(_, trouble): &(Duration, Trouble)| matches!(trouble, Trouble::KillServer(_));
        let is_wanted = |seed: &u64| {
            let plan = plan(*seed, MOUNTS, &weather);
            let has_theme = theme.as_ref().is_none_or(|theme| *theme == format!("{:?}", plan.theme));
            has_theme && (!kills || plan.troubles.iter().any(is_kill))
        };
        assert!(seed.is_none_or(|seed| is_wanted(&seed)), "SEED is none of what THEME and KILLS ask for");
        let seeds = (first..).map(move |number| seed.unwrap_or(number)).filter(is_wanted).take(count as usize);
        let tally = play(&setting, seeds, &weather, None);
        let minutes = started.elapsed().as_secs_f64() / 60.0;
        let rate = tally.histories as f64 / minutes;
        println!("{}: {}; {minutes:.1} minutes, {rate:.0} histories a minute", setting.options, line(&tally));
        assert_eq!(tally.violations, 0);
    });
}
