#![forbid(unsafe_code)]
//! Faults that were found, each with the run that shows it.
