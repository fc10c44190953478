//! Control commands of the ublk driver: make, start, take over, stop, remove.
//!
//! They have a small ring of their own, for two reasons. A control command needs the 80 bytes of a
//! large submission entry, and a ring has entries of one size; those of the data path fit into
//! ordinary ones, so the shard's ring need not double its queue. And several of them block in the
//! kernel, some until the data path has done its part; so the caller is a thread that may wait, and
//! each method returns when its command has ended.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use zerocopy::IntoBytes;

use super::abi::{ControlCommand, DeviceInfo, Operation, PARAMETERS_BYTES, Parameters, feature};
use super::error::{CONTROL_PATH, UblkError};

/// One command at a time.
const RING_ENTRIES: u32 = 4;
/// Names no queue.
const NO_QUEUE: u16 = u16::MAX;
/// As a device's number: let the driver choose.
const ANY_NUMBER: u32 = u32::MAX;

/// Features that a device of ours needs, by their names in the kernel's header.
const FEATURES: [(u64, &str); 4] = [
    (feature::USER_RECOVERY, "UBLK_F_USER_RECOVERY"),
    (feature::USER_RECOVERY_REISSUE, "UBLK_F_USER_RECOVERY_REISSUE"),
    (feature::CMD_IOCTL_ENCODE, "UBLK_F_CMD_IOCTL_ENCODE"),
    (feature::USER_COPY, "UBLK_F_USER_COPY"),
];

/// All of [`FEATURES`].
pub(super) fn needed_features() -> u64 {
    FEATURES.iter().fold(0, |all, (bit, _)| all | bit)
}

/// The first of [`FEATURES`] that the driver does not have.
fn missing_feature(found: u64) -> Option<&'static str> {
    FEATURES.iter().find(|(bit, _)| found & bit == 0).map(|(_, name)| *name)
}

/// The control device.
pub(super) struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// What the driver can do.
    features: u64,
}

