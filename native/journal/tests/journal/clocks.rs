//! Service time over steps of the wall clock, restarts and reboots.

use std::sync::atomic::Ordering;

use hosting_journal::{OpenError, RealTimeAndRandom, TimeAndRandom};

use crate::disk::Disk;
use crate::world::World;

const DAY_MS: u64 = 86_400_000;
const OTHER_BOOT: &str = "9a1b2c3d-0000-4000-8000-00000000beef";

fn stopped() -> (World, u64) {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    world.time_and_random.pass(60_000);
    world.write(1, 100);
    let service_ms = world.journal().clock().service_ms();
    world.drop_journal();
    (world, service_ms)
}

fn opened_service_ms(world: &mut World) -> u64 {
    let recovered = world.open().unwrap();
    assert_eq!(recovered.service_ms, world.journal().clock().service_ms());
    recovered.service_ms
}

#[test]
fn wall_clock_is_ignored_within_one_boot() {
    for step in [DAY_MS, DAY_MS.wrapping_neg()] {
        let (mut world, service_ms) = stopped();
        world.time_and_random.wall_ms.fetch_add(step, Ordering::Relaxed);
        world.time_and_random.boot_ms.fetch_add(700, Ordering::Relaxed);
        assert_eq!(opened_service_ms(&mut world), service_ms + 700);
        world.time_and_random.wall_ms.fetch_add(step, Ordering::Relaxed);
        assert_eq!(world.journal().clock().service_ms(), service_ms + 700);
        world.time_and_random.boot_ms.fetch_add(5, Ordering::Relaxed);
        assert_eq!(world.journal().clock().service_ms(), service_ms + 705);
    }
}

#[test]
fn wall_clock_measures_a_reboot() {
    let (mut world, service_ms) = stopped();
    world.reboot(OTHER_BOOT, 40);
    world.time_and_random.wall_ms.fetch_add(90_000, Ordering::Relaxed);
    assert_eq!(opened_service_ms(&mut world), service_ms + 90_000);
    world.time_and_random.pass(11);
    assert_eq!(world.journal().clock().service_ms(), service_ms + 90_011);
    world.write(1, 100);
    world.drop_journal();
    world.time_and_random.wall_ms.fetch_add(DAY_MS, Ordering::Relaxed);
    world.time_and_random.boot_ms.fetch_add(3, Ordering::Relaxed);
    assert_eq!(opened_service_ms(&mut world), service_ms + 90_014);
}

#[test]
fn wall_clock_step_back_over_a_reboot_adds_no_time() {
    let (mut world, service_ms) = stopped();
    world.reboot(OTHER_BOOT, 0);
    world.time_and_random.wall_ms.fetch_sub(DAY_MS, Ordering::Relaxed);
    assert_eq!(opened_service_ms(&mut world), service_ms);
}

#[test]
fn service_time_never_runs_back() {
    let (mut world, service_ms) = stopped();
    world.time_and_random.boot_ms.fetch_sub(30_000, Ordering::Relaxed);
    assert_eq!(opened_service_ms(&mut world), service_ms);
    world.time_and_random.boot_ms.fetch_add(10, Ordering::Relaxed);
    assert_eq!(world.journal().clock().service_ms(), service_ms + 10);
    world.time_and_random.boot_ms.fetch_sub(9, Ordering::Relaxed);
    assert_eq!(world.journal().clock().service_ms(), service_ms + 10);
}

#[test]
fn heartbeat_records_clocks_after_an_idle_second() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    let opened = world.journal().stats().batches;
    let heartbeat_after = |world: &mut World, ms: u64| {
        world.time_and_random.pass(ms);
        world.journal().heartbeat();
        world.commit();
        world.journal().stats().batches - opened
    };
    assert_eq!(heartbeat_after(&mut world, 999), 0);
    assert_eq!(heartbeat_after(&mut world, 1), 1);
    assert_eq!(heartbeat_after(&mut world, 600), 1);
    world.write(1, 50);
    assert_eq!(heartbeat_after(&mut world, 600), 2, "the event recorded them");
    assert_eq!(heartbeat_after(&mut world, 400), 3);
    let service_ms = world.journal().clock().service_ms();
    world.drop_journal();
    world.disk.lose_power();
    // After an idle hour and a reboot, service time continues from the last heartbeat.
    world.reboot(OTHER_BOOT, 1);
    world.time_and_random.wall_ms.fetch_add(3_600_000, Ordering::Relaxed);
    assert_eq!(opened_service_ms(&mut world), service_ms + 3_600_000);
}

#[test]
fn heartbeat_with_a_pending_event_adds_no_batch() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    world.time_and_random.pass(5_000);
    world.submit(10);
    world.journal().heartbeat();
    world.commit();
    assert_eq!(world.journal().stats().batches, 2, "the opening one and the event's");
}

#[test]
fn invalid_boot_id_error_names_its_file() {
    let mut world = World::new(Disk::new(0));
    world.reboot("not a boot id", 1);
    let error = world.open().unwrap_err();
    assert!(matches!(error, OpenError::BootId { .. }), "{error}");
    assert!(error.to_string().contains(&world.options.boot_id_path.display().to_string()), "{error}");
    world.options.boot_id_path = "/nowhere/boot_id".into();
    assert!(world.open().unwrap_err().to_string().contains("/nowhere/boot_id"));
}

#[test]
fn real_clocks_advance() {
    let time_and_random = RealTimeAndRandom;
    let (boot_ms, elapsed_ns) = (time_and_random.boot_ms(), time_and_random.elapsed_ns());
    assert!(boot_ms > 0 && time_and_random.wall_ms() > 1_600_000_000_000);
    assert!(time_and_random.boot_ms() >= boot_ms && time_and_random.elapsed_ns() >= elapsed_ns);
    assert_ne!(time_and_random.random().unwrap(), time_and_random.random().unwrap());
}
