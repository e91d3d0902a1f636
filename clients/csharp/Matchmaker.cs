using System;
using System.Collections.Generic;
using System.Linq;
using System.Net;
using System.Net.Http;
using System.Net.Http.Headers;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace Hosting.Game
{
    /// <summary>A call failed. Code is stable: see the error codes of the service.</summary>
    /// <remarks>NO_RESPONSE with status 0 means that the service could not be reached or did not answer in time.</remarks>
    public sealed class HostingException : Exception
    {
        public string Code { get; }
        public int Status { get; }
        public string Detail { get; }
        public string RayId { get; }
        public IReadOnlyDictionary<string, object> Problem { get; }
        internal TimeSpan RetryAfter { get; }

        internal HostingException(string code, int status, string detail, Dictionary<string, object> problem = null, double retryAfterS = 0)
            : base(code + ": " + detail)
        {
            Code = code;
            Status = status;
            Detail = detail;
            Problem = problem ?? new Dictionary<string, object>();
            RayId = Problem.TryGetValue("ray_id", out object ray) ? ray as string ?? "" : "";
            RetryAfter = TimeSpan.FromSeconds(retryAfterS);
        }

        /// <summary>True if the same call can succeed later. Its outcome is then unknown.</summary>
        public bool IsTemporary =>
            Array.IndexOf(new[] { 0, 408, 500, 502, 503, 504 }, Status) >= 0 || Code == "RATE_LIMITED";
    }

    /// <summary>Player address of one port. Number is null for a range.</summary>
    public sealed class Port
    {
        public string Hostname { get; internal set; }
        public int? Number { get; internal set; }
        public int[] Range { get; internal set; }
        public bool IsTls { get; internal set; }
    }

    /// <summary>A slot in a lobby. Connect to one of Ports and send PlayerToken there.</summary>
    public sealed class Reservation
    {
        public string LobbyId { get; internal set; }
        public string RegionId { get; internal set; }
        public IReadOnlyDictionary<string, Port> Ports { get; internal set; }
        public string PlayerToken { get; internal set; }
        public IReadOnlyList<string> PlayerTokens { get; internal set; }

        /// <summary>Returns the address of a WebSocket server, with the player token as query parameter.</summary>
        public string WebSocketUrl(string path = "/", string portName = null)
        {
            Port port = portName == null ? Ports.Values.First() : Ports[portName];
            string host = port.Hostname.Contains(":") ? "[" + port.Hostname + "]" : port.Hostname;
            string scheme = port.IsTls ? "wss" : "ws";
            return $"{scheme}://{host}:{port.Number}{path}?token={Uri.EscapeDataString(PlayerToken)}";
        }
    }

    /// <summary>An entry of the lobby list.</summary>
    public sealed class Lobby
    {
        public string LobbyId { get; internal set; }
        public string GameMode { get; internal set; }
        public string RegionId { get; internal set; }
        public int PlayerCount { get; internal set; }
        public int MaxPlayers { get; internal set; }
        public int MaxPlayersDirect { get; internal set; }
        public int MaxPlayersParty { get; internal set; }
        public object State { get; internal set; }
    }

    /// <summary>Calls of a player with a public token.</summary>
    /// <remarks>Each call is repeated under one idempotency key for at most the timeout. Cancel it to give up its slots.</remarks>
    public sealed class Matchmaker
    {
        // The service waits up to 45 s for a starting lobby.
        private static readonly TimeSpan Attempt = TimeSpan.FromSeconds(60);
        private readonly HostingCalls _calls;
        private readonly TimeSpan _timeout;

        public Matchmaker(string apiUrl, string token, TimeSpan? timeout = null, ITransport transport = null)
        {
            _calls = new HostingCalls(apiUrl, token, transport ?? HttpTransport.Shared);
            _timeout = timeout ?? TimeSpan.FromSeconds(120);
        }

        /// <summary>Reserves a slot in a lobby of one of these game modes. The fields are those of find.</summary>
        public Task<Reservation> FindAsync(IEnumerable<string> gameModes, IDictionary<string, object> fields = null, CancellationToken cancel = default(CancellationToken)) =>
            ReserveAsync("find", "game_modes", gameModes.ToList(), fields, cancel);

        /// <summary>Reserves a slot in this lobby.</summary>
        public Task<Reservation> JoinAsync(string lobbyId, IDictionary<string, object> fields = null, CancellationToken cancel = default(CancellationToken)) =>
            ReserveAsync("join", "lobby_id", lobbyId, fields, cancel);

        /// <summary>Starts a lobby and reserves a slot in it.</summary>
        public Task<Reservation> CreateAsync(string gameMode, IDictionary<string, object> fields = null, CancellationToken cancel = default(CancellationToken)) =>
            ReserveAsync("create", "game_mode", gameMode, fields, cancel);

        /// <summary>Reserves the slot again that the server keeps after a lost connection.</summary>
        /// <remarks>Without a kept slot it is a normal join.</remarks>
        public Task<Reservation> RejoinAsync(Reservation reservation, CancellationToken cancel = default(CancellationToken)) =>
            JoinAsync(reservation.LobbyId, new Dictionary<string, object> { ["rejoin_token"] = reservation.PlayerToken }, cancel);

        /// <summary>Returns all public, open lobbies, oldest first.</summary>
        public async Task<List<Lobby>> ListLobbiesAsync(bool includeState = false, CancellationToken cancel = default(CancellationToken))
        {
            var lobbies = new List<Lobby>();
            for (string cursor = null; ;)
            {
                string path = "lobbies/list?" + (includeState ? "include_state=true&" : "") + (cursor == null ? "" : "cursor=" + cursor);
                var page = (Dictionary<string, object>)await _calls.CallAsync("GET", path.TrimEnd('?', '&'), null, Attempt, _timeout, cancel);
                lobbies.AddRange(((List<object>)page["lobbies"]).Cast<Dictionary<string, object>>().Select(ReadLobby));
                cursor = Optional(page, "cursor") as string;
                if (string.IsNullOrEmpty(cursor)) return lobbies;
            }
        }

        private async Task<Reservation> ReserveAsync(string operation, string name, object value, IDictionary<string, object> fields, CancellationToken cancel)
        {
            var body = fields == null ? new Dictionary<string, object>() : new Dictionary<string, object>(fields);
            body[name] = value;
            var answer = (Dictionary<string, object>)await _calls.CallAsync("POST", "lobbies/" + operation, body, Attempt, _timeout, cancel);
            var lobby = (Dictionary<string, object>)answer["lobby"];
            var players = Optional(answer, "players") as List<object> ?? new List<object> { answer["player"] };
            var tokens = players.Select(player => (string)((Dictionary<string, object>)player)["token"]).ToList();
            return new Reservation
            {
                LobbyId = (string)lobby["lobby_id"],
                RegionId = (string)((Dictionary<string, object>)lobby["region"])["region_id"],
                Ports = ((Dictionary<string, object>)answer["ports"]).ToDictionary(port => port.Key, port => ReadPort((Dictionary<string, object>)port.Value)),
                PlayerToken = tokens[0],
                PlayerTokens = tokens,
            };
        }

        private static Port ReadPort(Dictionary<string, object> entry)
        {
            var range = Optional(entry, "port_range") as Dictionary<string, object>;
            return new Port
            {
                Hostname = (string)entry["hostname"],
                Number = (int?)(Optional(entry, "port") as double?),
                Range = range == null ? null : new[] { (int)(double)range["min"], (int)(double)range["max"] },
                IsTls = Equals(Optional(entry, "is_tls"), true),
            };
        }

        private static Lobby ReadLobby(Dictionary<string, object> entry) => new Lobby
        {
            LobbyId = (string)entry["lobby_id"],
            GameMode = (string)entry["game_mode_id"],
            RegionId = (string)entry["region_id"],
            PlayerCount = (int)(double)entry["total_player_count"],
            MaxPlayers = (int)(double)entry["max_players_normal"],
            MaxPlayersDirect = (int)(double)entry["max_players_direct"],
            MaxPlayersParty = (int)(double)entry["max_players_party"],
            State = Optional(entry, "state"),
        };

        private static object Optional(Dictionary<string, object> map, string name) => map.TryGetValue(name, out object value) ? value : null;
    }

    public sealed class TransportRequest
    {
        public string Method, Url, Body;
        public Dictionary<string, string> Headers;
    }

    public sealed class TransportResponse
    {
        public int Status;
        public string Body, RetryAfter;
    }

    /// <summary>Sends requests and waits. Unity WebGL has neither sockets nor threads: see UnityWebTransport.</summary>
    public interface ITransport
    {
        /// <summary>Throws any exception if no response arrives. Cancellation must close the connection.</summary>
        Task<TransportResponse> SendAsync(TransportRequest request, CancellationToken cancel);
        Task DelayAsync(TimeSpan time, CancellationToken cancel);
    }

    public sealed class HttpTransport : ITransport
    {
        public static readonly HttpTransport Shared = new HttpTransport();
        private readonly HttpClient _client = new HttpClient { Timeout = Timeout.InfiniteTimeSpan };

        private HttpTransport()
        {
            // The default of the .NET Framework and Mono is two, and waiting finds would block heartbeats.
            ServicePointManager.DefaultConnectionLimit = Math.Max(ServicePointManager.DefaultConnectionLimit, 64);
            ServicePointManager.Expect100Continue = false;
        }

        public async Task<TransportResponse> SendAsync(TransportRequest request, CancellationToken cancel)
        {
            using (var message = new HttpRequestMessage(new HttpMethod(request.Method), request.Url))
            {
                foreach (var header in request.Headers) message.Headers.TryAddWithoutValidation(header.Key, header.Value);
                if (request.Body != null)
                {
                    message.Content = new ByteArrayContent(Encoding.UTF8.GetBytes(request.Body));
                    message.Content.Headers.ContentType = new MediaTypeHeaderValue("application/json");
                }
                using (HttpResponseMessage response = await _client.SendAsync(message, cancel))
                {
                    response.Headers.TryGetValues("Retry-After", out IEnumerable<string> retryAfter);
                    return new TransportResponse
                    {
                        Status = (int)response.StatusCode,
                        RetryAfter = retryAfter?.FirstOrDefault(),
                        Body = await response.Content.ReadAsStringAsync(),
                    };
                }
            }
        }

        public Task DelayAsync(TimeSpan time, CancellationToken cancel) => Task.Delay(time, cancel);
    }

    /// <summary>Requests to the service with retries.</summary>
    internal sealed class HostingCalls
    {
        public readonly ITransport Transport;
        private readonly string _base, _token;

        public HostingCalls(string apiUrl, string token, ITransport transport)
        {
            if (!apiUrl.StartsWith("http://") && !apiUrl.StartsWith("https://"))
                throw new ArgumentException("the address " + apiUrl + " must begin with http:// or https://");
            _base = apiUrl.TrimEnd('/') + "/matchmaker/";
            _token = token;
            Transport = transport;
        }

        /// <summary>Repeats a request under one idempotency key until its outcome is known.</summary>
        public async Task<object> CallAsync(string method, string path, object body, TimeSpan attempt, TimeSpan total, CancellationToken cancel)
        {
            string key = Guid.NewGuid().ToString();
            var pauses = new Pauses();
            var clock = System.Diagnostics.Stopwatch.StartNew();
            while (true)
            {
                TimeSpan left = total - clock.Elapsed, pause = pauses.Next();
                try
                {
                    return await AttemptAsync(method, path, body, key, left < attempt ? left : attempt, cancel);
                }
                catch (HostingException error) when (error.IsTemporary)
                {
                    if (error.RetryAfter > pause) pause = error.RetryAfter;
                    if (clock.Elapsed + pause >= total) throw;
                }
                await Transport.DelayAsync(pause, cancel);
            }
        }

        /// <summary>Sends one request and returns the JSON of its response.</summary>
        public async Task<object> AttemptAsync(string method, string path, object body, string key, TimeSpan timeout, CancellationToken cancel)
        {
            cancel.ThrowIfCancellationRequested();
            var headers = new Dictionary<string, string> { ["Authorization"] = "Bearer " + _token };
            if (method != "GET") headers["Idempotency-Key"] = key;
            var request = new TransportRequest { Method = method, Url = _base + path, Headers = headers, Body = method == "GET" ? null : Json.Write(body) };
            TransportResponse response;
            object answer = null;
            using (var ended = CancellationTokenSource.CreateLinkedTokenSource(cancel))
            {
                try
                {
                    // A CancellationTokenSource with a timer does not work in Unity WebGL.
                    Task<TransportResponse> sending = Transport.SendAsync(request, ended.Token);
                    if (await Task.WhenAny(sending, Transport.DelayAsync(timeout, ended.Token)) != sending)
                    {
                        _ = sending.ContinueWith(task => task.Exception);
                        throw new TimeoutException("no response within " + timeout.TotalSeconds + " s");
                    }
                    response = await sending;
                    if (response.Status == 200) answer = Json.Parse(response.Body.Length == 0 ? "null" : response.Body);
                }
                catch (Exception error)
                {
                    cancel.ThrowIfCancellationRequested();
                    throw new HostingException("NO_RESPONSE", 0, "no valid response: " + error.Message);
                }
                finally
                {
                    ended.Cancel();
                }
            }
            return response.Status == 200 ? answer : throw ErrorOf(response);
        }

        private static HostingException ErrorOf(TransportResponse response)
        {
            Dictionary<string, object> problem = null;
            try
            {
                problem = Json.Parse(response.Body) as Dictionary<string, object>;
            }
            catch (FormatException)
            {
                // A proxy in front of the service can answer without JSON.
            }
            problem = problem ?? new Dictionary<string, object>();
            string code = problem.TryGetValue("code", out object one) ? one as string : "UNKNOWN";
            string detail = problem.TryGetValue("detail", out object two) ? two as string : "";
            double.TryParse(response.RetryAfter, out double retryAfterS);
            return new HostingException(code, response.Status, detail, problem, retryAfterS);
        }
    }

    /// <summary>Growing pauses with jitter, so that clients do not retry at the same instant.</summary>
    internal sealed class Pauses
    {
        private static readonly Random Jitter = new Random();
        private double _nextMs = 100;

        public TimeSpan Next()
        {
            double share;
            lock (Jitter) share = 0.5 + Jitter.NextDouble() / 2;
            double pauseMs = _nextMs * share;
            _nextMs = Math.Min(_nextMs * 2, 2000);
            return TimeSpan.FromMilliseconds(pauseMs);
        }
    }
}
