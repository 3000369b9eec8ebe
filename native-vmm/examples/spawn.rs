//! The cost of starting a program and waiting for it, without anything around it: posix_spawn and waitpid.
//!
//! Reads a number from each line of its input, starts `/bin/true` as often, and prints the milliseconds that one took.

use std::io::{Result, stdin};
use std::process::{Command, Stdio};
use std::time::Instant;

fn main() -> Result<()> {
    for line in stdin().lines() {
        let count: u32 = line?.trim().parse().map_err(std::io::Error::other)?;
        let started = Instant::now();
        for _ in 0..count {
            Command::new("/bin/true").stdin(Stdio::null()).status()?;
        }
        println!("{}", started.elapsed().as_secs_f64() * 1000.0 / f64::from(count));
    }
    Ok(())
}
