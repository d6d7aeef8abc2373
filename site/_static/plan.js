// The planner's cases all stand in the page. The one that is chosen is shown, and the page's address carries the choice.
for (const root of document.querySelectorAll(".plan")) {
  const fields = [...root.querySelectorAll("select")];
  const cases = [...root.querySelectorAll(".case")];

  const show = () => {
    const chosen = fields.map(field => field.value).join(" ");
    for (const one of cases) one.hidden = one.dataset.case !== chosen;
  };

  const carried = new URLSearchParams(location.hash.slice(1));
  for (const field of fields) {
    const asked = carried.get(field.name);
    if ([...field.options].some(option => option.value === asked)) field.value = asked;
  }
  show();

  root.addEventListener("change", () => {
    show();
    root.querySelector(".said").textContent = cases.find(one => !one.hidden).getAttribute("aria-label");
    history.replaceState(null, "", `#${new URLSearchParams(fields.map(field => [field.name, field.value]))}`);
  });
}
