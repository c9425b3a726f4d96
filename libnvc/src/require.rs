//! Evaluates requirement expressions.
