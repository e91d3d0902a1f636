class_name HostingReservation
extends RefCounted
## A slot in a lobby, or the error of the call if [member error] is not null.
##
## Connect to one of [member ports] and send [member player_token] there. Each port has the fields
## hostname, port, port_range and is_tls of the interface.

var error: HostingError
var lobby_id := ""
var region_id := ""
var ports := {}
var player_token := ""
var player_tokens: Array[String] = []


static func from_result(result: Variant) -> HostingReservation:
	var reservation := HostingReservation.new()
	if result is HostingError:
		reservation.error = result
		return reservation
	var answer: Dictionary = result[0]
	reservation.lobby_id = answer["lobby"]["lobby_id"]
	reservation.region_id = answer["lobby"]["region"]["region_id"]
	reservation.ports = answer["ports"]
	reservation.player_token = answer["player"]["token"]
	for player: Dictionary in answer.get("players", [answer["player"]]):
		reservation.player_tokens.append(player["token"])
	return reservation


## Returns the port with this name, or the only port.
func port(port_name := "") -> Dictionary:
	return ports[port_name] if port_name else ports.values()[0]


## Returns the address of a WebSocket server, with the player token as query parameter.
func websocket_url(path := "/", port_name := "") -> String:
	var target := port(port_name)
	var scheme := "wss" if target.get("is_tls") else "ws"
	var host: String = target["hostname"]
	if ":" in host:
		host = "[%s]" % host
	return "%s://%s:%d%s?token=%s" % [scheme, host, target["port"], path, player_token]
