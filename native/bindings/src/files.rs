//! Several file changes in one call without the GIL. Taking the GIL again after each system call would cost more than
//! the system calls.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

type Step = (String, PathBuf, u32, PyBackedBytes);

/// Runs file changes in order. `pyservice/_native.pyi` documents the contract.
#[pyfunction]
pub fn change_files(py: Python<'_>, steps: Vec<Step>) -> PyResult<()> {
    if let Some((kind, ..)) = steps.iter().find(|(kind, ..)| !STEP_KINDS.contains(&kind.as_str())) {
        return Err(PyValueError::new_err(format!("no step {kind:?}")));
    }
    let result = py.detach(|| steps.iter().try_for_each(|step| run_step(step).map_err(|error| (error, &step.1))));
    result.map_err(|(error, path)| os_error(&error, path))
}

const STEP_KINDS: [&str; 5] = ["folder", "group", "file", "put", "try"];

fn run_step((kind, path, mode, content): &Step) -> io::Result<()> {
    match kind.as_str() {
        "folder" => DirBuilder::new().mode(*mode).create(path),
        "group" => match DirBuilder::new().mode(*mode).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        },
        "file" => OpenOptions::new().write(true).create_new(true).mode(*mode).open(path)?.write_all(content),
        // Kernel files take their content in one write.
        "put" => OpenOptions::new().write(true).open(path)?.write_all(content),
        _ => {
            let _ = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(content));
            Ok(())
        }
    }
}

fn os_error(error: &io::Error, path: &Path) -> PyErr {
    match error.raw_os_error() {
        Some(number) => {
            let sentence = error.to_string();
            let sentence = sentence.split(" (os error").next().unwrap_or_default().to_owned();
            pyo3::exceptions::PyOSError::new_err((number, sentence, path.to_owned()))
        }
        None => pyo3::exceptions::PyOSError::new_err(format!("{}: {error}", path.display())),
    }
}
