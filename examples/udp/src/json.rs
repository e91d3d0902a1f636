//! As much JSON as the answers of the hosting service need: reading, and quoting a text.

/// A value of any kind.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

/// Deeper than any answer.
const DEPTH_MAX: usize = 32;

impl Value {
    /// None: it is not JSON, or too deep.
    pub fn read(text: &[u8]) -> Option<Self> {
        let mut reader = Reader { rest: std::str::from_utf8(text).ok()? };
        let value = reader.value(0)?;
        reader.skip_space();
        reader.rest.is_empty().then_some(value)
    }

    /// What is there in objects in objects.
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |value, name| match value {
            Self::Object(fields) => fields.iter().find(|(other, _)| other == name).map(|(_, value)| value),
            _ => None,
        })
    }

    /// If it is one.
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// If it is one that a port may have.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Number(number) if number.fract() == 0.0 && (1.0..=65_535.0).contains(number) => Some(*number as u16),
            _ => None,
        }
    }
}

/// A text as JSON has it.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\0'..'\x20' => quoted.push_str(&format!("\\u{:04x}", letter as u32)),
            _ => quoted.push(letter),
        }
    }
    quoted + "\""
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        self.skip_space();
        match self.rest.bytes().next()? {
            _ if depth > DEPTH_MAX => None,
            b'n' => self.word("null", Value::Null),
            b't' => self.word("true", Value::Bool(true)),
            b'f' => self.word("false", Value::Bool(false)),
            b'"' => self.string().map(Value::Text),
            b'[' => {
                let mut list = Vec::new();
                self.each(']', |reader| {
                    list.push(reader.value(depth + 1)?);
                    Some(())
                })?;
                Some(Value::List(list))
            }
            b'{' => {
                let mut fields = Vec::new();
                self.each('}', |reader| {
                    let name = reader.string()?;
                    reader.skip_space();
                    reader.take(':')?;
                    fields.push((name, reader.value(depth + 1)?));
                    Some(())
                })?;
                Some(Value::Object(fields))
            }
            _ => self.number(),
        }
    }

    /// What is between brackets, with commas between.
    fn each(&mut self, end: char, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.rest = &self.rest[1..];
        self.skip_space();
        if self.take(end).is_some() {
            return Some(());
        }
        loop {
            self.skip_space();
            item(self)?;
            self.skip_space();
            if self.take(end).is_some() {
                return Some(());
            }
            self.take(',')?;
        }
    }

    fn string(&mut self) -> Option<String> {
        self.take('"')?;
        let mut text = String::new();
        loop {
            let letter = self.next()?;
            match letter {
                '"' => return Some(text),
                '\\' => text.push(self.escaped()?),
                '\0'..'\x20' => return None,
                _ => text.push(letter),
            }
        }
    }

    fn escaped(&mut self) -> Option<char> {
        Some(match self.next()? {
            letter @ ('"' | '\\' | '/') => letter,
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.unit()?;
                if !(0xD800..0xDC00).contains(&first) {
                    return char::from_u32(first);
                }
                self.take('\\')?;
                self.take('u')?;
                let second = self.unit().filter(|unit| (0xDC00..0xE000).contains(unit))?;
                return char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00));
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.rest.get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        self.rest = &self.rest[4..];
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Option<Value> {
        let is_part = |letter: char| letter.is_ascii_digit() || "+-.eE".contains(letter);
        let length = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(length);
        self.rest = rest;
        let is_strict = digits.starts_with(|letter: char| letter.is_ascii_digit() || letter == '-');
        digits.parse().ok().filter(|number: &f64| is_strict && number.is_finite()).map(Value::Number)
    }

    fn word(&mut self, word: &str, value: Value) -> Option<Value> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(value)
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    fn take(&mut self, letter: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(letter)?;
        Some(())
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        Some(letter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_find_is_read() {
        let found = r#" {"ports": {"game": {"hostname": "127.0.0.1", "port": 26001, "port_range": null}},
            "players": [{"token": "a"}, {}], "ratio": -1.5e1, "empty": []} "#;
        let found = Value::read(found.as_bytes()).unwrap();
        assert_eq!(found.at(&["ports", "game", "hostname"]).and_then(Value::text), Some("127.0.0.1"));
        assert_eq!(found.at(&["ports", "game", "port"]).and_then(Value::port), Some(26_001));
        assert_eq!(found.at(&["ports", "game", "port_range"]), Some(&Value::Null));
        assert_eq!(found.at(&["ratio"]), Some(&Value::Number(-15.0)));
        assert_eq!(found.at(&["ports", "other", "port"]), None);
        assert_eq!(found.at(&["players", "token"]), None);
    }

    #[test]
    fn texts_are_read_as_they_were_quoted() {
        for text in ["", "plain", "a\"b\\c\n\0\u{1f}", "ä 😀"] {
            assert_eq!(Value::read(quoted(text).as_bytes()), Some(Value::Text(text.to_owned())));
        }
        assert_eq!(Value::read(br#""\ud83d\ude00\u00e4\/\t""#), Some(Value::Text("😀ä/\t".to_owned())));
    }

    #[test]
    fn what_is_not_json_is_nothing() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{",
            "[1",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "\"",
            "\"\\x\"",
            "\"\\ud83d\"",
            "\"\\ud83dA\"",
            "tru",
            "1 2",
            "+1",
            "1e999",
            "-",
            "\"\n\"",
            "{\"a\":1,}",
            "\"\\u+123\"",
            "\"\\u12\u{e4}\"",
            &deep,
        ] {
            assert_eq!(Value::read(text.as_bytes()), None, "{text:.20}");
        }
        assert_eq!(Value::read(b"\"\xff\""), None);
    }

    #[test]
    fn only_a_port_is_a_port() {
        for number in ["0", "65536", "-1", "1.5", "\"80\""] {
            assert_eq!(Value::read(number.as_bytes()).unwrap().port(), None, "{number}");
        }
    }
}
