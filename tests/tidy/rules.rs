#![forbid(unsafe_code)]
//! The rules that look at one file at a time. Each returns its findings; none knows a list of
//! excused files except where DESIGN §2 names one.

use crate::Finding;
use crate::lex::{Source, Token};

/// Where `unsafe` may stand (DESIGN §2): the module's own file, not its submodules.
pub(crate) const UNSAFE_MODULES: &[&str] = &[
    "src/shm",
    "src/sync",
    "src/transport/uring",
    "src/transport/ring",
    "src/store/lmdb",
    "src/exec/cell",
    "src/exec/value",
];

/// The file whose polling loop all tests share.
pub(crate) const EVENTUALLY: &str = "tests/support/eventually.rs";

/// Longest file, in lines. A file near it has a seam along which it wants to be split.
pub(crate) const MAX_LINES: usize = 800;

/// Lines of code a `SAFETY:` or `SYNC:` comment may stand above what it speaks of: enough for a
/// statement that is broken over several lines.
const REACH: usize = 6;

/// A module file that may hold `unsafe`: `src/shm.rs` or `src/shm/mod.rs`.
fn may_be_unsafe(path: &str) -> bool {
    let module = path.strip_suffix("/mod.rs").or_else(|| path.strip_suffix(".rs"));
    module.is_some_and(|m| UNSAFE_MODULES.contains(&m))
}

/// Whether `path` is a module file with a module of `UNSAFE_MODULES` below it that exists and
/// holds `unsafe`. Such a file cannot forbid: the attribute would reach down.
fn is_above_unsafe(path: &str, sources: &[Source]) -> bool {
    let dir = match path.strip_suffix("/mod.rs").or_else(|| path.strip_suffix(".rs")) {
        Some("src/lib") => "src",
        Some(module) => module,
        None => return false,
    };
    sources.iter().any(|s| {
        may_be_unsafe(&s.path)
            && s.path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
            && !s.path.ends_with(&format!("{dir}/mod.rs"))
            && s.tokens.iter().any(|t| t.is_word("unsafe"))
    })
}

/// The first line of every file says what it may do.
pub(crate) fn unsafe_heads(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let first = source.text.lines().next().unwrap_or_default();
        let holds_unsafe = source.tokens.iter().any(|t| t.is_word("unsafe"));
        let wanted = if may_be_unsafe(&source.path) && holds_unsafe {
            "#![allow(unsafe_code)]"
        } else if is_above_unsafe(&source.path, sources) {
            "#![deny(unsafe_code)]"
        } else {
            "#![forbid(unsafe_code)]"
        };
        if first != wanted {
            findings.push(Finding::new(
                &source.path,
                1,
                format!("begins with {first:?}; make {wanted:?} its first line"),
            ));
        }
    }
    findings
}

/// Every `unsafe` says which invariant holds. Types (`unsafe fn(…)`) do nothing unsafe.
pub(crate) fn safety_comments(source: &Source) -> Vec<Finding> {
    let t = &source.tokens;
    let is_type = |i: usize| {
        let mut at = i + 1;
        if t.get(at).is_some_and(|x| x.is_word("extern")) {
            at += 1;
            at += usize::from(t.get(at).is_some_and(|x| x.word().is_none()));
        }
        t.get(at).is_some_and(|x| x.is_word("fn")) && t.get(at + 1).is_some_and(|x| x.is_punct("("))
    };
    let bare = |i: usize| {
        t[i].is_word("unsafe")
            && !is_type(i)
            && !source.has_mark(t[i].line, "SAFETY:", REACH)
            && !source.has_mark(t[i].line, "# Safety", REACH)
    };
    (0..t.len())
        .filter(|&i| bare(i))
        .map(|i| {
            let text = "`unsafe` without a reason; write `// SAFETY:` and the invariant that makes \
                        it sound directly above (for an `unsafe fn`, a `# Safety` section)";
            Finding::new(&source.path, t[i].line, text.to_owned())
        })
        .collect()
}

/// The orderings that pair with another place in the code.
fn pairs(token: &Token) -> bool {
    token.word().is_some_and(|w| matches!(w, "Acquire" | "Release" | "AcqRel" | "SeqCst"))
}

