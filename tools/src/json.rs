#![forbid(unsafe_code)]
//! JSON whose fields stay in the order in which they were put in.

use std::fmt::Write as _;

use serde::ser::{Serialize, SerializeMap, Serializer};

/// A JSON value.
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    /// Bytes as hex digits.
    pub(crate) fn hex(bytes: &[u8]) -> Self {
        let mut text = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self::Text(text)
    }

    pub(crate) fn or_null<T>(value: Option<T>, show: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Null, show)
    }
}

impl<T: Into<u64>> From<T> for Json {
    fn from(number: T) -> Self {
        Self::Number(number.into())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => s.serialize_unit(),
            Self::Bool(value) => s.serialize_bool(*value),
            Self::Number(number) => s.serialize_u64(*number),
            Self::Text(text) => s.serialize_str(text),
            Self::List(items) => s.collect_seq(items),
            Self::Object(fields) => {
                let mut map = s.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}
