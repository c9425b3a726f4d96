//! Wraps the pointers that C passes to a function.
//!
//! Each function of the library makes its [`Arg`]s in one unsafe block: there it relies on what nvc.h demands of the
//! caller. An `Arg` carries that promise, so reading through it is safe, and happens inside the guarded call.

use std::ffi::{OsStr, c_char};
use std::marker::PhantomData;

use libnvc::Result;

use crate::memory::{slice, text, value};

/// A pointer that is NULL, or points to a `T` that lives and does not change for `'a`; so do the strings and arrays
/// that its fields point to.
#[derive(Debug)]
pub(crate) struct Arg<'a, T>(*const T, PhantomData<&'a T>);

impl<T> Clone for Arg<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Arg<'_, T> {}

/// Wraps the pointers of one call.
///
/// # Safety
/// Each is NULL, or as nvc.h demands of this parameter: a live object of its type or a string with a terminating zero,
/// whose pointer fields are NULL, strings, or arrays with the number of elements in the next field. Nothing of it is
/// changed or released for as long as the result is used.
pub(crate) unsafe fn args<'a, P: Pointers<'a>>(pointers: P) -> P::Args {
    pointers.wrap()
}

impl<'a, T> Arg<'a, T> {
    /// Borrows the value.
    ///
    /// # Errors
    /// `invalid argument` for NULL and for an address that cannot be a `T`'s.
    pub(crate) fn get(self) -> Result<&'a T> {
        // SAFETY: not NULL, it points to a `T` that stays unchanged for 'a: `args` demanded it.
        unsafe { value(self.0) }
    }

    pub(crate) fn pointer(self) -> *const T {
        self.0
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Borrows a part of the value.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub(crate) fn part<E>(self, part: for<'x> fn(&'x T) -> &'x E) -> Result<Arg<'a, E>> {
        Ok(Arg(part(self.get()?), PhantomData))
    }

    /// Borrows the string that a field points to; None for NULL.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub(crate) fn string(
        self,
        field: for<'x> fn(&'x T) -> &'x *mut c_char,
    ) -> Result<Option<&'a OsStr>> {
        Ok(Arg::<c_char>(*field(self.get()?), PhantomData).text())
    }

    /// Borrows the elements of the array that the first field points to; the second field is their number.
    ///
    /// # Errors
    /// Those of [`get`](Self::get); `invalid argument` for an array that cannot exist.
    pub(crate) fn array<E: 'a>(
        self,
        fields: for<'x> fn(&'x T) -> (&'x *mut E, &'x usize),
    ) -> Result<impl Iterator<Item = Arg<'a, E>>> {
        let (items, count) = fields(self.get()?);
        // SAFETY: NULL or so many elements, unchanged for 'a: `args` demanded it of these two fields.
        let items: &'a [E] = unsafe { slice(*items, *count) }?;
        Ok(items.iter().map(|item| Arg(item, PhantomData)))
    }
}

impl<'a> Arg<'a, c_char> {
    /// Borrows the string; None for NULL.
    pub(crate) fn text(self) -> Option<&'a OsStr> {
        // SAFETY: NULL, or a string that ends with a zero and stays unchanged for 'a: `args` demanded it.
        unsafe { text(self.0) }
    }

    /// Returns option words; bytes that are not UTF-8 match no word and only change how an error quotes them.
    pub(crate) fn words(self, default: &str) -> String {
        let words = self.text().map(OsStr::to_string_lossy);
        words.map_or_else(|| default.to_owned(), std::borrow::Cow::into_owned)
    }
}

impl<'a> Arg<'a, *mut c_char> {
    /// Borrows the string that an element of an array points to; None for NULL.
    pub(crate) fn text(self) -> Option<&'a OsStr> {
        self.string(|text| text).ok().flatten()
    }
}

/// One pointer, or several.
pub(crate) trait Pointers<'a> {
    type Args;
    fn wrap(self) -> Self::Args;
}

impl<'a, T: 'a> Pointers<'a> for *const T {
    type Args = Arg<'a, T>;
    fn wrap(self) -> Self::Args {
        Arg(self, PhantomData)
    }
}

impl<'a, T: 'a> Pointers<'a> for *mut T {
    type Args = Arg<'a, T>;
    fn wrap(self) -> Self::Args {
        Arg(self, PhantomData)
    }
}

impl<'a, A: Pointers<'a>, B: Pointers<'a>> Pointers<'a> for (A, B) {
    type Args = (A::Args, B::Args);
    fn wrap(self) -> Self::Args {
        (self.0.wrap(), self.1.wrap())
    }
}

impl<'a, A: Pointers<'a>, B: Pointers<'a>, C: Pointers<'a>> Pointers<'a> for (A, B, C) {
    type Args = (A::Args, B::Args, C::Args);
    fn wrap(self) -> Self::Args {
        (self.0.wrap(), self.1.wrap(), self.2.wrap())
    }
}
