//! Opens a driver root, starts the NVML query, and answers questions about the driver in upstream's order.
//!
//! The query takes longer than everything else together, so it is started first and waited for last; meanwhile
//! [`look_ahead`] finds the files of the kernel module's version. Errors still come in the order of upstream's calls, because each method waits
//! for the steps that upstream would have done before it.
//!
//! [`look_ahead`]: DriverSession::look_ahead

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use super::asked::{self, GpusAsked};
use super::nvcaps::Capabilities;
use super::query::{Query, QueryProcess, QueryProgram, QueryRequest};
use super::{
    Abi, DriverInfo, DriverRoot, DriverVersions, Identity, ImexChannels, Inventory, ListedGpu,
    MigAccess, MigDevice, WslDriver, inventory, procfs, search, wsl,
};
use crate::caller;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{CharDrivers, DeviceInfo, DeviceNode, DriverFile, SharedDevice, ipc, nodes};
use crate::options::{DriverOptions, LibraryOptions};
use crate::path::HostPath;

/// Time limit of the query. A machine with many GPUs and without persistence mode needs more than upstream's ten.
const DEADLINE: Duration = Duration::from_secs(30);

/// How to reach the driver.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// The driver root.
    pub root: PathBuf,
    /// The root of the device nodes, for a driver root that has none; `/` if None.
    pub dev_root: Option<PathBuf>,
    /// The ld.so.cache below it, if the caller names one.
    pub ldcache: Option<HostPath>,
    /// Directories below the root in which the query looks for NVML first.
    pub library_search: Vec<HostPath>,
    /// User that NVML runs as. None: one that is not root. If the caller is root, that is the overflow user, and
    /// otherwise the caller.
    pub user: Option<Identity>,
    /// Whether [`kmods::prepare`](crate::kmods::prepare) loads kernel modules and creates nodes, and whether nodes of
    /// requested IMEX channels are created.
    pub options: LibraryOptions,
    /// The program that queries NVML.
    pub program: QueryProgram,
    /// Time limit of the query; see [`QueryRequest::deadline`].
    pub deadline: Duration,
    /// Search path of the driver's programs; `PATH` if None.
    pub path: Option<OsString>,
    /// The GPUs that NVML is asked about.
    pub gpus: GpusAsked,
}

impl Default for DriverConfig {
    /// The driver at `/`, queried by this program itself (see [`serve_if_asked`](super::query::serve_if_asked)) as a
    /// user who is not root, within 30 seconds.
    fn default() -> Self {
        Self {
            root: "/".into(),
            dev_root: None,
            ldcache: None,
            library_search: Vec::new(),
            user: None,
            options: LibraryOptions::empty(),
            program: QueryProgram::ThisExecutable,
            deadline: DEADLINE,
            path: None,
            gpus: GpusAsked::All,
        }
    }
}

impl DriverConfig {
    /// Returns the time limit that a value of `NVC_DRIVER_TIMEOUT` sets: 1 to 86400 seconds. Warns of any other value,
    /// and returns the default then and for None.
    pub fn deadline_of(value: Option<&OsStr>) -> Duration {
        let Some(value) = value else {
            return DEADLINE;
        };
        match value.to_str().and_then(|text| text.parse::<u64>().ok()) {
            Some(seconds @ 1..=86400) => Duration::from_secs(seconds),
            _ => {
                log::warn!(
                    "NVC_DRIVER_TIMEOUT={}: not a number of seconds from 1 to 86400, using {}",
                    value.display(),
                    DEADLINE.as_secs()
                );
                DEADLINE
            }
        }
    }
}

/// Returns the request of a session that is not under WSL2.
///
/// # Errors
/// Those of [`QueryRequest::settled`].
fn request_of(config: &DriverConfig) -> Result<QueryRequest> {
    QueryRequest {
        root: config.root.clone(),
        user: config.user,
        dev_root: config.dev_root.clone(),
        library_search: config.library_search.clone(),
        wsl_library: None,
        deadline: config.deadline,
    }
    .settled()
}

/// An open driver root with NVML's answers, or the query for them.
#[derive(Debug)]
pub struct DriverSession {
    root: DriverRoot,
    ldcache: Option<HostPath>,
    /// Search path of the driver's programs; `PATH` if None.
    path: Option<OsString>,
    wsl: Vec<WslDriver>,
    program: QueryProgram,
    request: QueryRequest,
    answers: Query,
    found: Option<EarlyFiles>,
    /// Read on first use: by a container with MIG devices, or a list of nodes.
    capabilities: OnceLock<Capabilities>,
    /// Read on first use: by a container with an IMEX channel.
    imex: OnceLock<(ImexChannels, CharDrivers)>,
}

