"""Rate limits of servers in tests."""

from __future__ import annotations

from pyservice.settings.sections import RateLimits


def rates(**limits: tuple[float, int]) -> RateLimits:
    """Returns the default limits with these ones, each as tokens for a second and burst."""
    return RateLimits.model_validate(
        {name: {"per_second": rate, "burst": burst} for name, (rate, burst) in limits.items()}
    )


def no_limits() -> RateLimits:
    return rates(**dict.fromkeys(RateLimits.model_fields, (0.0, 1)))
