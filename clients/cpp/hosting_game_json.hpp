// JSON values for `hosting_game.hpp`.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hosting {

// A JSON value. A wrong access returns an empty value, so that a field that is missing needs no check.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json>;

  Json() = default;
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<double>(value)) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  static Json parse(const std::string& text) {
    Reader reader{text};
    Json value = reader.value(0);
    reader.skip();
    if (reader.at != text.size()) reader.fail();
    return value;
  }

  std::string write() const {
    std::string text;
    write(text);
    return text;
  }

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool flag() const { return get<bool>(); }
  double number() const { return get<double>(); }
  int integer() const { return static_cast<int>(number()); }
  const std::string& text() const { return get<std::string>(); }
  const Array& array() const { return get<Array>(); }
  const Object& object() const { return get<Object>(); }

  const Json& operator[](const std::string& name) const {
    static const Json none;
    const auto found = object().find(name);
    return found == object().end() ? none : found->second;
  }

  // Sets a field. Any other value becomes an object first.
  void set(const std::string& name, Json value) {
    if (!std::holds_alternative<Object>(value_)) value_ = Object{};
    std::get<Object>(value_)[name] = std::move(value);
  }

 private:
  template <typename Type>
  const Type& get() const {
    static const Type none{};
    const auto* found = std::get_if<Type>(&value_);
    return found ? *found : none;
  }

  void write(std::string& text) const {
    if (is_null()) text += "null";
    if (const auto* flag = std::get_if<bool>(&value_)) text += *flag ? "true" : "false";
    if (const auto* number = std::get_if<double>(&value_)) {
      char digits[32];
      std::snprintf(digits, sizeof digits, "%.17g", *number);
      text += digits;
    }
    if (const auto* string = std::get_if<std::string>(&value_)) quote(text, *string);
    if (const auto* array = std::get_if<Array>(&value_)) {
      char before = '[';
      for (const Json& item : *array) {
        text += std::exchange(before, ',');
        item.write(text);
      }
      text += before == '[' ? "[]" : "]";
    }
    if (const auto* object = std::get_if<Object>(&value_)) {
      char before = '{';
      for (const auto& [name, item] : *object) {
        text += std::exchange(before, ',');
        quote(text, name);
        text += ':';
        item.write(text);
      }
      text += before == '{' ? "{}" : "}";
    }
  }

  static void quote(std::string& text, const std::string& value) {
    text += '"';
    for (char one : value) {
      if (one == '"' || one == '\\') text += '\\';
      if (static_cast<unsigned char>(one) >= 0x20) {
        text += one;
        continue;
      }
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", one);
      text += escape;
    }
    text += '"';
  }

  struct Reader {
    static constexpr int kDepthMax = 64;
    const std::string& source;
    std::size_t at = 0;

    [[noreturn]] void fail() const { throw std::runtime_error("not valid JSON at byte " + std::to_string(at)); }

    void skip() {
      while (at < source.size() && std::string(" \t\r\n").find(source[at]) != std::string::npos) ++at;
    }

    char peek() {
      skip();
      return at < source.size() ? source[at] : '\0';
    }

    bool take(char expected) {
      if (peek() != expected) return false;
      ++at;
      return true;
    }

    Json value(int depth) {
      if (depth > kDepthMax) fail();
      switch (peek()) {
        case '{': return object(depth);
        case '[': return array(depth);
        case '"': return string();
        case 't': return word("true", true);
        case 'f': return word("false", false);
        case 'n': return word("null", Json());
        default: return number();
      }
    }

    Json object(int depth) {
      Object found;
      for (++at; !take('}');) {
        if (!found.empty() && !take(',')) fail();
        if (peek() != '"') fail();
        auto name = string();
        if (!take(':')) fail();
        found[std::move(name)] = value(depth + 1);
      }
      return found;
    }

    Json array(int depth) {
      Array found;
      for (++at; !take(']');) {
        if (!found.empty() && !take(',')) fail();
        found.push_back(value(depth + 1));
      }
      return found;
    }

    Json word(const std::string& expected, Json meaning) {
      if (source.compare(at, expected.size(), expected) != 0) fail();
      at += expected.size();
      return meaning;
    }

    Json number() {
      const char* start = source.c_str() + at;
      char* end = nullptr;
      const double found = std::strtod(start, &end);
      if (end == start) fail();
      at += static_cast<std::size_t>(end - start);
      return found;
    }

    std::string string() {
      std::string found;
      for (++at; at < source.size() && source[at] != '"'; ++at) {
        if (source[at] != '\\') {
          found += source[at];
          continue;
        }
        if (++at >= source.size()) fail();
        const auto escape = std::string("bfnrt").find(source[at]);
        if (escape != std::string::npos) found += "\b\f\n\r\t"[escape];
        else if (source[at] == 'u') append_utf8(found, code_point());
        else found += source[at];
      }
      if (at++ >= source.size()) fail();
      return found;
    }

    unsigned hexadecimal() {
      if (at + 4 >= source.size()) fail();
      const auto digits = source.substr(at + 1, 4);
      if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) fail();
      at += 4;
      return static_cast<unsigned>(std::stoul(digits, nullptr, 16));
    }

    // Reads the digits behind `\u`, and a second `\u` for a character above U+FFFF.
    unsigned code_point() {
      const unsigned first = hexadecimal();
      if (first < 0xD800 || first > 0xDBFF || source.compare(at + 1, 2, "\\u") != 0) return first;
      at += 2;
      const unsigned second = hexadecimal();
      if (second < 0xDC00 || second > 0xDFFF) fail();
      return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }

    static void append_utf8(std::string& text, unsigned point) {
      if (point < 0x80) {
        text += static_cast<char>(point);
        return;
      }
      const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
      const unsigned marks[] = {0, 0xC0, 0xE0, 0xF0};
      text += static_cast<char>(marks[more] | (point >> (6 * more)));
      for (int shift = 6 * (more - 1); shift >= 0; shift -= 6) text += static_cast<char>(0x80 | ((point >> shift) & 0x3F));
    }
  };

  std::variant<std::nullptr_t, bool, double, std::string, Array, Object> value_ = nullptr;
};

}  // namespace hosting