/// Every ordering above Relaxed names its partner, and is written so that it can be found.
pub(crate) fn sync_comments(source: &Source) -> Vec<Finding> {
    let t = &source.tokens;
    let mut findings = Vec::new();
    let mut in_use = false;
    for i in 0..t.len() {
        in_use = (in_use || t[i].is_word("use")) && !t[i].is_punct(";");
        if in_use && t[i].is_word("Ordering") {
            let next = t.get(i + 1);
            let renamed = next.is_some_and(|x| x.is_punct("::") || x.is_word("as"));
            if renamed {
                let text = "an ordering is imported or renamed; write `Ordering::X` in full where \
                            it is used, so that it can be found";
                findings.push(Finding::new(&source.path, t[i].line, text.to_owned()));
            }
        }
        let qualified = i >= 2 && t[i - 1].is_punct("::") && t[i - 2].is_word("Ordering");
        let bare = !in_use && qualified && pairs(&t[i]);
        if bare && !source.has_mark(t[i].line, "SYNC:", REACH) {
            let text = format!(
                "`Ordering::{}` without its partner; write `// SYNC: pairs with …` directly above",
                t[i].word().unwrap_or_default()
            );
            findings.push(Finding::new(&source.path, t[i].line, text));
        }
    }
    findings
}

/// Nothing is left for later, and no test is switched off.
pub(crate) fn left_overs(source: &Source) -> Vec<Finding> {
    let t = &source.tokens;
    let mut findings = Vec::new();
    for two in t.windows(2) {
        let word = two[0].word().unwrap_or_default();
        if matches!(word, "todo" | "unimplemented" | "dbg") && two[1].is_punct("!") {
            let text = format!("`{word}!` is left in the code; finish it or take it out");
            findings.push(Finding::new(&source.path, two[0].line, text));
        }
    }
    for attribute in source.attributes() {
        if let Some(ignore) = attribute.iter().find(|t| t.is_word("ignore")) {
            let text =
                "a test is switched off; make it pass or remove it with its reason".to_owned();
            findings.push(Finding::new(&source.path, ignore.line, text));
        }
    }
    for (at, line) in source.lines.iter().enumerate() {
        let fence = line.comment.trim_start_matches(['/', '!', '*', ' ']);
        let words = fence.strip_prefix("```").unwrap_or_default();
        if words.split([',', ' ']).any(|w| w == "ignore") {
            let text = "a doc example is not compiled; let it compile, or mark it `text`";
            findings.push(Finding::new(&source.path, at + 1, text.to_owned()));
        }
    }
    findings
}

/// No file is longer than [`MAX_LINES`].
pub(crate) fn length(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    if lines <= MAX_LINES {
        return Vec::new();
    }
    let text = format!("{lines} lines, {MAX_LINES} at most; split the file along a real seam");
    vec![Finding::new(path, lines, text)]
}

/// Tests wait for something, never for luck. In a simulation sleeping is virtual time and costs none.
pub(crate) fn sleeps(source: &Source) -> Vec<Finding> {
    let is_virtual = source.path.starts_with("tests/sim/");
    if !source.path.starts_with("tests/") || source.path == EVENTUALLY || is_virtual {
        return Vec::new();
    }
    let sleeps = |t: &&Token| {
        t.word().is_some_and(|w| matches!(w, "sleep" | "sleep_ms" | "sleep_until" | "park_timeout"))
    };
    source
        .tokens
        .iter()
        .filter(sleeps)
        .map(|t| {
            let text = format!(
                "a test sleeps; wait for the thing itself, or poll it with `eventually` of \
                 {EVENTUALLY}"
            );
            Finding::new(&source.path, t.line, text)
        })
        .collect()
}

/// Tops of absolute paths that only one machine has. Put together here, so that this file does
/// not contain them.
fn machine_roots() -> Vec<String> {
    ["work", "root", "home", "Users", "tmp/wt"].iter().map(|top| format!("/{top}")).collect()
}

/// No text names a place of one machine. Looks at whole files, comments and strings included.
pub(crate) fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
    let part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '~' | '}' | ')');
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for needle in machine_roots() {
            let hit = line.match_indices(&needle).any(|(start, _)| {
                let before = line[..start].chars().next_back();
                let after = line[start + needle.len()..].chars().next();
                let begins = !before.is_some_and(part);
                let ends = !after.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
                begins && ends
            });
            if hit {
                let text = format!(
                    "names {needle:?}, a place of one machine; use a relative path or a temporary \
                     directory"
                );
                findings.push(Finding::new(path, at + 1, text));
            }
        }
    }
    findings
}

