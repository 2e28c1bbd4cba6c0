// A windowed grid: of tens of thousands of pictures only those near the window are in the document.
import { thumbnail } from "./api.js";
import { ratio, returns } from "./store.js";
import { html, signal, useEffect, useLayoutEffect, useRef, useState } from "./view.js";

/** @typedef {import("./api.js").Cell} Cell */
/** @typedef {{pressed?: boolean, kind?: string, mark?: string, caption: import("./view.js").View, name: string}} Look */

const GAP = 12;
const CAPTION = 26;
const OVERSCAN = 2;
/** Room around the cells for the ring of the chosen ones. */
const EDGE = 5;

/** Where one is in a grid, and its shape: what keys need to move about. */
export class Cursor {
  /** @param {number} [place] where one goes on, and gets the focus */
  constructor(place, top = 0) {
    this.place = signal(place ?? 0);
    /** Where a range began. */
    this.anchor = place ?? 0;
    this.columns = 1;
    this.total = 0;
    /** First and end of what is in the document. */
    this.window = [0, 0];
    /** Whether the cell shall get the focus once it is there. */
    this.focus = place !== undefined;
    /** Rises with every wish for the focus, also where one is already. */
    this.wishes = signal(0);
    /** How far the grid is scrolled. */
    this.top = top;
  }

  /** @param {number} step in places */
  move(step) {
    this.set(this.place.value + step);
  }

  /** @param {number} place */
  set(place) {
    this.focus = true;
    this.wishes.value += 1;
    this.place.value = Math.max(0, Math.min(this.total - 1, place));
  }

  /** Keys that move; `extend(from, to)` is called with shift. @param {(from: number, to: number) => void} [extend] @returns {import("./keys.js").Key[]} */
  keys(extend) {
    /** @param {string[]} keys @param {string} says @param {() => number} step */
    const way = (keys, says, step) => ({
      keys: extend ? [...keys, ...keys.map((key) => `shift-${key}`)] : keys,
      says,
      run: (/** @type {KeyboardEvent} */ event) => {
        if (!event.shiftKey) this.anchor = this.place.value + step();
        this.move(step());
        if (event.shiftKey) extend?.(this.anchor, this.place.value);
      },
    });
    return [
      way(["ArrowLeft", "k"], "The picture before", () => -1),
      way(["ArrowRight", "j"], "The next picture", () => 1),
      way(["ArrowUp"], "A row up", () => -this.columns),
      way(["ArrowDown"], "A row down", () => this.columns),
      way(["Home"], "The first picture", () => -this.place.value),
      way(["End"], "The last picture", () => this.total - 1 - this.place.value),
    ];
  }
}

/** Columns, the width of a cell, the height of its picture and that of a row. @param {number} width @param {number} columns */
function shapeOf(width, columns) {
  const side = (width - GAP * (columns - 1)) / columns;
  const tall = Math.round(side * ratio.value);
  return { columns, side, tall, row: tall + CAPTION + GAP };
}

/** Columns of cells at least this wide. @param {number} width @param {number} minimum */
export const columnsOf = (width, minimum) => Math.max(2, Math.floor((width + GAP) / (minimum + GAP)));

/** The largest cells of which so many are seen at once. @param {number} width @param {number} height @param {number} wanted @param {number} shape height by width of their pictures */
function fitAll(width, height, wanted, shape = ratio.value) {
  let best = { columns: 1, side: 0 };
  for (let columns = 1; columns <= wanted; columns++) {
    const room = (height + GAP) / Math.ceil(wanted / columns) - CAPTION - GAP;
    const side = Math.floor(Math.min((width - GAP * (columns - 1)) / columns, room / shape));
    if (side > best.side) best = { columns, side };
  }
  const side = Math.max(64, best.side);
  const tall = Math.floor(side * shape);
  return { columns: best.columns, side, tall, row: tall + CAPTION + GAP };
}

/** How many pictures are seen at once in an element, none of them too small to judge. @param {HTMLElement} area */
export function countOf({ clientWidth, clientHeight }) {
  const [width, height, least] = [clientWidth - (innerWidth < 700 ? 28 : 48), clientHeight - 2 * EDGE, innerWidth < 700 ? 96 : 120];
  for (const wanted of [40, 24, 15, 9]) {
    const { columns, side, row } = fitAll(width, height, wanted);
    if (side >= least) return columns * Math.floor((height + GAP) / row);
  }
  return 4;
}

