class_name HostingMatchmaker
extends HostingHttp
## Calls of a player with a public token. Add it to the scene tree and set api_url and token.
##
## Each call is repeated under one idempotency key for at most [member timeout_s].

# The service waits up to 45 s for a starting lobby.
const MATCH_ATTEMPT_S := 60.0

var timeout_s := 120.0


## Reserves a slot in a lobby of one of these game modes. The fields are those of find.
func find(
	game_modes: Array, fields := {}, cancellation: HostingCancellation = null
) -> HostingReservation:
	return await _reserve("find", {"game_modes": game_modes}, fields, cancellation)


## Reserves a slot in this lobby.
func join(
	lobby_id: String, fields := {}, cancellation: HostingCancellation = null
) -> HostingReservation:
	return await _reserve("join", {"lobby_id": lobby_id}, fields, cancellation)


## Starts a lobby and reserves a slot in it.
func create(
	game_mode: String, fields := {}, cancellation: HostingCancellation = null
) -> HostingReservation:
	return await _reserve("create", {"game_mode": game_mode}, fields, cancellation)


## Reserves the slot again that the server keeps after a lost connection.
## Without a kept slot it is a normal join.
func rejoin(
	reservation: HostingReservation, cancellation: HostingCancellation = null
) -> HostingReservation:
	var fields := {"rejoin_token": reservation.player_token}
	return await join(reservation.lobby_id, fields, cancellation)


## Returns all public, open lobbies, oldest first, with the fields of the interface.
## Returns a HostingError if it fails.
func list_lobbies(include_state := false, cancellation: HostingCancellation = null) -> Variant:
	var lobbies := []
	var cursor := ""
	while true:
		var query := PackedStringArray()
		if include_state:
			query.append("include_state=true")
		if cursor:
			query.append("cursor=" + cursor)
		var path := "lobbies/list" + ("?" + "&".join(query) if query else "")
		var result: Variant = await call_api(
			HTTPClient.METHOD_GET, path, null, MATCH_ATTEMPT_S, timeout_s, cancellation
		)
		if result is HostingError:
			return result
		lobbies.append_array(result[0]["lobbies"])
		cursor = result[0].get("cursor", "")
		if not cursor:
			break
	return lobbies


func _reserve(
	operation: String, body: Dictionary, fields: Dictionary, cancellation: HostingCancellation
) -> HostingReservation:
	var whole := fields.merged(body, true)
	var path := "lobbies/" + operation
	var result: Variant = await call_api(
		HTTPClient.METHOD_POST, path, whole, MATCH_ATTEMPT_S, timeout_s, cancellation
	)
	return HostingReservation.from_result(result)
