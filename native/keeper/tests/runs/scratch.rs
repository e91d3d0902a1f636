//! Limited scratch folders: what the program sees, and what the kernel removes.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::run_fixture::{Mode, Run, available_modes, is_root, wait_until};

const SCRATCH_BYTES: u64 = 16 << 20;
/// Fills the folder, and reports the error and that a removed file makes space again.
const FILL: &str = "head -c 64M /dev/zero >big 2>said; status=$?; [ -s said ] || rm big; \
                    rm -f big; echo again >small && cat small; ls -A | grep -v ^tmp; echo $status; stat -c %a:%u .";

/// Returns the modes with a mount namespace, and for each the kinds of file system that its keeper can create.
fn limited_modes() -> Vec<(Mode, bool)> {
    let modes = available_modes().into_iter().filter(|mode| mode.has_pid_namespace());
    let mut kinds: Vec<_> = modes.clone().map(|mode| (mode, false)).collect();
    let has_mke2fs = Command::new("mke2fs").arg("-V").output().is_ok();
    if is_root() && has_mke2fs && Path::new("/dev/loop-control").exists() {
        kinds.extend(modes.filter(|mode| !mode.is_unprivileged).map(|mode| (mode, true)));
    } else {
        skipped!("images: no mke2fs, or no loop devices for this user");
    }
    kinds
}

fn limited_run(mode: Mode, is_image: bool, script: &str) -> (Run, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let scratch = folder.path().join("scratch");
    let templates = tempfile::tempdir().expect("a folder");
    let mut more = vec![format!("scratch={}", scratch.display()), format!("scratch_bytes={SCRATCH_BYTES}")];
    if is_image {
        let template = templates.path().join("template");
        fs::File::create(&template).and_then(|file| file.set_len(SCRATCH_BYTES)).expect("template");
        let formatted = Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-b", "4096"])
            .arg(&template)
            .status()
            .expect("mke2fs of e2fsprogs");
        assert!(formatted.success());
        more.push(format!("scratch_template={}", template.display()));
    }
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let script = format!("cd {}; {script}", scratch.display());
    (Run::with_folder(mode, folder, &["/bin/sh", "-c", &script], &more), templates)
}

/// Returns the files in the folder that loop devices use.
fn loop_devices_of(folder: &Path) -> Vec<String> {
    let files = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backing = files.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    backing.filter(|file| Path::new(file.trim()).starts_with(folder)).collect()
}

#[test]
fn full_scratch_folder_refuses_writes_and_recovers() {
    for (mode, is_image) in limited_modes() {
        let (run, _templates) = limited_run(mode, is_image, FILL);
        let run = run.started();
        let state = run.wait_ended();
        let output = run.stdout_lines();
        let name = format!("{mode:?} image={is_image}: {state:?} {:?}", run.log());
        assert_eq!(output[..output.len().min(4)], ["again", "said", "small", "1"], "{name}");
        let mode_and_owner = output.last().expect("a line");
        assert!(mode_and_owner.starts_with("700:"), "{name}");
        assert!(!run.path("scratch/small").exists(), "{name}: the folder below the mount was written");
        wait_until(|| loop_devices_of(run.folder.path()).is_empty(), &name);
    }
}

#[test]
fn killed_keeper_leaves_no_mount_and_no_loop_device() {
    for (mode, is_image) in limited_modes() {
        let (run, _templates) = limited_run(mode, is_image, "echo up; exec sleep 1000");
        let run = run.started();
        run.wait_for_line("o up");
        let name = format!("{mode:?} image={is_image}");
        assert_eq!(loop_devices_of(run.folder.path()).len(), usize::from(is_image), "{name}");
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        assert!(!mounts.contains(&*run.folder.path().to_string_lossy()), "{name}: {mounts}");
        let keeper = rustix::process::Pid::from_raw(run.number("keeper_pid")).expect("a pid");
        rustix::process::kill_process(keeper, rustix::process::Signal::KILL).expect("killed");
        wait_until(|| loop_devices_of(run.folder.path()).is_empty(), &name);
    }
}
