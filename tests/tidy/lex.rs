#![forbid(unsafe_code)]
//! A small lexer of Rust: tokens of code with their lines, and comments apart from them.
//!
//! It knows what hides text from a search: line, doc and nested block comments, strings of every
//! prefix, raw strings, characters against lifetimes, raw identifiers. Strings and characters
//! become one token without their text, so no check can be fooled by, or trip over, what is
//! only written in a string.

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or keyword; a raw identifier keeps its `r#`.
    Word(String),
    /// One character of punctuation, or `::`.
    Punct(&'static str),
    /// A string, character, lifetime or number.
    Literal,
}

/// A token of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// What.
    pub kind: Kind,
    /// Line, from 1.
    pub line: usize,
}

impl Token {
    /// Whether this is the word `text`.
    pub(crate) fn is_word(&self, text: &str) -> bool {
        matches!(&self.kind, Kind::Word(w) if w == text)
    }

    /// Whether this is the punctuation `text`.
    pub(crate) fn is_punct(&self, text: &str) -> bool {
        matches!(&self.kind, Kind::Punct(p) if *p == text)
    }

    /// The word, if it is one.
    pub(crate) fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(w) => Some(w),
            _ => None,
        }
    }
}

/// One line, as the comment checks see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// Whether code starts, continues or ends on it.
    pub code: bool,
    /// The comments on it, joined.
    pub comment: String,
}

/// A lexed file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path from the root of the repository, with `/`.
    pub path: String,
    /// The text as it is.
    pub text: String,
    /// Tokens in order.
    pub tokens: Vec<Token>,
    /// Lines; index 0 is line 1.
    pub lines: Vec<Line>,
}

impl Source {
    /// Lexes `text`. Never fails: text that is not Rust gives tokens of some kind.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let mut lexer = Lexer {
            chars: text.chars().collect(),
            at: 0,
            line: 1,
            tokens: Vec::new(),
            lines: vec![Line::default(); text.lines().count().max(1) + 1],
        };
        lexer.run();
        let Lexer { tokens, lines, .. } = lexer;
        Self { path: path.to_owned(), text: text.to_owned(), tokens, lines }
    }

    /// Whether the code on `line` is under a comment that says `mark`: on the line itself or
    /// above it, with at most `reach` lines of code between and no empty line.
    pub(crate) fn has_mark(&self, line: usize, mark: &str, reach: usize) -> bool {
        let mut code_lines = 0;
        for l in self.lines[..line].iter().rev() {
            if l.comment.contains(mark) {
                return true;
            }
            if l.code {
                code_lines += 1;
            } else if l.comment.is_empty() {
                return false;
            }
            // The line itself is free.
            if code_lines > reach + 1 {
                return false;
            }
        }
        false
    }

    /// Token ranges inside `#[…]` and `#![…]`, brackets excluded.
    pub(crate) fn attributes(&self) -> Vec<&[Token]> {
        let t = &self.tokens;
        let mut found = Vec::new();
        let mut i = 0;
        while i < t.len() {
            let bang = usize::from(t.get(i + 1).is_some_and(|x| x.is_punct("!")));
            let opens = t[i].is_punct("#") && t.get(i + 1 + bang).is_some_and(|x| x.is_punct("["));
            i += 1;
            if !opens {
                continue;
            }
            let start = i + bang + 1;
            let mut depth = 1;
            let mut end = start;
            while end < t.len() {
                if t[end].is_punct("[") {
                    depth += 1;
                } else if t[end].is_punct("]") {
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                }
                end += 1;
            }
            found.push(&t[start..end]);
            i = end;
        }
        found
    }
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    tokens: Vec<Token>,
    lines: Vec<Line>,
}

/// Every character of punctuation Rust has, as a static string.
const PUNCTUATION: &str = "!#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\"";

fn punct(c: char) -> Option<&'static str> {
    PUNCTUATION.find(c).map(|i| &PUNCTUATION[i..=i])
}

