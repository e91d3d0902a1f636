from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_EARTH_RADIUS_KM: Final = 6371.0088
_KM_PER_MILE: Final = 1.609344


@dataclass(frozen=True, slots=True)
class Region:
    region_id: str
    provider_display_name: str
    region_display_name: str
    latitude: float
    longitude: float


@dataclass(frozen=True, slots=True)
class RegionDistance:
    region: Region
    kilometers: float

    @property
    def miles(self) -> float:
        return self.kilometers / _KM_PER_MILE


class RegionCatalog:
    def __init__(self, regions: Iterable[Region]) -> None:
        self._ordered: Sequence[Region] = tuple(regions)
        self._by_id = {region.region_id: region for region in self._ordered}
        if not self._ordered:
            raise ValueError("at least one region is required")

    def __contains__(self, region_id: object) -> bool:
        return region_id in self._by_id

    @property
    def first(self) -> str:
        return self._ordered[0].region_id

    def display_name(self, region_id: str) -> str:
        """Returns the display name of a region, or the region's id if the operator removed the
        region.
        """
        region = self._by_id.get(region_id)
        return region.region_display_name if region else region_id

    def nearest_first(self, coords: tuple[float, float] | None) -> list[RegionDistance]:
        if coords is None:
            return [RegionDistance(region, 0.0) for region in self._ordered]
        distances = [
            RegionDistance(region, haversine_km(coords, (region.latitude, region.longitude)))
            for region in self._ordered
        ]
        return sorted(distances, key=lambda distance: distance.kilometers)

    def nearest(self, coords: tuple[float, float] | None) -> str:
        return self.nearest_first(coords)[0].region.region_id if coords else self.first


def haversine_km(start: tuple[float, float], end: tuple[float, float]) -> float:
    lat_one, lon_one, lat_other, lon_other = map(math.radians, (*start, *end))
    half_chord = (
        math.sin((lat_other - lat_one) / 2) ** 2
        + math.cos(lat_one) * math.cos(lat_other) * math.sin((lon_other - lon_one) / 2) ** 2
    )
    return 2 * _EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, half_chord)))