/**
 * @param {{label: string, total: number, at: (place: number) => Cell | undefined, cursor: Cursor, columns?: (width: number) => number,
 *   look: (cell: Cell, place: number) => Look, onPress: (place: number, event: MouseEvent) => void,
 *   onOpen: (place: number) => void, onWindow?: (first: number, end: number) => void,
 *   onBand?: (places: number[]) => void}} props
 */
export function Grid({ label, total, at, cursor, columns: wanted, look, onPress, onOpen, onWindow, onBand }) {
  const box = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const [size, setSize] = useState({ width: 0, height: 0 });
  const [top, setTop] = useState(0);
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const measure = () => setSize({ width: element.clientWidth - 2 * EDGE, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);

  const alone = total === 1 ? at(0) : null;
  // a list is scrolled; a page is seen at once, and a picture alone as large as it can be
  const { columns, side, tall, row } = wanted
    ? shapeOf(size.width || 1, wanted(size.width || 1))
    : fitAll(size.width, size.height - 2 * EDGE, Math.max(1, total), alone ? alone.height / alone.width : ratio.value);
  const rows = Math.ceil(total / columns);
  const first = Math.max(0, Math.floor(top / row) - OVERSCAN) * columns;
  const end = Math.min(total, (Math.ceil((top + size.height) / row) + OVERSCAN) * columns);
  Object.assign(cursor, { columns, total, window: [first, end] });
  const here = Math.min(cursor.place.value, Math.max(0, total - 1));
  void cursor.wishes.value; // drawn anew, it gives the focus

  useEffect(() => {
    if (size.width) onWindow?.(first, end);
  }, [first, end, onWindow, size.width]);
  useLayoutEffect(() => {
    // back where one was, once it is known how long the list is
    if (total && size.width && box.current) box.current.scrollTop = cursor.top;
  }, [cursor, total > 0, size.width > 0]);
  useLayoutEffect(() => {
    const element = box.current;
    if (!cursor.focus || !element) return;
    const above = Math.floor(here / columns) * row;
    if (above < element.scrollTop) element.scrollTop = above;
    else if (above + row > element.scrollTop + size.height) element.scrollTop = above + row - size.height;
    const cell = /** @type {HTMLElement | null} */ (element.querySelector(`[data-place="${here}"]`));
    cell?.focus({ preventScroll: true });
    if (cell) cursor.focus = false;
  });

  const places = [];
  for (let place = first; place < end; place++) places.push(place);
  // the cell with the focus stays in the document, or the focus would be lost by scrolling
  if (total && (here < first || here >= end)) places.push(here);

  /** @param {PointerEvent} event */
  const band = (event) => onBand && drawBand(event, /** @type {HTMLElement} */ (box.current), { columns, side, row, total }, onBand);
  return html`<div class="grid" data-grid ref=${box} onPointerDown=${band}
    onScroll=${(/** @type {Event} */ event) => {
      const now = (cursor.top = /** @type {HTMLElement} */ (event.currentTarget).scrollTop);
      // painted anew by the row, not by the pixel
      setTop((old) => (Math.floor(old / row) === Math.floor(now / row) ? old : now));
    }}>
    <div class="sheet" role="list" aria-label=${label} style=${{ width: `${columns * (side + GAP) - GAP}px`, height: `${rows * row - GAP}px`, margin: `${EDGE}px auto` }}>
      ${places.map((place) => {
        const x = (place % columns) * (side + GAP);
        const y = Math.floor(place / columns) * row;
        const style = { transform: `translate(${x}px, ${y}px)`, width: `${side}px`, height: `${row - GAP}px` };
        const cell = at(place);
        return html`<div key=${place} class="cell" role="listitem" aria-setsize=${total} aria-posinset=${place + 1} style=${style}>
          ${cell
            ? html`<${Picture} ...${{ cell, place, side, tall, look: look(cell, place), here: place === here, onPress, onOpen }} />`
            : html`<span class="frame" style=${{ height: `${tall}px` }}><span class="photo"></span></span>`}
        </div>`;
      })}
    </div>
  </div>`;
}

/** The small copy, which is kept, where the file is away. @param {{currentTarget: HTMLImageElement}} event */
const smaller = ({ currentTarget: image }) => void (image.src.endsWith("1024") && (image.src = image.src.replace(/1024$/, "256")));

/** @param {{cell: Cell, place: number, side: number, tall: number, look: Look, here: boolean, onPress: (place: number, event: MouseEvent) => void, onOpen: (place: number) => void}} props */
function Picture({ cell, place, side, tall, look, here, onPress, onOpen }) {
  const scale = Math.min(side / cell.width, tall / cell.height);
  const width = Math.round(cell.width * scale);
  const fit = { width: `${width}px`, height: `${Math.round(cell.height * scale)}px` };
  return html`<button class=${`picture ${look.kind ?? ""}`} data-place=${place} tabindex=${here ? 0 : -1}
      aria-pressed=${look.pressed} aria-label=${look.name} onClick=${(/** @type {MouseEvent} */ event) => onPress(place, event)}
      onDblClick=${() => onOpen(place)}>
      <span class="frame" style=${{ height: `${tall}px` }}>
        <span class="photo" style=${fit}>
          <img key=${returns.value} src=${thumbnail(cell.digest, side * devicePixelRatio > 400 ? 1024 : 256)} onError=${smaller} alt="" decoding="async" draggable=${false} />
          ${look.mark && html`<span class="mark" aria-hidden="true">${look.mark}</span>`}
          ${cell.stack > 1 && html`<span class="stack" title=${`${cell.stack} near-duplicates, answered together`}>${cell.stack}</span>`}
        </span>
      </span>
      <span class="caption" style=${{ width: `${Math.max(width, side * 0.75)}px` }}>${look.caption}</span>
    </button>
    <button class="loupe" tabindex="-1" style=${{ right: `${(side - width) / 2 + 5}px` }} aria-label=${`Open ${cell.name}`} title="Open (Enter)" onClick=${() => onOpen(place)}>⤢</button>`;
}

/**
 * A rubber band: pictures under the rectangle that a mouse drags.
 * @param {PointerEvent} down @param {HTMLElement} box @param {{columns: number, side: number, row: number, total: number}} shape
 * @param {(places: number[]) => void} done
 */
function drawBand(down, box, shape, done) {
  if (down.pointerType !== "mouse" || down.button !== 0 || down.offsetX > box.clientWidth) return;
  const sheet = /** @type {HTMLElement} */ (box.firstElementChild);
  const inside = (/** @type {MouseEvent} */ event) => {
    const frame = sheet.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  };
  const from = inside(down);
  /** @type {HTMLElement | null} */
  let drawn = null;
  /** @type {number[]} */
  let places = [];
  /** @param {PointerEvent} event */
  const drag = (event) => {
    const to = inside(event);
    if (!drawn && Math.hypot(to.x - from.x, to.y - from.y) < 8) return;
    if (!drawn) {
      drawn = sheet.appendChild(document.createElement("div"));
      drawn.className = "band";
    }
    const [left, right] = [Math.min(from.x, to.x), Math.max(from.x, to.x)];
    const [top, bottom] = [Math.min(from.y, to.y), Math.max(from.y, to.y)];
    Object.assign(drawn.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    places = [];
    for (let line = Math.max(0, Math.floor(top / shape.row)); line <= Math.floor(bottom / shape.row); line++)
      for (let column = 0; column < shape.columns; column++) {
        const x = column * (shape.side + GAP);
        const place = line * shape.columns + column;
        if (x < right && x + shape.side > left && place < shape.total) places.push(place);
      }
    const frame = box.getBoundingClientRect();
    if (event.clientY > frame.bottom - 24) box.scrollTop += 24;
    if (event.clientY < frame.top + 24) box.scrollTop -= 24;
  };
  const stop = () => {
    removeEventListener("pointermove", drag);
    removeEventListener("pointerup", stop);
    if (!drawn) return;
    drawn.remove();
    // the click that ends a drag is not meant; one that ends outside of the window has none
    const swallow = (/** @type {Event} */ event) => event.stopPropagation();
    addEventListener("click", swallow, { capture: true });
    setTimeout(() => {
      removeEventListener("click", swallow, { capture: true });
      done(places);
    });
  };
  addEventListener("pointermove", drag);
  addEventListener("pointerup", stop);
}
