extends Node2D
## Client: finds a lobby, and moves to the pointer. With the argument `bot` it moves to the star.

var matchmaker := HostingMatchmaker.new()
var peer := WebSocketMultiplayerPeer.new()
var is_bot := "bot" in OS.get_cmdline_user_args()
var place := Vector2.ZERO
var status := "Looking for a lobby..."
var star := []
var players := []
var token := ""


func _ready() -> void:
	add_child(matchmaker)
	var settings := await _settings()
	matchmaker.api_url = settings.get("api_url", "")
	matchmaker.token = settings.get("public_token", "")
	var reservation := await matchmaker.find(["catch"])
	if reservation.error:
		status = reservation.error.detail
		print(status)
	else:
		print("plays in lobby ", reservation.lobby_id)
		token = reservation.player_token
		peer.create_client(reservation.websocket_url())
	queue_redraw()


func _process(_delta: float) -> void:
	peer.poll()
	if peer.get_connection_status() != MultiplayerPeer.CONNECTION_CONNECTED:
		return
	if token:
		_send(token)
		token = ""
	while peer.get_available_packet_count() > 0:
		var state: Dictionary = JSON.parse_string(peer.get_packet().get_string_from_utf8())
		star = state["star"]
		players = state["players"]
		status = "Touch the star. Scores: " + ", ".join(players.map(func(one): return str(one[2])))
		var pointer := Vector2(star[0], star[1]) if is_bot else get_global_mouse_position()
		place = place.move_toward(pointer, 10) if is_bot else pointer
		_send(JSON.stringify([int(place.x), int(place.y)]))
		queue_redraw()


func _draw() -> void:
	var font := ThemeDB.fallback_font
	draw_string(font, Vector2(10, 20), status)
	if star:
		draw_string(font, Vector2(star[0] - 8, star[1] + 8), "*", HORIZONTAL_ALIGNMENT_LEFT, -1, 32)
	for one: Array in players:
		draw_rect(Rect2(one[0] - 5, one[1] - 5, 10, 10), Color.WHITE)


func _send(text: String) -> void:
	peer.set_target_peer(MultiplayerPeer.TARGET_PEER_SERVER)
	peer.put_packet(text.to_utf8_buffer())


## Returns the address of the API and a public token: from the variables of `pyservice play`, or
## from the file that `pyservice deploy` adds to the page.
func _settings() -> Dictionary:
	if not OS.has_feature("web"):
		return {
			"api_url": OS.get_environment("HOSTING_API_URL"),
			"public_token": OS.get_environment("HOSTING_PUBLIC_TOKEN"),
		}
	var request := HTTPRequest.new()
	add_child(request)
	request.request(JavaScriptBridge.eval("new URL('hosting.json', location.href).href"))
	var answer: Array = await request.request_completed
	return JSON.parse_string(answer[3].get_string_from_utf8())
