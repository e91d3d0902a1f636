//! Bot: finds a lobby, and moves to the star. `pyservice play --bots 4` starts four of them.

use std::error::Error;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use game::hosting::find;

const REPEAT: Duration = Duration::from_millis(250);
const SILENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let (host, port, token) = find("sky")?;
    println!("plays at {host}:{port}");
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect((host.as_str(), port))?;
    socket.set_read_timeout(Some(REPEAT))?;
    let (mut place, mut buffer, mut heard) = ([0_i32, 0], [0; 1500], Instant::now());
    while heard.elapsed() < SILENCE {
        // Without an answer, the same datagram goes again: the network may have lost it.
        socket.send(format!("{token} {} {}", place[0], place[1]).as_bytes()).ok();
        let Ok(size) = socket.recv(&mut buffer) else { continue };
        heard = Instant::now();
        let text = String::from_utf8_lossy(&buffer[..size]);
        let star: Vec<i32> = text.split_whitespace().take(2).filter_map(|word| word.parse().ok()).collect();
        for (axis, target) in star.iter().enumerate() {
            place[axis] += (target - place[axis]).clamp(-10, 10);
        }
    }
    Err("the server is silent".into())
}
