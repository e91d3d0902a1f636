//! Port leases of dynamic servers: time per lease of one port, by the used share of the pool.

use std::time::{Duration, Instant};

use hosting_core::{Id, LeaseRequest, PortExposure, PortRequest, Protocol};

use crate::chance::Chance;
use crate::figures::Figures;
use crate::flags::Flags;
use crate::hall::{Hall, NAMESPACE, REGION};
use crate::{Failure, wrong};

const AT_ONCE: usize = 64;
const REST_MS: u64 = 3_600_000;

/// Runs `leases --taken SHARE`, the used share of all ports.
pub fn run(flags: &Flags) -> Result<Figures, Failure> {
    let share: f64 = flags.get("taken", 0.95)?;
    let leases: usize = flags.get("leases", 200_000)?;
    let mut chance = Chance::new(flags.get("seed", 1)?);
    let mut hall = Hall::new()?;
    let count: usize = hall.engine.port_counts()[0].iter().sum();
    let mut numbers = vec![false; usize::from(u16::MAX) + 1];
    for _ in 0..(count as f64 * share) as usize {
        let number = lease(&mut hall, server(&mut chance), chance.number())?;
        if std::mem::replace(&mut numbers[usize::from(number)], true) {
            return Err(wrong(format!("port {number} was given twice")));
        }
    }
    let mut rounds: Vec<Duration> = Vec::with_capacity(leases / AT_ONCE + 1);
    while rounds.len() * AT_ONCE < leases {
        rounds.push(round(&mut hall, &mut chance, &numbers)?);
    }
    let drawn = rounds.len() * AT_ONCE;
    let mean_ns = rounds.iter().sum::<Duration>().as_nanos() as f64 / drawn as f64;
    rounds.sort_unstable();
    // The median ignores rounds with other load of the machine.
    let median_ns = rounds[rounds.len() / 2].as_nanos() as f64 / AT_ONCE as f64;
    Ok(Figures::new()
        .number("ns_per_lease", median_ns)
        .number("mean_ns_per_lease", mean_ns)
        .count("ports", count as u64)
        .count("leases", drawn as u64))
}

/// Measures some leases, then ends them and advances service time past the quarantine of their ports.
fn round(hall: &mut Hall, chance: &mut Chance, taken: &[bool]) -> Result<Duration, Failure> {
    let wishes: Vec<(Id, u64)> = (0..AT_ONCE).map(|_| (server(chance), chance.number())).collect();
    let mut numbers = Vec::with_capacity(AT_ONCE);
    let began = Instant::now();
    for (owner, random) in &wishes {
        numbers.push(lease(hall, *owner, *random)?);
    }
    let took = began.elapsed();
    for number in &numbers {
        if taken[usize::from(*number)] {
            return Err(wrong(format!("port {number} is another server's")));
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.len() != AT_ONCE {
        return Err(wrong("a port was given twice"));
    }
    for (owner, _) in wishes {
        hall.ask(|engine, context| engine.end_lease(context, owner))?;
        hall.ask(|engine, context| engine.return_ports(context, owner))?;
    }
    hall.now += REST_MS;
    Ok(took)
}

fn lease(hall: &mut Hall, owner: Id, random: u64) -> Result<u16, Failure> {
    let ports = [PortRequest { name: "game", protocol: Protocol::Tcp, exposure: PortExposure::Number(0) }];
    let wish = LeaseRequest { owner, namespace: NAMESPACE, region: REGION, ports: &ports, random };
    let leased = hall.ask(|engine, context| engine.lease_ports(context, &wish))?;
    match leased.first().map(|port| port.exposure) {
        Some(PortExposure::Number(number)) => Ok(number),
        other => Err(wrong(format!("a lease gave {other:?}"))),
    }
}

fn server(chance: &mut Chance) -> Id {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&chance.number().to_be_bytes());
    id[8..].copy_from_slice(&chance.number().to_be_bytes());
    Id(id)
}
