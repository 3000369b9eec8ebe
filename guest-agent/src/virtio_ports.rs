//! Finds the machine's two virtio ports by the names that QEMU gave them, opens them, and in one rare case resets their
//! device.
//!
//! When a host dies while QEMU cannot deliver the guest's output, QEMU (seen with 7.2) fails to return the current
//! buffer to the guest. The queue has 128 buffers; after as many such deaths nothing can be written any more. Unbinding
//! and rebinding the driver creates new queues. Only the agent can do this, because by then there is no other
//! connection to the machine.

use std::fs;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::port::Port;

pub const HELLO_PORT: &str = "warren.hello";
pub const AGENT_PORT: &str = "warren.agent";

const CLASS: &str = "/sys/class/virtio-ports";
/// The ports appear shortly after their driver is loaded.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub struct Ports {
    pub hello: Port,
    pub data: Port,
}

pub async fn open_ports() -> Result<Ports> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    loop {
        if let (Some(hello), Some(data)) = (find_port(HELLO_PORT), find_port(AGENT_PORT)) {
            let (hello, data) = (device_file(&hello), device_file(&data));
            if hello.exists() && data.exists() {
                return Ok(Ports { hello: Port::open(&hello)?, data: Port::open(&data)? });
            }
        }
        if Instant::now() > deadline {
            return Err(Error::other(format!("virtio ports {HELLO_PORT} and {AGENT_PORT} did not appear")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Unbinds and rebinds the driver of the device behind the ports. All open ports become unusable.
pub fn reset_device() -> Result<()> {
    let port = find_port(AGENT_PORT).ok_or_else(|| Error::other("the agent port does not exist"))?;
    let device = fs::canonicalize(port.join("device"))?;
    let driver = fs::canonicalize(device.join("driver"))?;
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    fs::write(driver.join("unbind"), name.as_bytes())?;
    fs::write(driver.join("bind"), name.as_bytes())
}

fn find_port(name: &str) -> Option<PathBuf> {
    let has_name = |port: &PathBuf| fs::read_to_string(port.join("name")).is_ok_and(|found| found.trim() == name);
    fs::read_dir(CLASS).ok()?.flatten().map(|entry| entry.path()).find(has_name)
}

fn device_file(port: &Path) -> PathBuf {
    Path::new("/dev").join(port.file_name().unwrap_or_default())
}
