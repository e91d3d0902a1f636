using System;
using System.Collections;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq;
using System.Reflection;
using System.Threading;
using System.Threading.Tasks;

namespace Hosting.Game
{
    /// <summary>The game server of a lobby. Heartbeats run until CloseAsync, and SIGTERM ends the lobby.</summary>
    /// <remarks>Without a service it is local: it accepts every token and sends nothing. All members are thread-safe.</remarks>
    public sealed class LobbyServer
    {
        // `ready` waits up to 10 s for the ports.
        private static readonly TimeSpan Attempt = TimeSpan.FromSeconds(15);
        private static readonly TimeSpan ConfirmAttempt = TimeSpan.FromSeconds(4);
        // The service expects `disconnected` if `connected` takes longer.
        private static readonly TimeSpan ConfirmTotal = TimeSpan.FromSeconds(10);
        private static readonly TimeSpan ReleaseTotal = TimeSpan.FromSeconds(60);
        private static readonly TimeSpan CloseTotal = TimeSpan.FromSeconds(5);
        private static readonly TimeSpan StateInterval = TimeSpan.FromSeconds(1);

        private readonly object _lock = new object();
        private readonly IDictionary<string, string> _environment;
        private readonly HostingCalls _calls;
        private readonly ITransport _transport;
        private readonly TimeSpan _heartbeat;
        private readonly HashSet<string> _confirming = new HashSet<string>(), _players = new HashSet<string>();
        private readonly Dictionary<string, Task> _releases = new Dictionary<string, Task>();
        private readonly CancellationTokenSource _closing = new CancellationTokenSource();
        private readonly TaskCompletionSource<string> _stopping = NewEvent(), _answered = NewEvent();
        private readonly Stopwatch _clock = Stopwatch.StartNew();
        private TaskCompletionSource<string> _changed = NewEvent(), _left = NewEvent();
        private readonly Task _running = Task.CompletedTask;
        private bool _isWantedReady, _isReady, _isDeclared, _isFinishing;
        private bool? _isClosed, _sentClosed;
        // A boxed copy for each call of SetState, so that equal values count as changes.
        private string[] _state, _sentState;
        private TimeSpan _heartbeatDue, _stateDue;
        private HostingException _error;

        public bool IsLocal { get; }
        public string LobbyId { get; }
        public string GameMode { get; }
        public string RegionId { get; }
        public int MaxPlayers { get; }
        public object Tags { get; }
        public object Config { get; }
        public string StopReason { get; private set; } = "";

        public LobbyServer(IDictionary<string, string> environment, TimeSpan? heartbeat = null, ITransport transport = null)
        {
            _environment = environment;
            _heartbeat = heartbeat ?? TimeSpan.FromSeconds(3);
            _transport = transport ?? HttpTransport.Shared;
            string url = Variable("HOSTING_API_URL"), token = Variable("HOSTING_LOBBY_TOKEN");
            if (url == "" != (token == ""))
                throw new ArgumentException((url == "" ? "HOSTING_API_URL" : "HOSTING_LOBBY_TOKEN") + " is not set: set both variables, or none to run locally");
            IsLocal = url == "";
            LobbyId = Variable("HOSTING_LOBBY_ID");
            GameMode = Variable("HOSTING_GAME_MODE");
            RegionId = Variable("HOSTING_REGION_ID");
            MaxPlayers = int.Parse(Variable("HOSTING_MAX_PLAYERS", "0"));
            Tags = Json.Parse(Variable("HOSTING_LOBBY_TAGS", "{}"));
            Config = Json.Parse(Variable("HOSTING_LOBBY_CONFIG", "null"));
            StopSignals.Install(Stop);
            if (IsLocal) return;
            _calls = new HostingCalls(url, token, _transport);
            _running = RunAsync();
        }

        /// <summary>Returns the server of the lobby in the HOSTING_* variables. Without them it is local.</summary>
        public static LobbyServer FromEnvironment(ITransport transport = null)
        {
            var variables = Environment.GetEnvironmentVariables().Cast<DictionaryEntry>();
            return new LobbyServer(variables.ToDictionary(one => (string)one.Key, one => (string)one.Value), null, transport);
        }

        /// <summary>Returns the number to bind for the port with this name, or for the only port.</summary>
        public int Port(string name = "", int local = 7777)
        {
            string variable = name == "" ? "PORT" : "PORT_" + name.ToUpperInvariant().Replace('-', '_');
            return int.Parse(Variable(variable, local.ToString()));
        }

