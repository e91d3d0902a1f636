class_name HostingLobbyServer
extends HostingHttp
## The game server of a lobby. Add it to the scene tree: then heartbeats run until [method close].
##
## It reads the HOSTING_* variables. Without them it is local: it accepts every token and sends
## nothing. Godot cannot catch SIGTERM: the process ends at once, and the service ends the lobby.

## The lobby has to end.
signal stopping(reason: String)
signal ready_answered

# The operation ready waits up to 10 s for the ports.
const ATTEMPT_S := 15.0
const CONFIRM_ATTEMPT_S := 4.0
# The service expects disconnected if connected takes longer.
const CONFIRM_TOTAL_S := 10.0
const RELEASE_TOTAL_S := 60.0
const CLOSE_TOTAL_S := 5.0
const STATE_INTERVAL_S := 1.0

var heartbeat_s := 3.0
var stop_reason := ""
var is_local := true
var lobby_id := OS.get_environment("HOSTING_LOBBY_ID")
var game_mode := OS.get_environment("HOSTING_GAME_MODE")
var region_id := OS.get_environment("HOSTING_REGION_ID")
var max_players := OS.get_environment("HOSTING_MAX_PLAYERS").to_int()
var tags: Variant = JSON.parse_string(_variable("HOSTING_LOBBY_TAGS", "{}"))
var config: Variant = JSON.parse_string(_variable("HOSTING_LOBBY_CONFIG", "null"))

var _confirming := {}
var _players := {}
var _releases := {}
var _is_wanted_ready := false
var _is_ready := false
var _is_declared := false
var _is_closing := false
# Null: never set.
var _is_closed: Variant = null
var _sent_closed: Variant = null
# An array with the value, so that equal values count as changes.
var _state: Variant = null
var _sent_state: Variant = null
var _heartbeat_due_s := 0.0
var _state_due_s := 0.0
var _error: HostingError


## Writes a line of JSON to standard output, which the service stores.
static func log_line(message: String, fields := {}, level := "info") -> void:
	var line := {"time": Time.get_unix_time_from_system(), "level": level, "message": message}
	print(JSON.stringify(line.merged(fields)))


static func _variable(variable: String, missing: String) -> String:
	var value := OS.get_environment(variable)
	return value if value else missing


func _ready() -> void:
	api_url = OS.get_environment("HOSTING_API_URL")
	token = OS.get_environment("HOSTING_LOBBY_TOKEN")
	is_local = not api_url
	if bool(api_url) != bool(token):
		var missing := "HOSTING_LOBBY_TOKEN" if api_url else "HOSTING_API_URL"
		push_error(missing + " is not set: set both variables, or none to run locally")
		is_local = true
	if not is_local:
		_run()


## Returns the number to bind for the port with this name, or for the only port.
func port(port_name := "", local := 7777) -> int:
	var variable := "PORT_" + port_name.to_upper().replace("-", "_") if port_name else "PORT"
	return _variable(variable, str(local)).to_int()


## Returns the address on which the server listens.
func bind_address() -> String:
	return _variable("HOSTING_BIND_ADDRESS", "127.0.0.1")


## Lets players in. Returns an error, or null when the service has confirmed it or the lobby stops.
func report_ready() -> HostingError:
	if is_local:
		log_line("ready", {"mode": "local: every token is valid"})
		return null
	_is_wanted_ready = true
	_is_declared = false
	if not (_is_ready or stop_reason):
		await ready_answered
	return null if _is_ready else _error


## Closes the lobby and emits [signal stopping].
func stop(reason := "stop") -> void:
	if stop_reason:
		return
	log_line("stopping", {"reason": reason})
	stop_reason = reason
	_is_closed = true
	stopping.emit(reason)
	ready_answered.emit()


## Waits until the lobby has to end, and then until all players have left, at most the given time.
func drained(timeout_s := 10.0) -> void:
	if not stop_reason:
		await stopping
	var end_s := now_s() + timeout_s
	while _players and now_s() < end_s:
		await get_tree().process_frame


## Confirms a player. On an error close the connection.
func confirm(player_token: String, hold_ms := 0) -> HostingPlayer:
	var player := HostingPlayer.new()
	player.hold_ms = hold_ms
	player.error = await _connect_player(player_token)
	if player.error == null:
		player._release = _disconnect_player.bind(player_token)
	return player


## Publishes any JSON value in the lobby list, at most once a second.
func set_state(value: Variant) -> void:
	_state = [value]


