//! Runs on a disk that is full, small, or hangs.

use std::fs;
use std::io::Read;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::run_fixture::{NONE, Run, needs_root, wait_until};

/// A small tmpfs, unmounted on drop.
struct Disk {
    place: TempDir,
}

impl Disk {
    fn of_bytes(size: u64) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        let options = std::ffi::CString::new(format!("size={size},mode=755")).expect("text");
        mount("tmpfs", place.path(), "tmpfs", MountFlags::empty(), Some(options.as_c_str())).expect("mounted");
        Self { place }
    }

    fn run(&self, script: &str) -> Run {
        self.run_with(script, &[])
    }

    fn run_with(&self, script: &str, more: &[&str]) -> Run {
        let folder = TempDir::new_in(self.place.path()).expect("a folder");
        Run::with_folder(NONE, folder, &["/bin/sh", "-c", script], &[&["log_bytes_max=67108864"], more].concat())
    }

    fn free_bytes(&self) -> u64 {
        let about = rustix::fs::statvfs(self.place.path()).expect("a disk");
        about.f_bavail * about.f_frsize
    }

    /// Writes a file that uses all free space.
    fn fill(&self) -> std::path::PathBuf {
        let filler_file = self.place.path().join("ballast");
        let mut file = fs::File::create(&filler_file).expect("ballast");
        let page = [0; 4096];
        while std::io::Write::write_all(&mut file, &page).is_ok() {}
        filler_file
    }
}

/// Truncates and removes a file, because a child process of another test may still have the file open.
fn free_ballast(filler_file: &Path) {
    fs::File::options().write(true).open(filler_file).and_then(|file| file.set_len(0)).expect("room again");
    fs::remove_file(filler_file).expect("removed");
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(self.place.path(), UnmountFlags::DETACH);
    }
}

/// Returns the numbers in the keeper's log lines that end with `suffix`.
fn reported_counts(log: &[String], suffix: &str) -> Vec<u64> {
    let number = |line: &String| line.strip_prefix("e [")?.strip_suffix(suffix)?.parse().ok();
    log.iter().filter_map(number).collect()
}

const OMITTED_SUFFIX: &str = " lines omitted: not enough disk space]";
/// Bytes of the disk reserve that a keeper can use between two checks, including its other files.
const RESERVE_OVERSHOOT_BYTES: u64 = 256 << 10;

fn touch_command(path: &Path) -> String {
    format!("echo {} >&2; : > {}", "x".repeat(9), path.display())
}

#[test]
fn full_disk_never_blocks_the_program_and_lost_lines_are_counted() {
    if !needs_root("a full disk") {
        return;
    }
    let disk = Disk::of_bytes(4 << 20);
    let outside = tempfile::tempdir().expect("a folder");
    let (full, wrote) = (outside.path().join("full"), outside.path().join("wrote"));
    let script = format!(
        "echo first; until [ -e {} ]; do sleep 0.01; done; yes | head -n 3000000; {}",
        full.display(),
        touch_command(&wrote)
    );
    let run = disk.run(&script).started();
    run.wait_for_line("o first");
    let filler_file = disk.fill();
    fs::write(&full, "").expect("written");
    // The program wrote many times the size of a pipe.
    wait_until(|| wrote.exists(), "it writes as if there was no disk");
    let keeper = run.number("keeper_pid");
    wait_until(|| crate::run_fixture::descendants(keeper).is_empty(), "it ends");
    assert_eq!(run.state()["status"], "running", "the run ended, but its end is not recorded");
    free_ballast(&filler_file);
    let state = run.wait_ended();
    assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("0", "exited"));
    let log = run.log();
    let lost: u64 = log
        .iter()
        .filter_map(|line| line.strip_prefix("e [")?.strip_suffix(" lines lost: the disk did not accept them]"))
        .map(|count| count.parse::<u64>().expect("a number"))
        .sum();
    let written_lines = log.iter().filter(|line| ["o y", "e xxxxxxxxx"].contains(&line.as_str())).count() as u64;
    assert!(lost > 0, "{:?}", log.last());
    assert_eq!(written_lines + lost, 3_000_001);
}

