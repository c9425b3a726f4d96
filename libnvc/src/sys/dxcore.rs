//! Queries libdxcore, WSL2's interface to the Windows graphics kernel, for the graphics adapters.
//!
//! Calls and structures are those of Windows' d3dkmthk.h and d3dukmdt.h, with Linux's 32-bit wide characters.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::{Library, Symbol};
use log::debug;

/// `KMTQUERYADAPTERINFOTYPE`
const DRIVER_VERSION: u32 = 13;
const REGISTRY: u32 = 48;
/// `D3DDDI_QUERYREGISTRY_TYPE`
const DRIVER_STORE_PATH: u32 = 2;
/// `D3DDDI_QUERYREGISTRY_STATUS`
const REGISTRY_SUCCESS: u32 = 0;
/// `D3DKMT_ENUMADAPTERS_FILTER`: includes adapters that drive no display.
const INCLUDE_COMPUTE_ONLY: u64 = 1;
/// Windows' path length limit.
const MAX_PATH: usize = 260;
const MAX_ADAPTERS: u32 = 1024;

/// The name that the loader resolves, and the path for hosts whose loader does not know it (NixOS).
const LIBRARIES: [&str; 2] = ["libdxcore.so", "/usr/lib/wsl/lib/libdxcore.so"];

/// A graphics adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adapter {
    /// Version of the Windows display driver model, e.g. 2700 for 2.7.
    pub(crate) wddm: u32,
    /// Where Linux sees the adapter's driver files.
    pub(crate) driver_store: PathBuf,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct AdapterInfo {
    handle: u32,
    luid: [u32; 2],
    sources: u32,
    present_move_regions_preferred: u32,
}

#[repr(C)]
struct EnumAdapters2 {
    count: u32,
    adapters: *mut AdapterInfo,
}

#[repr(C)]
struct EnumAdapters3 {
    filter: u64,
    count: u32,
    adapters: *mut AdapterInfo,
}

#[repr(C)]
struct QueryAdapterInfo {
    handle: u32,
    kind: u32,
    data: *mut c_void,
    size: u32,
}

#[repr(C, align(8))]
struct RegistryQuery {
    kind: u32,
    flags: u32,
    value_name: [u32; MAX_PATH],
    value_type: u32,
    physical_adapter: u32,
    output_size: u32,
    status: u32,
    /// The output follows the structure; this buffer holds a path with room to spare.
    output: [u32; 2 * MAX_PATH],
}

type Enumerate2 = unsafe extern "C" fn(*mut EnumAdapters2) -> c_int;
type Enumerate3 = unsafe extern "C" fn(*mut EnumAdapters3) -> c_int;
type Query = unsafe extern "C" fn(*mut QueryAdapterInfo) -> c_int;

/// Returns the adapters that the host's libdxcore reports, or None if it cannot be loaded or lacks a call.
pub(crate) fn of_host() -> Option<Vec<Adapter>> {
    let mut found = LIBRARIES.iter().map(Path::new);
    found.find_map(adapters)
}

/// Returns the adapters that a libdxcore reports, or None if it cannot be loaded or lacks a call.
fn adapters(library: &Path) -> Option<Vec<Adapter>> {
    // SAFETY: loading runs the library's initialisers. It is part of the operating system (WSL2), is found where the
    // system's loader finds it, and is trusted like libc.
    let loaded = unsafe { Library::new(library) };
    let library = loaded
        .inspect_err(|e| debug!("{}: {e}", library.display()))
        .ok()?;
    // SAFETY: the symbol has this signature in every version of d3dkmthk.h, and does not outlive `library`.
    let query: Symbol<'_, Query> = unsafe { library.get(c"D3DKMTQueryAdapterInfo") }.ok()?;
    let found = enumerate3(&library).or_else(|| enumerate2(&library))?;
    debug!("libdxcore lists {} adapters", found.len());
    Some(
        found
            .iter()
            .filter_map(|info| adapter(*query, info.handle))
            .collect(),
    )
}

