// Helper of the hosting service for players: header only, C++17. `hosting_game_server.hpp` is for lobby servers.
//
// All calls block: call them from a thread of yours. They send requests through a `Transport`, such as `CurlTransport` of
// `hosting_game_curl.hpp`.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hosting_game_json.hpp"

namespace hosting {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Environment = std::map<std::string, std::string>;

// A call failed. `code` is stable: see the error codes of the service. `NO_RESPONSE` with status 0 means that the service could
// not be reached or did not answer in time. `CANCELLED` means that the caller cancelled the call.
struct Error : std::runtime_error {
  Error(std::string code_, int status_, std::string detail_, Json problem_ = {}, Milliseconds retry_after_ = {})
      : std::runtime_error(code_ + ": " + detail_), code(std::move(code_)), status(status_), detail(std::move(detail_)),
        problem(std::move(problem_)), retry_after(retry_after_) {}

  // True if the same call can succeed later. Its outcome is then unknown.
  bool is_temporary() const {
    static const std::set<int> statuses{408, 500, 502, 503, 504};
    return code == "NO_RESPONSE" || code == "RATE_LIMITED" || statuses.count(status) > 0;
  }

  std::string code;
  int status;
  std::string detail;
  Json problem;  // with `ray_id`, and perhaps `errors` and `metadata`
  Milliseconds retry_after;
};

// Cancels calls from another thread.
class Cancellation {
 public:
  void cancel() {
    std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    changed_.notify_all();
  }

  bool is_cancelled() const { return is_cancelled_; }

  // Sleeps. Throws if the call is cancelled meanwhile.
  void sleep(Milliseconds time) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [this] { return is_cancelled_.load(); });
    check();
  }

  void check() const {
    if (is_cancelled_) throw Error("CANCELLED", 0, "the call was cancelled");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> is_cancelled_{false};
};

struct Request {
  std::string method, url, body;
  std::map<std::string, std::string> headers;
  Milliseconds timeout;
};

struct Response {
  int status = 0;
  std::string body, retry_after;
};

// Sends one request and returns its response. Throws any std::exception if no response arrives in time. Closes the
// connection soon after `cancellation` is cancelled. Several threads call it at once.
struct Transport {
  virtual ~Transport() = default;
  virtual Response send(const Request& request, const Cancellation& cancellation) = 0;
};

namespace detail {

inline std::string random_key() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(random()), static_cast<unsigned long long>(random()));
  return text;
}

// Growing pauses with jitter, so that clients do not retry at the same instant.
class Pauses {
 public:
  Milliseconds next() {
    static thread_local std::minstd_rand random{std::random_device{}()};
    const double share = std::uniform_real_distribution<>(0.5, 1.0)(random);
    const auto pause = Milliseconds(static_cast<int>(next_ms_ * share));
    next_ms_ = std::min(next_ms_ * 2, 2000.0);
    return pause;
  }

 private:
  double next_ms_ = 100;
};

// Requests to the service with retries.
class Calls {
 public:
  Calls(const std::string& api_url, std::string token, std::shared_ptr<Transport> transport)
      : base_(api_url), token_(std::move(token)), transport_(std::move(transport)) {
    if (base_.rfind("http://", 0) != 0 && base_.rfind("https://", 0) != 0)
      throw std::invalid_argument("the address " + base_ + " must begin with http:// or https://");
    while (base_.back() == '/') base_.pop_back();
    base_ += "/matchmaker/";
  }

  // Repeats a request under one idempotency key until its outcome is known.
  Json call(const std::string& method, const std::string& path, const Json& body, Milliseconds attempt_time, Milliseconds total,
            Cancellation& cancellation) const {
    const auto key = random_key();
    const auto deadline = Clock::now() + total;
    Pauses pauses;
    for (;;) {
      const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
      auto pause = pauses.next();
      try {
        return attempt(method, path, body, key, std::max(std::min(attempt_time, left), Milliseconds(1)), cancellation);
      } catch (const Error& error) {
        pause = std::max(pause, error.retry_after);
        if (!error.is_temporary() || Clock::now() + pause >= deadline) throw;
      }
      cancellation.sleep(pause);
    }
  }

  // Sends one request and returns the JSON of its response.
  Json attempt(const std::string& method, const std::string& path, const Json& body, const std::string& key, Milliseconds timeout,
               const Cancellation& cancellation) const {
    cancellation.check();
    Request request{method, base_ + path, "", {{"Authorization", "Bearer " + token_}}, timeout};
    if (method != "GET") {
      request.body = body.write();
      request.headers["Content-Type"] = "application/json";
      request.headers["Idempotency-Key"] = key;
    }
    Response response;
    Json answer;
    try {
      response = transport_->send(request, cancellation);
      answer = read(response.body, response.status == 200);
    } catch (const std::exception& error) {
      cancellation.check();
      throw Error("NO_RESPONSE", 0, std::string("no valid response: ") + error.what());
    }
    if (response.status == 200) return answer;
    const auto code = answer["code"].text();
    const auto retry_after = Milliseconds(1000 * std::atoi(response.retry_after.c_str()));
    throw Error(code.empty() ? "UNKNOWN" : code, response.status, answer["detail"].text(), answer, retry_after);
  }

