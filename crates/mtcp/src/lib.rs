//! TCP in user space, after mTCP (Jeong et al., NSDI 2014): packet devices, one engine per core,
//! sockets with readiness events, and a driver for the channel of `megapipe`.

pub mod device;
pub mod network;

mod system;
