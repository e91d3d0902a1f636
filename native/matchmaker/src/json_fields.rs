//! Decoding of the fields of requests from JSON, with the problems of each.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::contract::{
    FIND_LOBBY_REQUEST_FIELDS, Fields, Form, HEARTBEAT_REQUEST_FIELDS, JOIN_LOBBY_REQUEST_FIELDS, JSON_DEPTH_MAX,
    LIST_LOBBIES_REQUEST_FIELDS, PLAYER_CONNECTED_REQUEST_FIELDS, PLAYER_DISCONNECTED_REQUEST_FIELDS,
    SET_LOBBY_CLOSED_REQUEST_FIELDS,
};
use crate::error::standard_reason;
use crate::left_to_python::LeftToPython;
use crate::operation::Operation;
use crate::request_rules::Finding;

/// Returns the fields of a request.
pub fn fields(operation: Operation) -> Fields {
    match operation {
        Operation::Connected => PLAYER_CONNECTED_REQUEST_FIELDS,
        Operation::Disconnected => PLAYER_DISCONNECTED_REQUEST_FIELDS,
        Operation::Heartbeat => HEARTBEAT_REQUEST_FIELDS,
        Operation::Join => JOIN_LOBBY_REQUEST_FIELDS,
        Operation::Find => FIND_LOBBY_REQUEST_FIELDS,
        Operation::Closed => SET_LOBBY_CLOSED_REQUEST_FIELDS,
        Operation::List => LIST_LOBBIES_REQUEST_FIELDS,
        _ => &[],
    }
}

/// Returns the fields of a JSON body as far as they can be decoded, or null if the body is no object.
pub fn read_body(operation: Operation, text: &[u8], findings: &mut Vec<Finding>) -> Result<Value, LeftToPython> {
    let text = if text.is_empty() { b"{}" } else { text };
    let json: Json = serde_json::from_slice(text).map_err(|_| LeftToPython::NotJson)?;
    let (word, reason) = match json {
        json if json.depth() > JSON_DEPTH_MAX => ("too-deep", standard_reason("too-deep")),
        Json::Object(members) => return read_fields(fields(operation), members, findings),
        _ => ("wrong-type", "must be an object"),
    };
    findings.push(Finding::new(Vec::new(), word, reason));
    Ok(Value::Null)
}

/// Returns the fields of a message as far as they can be decoded.
pub fn read_fields(
    fields: Fields,
    members: Vec<(String, Json)>,
    findings: &mut Vec<Finding>,
) -> Result<Value, LeftToPython> {
    let mut message = Map::new();
    for (name, json) in members {
        let Some((field, form)) = fields.iter().find(|(known, _)| *known == name) else { continue };
        let mut add = |below: Vec<String>, word, reason: String| {
            let location = std::iter::once((*field).into()).chain(below.into_iter().map(Into::into)).collect();
            findings.push(Finding::new(location, word, reason));
        };
        let value = match (form, json) {
            (_, Json::Null) => continue,
            (Form::Other, _) => return Err(LeftToPython::FieldOfPython),
            (Form::Text, Json::Text(text)) => Ok(Value::String(text)),
            (Form::Bool, Json::Bool(flag)) => Ok(Value::Bool(flag)),
            (Form::Number, json) => json.unsigned().map(Value::from),
            (Form::Texts(limit), Json::List(items)) => Ok(Value::Array(read_texts(items, *limit, &mut add))),
            (Form::TextMap(limit), Json::Object(pairs)) => Ok(Value::Object(read_text_map(pairs, *limit, &mut add))),
            (Form::Text, _) => Err(("wrong-type", "must be a string")),
            (Form::Bool, _) => Err(("wrong-type", "must be true or false")),
            (Form::Texts(_), _) => Err(("wrong-type", "must be an array")),
            (Form::TextMap(_), _) => Err(("wrong-type", "must be an object")),
        };
        match value {
            Ok(value) => drop(message.insert((*field).to_owned(), value)),
            Err((word, reason)) => add(Vec::new(), word, reason.to_owned()),
        }
    }
    Ok(Value::Object(message))
}

/// Adds a finding below a field.
type Add<'a> = &'a mut dyn FnMut(Vec<String>, &'static str, String);

fn read_texts(items: Vec<Json>, limit: usize, add: Add<'_>) -> Vec<Value> {
    if items.len() > limit {
        add(Vec::new(), "too-many", format!("must have at most {limit} entries"));
    }
    let mut texts = Vec::new();
    for (index, item) in items.into_iter().take(limit).enumerate() {
        if let Json::Text(text) = item {
            texts.push(Value::String(text));
        } else {
            add(vec![index.to_string()], "wrong-type", "must be a string".to_owned());
            texts.push(Value::String(String::new()));
        }
    }
    texts
}

fn read_text_map(pairs: Vec<(String, Json)>, limit: usize, add: Add<'_>) -> Map<String, Value> {
    if pairs.len() > limit {
        add(Vec::new(), "too-many", format!("must have at most {limit} entries"));
    }
    let mut texts = Map::new();
    for (key, item) in pairs.into_iter().take(limit) {
        if let Json::Text(text) = item {
            texts.insert(key, Value::String(text));
        } else {
            add(vec![key], "wrong-type", "must be a string".to_owned());
        }
    }
    texts
}

/// A JSON value with the members of objects in their order.
#[derive(Clone)]
pub enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    fn depth(&self) -> usize {
        match self {
            Json::List(items) => 1 + items.iter().map(Json::depth).max().unwrap_or(0),
            Json::Object(members) => 1 + members.iter().map(|(_, json)| json.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// Returns the value of a text in a query.
    pub fn of_text(form: Form, text: String) -> Json {
        match (form, &*text) {
            (Form::Bool, "true") => Json::Bool(true),
            (Form::Bool, "false") => Json::Bool(false),
            (Form::Number, digits) if !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                Json::Number(digits.parse().unwrap_or(u64::MAX).into())
            }
            _ => Json::Text(text),
        }
    }

    /// Returns an integer of 32 bits, or the word and the reason of its problem.
    fn unsigned(&self) -> Result<u32, (&'static str, &'static str)> {
        const TOO_LOW: (&str, &str) = ("too-low", "must be at least 0");
        const TOO_HIGH: (&str, &str) = ("too-high", "must be at most 4294967295");
        let Json::Number(number) = self else { return Err(("wrong-type", "must be an integer")) };
        if let Some(number) = number.as_u64() {
            return u32::try_from(number).map_err(|_| TOO_HIGH);
        }
        match number.as_f64() {
            _ if number.is_i64() => Err(TOO_LOW),
            // An integer beyond 64 bits.
            Some(float) if float.abs() >= 2_f64.powi(63) => Err(if float > 0.0 { TOO_HIGH } else { TOO_LOW }),
            _ => Err(("wrong-type", "must be an integer")),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Json, D::Error> {
        from.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Json, E> {
        Ok(Json::Bool(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(Number::from_f64(number).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    /// A repeated member has its first place and its last value, as in Python.
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json, A::Error> {
        let (mut object, mut places) = (Vec::new(), HashMap::new());
        while let Some((name, json)) = members.next_entry::<String, Json>()? {
            match places.get(&name) {
                Some(&place) => object[place] = (name, json),
                None => {
                    places.insert(name.clone(), object.len());
                    object.push((name, json));
                }
            }
        }
        Ok(Json::Object(object))
    }
}
