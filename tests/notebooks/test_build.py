"""The notebook builder: stable ids, outputs without this machine's paths, drift found."""

from __future__ import annotations

import shutil

import nbformat
import pytest

from tools import build_notebooks, outputs
from tools.build_notebooks import all_drift, build, drift, read_source, renew_texts
from tools.outputs import machine_paths, store
from tools.words import LINK

SOURCE = """# %% [markdown]
# # Title

# %%
# %%time
1 + 1

# %% tags=["raises-exception"]
raise ValueError("on purpose")

# %%
1

# %%
1
"""


def written(tmp_path, text=SOURCE):
    source = tmp_path / "src" / "90_probe.py"
    source.parent.mkdir(exist_ok=True)
    source.write_text(text)
    return source


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    source = written(folder, SOURCE.replace("# %%time\n", ""))
    build(source, build_notebooks.target_of(source))
    return folder


@pytest.fixture
def executed(built, tmp_path):
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    return tmp_path / "src" / "90_probe.py", tmp_path / "90_probe.ipynb"


def test_magics_are_uncommented_and_tags_kept(tmp_path):
    notebook = read_source(written(tmp_path))
    assert notebook.cells[1].source == "%%time\n1 + 1"
    assert notebook.cells[2].metadata == {"tags": ["raises-exception"]}


def test_a_varying_output_is_marked_with_its_reason(tmp_path):
    text = '# %% varies="measured times"\n1\n\n# %%\n2\n'
    varying, other = read_source(written(tmp_path, text)).cells
    assert varying.metadata == {"tags": ["nbval-ignore-output"]} and other.metadata == {}


def test_imports_and_what_answers_a_text_s_question_are_folded_away(tmp_path):
    asked = "# %% [markdown]\n# **Before you run it**: how many?\n\n# %%\n"
    text = f'# %% folded=true\nimport math\n\n{asked}2\n\n# %%\n3\n\n{asked}predict("p", guess=None, answer=1)\n'
    imports, _, answer, other, _, question = read_source(written(tmp_path, text)).cells
    assert imports.metadata == {"jupyter": {"source_hidden": True}}
    assert answer.metadata == {"jupyter": {"outputs_hidden": True}} and other.metadata == {}
    assert question.metadata == {}  # its output folds itself


def test_ids_stay_when_another_cell_is_inserted(tmp_path):
    before = [cell.id for cell in read_source(written(tmp_path)).cells]
    longer = SOURCE.replace("# # Title\n", "# # New\n\n# %%\n0\n")
    after = [cell.id for cell in read_source(written(tmp_path, longer)).cells]
    assert len(set(before)) == len(before)
    assert after[2:] == before[1:]


def test_a_built_notebook_holds_outputs_and_no_times(executed):
    source, target = executed
    notebook = nbformat.read(target, as_version=4)
    assert notebook.cells[1].outputs[0].data["text/plain"] == "2"
    assert notebook.cells[2].outputs[0].ename == "ValueError"
    assert "execution" not in str([cell.metadata for cell in notebook.cells])
    assert drift(source, target) == [] and all_drift(source.parent.parent) == []


def test_drift_is_found(executed):
    source, target = executed
    text = source.read_text()
    source.write_text(text.replace("1 + 1", "1 + 2"))
    assert drift(source, target) == ["90_probe: cell 1 differs from its source; run make notebooks ONLY=90"]
    source.write_text(text + "\n# %%\n3\n")
    assert drift(source, target) == ["90_probe: 5 cells, its source has 6; run make notebooks ONLY=90"]
    source.write_text(text.replace(' tags=["raises-exception"]', ""))
    assert drift(source, target) == [
        "90_probe: cell 2 is marked otherwise than in its source; run make notebooks ONLY=90"
    ]


def test_prose_is_renewed_without_a_run_and_code_is_not(executed):
    source, target = executed
    before = [cell.outputs for cell in nbformat.read(target, as_version=4).cells if cell.cell_type == "code"]
    source.write_text(source.read_text().replace("# # Title\n", "# # Another\n#\n# **Next:** the end.\n"))
    renew_texts(source, target)
    cells = nbformat.read(target, as_version=4).cells
    assert drift(source, target) == [] and cells[0].source == f"# Another\n\n**Next:** the end.\n\n{LINK}"
    assert [cell.outputs for cell in cells if cell.cell_type == "code"] == before
    source.write_text(source.read_text().replace("1 + 1", "1 + 2"))
    with pytest.raises(ValueError, match=r"90_probe.ipynb: its code has changed; run make notebooks ONLY=90"):
        renew_texts(source, target)


def test_a_notebook_that_was_never_run_is_drift(tmp_path):
    source = written(tmp_path)
    nbformat.write(read_source(source), tmp_path / "90_probe.ipynb")
    assert drift(source, tmp_path / "90_probe.ipynb") == [
        "90_probe: cell 1 was never executed; run make notebooks ONLY=90"
    ]


def test_missing_and_left_over_notebooks_are_drift(tmp_path):
    source = written(tmp_path)
    nbformat.write(read_source(source), tmp_path / "91_old.ipynb")
    assert all_drift(tmp_path) == [
        "90_probe: no notebook; run make notebooks",
        f"91_old: no source in {tmp_path.name}/src",
    ]


def test_a_path_of_this_machine_in_an_output_stops_the_build(tmp_path):
    source = written(tmp_path, "# %%\nprint('/tmp/somewhere/course')\n")
    with pytest.raises(ValueError, match="outputs tell paths of this machine:\n  cell 0: /tmp/somewhere/course"):
        build(source, tmp_path / "90_probe.ipynb")
    assert not (tmp_path / "90_probe.ipynb").exists()


def test_a_widget_s_view_gives_way_to_its_picture_only(tmp_path):
    view = {outputs.WIDGET: {"model_id": "1"}, "text/plain": "slider"}
    notebook = read_source(written(tmp_path))
    notebook.cells[1].outputs = [
        nbformat.v4.new_output("display_data", data=dict(view)),
        nbformat.v4.new_output("display_data", data={**view, "image/svg+xml": "<svg/>"}),
    ]
    outputs.tidy(notebook)
    alone, with_picture = notebook.cells[1].outputs
    assert outputs.WIDGET in alone.data and outputs.WIDGET not in with_picture.data
    assert machine_paths(notebook) == []


def stream(text, name="stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


def test_a_stream_is_whole_however_it_came(tmp_path):
    notebook = read_source(written(tmp_path))
    notebook.cells[1].outputs = [stream("a\n"), stream("b\n"), stream("wrong\n", "stderr"), stream("c\n")]
    outputs.tidy(notebook)
    assert [(one.name, one.text) for one in notebook.cells[1].outputs] == [
        ("stdout", "a\nb\n"),
        ("stderr", "wrong\n"),
        ("stdout", "c\n"),
    ]


def test_a_build_that_says_nothing_new_leaves_the_file_as_it_is(tmp_path):
    notebook, target = read_source(written(tmp_path)), tmp_path / "deeper/90_probe.ipynb"
    notebook.cells[1].outputs = [stream("pid 12 at 0x7f00aa11bb22"), stream("\nloss 1.5")]
    store(notebook, target)
    before = target.read_bytes()
    notebook.cells[1].outputs = [stream("pid 99 at 0x7f00aa11bb33\nloss 1.5")]
    store(notebook, target)
    assert target.read_bytes() == before
    notebook.cells[1].outputs = [stream("pid 99 at 0x7f00aa11bb33\nloss 1.25")]
    store(notebook, target)
    assert b"loss 1.25" in target.read_bytes() and b"pid 99" in target.read_bytes()