 private:
  // A proxy in front of the service can answer without JSON.
  static Json read(const std::string& body, bool is_needed) {
    try {
      return Json::parse(body.empty() ? "null" : body);
    } catch (const std::exception&) {
      if (is_needed) throw;
      return {};
    }
  }

  std::string base_, token_;
  std::shared_ptr<Transport> transport_;
};

}  // namespace detail

// Player address of one port. `port` is 0 for a range.
struct Port {
  std::string hostname;
  int port = 0, range_min = 0, range_max = 0;
  bool is_tls = false;
};

// A slot in a lobby. Connect to one of `ports` and send `player_token` there.
struct Reservation {
  std::string lobby_id, region_id, player_token;
  std::vector<std::string> player_tokens;
  std::map<std::string, Port> ports;

  // Returns the address of a WebSocket server, with the player token as query parameter.
  std::string websocket_url(const std::string& path = "/", const std::string& name = "") const {
    const Port& port = name.empty() ? ports.begin()->second : ports.at(name);
    const bool is_ipv6 = port.hostname.find(':') != std::string::npos;
    const auto host = is_ipv6 ? "[" + port.hostname + "]" : port.hostname;
    return (port.is_tls ? "wss://" : "ws://") + host + ":" + std::to_string(port.port) + path + "?token=" + player_token;
  }
};

// An entry of the lobby list.
struct Lobby {
  std::string lobby_id, game_mode, region_id;
  int player_count = 0, max_players = 0, max_players_direct = 0, max_players_party = 0;
  Json state;
};

// Calls of a player with a public token. Each call is repeated under one idempotency key for at most `timeout`.
class Matchmaker {
 public:
  Matchmaker(const std::string& api_url, std::string token, std::shared_ptr<Transport> transport, Milliseconds timeout = Milliseconds(120'000))
      : calls_(api_url, std::move(token), std::move(transport)), timeout_(timeout) {}

  // Reserves a slot in a lobby of one of these game modes. `fields` are those of find. Cancel to give up the slot.
  Reservation find(const std::vector<std::string>& game_modes, Json fields = Json::Object{}, Cancellation* cancellation = nullptr) const {
    fields.set("game_modes", Json::Array(game_modes.begin(), game_modes.end()));
    return reserve("find", fields, cancellation);
  }

  // Reserves a slot in this lobby.
  Reservation join(const std::string& lobby_id, Json fields = Json::Object{}, Cancellation* cancellation = nullptr) const {
    fields.set("lobby_id", lobby_id);
    return reserve("join", fields, cancellation);
  }

  // Starts a lobby and reserves a slot in it.
  Reservation create(const std::string& game_mode, Json fields = Json::Object{}, Cancellation* cancellation = nullptr) const {
    fields.set("game_mode", game_mode);
    return reserve("create", fields, cancellation);
  }

  // Reserves the slot again that the server keeps after a lost connection. Without a kept slot it is a normal join.
  Reservation rejoin(const Reservation& reservation, Cancellation* cancellation = nullptr) const {
    return join(reservation.lobby_id, Json::Object{{"rejoin_token", reservation.player_token}}, cancellation);
  }

  // Returns all public, open lobbies, oldest first.
  std::vector<Lobby> list_lobbies(bool include_state = false, Cancellation* cancellation = nullptr) const {
    std::vector<Lobby> lobbies;
    for (std::string cursor;;) {
      std::string path = "lobbies/list";
      if (include_state) path += "?include_state=true";
      if (!cursor.empty()) path += (include_state ? "&cursor=" : "?cursor=") + cursor;
      const Json page = call("GET", path, {}, cancellation);
      for (const Json& one : page["lobbies"].array())
        lobbies.push_back({one["lobby_id"].text(), one["game_mode_id"].text(), one["region_id"].text(), one["total_player_count"].integer(),
                           one["max_players_normal"].integer(), one["max_players_direct"].integer(), one["max_players_party"].integer(), one["state"]});
      cursor = page["cursor"].text();
      if (cursor.empty()) return lobbies;
    }
  }

 private:
  Json call(const std::string& method, const std::string& path, const Json& body, Cancellation* cancellation) const {
    Cancellation none;
    // The service waits up to 45 s for a starting lobby.
    return calls_.call(method, path, body, Milliseconds(60'000), timeout_, cancellation ? *cancellation : none);
  }

  Reservation reserve(const std::string& operation, const Json& fields, Cancellation* cancellation) const {
    const Json answer = call("POST", "lobbies/" + operation, fields, cancellation);
    const Json& lobby = answer["lobby"];
    Reservation found{lobby["lobby_id"].text(), lobby["region"]["region_id"].text(), answer["player"]["token"].text(), {}, {}};
    for (const Json& player : answer["players"].array()) found.player_tokens.push_back(player["token"].text());
    if (found.player_tokens.empty()) found.player_tokens.push_back(found.player_token);
    for (const auto& [name, entry] : answer["ports"].object()) {
      const Json& range = entry["port_range"];
      found.ports[name] = {entry["hostname"].text(), entry["port"].integer(), range["min"].integer(), range["max"].integer(), entry["is_tls"].flag()};
    }
    return found;
  }

  detail::Calls calls_;
  Milliseconds timeout_;
};

}  // namespace hosting
