extends Node
## Game server. The first packet of a client is its player token, and each further one is [x, y].

var lobby := HostingLobbyServer.new()
var peer := WebSocketMultiplayerPeer.new()
var players := {}  # x, y and score by the id of the peer
var sessions := {}  # confirmed players by the id of the peer
var star := [300, 200]


func _ready() -> void:
	Engine.max_fps = 20
	add_child(lobby)
	lobby.stopping.connect(func(_reason: String) -> void: get_tree().quit())
	peer.peer_disconnected.connect(_leave)
	if peer.create_server(lobby.port(), lobby.bind_address()) != OK:
		get_tree().quit(1)
	await lobby.report_ready()


func _process(_delta: float) -> void:
	peer.poll()
	while peer.get_available_packet_count() > 0:
		var id := peer.get_packet_peer()
		var text := peer.get_packet().get_string_from_utf8()
		if id in players:
			_move(players[id], JSON.parse_string(text))
		elif id not in sessions:
			_confirm(id, text)
	if players:
		peer.set_target_peer(MultiplayerPeer.TARGET_PEER_BROADCAST)
		var state := {"star": star, "players": players.values()}
		peer.put_packet(JSON.stringify(state).to_utf8_buffer())


func _confirm(id: int, token: String) -> void:
	sessions[id] = null
	var player := await lobby.confirm(token)
	if player.error or id not in sessions:
		player.leave()
		peer.disconnect_peer(id)
	else:
		sessions[id] = player
		players[id] = [0, 0, 0]


func _move(mine: Array, wish: Variant) -> void:
	if wish is Array and wish.size() == 2:
		mine[0] = clampi(int(wish[0]), 0, 600)
		mine[1] = clampi(int(wish[1]), 0, 400)
		if absi(mine[0] - star[0]) + absi(mine[1] - star[1]) < 20:
			mine[2] += 1
			star = [randi_range(0, 599), randi_range(0, 399)]


func _leave(id: int) -> void:
	if sessions.get(id):
		sessions[id].leave()
	sessions.erase(id)
	players.erase(id)
