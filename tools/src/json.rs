#![forbid(unsafe_code)]
//! JSON whose fields stay in the order in which they were put in.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// A JSON value.
#[derive(Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(u64),
    /// A number that nothing here is: kept to be shown.
    Negative(i64),
    /// The same.
    Fraction(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(Cow<'static, str>, Json)>),
}

impl Json {
    /// An object whose field names are our own.
    pub(crate) fn object(fields: Vec<(&'static str, Self)>) -> Self {
        Self::Object(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

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

/// As compact JSON, cut short when it is long: for messages.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 80;
        let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        match text.char_indices().nth(LONGEST) {
            Some((end, _)) => write!(f, "{}…", &text[..end]),
            None => f.write_str(&text),
        }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => s.serialize_unit(),
            Self::Bool(value) => s.serialize_bool(*value),
            Self::Number(number) => s.serialize_u64(*number),
            Self::Negative(number) => s.serialize_i64(*number),
            Self::Fraction(number) => s.serialize_f64(*number),
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

/// Refuses a field that is there twice: one of the two would be lost without a word.
impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Read)
    }
}

struct Read;

impl<'de> Visitor<'de> for Read {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Negative(number))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Json, E> {
        Ok(Json::Fraction(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Json, A::Error> {
        let mut object: Vec<(Cow<'static, str>, Json)> = Vec::new();
        while let Some((name, value)) = fields.next_entry::<String, Json>()? {
            if object.iter().any(|(other, _)| *other == name) {
                return Err(de::Error::custom(format!("the field {name:?} is there twice")));
            }
            object.push((name.into(), value));
        }
        Ok(Json::Object(object))
    }
}
