#![forbid(unsafe_code)]
//! The fields of a JSON object, read by name. Whatever is wrong is said with the field's path,
//! its value, and the rule that it breaks.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;

use homing::ids::NodeRid;
use homing::limits::{MAX_FENCE, MAX_ID_BYTES};
use homing::wire::Rule;

use crate::json::Json;

/// A field that cannot be encoded.
#[derive(Debug)]
pub(super) struct Wrong {
    path: String,
    /// As JSON; `None` when the field is missing.
    value: Option<String>,
    rule: String,
}

impl Wrong {
    pub(super) fn new(path: &str, value: Option<&Json>, rule: impl Into<String>) -> Self {
        let value = value.map(Json::to_string);
        Self { path: path.to_owned(), value, rule: rule.into() }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "the input" } else { &self.path };
        match &self.value {
            Some(value) => write!(f, "{path} is {value}: {}", self.rule),
            None => write!(f, "{path} is missing: {}", self.rule),
        }
    }
}

/// A rule of the wire, as messages give it.
pub(super) fn named(rule: Rule) -> String {
    format!("{rule}: {}", rule.text())
}

/// Keeps bytes that were made from hex as long as the JSON they come from.
#[derive(Default)]
pub(super) struct Arena {
    bytes: OnceCell<Vec<u8>>,
    next: OnceCell<Box<Self>>,
}

impl Arena {
    fn keep(&self, bytes: Vec<u8>) -> &[u8] {
        let mut at = self;
        while at.bytes.get().is_some() {
            at = at.next.get_or_init(Box::default);
        }
        at.bytes.get_or_init(|| bytes)
    }
}

/// One JSON object.
pub(super) struct Fields<'j> {
    object: &'j [(Cow<'static, str>, Json)],
    path: String,
    arena: &'j Arena,
}

impl<'j> Fields<'j> {
    /// The fields of `json`, whose place in the input is `path`.
    pub(super) fn of(json: &'j Json, path: &str, arena: &'j Arena) -> Result<Self, Wrong> {
        match json {
            Json::Object(object) => Ok(Self { object, path: path.to_owned(), arena }),
            _ => Err(Wrong::new(path, Some(json), "it must be an object {…}")),
        }
    }

