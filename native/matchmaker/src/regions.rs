//! Regions of the service, and their distances from a client.

use std::collections::HashMap;

const EARTH_RADIUS_KM: f64 = 6371.0088;

pub struct Region {
    pub id: String,
    pub provider_display_name: String,
    pub display_name: String,
    /// Latitude and longitude in degrees.
    pub coordinates: (f64, f64),
}

#[cfg(test)]
impl Region {
    pub fn example(id: &str, coordinates: (f64, f64)) -> Region {
        let name = |kind: &str| format!("{kind} of {id}");
        Region { id: id.into(), provider_display_name: name("provider"), display_name: name("name"), coordinates }
    }
}

/// All regions in the order of the operator.
pub struct Regions {
    ordered: Vec<Region>,
    by_id: HashMap<String, usize>,
}

impl Regions {
    pub fn new(ordered: Vec<Region>) -> Regions {
        let by_id = ordered.iter().enumerate().map(|(number, region)| (region.id.clone(), number)).collect();
        Regions { ordered, by_id }
    }

    pub fn contains(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    /// Returns the display name of a region, or its id if the operator has removed the region.
    pub fn display_name<'a>(&'a self, id: &'a str) -> &'a str {
        self.by_id.get(id).map_or(id, |number| &self.ordered[*number].display_name)
    }

    /// Returns the regions with their distances in kilometers, nearest first. Without coordinates, all distances are 0.
    pub fn nearest_first(&self, coordinates: Option<(f64, f64)>) -> Vec<(&Region, f64)> {
        let distance = |region: &Region| coordinates.map_or(0.0, |start| haversine_km(start, region.coordinates));
        let mut distances: Vec<_> = self.ordered.iter().map(|region| (region, distance(region))).collect();
        distances.sort_by(|one, other| one.1.total_cmp(&other.1));
        distances
    }

    /// Returns the nearest region, or the first one without coordinates.
    pub fn nearest(&self, coordinates: Option<(f64, f64)>) -> Option<&str> {
        let nearest = match coordinates {
            Some(_) => self.nearest_first(coordinates).first().map(|(region, _)| *region),
            None => self.ordered.first(),
        };
        nearest.map(|region| &*region.id)
    }
}

fn haversine_km(start: (f64, f64), end: (f64, f64)) -> f64 {
    let [lat_one, lon_one, lat_other, lon_other] = [start.0, start.1, end.0, end.1].map(f64::to_radians);
    let half_chord = ((lat_other - lat_one) / 2.0).sin().powi(2)
        + lat_one.cos() * lat_other.cos() * ((lon_other - lon_one) / 2.0).sin().powi(2);
    2.0 * EARTH_RADIUS_KM * half_chord.sqrt().min(1.0).asin()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BERLIN: (f64, f64) = (52.52, 13.405);
    const PARIS: (f64, f64) = (48.8566, 2.3522);

    fn regions() -> Regions {
        Regions::new(vec![
            Region::example("us", (40.7128, -74.006)),
            Region::example("paris", PARIS),
            Region::example("paris-2", PARIS),
        ])
    }

    fn order(coordinates: Option<(f64, f64)>) -> Vec<(String, i64)> {
        let regions = regions();
        let nearest = regions.nearest_first(coordinates);
        nearest.into_iter().map(|(region, distance)| (region.id.clone(), distance.round() as i64)).collect()
    }

    #[test]
    fn distances_are_those_on_the_sphere() {
        assert_eq!(haversine_km(BERLIN, PARIS).round(), 877.0);
        assert_eq!(haversine_km(PARIS, PARIS), 0.0);
        let half = std::f64::consts::PI * EARTH_RADIUS_KM;
        assert!((haversine_km((0.0, 0.0), (0.0, 180.0)) - half).abs() < 1e-6, "the other side");
    }

    #[test]
    fn nearest_regions_come_first() {
        let names = |order: Vec<(String, i64)>| order.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(names(order(Some(BERLIN))), ["paris", "paris-2", "us"], "the operator's order at one distance");
        assert_eq!(order(Some(BERLIN))[0].1, 877);
        assert_eq!(names(order(None)), ["us", "paris", "paris-2"]);
        assert!(order(None).iter().all(|(_, distance)| *distance == 0));
        assert_eq!((regions().nearest(Some(BERLIN)), regions().nearest(None)), (Some("paris"), Some("us")));
        assert_eq!(Regions::new(Vec::new()).nearest(Some(BERLIN)), None);
    }

    #[test]
    fn removed_region_has_its_id_as_name() {
        assert_eq!((regions().display_name("us"), regions().display_name("gone")), ("name of us", "gone"));
        assert!(regions().contains("us") && !regions().contains("gone"));
    }
}
