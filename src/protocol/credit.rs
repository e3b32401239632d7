#![forbid(unsafe_code)]
//! Byte credit of lanes and of the local budget.
