"""Error cases of trials, and of the version that a deployment expects."""

from __future__ import annotations

import httpx

from tests.contract.error_cases import elsewhere, error_case
from tests.contract.scenario import Scenario, placeholder


@placeholder("hosted_mode")
def _(_: Scenario) -> str:
    return "hosted"


@error_case("start_trial", "VALIDATION_FAILED")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("start_trial", fields={"game_mode": "nothing"})


@error_case("start_trial", "MATCHMAKER_TOO_MANY_LOBBIES")
def _(scenario: Scenario) -> httpx.Response:
    """The namespace is at its limit of one lobby."""
    token = scenario.served_game.service_tokens["small"]
    scenario.call("attach", bearer=token, path={"namespace_id": "small"})
    return scenario.call("start_trial", fields={"namespace_id": "small"})


elsewhere(
    "start_trial",
    "CAPACITY_EXHAUSTED",
    "tests/dataplane/test_trials.py::test_trial_without_capacity_says_why",
    "the service of the contract tests has more capacity than a tier needs",
)
elsewhere(
    "start_trial",
    "PORTS_EXHAUSTED",
    "tests/dataplane/test_edge_routes.py::test_exhausted_ports_create_no_lobby",
    "each family has 6,000 ports, and no setting reduces the number",
)


@error_case("set_version", "VERSION_CHANGED")
def _(scenario: Scenario) -> httpx.Response:
    version_id = scenario.good("create_version")["version_id"]
    return scenario.call(
        "set_version",
        fields={"version_id": version_id, "expected_version_id": scenario.value("lobby_id")},
    )
