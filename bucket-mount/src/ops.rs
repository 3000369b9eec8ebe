//! What programs ask for, in terms of objects.

pub mod attributes;
pub mod files;
pub mod listing;
pub mod lookup;
pub mod namespace;
pub mod read_directory;
pub mod rename;
