//! The answers of one resolver, for as long as they hold.
//!
//! Invariant: never more than [`MAX_TARGETS`] entries.

use std::collections::HashMap;

use super::{Answer, Target};

/// How many answers are kept. With room for [`super::message::MAX_ADDRESSES`] addresses each, the cache
/// of a resolver stays below 200 MB in the worst case, and some MB in any likely one.
const MAX_TARGETS: usize = 8_192;

#[derive(Default)]
pub(super) struct Cache {
    answers: HashMap<Target, Answer>,
}

impl Cache {
    /// What is known of a target.
    pub fn find(&self, target: &Target, now_ms: u64) -> Option<Answer> {
        self.answers.get(target).filter(|answer| now_ms < answer.valid_until_ms).cloned()
    }

    /// Keeps an answer. In a full cache, those that no longer hold go; if all hold, half of them.
    pub fn keep(&mut self, target: Target, answer: Answer, now_ms: u64) {
        if answer.valid_until_ms <= now_ms {
            self.answers.remove(&target);
            return;
        }
        if self.answers.len() >= MAX_TARGETS {
            self.answers.retain(|_, answer| now_ms < answer.valid_until_ms);
        }
        if self.answers.len() >= MAX_TARGETS {
            let mut odd = false;
            self.answers.retain(|_, _| {
                odd = !odd;
                odd
            });
        }
        self.answers.insert(target, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolver::Endpoint;

    fn answer(valid_until_ms: u64) -> Answer {
        let ip = [127, 0, 0, 1].into();
        let endpoint = Endpoint { ip, port: 0, priority: 0, weight: 0, host: None };
        Answer { endpoints: [endpoint].into(), missing: Vec::new(), valid_until_ms }
    }

    #[test]
    fn an_answer_holds_for_its_time() {
        let (mut cache, target) = (Cache::default(), Target::host("a"));
        cache.keep(target.clone(), answer(100), 50);
        assert!(cache.find(&target, 99).is_some());
        assert!(cache.find(&target, 100).is_none());
        assert!(cache.find(&Target::Service("a".into()), 99).is_none());
    }

    #[test]
    fn the_number_of_answers_is_bounded() {
        let mut cache = Cache::default();
        for n in 0..3 * MAX_TARGETS {
            cache.keep(Target::host(&n.to_string()), answer(100), 50);
            assert!(cache.answers.len() <= MAX_TARGETS);
        }
        let mut cache = Cache::default();
        for n in 0..MAX_TARGETS {
            cache.keep(Target::host(&n.to_string()), answer(100 + n as u64 % 2), 50);
        }
        cache.keep(Target::host("last"), answer(200), 100);
        assert_eq!(cache.answers.len(), MAX_TARGETS / 2 + 1);
    }
}
