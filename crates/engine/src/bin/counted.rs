//! Serves a configuration file until it is killed, without the command-line program around the engine: `cargo
//! xtask instructions` counts the engine's instructions, and this builds in a fraction of the time.
#![forbid(unsafe_code)]

use config::Config;
use engine::Daemon;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: counted FILE")?);
    let config = Config::from_toml(&std::fs::read_to_string(&file)?, &file)?;
    let _daemon = Daemon::start(config)?;
    loop {
        std::thread::park();
    }
}
