//! Discovers, plans and applies a request. This is the library's entry point.
//!
//! Programs, prestart hooks and examples call [`configure`] for a container that exists. Callers that need the
//! plan, or must act between planning and applying, take the three steps one by one: [`Configuration`].

#![forbid(unsafe_code)]

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::apply::{Ahead, ApplyOptions, Report, apply_with};
use crate::container::{Container, ContainerConfig, ImageFacts, Target};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::host::query::QueryProcess;
use crate::host::{DeviceNode, DriverConfig, DriverSession, GpusAsked, Inventory};
use crate::kmods;
use crate::options::CudaCompatMode;
use crate::plan::{self, Plan, naming_device, plan};
use crate::request::{Capability, Request};
use crate::survey::Host;

/// Configures a container according to a request, or leaves it unchanged.
///
/// # Errors
/// The first failure, with its [phase](Error::phase), in the order in which upstream's tool would have reported it.
pub fn configure(request: &Request, target: Target) -> Result<Report> {
    let query = QueryProcess::start(&request.policy.driver.program);
    let mut configuration = Configuration::begin(request, query)?;
    configuration.prepare(target)?.apply()
}

/// A request with an open driver and a running query.
#[derive(Debug)]
pub struct Configuration<'r> {
    request: &'r Request,
    session: DriverSession,
}

/// A request that is planned and ready to be applied.
#[derive(Debug)]
pub struct PreparedRequest<'c> {
    /// The plan.
    pub plan: Plan,
    configuration: &'c Configuration<'c>,
    container: Container,
    ahead: Ahead,
    /// Nodes of IMEX channels that must be created before the plan is carried out.
    new_channels: Vec<DeviceNode>,
}

impl<'r> Configuration<'r> {
    /// Loads kernel modules if the policy allows it, opens the driver root and queries NVML in the process `query`.
    ///
    /// # Errors
    /// Those of `DeviceRequest::check` and [`DriverSession::open`].
    pub fn begin(request: &'r Request, query: QueryProcess) -> Result<Self> {
        let checked = request.devices.check();
        checked.map_err(|error| error.during(Phase::Device))?;
        load_kmods(&request.policy.driver);
        let driver = DriverConfig {
            gpus: GpusAsked::Named(request.devices.ids.clone()),
            ..request.policy.driver.clone()
        };
        let session = DriverSession::open(&driver, Some(query));
        let session = session.map_err(|error| error.during(Phase::Initialization))?;
        Ok(Self { request, session })
    }

    /// As [`begin`](Self::begin), with NVML's answers from another process's query.
    ///
    /// # Errors
    /// Those of `DeviceRequest::check` and `DriverSession::open_known`, or
    /// there is no GPU in it for a request that names some: NVML must be queried, by [`begin`](Self::begin).
    pub fn begin_known(request: &'r Request, inventory: Inventory) -> Result<Self> {
        let policy = &request.policy;
        let checked = request.devices.check();
        checked.map_err(|error| error.during(Phase::Device))?;
        // No list of devices is wrong on a machine without GPUs.
        inventory.demand_gpus(!request.devices.ids.is_empty())?;
        load_kmods(&policy.driver);
        let session = DriverSession::open_known(&policy.driver, inventory, policy.driver_options);
        let session = session.map_err(|error| error.during(Phase::Initialization))?;
        Ok(Self { request, session })
    }

    /// Returns the open driver.
    pub fn session(&mut self) -> &mut DriverSession {
        &mut self.session
    }

    /// Plans without applying; also returns the facts about the image.
    ///
    /// # Errors
    /// As [`configure`], except for applying.
    pub fn plan(&mut self, target: Target) -> Result<(Plan, ImageFacts)> {
        let found = self.discover(target, false)?;
        Ok((found.plan, found.container.image))
    }

