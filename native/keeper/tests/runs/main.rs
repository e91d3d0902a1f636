//! Whole runs: real programs under a real keeper, seen through the folder alone.

mod disks;
mod folder;
mod isolation;
mod kills;
mod limits;
mod lives;
mod nursery;
mod starts;
mod templates;
