// Helper of the hosting service for lobby servers: header only, C++17.
#pragma once

#include <cctype>
#include <csignal>
#include <cstdint>
#include <optional>
#include <thread>

#include "hosting_game.hpp"

namespace hosting {

// Writes a line of JSON to standard output, which the service stores.
inline void log(const std::string& message, const Json& fields = Json::Object{}, const std::string& level = "info") {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Json line = fields;
  line.set("time", static_cast<double>(std::chrono::duration_cast<Milliseconds>(now).count()) / 1000);
  line.set("level", level);
  line.set("message", message);
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::fputs((line.write() + "\n").c_str(), stdout);
  std::fflush(stdout);
}

namespace detail {
inline std::atomic<int> caught_signal{0};

extern "C" inline void hosting_game_on_signal(int number) {
  caught_signal = number;
  // A second Ctrl-C ends the process at once. A second SIGTERM does not: it can come from a forwarding script.
  std::signal(number, number == SIGINT ? SIG_DFL : hosting_game_on_signal);
}
}  // namespace detail

class LobbyServer;

// A player of the lobby, from `connected` to `disconnected`. The destructor releases the slot in the background.
class Player {
 public:
  Player(Player&& other) noexcept : hold(other.hold), server_(std::exchange(other.server_, nullptr)), token_(std::move(other.token_)) {}
  Player(const Player&) = delete;
  ~Player() { leave(); }
  inline void leave();

  Milliseconds hold{0};  // time for which the service keeps the slot for the player

 private:
  friend class LobbyServer;
  Player(LobbyServer* server, std::string token, Milliseconds hold_) : hold(hold_), server_(server), token_(std::move(token)) {}

  LobbyServer* server_;
  std::string token_;
};

// The game server of a lobby. Heartbeats run until it is closed or destroyed, and SIGTERM ends the lobby. Players must not
// outlive it. Without a service it is local: it accepts every token and sends nothing.
class LobbyServer {
 public:
  LobbyServer(Environment environment, std::shared_ptr<Transport> transport, Milliseconds heartbeat = Milliseconds(3000))
      : environment_(std::move(environment)), heartbeat_(heartbeat) {
    const auto url = variable("HOSTING_API_URL"), token = variable("HOSTING_LOBBY_TOKEN");
    if (url.empty() != token.empty())
      throw std::invalid_argument((url.empty() ? "HOSTING_API_URL" : "HOSTING_LOBBY_TOKEN") +
                                  std::string(" is not set: set both variables, or none to run locally"));
    if (!url.empty()) calls_.emplace(url, token, std::move(transport));
    tags = Json::parse(variable("HOSTING_LOBBY_TAGS", "{}"));
    config = Json::parse(variable("HOSTING_LOBBY_CONFIG", "null"));
    std::signal(SIGTERM, detail::hosting_game_on_signal);
    std::signal(SIGINT, detail::hosting_game_on_signal);
    threads_.emplace_back([this] { watch_signals(); });
    if (!is_local()) threads_.emplace_back([this] { synchronise(); });
    if (!is_local()) threads_.emplace_back([this] { release_all(); });
  }
  LobbyServer(const LobbyServer&) = delete;
  ~LobbyServer() { close(); }

  // Returns the server of the lobby in the HOSTING_* variables. Without them it is local.
  static std::unique_ptr<LobbyServer> from_environment(std::shared_ptr<Transport> transport) {
    Environment environment;
    for (const char* name : {"HOSTING_API_URL", "HOSTING_LOBBY_TOKEN", "HOSTING_LOBBY_ID", "HOSTING_GAME_MODE", "HOSTING_REGION_ID",
                             "HOSTING_MAX_PLAYERS", "HOSTING_LOBBY_TAGS", "HOSTING_LOBBY_CONFIG", "HOSTING_BIND_ADDRESS"})
      if (const char* value = std::getenv(name)) environment[name] = value;
    return std::make_unique<LobbyServer>(environment, std::move(transport));
  }

  bool is_local() const { return !calls_; }
  std::string lobby_id() const { return variable("HOSTING_LOBBY_ID"); }
  std::string game_mode() const { return variable("HOSTING_GAME_MODE"); }
  std::string region_id() const { return variable("HOSTING_REGION_ID"); }
  int max_players() const { return std::atoi(variable("HOSTING_MAX_PLAYERS", "0").c_str()); }
  Json tags, config;

