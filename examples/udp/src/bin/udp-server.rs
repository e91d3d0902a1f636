//! The server as a process: environment and flags in, exit status out.

use std::io;
use std::net::UdpSocket;
use std::process::ExitCode;

use hosting_example_udp::calls::Desk;
use hosting_example_udp::game::{Game, Over};
use hosting_example_udp::http::Service;
use hosting_example_udp::protocol::Ending;
use hosting_example_udp::settings::{Settings, USAGE};
use hosting_example_udp::system::{Waker, say};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let settings = match Settings::read(&words, |name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match serve(settings) {
        Ok(Over::Asked) => ended("asked to stop", ExitCode::SUCCESS),
        Ok(Over::LobbyEnded) => ended("the hosting service has ended this lobby", ExitCode::SUCCESS),
        Ok(Over::NotOurs(code)) => {
            eprintln!("the hosting service does not take the lobby token: {code}");
            ExitCode::FAILURE
        }
        Ok(Over::Failed) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: Settings) -> io::Result<Over> {
    let waker = Waker::new()?;
    waker.end_on_signals()?;
    let place = (settings.address, settings.port);
    let socket = UdpSocket::bind(place)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot bind {} {}: {error}", place.0, place.1)))?;
    say(&format!("listening on {}, lobby {}", socket.local_addr()?, settings.lobby_id));
    let service = Service::new(settings.api, &settings.lobby_token);
    let desk = Desk::open(service, waker.clone())?;
    let mut game = Game::new(socket, waker, desk, settings.places, settings.silence)?;
    let over = game.play()?;
    game.end(if over == Over::Asked { Ending::ServerStops } else { Ending::LobbyEnded });
    Ok(over)
}

fn ended(why: &str, code: ExitCode) -> ExitCode {
    say(&format!("ended: {why}"));
    code
}
