// node python_in_node.mjs PLACE CASES SAID: what a page's worker does, for each case in a file, without a page.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [place, cases, said] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${place}/pyodide.mjs`).href);
const python = await loadPyodide({ indexURL: `${place}/` });
python.unpackArchive(new Uint8Array(readFileSync(`${place}/course.zip`)), "zip", { extractDir: "/course" });
python.globals.set("cases", readFileSync(cases, "utf8"));
writeFileSync(said, python.runPython(`
import json, sys
sys.path.insert(0, "/course")
from course_lib.viz.pages.catalog import PANELS
from course_lib.viz.pages.front import Front
states = []
for name, words in json.loads(cases):
    front = Front(PANELS[name]())
    front.turn(words)
    states.append(front.state())
json.dumps(states)
`));
