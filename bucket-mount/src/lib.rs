//! Mounts a bucket in a guest: a FUSE filesystem whose files are objects, reached through the S3 proxy of the host.
//! `main.rs` describes its life, `control.rs` how the guest agent directs it.

pub mod config;
pub mod control;
pub mod file;
pub mod fuse;
pub mod handles;
pub mod md5;
pub mod mount;
pub mod ops;
pub mod probe;
pub mod random;
pub mod s3;
pub mod time;
pub mod tree;
