//! The operations of both planes by method and path.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use hosting_matchmaker::Operation;
use http::Method;
use matchit::{Match, Router};
use percent_encoding::percent_decode_str;

/// Name of requests without an operation, in metrics.
const UNROUTED: &str = "none";
const GET: &str = "GET";
const HEAD: &str = "HEAD";
/// Stands for an encoded slash during matching. If a client sends this character, it gets the replacement.
const ENCODED_SLASH: &str = "\u{1}";
const REPLACEMENT: &str = "\u{fffd}";

/// Python process that executes an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    Data,
    Control,
}

/// One value for each plane.
#[derive(Debug, Clone, Copy)]
pub struct ByPlane<T> {
    pub data: T,
    pub control: T,
}

impl<T> ByPlane<T> {
    pub fn of(&self, plane: Plane) -> &T {
        match plane {
            Plane::Data => &self.data,
            Plane::Control => &self.control,
        }
    }

    pub fn map<U>(self, new: impl Fn(T) -> U) -> ByPlane<U> {
        ByPlane { data: new(self.data), control: new(self.control) }
    }
}

/// One operation, as Python describes it.
pub struct RouteOptions {
    pub method: String,
    /// Path with parameters in braces, such as `/cloud/games/{game_id}`.
    pub template: String,
    pub slug: String,
    pub plane: Plane,
    pub body_bytes_max: usize,
    pub needs_token: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Number of the operation in [`Routes::slugs`].
    pub operation: usize,
    pub plane: Plane,
    pub body_bytes_max: usize,
    pub needs_token: bool,
}

pub struct Routes {
    by_method: BTreeMap<String, Router<Route>>,
    slugs: Vec<String>,
    /// Operations that change nothing.
    safe: HashSet<usize>,
}

impl Routes {
    /// Returns an error that names a template which is invalid or occurs twice.
    pub fn new(routes: impl IntoIterator<Item = RouteOptions>) -> Result<Routes, String> {
        let slugs = Operation::ALL.iter().map(|operation| operation.slug().to_owned()).collect();
        let mut table = Routes { by_method: BTreeMap::new(), slugs, safe: HashSet::new() };
        for route in routes {
            let known = table.slugs.iter().position(|slug| *slug == route.slug);
            let operation = known.unwrap_or_else(|| {
                table.slugs.push(route.slug.clone());
                table.slugs.len() - 1
            });
            let RouteOptions { method, template, plane, body_bytes_max, needs_token, .. } = route;
            if method == GET {
                table.safe.insert(operation);
            }
            let route = Route { operation, plane, body_bytes_max, needs_token };
            let inserted = table.by_method.entry(method).or_default().insert(&template, route);
            inserted.map_err(|error| format!("{template}: {error}"))?;
        }
        table.slugs.push(UNROUTED.to_owned());
        Ok(table)
    }

    /// Names of all operations. The first ones are those of [`Operation::ALL`], and the last one counts requests without
    /// an operation.
    pub fn slugs(&self) -> &[String] {
        &self.slugs
    }

    pub fn unrouted(&self) -> usize {
        self.slugs.len() - 1
    }

    /// Reports whether an operation changes nothing.
    pub fn is_safe(&self, operation: usize) -> bool {
        self.safe.contains(&operation)
    }

    pub fn find(&self, method: &Method, path: &str) -> Option<&Route> {
        let path = decoded(path);
        Some(match_at(self.router(method.as_str())?, &path)?.value)
    }

    /// Returns the name of an operation, and the parameters of its path.
    pub fn find_with_parameters(&self, method: &str, path: &str) -> Option<(&str, Vec<(String, String)>)> {
        let path = decoded(path);
        let found = match_at(self.router(method)?, &path)?;
        let parameter = |(name, value): (&str, &str)| (name.to_owned(), value.replace(ENCODED_SLASH, "/"));
        Some((&self.slugs[found.value.operation], found.params.iter().map(parameter).collect()))
    }

    /// Returns the methods of a path, in alphabetical order.
    pub fn methods(&self, path: &str) -> Vec<&str> {
        let path = decoded(path);
        let taking = self.by_method.iter().filter(|(_, router)| match_at(router, &path).is_some());
        taking.flat_map(|(method, _)| if method == GET { vec![GET, HEAD] } else { vec![method.as_str()] }).collect()
    }

    /// Every operation with GET also takes HEAD.
    fn router(&self, method: &str) -> Option<&Router<Route>> {
        self.by_method.get(if method == HEAD { GET } else { method })
    }
}

