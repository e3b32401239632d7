#![forbid(unsafe_code)]
//! Who may use whom in `src/`: the rank table and the check of every path against it.
//!
//! A path counts when it leaves its module: through `crate::`, through the crate's own name, or
//! through enough `super::`. Paths inside a module (`store` using `store::lmdb`) are its own
//! affair. `src/lib.rs` declares and re-exports everything and may name every module but `sim`.

use std::collections::BTreeMap;

use crate::Finding;
use crate::lex::{Kind, Source, Token};

/// The ranks of `src/`, bottom to top. Modules in one row do not know each other, except in the
/// row of words, where each may use those written before it.
pub(crate) const ROWS: &[(u8, &[&str])] = &[
    (0, &["limits", "error", "time", "sync", "ids"]),
    (1, &["wire"]),
    (1, &["location"]),
    (1, &["layout"]),
    (2, &["shm"]),
    (2, &["env"]),
    (3, &["route"]),
    (3, &["store"]),
    (4, &["protocol"]),
    (5, &["transport"]),
    (5, &["exec"]),
    (6, &["object"]),
    (6, &["client"]),
    (7, &["node"]),
];

/// Uses everything and is used by nobody.
pub(crate) const SIM: &str = "sim";

/// Rank, row and place in the row; `None` for a module that is not in the table.
fn place(module: &str) -> Option<(u8, usize, usize)> {
    ROWS.iter().enumerate().find_map(|(row, (rank, modules))| {
        modules.iter().position(|m| *m == module).map(|at| (*rank, row, at))
    })
}

/// The path of modules a file of `src/` holds: `src/a/b.rs` and `src/a/b/mod.rs` are `a, b`.
fn module_path(path: &str) -> Vec<String> {
    let inner = path.strip_prefix("src/").unwrap_or(path);
    let inner = inner.strip_suffix(".rs").unwrap_or(inner);
    let mut parts: Vec<String> = inner.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|p| p == "mod") || inner == "lib" {
        parts.pop();
    }
    parts
}

/// A path as written, with the modules it stands in.
#[derive(Debug)]
struct Written {
    inside: Vec<String>,
    segments: Vec<String>,
    alias: Option<String>,
    line: usize,
    is_use: bool,
}

/// What a path starts from, and what follows.
enum Target {
    /// Stays inside the module, or belongs to another crate.
    Elsewhere,
    /// The crate's root itself: a glob, or an alias of the root.
    Root,
    /// This name of the crate's root.
    Name(String),
}

/// Checks all files of `src/`.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let files: Vec<(&Source, Vec<Written>)> = sources
        .iter()
        .filter(|s| s.path.starts_with("src/"))
        .map(|s| (s, written_paths(s)))
        .collect();
    let names = root_names(&files);
    let mut findings = Vec::new();
    for (source, paths) in &files {
        let modules = module_path(&source.path);
        let owner = modules.first().map(String::as_str);
        if let Some(owner) = owner
            && owner != SIM
            && place(owner).is_none()
        {
            findings.push(Finding::new(
                &source.path,
                1,
                format!(
                    "module `{owner}` has no rank; put it into ROWS of tests/tidy/ranks.rs, \
                         or the file into a module that has one"
                ),
            ));
            continue;
        }
        for path in paths {
            let text = judge(owner, path, &names);
            findings.extend(text.map(|text| Finding::new(&source.path, path.line, text)));
        }
        for attribute in source.attributes() {
            if attribute.first().is_some_and(|t| t.is_word("path")) {
                findings.push(Finding::new(
                    &source.path,
                    attribute[0].line,
                    "`#[path]` hides which module a file is; move the file to its place".to_owned(),
                ));
            }
        }
    }
    findings
}