/// Files found before NVML has answered.
#[derive(Debug)]
struct EarlyFiles {
    options: DriverOptions,
    /// The kernel module's version, if it is known.
    module: Option<String>,
    /// Those of the module's version, or else of the version in the libraries' names.
    files: Result<DriverInfo>,
    ipcs: Vec<DriverFile>,
    /// An error is kept until it is due.
    devices: Result<Vec<SharedDevice>>,
}

impl EarlyFiles {
    /// Checks that this is the driver version of the kernel module and of its libraries.
    fn check_version(&self, version: &str) -> Result<()> {
        let files = self.files.as_ref().map_err(Clone::clone)?;
        let other = |what: &str, found: &str| {
            inventory::refused(format!("it is of driver {version}, {what} of {found}"))
        };
        if let Some(module) = self.module.as_deref().filter(|module| *module != version) {
            return Err(other("the kernel module", module));
        }
        match files.libraries(Abi::Native).next() {
            None => Err(other("the libraries", "none")),
            Some(_) if files.versions.driver != version => {
                Err(other("the libraries", &files.versions.driver))
            }
            Some(_) => Ok(()),
        }
    }
}

impl DriverSession {
    /// Opens the driver root with the NVML query: with a process that was started before the request was known, or with
    /// a new one.
    ///
    /// # Errors
    /// `invalid argument` for an empty path; `change root failed: <cause>`; those of WSL2 detection and of
    /// `Query::start`. They have this order in either case.
    pub fn open(config: &DriverConfig, started: Option<QueryProcess>) -> Result<Self> {
        let request = request_of(config)?;
        let process = match started {
            Some(process) => process,
            None => QueryProcess::start_for(&config.program, &request.wanted()?),
        };
        let (root, wsl) = Self::open_root(config, &request)?;
        // WSL2's NVML tells neither minors nor MIG devices.
        let only = if wsl.is_empty() {
            asked::only(&root, &config.gpus)
        } else {
            None
        };
        let ask = |request: &QueryRequest| Query::ask(process, request, only);
        Self::of_root(config, request, root, wsl, ask)
    }

    /// Opens the driver root with answers that another process has handed over, looks ahead, and checks that they are
    /// about the driver found here. NVML is not queried.
    ///
    /// # Errors
    /// Those of opening the root; the inventory is too old, or about another driver. Query NVML then.
    pub(crate) fn open_known(
        config: &DriverConfig,
        inventory: Inventory,
        options: DriverOptions,
    ) -> Result<Self> {
        inventory.check_age(SystemTime::now())?;
        let version = inventory.driver().to_owned();
        let request = request_of(config)?;
        let (root, wsl) = Self::open_root(config, &request)?;
        if !wsl.is_empty() {
            return Err(inventory::refused("this is WSL2"));
        }
        let mut session = Self::of_root(config, request, root, wsl, |_| Ok(inventory.into()))?;
        let found = session.look(options);
        found.check_version(&version)?;
        session.found = Some(found);
        Ok(session)
    }

    fn open_root(
        config: &DriverConfig,
        request: &QueryRequest,
    ) -> Result<(DriverRoot, Vec<WslDriver>)> {
        let empty_cache = config
            .ldcache
            .as_ref()
            .is_some_and(|path| path.file_name().is_empty());
        if config.root.as_os_str().is_empty() || empty_cache {
            return Err(Error::new(ErrorKind::InvalidArgument, "invalid argument"));
        }
        let wsl = wsl::detect_for(&config.program, request)?;
        Ok((DriverRoot::open(&config.root)?, wsl))
    }

    fn of_root(
        config: &DriverConfig,
        request: QueryRequest,
        root: DriverRoot,
        wsl: Vec<WslDriver>,
        answers: impl FnOnce(&QueryRequest) -> Result<Query>,
    ) -> Result<Self> {
        let store = wsl
            .first()
            .map(|driver| driver.store.join("libnvidia-ml.so.1"));
        let request = QueryRequest {
            wsl_library: store.map(|library| library.as_path().to_owned()),
            ..request
        };
        let answers = answers(&request)?;
        Ok(Self {
            root,
            ldcache: config.ldcache.clone(),
            path: config.path.clone(),
            wsl,
            program: config.program.clone(),
            request,
            answers,
            found: None,
            capabilities: OnceLock::new(),
            imex: OnceLock::new(),
        })
    }

