//! A lock that one worker at a time has.

use super::linear::{Next, Object, Timed};

pub struct Lock;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    Take(usize),
    Free(usize),
    /// Somebody else had it.
    Refused(usize),
}

impl Object for Lock {
    /// Who has it.
    type State = Option<usize>;
    type Step = Hold;

    fn next(state: &Option<usize>, step: &Hold) -> Next<Option<usize>> {
        match step {
            Hold::Take(worker) if state.is_none() => Next::To(vec![Some(*worker)]),
            Hold::Free(worker) if *state == Some(*worker) => Next::To(vec![None]),
            Hold::Refused(worker) => Next::same_if(state.is_some_and(|holder| holder != *worker)),
            Hold::Take(_) | Hold::Free(_) => Next::Refused,
        }
    }

    fn is_needless(step: &Hold, _: &[Timed<Hold>]) -> bool {
        matches!(step, Hold::Refused(_))
    }
}
