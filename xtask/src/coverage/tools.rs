//! The programs that read what instrumented code wrote: `llvm-profdata` and `llvm-cov`.
//!
//! They have to be of the LLVM that the compiler was built with: the format has no stable version.
//! The component `llvm-tools` of the toolchain is exactly that; a distribution's programs of the
//! same major version read the format too.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::packages::has_program;

/// Where the two programs are.
pub(super) struct Tools {
    pub(super) profdata: PathBuf,
    pub(super) cov: PathBuf,
}

impl Tools {
    /// Those of the toolchain, else those of the search path of the same major version.
    pub(super) fn find(compiler: &Compiler) -> anyhow::Result<Tools> {
        let folder = compiler.sysroot.join("lib/rustlib").join(&compiler.host).join("bin");
        let name = |tool: &str| folder.join(tool);
        if name("llvm-profdata").is_file() && name("llvm-cov").is_file() {
            return Ok(Tools { profdata: name("llvm-profdata"), cov: name("llvm-cov") });
        }
        let major = compiler.llvm_major;
        let named = |tool: &str| format!("{tool}-{major}");
        let (profdata, cov) = (named("llvm-profdata"), named("llvm-cov"));
        if has_program(&profdata) && has_program(&cov) {
            return Ok(Tools { profdata: profdata.into(), cov: cov.into() });
        }
        bail!(
            "llvm-profdata and llvm-cov are missing; install them by `rustup component add \
             llvm-tools`, or as {profdata} and {cov} by `apt-get install llvm-{major}`"
        );
    }
}

/// What the compiler says of itself.
pub(super) struct Compiler {
    sysroot: PathBuf,
    /// The triple that it runs on.
    pub(super) host: String,
    llvm_major: u32,
}

impl Compiler {
    pub(super) fn examine() -> anyhow::Result<Compiler> {
        let sysroot = rustc(&["--print", "sysroot"])?;
        let version = rustc(&["-vV"])?;
        let host = value(&version, "host: ").context("rustc -vV names no host")?.to_owned();
        let llvm_major = llvm_major(&version).context("rustc -vV names no version of LLVM")?;
        Ok(Compiler { sysroot: Path::new(sysroot.trim()).to_owned(), host, llvm_major })
    }
}

fn rustc(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("rustc")
        .args(arguments)
        .output()
        .context("cannot run rustc; install it with rustup")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn value<'a>(version: &'a str, key: &str) -> Option<&'a str> {
    version.lines().find_map(|line| line.strip_prefix(key))
}

fn llvm_major(version: &str) -> Option<u32> {
    value(version, "LLVM version: ")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_llvm_is_read_from_what_the_compiler_says() {
        let text = "rustc 1.0.0 (0 2015-05-15)\nhost: x86_64-a-b\nLLVM version: 31.4.1\n";
        assert_eq!(llvm_major(text), Some(31));
        assert_eq!(value(text, "host: "), Some("x86_64-a-b"));
        assert_eq!(llvm_major("rustc 1.0.0\n"), None);
    }
}