    /// Calls `notice` once if the query takes longer than three seconds.
    pub fn when_slow(&mut self, notice: impl FnOnce(Duration) + Send + 'static) {
        self.answers.when_slow(notice);
    }

    /// Reads everything that does not depend on NVML's answers, unless that was done; errors are kept until they are
    /// due.
    pub fn look_ahead(&mut self, options: DriverOptions) {
        if !self.has_looked(options) {
            self.found = Some(self.look(options));
        }
    }

    fn has_looked(&self, options: DriverOptions) -> bool {
        self.found
            .as_ref()
            .is_some_and(|found| found.options == options)
    }

    fn look(&self, options: DriverOptions) -> EarlyFiles {
        let module = procfs::module_version(&self.root);
        let files = self.files(options, module.as_deref());
        if let (Some(module), Ok(files)) = (&module, &files)
            && files.libraries(Abi::Native).next().is_none()
            && let Some(libraries) = self.version_of_libraries()
            && libraries != *module
        {
            log::warn!(
                "the kernel module is of driver {module}, the libraries are of {libraries}: load the new module, or reboot"
            );
        }
        let mps = caller::variable("CUDA_MPS_PIPE_DIRECTORY").filter(|value| !value.is_empty());
        EarlyFiles {
            options,
            module,
            files,
            ipcs: ipc::find(&self.root, mps.as_deref().map(Path::new), options),
            devices: if self.wsl.is_empty() {
                Ok(nodes::find(&self.root, options, &CharDrivers::discover()))
            } else {
                nodes::find_dxg().map(|node| vec![node])
            },
        }
    }

    /// Finds the files of a version; if it is unknown, of that in the libraries' names.
    fn files(&self, options: DriverOptions, version: Option<&str>) -> Result<DriverInfo> {
        let path = self.search_path();
        let wanted = search::FileSearch {
            libraries: self.request.library_search.clone(),
            ldcache: self.ldcache.clone(),
            programs: path.clone().unwrap_or_default(),
            ..search::FileSearch::new(search::Contents::Catalogue(options))
        };
        let found = if self.wsl.is_empty() {
            search::find(&self.root, version, &wanted)
        } else {
            search::find_wsl(&self.root, options, &wanted, &self.wsl)
        };
        path.and(found)
    }

    /// Returns the directories of the driver's programs.
    fn search_path(&self) -> Result<Vec<HostPath>> {
        let path = self.path.clone().or_else(|| std::env::var_os("PATH"));
        search::path_of(path.as_deref())
    }

    fn version_of_libraries(&self) -> Option<String> {
        let not_wsl = self.wsl.is_empty();
        not_wsl.then(|| search::version(&self.root, &self.request.library_search))?
    }

    /// Checks that the driver has libraries of its version.
    ///
    /// # Errors
    /// It has none.
    pub fn check_libraries(&self, driver: &DriverInfo) -> Result<()> {
        if !self.wsl.is_empty() || driver.libraries(Abi::Native).next().is_some() {
            return Ok(());
        }
        let found = self.version_of_libraries();
        Err(search::missing::libraries(
            &self.root,
            &driver.versions.driver,
            found.as_deref(),
        ))
    }

    /// Waits until NVML is initialised.
    ///
    /// # Errors
    /// Those of `Query::ready`.
    pub fn ready(&mut self) -> Result<()> {
        let result = self.answers.ready();
        if result.is_err() && self.found.is_none() {
            // The most likely reason is that module and libraries differ. This search warns of it; NVML's message is
            // unclear.
            self.look_ahead(DriverOptions::empty());
        }
        result
    }

    /// Waits until every answer or an error has arrived, and ends the query process.
    ///
    /// For callers with short-lived threads: the process ends with the thread that started it. The answers are kept.
    pub fn settle(&mut self) {
        self.answers.settle();
    }

    /// Restarts the query, so that later answers are current.
    ///
    /// # Errors
    /// Those of `Query::start`; the old answers stay.
    pub fn renew(&mut self) -> Result<()> {
        self.answers = Query::start(&self.program, &self.request)?;
        self.found = None;
        self.capabilities = OnceLock::new();
        self.imex = OnceLock::new();
        Ok(())
    }

    /// Waits for the driver's versions, and returns the error that [`info`](Self::info) would return.
    ///
    /// # Errors
    /// Those of `Query::versions`; a loader cache named by the caller that is missing or malformed; `environment variable
    /// PATH not found`.
    pub fn versions(&mut self) -> Result<DriverVersions> {
        let versions = self.answers.versions()?;
        if let Some(ldcache) = &self.ldcache {
            search::read_cache(&self.root, ldcache)?;
        }
        self.search_path()?;
        Ok(versions)
    }

