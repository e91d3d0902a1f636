//! A game server that needs nothing of the system: the only file of a container's root.
//!
//! It says what it was given, then does the words of PLAY, and then gives back what streams send it, on every port.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use std::{env, fs, io, process, thread};

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn unshare(flags: i32) -> i32;
}

const TERM: i32 = 15;
const IGNORE: usize = 1;
const NEW_USER: i32 = 0x1000_0000;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

fn main() {
    println!("begins {}", env::args().skip(1).collect::<Vec<_>>().join(" "));
    for word in env::var("PLAY").unwrap_or_default().split_whitespace() {
        let (what, about) = word.split_once(':').unwrap_or((word, ""));
        play(what, about);
    }
    let listeners: Vec<_> = ports().into_iter().map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
    let threads = listeners.into_iter().map(|listener| {
        let listener = listener.expect("an assigned port");
        thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(thread::spawn(|| echo(stream)))))
    });
    println!("listens");
    for thread in threads.collect::<Vec<_>>() {
        thread.join().expect("a listener that goes on");
    }
    loop {
        thread::park();
    }
}

fn play(what: &str, about: &str) {
    match what {
        "crash" => process::abort(),
        "exit" => process::exit(about.parse().expect("a code")),
        // SAFETY: no handler of ours is called.
        "ignore-sigterm" => drop(unsafe { signal(TERM, IGNORE) }),
        "env" => {
            for (name, value) in env::vars().collect::<BTreeMap<_, _>>() {
                println!("{name}={value}");
            }
        }
        "at" => println!("at {}", env::current_dir().expect("a folder").display()),
        "identity" => {
            let status = fs::read_to_string("/proc/self/status").expect("its own status");
            for line in status.lines().filter(|line| {
                ["Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "SigBlk"]
                    .iter()
                    .any(|name| line.starts_with(name))
            }) {
                println!("{}", line.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
        "see" => match fs::read_dir(about) {
            Ok(found) => {
                let mut names: Vec<_> =
                    found.flatten().map(|one| one.file_name().to_string_lossy().into_owned()).collect();
                names.sort();
                println!("see {about} {}", names.join(" "));
            }
            Err(error) => println!("see {about} {:?}", error.kind()),
        },
        "read" => match fs::read_to_string(about) {
            Ok(text) => println!("read {about} {}", text.trim()),
            Err(error) => println!("read {about} {:?}", error.kind()),
        },
        "write" => println!(
            "write {about} {}",
            fs::write(about, "written").map_or_else(|error| format!("{:?}", error.kind()), |()| "written".into())
        ),
        // SAFETY: it has one thread.
        "rights" => println!("rights {}", unsafe { unshare(NEW_USER) }),
        "connect" => {
            let address = about.parse().expect("an address");
            report("connect", about, TcpStream::connect_timeout(&address, CONNECT_TIMEOUT));
        }
        "send" => report("send", about, UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", about))),
        "bind" => {
            report("bind-tcp", about, TcpListener::bind(about));
            report("bind-udp", about, UdpSocket::bind(about));
        }
        "eat" => {
            let mut eaten = Vec::new();
            loop {
                eaten.push(vec![1_u8; 1 << 20]);
            }
        }
        _ => {}
    }
}

/// Prints 0, or the error number of a failed use of the network.
fn report<T>(what: &str, address: &str, result: io::Result<T>) {
    let number = result.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0);
    println!("{what} {address} {number}");
}

fn ports() -> Vec<u16> {
    env::vars().filter(|(name, _)| name.starts_with("PORT_")).map(|(_, value)| value.parse().expect("a port")).collect()
}

fn echo(mut stream: TcpStream) {
    let mut piece = [0; 4096];
    while let Ok(size) = stream.read(&mut piece) {
        if size == 0 || stream.write_all(&piece[..size]).is_err() {
            return;
        }
    }
}
