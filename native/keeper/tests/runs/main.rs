//! Whole runs: real programs under a real keeper, seen through the folder alone.

/// Says what this machine cannot show, whatever becomes of the test: what is printed by one that passes is not seen.
macro_rules! skipped {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "SKIPPED {}", format_args!($($what)*));
    }};
}

mod disks;
mod folder;
mod isolation;
mod kills;
mod limits;
mod lives;
mod nursery;
mod shown;
mod starts;
mod templates;
