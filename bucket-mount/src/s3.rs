//! S3 as the proxy on the host offers it: docs/disk-protocol.md.

pub mod client;
pub mod connection;
pub mod failure;
pub mod key;
pub mod list;
pub mod metadata;
pub mod multipart;
pub mod transport;
pub mod xml;
