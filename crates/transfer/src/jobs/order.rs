//! What a job is, as the store keeps it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::ledger::Sides;
use crate::manifest::Text;
use crate::options::Options;
use crate::outcome::shown;
use crate::run::{Plan, Start, find};
use crate::side::{Directory, Place};

/// The version of what is kept. Agents leave others alone.
pub const VERSION: i32 = 1;

/// A job as the store keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Where to.
    pub target: Written,
    /// From where.
    pub bases: Vec<Base>,
    /// What is wanted.
    pub options: Options,
    /// The directory of the destination, as the submitter saw it.
    pub target_mark: Option<Mark>,
}

/// A side as it was written, with an absolute path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Written {
    text: Text,
    is_content: bool,
}

/// What distinguishes one directory from others, whoever sees it: two machines may have different
/// directories of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark(u64, i64, u32);

/// One source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Base {
    /// It.
    pub source: Written,
    /// The directory of the source, as the submitter saw it.
    pub mark: Option<Mark>,
    /// A name becomes a name: at the source and at the destination. `None`: its content becomes
    /// that of the destination.
    pub name: Option<(Text, Text)>,
    /// The name is a directory.
    pub is_directory: bool,
    /// The destination was made.
    pub is_new: bool,
    /// The destination is a directory in which the name goes.
    pub is_inside: bool,
}

impl Mark {
    /// Of a directory of this machine; `None`: of a server's, whose name says all.
    pub fn of(directory: &dyn Directory, place: &Place) -> Option<Mark> {
        let seen = directory.seen().ok().filter(|_| !place.is_projected())?;
        Some(Mark(seen.attr.ino, seen.attr.btime.seconds, seen.attr.btime.nanos))
    }
}

impl Written {
    fn new(place: &Place) -> Written {
        Written { text: Text::new(place.absolute().as_bytes()), is_content: place.is_content }
    }

    /// The place.
    pub fn place(&self) -> Result<Place, Failure> {
        let text = OsString::from_vec(self.text.bytes().unwrap_or_default());
        let mut place = Place::parse(&text)?;
        place.is_content = self.is_content;
        Ok(place)
    }
}

impl Order {
    /// Looks at both sides as a copy would, makes the directory of the destination, and says what
    /// agents are to do.
    pub fn new(plan: &Plan) -> Result<Order, Failure> {
        let starts = find(plan)?;
        let mut target_mark = None;
        let bases = starts.into_iter().zip(&plan.sources).map(|(start, place)| {
            let source = Written::new(place);
            match start {
                Start::Content { source: directory, target, is_new, .. } => {
                    target_mark = target.and_then(|target| Mark::of(&*target, &plan.target));
                    let mark = Mark::of(&*directory, place);
                    Base { source, mark, name: None, is_directory: true, is_new, is_inside: true }
                }
                Start::Name { source: directory, name, seen, target, target_name, is_inside } => {
                    target_mark = target.and_then(|target| Mark::of(&*target, &plan.target));
                    let mark = Mark::of(&*directory, place);
                    let name = Some((Text::new(&name), Text::new(&target_name)));
                    let is_directory = seen.attr.is_directory();
                    Base { source, mark, name, is_directory, is_new: false, is_inside }
                }
            }
        });
        let bases = bases.collect();
        let target = Written::new(&plan.target);
        Ok(Order { target, bases, options: plan.options.clone(), target_mark })
    }

    /// Reads what is kept; `None`: it is none.
    pub fn read(text: &str) -> Option<Order> {
        serde_json::from_str(text).ok()
    }

    /// Which sides are at servers.
    pub fn sides(&self) -> Sides {
        let is_projected = |written: &Written| written.place().is_ok_and(|place| place.is_projected());
        Sides { source: self.bases.iter().any(|base| is_projected(&base.source)), target: is_projected(&self.target) }
    }

    /// From where and where to, for people.
    pub fn shown(&self) -> (Vec<String>, String) {
        let shown = |written: &Written| shown(&written.text.bytes().unwrap_or_default());
        (self.bases.iter().map(|base| shown(&base.source)).collect(), shown(&self.target))
    }

    /// As it is kept.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("an order has only what JSON can hold")
    }
}