#[test]
fn log_stops_at_the_disk_reserve_and_reports_left_out_lines_once() {
    if !needs_root("a small disk") {
        return;
    }
    let disk = Disk::of_bytes(16 << 20);
    let reserve = 6 << 20;
    let outside = tempfile::tempdir().expect("a folder");
    let (wrote, go) = (outside.path().join("wrote"), outside.path().join("go"));
    let script = format!(
        "echo first; yes | head -n 3000000; {}; until [ -e {} ]; do sleep 0.01; done; echo after",
        touch_command(&wrote),
        go.display()
    );
    let filler_file = disk.place.path().join("ballast");
    fs::write(&filler_file, vec![0; 4 << 20]).expect("ballast");
    let run = disk.run_with(&script, &[&format!("reserve_bytes={reserve}")]).started();
    wait_until(|| wrote.exists(), "it writes as if there was no disk");
    assert!(disk.free_bytes() >= reserve - RESERVE_OVERSHOOT_BYTES, "{} of {reserve} are free", disk.free_bytes());
    assert!(run.log_bytes() > 4 << 20, "up to the reserve it is written");
    free_ballast(&filler_file);
    wait_until(
        || !reported_counts(&run.log(), OMITTED_SUFFIX).is_empty(),
        "the loss is reported while the program is silent",
    );
    fs::write(&go, "").expect("written");
    assert_eq!(run.wait_ended()["exit_code"], "0");
    let log = run.log();
    assert_eq!(log.last().map(String::as_str), Some("o after"));
    let omitted = reported_counts(&log, OMITTED_SUFFIX);
    assert_eq!(omitted.len(), 1, "{omitted:?}");
    let written_lines = log.iter().filter(|line| ["o y", "e xxxxxxxxx"].contains(&line.as_str())).count() as u64;
    // On a disk that is slower than the pipe, some lines are lost as well.
    let lost: u64 = reported_counts(&log, " lines lost: the disk did not accept them]").iter().sum();
    assert_eq!(written_lines + lost + omitted[0], 3_000_001);
}

#[test]
fn run_below_the_disk_reserve_reports_left_out_lines_at_its_end() {
    if !needs_root("a small disk") {
        return;
    }
    let disk = Disk::of_bytes(4 << 20);
    let run = disk.run_with("echo one; echo two >&2; exit 3", &["reserve_bytes=8388608"]).started();
    assert_eq!(run.wait_ended()["exit_code"], "3");
    assert_eq!(reported_counts(&run.log(), OMITTED_SUFFIX), [2]);
    assert_eq!(run.log().len(), 1, "{:?}", run.log());
}

#[test]
fn start_on_a_full_disk_fails_and_can_be_retried() {
    if !needs_root("a full disk") {
        return;
    }
    let disk = Disk::of_bytes(1 << 20);
    let run = disk.run("echo up");
    let filler_file = disk.fill();
    let refused = run.keep();
    assert_eq!(refused.status.code(), Some(74), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("No space left"));
    assert!(run.state().is_empty(), "nothing is recorded");
    free_ballast(&filler_file);
    assert_eq!(run.started().wait_ended()["exit_code"], "0");
}

#[test]
fn hanging_disk_never_blocks_the_program_or_its_stop() {
    let outside = tempfile::tempdir().expect("a folder");
    let wrote = outside.path().join("wrote");
    let script = format!("trap '' TERM; yes | head -n 3000000; {}; sleep 1000", touch_command(&wrote));
    let run = Run::of_shell(&script);
    fs::create_dir(run.path("log")).expect("log");
    // Opening this FIFO blocks until a reader opens it, like a disk that hangs.
    let segment = run.path("log").join(format!("{:020}", 0));
    rustix::fs::mkfifoat(rustix::fs::CWD, &segment, rustix::fs::Mode::RWXU).expect("fifo");
    let run = run.started();
    wait_until(|| wrote.exists(), "it writes as if there was no disk");
    let keeper = run.number("keeper_pid");
    run.send_command("stop 20");
    wait_until(|| crate::run_fixture::descendants(keeper).is_empty(), "the deadline needs no disk");
    let mut text = String::new();
    fs::File::open(segment).expect("answers").read_to_string(&mut text).expect("text");
    assert_eq!(run.wait_ended()["reason"], "stopped");
    let lost = text
        .lines()
        .find_map(|line| line.split_once(" e [")?.1.strip_suffix(" lines lost: the disk did not accept them]"));
    let written_lines = text.lines().filter(|line| line.ends_with(" o y") || line.ends_with(" e xxxxxxxxx")).count();
    assert_eq!(written_lines + lost.expect("written").parse::<usize>().expect("a number"), 3_000_001);
}

#[test]
fn removed_log_continues_and_the_end_is_recorded() {
    let run = Run::of_shell("echo first; read x < go; yes | head -c 3000000; echo last");
    rustix::fs::mkfifoat(rustix::fs::CWD, run.path("scratch/go"), rustix::fs::Mode::RWXU).expect("fifo");
    let run = run.started();
    run.wait_for_line("o first");
    fs::remove_dir_all(run.path("log")).expect("removed");
    fs::write(run.path("scratch/go"), "x\n").expect("written");
    assert_eq!(run.wait_ended()["reason"], "exited");
    assert_eq!(run.log().last().map(String::as_str), Some("o last"));
}

#[test]
fn keeper_exits_when_its_folder_was_removed() {
    let run = Run::of_shell("echo up; sleep 1000").started();
    run.wait_for_line("o up");
    let (keeper, program) = (run.number("keeper_pid"), run.number("pid"));
    fs::remove_dir_all(run.folder.path()).expect("removed");
    let pid = rustix::process::Pid::from_raw(program).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    wait_until(|| !crate::run_fixture::is_alive(keeper), "the keeper goes");
}
