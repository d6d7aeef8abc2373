"""A JupyterLab as `make lab` starts it, and one page of a headless Chromium that looks at it."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager, suppress

import nbformat
from nbformat.reader import NotJSONError

from tools.lab import lab_command, lab_environment

TOKEN = "browser-test"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
START_SECONDS = 60
RUN_SECONDS = 150  # a whole lesson, on a busy machine


@contextmanager
def running_lab(folder):
    """Start JupyterLab on `folder`; yield its address; stop it with all its kernels."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = lab_command(str(port), folder, "--no-browser", f"--IdentityProvider.token={TOKEN}")
    told = folder.parent / "lab.log"
    with told.open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=lab_environment())
    try:
        wait_until_up(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", server, told)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def wait_until_up(address, server, log):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, f"JupyterLab ended at its start:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(address, timeout=60):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not answer within {START_SECONDS} s:\n{log.read_text()}")


def open_notebook(page, address, name):
    """Open a notebook and wait until its kernel is ready; the notebook's own indicator says idle too early."""
    page.goto(f"{address}/lab/tree/{name}?token={TOKEN}&reset")
    page.wait_for_selector("#jp-main-statusbar >> text=/Python 3 .*\\| Idle/")


def run_all(page, path):
    """Choose Run > Run All Cells, wait until the last one or a failing one is done; return the cells as saved."""
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
    page.locator('.lm-Menu-item[data-command="runmenu:run-all"]').click()
    deadline = time.monotonic() + RUN_SECONDS
    cells = []
    while time.monotonic() < deadline:
        page.wait_for_timeout(2000)
        page.keyboard.press("Control+s")
        with suppress(NotJSONError):  # it may be read while Lab writes it
            cells = code_cells(path)
            if cells[-1].execution_count is not None or any(unexpected_errors(cell) for cell in cells):
                return cells
    done = sum(cell.execution_count is not None for cell in cells)
    raise AssertionError(f"{path.name}: {done} of {len(cells)} cells ran within {RUN_SECONDS} s")


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def unexpected_errors(cell):
    if "raises-exception" in cell.metadata.get("tags", []):
        return []
    return [output.evalue for output in cell.outputs if output.output_type == "error"]


def ending_at(path, text):
    """Leave out what comes after the first cell with this text; return the notebook's path."""
    notebook = nbformat.read(path, as_version=4)
    last = next(place for place, cell in enumerate(notebook.cells) if text in cell.source and cell.cell_type == "code")
    notebook.cells = notebook.cells[: last + 1]
    nbformat.write(notebook, path)
    return path
