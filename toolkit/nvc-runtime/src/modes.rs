//! Serves a container's request in one of the modes: each adds the devices to config.json in its own way.

mod cdi;
mod csv;
mod jit_cdi;
mod legacy;

use nvc_policy::image::qualified;
use nvc_policy::mode::Mode;
use nvc_program::messages::Level;

use crate::error::Result;
use crate::injection;
use crate::job::Job;

/// Adds the requested devices to the specification.
pub(crate) fn serve(mode: Mode, mut job: Job<'_>) -> Result<()> {
    if mode != Mode::Legacy {
        injection::remove(job.spec)?;
    }
    match mode {
        Mode::Legacy => legacy::serve(job),
        Mode::Csv => csv::serve(job),
        Mode::Cdi => {
            let kind = &job.config.runtime.cdi_default_kind;
            cdi::serve(&mut job, kind).map(drop)
        }
        Mode::JitCdi => match cdi::serve(&mut job, qualified::AUTOMATIC)? {
            Some(driver) => {
                let said = "the GPU is integrated, or NVML cannot be loaded on this Tegra system: mode csv";
                job.log.write(Level::Info, said);
                csv::with_driver(job, &driver)
            }
            None => Ok(()),
        },
    }
}
