class_name HostingPlayer
extends RefCounted
## A player of the lobby, or the error of the call if [member error] is not null.
##
## The slot is released when the game calls [method leave] or drops its last reference.

var error: HostingError
## Time for which the service keeps the slot for the player.
var hold_ms := 0
var _release := Callable()


func leave() -> void:
	if _release.is_valid():
		_release.call(hold_ms)
	_release = Callable()


func _notification(what: int) -> void:
	if what == NOTIFICATION_PREDELETE and _release.is_valid():
		_release.call(hold_ms)
