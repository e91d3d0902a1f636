//! What a keeper has of the memory of the nursery that it was forked from. Each page that it touches first is a fault,
//! up to ten microseconds, and there were fifty in a start: what both only read is mapped before the fork, and what a
//! keeper makes for itself lies together in pages that are asked for at once, not where the nursery left holes.
//!
//! All of it is for speed alone: what the kernel does not do at once it does page by page.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// For what a keeper needs to start a program, and for what it keeps.
const OWN_BYTES: usize = 192 << 10;
/// Of that, what most starts need.
const AT_ONCE_BYTES: usize = 16 << 10;
/// Of the stack, below and above where the keeper begins: what it needs until the program runs.
const STACK_BYTES: [usize; 2] = [12 << 10, 8 << 10];
const PAGE_BYTES: usize = 4 << 10;

/// Memory of the process: after `own_pages` it comes from these, as long as they last. What is given back there is used
/// again when it was the last, and else not.
pub struct Heap;

#[repr(align(4096))]
struct Own(UnsafeCell<[u8; OWN_BYTES]>);

// SAFETY: a part of it is used by who was given it alone.
unsafe impl Sync for Own {}

static OWN: Own = Own(UnsafeCell::new([0; OWN_BYTES]));
/// Up to where it is given away; all of it while nobody has begun.
static GIVEN: AtomicUsize = AtomicUsize::new(OWN_BYTES);

impl Heap {
    fn take(layout: Layout) -> Option<*mut u8> {
        let mut given = GIVEN.load(Ordering::Relaxed);
        loop {
            let start = given.next_multiple_of(layout.align());
            let fits = |&end: &usize| end <= OWN_BYTES && layout.align() <= PAGE_BYTES;
            let end = start.checked_add(layout.size()).filter(fits)?;
            match GIVEN.compare_exchange_weak(given, end, Ordering::Relaxed, Ordering::Relaxed) {
                // SAFETY: `start` is inside of it.
                Ok(_) => return Some(unsafe { OWN.0.get().cast::<u8>().add(start) }),
                Err(now) => given = now,
            }
        }
    }

    /// Where it is in our pages.
    fn place(at: *mut u8) -> Option<usize> {
        let place = at.addr().wrapping_sub(OWN.0.get().addr());
        (place < OWN_BYTES).then_some(place)
    }

    /// Whether what was given last, up to `from`, ends at `to` now.
    fn moves_end(from: usize, to: usize) -> bool {
        to <= OWN_BYTES && GIVEN.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

// SAFETY: what is given of our pages is nobody else's until it is given back, if it was the last; the rest is the
// system's.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        Self::take(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match Self::take(layout) {
            Some(taken) => {
                // SAFETY: so much was taken. Somebody may have had it before.
                unsafe { ptr::write_bytes(taken, 0, layout.size()) };
                taken
            }
            // SAFETY: as the caller promises.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match Self::place(at) {
            Some(place) => _ = Self::moves_end(place + layout.size(), place),
            // SAFETY: as the caller promises, and it is the system's.
            None => unsafe { System.dealloc(at, layout) },
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(place) = Self::place(at) else {
            // SAFETY: as the caller promises, and it is the system's.
            return unsafe { System.realloc(at, layout, size) };
        };
        if place.checked_add(size).is_some_and(|end| Self::moves_end(place + layout.size(), end)) {
            return at;
        }
        // SAFETY: both are as large as what is copied, and not the same: as the caller promises.
        unsafe {
            let other = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !other.is_null() {
                ptr::copy_nonoverlapping(at, other, layout.size().min(size));
                self.dealloc(at, layout);
            }
            other
        }
    }
}

/// In a keeper that was forked just now: what it makes from here on is in pages of its own.
pub fn own_pages() {
    GIVEN.store(0, Ordering::Relaxed);
    let here = 0_u8;
    let stack = (&raw const here).addr() & !(PAGE_BYTES - 1);
    populate(OWN.0.get().addr(), AT_ONCE_BYTES, libc::MADV_POPULATE_WRITE);
    let [below, above] = STACK_BYTES;
    populate(stack - below, below + above, libc::MADV_POPULATE_WRITE);
}

