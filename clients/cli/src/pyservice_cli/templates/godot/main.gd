extends Node
## Starts the game server in an export for dedicated servers, and the client everywhere else.

const Client := preload("res://client.gd")
const Server := preload("res://server.gd")


func _ready() -> void:
	if OS.has_feature("dedicated_server"):
		add_child(Server.new())
	else:
		add_child(Client.new())
