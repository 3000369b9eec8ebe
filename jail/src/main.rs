//! Starts a program that can reach nothing on the machine but what its command line names.
//!
//! `jail …` starts QEMU and becomes it (vmm.rs). `jail service …` starts one of Warren's own services and stays as its
//! parent (service.rs). `jail hand-over …` gives folders to the user of a service (hand_over.rs).
//!
//! What must stay true: everything that can fail happens before the program runs, and a failure ends the start. There is
//! no "less confined" way to start. Namespaces of users are not needed, so it works where they are switched off.

mod bpf;
mod hand_over;
mod mounts;
mod privileges;
mod service;
mod sys;
mod vmm;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    match args.peek().map(String::as_str) {
        Some("service") => service::main(args.skip(1)),
        Some("hand-over") => hand_over::main(args.skip(1)),
        _ => vmm::main(args),
    }
}
