// What is wrong with a page for eyes and for a screen reader: pictures without text, controls without a name, faint text.
() => {
  const wrong = [];
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  for (const image of document.images) if (!image.hasAttribute("alt")) wrong.push(`no alt: ${image.src}`);
  for (const element of document.querySelectorAll("button, a, input, [role=meter]")) {
    const label = element.labels?.[0]?.textContent ?? "";
    const name = element.getAttribute("aria-label") ?? element.textContent + label + (element.title ?? "") + (element.querySelector("img")?.alt ?? "");
    if (!name.trim()) wrong.push(`no name: ${element.outerHTML}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size !== ids.length) wrong.push(`ids twice: ${ids}`);
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const painted = (colours, opacity = 1) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const [place, colour] of colours.entries()) {
      canvas.globalAlpha = place === colours.length - 1 ? opacity : 1;
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((each) => each / 255).map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !shown(element) || element.closest(":disabled, .unseen, script, noscript, option")) continue;
    const behind = [];
    let opacity = 1;
    for (let each = element; each; each = each.parentElement) {
      behind.unshift(getComputedStyle(each).backgroundColor);
      opacity *= Number(getComputedStyle(each).opacity);
      if (each.tagName === "DIALOG") break;
    }
    const ground = painted(behind);
    const ink = painted([...behind, getComputedStyle(element).color], opacity);
    const [high, low] = [light(ground.slice(0, 3)), light(ink.slice(0, 3))].sort((one, other) => other - one);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) wrong.push(`contrast ${contrast.toFixed(2)}: ${walker.currentNode.data.trim().slice(0, 40)} (${element.className})`);
  }
  return wrong;
}