impl Control {
    /// Opens the control device of a driver that can do what is needed.
    pub(super) fn open() -> Result<Control, UblkError> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL_PATH);
        let file = file.map_err(|source| match source.kind() {
            // A node without a driver behind it says ENXIO or ENODEV.
            io::ErrorKind::NotFound => UblkError::NoDriver,
            io::ErrorKind::PermissionDenied => UblkError::NoPermission,
            _ if matches!(source.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) => {
                UblkError::NoDriver
            }
            _ => UblkError::Open { path: CONTROL_PATH.to_owned(), source },
        })?;
        let ring = IoUring::builder()
            .dontfork()
            .build(RING_ENTRIES)
            .map_err(|source| UblkError::Ring { source })?;
        let mut control = Control { file, ring, features: 0 };
        match control.ask_features() {
            Ok(found) => match missing_feature(found) {
                None => {
                    control.features = found;
                    Ok(control)
                }
                Some(missing) => Err(UblkError::Feature { missing }),
            },
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(UblkError::NoPermission),
            // Older drivers do not know the question.
            Err(_) => Err(UblkError::Feature { missing: "UBLK_U_CMD_GET_FEATURES" }),
        }
    }

    /// Whether a device at work can get another size: Linux 6.16 and later.
    pub(super) fn can_resize(&self) -> bool {
        self.features & feature::UPDATE_SIZE != 0
    }

    /// Tells a device at work that it has so many sectors, and with it who uses it.
    pub(super) fn update_size(&mut self, number: u32, sectors: u64) -> io::Result<()> {
        // SAFETY: no address is given.
        unsafe {
            self.run(Operation::UpdateSize, ControlCommand { data: sectors, ..command(number) })?;
        }
        Ok(())
    }

    fn ask_features(&mut self) -> io::Result<u64> {
        let mut features = 0u64;
        let address = features.as_mut_bytes().as_mut_ptr() as u64;
        // SAFETY: the driver writes at most `length` bytes, to `features`.
        unsafe {
            self.run(
                Operation::GetFeatures,
                ControlCommand { length: size_of::<u64>() as u16, address, ..command(0) },
            )?;
        }
        Ok(features)
    }

    /// What is known of a device; `None` if there is none of this number.
    pub(super) fn info(&mut self, number: u32) -> io::Result<Option<DeviceInfo>> {
        let mut info = DeviceInfo::default();
        match self.with_info(Operation::GetDeviceInfo, number, &mut info) {
            Ok(_) => Ok(Some(info)),
            // The driver's answer for a number that it does not know.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a device of this number, or of one that the driver chooses. Returns what it became.
    pub(super) fn add(
        &mut self,
        number: Option<u32>,
        mut info: DeviceInfo,
    ) -> io::Result<DeviceInfo> {
        let number = number.unwrap_or(ANY_NUMBER);
        info.device = number;
        self.with_info(Operation::AddDevice, number, &mut info)?;
        Ok(info)
    }

    fn with_info(
        &mut self,
        operation: Operation,
        number: u32,
        info: &mut DeviceInfo,
    ) -> io::Result<i32> {
        let address = info.as_mut_bytes().as_mut_ptr() as u64;
        // SAFETY: the driver reads and writes at most `length` bytes, of `info`.
        unsafe {
            self.run(
                operation,
                ControlCommand {
                    length: size_of::<DeviceInfo>() as u16,
                    address,
                    ..command(number)
                },
            )
        }
    }

    /// Tells what a device is like, before it is started.
    pub(super) fn set_parameters(
        &mut self,
        number: u32,
        mut parameters: Parameters,
    ) -> io::Result<()> {
        self.with_parameters(Operation::SetParameters, number, &mut parameters)
    }

    /// What a device is like.
    pub(super) fn parameters(&mut self, number: u32) -> io::Result<Parameters> {
        let mut parameters = Parameters { length: PARAMETERS_BYTES, ..Parameters::default() };
        self.with_parameters(Operation::GetParameters, number, &mut parameters)?;
        Ok(parameters)
    }

    fn with_parameters(
        &mut self,
        operation: Operation,
        number: u32,
        parameters: &mut Parameters,
    ) -> io::Result<()> {
        assert!(parameters.length == PARAMETERS_BYTES);
        let address = parameters.as_mut_bytes().as_mut_ptr() as u64;
        // SAFETY: the driver reads and writes at most `length` bytes, of `parameters`.
        unsafe {
            self.run(
                operation,
                ControlCommand { length: PARAMETERS_BYTES as u16, address, ..command(number) },
            )?;
        }
        Ok(())
    }

    /// A command of which there is nothing to tell but its device: starts, stops, removes, begins
    /// or ends a recovery. Those that put a device to work tell which process serves it.
    pub(super) fn plain(&mut self, operation: Operation, number: u32) -> io::Result<()> {
        let data = u64::from(std::process::id());
        // SAFETY: no address is given.
        unsafe { self.run(operation, ControlCommand { data, ..command(number) })? };
        Ok(())
    }

    /// Runs a command and waits for its end.
    ///
    /// # Safety
    /// The memory at `command.address` must be valid for what the driver does with it, until this
    /// returns.
    unsafe fn run(&mut self, operation: Operation, command: ControlCommand) -> io::Result<i32> {
        let mut payload = [0; 80];
        payload[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        let descriptor = Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(descriptor, operation.code()).cmd(payload).build();
        // SAFETY: the caller vouches for the address in it, and this returns only when the command
        // has ended.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "one command at a time fits into the queue");
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                // Nobody can wait for the command any more, and it names memory of the caller.
                Err(error) => panic!("the ring of control commands failed: {error}"),
            }
            if let Some(completion) = self.ring.completion().next() {
                return match completion.result() {
                    result if result >= 0 => Ok(result),
                    errno => Err(io::Error::from_raw_os_error(-errno)),
                };
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

fn command(number: u32) -> ControlCommand {
    ControlCommand { device: number, queue: NO_QUEUE, ..ControlCommand::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_old_driver_lacks_is_named() {
        assert_eq!(missing_feature(needed_features()), None);
        assert_eq!(missing_feature(u64::MAX), None);
        assert_eq!(missing_feature(0), Some("UBLK_F_USER_RECOVERY"));
        assert_eq!(missing_feature(needed_features() & !(1 << 7)), Some("UBLK_F_USER_COPY"));
    }

    #[test]
    fn a_machine_without_the_driver_says_so() {
        if std::path::Path::new(CONTROL_PATH).exists() {
            crate::skip::skip("ublk without its driver", "a machine without /dev/ublk-control");
            return;
        }
        let Err(error) = Control::open() else { panic!("there is no driver") };
        assert!(matches!(error, UblkError::NoDriver));
        assert!(error.to_string().contains("modprobe ublk_drv"));
    }
}