/// What is wrong with `path` in module `owner` (`None`: `lib.rs`).
fn judge(owner: Option<&str>, path: &Written, names: &BTreeMap<String, String>) -> Option<String> {
    let name = match target(path, owner.is_none()) {
        Target::Elsewhere => return None,
        Target::Root if owner.is_none() => return None,
        Target::Root => {
            return Some(
                "takes the crate's root as a whole, which hides what is used; name the items"
                    .to_owned(),
            );
        }
        Target::Name(name) => name,
    };
    let known = |m: &str| m == SIM || place(m).is_some();
    let module = if known(&name) { &name } else { names.get(&name).unwrap_or(&name) };
    let Some(owner) = owner else {
        return (module == SIM).then(|| {
            "re-exports from `sim`, which nothing may use; name it as `homing::sim::…`".to_owned()
        });
    };
    if module == owner || owner == SIM {
        return None;
    }
    if module == SIM {
        return Some(format!(
            "`{owner}` uses `sim`, which nothing may use; turn the dependency round"
        ));
    }
    let Some((rank, row, at)) = place(module) else {
        return Some(format!(
            "uses `crate::{name}`, which is neither a module of the rank table nor an item that \
             lib.rs re-exports from one; name the module that defines it"
        ));
    };
    let (own_rank, own_row, own_at) = place(owner)?;
    if own_row == row && own_at < at {
        return Some(format!(
            "`{owner}` uses `{module}`, which stands after it in the row of words; move what both \
             need to the earlier one"
        ));
    }
    if own_row != row && own_rank == rank {
        return Some(format!(
            "`{owner}` uses `{module}` of the same rank {rank}; modules of one rank do not know \
             each other: move what both need to a lower rank, or let a higher one connect them"
        ));
    }
    (own_rank < rank).then(|| {
        format!(
            "`{owner}` (rank {own_rank}) uses `{module}` (rank {rank}); a module uses lower ranks \
             only: move what it needs down, or turn the dependency round with a trait or an effect"
        )
    })
}

/// Where a path leads. In `lib.rs` a `use` without a head starts at the root as well.
fn target(path: &Written, in_lib: bool) -> Target {
    let mut base = path.inside.clone();
    let mut rest = path.segments.as_slice();
    let mut anchored = false;
    while let Some(first) = rest.first() {
        match first.as_str() {
            "crate" | "homing" if !anchored => base.clear(),
            "self" => {}
            "super" => {
                base.pop();
            }
            _ => break,
        }
        anchored = true;
        rest = &rest[1..];
    }
    if !anchored {
        let from_root = in_lib && path.is_use && base.is_empty();
        return match rest.first() {
            Some(name) if from_root && (name == SIM || place(name).is_some()) => {
                Target::Name(name.clone())
            }
            _ => Target::Elsewhere,
        };
    }
    match (base.first(), rest.first()) {
        (Some(module), _) => Target::Name(module.clone()),
        (None, Some(name)) if name != "*" => Target::Name(name.clone()),
        (None, _) => Target::Root,
    }
}

/// Names that stand at the crate's root without being modules, and the module each comes from:
/// what `lib.rs` re-exports, and macros.
fn root_names(files: &[(&Source, Vec<Written>)]) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for (source, paths) in files {
        let modules = module_path(&source.path);
        let Some(owner) = modules.first() else {
            for path in paths.iter().filter(|p| p.is_use && p.inside.is_empty()) {
                if let Target::Name(module) = target(path, true) {
                    let name = path.alias.as_ref().or(path.segments.last());
                    names.extend(name.map(|n| (n.clone(), module)));
                }
            }
            continue;
        };
        for three in source.tokens.windows(3) {
            if three[0].is_word("macro_rules") && three[1].is_punct("!") {
                names.extend(three[2].word().map(|n| (n.to_owned(), owner.clone())));
            }
        }
    }
    names
}

/// Every `use` and every path with a head in a file.
fn written_paths(source: &Source) -> Vec<Written> {
    let t = &source.tokens;
    let file_modules = module_path(&source.path);
    let mut inline: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let mut found = Vec::new();
    let mut i = 0;
    while i < t.len() {
        let token = &t[i];
        let next = t.get(i + 1);
        if token.is_punct("{") {
            depth += 1;
        } else if token.is_punct("}") {
            depth -= 1;
            inline.retain(|(_, opened)| *opened <= depth);
        } else if token.is_word("mod")
            && t.get(i + 2).is_some_and(|x| x.is_punct("{"))
            && let Some(name) = next.and_then(Token::word)
        {
            inline.push((name.to_owned(), depth + 1));
        }
        let mut inside = file_modules.clone();
        inside.extend(inline.iter().map(|(name, _)| name.clone()));
        let after_path = i > 0 && t[i - 1].is_punct("::");
        let precise_capture = next.is_some_and(|x| x.is_punct("<"));
        if token.is_word("use") && !precise_capture {
            let mut tree = UseTree { tokens: t, at: i + 1, inside, found: &mut found };
            tree.walk(&[]);
            i = tree.at;
            continue;
        }
        let head = token.word().is_some_and(|w| matches!(w, "crate" | "super" | "self" | "homing"));
        if head && !after_path && next.is_some_and(|x| x.is_punct("::")) {
            let mut segments = Vec::new();
            let mut at = i;
            while let Some(Kind::Word(word)) = t.get(at).map(|x| &x.kind) {
                segments.push(word.clone());
                if !t.get(at + 1).is_some_and(|x| x.is_punct("::")) {
                    break;
                }
                at += 2;
            }
            found.push(Written { inside, segments, alias: None, line: token.line, is_use: false });
            i = at.max(i + 1);
            continue;
        }
        i += 1;
    }
    found
}

