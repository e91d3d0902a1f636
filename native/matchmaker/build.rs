//! Generates the messages of requests and responses from the proto files, with cargo alone.

use std::path::Path;

use protox::file::{File, FileResolver};

const PROTO_FOLDER: &str = "../../proto";
const MATCHMAKER: &str = "hosting/v1/matchmaker.proto";
const LOBBY: &str = "hosting/v1/lobby.proto";
const MESSAGES: [&str; 29] = [
    "Captcha",
    "CaptchaAnswer",
    "Coordinates",
    "Distance",
    "FindLobbyRequest",
    "FindLobbyResponse",
    "GameModeInfo",
    "GameModeStatistics",
    "GetLobbyStateRequest",
    "GetLobbyStateResponse",
    "GetPlayerStatisticsResponse",
    "HeartbeatRequest",
    "JoinLobbyRequest",
    "ListLobbiesRequest",
    "ListLobbiesResponse",
    "ListRegionsResponse",
    "Lobby",
    "LobbyInfo",
    "Player",
    "PlayerConnectedRequest",
    "PlayerDisconnectedRequest",
    "PlayerTokens",
    "Port",
    "PortRange",
    "Region",
    "RegionInfo",
    "RegionStatistics",
    "SetLobbyClosedRequest",
    "SetLobbyStateRequest",
];

/// Messages that are read from JSON, or from a query.
const JSON_REQUESTS: [&str; 9] = [
    "FindLobbyRequest",
    "GetLobbyStateRequest",
    "HeartbeatRequest",
    "JoinLobbyRequest",
    "ListLobbiesRequest",
    "PlayerConnectedRequest",
    "PlayerDisconnectedRequest",
    "SetLobbyClosedRequest",
    "SetLobbyStateRequest",
];
/// Messages that are written as JSON.
const JSON_RESPONSES: [&str; 14] = [
    "Coordinates",
    "Distance",
    "FindLobbyResponse",
    "GameModeInfo",
    "GameModeStatistics",
    "GetPlayerStatisticsResponse",
    "ListRegionsResponse",
    "Lobby",
    "Player",
    "Port",
    "PortRange",
    "Region",
    "RegionInfo",
    "RegionStatistics",
];
/// Fields with another form in JSON, and the functions that read it.
const JSON_FORMS: [(&str, &str); 3] = [
    ("captcha", "crate::requests::captcha"),
    ("verification_data", "crate::requests::raw_json"),
    ("HeartbeatRequest.player_tokens", "crate::requests::player_list"),
];

/// Reads the messages of a proto file without its options, so that no file with option types is needed.
struct MessagesOnly;

impl FileResolver for MessagesOnly {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let source = std::fs::read_to_string(Path::new(PROTO_FOLDER).join(name))
            .map_err(|error| protox::Error::new(std::io::Error::new(error.kind(), format!("{name}: {error}"))))?;
        let mut file = File::from_source(name, &source)?.file_descriptor_proto().clone();
        file.options = None;
        file.service.clear();
        file.source_code_info = None;
        file.dependency.retain(|dependency| dependency == LOBBY);
        file.message_type.retain(|message| MESSAGES.contains(&message.name()));
        for message in &mut file.message_type {
            message.options = None;
            message.field.iter_mut().for_each(|field| field.options = None);
        }
        Ok(File::from_file_descriptor_proto(file))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    for file in [MATCHMAKER, LOBBY] {
        println!("cargo:rerun-if-changed={PROTO_FOLDER}/{file}");
    }
    let mut compiler = protox::Compiler::with_file_resolver(MessagesOnly);
    compiler.include_imports(true).open_file(MATCHMAKER)?;
    let mut config = prost_build::Config::new();
    // Sorted, because the bytes of a message identify a repeated request.
    config.btree_map(["."]);
    for message in JSON_REQUESTS {
        config.type_attribute(message, "#[derive(serde::Deserialize)] #[serde(deny_unknown_fields, default)]");
    }
    for message in JSON_RESPONSES {
        config.type_attribute(message, "#[derive(serde::Serialize)]");
    }
    config.field_attribute("FindLobbyResponse.players", "#[serde(skip_serializing_if = \"Vec::is_empty\")]");
    for (field, function) in JSON_FORMS {
        config.field_attribute(field, format!("#[serde(deserialize_with = \"{function}\")]"));
    }
    config.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
