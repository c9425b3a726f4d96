//! Moves strings and arrays between Rust and C.
//!
//! Memory passed to C is on the C library's heap, because some clients replace parts of it. Out of memory aborts the
//! process, as everywhere in Rust.

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libnvc::{Error, ErrorKind, Result};

/// Returns the error for invalid arguments.
pub(crate) fn invalid_argument() -> Error {
    Error::new(ErrorKind::InvalidArgument, "invalid argument")
}

/// Copies `bytes` up to the first zero, to be released with `free`.
pub(crate) fn string(bytes: impl AsRef<[u8]>) -> *mut c_char {
    let text: Vec<u8> = bytes
        .as_ref()
        .iter()
        .copied()
        .take_while(|b| *b != 0)
        .collect();
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: strdup(3) reads a NUL-terminated string, which a CString is.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() {
        handle_alloc_error(Layout::for_value(text.as_bytes_with_nul()));
    }
    copy
}

/// Copies a path.
pub(crate) fn path(path: impl AsRef<Path>) -> *mut c_char {
    string(path.as_ref().as_os_str().as_bytes())
}

/// Copies a path, or returns NULL.
pub(crate) fn optional_path(at: Option<impl AsRef<Path>>) -> *mut c_char {
    at.map_or(std::ptr::null_mut(), path)
}

/// Copies items into one block; returns it with their number. The block exists even without items.
pub(crate) fn array<T>(items: Vec<T>) -> (*mut T, usize) {
    let count = items.len();
    let block = allocate::<T>(count.max(1));
    for (index, item) in items.into_iter().enumerate() {
        // SAFETY: the block has room for all items, and this is one of them.
        let place = unsafe { block.add(index) };
        // SAFETY: inside the block, which malloc(3) aligned for any type; nothing that needs dropping is overwritten.
        unsafe { place.write(item) };
    }
    (block, count)
}

/// Moves one value into its own block.
pub(crate) fn one<T>(value: T) -> *mut T {
    array(vec![value]).0
}

fn allocate<T>(count: usize) -> *mut T {
    const { assert!(align_of::<T>() <= align_of::<libc::max_align_t>()) };
    // SAFETY: calloc(3) has no requirements; it checks the product itself.
    let block: *mut T = unsafe { libc::calloc(count, size_of::<T>().max(1)) }.cast();
    if block.is_null() {
        handle_alloc_error(Layout::new::<T>());
    }
    block
}

/// Releases a block or string; NULL is allowed.
///
/// # Safety
/// `block` is NULL or came from malloc(3), and is not used afterwards.
pub(crate) unsafe fn release<T>(block: *mut T) {
    // SAFETY: free(3) takes NULL and blocks of malloc(3); the caller has no other.
    unsafe { libc::free(block.cast()) };
}

/// Releases an array of strings with its strings.
///
/// # Safety
/// As [`release`], for the array and each of its `count` strings.
pub(crate) unsafe fn release_strings(strings: *mut *mut c_char, count: usize) {
    // SAFETY: an array of `count` pointers without another user.
    for &string in unsafe { slice(strings, count) }.unwrap_or_default() {
        // SAFETY: each of them is a block of malloc(3) or NULL, owned by the array.
        unsafe { release(string) };
    }
    // SAFETY: the array itself is a block of malloc(3) or NULL.
    unsafe { release(strings) };
}

/// Borrows a C string; None for NULL.
///
/// # Safety
/// `text` is NULL or NUL-terminated, and does not change while the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a OsStr> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, and then NUL-terminated and unchanged: so the function demands.
    let text = unsafe { CStr::from_ptr(text) };
    Some(OsStr::from_bytes(text.to_bytes()))
}

/// Borrows an array; NULL with count 0 is empty.
///
/// # Errors
/// `invalid argument` for NULL with items, and for more items than memory can hold (a negative number).
///
/// # Safety
/// Unless NULL, `items` are `count` items, which do not change while the result is used.
pub(crate) unsafe fn slice<'a, T>(items: *const T, count: usize) -> Result<&'a [T]> {
    let bytes = count.checked_mul(size_of::<T>());
    let fits = bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok());
    match (items.is_null(), count) {
        (_, 0) => Ok(&[]),
        (false, _) if fits && items.is_aligned() => {
            // SAFETY: neither NULL nor unaligned nor too long, and `count` unchanged items: so the function demands.
            Ok(unsafe { std::slice::from_raw_parts(items, count) })
        }
        _ => Err(invalid_argument()),
    }
}

/// Borrows the target of a pointer that must not be NULL.
///
/// # Errors
/// `invalid argument` for NULL and for an address that cannot be a `T`'s.
///
/// # Safety
/// Unless NULL, `pointer` points to a `T` that does not change while the result is used.
pub(crate) unsafe fn value<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: `slice` demands of one item what this function does.
    let items = unsafe { slice(pointer, 1) }?;
    items.first().ok_or_else(invalid_argument)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn strings_survive_the_way() {
        let copy = string(b"/mnt/\xff\0rest");
        // SAFETY: a string of `string`.
        assert_eq!(unsafe { text(copy) }.unwrap().as_bytes(), b"/mnt/\xff");
        // SAFETY: the same, not used afterwards.
        unsafe { release(copy) };
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { text(std::ptr::null()) }, None);
    }

    #[test]
    fn arrays_survive_the_way() {
        let (block, count) = array(vec![1u64, 2, 3]);
        // SAFETY: an array of `array`.
        assert_eq!(unsafe { slice(block, count) }.unwrap(), [1, 2, 3]);
        // SAFETY: as above.
        assert_eq!(*unsafe { value(block) }.unwrap(), 1);
        // SAFETY: not used afterwards.
        unsafe { release(block) };
        let (empty, count) = array(Vec::<u64>::new());
        assert!(!empty.is_null() && count == 0);
        // SAFETY: not used afterwards.
        unsafe { release(empty) };
    }

    #[test]
    fn impossible_arrays_are_refused() {
        let null = std::ptr::null::<u64>();
        // SAFETY: NULL is allowed.
        assert!(unsafe { slice(null, 0) }.unwrap().is_empty());
        // SAFETY: NULL is allowed.
        assert!(unsafe { slice(null, 1) }.is_err());
        // SAFETY: NULL is allowed.
        assert!(unsafe { value(null) }.is_err());
        let item = 0u64;
        // SAFETY: rejected before it is dereferenced.
        assert!(unsafe { slice(&raw const item, usize::MAX) }.is_err());
    }
}
