"""The part of the library that draws panels, and the two pure packages that it needs, as one archive for a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import drawsvg
import yaml

from tools.paths import ROOT

PACKAGES = {"course_lib": ROOT, **{one.__name__: Path(str(one.__file__)).parent.parent for one in (drawsvg, yaml)}}
DATA = (
    *(f"course_lib/presets/{kind}/*.yaml" for kind in ("model", "device", "cluster")),
    "course_lib/viz/ink/fonts/widths.json",
)
_NEEDED = """
import sys
class OnlyThese:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {{*sys.stdlib_module_names, {allowed}}}:
            raise ModuleNotFoundError(f"{{name}} is blocked")
sys.meta_path.insert(0, OnlyThese())
from course_lib.viz.pages import catalog, front
for name in catalog.PANELS:
    front.answer(name, '{{"turn": {{}}}}')
print(*sorted(one.__file__ for name, one in sys.modules.items() if name.split(".")[0] in ({allowed}) and one.__file__))
"""


def write_bundle(target: Path) -> None:
    """Write the archive; the same files give the same bytes."""
    with ZipFile(target, "w") as archive:
        for file in [*modules(), *(path for pattern in DATA for path in sorted(ROOT.glob(pattern)))]:
            entry = ZipInfo(_imported_from(file), date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes(), compresslevel=9)


def _imported_from(file: Path) -> str:
    """Its place below the nearest folder that Python imports from; an environment may lie inside the repository."""
    homes = [home for home in PACKAGES.values() if file.is_relative_to(home)]
    return file.relative_to(max(homes, key=lambda home: len(home.parts))).as_posix()


def modules() -> list[Path]:
    """The files that every panel's first picture loads, where nothing but the packages above can be imported.

    Raises: RuntimeError with Python's words if a panel needs more.
    """
    allowed = ", ".join(repr(name) for name in PACKAGES)
    code = _NEEDED.format(allowed=allowed)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"site: a panel needs more than a browser has\n{done.stderr}")
    return [Path(name) for name in done.stdout.split() if name.endswith(".py")]
