//! The FUSE protocol, spoken directly: the crates for it answer FUSE_INTERRUPT as unknown, after which the kernel never
//! sends it again, and a killed program waits until its request is answered.

pub mod abi;
pub mod device;
pub mod interrupt;
pub mod request;
pub mod session;
pub mod wire;
