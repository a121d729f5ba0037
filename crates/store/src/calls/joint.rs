//! A call that is carried out in parts, at the same time: it ends with the last of them.

use super::{Call, Guard, Work};
use std::sync::{Arc, Mutex, PoisonError};

/// A call whose parts have not all ended.
pub(crate) struct Joint {
    /// That of the call's guard.
    pub(super) number: Option<u64>,
    state: Mutex<State>,
}

struct State {
    whole: Option<Box<Call>>,
    open: usize,
}

/// Splits a flush: each part is one, and the call ends with the error of one that fails.
pub(crate) fn split(mut whole: Box<Call>, parts: usize) -> impl Iterator<Item = Box<Call>> {
    let to = whole.to.clone();
    whole.answer = 0;
    let number = whole.guard.as_ref().map(Guard::number);
    let joint = Arc::new(Joint { number, state: Mutex::new(State { whole: Some(whole), open: parts }) });
    (0..parts).map(move |_| {
        let mut part = Call::new(&to);
        part.work = Work::Flush;
        part.part_of = Some(joint.clone());
        part
    })
}

impl Joint {
    /// What the call holds.
    pub(super) fn take_guard(&self) -> Option<Guard> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.whole.as_mut()?.guard.take()
    }

    /// A part has ended; returns the call if it was the last one.
    pub(crate) fn ended(&self, part: &Call) -> Option<Box<Call>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.open -= 1;
        let is_last = state.open == 0;
        let whole = state.whole.as_mut()?;
        whole.answer = whole.answer.min(part.answer);
        if is_last { state.whole.take() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Mailbox;

    #[test]
    fn a_call_in_parts_ends_once_with_the_last_one_and_fails_with_any() {
        for (answers, expected) in [([0, 0, 0], 0), ([0, -5, 0], -5), ([-5, 0, 0], -5)] {
            let mail = Mailbox::new().unwrap();
            let mut whole = Call::new(&mail);
            whole.slot = 7;
            // That of an earlier operation.
            whole.answer = 4096;
            let parts: Vec<_> = split(whole, 3).collect();
            let mut arrived = Vec::new();
            for (mut part, answer) in parts.into_iter().zip(answers) {
                mail.take(&mut arrived);
                assert!(arrived.is_empty());
                assert_eq!((part.work, part.guard.is_none()), (Work::Flush, true));
                part.answer = answer;
                Call::answered(part);
            }
            mail.take(&mut arrived);
            assert_eq!(
                arrived.iter().map(|call| (call.slot, call.answer)).collect::<Vec<_>>(),
                [(7, expected)]
            );
        }
    }
}