        /// <summary>Address on which the server listens.</summary>
        public string BindAddress => Variable("HOSTING_BIND_ADDRESS", "127.0.0.1");

        /// <summary>Lets players in. Ends when the service has confirmed it, or when the lobby stops.</summary>
        public async Task ReadyAsync()
        {
            if (IsLocal)
            {
                Log("ready", new Dictionary<string, object> { ["mode"] = "local: every token is valid" });
                return;
            }
            lock (_lock)
            {
                _isWantedReady = true;
                _isDeclared = false;
                _changed.TrySetResult("");
            }
            await _answered.Task;
            if (_error != null && !_isReady) throw _error;
        }

        /// <summary>Closes the lobby and ends StoppingAsync, as SIGTERM does.</summary>
        public void Stop(string reason = "stop")
        {
            lock (_lock)
            {
                if (StopReason != "") return;
                StopReason = reason;
                _isClosed = true;
            }
            Log("stopping", new Dictionary<string, object> { ["reason"] = reason });
            foreach (var one in new[] { _stopping, _answered, _changed }) one.TrySetResult(reason);
        }

        /// <summary>Ends when the lobby has to end. Returns the reason.</summary>
        public Task<string> StoppingAsync() => _stopping.Task;

        /// <summary>Waits until the lobby has to end, and then until all players have left, at most 10 s.</summary>
        /// <remarks>The service sends SIGKILL 30 s after SIGTERM.</remarks>
        public async Task DrainedAsync(TimeSpan? timeout = null)
        {
            await StoppingAsync();
            TimeSpan deadline = _clock.Elapsed + (timeout ?? TimeSpan.FromSeconds(10));
            while (true)
            {
                Task left;
                lock (_lock)
                {
                    if (_players.Count == 0) return;
                    left = (_left = NewEvent()).Task;
                }
                if (!await WithinAsync(left, deadline - _clock.Elapsed)) return;
            }
        }

        /// <summary>Confirms a player. On HostingException close the connection. Dispose of the player to release the slot.</summary>
        public async Task<Player> PlayerAsync(string token, TimeSpan hold = default(TimeSpan), CancellationToken cancel = default(CancellationToken))
        {
            lock (_lock)
            {
                if (!IsLocal && (_confirming.Contains(token) || _players.Contains(token) || _releases.ContainsKey(token)))
                    throw new HostingException("PLAYER_TOKEN_CONSUMED", 409, "The player token was already used.");
                _confirming.Add(token);
            }
            try
            {
                var body = new Dictionary<string, object> { ["player_token"] = token };
                if (!IsLocal) await _calls.CallAsync("POST", "players/connected", body, ConfirmAttempt, ConfirmTotal, cancel);
                lock (_lock) _players.Add(token);
                return new Player(this, token) { Hold = hold };
            }
            catch (Exception error)
            {
                // After a cancellation or without an answer the slot may be connected.
                if ((error as HostingException)?.IsTemporary ?? true) Release(token, TimeSpan.Zero);
                throw;
            }
            finally
            {
                lock (_lock) _confirming.Remove(token);
            }
        }

        /// <summary>Publishes any JSON value in the lobby list, at most once a second.</summary>
        public void SetState(object value)
        {
            lock (_lock)
            {
                _state = new[] { Json.Write(value) };
                _changed.TrySetResult("");
            }
        }

        /// <summary>Closes the lobby for new players, or opens it.</summary>
        public void SetClosed(bool isClosed = true)
        {
            lock (_lock)
            {
                _isClosed = isClosed;
                _changed.TrySetResult("");
            }
        }

        /// <summary>Closes the lobby, releases all slots, and waits at most 5 s for the service.</summary>
        public async Task CloseAsync()
        {
            Task[] releases;
            lock (_lock)
            {
                foreach (string token in _players.ToList()) Disconnect(token, TimeSpan.Zero);
                _isFinishing = true;
                releases = _releases.Values.ToArray();
            }
            Stop("close");
            lock (_lock) _changed.TrySetResult("");
            await WithinAsync(Task.WhenAll(releases.Append(_running)), CloseTotal);
            StopSignals.Remove(Stop);
            _closing.Cancel();
        }

        /// <summary>Writes a line of JSON to standard output, which the service stores.</summary>
        public static void Log(string message, IDictionary<string, object> fields = null, string level = "info")
        {
            double time = (DateTime.UtcNow - new DateTime(1970, 1, 1)).TotalSeconds;
            var line = new Dictionary<string, object> { ["time"] = Math.Round(time, 3), ["level"] = level, ["message"] = message };
            foreach (var field in fields ?? new Dictionary<string, object>()) line[field.Key] = field.Value;
            Console.Out.WriteLine(Json.Write(line));
            Console.Out.Flush();
        }

