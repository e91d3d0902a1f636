class_name HostingHttp
extends Node
## Requests to the service with retries. HostingMatchmaker and HostingLobbyServer use it.
##
## Each call returns a HostingError, or the value of the JSON in an Array with one element.

signal attempt_ended(number: int, result: Variant)

const PAUSE_FIRST_S := 0.1
const PAUSE_LONGEST_S := 2.0

var api_url := ""
var token := ""
var _attempts := 0


## Returns the pause before the next attempt, with jitter.
static func pause_s(attempt: int) -> float:
	return minf(PAUSE_FIRST_S * pow(2.0, attempt), PAUSE_LONGEST_S) * randf_range(0.5, 1.0)


static func new_key() -> String:
	return Crypto.new().generate_random_bytes(16).hex_encode()


static func now_s() -> float:
	return Time.get_ticks_usec() / 1e6


## Repeats a request under one idempotency key until its outcome is known.
func call_api(
	method: HTTPClient.Method,
	path: String,
	body: Variant,
	attempt_s: float,
	total_s: float,
	cancellation: HostingCancellation = null
) -> Variant:
	var key := new_key()
	var deadline_s := now_s() + total_s
	var attempt := 0
	while true:
		var left_s := maxf(deadline_s - now_s(), 0.001)
		var time_s := minf(attempt_s, left_s)
		var result: Variant = await attempt_api(method, path, body, key, time_s, cancellation)
		if not (result is HostingError and result.is_temporary()):
			return result
		var wait_s := maxf(pause_s(attempt), result.retry_after_s)
		attempt += 1
		if now_s() + wait_s >= deadline_s:
			return result
		await sleep(wait_s, cancellation)
	return null


## Sends one request.
func attempt_api(
	method: HTTPClient.Method,
	path: String,
	body: Variant,
	key: String,
	timeout_s: float,
	cancellation: HostingCancellation = null
) -> Variant:
	if cancellation and cancellation.is_cancelled:
		return HostingError.new("CANCELLED", 0, "the call was cancelled")
	_attempts += 1
	var number := _attempts
	var request := HTTPRequest.new()
	request.timeout = timeout_s
	add_child(request)
	var headers := PackedStringArray(["Authorization: Bearer " + token])
	var content := ""
	if method != HTTPClient.METHOD_GET:
		headers.append("Content-Type: application/json")
		headers.append("Idempotency-Key: " + key)
		content = JSON.stringify(body)
	request.request_completed.connect(
		func(result: int, status: int, lines: PackedStringArray, data: PackedByteArray) -> void:
			attempt_ended.emit(number, _read(result, status, lines, data))
	)
	var abort := func() -> void:
		request.cancel_request()
		attempt_ended.emit(number, HostingError.new("CANCELLED", 0, "the call was cancelled"))
	if cancellation:
		cancellation.cancelled.connect(abort)
	var url := api_url.trim_suffix("/") + "/matchmaker/" + path
	var answer: Variant = null
	var failure := request.request(url, headers, method, content)
	if failure != OK:
		answer = HostingError.new("NO_RESPONSE", 0, error_string(failure))
	while answer == null:
		var ended: Array = await attempt_ended
		if ended[0] == number:
			answer = ended[1]
	if cancellation:
		cancellation.cancelled.disconnect(abort)
	request.queue_free()
	return answer


## Waits, at most until the call is cancelled.
func sleep(time_s: float, cancellation: HostingCancellation = null) -> void:
	var end_s := now_s() + time_s
	while now_s() < end_s and not (cancellation and cancellation.is_cancelled):
		await get_tree().process_frame


func _read(result: int, status: int, lines: PackedStringArray, data: PackedByteArray) -> Variant:
	if result != HTTPRequest.RESULT_SUCCESS:
		return HostingError.new("NO_RESPONSE", 0, "no response, result %d of HTTPRequest" % result)
	var json := JSON.new()
	var is_json := json.parse(data.get_string_from_utf8()) == OK
	if status == 200:
		if is_json:
			return [json.data]
		return HostingError.new("NO_RESPONSE", 0, "the response is not JSON")
	var problem: Dictionary = json.data if is_json and json.data is Dictionary else {}
	var code := str(problem.get("code", "UNKNOWN"))
	var error := HostingError.new(code, status, str(problem.get("detail", "")), problem)
	for line in lines:
		if line.to_lower().begins_with("retry-after:"):
			error.retry_after_s = line.get_slice(":", 1).strip_edges().to_float()
	return error