    /// Waits for the driver's versions, without requiring any of its files.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn reported_versions(&mut self) -> Result<DriverVersions> {
        self.answers.versions()
    }

    /// Waits for the driver's versions and finds its files.
    ///
    /// # Errors
    /// Those of `Query::versions`; a loader cache named by the caller that is missing or malformed;
    /// `environment variable PATH not found`; under WSL2 `stat failed: /dev/dxg: <cause>`.
    pub fn info(&mut self, options: DriverOptions) -> Result<DriverInfo> {
        let found = match self.found.take() {
            Some(found) if found.options == options => found,
            _ => self.look(options),
        };
        let found = self.found.insert(found);
        let versions = self.answers.versions()?;
        let is_it =
            |files: &&DriverInfo| !self.wsl.is_empty() || files.versions.driver == versions.driver;
        let files = found.files.as_ref().ok().filter(is_it).cloned();
        let (ipcs, devices) = (found.ipcs.clone(), found.devices.clone());
        let mut info = match files {
            Some(files) => files,
            None => self.files(options, Some(&versions.driver))?,
        };
        info.files.extend(ipcs);
        info.devices = devices?;
        info.versions = versions;
        Ok(info)
    }

    /// Waits for the GPUs.
    ///
    /// # Errors
    /// Those of `Query::devices`.
    pub fn devices(&mut self) -> Result<DeviceInfo> {
        let mut info = self.answers.devices()?;
        if self.wsl.is_empty() {
            for gpu in &mut info.gpus {
                gpu.proc_dir = procfs::gpu_directory(&self.root, &gpu.busid);
            }
        }
        Ok(info)
    }

    /// Waits for the GPUs, and returns all of them with NVML's facts about each, however much is missing.
    ///
    /// # Errors
    /// Those of `Query::listed`.
    pub fn listed(&mut self) -> Result<Vec<ListedGpu>> {
        self.answers.listed()
    }

    /// Returns the driver store that replaces the driver's files under WSL2.
    pub fn wsl(&self) -> Option<&WslDriver> {
        self.wsl.first()
    }

    /// Returns the driver root.
    pub fn root(&self) -> &DriverRoot {
        &self.root
    }

    /// Returns the machine's capability devices.
    pub fn capabilities(&self) -> Capabilities {
        *self.capabilities.get_or_init(Capabilities::discover)
    }

    /// Returns the capabilities of a MIG device: its GPU instance, then its compute instance.
    ///
    /// A capability whose file is missing has no node here; applying the plan reports it.
    ///
    /// # Errors
    /// `unable to get cap device attributes: <file>: <cause>` for a file of another form.
    pub fn mig_access(&self, mig: &MigDevice) -> Result<Vec<MigAccess>> {
        let access = |directory: &HostPath| {
            let file = directory.join("access");
            let node = match self.capability_node(&file) {
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                found => found?,
            };
            Ok(MigAccess { file, node })
        };
        [&mig.gi_caps_path, &mig.ci_caps_path]
            .into_iter()
            .map(access)
            .collect()
    }

    /// Returns the device of a capability's file; None if capabilities are not devices.
    ///
    /// # Errors
    /// Those of [`Capabilities::device`].
    pub fn capability_node(&self, file: &HostPath) -> Result<Option<DeviceNode>> {
        let capabilities = self.capabilities();
        let has_devices = capabilities.has_devices();
        has_devices
            .then(|| capabilities.device(&self.root, file))
            .transpose()
    }

    /// Returns the node of an IMEX channel.
    ///
    /// # Errors
    /// If the driver has no such channel, or if the node is missing or not a device.
    pub fn imex_channel(&self, channel: u32) -> Result<DeviceNode> {
        let read = || (ImexChannels::read(&self.root), CharDrivers::discover());
        let (channels, drivers) = self.imex.get_or_init(read);
        channels.check(channel)?;
        nodes::imex_channel(&self.root, channel, drivers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_time_limits_are_the_default() {
        let of = |text: &str| DriverConfig::deadline_of(Some(text.as_ref()));
        assert_eq!(of("600"), Duration::from_secs(600));
        for bad in ["", "0", "86401", "-1", "1.5", "10s", " 7"] {
            assert_eq!(of(bad), DEADLINE, "{bad}");
        }
        assert_eq!(DriverConfig::deadline_of(None), DEADLINE);
    }
}
