//! How far it is, with the time left: a bar on a terminal, a line for each point elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::cost::span;

/// Shows how far a sweep is.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    done: u64,
    total: u64,
    measured: u64,
    started: Instant,
    guess: f64,
}

impl Progress {
    /// Of a sweep of which each point is guessed to take so many seconds.
    pub fn new(guess: f64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {prefix}  {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_secs(1));
            bar
        });
        Progress { bar, done: 0, total: 0, measured: 0, started: Instant::now(), guess }
    }

    /// So many are done, and so many are likely to be left.
    pub fn expect(&mut self, done: u64, left: u64) {
        (self.done, self.total) = (done, done + left);
        self.show();
    }

    /// What is measured now.
    pub fn begin(&self, title: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(title.to_owned());
        }
    }

    /// A point is done, with these figures.
    pub fn end(&mut self, title: &str, figures: &str) {
        self.done += 1;
        self.measured += 1;
        self.total = self.total.max(self.done);
        self.show();
        if self.bar.is_none() {
            tell!("[{}/{}] {title}: {figures}; {}", self.done, self.total, self.left());
        }
    }

    /// Says something beside.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => tell!("{text}"),
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn left(&self) -> String {
        let each = match self.measured {
            0 => self.guess,
            measured => self.started.elapsed().as_secs_f64() / measured as f64,
        };
        format!("{} left", span(each * (self.total - self.done) as f64))
    }

    fn show(&self) {
        if let Some(bar) = &self.bar {
            bar.set_length(self.total);
            bar.set_position(self.done);
            bar.set_prefix(self.left());
        }
    }
}
