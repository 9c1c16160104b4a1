//! The nginx configuration language: lexer, tree, `include`, directive tables, values, diagnostics,
//! formatter and dump. It answers nginx's `core/ngx_conf_file.c` and `core/ngx_parse.c`.
//!
//! The way of a configuration: [`parse()`] turns files into a tree of [`Node`]s with every `include`
//! expanded in place; the caller walks the tree, asks an [`Index`] which [`Spec`] a node is and whether
//! it stands and looks right, and calls the typed setter of its [`Directive`]. Whatever is wrong goes
//! to [`Diagnostics`], so that one run shows all errors of all files.
//!
//! Invariant: no directive is known here but `include`; what directives exist is said by the tables of
//! the crates above. Files are read through [`Files`] only, so that a worker can load from a record.
#![forbid(unsafe_code)]

mod lexer;

pub mod directive;
pub mod dump;
pub mod error;
pub mod files;
pub mod fmt;
pub mod glob;
pub mod index;
pub mod parse;
pub mod record;
pub mod reference;
pub mod source;
pub mod suggest;
pub mod tree;
pub mod value;

pub use directive::{Arity, Contexts, Directive, Loader, Spec, check};
pub use error::{Braces, Diagnostics, Error, Level};
pub use files::{Direct, Files};
pub use index::Index;
pub use parse::{ParseOptions, parse, parse_command_line, parse_text};
pub use record::{Record, Recording, Replay};
pub use source::{FileId, Sources, Span};
pub use tree::{Arg, Node};