/// Walks `a::{b, c::{self, d as e}, f::*}`.
struct UseTree<'a> {
    tokens: &'a [Token],
    at: usize,
    inside: Vec<String>,
    found: &'a mut Vec<Written>,
}

impl UseTree<'_> {
    fn here(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn is(&self, text: &str) -> bool {
        self.here().is_some_and(|t| t.is_punct(text))
    }

    /// One branch, up to `,`, `}` or `;`.
    fn walk(&mut self, prefix: &[String]) {
        let mut segments = prefix.to_vec();
        let mut alias = None;
        let line = self.here().map_or(0, |t| t.line);
        while let Some(token) = self.here() {
            if token.is_punct("{") {
                self.at += 1;
                while self.here().is_some() && !self.is("}") && !self.is(";") {
                    self.walk(&segments);
                    if self.is(",") {
                        self.at += 1;
                    }
                }
                self.at += usize::from(self.is("}"));
                return;
            }
            if token.is_punct(",") || token.is_punct("}") || token.is_punct(";") {
                break;
            }
            if token.is_word("as") {
                alias = self.tokens.get(self.at + 1).and_then(Token::word).map(str::to_owned);
                self.at += 1;
            } else if token.is_punct("*") {
                segments.push("*".to_owned());
            } else if let Some(word) = token.word() {
                segments.push(word.to_owned());
            }
            self.at += 1;
        }
        let inside = self.inside.clone();
        self.found.push(Written { inside, segments, alias, line, is_use: true });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings of planted files, as `path:line word of the text`.
    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(p, t)| Source::new(p, t)).collect();
        check(&sources).iter().map(ToString::to_string).collect()
    }

    fn clean(path: &str, text: &str) {
        assert_eq!(findings(&[(path, text)]), [""; 0], "{path}: {text}");
    }

    fn caught(path: &str, text: &str, line: usize, says: &str) {
        let found = findings(&[(path, text)]);
        let head = format!("{path}:{line}: ");
        let hit = found.iter().any(|f| f.starts_with(&head) && f.contains(says));
        assert!(hit && found.len() == 1, "{path}: {text}: {found:?} without {head}{says}");
    }

    #[test]
    fn lower_ranks_are_allowed() {
        clean("src/wire/mod.rs", "use crate::ids::ActorId; use crate::{error, limits::X as Y};");
        clean("src/node/mod.rs", "use crate::{exec, transport::{self, Link}, object::*};");
        clean("src/protocol/peer.rs", "fn f() -> crate::env::Endpoint { super::x::y() }");
        clean("src/sim/mod.rs", "use crate::node::Node; use crate::env::Env;");
        clean("src/ids.rs", "use crate::error::Error; use crate::limits::MAX;");
        clean("src/store/lmdb.rs", "use crate::store::records; use super::memory; use heed::Env;");
    }

    #[test]
    fn higher_ranks_are_caught_in_every_form() {
        let says = "(rank 4) uses `transport` (rank 5)";
        let path = "src/protocol/peer.rs";
        caught(path, "use crate::transport;", 1, says);
        caught(path, "use crate::transport::Link;", 1, says);
        caught(path, "use crate::{error, env::{self, X},\n transport::{Link as L}};", 2, says);
        caught(path, "pub(crate) use crate::{{transport::*}};", 1, says);
        caught(path, "\nfn f(x: &crate::transport::Link) {}", 2, says);
        caught(path, "use super::super::transport;", 1, says);
        caught(path, "use super::super::{transport};", 1, says);
        caught(path, "use super::{super::transport::Link};", 1, says);
        caught(path, "use self::super::super::transport;", 1, says);
        caught(path, "use homing::transport;", 1, says);
        caught(path, "macro_rules! m { () => { $crate::transport::x() } }", 1, says);
        caught(
            path,
            "mod tests { mod deep { use super::super::super::super::transport; } }",
            1,
            says,
        );
        caught(path, "mod a { } use super::super::transport;", 1, says);
        caught(path, "fn f() { g(<crate::transport::Link as T>::new()) }", 1, says);
        caught("src/protocol/mod.rs", "use super::transport;", 1, says);
        caught("src/protocol.rs", "pub(in crate::transport) fn f() {}", 1, says);
    }

    #[test]
    fn same_rank_is_caught() {
        caught("src/exec/mod.rs", "use crate::transport::Link;", 1, "same rank 5");
        caught("src/wire.rs", "use crate::location;", 1, "same rank 1");
        caught("src/error.rs", "use crate::ids;", 1, "after it in the row of words");
    }

    #[test]
    fn what_stays_inside_is_free() {
        clean("src/protocol/peer.rs", "mod tests { use super::*; use super::super::batch; }");
        clean("src/protocol/mod.rs", "pub mod peer; use peer::Peer; use self::batch::B;");
        clean(
            "src/protocol/peer.rs",
            "use std::fmt; use ::homing_other::x; a.b::<crate::error::Error>()",
        );
        clean(
            "src/protocol/peer.rs",
            "// use crate::node;\n/* crate::node */ let s = \"crate::node\";",
        );
        clean("src/protocol/peer.rs", "fn f() -> impl T + use<'_> { x } pub(crate) fn g() {}");
        clean("src/protocol/peer.rs", "use super::{batch::B, create};");
    }

    #[test]
    fn sim_is_used_by_nobody() {
        caught("src/node/mod.rs", "use crate::sim::World;", 1, "uses `sim`");
        caught("src/lib.rs", "pub mod sim;\npub use sim::World;", 2, "re-exports from `sim`");
        caught("src/lib.rs", "pub mod prelude { pub use crate::sim::World; }", 1, "`sim`");
    }

    #[test]
    fn unknown_modules_and_names_are_caught() {
        caught("src/util.rs", "fn f() {}", 1, "has no rank");
        caught("src/util/x.rs", "use crate::node;", 1, "has no rank");
        caught("src/store/mod.rs", "use crate::stuff;", 1, "neither a module");
        caught("src/store/mod.rs", "use crate::*;", 1, "root as a whole");
        caught("src/store/mod.rs", "use crate as homing_root;", 1, "root as a whole");
        caught("src/ids.rs", "use super::*;", 1, "root as a whole");
        caught("src/store/mod.rs", "#[path = \"x.rs\"] mod x;", 1, "#[path]");
    }

    #[test]
    fn names_of_the_root_count_as_their_module() {
        let lib = ("src/lib.rs", "pub use error::{Error, Result as R}; pub use crate::node::Node;");
        let used = |path, text| findings(&[lib, (path, text)]);
        assert_eq!(used("src/wire/mod.rs", "use crate::{Error, R};"), [""; 0]);
        let found = used("src/wire/mod.rs", "fn f(n: crate::Node) {}");
        assert!(found.len() == 1 && found[0].contains("uses `node` (rank 7)"), "{found:?}");
        let macros = ("src/exec/mod.rs", "macro_rules! spin { () => {} }");
        let found = findings(&[macros, ("src/env.rs", "fn f() { crate::spin!() }")]);
        assert!(found.len() == 1 && found[0].contains("uses `exec` (rank 5)"), "{found:?}");
    }

    #[test]
    fn the_table_has_every_module_once() {
        let mut all: Vec<&str> = ROWS.iter().flat_map(|(_, m)| m.iter().copied()).collect();
        assert!(ROWS.is_sorted_by_key(|(rank, _)| *rank));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert_eq!(place("node").map(|p| p.0), Some(7));
        assert!(place(SIM).is_none());
    }
}
