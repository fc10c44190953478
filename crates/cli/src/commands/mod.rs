//! The commands, one file each.

mod advise;
mod attach;
mod bench;
mod check;
mod detach;
mod discard_dirty;
mod down;
mod drain;
mod explain;
pub(crate) mod format;
mod invalidate;
mod online;
mod pin;
mod replay;
mod resize;
mod serve;
mod set;
mod show;
mod status;
mod status_text;
mod stop;
mod traces;
mod up;
mod wipe;
mod write_out;

use std::process::ExitCode;

use crate::args::Command;
use crate::exit::Failure;
pub(crate) use attach::attach_offline;
pub(crate) use status_text::latency_text;

/// Runs a command.
pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        Command::Format(arguments) => format::run(&arguments).map(done),
        Command::Attach(arguments) => attach::run(&arguments).map(done),
        Command::Serve(arguments) => serve::run(arguments).map(done),
        Command::Up(arguments) => up::run(arguments),
        Command::Down(arguments) => down::run(&arguments).map(done),
        Command::Status(arguments) => status::run(&arguments).map(done),
        Command::Explain(arguments) => explain::run(&arguments).map(done),
        Command::Set(arguments) => set::run(&arguments).map(done),
        Command::Pin(arguments) => pin::pin(&arguments).map(done),
        Command::Unpin(arguments) => pin::unpin(&arguments).map(done),
        Command::Drain(arguments) => drain::run(&arguments).map(done),
        Command::Detach(arguments) => detach::run(&arguments).map(done),
        Command::Resize(arguments) => resize::run(&arguments).map(done),
        Command::Invalidate(arguments) => invalidate::run(&arguments).map(done),
        Command::Stop(arguments) => stop::run(&arguments).map(done),
        Command::Show(arguments) => show::run(&arguments).map(done),
        Command::Check(arguments) => check::run(&arguments),
        Command::Wipe(arguments) => wipe::run(&arguments).map(done),
        Command::Replay(arguments) => replay::run(&arguments).map(done),
        Command::Advise(arguments) => advise::run(&arguments).map(done),
        Command::Bench(arguments) => bench::run(&arguments).map(done),
        Command::Demo(arguments) => crate::demo::run(&arguments),
        Command::WriteOut(arguments) => write_out::run(&arguments).map(done),
    }
}
