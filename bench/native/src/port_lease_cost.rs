//! Port leases of dynamic servers: time per lease of one port, by the used share of the pool.

use std::time::{Duration, Instant};

use hosting_core::{Id, LOCAL_NODE, LeaseRequest, PortExposure, PortRequest, Protocol, SessionCounting};

use crate::engine_fixture::{EngineFixture, NAMESPACE, REGION};
use crate::flags::Flags;
use crate::measurement::Measurement;
use crate::seeded_random::SeededRandom;
use crate::{Failure, failure};

const LEASES_PER_ROUND: usize = 64;
const QUARANTINE_MS: u64 = 3_600_000;

/// Runs `leases --taken SHARE`, the used share of all ports.
pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let share: f64 = flags.get("taken", 0.95)?;
    let leases: usize = flags.get("leases", 200_000)?;
    let mut rng = SeededRandom::new(flags.get("seed", 1)?);
    let mut fixture = EngineFixture::new()?;
    let count: usize = fixture.engine.port_counts(LOCAL_NODE)[0].iter().sum();
    let mut leased_numbers = vec![false; usize::from(u16::MAX) + 1];
    for _ in 0..(count as f64 * share) as usize {
        let number = lease(&mut fixture, random_server_id(&mut rng), rng.number())?;
        if std::mem::replace(&mut leased_numbers[usize::from(number)], true) {
            return Err(failure(format!("port {number} was given twice")));
        }
    }
    let mut rounds: Vec<Duration> = Vec::with_capacity(leases / LEASES_PER_ROUND + 1);
    while rounds.len() * LEASES_PER_ROUND < leases {
        rounds.push(run_round(&mut fixture, &mut rng, &leased_numbers)?);
    }
    let lease_count = rounds.len() * LEASES_PER_ROUND;
    let mean_ns = rounds.iter().sum::<Duration>().as_nanos() as f64 / lease_count as f64;
    rounds.sort_unstable();
    // The median ignores rounds with other load of the machine.
    let median_ns = rounds[rounds.len() / 2].as_nanos() as f64 / LEASES_PER_ROUND as f64;
    Ok(Measurement::new()
        .number("ns_per_lease", median_ns)
        .number("mean_ns_per_lease", mean_ns)
        .count("ports", count as u64)
        .count("leases", lease_count as u64))
}

/// Measures some leases, then ends them and advances service time past the quarantine of their ports.
fn run_round(fixture: &mut EngineFixture, rng: &mut SeededRandom, leased_ports: &[bool]) -> Result<Duration, Failure> {
    let owners: Vec<(Id, u64)> = (0..LEASES_PER_ROUND).map(|_| (random_server_id(rng), rng.number())).collect();
    let mut leased_numbers = Vec::with_capacity(LEASES_PER_ROUND);
    let started = Instant::now();
    for (owner, random) in &owners {
        leased_numbers.push(lease(fixture, *owner, *random)?);
    }
    let duration = started.elapsed();
    for number in &leased_numbers {
        if leased_ports[usize::from(*number)] {
            return Err(failure(format!("port {number} is another server's")));
        }
    }
    leased_numbers.sort_unstable();
    leased_numbers.dedup();
    if leased_numbers.len() != LEASES_PER_ROUND {
        return Err(failure("a port was given twice"));
    }
    for (owner, _) in owners {
        fixture.execute(|engine, context| engine.end_lease(context, owner))?;
        fixture.execute(|engine, context| engine.return_ports(context, owner, LOCAL_NODE))?;
    }
    fixture.now += QUARANTINE_MS;
    Ok(duration)
}

fn lease(fixture: &mut EngineFixture, owner: Id, random: u64) -> Result<u16, Failure> {
    let ports = [PortRequest {
        name: "game",
        protocol: Protocol::Tcp,
        exposure: PortExposure::Number(0),
        sends_proxy_header: false,
        counting: SessionCounting::Uncounted,
    }];
    let request = LeaseRequest { owner, namespace: NAMESPACE, region: REGION, ports: &ports, random };
    let leased = fixture.execute(|engine, context| engine.lease_ports(context, &request))?;
    match leased.ports.first().map(|port| port.exposure) {
        Some(PortExposure::Number(number)) => Ok(number),
        other => Err(failure(format!("a lease gave {other:?}"))),
    }
}

fn random_server_id(rng: &mut SeededRandom) -> Id {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&rng.number().to_be_bytes());
    id[8..].copy_from_slice(&rng.number().to_be_bytes());
    Id(id)
}
