//! The machine's two ports: found by the names QEMU gave them, opened, and, in one rare case, made anew.
//!
//! When a host dies while QEMU could not get rid of the guest's output, QEMU (seen with 7.2) forgets to give the buffer
//! in its hands back to the guest. The queue has 128; after as many such deaths nothing can be written any more. Taking
//! the driver off the device and putting it back makes new queues. It is the only thing that helps, and nobody but the
//! agent could do it: there is no other way into the machine by then.

use std::fs;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::port::Port;

pub const HELLO_PORT: &str = "warren.hello";
pub const AGENT_PORT: &str = "warren.agent";

const CLASS: &str = "/sys/class/virtio-ports";
/// The ports appear a moment after their driver.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(2);

pub struct Ports {
    pub hello: Port,
    pub data: Port,
}

pub async fn open_ports() -> Result<Ports> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let (Some(hello), Some(data)) = (find_port(HELLO_PORT), find_port(AGENT_PORT)) {
            let (hello, data) = (device_file(&hello), device_file(&data));
            if hello.exists() && data.exists() {
                return Ok(Ports { hello: Port::open(&hello)?, data: Port::open(&data)? });
            }
        }
        if Instant::now() > deadline {
            return Err(Error::other(format!("no virtio ports {HELLO_PORT} and {AGENT_PORT}")));
        }
        tokio::time::sleep(STEP).await;
    }
}

/// Takes the driver off the device behind the ports and puts it back. All open ports become useless.
pub fn reset_device() -> Result<()> {
    let port = find_port(AGENT_PORT).ok_or_else(|| Error::other("the agent port is gone"))?;
    let device = fs::canonicalize(port.join("device"))?;
    let driver = fs::canonicalize(device.join("driver"))?;
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    fs::write(driver.join("unbind"), name.as_bytes())?;
    fs::write(driver.join("bind"), name.as_bytes())
}

fn find_port(name: &str) -> Option<PathBuf> {
    let is_it = |port: &PathBuf| fs::read_to_string(port.join("name")).is_ok_and(|found| found.trim() == name);
    fs::read_dir(CLASS).ok()?.flatten().map(|entry| entry.path()).find(is_it)
}

fn device_file(port: &Path) -> PathBuf {
    Path::new("/dev").join(port.file_name().unwrap_or_default())
}
