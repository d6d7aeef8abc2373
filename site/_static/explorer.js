// An explorer's elements stand in the page, with its first picture. From the first touch on, or if the page's address
// carries settings, a worker's Python draws: the same library, and so the same picture, as in a notebook.
const LOADING = "Loading Python for this page …";
const FAILED = "Python failed here, so the picture stays as it is: ";

const start = root => {
  const place = new URL(root.dataset.python, location.href).href;
  const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  const part = name => root.querySelector(name);
  const fields = Object.fromEntries([...root.querySelectorAll("[name]")].map(field => [field.name, field]));
  const waiting = [];
  let busy = false;

  const words = field => (field.dataset.keys ? field.dataset.keys.split("|")[field.value] : field.value);
  const say = field => {
    if (!field.dataset.keys) return;
    const said = field.dataset.words.split("|")[field.value];
    field.previousElementSibling.value = said;
    field.setAttribute("aria-valuetext", said);
  };

  // What is asked while Python computes is joined, so that a dragged slider asks for its last place alone.
  const ask = asked => {
    const last = waiting.at(-1);
    if (asked.turn && last?.turn) Object.assign(last.turn, asked.turn);
    else waiting.push(asked);
    if (!busy) next();
  };
  const next = () => {
    busy = true;
    part("figure").setAttribute("aria-busy", "true");
    worker.postMessage({ place, panel: root.dataset.panel, asked: waiting.shift() });
  };

  worker.onmessage = ({ data: { state, error } }) => {
    busy = false;
    part(".status").textContent = error ? FAILED + error : "";
    if (waiting.length) return next();
    part("figure").removeAttribute("aria-busy");
    if (state) show(state);
  };
  worker.onerror = event => { part(".status").textContent = FAILED + event.message; };

  const show = state => {
    for (const [name, field] of Object.entries(fields)) {
      const value = state.values[name];
      field.disabled = state.off.includes(name);
      if (field !== document.activeElement || !state.refused) {
        field.value = field.dataset.keys ? field.dataset.keys.split("|").indexOf(value) : value;
        say(field);
      }
    }
    part(".refused").hidden = !state.refused;
    part(".refused").textContent = state.refused;
    if (state.refused) return;
    part("figure").innerHTML = state.picture;
    part("pre").textContent = state.text;
    part(".said").textContent = state.text.split("\n").filter((line, at) => !at || /together|GB|step/.test(line)).slice(0, 3).join(". ");
    if (state.table.length) tabulate(part("table"), state.table);
    const carried = Object.entries(state.values).filter(([name]) => fields[name].tagName !== "TEXTAREA");
    history.replaceState(null, "", `#${new URLSearchParams(carried)}`);
    root.dataset.drawn = Number(root.dataset.drawn ?? 0) + 1;
  };

  root.addEventListener("input", ({ target }) => {
    say(target);
    if (target.tagName !== "TEXTAREA") ask({ turn: { [target.name]: words(target) } });
  });
  root.addEventListener("change", ({ target }) => {
    if (target.tagName === "TEXTAREA") ask({ turn: { [target.name]: words(target) } });
  });
  root.addEventListener("submit", event => event.preventDefault());
  root.addEventListener("click", ({ target }) => {
    if (target.closest(".presets button")) ask({ press: target.textContent });
  });
  return ask;
};

const tabulate = (table, [head, ...rows]) => {
  const cell = (kind, text, scope) => {
    const made = document.createElement(kind);
    made.textContent = text;
    if (scope) made.scope = scope;
    return made;
  };
  const row = cells => {
    const made = document.createElement("tr");
    made.append(...cells);
    return made;
  };
  table.tHead.replaceChildren(row(head.map((text, at) => (at ? cell("th", text, "col") : cell("td", "")))));
  table.tBodies[0].replaceChildren(
    ...rows.map(texts => row(texts.map((text, at) => (at ? cell("td", text) : cell("th", text, "row"))))),
  );
};

for (const root of document.querySelectorAll(".explorer")) {
  let ask;
  const touch = () => {
    if (ask) return;
    root.querySelector(".status").textContent = LOADING;
    ask = start(root);
    const settings = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    ask({ turn: location.hash.includes("=") ? settings : {} });
  };
  for (const kind of ["pointerenter", "focusin", "touchstart"]) root.addEventListener(kind, touch, { passive: true });
  if (location.hash.includes("=")) touch();
}
