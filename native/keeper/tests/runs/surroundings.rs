//! Surroundings of a program: an account, shared memory, and a folder for temporary files.

use crate::run_fixture::{Mode, Run, available_modes};

fn modes_with_root() -> Vec<Mode> {
    available_modes().into_iter().filter(|mode| ["user", "namespace"].contains(&mode.isolation)).collect()
}

fn output(mode: Mode, script: &str) -> Vec<String> {
    let run = Run::new(mode, script, &["machine_id=0123456789abcdef"]).started();
    let state = run.wait_ended();
    assert_eq!(state["exit_code"], "0", "{mode:?}: {:?}", run.log());
    run.stdout_lines()
}

#[test]
fn user_has_a_name_a_home_and_a_group() {
    for mode in modes_with_root() {
        let script = "whoami; id -gn; perl -e 'print((getpwuid $<)[7], qq(\\n))'; cat /etc/machine-id; \
                      grep -c . /etc/passwd /etc/group";
        let lines = output(mode, script);
        assert_eq!(lines[..2], ["server", "server"], "{mode:?}");
        assert!(lines[2].ends_with("/scratch"), "{mode:?}: {}", lines[2]);
        assert_eq!(lines[3..], ["0123456789abcdef", "/etc/passwd:2", "/etc/group:2"], "{mode:?}: no names of the host");
    }
}

#[test]
fn shared_memory_is_private_and_has_a_size() {
    for mode in modes_with_root() {
        let script = "df -k --output=size /dev/shm | tail -1; echo mine > /dev/shm/x; ls -A /dev/shm; \
                      head -c 70m /dev/zero > /dev/shm/y 2> /dev/null || echo full";
        for _ in 0..2 {
            let lines: Vec<_> = output(mode, script).iter().map(|line| line.trim().to_owned()).collect();
            assert_eq!(lines, ["65536", "x", "full"], "{mode:?}");
        }
    }
}

#[test]
fn temporary_folder_is_a_part_of_the_scratch_folder() {
    for mode in modes_with_root() {
        let script =
            "echo mine > /tmp/x; cat tmp/x; mktemp -d > /dev/null; stat -c %a /tmp; test -w tmp && echo writable";
        assert_eq!(output(mode, script), ["mine", "1777", "writable"], "{mode:?}");
    }
}
