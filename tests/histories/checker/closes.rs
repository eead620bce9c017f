//! What close-to-open promises: an open that begins after a close has ended sees what was written before that close, and everybody reads what he wrote himself.

use super::linear::Timed;
use super::objects::{Block, Handle, Objects, word_at};
use crate::history::{Call, History, Value};

/// A write, with when its descriptor was closed.
struct Write<T> {
    timed: Timed<T>,
    worker: usize,
    closed: u64,
}

/// The first read of a block that gave what it must not, with what should have hidden it.
pub fn block(
    history: &History,
    objects: &Objects,
    steps: &[Timed<Block>],
    initial: u64,
    place: usize,
) -> Option<(usize, usize)> {
    let mut writes = vec![(0, initial)];
    let mut hiding = Vec::new();
    for timed in steps {
        if let Block::Write(token) | Block::MayWrite(token) = timed.step {
            writes.push((timed.begin, token));
            if timed.required && timed.step == Block::Write(token) {
                let (worker, closed) = closed(history, objects, timed.origin);
                hiding.push(Write { timed: timed.clone(), worker, closed });
            }
        }
    }
    // When what is over began at the latest.
    let ended = |begin: u64, token: u64| {
        let writes = [Block::Write(token), Block::MayWrite(token)];
        let of = |timed: &&Timed<Block>| timed.begin == begin && writes.contains(&timed.step);
        steps.iter().find(of).map_or(0, |timed| timed.end)
    };
    steps.iter().find_map(|read| {
        let Block::Read(runs) = &read.step else { return None };
        let seen = word_at(runs, place);
        let handle = handle(history, objects, read.origin)?;
        let worker = history.events[read.origin].worker;
        let hidden_by = |begin: u64| {
            let end = ended(begin, seen);
            let hides = |write: &&Write<Block>| {
                let own = write.worker == worker && write.timed.end < read.begin;
                end < write.timed.begin && (own || write.closed < handle.opened)
            };
            hiding.iter().find(hides).map(|write| write.timed.origin)
        };
        let candidates = writes.iter().filter(|(begin, token)| *token == seen && *begin <= read.end);
        let hidden: Vec<_> = candidates.map(|(begin, _)| hidden_by(*begin)).collect();
        // Of what nobody wrote there is no candidate.
        let first = hidden.first().copied().flatten().unwrap_or(read.origin);
        hidden.iter().all(Option::is_some).then_some((first, read.origin))
    })
}

/// The first read of the log that lacks a record it must have, or has one twice.
pub fn log(history: &History, objects: &Objects) -> Option<(usize, usize)> {
    let appends = || {
        history.events.iter().enumerate().filter_map(|(number, event)| match (&event.call, &event.result) {
            (Call::Append { token, .. }, Some(Ok(_))) => Some((number, event, *token)),
            _ => None,
        })
    };
    history.events.iter().enumerate().find_map(|(number, read)| {
        let (Call::ReadLog { .. }, Some(Ok(Value::Records(records)))) = (&read.call, &read.result) else { return None };
        let handle = handle(history, objects, number)?;
        let must = |append: usize, worker: usize, end: u64| {
            let (_, closed) = closed(history, objects, append);
            closed < handle.opened || worker == read.worker && end < read.begin
        };
        let missing = appends().find(|(append, event, token)| {
            must(*append, event.worker, event.end) && records.iter().filter(|record| *record == token).count() != 1
        });
        missing.map(|(append, ..)| (append, number))
    })
}

fn handle(history: &History, objects: &Objects, number: usize) -> Option<Handle> {
    let event = history.events.get(number)?;
    event.call.handle().and_then(|handle| objects.handles.get(&(event.worker, handle))).copied()
}

/// Who wrote, and when the descriptor was closed.
fn closed(history: &History, objects: &Objects, number: usize) -> (usize, u64) {
    (history.events[number].worker, handle(history, objects, number).map_or(u64::MAX, |handle| handle.closed))
}
