"""Conformance driver of the TypeScript helper in a browser: `python -m tests.clients.browser_driver <module>`.

It passes the lines of standard input to a page in a headless Chromium, and prints the results.
"""

from __future__ import annotations

import asyncio
import functools
import http.server
import sys
import threading
from pathlib import Path

from playwright.async_api import async_playwright

from tests.clients.conformance import LINE_BYTES_MAX
from tests.support.browser import CHROMIUM, CHROMIUM_FLAGS

PAGE = """
import("./{module}").then((driver) => {{
  window.command = (line) => driver.run(driver.playerCommands, line, window.report);
}})
"""


class Files(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path != "/":
            return super().do_GET()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


async def main(module: Path) -> None:
    handler = functools.partial(Files, directory=str(module.parent))
    files = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=files.serve_forever, daemon=True).start()
    lines = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        page = await browser.new_page()
        await page.expose_function("report", lambda line: print(line, flush=True))
        await page.goto(f"http://127.0.0.1:{files.server_port}/")
        await page.evaluate(PAGE.format(module=module.name))
        async for line in lines:
            await page.evaluate("(line) => void window.command(line)", line.decode())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