        internal void Disconnect(string token, TimeSpan hold)
        {
            lock (_lock)
            {
                if (!_players.Remove(token)) return;
                _left.TrySetResult("");
            }
            Release(token, hold);
        }

        private void Release(string token, TimeSpan hold)
        {
            if (IsLocal) return;
            lock (_lock) _releases[token] = ReleaseAsync(token, hold);
        }

        private async Task ReleaseAsync(string token, TimeSpan hold)
        {
            var body = new Dictionary<string, object> { ["player_token"] = token };
            if (hold > TimeSpan.Zero) body["hold_ms"] = (long)hold.TotalMilliseconds;
            try
            {
                await _calls.CallAsync("POST", "players/disconnected", body, Attempt, ReleaseTotal, _closing.Token);
            }
            catch (Exception error) when (error is HostingException || error is OperationCanceledException)
            {
                // The next heartbeats omit the token, and the service then releases the slot.
                Warn("slot not released", error as HostingException);
            }
            finally
            {
                lock (_lock) _releases.Remove(token);
            }
        }

        /// <summary>Sends heartbeats and changes. Sends all values again after an outage, because calls may be lost.</summary>
        private async Task RunAsync()
        {
            var pauses = new Pauses();
            bool isAway = false;
            while (!_closing.IsCancellationRequested)
            {
                TimeSpan wait;
                Task changed;
                lock (_lock) changed = (_changed = NewEvent()).Task;
                try
                {
                    await SendDueAsync();
                    // CloseAsync waits for the last changes.
                    lock (_lock) if (_isFinishing && _isClosed == _sentClosed) return;
                    if (isAway) Log("the service answers again");
                    pauses = new Pauses();
                    isAway = false;
                    lock (_lock) wait = (_state == _sentState || _heartbeatDue < _stateDue ? _heartbeatDue : _stateDue) - _clock.Elapsed;
                }
                catch (OperationCanceledException)
                {
                    return;
                }
                catch (HostingException error)
                {
                    if (IsEnd(error))
                    {
                        _error = error;
                        Stop(error.Code);
                        return;
                    }
                    if (!isAway) Warn("call failed", error);
                    isAway = true;
                    lock (_lock) _isDeclared = false;
                    wait = pauses.Next();
                    if (error.RetryAfter > wait) wait = error.RetryAfter;
                    changed = NewEvent().Task;
                }
                await WithinAsync(changed, wait);
            }
        }

        private async Task SendDueAsync()
        {
            bool isDeclaring, isWantedReady;
            lock (_lock)
            {
                isDeclaring = !_isDeclared;
                isWantedReady = _isWantedReady;
                _isDeclared = true;
                if (isDeclaring) _sentClosed = null;
                if (isDeclaring) _sentState = null;
            }
            if (isDeclaring && isWantedReady)
            {
                await SendAsync("POST", "lobbies/ready", "{}");
                if (!_isReady) Log("ready");
                _isReady = true;
                _answered.TrySetResult("");
            }
            bool? isClosed;
            string[] state, tokens;
            lock (_lock) isClosed = _isClosed;
            if (isClosed != _sentClosed)
            {
                await SendAsync("PUT", "lobbies/closed", isClosed == true ? "{\"is_closed\": true}" : "{\"is_closed\": false}");
                _sentClosed = isClosed;
            }
            lock (_lock) state = _state;
            if (state != _sentState && _clock.Elapsed >= _stateDue)
            {
                _stateDue = _clock.Elapsed + StateInterval;
                try
                {
                    await SendAsync("PUT", "lobbies/state", state[0]);
                }
                catch (HostingException error) when (!error.IsTemporary && !IsEnd(error))
                {
                    Log("state not published", new Dictionary<string, object> { ["code"] = error.Code, ["detail"] = error.Detail }, "error");
                }
                lock (_lock) _sentState = state;
            }
            if (_clock.Elapsed < _heartbeatDue) return;
            lock (_lock) tokens = _players.ToArray();
            await SendAsync("POST", "lobbies/heartbeat", Json.Write(new Dictionary<string, object> { ["player_tokens"] = tokens }));
            _heartbeatDue = _clock.Elapsed + _heartbeat;
        }

