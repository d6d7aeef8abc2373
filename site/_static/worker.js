// The browser's Python: it loads the library once, and answers what the page asks, in the page's words.
let answer;
const load = async place => {
  const { loadPyodide } = await import(`${place}pyodide.mjs`);
  const [python, library] = await Promise.all([
    loadPyodide({ indexURL: place }),
    fetch(`${place}course.zip`).then(found => found.arrayBuffer()),
  ]);
  python.unpackArchive(library, "zip", { extractDir: "/course" });
  python.runPython("import sys; sys.path.insert(0, '/course')");
  answer = python.pyimport("course_lib.viz.pages.front").answer;
};
let loaded;
onmessage = async ({ data: { place, panel, asked } }) => {
  try {
    await (loaded ??= load(place));
    postMessage({ state: JSON.parse(answer(panel, JSON.stringify(asked))) });
  } catch (error) {
    postMessage({ error: String(error) });
  }
};
