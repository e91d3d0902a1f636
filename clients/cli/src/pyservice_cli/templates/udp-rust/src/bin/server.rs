//! Game server. A datagram of a player is `TOKEN X Y`, and each one of the server has the star and all players.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use game::hosting::{LobbyServer, random};

const TICK: Duration = Duration::from_millis(50);
const SILENCE: Duration = Duration::from_secs(5);

struct Player {
    address: SocketAddr,
    place: [i32; 2],
    score: u32,
    seen: Instant,
}

fn main() -> std::io::Result<()> {
    let mut lobby = LobbyServer::from_environment();
    let socket = UdpSocket::bind((lobby.bind_address(), lobby.port("game")))?;
    socket.set_read_timeout(Some(TICK))?;
    let (mut players, mut star, mut buffer) = (HashMap::<String, Player>::new(), [300, 200], [0; 256]);
    let mut tick = Instant::now();
    lobby.ready();
    loop {
        if tick.elapsed() >= TICK {
            tick = Instant::now();
            for (token, address) in lobby.confirmed() {
                players.insert(token, Player { address, place: [0, 0], score: 0, seen: tick });
            }
            for (token, _) in players.extract_if(|_, player| player.seen.elapsed() > SILENCE) {
                lobby.release(&token);
            }
            let lines =
                players.values().map(|player| format!("\n{} {} {}", player.place[0], player.place[1], player.score));
            let state = format!("{} {}{}", star[0], star[1], lines.collect::<String>());
            for player in players.values() {
                socket.send_to(state.as_bytes(), player.address).ok();
            }
        }
        let Ok((size, address)) = socket.recv_from(&mut buffer) else { continue };
        let text = String::from_utf8_lossy(&buffer[..size]);
        let words: Vec<&str> = text.split_whitespace().collect();
        let [token, x, y] = words[..] else { continue };
        let (Ok(x), Ok(y)) = (x.parse::<i32>(), y.parse::<i32>()) else { continue };
        let Some(player) = players.get_mut(token) else {
            lobby.confirm(token, address);
            continue;
        };
        (player.address, player.seen) = (address, Instant::now());
        player.place = [x.clamp(0, 600), y.clamp(0, 400)];
        if player.place[0].abs_diff(star[0]) + player.place[1].abs_diff(star[1]) < 20 {
            player.score += 1;
            star = [(random() % 600) as i32, (random() % 400) as i32];
        }
    }
}
