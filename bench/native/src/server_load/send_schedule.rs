//! Send schedule of the workers: no delay in a closed loop, a planned time for each request in an open loop.
//!
//! The generator sleeps between requests. A virtual machine may have a share of its host only. A generator that never
//! sleeps could use it up, and the host would stop the server, too. The plan stops while another process has the
//! generator's core, because this time is no latency of the server.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify};

/// One sleep of the generator. Requests that become due in it are sent together, and responses are read after it.
const SLEEP: Duration = Duration::from_micros(20);
/// Time between two readings of the clock from which the wait for a core is read, too.
const GAP: Duration = Duration::from_micros(200);

pub struct SendSchedule {
    /// The plan of an open loop. One worker at a time waits for its planned time under this lock.
    plan: Option<Mutex<Plan>>,
    started_at: OnceLock<Instant>,
    start_signal: Notify,
}

struct Plan {
    interval: Duration,
    /// Whether latency begins when a request is sent.
    is_from_sent: bool,
    scheduled_count: u32,
    core_waits: CoreWaits,
    read_at: Option<Instant>,
    /// Time since the start in which the generator waited for its core.
    lost: Duration,
}

impl SendSchedule {
    /// Creates a schedule. Rate 0 means a closed loop.
    pub fn new(rate_per_s: f64, is_from_sent: bool) -> io::Result<SendSchedule> {
        let plan = |rate_per_s: f64| {
            io::Result::Ok(Mutex::new(Plan {
                interval: Duration::from_secs_f64(1.0 / rate_per_s),
                is_from_sent,
                scheduled_count: 0,
                core_waits: CoreWaits::new()?,
                read_at: None,
                lost: Duration::ZERO,
            }))
        };
        let plan = (rate_per_s > 0.0).then(|| plan(rate_per_s)).transpose()?;
        Ok(SendSchedule { plan, started_at: OnceLock::new(), start_signal: Notify::new() })
    }

    pub fn start(&self) {
        // SAFETY: a plain call. The kernel may otherwise prolong each sleep by 50 µs.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        self.started_at.get_or_init(Instant::now);
        self.start_signal.notify_waiters();
    }

    pub fn started_at(&self) -> Instant {
        *self.started_at.get_or_init(Instant::now)
    }

    pub async fn wait_for_start(&self) {
        let notified = self.start_signal.notified();
        if self.started_at.get().is_none() {
            notified.await;
        }
    }

    /// Waits for the next planned time, and returns it as the start of the latency.
    pub async fn wait_for_next_start(&self) -> io::Result<Instant> {
        let Some(plan) = &self.plan else { return Ok(Instant::now()) };
        let mut plan = plan.lock().await;
        let due = self.started_at() + plan.interval * plan.scheduled_count;
        plan.scheduled_count += 1;
        loop {
            let now = plan.read_clock()?;
            let planned_start = due + plan.lost;
            if now >= planned_start {
                return Ok(if plan.is_from_sent { now } else { planned_start });
            }
            std::thread::sleep(SLEEP);
            tokio::task::yield_now().await;
        }
    }

    /// Returns the time since the start in which the generator waited for its core.
    pub async fn lost(&self) -> Duration {
        match &self.plan {
            Some(plan) => plan.lock().await.lost,
            None => Duration::ZERO,
        }
    }
}

impl Plan {
    fn read_clock(&mut self) -> io::Result<Instant> {
        let now = Instant::now();
        if self.read_at.is_none_or(|before| now - before > GAP) {
            self.lost = self.core_waits.since_start()?;
        }
        self.read_at = Some(now);
        Ok(now)
    }
}

/// Time for which this thread was ready to run and another one had its core.
struct CoreWaits {
    statistics: File,
    at_start: Duration,
}

impl CoreWaits {
    fn new() -> io::Result<CoreWaits> {
        let statistics = File::open("/proc/thread-self/schedstat")?;
        let at_start = CoreWaits::read(&statistics)?;
        Ok(CoreWaits { statistics, at_start })
    }

    fn since_start(&self) -> io::Result<Duration> {
        Ok(CoreWaits::read(&self.statistics)?.saturating_sub(self.at_start))
    }

    fn read(statistics: &File) -> io::Result<Duration> {
        let mut line = [0; 80];
        let length = statistics.read_at(&mut line, 0)?;
        let field = std::str::from_utf8(&line[..length]).ok().and_then(|line| line.split(' ').nth(1));
        let nanoseconds = field.and_then(|field| field.parse().ok());
        nanoseconds.map(Duration::from_nanos).ok_or_else(|| io::Error::other("schedstat has no second number"))
    }
}
