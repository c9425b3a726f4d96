//! Renders plans as text and as JSON.
//!
//! Every function here is pure: plan in, value out, no I/O.

#![forbid(unsafe_code)]

mod json;
mod text;

pub use json::json;
pub use text::text;
