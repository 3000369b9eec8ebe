//! The data of files.

pub mod content;
pub mod folder;
pub mod journal;
pub mod ranges;
pub mod reader;
pub mod recover;
pub mod save;
pub mod stage;
pub mod upload;
