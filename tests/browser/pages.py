"""The site as a server gives it out, and pages of a browser that reaches nothing else."""

from __future__ import annotations

import gzip
import threading
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from tools.site.places import PAGES

NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
COMPRESSED = (".png", ".zip")  # already, so a server sends them as they are
KINDS = (  # one page of each kind
    *("index", "lessons/03_mlp_ddp", "exercises/02_collectives", "scripts/04_pipeline", "library/comm/ring", "words"),
    *("wild/results", "more/commands", "explorers/what_fits", "explorers/ring", "search"),
)


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


def page_names(folder=PAGES):
    """Every page, as its address below the site's."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.html"))]


def sent_bytes(body, name):
    """What a server sends for a file."""
    return len(body) if name.endswith(COMPRESSED) else len(gzip.compress(body, 6))


class Links(HTMLParser):
    """What a page leads to, and the names of its sections."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.sections = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.targets += [found[name] for name in ("href", "src") if found.get(name)]
        self.sections |= {found[name] for name in ("id", "name") if found.get(name)}
