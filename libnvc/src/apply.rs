//! Carries a plan out by descriptor, all or nothing.