/// In the nursery, before it forks: all that it and its keepers only read of the program is mapped, and is with each
/// that is forked. The kernel leaves out what has none but a file's pages, so each mapping gets one that is not.
pub fn hand_on_program() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Ok(memory) = OpenOptions::new().read(true).write(true).open("/proc/self/mem") else { return };
    let program = fs::read_link("/proc/self/exe").unwrap_or_default();
    let program = program.to_string_lossy();
    for (start, end) in maps.lines().filter(|line| line.ends_with(&*program)).filter_map(read_only) {
        populate(start, end - start, libc::MADV_POPULATE_READ);
        let mut first = [0];
        // With what it is already.
        if memory.read_exact_at(&mut first, start as u64).is_ok() {
            let _ = memory.write_all_at(&first, start as u64);
        }
    }
}

fn read_only(line: &str) -> Option<(usize, usize)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let is_ours = rest.starts_with("r-xp") || rest.starts_with("r--p");
    is_ours.then_some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

fn populate(start: usize, bytes: usize, how: libc::c_int) {
    // SAFETY: changes no content.
    unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start), bytes, how) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_is_made_lies_together_is_given_back_when_it_was_last_and_ends_at_its_end() {
        own_pages();
        let eight = Layout::from_size_align(8, 8).expect("layout");
        let page = Layout::from_size_align(PAGE_BYTES, PAGE_BYTES).expect("layout");
        // SAFETY: each is given back as it was taken. Other tests take from the same pages meanwhile, or none are left.
        unsafe {
            let one = Heap.alloc(eight);
            assert_eq!(one.addr() % 8, 0);
            one.write_bytes(7, 8);
            let more = Heap.realloc(one, eight, PAGE_BYTES);
            assert_eq!(std::slice::from_raw_parts(more, 8), [7; 8]);
            let aligned = Heap.alloc_zeroed(page);
            assert_eq!(aligned.addr() % PAGE_BYTES, 0);
            assert!(std::slice::from_raw_parts(aligned, PAGE_BYTES).iter().all(|&byte| byte == 0));
            let all: Vec<_> = (0..OWN_BYTES / PAGE_BYTES).map(|_| Heap.alloc(page)).collect();
            assert!(all.iter().any(|&one| Heap::place(one).is_none()), "there is an end of it");
            let mut places: Vec<_> = all.iter().map(|one| one.addr()).chain([aligned.addr()]).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= PAGE_BYTES), "each is one's own");
            for one in all.into_iter().rev().chain([aligned]) {
                Heap.dealloc(one, page);
            }
            Heap.dealloc(more, Layout::from_size_align(PAGE_BYTES, 8).expect("layout"));
        }
    }

    #[test]
    fn a_program_is_what_it_was_after_its_pages_were_made_ready() {
        let maps = fs::read_to_string("/proc/self/maps").expect("read");
        let program = fs::read_link("/proc/self/exe").expect("read");
        let ours = maps.lines().filter(|line| line.ends_with(&*program.to_string_lossy()));
        let ours: Vec<_> = ours.filter_map(read_only).collect();
        assert!(ours.len() >= 2, "text, and what is constant");
        let memory = File::open("/proc/self/mem").expect("opened");
        let content = || -> Vec<Vec<u8>> {
            let each = ours.iter().map(|&(start, end)| {
                let mut bytes = vec![0; end - start];
                memory.read_exact_at(&mut bytes, start as u64).expect("read");
                bytes
            });
            each.collect()
        };
        let before = content();
        hand_on_program();
        assert!(content() == before, "what is mapped is what it was");
        let own = fs::read_to_string("/proc/self/smaps").expect("read");
        let mut of_text = own.lines().skip_while(|line| !(line.contains(" r-xp ") && line.contains("keeper")));
        let anonymous = of_text.find_map(|line| line.strip_prefix("Anonymous:")).expect("told");
        assert_eq!(anonymous.trim(), "4 kB", "one page is not the file's");
    }
}