        private Task SendAsync(string method, string path, string json) =>
            _calls.AttemptAsync(method, path, new RawJson(json), Guid.NewGuid().ToString(), Attempt, _closing.Token);

        /// <summary>Returns whether the task has ended in time.</summary>
        private async Task<bool> WithinAsync(Task task, TimeSpan timeout)
        {
            if (timeout < TimeSpan.Zero) timeout = TimeSpan.Zero;
            using (var ended = CancellationTokenSource.CreateLinkedTokenSource(_closing.Token))
            {
                bool isEnded = await Task.WhenAny(task, _transport.DelayAsync(timeout, ended.Token)) == task;
                ended.Cancel();
                return isEnded;
            }
        }

        private static bool IsEnd(HostingException error) => Array.IndexOf(new[] { 401, 403, 404, 410 }, error.Status) >= 0;

        private static void Warn(string message, HostingException error) =>
            Log(message, new Dictionary<string, object> { ["code"] = error?.Code, ["ray_id"] = error?.RayId }, "warning");

        private string Variable(string name, string missing = "") =>
            _environment.TryGetValue(name, out string value) && !string.IsNullOrEmpty(value) ? value : missing;

        private static TaskCompletionSource<string> NewEvent() => new TaskCompletionSource<string>(TaskCreationOptions.RunContinuationsAsynchronously);
    }

    /// <summary>A player of the lobby, from `connected` to `disconnected`.</summary>
    public sealed class Player : IDisposable
    {
        private readonly LobbyServer _server;
        private readonly string _token;

        /// <summary>Time for which the service keeps the slot for the player after Dispose.</summary>
        public TimeSpan Hold { get; set; }

        internal Player(LobbyServer server, string token)
        {
            _server = server;
            _token = token;
        }

        /// <summary>Releases the slot in the background.</summary>
        public void Dispose() => _server.Disconnect(_token, Hold);
    }

    /// <summary>SIGTERM and Ctrl-C. The types are found at run time, because .NET Standard 2.0 has none for signals.</summary>
    internal static class StopSignals
    {
        private static event Action<string> Stop;
        private static object _registration;

        public static void Install(Action<string> stop)
        {
            Stop += stop;
            if (_registration != null) return;
            _registration = new object();
            Console.CancelKeyPress += (sender, key) =>
            {
                // Only the first Ctrl-C does not end the process.
                key.Cancel = Stop != null;
                Stop?.Invoke("SIGINT");
                Stop = null;
            };
            if (!InstallDotNet() && !InstallMono()) LobbyServer.Log("no SIGTERM handler: call Stop yourself", null, "warning");
        }

        public static void Remove(Action<string> stop) => Stop -= stop;

        private static bool InstallDotNet()
        {
            Type registration = Type.GetType("System.Runtime.InteropServices.PosixSignalRegistration, System.Runtime.InteropServices");
            Type context = registration?.Assembly.GetType("System.Runtime.InteropServices.PosixSignalContext");
            if (context == null) return false;
            MethodInfo create = registration.GetMethod("Create");
            MethodInfo handler = typeof(StopSignals).GetMethod(nameof(OnDotNetSignal), BindingFlags.NonPublic | BindingFlags.Static).MakeGenericMethod(context);
            Delegate action = Delegate.CreateDelegate(typeof(Action<>).MakeGenericType(context), handler);
            object sigterm = Enum.Parse(create.GetParameters()[0].ParameterType, "SIGTERM");
            _registration = create.Invoke(null, new[] { sigterm, action });
            return true;
        }

        private static void OnDotNetSignal<T>(T context)
        {
            typeof(T).GetProperty("Cancel").SetValue(context, true);
            Stop?.Invoke("SIGTERM");
        }

        private static bool InstallMono()
        {
            const string assembly = ", Mono.Posix, Version=4.0.0.0, Culture=neutral, PublicKeyToken=0738eb9f132ed756";
            Type signal = Type.GetType("Mono.Unix.UnixSignal" + assembly), number = Type.GetType("Mono.Unix.Native.Signum" + assembly);
            if (signal == null || number == null) return false;
            var handle = (WaitHandle)Activator.CreateInstance(signal, Enum.Parse(number, "SIGTERM"));
            MethodInfo reset = signal.GetMethod("Reset");
            var waiting = new Thread(() =>
            {
                while (true)
                {
                    handle.WaitOne();
                    reset.Invoke(handle, null);
                    Stop?.Invoke("SIGTERM");
                }
            });
            waiting.IsBackground = true;
            waiting.Start();
            return true;
        }
    }
}
