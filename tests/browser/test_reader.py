"""The page of one's own that tests of the site read with: what it holds against a site, and what not."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.browser.pages import reader


class OnePicture(BaseHTTPRequestHandler):
    """A page with a picture that is there, is not there, or never comes, by the page's name."""

    def do_GET(self):
        if self.path == "/never.svg":
            self.server.left.wait(30)
            return
        body = f'<img src="{self.path}.svg">'.encode()
        self.send_response(404 if self.path == "/missing.svg" else 200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def pictures():
    server = ThreadingHTTPServer(("127.0.0.1", 0), OnePicture)
    server.left = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.left.set()
    server.shutdown()
    server.server_close()


def test_who_leaves_a_page_before_its_picture_has_come_has_found_nothing_wrong(offline):
    with pictures() as address, reader(offline) as page:
        page.goto(f"{address}/never", wait_until="domcontentloaded")
        page.goto("about:blank")
        page.wait_for_timeout(300)


@pytest.mark.parametrize("there", ["missing", "elsewhere"])
def test_a_picture_that_is_missing_or_lies_on_another_machine_is_wrong(offline, there):
    with pytest.raises(AssertionError, match=there), pictures() as address, reader(offline) as page:
        if there == "missing":
            page.goto(f"{address}/missing")
        else:
            page.set_content('<img src="http://elsewhere.invalid/a.svg">')
        page.wait_for_timeout(500)
