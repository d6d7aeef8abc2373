// Runs in the slide's page: returns what is wrong with slide `number`, and its visible text.
async ([number, smallest]) => {
  const slide = document.querySelector(`section[id="${number}"]`);
  const lines = [];
  const images = [...slide.querySelectorAll("img")];
  await Promise.all([document.fonts.ready, ...images.map((image) => image.decode().catch(() => {}))]);

  const name = (element) =>
    `<${element.tagName.toLowerCase()}> ${(element.alt || element.textContent).trim().slice(0, 40)}`;
  const foot = (element) => element.closest("footer, header, .caption") !== null;
  const drawing = (element) => element.closest("svg mjx-container, mjx-container svg") !== null;
  const elements = [...slide.querySelectorAll("*")].filter((element) => !foot(element) && !drawing(element));
  const style = getComputedStyle(slide);
  const frame = slide.getBoundingClientRect();
  const scale = frame.width / slide.offsetWidth;
  const lowest = frame.bottom - parseFloat(style.paddingBottom) * scale;
  const beyond = 2; // pixels: rounding

  if (slide.scrollHeight > slide.clientHeight || slide.scrollWidth > slide.clientWidth)
    lines.push(`overflows: ${slide.scrollWidth} x ${slide.scrollHeight} in ${slide.clientWidth} x ${slide.clientHeight}`);
  for (const element of elements) {
    const box = element.getBoundingClientRect();
    if (box.width === 0 && box.height === 0) continue;
    if (box.left < frame.left - beyond || box.right > frame.right + beyond || box.top < frame.top - beyond)
      lines.push(`outside the slide: ${name(element)}`);
    else if (box.bottom > lowest + beyond) lines.push(`reaches into the foot: ${name(element)}`);
    if (element.scrollWidth > element.clientWidth + beyond && getComputedStyle(element).display === "block")
      lines.push(`wider than its box: ${name(element)}`);
  }

  // A caption has the foot to itself, which is one line high.
  const caption = slide.querySelector(".caption");
  if (caption && caption.clientHeight > 2 * parseFloat(getComputedStyle(caption).fontSize))
    lines.push(`the caption takes more than a line: ${name(caption)}`);

  // The headline has a fixed place; what follows must begin below it.
  const headline = slide.querySelector("h2");
  if (headline) {
    const bottom = headline.getBoundingClientRect().bottom;
    for (const child of slide.children)
      if (child !== headline && !foot(child) && child.getBoundingClientRect().top < bottom - beyond && child.getBoundingClientRect().height)
        lines.push(`runs into the headline: ${name(child)}`);
  }

  for (const image of images) {
    if (!image.complete || image.naturalWidth === 0) lines.push(`missing picture: ${image.getAttribute("src").slice(0, 60)}`);
    if (!image.alt) lines.push(`a picture without words: ${image.getAttribute("src").slice(0, 60)}`);
  }
  if (slide.querySelector("[data-mml-node=merror], mjx-merror")) lines.push("a formula that MathJax cannot read");
  for (const element of elements) {
    const words = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const size = parseFloat(getComputedStyle(element).fontSize);
    if (words && size < smallest) lines.push(`text of ${size} px: ${name(element)}`);
  }
  return { lines: [...new Set(lines)], text: slide.innerText };
}
