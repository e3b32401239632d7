#![forbid(unsafe_code)]
//! Every dependency is one the design names, or says on its line what it is for.

use crate::Finding;

/// The crates of DESIGN §10. A name ending in `*` stands for a family.
const NAMED: &[&str] = &[
    "crossbeam*",
    "rtrb",
    "memmap2",
    "rustix",
    "io-uring",
    "flume",
    "zerocopy",
    "hdrhistogram",
    "tracing",
    "heed",
    "redis",
    "xxhash-rust",
    "crc32c",
    "hmac",
    "sha2",
    "serde",
    "serde_json",
    "postcard",
    "smallvec",
    "thiserror",
    "clap",
    "ratatui",
    "indicatif",
    "loom",
    "proptest",
    "stateright",
    "libfuzzer-sys",
];

/// Fewest words that can say what a crate is for.
const MIN_WORDS: usize = 3;

fn is_named(name: &str) -> bool {
    NAMED.iter().any(|n| n.strip_suffix('*').map_or(*n == name, |family| name.starts_with(family)))
}

/// A line's code and its comment, split at a `#` outside of strings.
fn split_comment(line: &str) -> (&str, &str) {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(q), c) if q == c => quote = None,
            (None, '#') => return (&line[..at], &line[at + 1..]),
            _ => {}
        }
    }
    (line, "")
}

/// Checks one `Cargo.toml`.
pub(crate) fn dependencies(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_table = false;
    let mut depth = 0i32;
    for (at, line) in text.lines().enumerate() {
        let (code, comment) = split_comment(line);
        let code = code.trim();
        let continues = depth > 0;
        let count = |open: char, close: char| {
            code.matches(open).count() as i32 - code.matches(close).count() as i32
        };
        let mut name = None;
        if !continues && code.starts_with('[') {
            let table = code.trim_matches(['[', ']']);
            let at = table.find("dependencies");
            in_table = at.is_some_and(|at| table[at..] == *"dependencies");
            // A dependency with a table of its own: [dependencies.x].
            name = at.and_then(|at| table[at..].strip_prefix("dependencies.")).map(str::trim);
        } else {
            depth += count('[', ']') + count('{', '}');
            if !continues && in_table {
                name = code.split_once('=').map(|(name, _)| name.trim());
            }
        }
        let Some(name) = name.map(|n| n.split('.').next().unwrap_or(n).trim_matches('"')) else {
            continue;
        };
        let ours = code.contains("path =") || code.contains("path=");
        if !ours && !is_named(name) && comment.split_whitespace().count() < MIN_WORDS {
            findings.push(Finding::new(
                path,
                at + 1,
                format!(
                    "`{name}` is not a crate the design names; say on its line what it is for: \
                     `{name} = … # what for`"
                ),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        dependencies("Cargo.toml", text).iter().map(|f| f.line).collect()
    }

    #[test]
    fn named_crates_and_reasons_pass() {
        assert_eq!(lines("[dependencies]\nserde = \"1\"\ncrossbeam-queue = \"0.3\"\n"), [0; 0]);
        assert_eq!(lines("[dependencies]\nslab = \"0.4\" # stable small indices\n"), [0; 0]);
        assert_eq!(lines("[dependencies]\nhoming = { path = \"..\" }"), [0; 0]);
        assert_eq!(lines("[package]\nname = \"x\"\n[features]\nslab = []\n"), [0; 0]);
        assert_eq!(lines("[dependencies.slab] # stable small indices\nversion = \"1\""), [0; 0]);
    }

    #[test]
    fn unexplained_crates_are_caught() {
        assert_eq!(lines("[dependencies]\nslab = \"0.4\""), [2]);
        assert_eq!(lines("[dev-dependencies]\nslab = { version = \"#1 is a\" } # it"), [2]);
        assert_eq!(lines("[target.'cfg(unix)'.dependencies]\n\"slab\" = \"1\""), [2]);
        assert_eq!(lines("[workspace.dependencies]\nslab.version = \"1\""), [2]);
        assert_eq!(lines("[dependencies.slab]\nversion = \"1\"\nfeatures = [\"a\"]"), [1]);
        let folded =
            "[dependencies]\nserde = { version = \"1\", features = [\n \"a=b\",\n] }\nslab = \"1\"";
        assert_eq!(lines(folded), [5]);
    }
}