    /// The path of a field.
    pub(super) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field that is there and is not null.
    pub(super) fn given(&self, name: &str) -> Option<&'j Json> {
        let field = self.object.iter().find(|(field, _)| field == name);
        field.map(|(_, value)| value).filter(|value| **value != Json::Null)
    }

    pub(super) fn wrong(&self, name: &str, rule: impl Into<String>) -> Wrong {
        let value = self.object.iter().find(|(field, _)| field == name).map(|(_, value)| value);
        Wrong::new(&self.path(name), value, rule)
    }

    fn broken(&self, name: &str, rule: Rule) -> Wrong {
        self.wrong(name, named(rule))
    }

    pub(super) fn object(&self, name: &str) -> Result<Self, Wrong> {
        match self.given(name) {
            Some(value) => Self::of(value, &self.path(name), self.arena),
            None => Err(self.wrong(name, "it must be an object {…}")),
        }
    }

    /// An object, or `None` when it is null or missing.
    pub(super) fn opt<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Self) -> Result<T, Wrong>,
    ) -> Result<Option<T>, Wrong> {
        self.given(name).map(|_| read(&self.object(name)?)).transpose()
    }

    /// The objects of a list.
    pub(super) fn list(&self, name: &str) -> Result<Vec<Self>, Wrong> {
        let Some(Json::List(items)) = self.given(name) else {
            return Err(self.wrong(name, "it must be a list […]"));
        };
        let path = self.path(name);
        let item = |(i, item)| Self::of(item, &format!("{path}[{i}]"), self.arena);
        items.iter().enumerate().map(item).collect()
    }

    pub(super) fn bool(&self, name: &str) -> Result<bool, Wrong> {
        match self.given(name) {
            Some(Json::Bool(value)) => Ok(*value),
            _ => Err(self.wrong(name, "it must be true or false")),
        }
    }

    pub(super) fn number<N: TryFrom<u64>>(&self, name: &str) -> Result<N, Wrong> {
        let number = match self.given(name) {
            Some(Json::Number(number)) => N::try_from(*number).ok(),
            _ => None,
        };
        let bits = 8 * size_of::<N>();
        number.ok_or_else(|| {
            self.wrong(name, format!("it must be a whole number of 0 to 2^{bits}-1"))
        })
    }

    /// A number of a closed set.
    pub(super) fn choice<N: TryFrom<u64>, T>(
        &self,
        name: &str,
        choose: impl FnOnce(N) -> Option<T>,
        rule: Rule,
    ) -> Result<T, Wrong> {
        choose(self.number(name)?).ok_or_else(|| self.broken(name, rule))
    }

    /// A generation or correlation.
    pub(super) fn fence<T>(
        &self,
        name: &str,
        make: impl FnOnce(u64) -> Option<T>,
    ) -> Result<T, Wrong> {
        let value: u64 = self.number(name)?;
        let rule = if value > MAX_FENCE { Rule::GenerationRange } else { Rule::GenerationZero };
        make(value).ok_or_else(|| self.broken(name, rule))
    }

    /// A generation or correlation, or `None` when it is null or missing.
    pub(super) fn opt_fence<T>(
        &self,
        name: &str,
        make: impl FnOnce(u64) -> Option<T>,
    ) -> Result<Option<T>, Wrong> {
        self.given(name).map(|_| self.fence(name, make)).transpose()
    }

    /// Text of 1 to 255 bytes.
    pub(super) fn text(&self, name: &str) -> Result<&'j str, Wrong> {
        self.text_up_to(name, MAX_ID_BYTES)
    }

    /// Text of 1 to 255 bytes, or `None` when it is null or missing.
    pub(super) fn opt_text(&self, name: &str) -> Result<Option<&'j str>, Wrong> {
        self.given(name).map(|_| self.text(name)).transpose()
    }

    pub(super) fn text_up_to(&self, name: &str, longest: usize) -> Result<&'j str, Wrong> {
        let Some(Json::Text(text)) = self.given(name) else {
            return Err(self.wrong(name, "it must be text"));
        };
        let rule = if text.is_empty() {
            Rule::TextEmpty
        } else if text.len() > longest {
            Rule::TextTooLong
        } else if text.contains('\0') {
            Rule::TextNul
        } else {
            return Ok(text);
        };
        Err(self.broken(name, rule))
    }

    /// A routing id: text, or 0x and hex.
    pub(super) fn rid(&self, name: &str) -> Result<&'j [u8], Wrong> {
        let form = "it must be text, or 0x and an even number of hex digits";
        let Some(Json::Text(text)) = self.given(name) else {
            return Err(self.wrong(name, form));
        };
        let bytes = match text.strip_prefix("0x") {
            Some(digits) => unhex(digits).ok_or_else(|| self.wrong(name, form))?,
            None => text.as_bytes().to_vec(),
        };
        match NodeRid::new(&bytes) {
            Ok(_) => Ok(self.arena.keep(bytes)),
            Err(_) if bytes.is_empty() => Err(self.broken(name, Rule::RidEmpty)),
            Err(_) => Err(self.broken(name, Rule::RidTooLong)),
        }
    }

    /// Bytes as hex digits.
    pub(super) fn bytes(&self, name: &str) -> Result<&'j [u8], Wrong> {
        let bytes = match self.given(name) {
            Some(Json::Text(text)) => unhex(text),
            _ => None,
        };
        let form = "it must be text of small hex digits, two for a byte";
        Ok(self.arena.keep(bytes.ok_or_else(|| self.wrong(name, form))?))
    }

    /// Exactly `N` bytes as hex digits.
    pub(super) fn array<const N: usize>(&self, name: &str) -> Result<[u8; N], Wrong> {
        let form = format!("it must be text of {} small hex digits", 2 * N);
        let bytes = match self.given(name) {
            Some(Json::Text(text)) => unhex(text).and_then(|bytes| bytes.try_into().ok()),
            _ => None,
        };
        bytes.ok_or_else(|| self.wrong(name, form))
    }

    /// 64 bits as 16 hex digits.
    pub(super) fn hex64(&self, name: &str) -> Result<u64, Wrong> {
        self.array(name).map(u64::from_be_bytes)
    }

    /// A random id: 32 hex digits, not all 0.
    pub(super) fn wide<T>(
        &self,
        name: &str,
        make: impl FnOnce(u128) -> Option<T>,
        zero: Rule,
    ) -> Result<T, Wrong> {
        let value = self.array(name).map(u128::from_be_bytes)?;
        make(value).ok_or_else(|| self.broken(name, zero))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}
