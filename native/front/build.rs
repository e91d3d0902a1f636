//! Generates the messages of plain gRPC calls from the proto files, with cargo alone.

use std::path::Path;

use protox::file::{File, FileResolver};

const PROTO_FOLDER: &str = "../../proto";
const MATCHMAKER: &str = "hosting/v1/matchmaker.proto";
const LOBBY: &str = "hosting/v1/lobby.proto";
const MESSAGES: [&str; 14] = [
    "Captcha",
    "CaptchaAnswer",
    "FindLobbyRequest",
    "FindLobbyResponse",
    "HeartbeatRequest",
    "JoinLobbyRequest",
    "Lobby",
    "Player",
    "PlayerConnectedRequest",
    "PlayerDisconnectedRequest",
    "PlayerTokens",
    "Port",
    "PortRange",
    "Region",
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
    // Sorted, because Python writes the entries of a map in this order.
    prost_build::Config::new().btree_map(["."]).compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
