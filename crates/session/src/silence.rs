//! A server that is silent: its machine, or a router, acknowledges what is sent, and nothing is
//! answered.

use aqueduct_net::{Connection, Hush, Silence};
use aqueduct_wire::{Header, Kind};

/// A connection that is given up again and again is given up ever more seldom, up to so many looks
/// apart (64: some minutes): each time the server is sent again what it perhaps executes still, as
/// when its backing file system hangs.
const PATIENCE_MAX: u32 = 64;

/// The silence of one link.
#[derive(Debug)]
pub(crate) struct LinkSilence {
    silence: Silence,
    heard: u32,
    /// Looks at which it could have been given up.
    gone: u32,
    /// How many such looks it takes.
    patience: u32,
}

impl Default for LinkSilence {
    fn default() -> LinkSilence {
        LinkSilence { silence: Silence::default(), heard: 0, gone: 0, patience: 1 }
    }
}

impl LinkSilence {
    /// One look. `is_due`: an answer is expected.
    pub(crate) fn look(&mut self, is_due: bool, heard: u32, moved: impl FnOnce() -> u64) -> Hush {
        if heard != self.heard {
            (self.heard, self.patience) = (heard, 1);
        }
        let hush = self.silence.look(heard.into(), moved);
        match hush {
            Hush::Heard => {}
            _ if !is_due => {
                self.silence.excuse();
                return Hush::Heard;
            }
            Hush::Gone if self.gone + 1 < self.patience => {
                self.gone += 1;
                return Hush::AskAgain;
            }
            Hush::Gone => self.patience = (self.patience * 2).min(PATIENCE_MAX),
            Hush::Ask | Hush::AskAgain => {}
        }
        hush
    }

    /// Another connection takes the place of the one that was looked at.
    pub(crate) fn begin(&mut self) {
        (self.silence, self.heard, self.gone) = (Silence::default(), 0, 0);
    }
}

/// Asks whether the server is there.
pub(crate) fn ask(connection: &Connection) {
    connection.send(&Header::new(Kind::Ping).encode(), None);
}

/// Gives up a connection on which nothing is heard. The session lives on: the server is told, if
/// this direction still goes, that nobody has left.
pub(crate) fn give_up(connection: &Connection) {
    let status = aqueduct_fs::Errno::ETIMEDOUT.raw() as u32;
    connection.send_unless_busy(&Header { status, ..Header::new(Kind::Goodbye) }.encode());
    connection.vanish("the server answers no question any more".into());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many looks it takes until the connection is given up.
    fn looks(silence: &mut LinkSilence, heard: u32) -> usize {
        (1..1000).find(|_| silence.look(true, heard, || 0) == Hush::Gone).unwrap()
    }

    #[test]
    fn a_link_that_is_given_up_again_is_given_up_later() {
        let mut silence = LinkSilence::default();
        let first = looks(&mut silence, 0);
        let mut next = |heard| {
            silence.begin();
            looks(&mut silence, heard)
        };
        assert_eq!([next(0), next(0), next(0)], [first + 1, first + 3, first + 7]);
        assert_eq!(next(1), first + 1, "it was answered once more; the first look finds that");
    }

    #[test]
    fn a_link_that_waits_for_nothing_is_left_alone() {
        let mut silence = LinkSilence::default();
        assert!((0..100).all(|_| silence.look(false, 7, || 0) == Hush::Heard));
    }
}