    /// Plans, and prepares everything that does not affect the container.
    ///
    /// # Errors
    /// As [`configure`], except for applying.
    pub fn prepare(&mut self, target: Target) -> Result<PreparedRequest<'_>> {
        self.discover(target, true)
    }

    /// Discovers host and container in parallel; errors come in upstream's order.
    fn discover(&mut self, target: Target, will_apply: bool) -> Result<PreparedRequest<'_>> {
        let policy = &self.request.policy;
        self.session.look_ahead(policy.driver_options);
        let container = Container::discover(self.container_config(target));
        let ahead = match &container {
            Ok(container) if will_apply => Ahead::prepare(container, self.session.root()),
            _ => Ahead::default(),
        };
        let ready = self.session.ready();
        ready.map_err(|error| error.during(Phase::Initialization))?;
        let container = container.map_err(|error| error.during(Phase::Container))?;
        let channels = &self.request.devices.imex_channels;
        let new_channels = kmods::new_channels(self.session.root(), &policy.driver, channels);
        let host = Host::of(&mut self.session, self.request, &new_channels)?;
        let plan = plan(self.request, &host)?;
        if let Some(text) = plan::warning(self.request, &host) {
            log::warn!("{text}");
        }
        Ok(PreparedRequest {
            plan,
            configuration: self,
            container,
            ahead,
            new_channels,
        })
    }

    fn container_config(&self, target: Target) -> ContainerConfig {
        let policy = &self.request.policy;
        ContainerConfig {
            target,
            image: policy.image.clone(),
            compat: if self.request.capabilities.include(Capability::Compute) {
                policy.cuda_compat
            } else {
                CudaCompatMode::Disabled
            },
            device_cgroup: policy.device_rules,
            loader: true,
            user: policy.process_user.clone(),
        }
    }
}

/// Plans up to this length need fewer descriptors than the usual soft limit of 1024 allows.
const INTENTS_WITHIN_LIMITS: usize = 300;

/// Signals by which people and supervisors stop a program that may still clean up, and that of the limit of files' sizes,
/// which is an error of the write.
const INTERRUPTIONS: [Signal; 5] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGXFSZ,
];

impl PreparedRequest<'_> {
    /// Applies the plan, all or nothing.
    ///
    /// # Errors
    /// Those of [`apply`](crate::apply::apply), with their phase.
    pub fn apply(self) -> Result<Report> {
        self.apply_and(false)
    }

    /// Applies the plan as the last work of a program, which then only reports the result and exits: the thread may stay
    /// in the container ([`ApplyOptions::stay`]).
    ///
    /// An interrupted configuration is all or nothing too: the signal arrives when the work is done or undone. That
    /// takes a limited time, ldconfig's deadline above all.
    ///
    /// # Errors
    /// Those of [`apply`](Self::apply).
    pub fn apply_before_exit(self) -> Result<Report> {
        if self.plan.flattened().len() > INTENTS_WITHIN_LIMITS {
            raise_descriptor_limit();
        }
        let waiting = SigSet::from_iter(INTERRUPTIONS).thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let result = self.apply_and(true);
        if let Ok(mut before) = waiting {
            before.add(Signal::SIGXFSZ);
            // Cannot fail for a mask that was in force.
            let _ = before.thread_set_mask();
        }
        result
    }

    /// Applies the plan with this value of [`ApplyOptions::stay`].
    fn apply_and(self, stay: bool) -> Result<Report> {
        let root = self.configuration.session.root();
        let create = || kmods::create_nodes(root, &self.new_channels);
        let options = ApplyOptions {
            no_pivot: self.configuration.request.policy.no_pivot,
            stay,
            ..ApplyOptions::default()
        };
        let intents = self.plan.flattened();
        let done = apply_with(
            &intents,
            root,
            &self.container,
            options,
            self.ahead,
            &create,
        );
        done.map_err(|error| with_phase(naming_device(error, &self.plan.devices, root)))
    }
}

fn load_kmods(config: &DriverConfig) {
    if let Some(warning) = kmods::prepare(config) {
        log::warn!("{warning}");
    }
}

/// Takes as many descriptors as the hard limit allows: machines with many GPUs in MIG mode need thousands.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(errno) = limit {
        log::info!("keeping the limit of descriptors: {errno}");
    }
}

fn with_phase(error: Error) -> Error {
    let phase = match error.kind() {
        ErrorKind::LdCache => Phase::LibraryPath,
        _ => Phase::Mount,
    };
    error.during(phase)
}
