//! QEMU's monitor, as far as the host agent uses it to start, stop and end a clone. One client at a time.

use std::io::{BufRead, BufReader, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;

use crate::sys::check;

const GREETING: &str = r#"{"QMP":{"version":{"qemu":{"micro":0,"minor":0,"major":9}},"capabilities":[]}}"#;

pub fn listen() -> Result<UnixListener> {
    UnixListener::bind("/sockets/qmp.sock")
}

pub fn serve(listener: &UnixListener, guest: Child) -> Result<()> {
    let mut machine = Machine { guest, status: "inmigrate" };
    loop {
        let (client, _) = listener.accept()?;
        if let Err(error) = machine.talk(client) {
            eprintln!("native-vmm: the monitor's client is gone: {error}");
        }
    }
}

struct Machine {
    guest: Child,
    status: &'static str,
}

impl Machine {
    fn talk(&mut self, mut client: UnixStream) -> Result<()> {
        writeln!(client, "{GREETING}")?;
        for line in BufReader::new(client.try_clone()?).lines() {
            let line = line?;
            let id = number_after(&line, "\"id\":").unwrap_or_default();
            match self.run(text_after(&line, "\"execute\":\"").unwrap_or_default())? {
                Some(result) => writeln!(client, "{{\"id\":{id},\"return\":{result}}}")?,
                None => writeln!(client, "{{\"id\":{id},\"error\":{{\"desc\":\"not possible without a VM\"}}}}")?,
            }
        }
        Ok(())
    }

    /// The result, or nothing if it takes a real machine.
    fn run(&mut self, command: &str) -> Result<Option<String>> {
        match command {
            "qmp_capabilities" => {}
            "query-status" => return Ok(Some(format!("{{\"status\":\"{}\"}}", self.status))),
            "migrate-incoming" => self.change("paused", libc::SIGSTOP)?,
            "stop" => self.change("paused", libc::SIGSTOP)?,
            "cont" => self.change("running", libc::SIGCONT)?,
            // The namespace ends with its first process.
            "quit" => std::process::exit(0),
            _ => return Ok(None),
        }
        Ok(Some("{}".to_owned()))
    }

    fn change(&mut self, status: &'static str, signal: libc::c_int) -> Result<()> {
        // SAFETY: no pointers.
        check(unsafe { libc::kill(self.guest.id() as libc::pid_t, signal) })?;
        self.status = status;
        Ok(())
    }
}

/// The host agent writes its messages with JSON.stringify, so there are no spaces between names and values.
fn text_after<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(name)?.1.split('"').next()
}

fn number_after(line: &str, name: &str) -> Option<u64> {
    let digits = line.split_once(name)?.1;
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_host_agent_are_understood() {
        let line = r#"{"execute":"migrate-incoming","arguments":{"uri":"exec:cat"},"id":17}"#;
        assert_eq!(text_after(line, "\"execute\":\""), Some("migrate-incoming"));
        assert_eq!(number_after(line, "\"id\":"), Some(17));
    }
}
