class_name HostingError
extends RefCounted
## A call failed. [member code] is stable: see the error codes of the service.
##
## NO_RESPONSE with status 0 means that the service could not be reached or did not answer in time.
## CANCELLED means that the caller cancelled the call.

const TEMPORARY_STATUSES := [408, 500, 502, 503, 504]

var code := ""
var status := 0
var detail := ""
var ray_id := ""
var problem := {}
var retry_after_s := 0.0


func _init(new_code: String, new_status: int, new_detail: String, new_problem := {}) -> void:
	code = new_code
	status = new_status
	detail = new_detail
	problem = new_problem
	ray_id = str(problem.get("ray_id", ""))


## Returns true if the same call can succeed later. Its outcome is then unknown.
func is_temporary() -> bool:
	return code in ["NO_RESPONSE", "RATE_LIMITED"] or status in TEMPORARY_STATUSES


## Returns true if the lobby of this lobby token has ended, or if the token is not valid.
func is_end_of_lobby() -> bool:
	return status in [401, 403, 404, 410]


func _to_string() -> String:
	return "%s: %s" % [code, detail]
