"""The site as a server gives it out, and pages of a browser that reaches nothing else."""

from __future__ import annotations

import gzip
import re
import threading
from contextlib import contextmanager
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from tools.site.places import PAGES

ADDRESS = "https://course.example/"  # where the site says that it is
NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
ATTRIBUTE = re.compile(r'\s(?P<name>href|src|id|name)="(?P<value>[^"]*)"')
COMPRESSED = (".png", ".zip")  # already, so a server sends them as they are
KINDS = (  # one page of each kind
    *("index", "lessons/01_why_distributed", "exercises/01_why_distributed", "scripts/04_pipeline", "words"),
    *("library/comm/ring", "wild/results", "more/commands", "explorers/what_fits", "explorers/ring", "search"),
    *("explorers/plan", "slides/index"),
)

WATCH = """
window.shift = 0;
new PerformanceObserver(list => { for (const one of list.getEntries()) if (!one.hadRecentInput) shift += one.value; })
    .observe({ type: "layout-shift", buffered: true });
"""


class Handler(SimpleHTTPRequestHandler):
    """Files of the site, without a line in the test's output for each."""

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".wasm": "application/wasm"}

    def log_message(self, *_):
        pass


@contextmanager
def served(folder=PAGES):
    """Serve a folder; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


_LEFT = "net::ERR_ABORTED"  # of a request for which nobody waits any more: its page was left


@contextmanager
def reader(browser, *, width=1400, scheme="light"):
    """A page of its own; a script's error, or a request that finds nothing, fails the test."""
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url) if request.failure != _LEFT else None)
    page.on("response", lambda answer: wrong.append(answer.url) if answer.status >= 400 else None)
    page.add_init_script(WATCH)
    yield page
    context.close()
    assert wrong == [], wrong


def page_names(folder=PAGES):
    """Every page, as its address below the site's."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.html"))]


def sent_bytes(body, name):
    """What a server sends for a file."""
    return len(body) if name.endswith(COMPRESSED) else len(gzip.compress(body, 6))


class Links:
    """What a page leads to, and the names of its sections; quotation marks in code are written otherwise."""

    def __init__(self, text):
        found = [(hit["name"], unescape(hit["value"])) for hit in ATTRIBUTE.finditer(text)]
        self.targets = [value for name, value in found if name in ("href", "src") and value]
        self.sections = {value for name, value in found if name in ("id", "name")}
