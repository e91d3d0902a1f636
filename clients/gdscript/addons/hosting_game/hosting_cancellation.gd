class_name HostingCancellation
extends RefCounted
## Cancels the calls to which it was given.

signal cancelled

var is_cancelled := false


func cancel() -> void:
	is_cancelled = true
	cancelled.emit()