fn starts_word(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

fn continues_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

impl Lexer {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    /// Takes one character, as code or as comment.
    fn take(&mut self, comment: bool) -> char {
        let c = self.peek(0);
        self.at += 1;
        if c == '\n' {
            self.line += 1;
        } else if let Some(line) = self.lines.get_mut(self.line - 1) {
            if comment {
                line.comment.push(c);
            } else if !c.is_whitespace() {
                line.code = true;
            }
        }
        c
    }

    fn ended(&self) -> bool {
        self.at >= self.chars.len()
    }

    fn push(&mut self, kind: Kind, line: usize) {
        self.tokens.push(Token { kind, line });
    }

    fn run(&mut self) {
        if self.peek(0) == '#' && self.peek(1) == '!' && self.peek(2) == '/' {
            self.line_comment(); // a script's first line
        }
        while !self.ended() {
            let (c, next, line) = (self.peek(0), self.peek(1), self.line);
            match c {
                _ if c.is_whitespace() => {
                    self.take(false);
                }
                '/' if next == '/' => self.line_comment(),
                '/' if next == '*' => self.block_comment(),
                '"' => self.string(line),
                '\'' => self.quote(line),
                _ if c.is_ascii_digit() => self.number(line),
                _ if starts_word(c) => self.word(line),
                ':' if next == ':' => {
                    self.take(false);
                    self.take(false);
                    self.push(Kind::Punct("::"), line);
                }
                _ => {
                    self.take(false);
                    self.push(punct(c).map_or(Kind::Literal, Kind::Punct), line);
                }
            }
        }
    }

    fn line_comment(&mut self) {
        while !self.ended() && self.peek(0) != '\n' {
            self.take(true);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while !self.ended() {
            let pair = (self.peek(0), self.peek(1));
            if pair == ('/', '*') || pair == ('*', '/') {
                self.take(true);
                self.take(true);
                if pair.0 == '/' {
                    depth += 1;
                } else {
                    depth -= 1;
                    if depth == 0 {
                        return;
                    }
                }
            } else {
                self.take(true);
            }
        }
    }

    /// A string with escapes; at its opening quote.
    fn string(&mut self, line: usize) {
        self.take(false);
        while !self.ended() {
            match self.take(false) {
                '\\' => {
                    self.take(false);
                }
                '"' => break,
                _ => {}
            }
        }
        self.push(Kind::Literal, line);
    }

    /// A raw string; at its first `#` or its quote, `hashes` counted.
    fn raw_string(&mut self, hashes: usize, line: usize) {
        for _ in 0..=hashes {
            self.take(false);
        }
        while !self.ended() {
            if self.take(false) == '"' && (0..hashes).all(|i| self.peek(i) == '#') {
                for _ in 0..hashes {
                    self.take(false);
                }
                break;
            }
        }
        self.push(Kind::Literal, line);
    }

    /// A character or a lifetime; at its quote.
    fn quote(&mut self, line: usize) {
        self.take(false);
        if starts_word(self.peek(0)) && self.peek(1) != '\'' {
            while continues_word(self.peek(0)) {
                self.take(false);
            }
        } else {
            if self.take(false) == '\\' {
                self.take(false); // the escaped character, perhaps a quote
            }
            while !self.ended() && self.take(false) != '\'' {} // \u{…} and \x..
        }
        self.push(Kind::Literal, line);
    }

    fn number(&mut self, line: usize) {
        while continues_word(self.peek(0)) || (self.peek(0) == '.' && self.peek(1).is_ascii_digit())
        {
            self.take(false);
        }
        self.push(Kind::Literal, line);
    }

    fn word(&mut self, line: usize) {
        let mut text = String::new();
        while continues_word(self.peek(0)) {
            text.push(self.take(false));
        }
        let hashes = (0..).take_while(|&i| self.peek(i) == '#').count();
        let raw_prefix = matches!(text.as_str(), "r" | "br" | "cr");
        if raw_prefix && self.peek(hashes) == '"' {
            return self.raw_string(hashes, line);
        }
        if matches!(text.as_str(), "b" | "c") && self.peek(0) == '"' {
            return self.string(line);
        }
        if text == "b" && self.peek(0) == '\'' {
            return self.quote(line);
        }
        if text == "r" && hashes == 1 && starts_word(self.peek(1)) {
            text.push(self.take(false));
            while continues_word(self.peek(0)) {
                text.push(self.take(false));
            }
        }
        self.push(Kind::Word(text), line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let source = Source::new("x.rs", text);
        source.tokens.iter().filter_map(|t| t.word().map(str::to_owned)).collect()
    }

    #[test]
    fn comments_are_apart_from_code() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(words("/// doc\n//! doc\n/** doc */ a"), ["a"]);
        let source = Source::new("x.rs", "a // one\n/* two\nthree */ b\n\nc");
        let comments: Vec<&str> = source.lines.iter().map(|l| l.comment.as_str()).collect();
        assert_eq!(comments, ["// one", "/* two", "three */", "", "", ""]);
        let code: Vec<bool> = source.lines.iter().map(|l| l.code).collect();
        assert_eq!(code, [true, false, true, false, true, false]);
    }

    #[test]
    fn strings_hide_their_text() {
        assert_eq!(words(r#"a("b \" c", b"d", c"e"); f"#), ["a", "f"]);
        assert_eq!(words("a(r\"b\\\", r#\"c \" d\"#, br##\"e\"# f\"##) g"), ["a", "g"]);
        assert_eq!(words("a \"// b\" c // \" d\n e"), ["a", "c", "e"]);
        assert_eq!(words("a \"/* b\" c"), ["a", "c"]);
        assert_eq!(words("a \"b \\\\\" c"), ["a", "c"]);
    }

    #[test]
    fn characters_are_no_lifetimes() {
        assert_eq!(words("a 'b' c b'd' e"), ["a", "c", "e"]);
        assert_eq!(
            words(r"a '\'' b '\\' c '\u{61}' d '\x41' e '/' f"),
            "a b c d e f".split(' ').collect::<Vec<_>>()
        );
        assert_eq!(words("fn a<'b>(c: &'b str, d: &'_ u8) {}"), ["fn", "a", "c", "str", "d", "u8"]);
        assert_eq!(words("a '\"' b '\"' c"), ["a", "b", "c"]);
        assert_eq!(words("'outer: loop { break 'outer; }"), ["loop", "break"]);
        assert_eq!(words("a 'é' b '字' c"), ["a", "b", "c"]);
    }

    #[test]
    fn words_numbers_and_paths() {
        assert_eq!(words("r#type r b br x1 0xff 1e9 1_u8 2.5"), ["r#type", "r", "b", "br", "x1"]);
        let source = Source::new("x.rs", "a::b\n  :c 0..9");
        let kinds: Vec<(Kind, usize)> =
            source.tokens.into_iter().map(|t| (t.kind, t.line)).collect();
        let word = |w: &str| Kind::Word(w.to_owned());
        assert_eq!(
            kinds,
            [
                (word("a"), 1),
                (Kind::Punct("::"), 1),
                (word("b"), 1),
                (Kind::Punct(":"), 2),
                (word("c"), 2),
                (Kind::Literal, 2),
                (Kind::Punct("."), 2),
                (Kind::Punct("."), 2),
                (Kind::Literal, 2),
            ]
        );
    }

    #[test]
    fn broken_text_ends() {
        for text in ["\"", "'", "/*", "r#\"", "b'", "\\", "'\\", "#[", "a::", "", "'a", "r#"] {
            let source = Source::new("x.rs", text);
            let _ = source.attributes();
        }
    }

    #[test]
    fn attributes_are_found() {
        let source = Source::new("x.rs", "#![a]\n#[b(c[d])]\nfn e() { f[g]; } # [h = \"]\"]");
        let found: Vec<Vec<&str>> = source
            .attributes()
            .iter()
            .map(|a| a.iter().filter_map(Token::word).collect())
            .collect();
        assert_eq!(found, [vec!["a"], vec!["b", "c", "d"], vec!["h"]]);
    }

    #[test]
    fn marks_reach_over_code_but_not_over_empty_lines() {
        let text = "// MARK: why\n// and more\na(\n b,\n c)\n\nd // MARK: here\n\ne";
        let source = Source::new("x.rs", text);
        assert!(source.has_mark(3, "MARK:", 2));
        assert!(source.has_mark(5, "MARK:", 2));
        assert!(!source.has_mark(5, "MARK:", 1));
        assert!(source.has_mark(7, "MARK:", 2));
        assert!(!source.has_mark(9, "MARK:", 2));
        assert!(!source.has_mark(3, "OTHER:", 2));
    }
}