/// Every relative link of a page leads to a file of the tree, whose paths are `all`.
pub(crate) fn links(path: &str, text: &str, all: &[&str]) -> Vec<Finding> {
    let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let mut parts: Vec<&str> = dir.split('/').filter(|p| !p.is_empty()).collect();
            for part in file.split('/') {
                match part {
                    ".." => {
                        parts.pop();
                    }
                    "." | "" => {}
                    _ => parts.push(part),
                }
            }
            let leads_to = parts.join("/");
            let below = format!("{leads_to}/");
            if !all.iter().any(|p| *p == leads_to || p.starts_with(&below)) {
                let text =
                    format!("links to {target:?}, which is not there; mend or remove the link");
                findings.push(Finding::new(path, at + 1, text));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source::new(path, text)
    }

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|f| f.line).collect()
    }

    const FORBID: &str = "#![forbid(unsafe_code)]\n";
    const DENY: &str = "#![deny(unsafe_code)]\n";
    const ALLOW: &str = "#![allow(unsafe_code)]\nfn f() { unsafe { g() } }";

    fn heads(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(p, t)| source(p, t)).collect();
        unsafe_heads(&sources).into_iter().map(|f| f.path).collect()
    }

    #[test]
    fn heads_are_wanted_everywhere() {
        let plain = [("src/lib.rs", FORBID), ("src/a/mod.rs", FORBID), ("tests/b.rs", FORBID)];
        assert_eq!(heads(&plain), [""; 0]);
        assert_eq!(heads(&[("tools/src/main.rs", "//! Doc.\n#![forbid(unsafe_code)]")]).len(), 1);
        assert_eq!(heads(&[("src/a.rs", "")]).len(), 1);
        assert_eq!(heads(&[("src/a.rs", ALLOW)]).len(), 1, "a is not on the list");
    }

    #[test]
    fn unsafe_modules_and_those_above_them_differ() {
        let tree = |lib, above, module: &'static str, child| {
            heads(&[
                ("src/lib.rs", lib),
                ("src/store/mod.rs", above),
                ("src/store/lmdb/mod.rs", module),
                ("src/store/lmdb/key.rs", child),
                ("src/store/memory.rs", FORBID),
            ])
        };
        assert_eq!(tree(DENY, DENY, ALLOW, FORBID), [""; 0]);
        assert_eq!(tree(FORBID, FORBID, FORBID, FORBID), [""; 0], "no unsafe yet");
        assert_eq!(tree(FORBID, FORBID, ALLOW, FORBID), ["src/lib.rs", "src/store/mod.rs"]);
        assert_eq!(tree(DENY, DENY, ALLOW, ALLOW), ["src/store/lmdb/key.rs"]);
        assert_eq!(tree(DENY, DENY, FORBID, FORBID), ["src/lib.rs", "src/store/mod.rs"]);
    }

    #[test]
    fn unsafe_needs_its_reason() {
        let found = |text| lines(&safety_comments(&source("src/shm.rs", text)));
        assert_eq!(found("fn f() {\n    unsafe { g() }\n}"), [2]);
        assert_eq!(found("// SAFETY: g has no rule.\nlet x =\n    unsafe { g() };"), [0; 0]);
        assert_eq!(found("// SAFETY: for another.\n\nlet x = unsafe { g() };"), [3]);
        assert_eq!(found("/// # Safety\n/// `p` is live.\nunsafe fn f(p: *const u8) {}"), [0; 0]);
        assert_eq!(found("unsafe impl Send for X {}"), [1]);
        assert_eq!(
            found("type F = unsafe fn(*const ()); type G = unsafe extern \"C\" fn(u8);"),
            [0; 0]
        );
        assert_eq!(found("let s = \"unsafe\"; // unsafe"), [0; 0]);
    }

    #[test]
    fn orderings_need_their_partner() {
        let found = |text| lines(&sync_comments(&source("src/sync.rs", text)));
        assert_eq!(found("x.load(Ordering::Acquire);\n\nfence(Ordering::SeqCst);"), [1, 3]);
        assert_eq!(found("x.load(Ordering::Relaxed); y = Effect::Release;"), [0; 0]);
        assert_eq!(
            found("// SYNC: pairs with the store in f.\nx.load(Ordering::Acquire);"),
            [0; 0]
        );
        assert_eq!(found("x.load(std::sync::atomic::Ordering::Acquire); // SYNC: pairs"), [0; 0]);
        let long = "// SYNC: pairs with f.\nx.compare_exchange(\na,\nb,\nOrdering::AcqRel,\nOrdering::Acquire,\n)";
        assert_eq!(found(long), [0; 0]);
        assert_eq!(found("use std::sync::atomic::Ordering::{Acquire, Relaxed};"), [1]);
        assert_eq!(found("use std::sync::atomic::{Ordering as O, AtomicU8};"), [1]);
        assert_eq!(
            found("use std::sync::atomic::{AtomicU8, Ordering};\nuse std::cmp::Ordering;"),
            [0; 0]
        );
    }

    #[test]
    fn left_overs_are_caught() {
        let found = |text| lines(&left_overs(&source("src/a.rs", text)));
        let macros = ["todo", "unimplemented", "dbg"].map(|m| format!("fn f() {{\n {m}!(x) }}"));
        for text in &macros {
            assert_eq!(found(text), [2]);
        }
        assert_eq!(found("#[test]\n#[ignore]\nfn f() {}"), [2]);
        assert_eq!(found("#[cfg_attr(miri, ignore = \"slow\")]"), [1]);
        assert_eq!(found("// todo!() #[ignore]\nlet todo = \"dbg!(x)\"; self.ignore();"), [0; 0]);
        assert_eq!(found("/// ```ignore\n/// x\n/// ```"), [1]);
        assert_eq!(found("//! ```rust,ignore"), [1]);
        assert_eq!(found("/// ```no_run\n/// ```text"), [0; 0]);
    }

    #[test]
    fn long_files_are_caught() {
        assert_eq!(length("a.rs", &"x\n".repeat(MAX_LINES)).len(), 0);
        assert_eq!(length("a.rs", &"x\n".repeat(MAX_LINES + 1)).len(), 1);
    }

    #[test]
    fn sleeps_are_caught_in_tests_only() {
        let text = "fn f() {\n    std::thread::sleep(x);\n tokio::time::sleep(y).await; }";
        assert_eq!(lines(&sleeps(&source("tests/e2e/main.rs", text))), [2, 3]);
        assert_eq!(lines(&sleeps(&source("tests/a.rs", "use std::thread::sleep as s;"))), [1]);
        assert_eq!(lines(&sleeps(&source(EVENTUALLY, text))), [0; 0]);
        assert_eq!(lines(&sleeps(&source("src/a.rs", text))), [0; 0]);
        assert_eq!(lines(&sleeps(&source("tests/a.rs", "// sleep\nlet s = \"sleep\";"))), [0; 0]);
    }

    #[test]
    fn machine_paths_are_caught() {
        for root in machine_roots() {
            for text in ["see %/x", "\"%\"", "cd %", "(%/a)", "unix://%/a", "a=%/b,", "%"] {
                let text = text.replace('%', &root);
                assert_eq!(machine_paths("README.md", &text).len(), 1, "{text}");
            }
            for text in ["%er", "net%", "https://example.org%/x", "a%", "$x}%/y", "%_x", "%-bench"]
            {
                let text = text.replace('%', &root);
                assert_eq!(machine_paths("README.md", &text).len(), 0, "{text}");
            }
        }
    }

    #[test]
    fn dead_links_are_caught() {
        let all = ["README.md", "docs/a.md", "docs/b/c.md"];
        let found = |path, text| lines(&links(path, text, &all));
        let good = "[a](docs/a.md) [b](docs/b) [c](https://x.org/y) [d](#part)\n[e](docs/a.md#p)";
        assert_eq!(found("README.md", good), [0; 0]);
        assert_eq!(found("docs/a.md", "[r](../README.md) [c](./b/c.md)"), [0; 0]);
        assert_eq!(found("README.md", "x\n[a](docs/a.md) [n](docs/no.md)"), [2]);
        assert_eq!(found("docs/a.md", "[a](docs/a.md)"), [1]);
    }
}
