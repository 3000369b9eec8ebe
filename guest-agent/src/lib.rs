//! The guest agent: the one program of ours inside the virtual machine. See `main.rs` for its life, `channel.rs`
//! for how the host reaches it and `serve.rs` for what it answers. `protocol/src/guest-api.ts` is the contract.

pub mod agent;
pub mod boot;
pub mod channel;
pub mod clock;
pub mod entropy;
pub mod exec;
pub mod files;
pub mod grow;
pub mod hello;
pub mod identity;
pub mod kmsg;
pub mod machine;
pub mod marked_block;
pub mod metrics;
pub mod net;
pub mod port;
pub mod ports;
pub mod ready;
pub mod reap;
pub mod reply;
pub mod serve;
pub mod session_io;
pub mod shutdown;
pub mod spawn;
pub mod sys;
pub mod wake;
pub mod work;
