using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Text;

namespace Hosting.Game
{
    /// <summary>Reads and writes JSON, which .NET Standard 2.0 lacks.</summary>
    /// <remarks>Values are null, bool, double, string, List&lt;object&gt; and Dictionary&lt;string, object&gt;.</remarks>
    public static class Json
    {
        public static object Parse(string text)
        {
            var reader = new Reader(text);
            object value = reader.Value(0);
            reader.End();
            return value;
        }

        public static string Write(object value)
        {
            var text = new StringBuilder();
            Write(text, value);
            return text.ToString();
        }

        private static void Write(StringBuilder text, object value)
        {
            if (value == null) text.Append("null");
            else if (value is bool) text.Append((bool)value ? "true" : "false");
            else if (value is string) WriteString(text, (string)value);
            else if (value is double) text.Append(((double)value).ToString("R", CultureInfo.InvariantCulture));
            else if (value is RawJson) text.Append(((RawJson)value).Text);
            else if (value is IDictionary) WriteMap(text, (IDictionary)value);
            else if (value is IEnumerable) WriteList(text, (IEnumerable)value);
            else text.Append(Convert.ToString(value, CultureInfo.InvariantCulture));
        }

        private static void WriteMap(StringBuilder text, IDictionary map)
        {
            char before = '{';
            foreach (DictionaryEntry entry in map)
            {
                text.Append(before);
                WriteString(text, (string)entry.Key);
                text.Append(':');
                Write(text, entry.Value);
                before = ',';
            }
            text.Append(before == '{' ? "{}" : "}");
        }

        private static void WriteList(StringBuilder text, IEnumerable list)
        {
            char before = '[';
            foreach (object item in list)
            {
                text.Append(before);
                Write(text, item);
                before = ',';
            }
            text.Append(before == '[' ? "[]" : "]");
        }

        private static void WriteString(StringBuilder text, string value)
        {
            text.Append('"');
            foreach (char one in value)
            {
                if (one == '"' || one == '\\') text.Append('\\').Append(one);
                else if (one < ' ') text.Append("\\u").Append(((int)one).ToString("x4"));
                else text.Append(one);
            }
            text.Append('"');
        }

        private struct Reader
        {
            private const int DepthMax = 64;
            private readonly string _text;
            private int _at;

            public Reader(string text)
            {
                _text = text;
                _at = 0;
            }

            public void End()
            {
                if (Peek() != '\0') throw Wrong();
            }

            public object Value(int depth)
            {
                if (depth > DepthMax) throw Wrong();
                switch (Peek())
                {
                    case '{': return Object(depth);
                    case '[': return Array(depth);
                    case '"': return String();
                    case 't': return Word("true", true);
                    case 'f': return Word("false", false);
                    case 'n': return Word("null", null);
                    default: return Number();
                }
            }

            private Dictionary<string, object> Object(int depth)
            {
                var map = new Dictionary<string, object>();
                for (_at++; Peek() != '}'; Separator('}'))
                {
                    string name = String();
                    if (Peek() != ':') throw Wrong();
                    _at++;
                    map[name] = Value(depth + 1);
                }
                _at++;
                return map;
            }

            private List<object> Array(int depth)
            {
                var list = new List<object>();
                for (_at++; Peek() != ']'; Separator(']')) list.Add(Value(depth + 1));
                _at++;
                return list;
            }

            private void Separator(char end)
            {
                if (Peek() == ',') _at++;
                else if (Peek() != end) throw Wrong();
            }

            private string String()
            {
                if (Peek() != '"') throw Wrong();
                var text = new StringBuilder();
                for (_at++; Next() != '"'; _at++)
                {
                    if (_text[_at] != '\\')
                    {
                        text.Append(_text[_at]);
                        continue;
                    }
                    _at++;
                    int escape = "bfnrt".IndexOf(Next());
                    if (escape >= 0) text.Append("\b\f\n\r\t"[escape]);
                    else if (_text[_at] != 'u') text.Append(_text[_at]);
                    else
                    {
                        if (_at + 4 >= _text.Length) throw Wrong();
                        text.Append((char)int.Parse(_text.Substring(_at + 1, 4), NumberStyles.HexNumber, CultureInfo.InvariantCulture));
                        _at += 4;
                    }
                }
                _at++;
                return text.ToString();
            }

            private object Word(string word, object value)
            {
                if (string.CompareOrdinal(_text, _at, word, 0, word.Length) != 0) throw Wrong();
                _at += word.Length;
                return value;
            }

            private object Number()
            {
                int start = _at;
                while (_at < _text.Length && "+-.eE0123456789".IndexOf(_text[_at]) >= 0) _at++;
                string digits = _text.Substring(start, _at - start);
                if (!double.TryParse(digits, NumberStyles.Float, CultureInfo.InvariantCulture, out double number)) throw Wrong();
                return number;
            }

            private char Peek()
            {
                while (_at < _text.Length && " \t\r\n".IndexOf(_text[_at]) >= 0) _at++;
                return _at < _text.Length ? _text[_at] : '\0';
            }

            private char Next() => _at < _text.Length ? _text[_at] : throw Wrong();

            private FormatException Wrong() => new FormatException("not valid JSON at character " + _at);
        }
    }

    /// <summary>A part of a value that is JSON already.</summary>
    public sealed class RawJson
    {
        public readonly string Text;

        public RawJson(string text)
        {
            Text = text;
        }
    }
}
