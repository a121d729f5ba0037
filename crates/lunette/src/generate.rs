//! `lunette generate`: manual pages and completions, generated from the command line's own description.

use crate::Failure;
use crate::arguments::Arguments;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Options of `lunette generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    /// Directory in which man1 (manual pages), bash, fish and zsh (completions) are created
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes them.
pub(crate) fn run(arguments: &GenerateArguments) -> Result<String, Failure> {
    let GenerateArguments { directory } = arguments;
    write(directory).map_err(|error| Failure::failed(format!("{}: {error}", directory.display())))?;
    Ok(String::new())
}

fn write(directory: &Path) -> io::Result<()> {
    let manual = directory.join("man1");
    fs::create_dir_all(&manual)?;
    clap_mangen::generate_to(Arguments::command(), &manual)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let scripts = directory.join(shell.to_string());
        fs::create_dir_all(&scripts)?;
        clap_complete::generate_to(shell, &mut Arguments::command(), "lunette", scripts)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_and_each_shell_its_completions() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        write(directory.path()).expect("they are written");
        for file in [
            "man1/lunette.1",
            "man1/lunette-serve.1",
            "man1/lunette-lun-add.1",
            "fish/lunette.fish",
            "zsh/_lunette",
        ] {
            assert!(directory.path().join(file).is_file(), "{file}");
        }
        let bash = fs::read_to_string(directory.path().join("bash/lunette.bash")).expect("a file");
        assert!(bash.contains("--log-level"));
    }
}