## Closes the lobby for new players, or opens it.
func set_closed(is_closed := true) -> void:
	_is_closed = is_closed


## Closes the lobby, releases all slots, and waits at most 5 s for the service.
func close() -> void:
	stop("close")
	for player_token: String in _players.keys():
		_disconnect_player(0, player_token)
	var end_s := now_s() + CLOSE_TOTAL_S
	while not is_local and now_s() < end_s:
		if _releases.is_empty() and (_is_closed == _sent_closed or _error):
			break
		await get_tree().process_frame
	_is_closing = true


func _connect_player(player_token: String) -> HostingError:
	if is_local:
		_players[player_token] = true
		return null
	if player_token in _confirming or player_token in _players or player_token in _releases:
		return HostingError.new("PLAYER_TOKEN_CONSUMED", 409, "The player token was already used.")
	_confirming[player_token] = true
	var body := {"player_token": player_token}
	var result: Variant = await call_api(
		HTTPClient.METHOD_POST, "players/connected", body, CONFIRM_ATTEMPT_S, CONFIRM_TOTAL_S
	)
	_confirming.erase(player_token)
	if result is HostingError:
		# Without an answer the slot may be connected.
		if result.is_temporary():
			_release_slot(0, player_token)
		return result
	_players[player_token] = true
	return null


func _disconnect_player(hold_ms: int, player_token: String) -> void:
	if _players.erase(player_token):
		if not is_local:
			_release_slot(hold_ms, player_token)


func _release_slot(hold_ms: int, player_token: String) -> void:
	_releases[player_token] = true
	var body := {"player_token": player_token}
	if hold_ms:
		body["hold_ms"] = hold_ms
	var result: Variant = await call_api(
		HTTPClient.METHOD_POST, "players/disconnected", body, ATTEMPT_S, RELEASE_TOTAL_S
	)
	# The next heartbeats omit the token, and the service then releases the slot.
	if result is HostingError:
		log_line("slot not released", {"code": result.code, "ray_id": result.ray_id}, "warning")
	_releases.erase(player_token)


## Sends heartbeats and changes. Sends all values again after an outage, because calls may be lost.
func _run() -> void:
	var failures := 0
	while not _is_closing and is_inside_tree():
		var error: HostingError = await _send_due()
		if error == null:
			if failures:
				log_line("the service answers again")
			failures = 0
			await get_tree().process_frame
			continue
		if error.is_end_of_lobby():
			_error = error
			stop(error.code)
			return
		if not failures:
			log_line("call failed", {"code": error.code, "ray_id": error.ray_id}, "warning")
		_is_declared = false
		await sleep(maxf(pause_s(failures), error.retry_after_s))
		failures += 1


func _send_due() -> HostingError:
	if not _is_declared:
		var error := await _declare()
		if error:
			return error
	if _is_closed != _sent_closed:
		var is_closed: Variant = _is_closed
		var body := {"is_closed": is_closed}
		var error := await _send(HTTPClient.METHOD_PUT, "lobbies/closed", body)
		if error:
			return error
		_sent_closed = is_closed
	if not is_same(_state, _sent_state) and now_s() >= _state_due_s:
		var error := await _send_state()
		if error:
			return error
	if now_s() >= _heartbeat_due_s:
		var body := {"player_tokens": _players.keys()}
		var error := await _send(HTTPClient.METHOD_POST, "lobbies/heartbeat", body)
		if error:
			return error
		_heartbeat_due_s = now_s() + heartbeat_s
	return null


func _declare() -> HostingError:
	_is_declared = true
	_sent_closed = null
	_sent_state = null
	if not _is_wanted_ready:
		return null
	var error := await _send(HTTPClient.METHOD_POST, "lobbies/ready", {})
	if error == null:
		if not _is_ready:
			log_line("ready")
		_is_ready = true
		ready_answered.emit()
	return error


func _send_state() -> HostingError:
	var state: Array = _state
	_state_due_s = now_s() + STATE_INTERVAL_S
	var error := await _send(HTTPClient.METHOD_PUT, "lobbies/state", state[0])
	if error and (error.is_temporary() or error.is_end_of_lobby()):
		return error
	if error:
		log_line("state not published", {"code": error.code, "detail": error.detail}, "error")
	_sent_state = state
	return null


func _send(method: HTTPClient.Method, path: String, body: Variant) -> HostingError:
	var result: Variant = await attempt_api(method, path, body, new_key(), ATTEMPT_S)
	return result if result is HostingError else null
