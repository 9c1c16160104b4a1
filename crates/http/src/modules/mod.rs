//! The modules, in the order in which their handlers and filters run.

use std::marker::PhantomData;

use crate::module::{AnyModule, Entry, Module};

fn entry<M: Module>() -> Box<dyn AnyModule> {
    Box::new(Entry::<M>(PhantomData))
}

/// All modules of this build.
pub fn all() -> Vec<Box<dyn AnyModule>> {
    vec![entry::<crate::core::Core>()]
}