fn enumerate3(library: &Library) -> Option<Vec<AdapterInfo>> {
    // SAFETY: as in `adapters`.
    let call: Symbol<'_, Enumerate3> = unsafe { library.get(c"D3DKMTEnumAdapters3") }.ok()?;
    enumerate(|count, adapters| {
        let mut request = EnumAdapters3 {
            filter: INCLUDE_COMPUTE_ONLY,
            count,
            adapters,
        };
        // SAFETY: the callee writes at most `count` elements to `adapters`, which `enumerate` sized for that, or only
        // the count if the pointer is null.
        let status = unsafe { call(&raw mut request) };
        (status == 0).then_some(request.count)
    })
}

fn enumerate2(library: &Library) -> Option<Vec<AdapterInfo>> {
    // SAFETY: as in `adapters`.
    let call: Symbol<'_, Enumerate2> = unsafe { library.get(c"D3DKMTEnumAdapters2") }.ok()?;
    enumerate(|count, adapters| {
        let mut request = EnumAdapters2 { count, adapters };
        // SAFETY: as in `enumerate3`.
        let status = unsafe { call(&raw mut request) };
        (status == 0).then_some(request.count)
    })
}

/// Asks for the number of adapters, then for the adapters.
fn enumerate(call: impl Fn(u32, *mut AdapterInfo) -> Option<u32>) -> Option<Vec<AdapterInfo>> {
    let count = call(0, ptr::null_mut())?.min(MAX_ADAPTERS);
    let mut adapters = vec![AdapterInfo::default(); usize::try_from(count).ok()?];
    let count = call(count, adapters.as_mut_ptr())?;
    adapters.truncate(usize::try_from(count).ok()?);
    Some(adapters)
}

fn adapter(query: Query, handle: u32) -> Option<Adapter> {
    let mut wddm = 0u32;
    ask(query, handle, DRIVER_VERSION, &mut wddm)?;
    let mut registry = Box::new(RegistryQuery {
        kind: DRIVER_STORE_PATH,
        flags: 0,
        value_name: [0; MAX_PATH],
        value_type: 0,
        physical_adapter: 0,
        output_size: 0,
        status: REGISTRY_SUCCESS,
        output: [0; 2 * MAX_PATH],
    });
    ask(query, handle, REGISTRY, &mut *registry)?;
    // Some versions return only the required size if the output size is zero.
    if registry.output_size > 0 && registry.output.first() == Some(&0) {
        ask(query, handle, REGISTRY, &mut *registry)?;
    }
    if registry.status != REGISTRY_SUCCESS {
        return None;
    }
    Some(Adapter {
        wddm,
        driver_store: PathBuf::from(text(&registry.output)?),
    })
}

/// Queries one kind of information; `data` is both input and output.
fn ask<T>(query: Query, handle: u32, kind: u32, data: &mut T) -> Option<()> {
    let mut request = QueryAdapterInfo {
        handle,
        kind,
        data: ptr::from_mut(data).cast(),
        size: u32::try_from(size_of::<T>()).ok()?,
    };
    // SAFETY: the callee reads and writes at most `size` bytes at `data`, all of which are plain numbers of `T`, valid
    // for every bit pattern.
    let status = unsafe { query(&raw mut request) };
    (status == 0).then_some(())
}

/// Decodes wide characters up to the terminating zero.
fn text(wide: &[u32]) -> Option<String> {
    let end = wide.iter().position(|&unit| unit == 0)?;
    let text: Option<String> = wide
        .get(..end)?
        .iter()
        .map(|&c| char::from_u32(c))
        .collect();
    text.filter(|text| text.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_that_of_the_windows_headers() {
        assert_eq!(size_of::<AdapterInfo>(), 20);
        assert_eq!(size_of::<EnumAdapters3>(), 24);
        assert_eq!(size_of::<QueryAdapterInfo>(), 24);
        assert_eq!(std::mem::offset_of!(RegistryQuery, output), 1064);
    }

    #[test]
    fn wide_text() {
        let wide = |text: &str| text.chars().map(u32::from).collect::<Vec<_>>();
        assert_eq!(
            text(&wide("/usr/lib/wsl\0x")).as_deref(),
            Some("/usr/lib/wsl")
        );
        assert_eq!(text(&wide("/no end")), None);
        assert_eq!(text(&wide("C:\\\0")), None);
        assert_eq!(text(&[0xd800, 0]), None);
    }

    #[test]
    fn none_without_the_library() {
        assert_eq!(adapters(Path::new("/nowhere/libdxcore.so")), None);
    }
}
