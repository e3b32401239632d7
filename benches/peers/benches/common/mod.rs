#![forbid(unsafe_code)]
//! What both benches say about themselves.

/// The versions of the named crates, as they are locked.
pub(crate) fn versions(names: &[&str]) -> String {
    let lock = include_str!("../../Cargo.lock");
    // The last of them, where others of its dependents have an older one.
    let version = |name: &&str| {
        let (_, rest) = lock.rsplit_once(&format!("name = \"{name}\"\nversion = \""))?;
        Some(format!("{name} {}", rest.split('"').next()?))
    };
    names
        .iter()
        .map(|name| version(name).unwrap_or_else(|| panic!("{name} is not in Cargo.lock")))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The command that runs one of the benches.
pub(crate) fn command(bench: &str) -> String {
    format!("cargo bench --manifest-path benches/peers/Cargo.toml --bench {bench} --")
}
