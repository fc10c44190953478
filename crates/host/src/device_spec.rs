//! How the operator names a device: a path, or a path behind a prefix that makes it slow.
//!
//! The grammar is that of [`forebay_device_model::DeviceSpec`] (`PATH`, `hdd:PATH`,
//! `iops:250:PATH`, ...). The text of a spec is what goes into the volume table, so it is kept as
//! it was written.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use forebay_device_model::Model;
use thiserror::Error;

/// A device as the operator names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// What stands before the path, with the colon; empty for a plain path.
    prefix: String,
    path: PathBuf,
    model: Option<Model>,
}

/// A device spec that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(transparent)]
pub struct DeviceSpecError(#[from] forebay_device_model::SpecError);

impl DeviceSpec {
    /// The device at `path`, as fast as it is.
    #[must_use]
    pub fn plain(path: impl Into<PathBuf>) -> DeviceSpec {
        DeviceSpec { prefix: String::new(), path: path.into(), model: None }
    }

    /// Where the device is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The timing it is given; `None` if it stays as fast as it is.
    #[must_use]
    pub fn model(&self) -> Option<&Model> {
        self.model.as_ref()
    }

    /// The same device named by an absolute path, as it belongs into the volume table.
    ///
    /// # Errors
    /// If the working directory cannot be read.
    pub fn absolute(&self) -> std::io::Result<DeviceSpec> {
        Ok(DeviceSpec { path: std::path::absolute(&self.path)?, ..self.clone() })
    }
}

impl FromStr for DeviceSpec {
    type Err = DeviceSpecError;

    fn from_str(text: &str) -> Result<DeviceSpec, DeviceSpecError> {
        let spec = forebay_device_model::DeviceSpec::parse(text)?;
        let prefix = text.strip_suffix(spec.path.as_str()).expect("the path ends the spec");
        Ok(DeviceSpec { prefix: prefix.to_owned(), path: spec.path.into(), model: spec.model })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.prefix, self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_and_display_are_inverse() {
        for text in ["/dev/sdb", "hdd:/dev/shm/slow", "iops:250:./file", "./hdd:file", "/a:b"] {
            let spec: DeviceSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
        let spec: DeviceSpec = "iops:250:/a:b".parse().unwrap();
        assert_eq!(spec.path(), Path::new("/a:b"));
        assert!(spec.model().is_some());
    }

    #[test]
    fn an_absolute_spec_keeps_its_prefix() {
        let spec: DeviceSpec = "iops:250:file".parse().unwrap();
        let absolute = spec.absolute().unwrap();
        assert!(absolute.path().is_absolute());
        assert!(absolute.to_string().starts_with("iops:250:/"));
    }
}
