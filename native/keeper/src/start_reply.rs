//! Replies of the launcher to its caller.

use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Maximum length of the message in a reply. A short reply is written to the pipe atomically.
const MESSAGE_BYTES_MAX: usize = 1024;

pub struct StartReply {
    pub replies: File,
    pub folder: PathBuf,
}

impl StartReply {
    pub fn send(mut self, status: u8, message: &str) {
        let mut record = status.to_string().into_bytes();
        record.push(0);
        record.extend_from_slice(self.folder.as_os_str().as_bytes());
        record.push(0);
        record.extend(message.bytes().filter(|&byte| byte != 0).take(MESSAGE_BYTES_MAX));
        record.push(0);
        let _ = self.replies.write_all(&record);
    }
}
