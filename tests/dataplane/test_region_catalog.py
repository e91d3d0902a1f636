"""Region order and distances."""

from __future__ import annotations

import pytest

from pyservice.dataplane.region_catalog import Region, RegionCatalog, haversine_km

PARIS = (48.8566, 2.3522)
LONDON = (51.5074, -0.1278)
SYDNEY = (-33.8688, 151.2093)


def _regions() -> RegionCatalog:
    return RegionCatalog(
        Region(name, "Self-hosted", name.title(), *where)
        for name, where in (("sydney", SYDNEY), ("london", LONDON), ("paris", PARIS))
    )


def test_operator_order_without_coordinates() -> None:
    away = _regions().nearest_first(None)
    assert [one.region.region_id for one in away] == ["sydney", "london", "paris"]
    assert {one.kilometers for one in away} == {0.0}
    assert _regions().nearest(None) == _regions().first == "sydney"


def test_nearest_first_with_coordinates() -> None:
    away = _regions().nearest_first((50.6, 3.0))
    assert [one.region.region_id for one in away] == ["paris", "london", "sydney"]
    assert _regions().nearest((50.6, 3.0)) == "paris"
    assert _regions().nearest((0.0, 0.0)) == "paris"


@pytest.mark.parametrize(
    ("one", "other", "kilometers"),
    [
        (PARIS, PARIS, 0.0),
        (PARIS, LONDON, 343.6),
        (LONDON, SYDNEY, 16_994.0),
        ((0.0, 0.0), (0.0, 180.0), 20_015.1),
        ((90.0, 0.0), (-90.0, 77.0), 20_015.1),
        ((0.0, 179.5), (0.0, -179.5), 111.2),
    ],
)
def test_great_circle_distance(
    one: tuple[float, float], other: tuple[float, float], kilometers: float
) -> None:
    assert haversine_km(one, other) == pytest.approx(kilometers, rel=0.001, abs=0.05)
    assert haversine_km(one, other) == haversine_km(other, one)


def test_miles() -> None:
    [first, *_] = _regions().nearest_first(LONDON)
    assert first.kilometers == 0.0
    paris = _regions().nearest_first(LONDON)[1]
    assert paris.miles == pytest.approx(213.5, rel=0.001)


def test_removed_region_is_displayed_by_id() -> None:
    assert _regions().display_name("paris") == "Paris"
    assert _regions().display_name("gone") == "gone"
    assert "paris" in _regions()
    assert "gone" not in _regions()