/// Returns the route of a path, if none of its parameters is empty.
fn match_at<'a, 'p>(router: &'a Router<Route>, path: &'p str) -> Option<Match<'a, 'p, &'a Route>> {
    let found = router.at(path).ok()?;
    found.params.iter().all(|(_, value)| !value.is_empty()).then_some(found)
}

/// Decodes a path. An encoded slash is part of a parameter.
fn decoded(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let path = path.replace("%2f", "%2F");
    let decoded = |part| percent_decode_str(part).decode_utf8_lossy().replace(ENCODED_SLASH, REPLACEMENT);
    Cow::Owned(path.split("%2F").map(decoded).collect::<Vec<_>>().join(ENCODED_SLASH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: &str, template: &str, slug: &str, plane: Plane) -> RouteOptions {
        let (method, template, slug) = (method.to_owned(), template.to_owned(), slug.to_owned());
        RouteOptions { method, template, slug, plane, body_bytes_max: 1, needs_token: false }
    }

    fn routes() -> Routes {
        Routes::new([
            route("POST", "/matchmaker/lobbies/find", "find", Plane::Data),
            route("GET", "/cloud/games/{game_id}", "get_game", Plane::Control),
            route("DELETE", "/cloud/games/{game}", "delete_game", Plane::Control),
            route("POST", "/cloud/games/validate", "validate_game", Plane::Control),
            route("GET", "/cloud/games/{game_id}/versions/{version_id}", "get_version", Plane::Control),
        ])
        .unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn slug(method: Method, path: &str) -> Option<String> {
        let routes = routes();
        routes.find(&method, path).map(|route| routes.slugs()[route.operation].clone())
    }

    #[test]
    fn requests_have_the_operation_of_their_path() {
        assert_eq!(slug(Method::POST, "/matchmaker/lobbies/find").as_deref(), Some("find"));
        assert_eq!(slug(Method::GET, "/cloud/games/1").as_deref(), Some("get_game"));
        assert_eq!(slug(Method::GET, "/cloud/games/validate").as_deref(), Some("get_game"));
        assert_eq!(slug(Method::HEAD, "/cloud/games/1").as_deref(), Some("get_game"));
        assert_eq!(slug(Method::HEAD, "/matchmaker/lobbies/find"), None);
        assert_eq!(slug(Method::POST, "/cloud/games/validate").as_deref(), Some("validate_game"));
        assert_eq!(slug(Method::GET, "/cloud/games/1/versions/2").as_deref(), Some("get_version"));
    }

    #[test]
    fn other_requests_have_none() {
        for path in ["/cloud/games/", "/cloud/games/1/", "/cloud/games//versions/2", "/cloud", "", "*"] {
            assert_eq!(slug(Method::GET, path), None, "{path}");
        }
        assert_eq!(slug(Method::PUT, "/cloud/games/1"), None);
    }

    #[test]
    fn encoded_paths_are_decoded_but_not_their_slashes() {
        assert_eq!(slug(Method::GET, "/cloud/g%61mes/a%2Fb").as_deref(), Some("get_game"));
        assert_eq!(slug(Method::GET, "/cloud%2fgames/a"), None);
        let parameter = |id: &str| {
            let path = format!("/cloud/games/{id}");
            routes().find_with_parameters("GET", &path).and_then(|(_, parameters)| Some(parameters.first()?.1.clone()))
        };
        assert_eq!(parameter("a%2Fb%2fc").as_deref(), Some("a/b/c"));
        assert_eq!(parameter("a%252Fb").as_deref(), Some("a%2Fb"));
        assert_eq!(parameter("%01%2F").as_deref(), Some("\u{fffd}/"), "a client cannot send the character for a slash");
        assert_eq!(slug(Method::GET, "/cloud/games/%ff").as_deref(), Some("get_game"));
    }

    #[test]
    fn methods_of_a_path_are_in_order() {
        assert_eq!(routes().methods("/cloud/games/1"), ["DELETE", "GET", "HEAD"]);
        assert_eq!(routes().methods("/cloud/games/validate"), ["DELETE", "GET", "HEAD", "POST"]);
        assert_eq!(routes().methods("/nothing"), [""; 0]);
    }

    #[test]
    fn operations_of_the_front_come_first() {
        let routes = routes();
        assert_eq!(routes.slugs()[Operation::Find as usize], "find");
        assert_eq!(routes.slugs()[routes.unrouted()], "none");
    }

    #[test]
    fn two_operations_of_one_path_are_a_problem() {
        let twice = ["a", "b"].map(|slug| route("GET", "/x/{id}", slug, Plane::Data));
        assert!(Routes::new(twice).is_err());
    }
}
