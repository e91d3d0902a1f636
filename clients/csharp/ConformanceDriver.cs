using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Hosting.Game;
using Map = System.Collections.Generic.Dictionary<string, object>;

/// <summary>Conformance driver of the C# helper: see `conformance/README.md`.</summary>
internal static class ConformanceDriver
{
    private static readonly Dictionary<string, Reservation> Reservations = new Dictionary<string, Reservation>();
    private static readonly Dictionary<string, Player> Players = new Dictionary<string, Player>();
    private static readonly Dictionary<string, CancellationTokenSource> Cancels = new Dictionary<string, CancellationTokenSource>();
    private static Matchmaker _matchmaker;
    private static LobbyServer _server;

    private static void Main()
    {
        ThreadPool.SetMinThreads(16, 16);
        for (string line; (line = Console.In.ReadLine()) != null;)
        {
            var command = (Map)Json.Parse(line);
            var id = (string)command["id"];
            lock (Cancels) Cancels[id] = new CancellationTokenSource();
            _ = RunAsync(id, (string)command["do"], (Map)command["with"]);
        }
    }

    private static async Task RunAsync(string id, string name, Map fields)
    {
        var answer = new Map { ["id"] = id };
        CancellationToken cancel;
        lock (Cancels) cancel = Cancels[id].Token;
        try
        {
            answer["ok"] = await DoAsync(id, name, fields, cancel);
        }
        catch (HostingException error)
        {
            var problem = new Map(error.Problem.ToDictionary(one => one.Key, one => one.Value));
            answer["error"] = new Map { ["code"] = error.Code, ["status"] = error.Status, ["detail"] = error.Detail, ["ray_id"] = error.RayId, ["errors"] = Get<object>(problem, "errors", null), ["metadata"] = Get<object>(problem, "metadata", null) };
        }
        catch (OperationCanceledException)
        {
            answer["error"] = new Map { ["code"] = "CANCELLED" };
        }
        catch (ArgumentException error)
        {
            answer["error"] = new Map { ["code"] = "INVALID", ["detail"] = error.Message };
        }
        Console.Out.WriteLine(Json.Write(answer));
        Console.Out.Flush();
    }

    private static async Task<object> DoAsync(string id, string name, Map fields, CancellationToken cancel)
    {
        switch (name)
        {
            case "open_player":
                _matchmaker = new Matchmaker(Get<string>(fields, "api_url"), Get<string>(fields, "token"), Time(fields, "timeout_ms", 120000));
                return null;
            case "find":
                return Reserved(id, await _matchmaker.FindAsync(Get<List<object>>(fields, "game_modes").Cast<string>(), Without(fields, "game_modes"), cancel));
            case "join":
                return Reserved(id, await _matchmaker.JoinAsync(Get<string>(fields, "lobby_id"), Without(fields, "lobby_id"), cancel));
            case "create":
                return Reserved(id, await _matchmaker.CreateAsync(Get<string>(fields, "game_mode"), Without(fields, "game_mode"), cancel));
            case "rejoin":
                return Reserved(id, await _matchmaker.RejoinAsync(Reservations[Get<string>(fields, "of")], cancel));
            case "list":
                return (await _matchmaker.ListLobbiesAsync(Get(fields, "include_state", false), cancel)).Select(lobby => new Map
                {
                    ["lobby_id"] = lobby.LobbyId, ["game_mode"] = lobby.GameMode, ["region_id"] = lobby.RegionId,
                    ["player_count"] = lobby.PlayerCount, ["max_players"] = lobby.MaxPlayers, ["max_players_direct"] = lobby.MaxPlayersDirect,
                    ["max_players_party"] = lobby.MaxPlayersParty, ["state"] = lobby.State,
                }).ToList();
            case "open_server":
                var environment = Get<Map>(fields, "environment").ToDictionary(one => one.Key, one => (string)one.Value);
                _server = new LobbyServer(environment, Time(fields, "heartbeat_ms", 3000));
                return new Map
                {
                    ["is_local"] = _server.IsLocal, ["lobby_id"] = _server.LobbyId, ["game_mode"] = _server.GameMode, ["region_id"] = _server.RegionId,
                    ["max_players"] = _server.MaxPlayers, ["tags"] = _server.Tags, ["config"] = _server.Config, ["port"] = _server.Port(), ["game_port"] = _server.Port("game-udp"),
                    ["bind_address"] = _server.BindAddress,
                };
            case "close_server": await _server.CloseAsync(); return null;
            case "ready": await _server.ReadyAsync(); return null;
            case "stopping": return await _server.StoppingAsync();
            case "drained": await _server.DrainedAsync(Time(fields, "timeout_ms", 20000)); return null;
            case "enter":
                Player player = await _server.PlayerAsync(Get<string>(fields, "token"), Time(fields, "hold_ms", 0), cancel);
                lock (Players) Players[id] = player;
                return null;
            case "leave": lock (Players) Players[Get<string>(fields, "of")].Dispose(); return null;
            case "set_state": _server.SetState(Get<object>(fields, "value")); return null;
            case "set_closed": _server.SetClosed(Get<bool>(fields, "is_closed")); return null;
            case "log": LobbyServer.Log(Get<string>(fields, "message"), Get<Map>(fields, "fields")); return null;
            case "cancel": lock (Cancels) Cancels[Get<string>(fields, "of")].Cancel(); return null;
            default: throw new ArgumentException("unknown command " + name);
        }
    }

    private static T Get<T>(Map fields, string key, T missing = default(T))
    {
        object value;
        return fields.TryGetValue(key, out value) ? (T)value : missing;
    }

    private static TimeSpan Time(Map fields, string key, double missing) => TimeSpan.FromMilliseconds(Get(fields, key, missing));

    private static Map Without(Map fields, string key) => fields.Where(one => one.Key != key).ToDictionary(one => one.Key, one => one.Value);

    private static Map Reserved(string id, Reservation reservation)
    {
        lock (Reservations) Reservations[id] = reservation;
        var ports = reservation.Ports.ToDictionary(port => port.Key, port => (object)new Map
        {
            ["hostname"] = port.Value.Hostname, ["port"] = port.Value.Number, ["port_range"] = port.Value.Range, ["is_tls"] = port.Value.IsTls,
        });
        bool hasPort = reservation.Ports.Values.First().Number != null;
        return new Map
        {
            ["lobby_id"] = reservation.LobbyId, ["region_id"] = reservation.RegionId, ["ports"] = ports, ["player_token"] = reservation.PlayerToken,
            ["player_tokens"] = reservation.PlayerTokens, ["websocket_url"] = hasPort ? reservation.WebSocketUrl() : "",
        };
    }
}
