//! Which exports are to have a socket, and where.

use std::path::{Path, PathBuf};

use super::error::VhostUserError;

/// A socket that is to be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VhostUserOptions {
    /// Name of the export.
    pub name: String,
    /// Where the socket shall be.
    pub path: PathBuf,
}

/// Finds two exports that are to be at one socket, before that is made. One export that is named
/// twice is found elsewhere.
pub(crate) fn check_paths(options: &[VhostUserOptions]) -> Result<(), VhostUserError> {
    let places: Vec<PathBuf> = options.iter().map(|option| place_of(&option.path)).collect();
    for (index, (one, place)) in options.iter().zip(&places).enumerate() {
        let mut later = options.iter().zip(&places).skip(index + 1);
        let other = later.find(|(other, at)| other.name != one.name && *at == place);
        if let Some((other, _)) = other {
            let (path, one, other) = (one.path.clone(), one.name.clone(), other.name.clone());
            return Err(VhostUserError::SamePath { path, one, other });
        }
    }
    Ok(())
}

/// Where a socket is, however its path was written. The socket itself need not be there yet.
fn place_of(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => path,
    }
}
