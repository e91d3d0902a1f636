"""Metrics scrapes with 1,000 namespaces: duration of a scrape, and its effect on `connected` requests.

Load: an open loop at a fixed rate, so that a pause delays all requests in it. Baseline: the same load without scrapes.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.load import HTTP, window
from bench.machine import LOAD_CORE, Bench, staying_on
from bench.players import Players
from bench.results import Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import Service, running

NAME = "scrape"
NAMESPACES = 1_000
SCRAPES = 21
RATE = 3_000
TOKENS = 8 * RATE // 64 * 64
_CONTROL_PAGE = b"\nhosting_control_plane_up 1\n"
"""Text that shows that the scrape contains the control plane's metrics."""


def run(bench: Bench) -> Result:
    with running(bench.scratch("scrape")) as service:
        players = Players(service, NAMESPACES)
        players.reserve(players.attach(players.namespaces), 1)
        players.check_recorded()
        scrapes = [_scrape(service) for _ in range(SCRAPES)]
        runs = interleaved(
            {
                "without scrapes": lambda: window(bench, players, HTTP, TOKENS, RATE),
                "with scrapes": lambda: _window_with_scrapes(bench, players),
            }
        )
    runs["scrapes"] = scrapes
    return Result(NAME, _figures(runs), runs)


def _scrape(service: Service) -> Run:
    with staying_on(LOAD_CORE):
        took_s, text = service.scrape()
    if _CONTROL_PAGE not in text:
        raise WrongAnswer("the control plane's page is not in a scrape")
    labels = {line.split('namespace="')[1].split('"')[0] for line in _slots(text)}
    if len(labels) < NAMESPACES:
        raise WrongAnswer(f"{len(labels)} namespaces in a scrape, not {NAMESPACES}")
    return {"took_ms": took_s * 1e3, "bytes": len(text)}


def _slots(text: bytes) -> list[str]:
    lines = text.decode().splitlines()
    return [line for line in lines if line.startswith("hosting_slots{") and 'namespace="' in line]


def _window_with_scrapes(bench: Bench, players: Players) -> Run:
    with _scraping(players.service) as scraped:
        run = window(bench, players, HTTP, TOKENS, RATE)
    run["scrapes"] = len(scraped)
    run["whole_scrapes"] = sum(is_whole for _, is_whole in scraped)
    run["slowest_scrape_ms"] = max(took_ms for took_ms, _ in scraped)
    return run


@contextmanager
def _scraping(service: Service) -> Iterator[list[tuple[float, bool]]]:
    """Scrapes once per second in a thread. Yields (milliseconds, control plane included) of each scrape."""
    scraped: list[tuple[float, bool]] = []
    stop = threading.Event()

    def scrape() -> None:
        with staying_on(LOAD_CORE):
            while True:
                took_s, text = service.scrape()
                scraped.append((took_s * 1e3, _CONTROL_PAGE in text))
                if stop.wait(1.0):
                    return

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield scraped
    finally:
        stop.set()
        thread.join()


def _figures(runs: dict[str, list[Run]]) -> list[Figure]:
    scrapes, unscraped, scraped = runs["scrapes"], runs["without scrapes"], runs["with scrapes"]
    before, after = (median(one, "p99_us") / 1e3 for one in (unscraped, scraped))
    # Compares neighbouring windows, because the load of the machine changes over time.
    growths_ms = [
        (one["p99_us"] - other["p99_us"]) / 1e3
        for one, other in zip(scraped, unscraped, strict=True)
    ]
    return [
        Figure(
            f"one scrape with {NAMESPACES:,} namespaces",
            median(scrapes, "took_ms"),
            "ms",
            at_most=50,
            note=f"slowest of {SCRAPES} {max(run['took_ms'] for run in scrapes):.0f} ms, "
            f"{scrapes[0]['bytes'] / 1e6:.1f} MB, both planes",
        ),
        Figure(
            "growth of p99 of `connected` by a scrape each second",
            statistics.median(growths_ms),
            "ms",
            at_most=5,
            note=f"rounds {min(growths_ms):.1f} to {max(growths_ms):.1f} ms, medians "
            f"{before:.2f} ms → {after:.2f} ms, open loop at {RATE:,}/s; slowest scrape "
            f"meanwhile {max(run['slowest_scrape_ms'] for run in scraped):.0f} ms; "
            f"{sum(run['whole_scrapes'] for run in scraped)} of "
            f"{sum(run['scrapes'] for run in scraped)} with the control plane's page",
        ),
    ]