  // Returns the number to bind for the port with this name, or for the only port.
  int port(const std::string& name = "", int local = 7777) const {
    std::string variable_name = name.empty() ? "PORT" : "PORT_";
    for (char one : name) variable_name += one == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(one)));
    const char* found = std::getenv(variable_name.c_str());
    return std::atoi(variable(variable_name, found ? found : std::to_string(local)).c_str());
  }

  // Address on which the server listens.
  std::string bind_address() const { return variable("HOSTING_BIND_ADDRESS", "127.0.0.1"); }

  // Lets players in. Returns when the service has confirmed it, or when the lobby stops.
  void ready() {
    if (is_local()) return log("ready", Json::Object{{"mode", "local: every token is valid"}});
    std::unique_lock lock(mutex_);
    is_wanted_ready_ = true;
    is_declared_ = false;
    change();
    changed_.wait(lock, [this] { return is_ready_ || !stop_reason_.empty(); });
    if (error_ && !is_ready_) throw *error_;
  }

  // Closes the lobby and ends `stopping`, as SIGTERM does.
  void stop(const std::string& reason = "stop") {
    std::lock_guard lock(mutex_);
    if (!stop_reason_.empty()) return;
    log("stopping", Json::Object{{"reason", reason}});
    stop_reason_ = reason;
    is_closed_ = true;
    change();
  }

  bool is_stopping() const {
    std::lock_guard lock(mutex_);
    return !stop_reason_.empty();
  }

  // Returns the reason when the lobby has to end.
  std::string stopping() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !stop_reason_.empty(); });
    return stop_reason_;
  }

  // Waits until the lobby has to end, and then until all players have left, at most `timeout`. The service sends SIGKILL
  // 30 s after SIGTERM.
  void drained(Milliseconds timeout = Milliseconds(10'000)) {
    stopping();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return players_.empty(); });
  }

  // Confirms a player. If it throws an Error, close the connection.
  Player player(const std::string& token, Milliseconds hold = {}, Cancellation* cancellation = nullptr) {
    {
      std::lock_guard lock(mutex_);
      if (!is_local() && (confirming_.count(token) || players_.count(token) || releases_.count(token)))
        throw Error("PLAYER_TOKEN_CONSUMED", 409, "The player token was already used.");
      confirming_.insert(token);
    }
    try {
      Cancellation none;
      // The service expects `disconnected` if `connected` takes longer than 10 s.
      if (calls_)
        calls_->call("POST", "players/connected", Json::Object{{"player_token", token}}, Milliseconds(4000), Milliseconds(10'000),
                     cancellation ? *cancellation : none);
    } catch (const Error& error) {
      std::lock_guard lock(mutex_);
      confirming_.erase(token);
      // After a cancellation or without an answer the slot may be connected.
      if (error.is_temporary() || error.code == "CANCELLED") release(token, {});
      throw;
    }
    std::lock_guard lock(mutex_);
    confirming_.erase(token);
    players_.insert(token);
    return Player(this, token, hold);
  }

  // Publishes any JSON value in the lobby list, at most once a second.
  void set_state(Json value) {
    std::lock_guard lock(mutex_);
    state_ = std::make_shared<Json>(std::move(value));
    change();
  }

  // Closes the lobby for new players, or opens it.
  void set_closed(bool is_closed = true) {
    std::lock_guard lock(mutex_);
    is_closed_ = is_closed;
    change();
  }

  // Closes the lobby, releases all slots, and waits at most 5 s for the service.
  void close() {
    stop("close");
    std::unique_lock lock(mutex_);
    for (const auto& token : std::set<std::string>(players_)) disconnect_locked(token, {});
    is_finishing_ = true;
    change();
    const auto is_finished = [this] { return is_local() || (releases_.empty() && (is_closed_ == sent_closed_ || error_)); };
    changed_.wait_for(lock, Milliseconds(5000), is_finished);
    is_closing_ = true;
    change();
    lock.unlock();
    closing_.cancel();
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  friend class Player;

  struct Release {
    explicit Release(Milliseconds hold_) : hold(hold_) {}
    Milliseconds hold;
    std::string key = detail::random_key();
    detail::Pauses pauses;
    Clock::time_point due = Clock::now(), end = Clock::now() + std::chrono::seconds(60);
  };

  static bool is_end(const Error& error) { return error.status == 401 || error.status == 403 || error.status == 404 || error.status == 410; }

  std::string variable(const std::string& name, const std::string& missing = "") const {
    const auto found = environment_.find(name);
    return found == environment_.end() || found->second.empty() ? missing : found->second;
  }

  // The mutex is locked in the functions from here to `release`.
  void change() {
    ++changes_;
    changed_.notify_all();
  }

  void disconnect_locked(const std::string& token, Milliseconds hold) {
    if (players_.erase(token) && calls_) release(token, hold);
    change();
  }

  void release(const std::string& token, Milliseconds hold) {
    releases_.emplace(token, Release{hold});
    change();
  }

  void disconnect(const std::string& token, Milliseconds hold) {
    std::lock_guard lock(mutex_);
    disconnect_locked(token, hold);
  }

  void watch_signals() {
    std::unique_lock lock(mutex_);
    while (!is_closing_) {
      // A signal handler must not notify a condition variable.
      changed_.wait_for(lock, Milliseconds(50));
      const int number = detail::caught_signal;
      if (!number) continue;
      detail::caught_signal = 0;
      lock.unlock();
      stop(number == SIGINT ? "SIGINT" : "SIGTERM");
      lock.lock();
    }
  }

  // Repeats each release until its outcome is known.
  void release_all() {
    std::unique_lock lock(mutex_);
    while (!is_closing_) {
      auto next = releases_.begin();
      for (auto one = releases_.begin(); one != releases_.end(); ++one)
        if (one->second.due < next->second.due) next = one;
      const auto seen = changes_;
      const auto due = next == releases_.end() ? Clock::now() + std::chrono::hours(1) : next->second.due;
      if (due > Clock::now()) {
        changed_.wait_until(lock, due, [&] { return is_closing_ || changes_ != seen; });
        continue;
      }
      const auto token = next->first;
      const Release current = next->second;
      lock.unlock();
      const auto failure = try_release(token, current);
      lock.lock();
      Release& kept = releases_.at(token);
      const auto pause = std::max(kept.pauses.next(), failure ? failure->retry_after : Milliseconds(0));
      kept.due = Clock::now() + pause;
      if (failure && failure->is_temporary() && kept.due < kept.end) continue;
      // The next heartbeats omit the token, and the service then releases the slot.
      if (failure) log("slot not released", Json::Object{{"code", failure->code}}, "warning");
      releases_.erase(token);
      change();
    }
  }

  std::optional<Error> try_release(const std::string& token, const Release& release) {
    Json body = Json::Object{{"player_token", token}};
    if (release.hold.count() > 0) body.set("hold_ms", static_cast<double>(release.hold.count()));
    try {
      calls_->attempt("POST", "players/disconnected", body, release.key, Milliseconds(15'000), closing_);
      return std::nullopt;
    } catch (const Error& error) {
      return error;
    }
  }

  // Sends heartbeats and changes. Sends all values again after an outage, because calls may be lost.
  void synchronise() {
    detail::Pauses pauses;
    bool is_away = false;
    std::unique_lock lock(mutex_);
    while (!is_closing_) {
      const auto seen = changes_;
      try {
        send_due(lock);
        if (is_away) log("the service answers again");
        is_away = false;
        pauses = {};
        const auto due = state_ == sent_state_ ? heartbeat_due_ : std::min(heartbeat_due_, state_due_);
        changed_.wait_until(lock, due, [&] { return is_closing_ || changes_ != seen; });
      } catch (const Error& error) {
        if (!lock.owns_lock()) lock.lock();
        if (is_closing_) return;
        if (is_end(error)) {
          error_ = error;
          lock.unlock();
          return stop(error.code);
        }
        if (!is_away) log("call failed", Json::Object{{"code", error.code}, {"ray_id", error.problem["ray_id"]}}, "warning");
        is_away = true;
        is_declared_ = false;
        changed_.wait_for(lock, std::max(pauses.next(), error.retry_after), [this] { return is_closing_; });
      }
    }
  }

  void send_due(std::unique_lock<std::mutex>& lock) {
    if (!is_declared_) {
      is_declared_ = true;
      sent_closed_.reset();
      sent_state_.reset();
      if (is_wanted_ready_) {
        send(lock, "POST", "lobbies/ready", Json::Object{});
        if (!is_ready_) log("ready");
        is_ready_ = true;
        change();
      }
    }
    if (is_closed_ != sent_closed_) {
      const auto is_closed = is_closed_;
      send(lock, "PUT", "lobbies/closed", Json::Object{{"is_closed", *is_closed}});
      sent_closed_ = is_closed;
      change();
    }
    if (state_ != sent_state_ && Clock::now() >= state_due_) {
      const auto state = state_;
      state_due_ = Clock::now() + std::chrono::seconds(1);
      try {
        send(lock, "PUT", "lobbies/state", *state);
      } catch (const Error& error) {
        if (error.is_temporary() || error.code == "CANCELLED" || is_end(error)) throw;
        lock.lock();
        log("state not published", Json::Object{{"code", error.code}, {"detail", error.detail}}, "error");
      }
      sent_state_ = state;
    }
    if (Clock::now() < heartbeat_due_) return;
    send(lock, "POST", "lobbies/heartbeat", Json::Object{{"player_tokens", Json::Array(players_.begin(), players_.end())}});
    heartbeat_due_ = Clock::now() + heartbeat_;
  }

  // Sends without the lock. After an error the lock is not held.
  void send(std::unique_lock<std::mutex>& lock, const char* method, const char* path, const Json& body) {
    lock.unlock();
    // `ready` waits up to 10 s for the ports.
    calls_->attempt(method, path, body, detail::random_key(), Milliseconds(15'000), closing_);
    lock.lock();
  }

  const Environment environment_;
  const Milliseconds heartbeat_;
  std::optional<detail::Calls> calls_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t changes_ = 0;
  std::set<std::string> confirming_, players_;
  std::map<std::string, Release> releases_;
  bool is_wanted_ready_ = false, is_ready_ = false, is_declared_ = false, is_finishing_ = false, is_closing_ = false;
  std::optional<bool> is_closed_, sent_closed_;
  std::shared_ptr<Json> state_, sent_state_;
  Clock::time_point heartbeat_due_{}, state_due_{};
  std::optional<Error> error_;
  std::string stop_reason_;
  Cancellation closing_;
  std::vector<std::thread> threads_;
};

inline void Player::leave() {
  if (server_) std::exchange(server_, nullptr)->disconnect(token_, hold);
}

}  // namespace hosting
