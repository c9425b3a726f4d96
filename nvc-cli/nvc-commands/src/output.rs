//! Prints results to standard output: as text, in upstream's layout, or as JSON.
//!
//! The names in JSON are an interface: they are extended, never changed. A result is written in one piece.

use std::fmt::{Display, Write as _};
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;

use libnvc::Error;
use libnvc::container::ImageFacts;
use libnvc::host::{DeviceInfo, DriverVersions, Gpu};
use libnvc::plan::Plan;
use libnvc::render;
use nix::errno::Errno;
use serde::Serialize;

use crate::failure::{Categorise, CommandError, category};
use crate::listing::Listing;
use crate::request::Format;

mod hardware;

/// Prints the driver's versions and the GPUs.
pub(crate) fn info(
    format: Format,
    versions: &DriverVersions,
    devices: &DeviceInfo,
) -> Result<(), CommandError> {
    let text = match format {
        Format::Text => info_text(versions, &devices.gpus),
        Format::Csv => info_csv(versions, &devices.gpus),
        Format::Json => json(&hardware::Report::new(versions, devices)),
    };
    write(text.as_bytes())
}

/// Prints paths, one per line, or as an object of lists.
pub(crate) fn list(format: Format, listing: &Listing) -> Result<(), CommandError> {
    if format == Format::Json {
        return write(json(listing).as_bytes());
    }
    let mut lines = Vec::with_capacity(8192);
    for path in listing.paths() {
        lines.extend_from_slice(path.as_path().as_os_str().as_bytes());
        lines.push(b'\n');
    }
    write(&lines)
}

/// Prints the plan, one intent per line, or as an object.
pub(crate) fn plan(format: Format, plan: &Plan, image: &ImageFacts) -> Result<(), CommandError> {
    let text = match format {
        Format::Json => json(&render::json(plan, image)),
        Format::Text | Format::Csv => render::text(plan, image),
    };
    write(text.as_bytes())
}

/// Writes to standard output. A reader that stops early (`| head`) is not an error.
///
/// # Errors
/// It cannot be written.
pub fn write(bytes: &[u8]) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
            Err(Error::system("write failed: standard output", errno)).category(category::OUTPUT)
        }
        _ => Ok(()),
    }
}

fn json(value: &impl Serialize) -> String {
    // Fails only for maps with keys that are not strings, of which there are none.
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

fn info_text(versions: &DriverVersions, gpus: &[Gpu]) -> String {
    let mut text = String::new();
    line(&mut text, "NVRM version:", &versions.driver);
    line(&mut text, "CUDA version:", &versions.cuda);
    for gpu in gpus {
        text.push('\n');
        line(&mut text, "Device Index:", gpu.index);
        line(&mut text, "Device Minor:", gpu.minor);
        line(&mut text, "Model:", &gpu.model);
        line(&mut text, "Brand:", &gpu.brand);
        line(&mut text, "GPU UUID:", &gpu.uuid);
        line(&mut text, "Bus Location:", &gpu.busid);
        line(&mut text, "Architecture:", &gpu.arch);
    }
    text
}

fn line(text: &mut String, label: &str, value: impl Display) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{label:<15} {value}");
}

fn info_csv(versions: &DriverVersions, gpus: &[Gpu]) -> String {
    let mut text = format!(
        "NVRM version,CUDA version\n{},{}\n\n\
         Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture\n",
        versions.driver, versions.cuda
    );
    for gpu in gpus {
        let Gpu {
            index,
            minor,
            model,
            brand,
            uuid,
            busid,
            arch,
            ..
        } = gpu;
        let _ = writeln!(
            text,
            "{index},{minor},{model},{brand},{uuid},{busid},{arch}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use libnvc::host::DriverVersions;

    use super::*;

    fn driver() -> DriverVersions {
        DriverVersions {
            driver: "535.261.03".to_owned(),
            cuda: "12.2".to_owned(),
        }
    }

    fn gpu() -> Gpu {
        Gpu {
            index: 0,
            model: "NVIDIA A10".to_owned(),
            uuid: "GPU-8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01".to_owned(),
            busid: "00000000:3b:00.0".to_owned(),
            arch: "8.6".to_owned(),
            brand: "Nvidia".to_owned(),
            minor: 3,
            ..Gpu::default()
        }
    }

    #[test]
    fn info_as_text() {
        assert_eq!(
            info_text(&driver(), &[gpu()]),
            "\
NVRM version:   535.261.03
CUDA version:   12.2

Device Index:   0
Device Minor:   3
Model:          NVIDIA A10
Brand:          Nvidia
GPU UUID:       GPU-8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01
Bus Location:   00000000:3b:00.0
Architecture:   8.6
"
        );
    }

    #[test]
    fn info_as_csv() {
        assert_eq!(
            info_csv(&driver(), &[gpu()]),
            "\
NVRM version,CUDA version
535.261.03,12.2

Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture
0,3,NVIDIA A10,Nvidia,GPU-8a4d1f3c-0b51-4c8e-9d57-3f2a6b1c0e01,00000000:3b:00.0,8.6
"
        );
        assert!(info_csv(&driver(), &[]).ends_with(
            "12.2\n\nDevice Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture\n"
        ));
    }
}
