//! Generates messages, client and (for tests) server of `routes.proto`, with cargo alone.

use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver};

/// Stub of the validation rules in `routes.proto`, so that the file parses. The data plane checks the rules.
const RULES: &str = r#"
syntax = "proto2";
package buf.validate;
import "google/protobuf/descriptor.proto";
extend google.protobuf.FieldOptions { optional FieldRules field = 1159; }
message FieldRules {
  optional bool required = 25;
  optional UInt32Rules uint32 = 5;
  optional StringRules string = 14;
  optional BytesRules bytes = 15;
  optional RepeatedRules repeated = 18;
}
message UInt32Rules { optional uint32 lte = 3; }
message BytesRules { optional uint64 max_len = 3; }
message StringRules { optional uint64 max_bytes = 5; }
message RepeatedRules { optional uint64 max_items = 2; }
"#;

struct Rules;

impl FileResolver for Rules {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        if name != "buf/validate/validate.proto" {
            return Err(protox::Error::file_not_found(name));
        }
        File::from_source(name, RULES)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTO: &str = "hosting/internal/v1/routes.proto";
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../proto/{PROTO}");
    let mut files = ChainFileResolver::new();
    files.add(IncludeFileResolver::new("../../proto".into()));
    files.add(GoogleFileResolver::new());
    files.add(Rules);
    let mut compiler = protox::Compiler::with_file_resolver(files);
    compiler.include_imports(true).include_source_info(true).open_file(PROTO)?;
    let mut set = compiler.file_descriptor_set();
    set.file.retain(|file| file.package() == "hosting.internal.v1");
    for option in set.file.iter_mut().flat_map(|file| &mut file.message_type).flat_map(|message| &mut message.field) {
        option.options = None;
    }
    tonic_prost_build::configure().emit_rerun_if_changed(false).compile_fds(set)?;
    Ok(())
}
