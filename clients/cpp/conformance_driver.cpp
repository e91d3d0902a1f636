// Conformance driver of the C++ helper: see `conformance/README.md`.

#include <iostream>

#include "hosting_game_curl.hpp"
#include "hosting_game_server.hpp"

using hosting::Json;
using hosting::Milliseconds;
using Object = Json::Object;

namespace {

const auto transport = std::make_shared<hosting::CurlTransport>();
std::unique_ptr<hosting::Matchmaker> matchmaker;
std::unique_ptr<hosting::LobbyServer> server;
std::mutex mutex;
std::map<std::string, hosting::Reservation> reservations;
std::map<std::string, hosting::Player> players;
std::map<std::string, hosting::Cancellation> cancellations;

Milliseconds time_of(const Json& fields, const std::string& name, int missing) {
  return Milliseconds(fields[name].is_null() ? missing : fields[name].integer());
}

Json without(const Json& fields, const std::string& name) {
  Object rest = fields.object();
  rest.erase(name);
  return rest;
}

Json reserved(const std::string& id, const hosting::Reservation& found) {
  Object ports;
  for (const auto& [name, port] : found.ports) {
    const bool has_port = port.port != 0;
    ports[name] = Object{{"hostname", port.hostname},
                         {"port", has_port ? Json(port.port) : Json()},
                         {"port_range", has_port ? Json() : Json(Json::Array{port.range_min, port.range_max})},
                         {"is_tls", port.is_tls}};
  }
  std::lock_guard lock(mutex);
  reservations.insert_or_assign(id, found);
  return Object{{"lobby_id", found.lobby_id},
                {"region_id", found.region_id},
                {"ports", ports},
                {"player_token", found.player_token},
                {"player_tokens", Json::Array(found.player_tokens.begin(), found.player_tokens.end())},
                {"websocket_url", found.websocket_url()}};
}

Json list(const Json& fields, hosting::Cancellation& cancellation) {
  Json::Array lobbies;
  for (const auto& lobby : matchmaker->list_lobbies(fields["include_state"].flag(), &cancellation))
    lobbies.push_back(Object{{"lobby_id", lobby.lobby_id},
                             {"game_mode", lobby.game_mode},
                             {"region_id", lobby.region_id},
                             {"player_count", lobby.player_count},
                             {"max_players", lobby.max_players},
                             {"max_players_direct", lobby.max_players_direct},
                             {"max_players_party", lobby.max_players_party},
                             {"state", lobby.state}});
  return lobbies;
}

Json open_server(const Json& fields) {
  hosting::Environment environment;
  for (const auto& [name, value] : fields["environment"].object()) environment[name] = value.text();
  std::lock_guard lock(mutex);
  server = std::make_unique<hosting::LobbyServer>(environment, transport, time_of(fields, "heartbeat_ms", 3000));
  return Object{{"is_local", server->is_local()},   {"lobby_id", server->lobby_id()},       {"game_mode", server->game_mode()},
                {"region_id", server->region_id()}, {"max_players", server->max_players()}, {"tags", server->tags},
                {"config", server->config},         {"port", server->port()},               {"game_port", server->port("game-udp")},
                {"bind_address", server->bind_address()}};
}

Json run(const std::string& id, const std::string& name, const Json& fields, hosting::Cancellation& cancellation) {
  if (name == "open_player") {
    std::lock_guard lock(mutex);
    matchmaker = std::make_unique<hosting::Matchmaker>(fields["api_url"].text(), fields["token"].text(), transport,
                                                       time_of(fields, "timeout_ms", 120'000));
    return {};
  }
  if (name == "find") {
    std::vector<std::string> modes;
    for (const Json& mode : fields["game_modes"].array()) modes.push_back(mode.text());
    return reserved(id, matchmaker->find(modes, without(fields, "game_modes"), &cancellation));
  }
  if (name == "join") return reserved(id, matchmaker->join(fields["lobby_id"].text(), without(fields, "lobby_id"), &cancellation));
  if (name == "create") return reserved(id, matchmaker->create(fields["game_mode"].text(), without(fields, "game_mode"), &cancellation));
  if (name == "rejoin") return reserved(id, matchmaker->rejoin(reservations.at(fields["of"].text()), &cancellation));
  if (name == "list") return list(fields, cancellation);
  if (name == "open_server") return open_server(fields);
  if (name == "close_server") server->close();
  if (name == "ready") server->ready();
  if (name == "stopping") return server->stopping();
  if (name == "drained") server->drained(time_of(fields, "timeout_ms", 20'000));
  if (name == "enter") {
    auto player = server->player(fields["token"].text(), time_of(fields, "hold_ms", 0), &cancellation);
    std::lock_guard lock(mutex);
    players.emplace(id, std::move(player));
  }
  std::lock_guard lock(mutex);
  if (name == "leave") players.erase(fields["of"].text());
  if (name == "set_state") server->set_state(fields["value"]);
  if (name == "set_closed") server->set_closed(fields["is_closed"].flag());
  if (name == "log") hosting::log(fields["message"].text(), fields["fields"]);
  if (name == "cancel") cancellations.at(fields["of"].text()).cancel();
  return {};
}

void answer(const Json& command, hosting::Cancellation& cancellation) {
  // The runner waits for the result of a command that opens something, but only the mutex orders the threads.
  std::unique_lock(mutex).unlock();
  const auto id = command["id"].text();
  Json result = Object{{"id", id}};
  try {
    result.set("ok", run(id, command["do"].text(), command["with"], cancellation));
  } catch (const hosting::Error& error) {
    result.set("error", Object{{"code", error.code},
                               {"status", error.status},
                               {"detail", error.detail},
                               {"ray_id", error.problem["ray_id"]},
                               {"errors", error.problem["errors"]},
                               {"metadata", error.problem["metadata"]}});
  } catch (const std::invalid_argument& error) {
    result.set("error", Object{{"code", "INVALID"}, {"detail", error.what()}});
  }
  std::fputs((result.write() + "\n").c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const Json command = Json::parse(line);
    std::lock_guard lock(mutex);
    auto& cancellation = cancellations[command["id"].text()];
    std::thread([command, &cancellation] { answer(command, cancellation); }).detach();
  }
  std::_Exit(0);
}
