//! Command line of `hosting-edge-guard`.

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "hosting-edge-guard <config>             serves with the settings of a JSON file
hosting-edge-guard <config> --replace   takes over from the process that has the folder
hosting-edge-guard <config> --check     reports all problems and warnings of the settings
hosting-edge-guard ca <folder> <name…>  makes a certificate authority and a certificate, for development
hosting-edge-guard certificates <folder> <days> <subfolder=name…>
                                        makes certificates for the service and its nodes";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["ca", folder, ref names @ ..] if !names.is_empty() => {
            hosting_edge_guard::certificate_authority::create_certificates(folder, names)
        }
        ["certificates", folder, days, ref targets @ ..] if !targets.is_empty() => {
            hosting_edge_guard::certificate_authority::create_node_certificates(folder, days, targets)
        }
        [config, "--check"] => hosting_edge_guard::entrypoint::check_config(Path::new(config)),
        [config, "--replace"] => hosting_edge_guard::entrypoint::run(Path::new(config), true),
        [config] if !config.starts_with('-') => hosting_edge_guard::entrypoint::run(Path::new(config), false),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(64)
        }
    }
}
