// Library: see, search, select, teach.
import { Cursor, Grid, columnsOf } from "./grid.js";
import { useKeys } from "./keys.js";
import * as store from "./store.js";
import { effect, html, signal, useEffect, useLayoutEffect, useMemo, useRef } from "./view.js";
import { digests as digestsOf, thumbnail } from "./api.js";

/** What is selected, by digest, in the order of selecting. @type {import("./view.js").Signal<Set<string>>} */
export const selection = signal(new Set());
/** The list that is shown. @type {import("./view.js").Signal<store.Listing | null>} */
export const listing = signal(/** @type {store.Listing | null} */ (null));

/** The search that this was selected in. */
let selectedIn = "";

export const percent = (/** @type {number} */ p) => `${Math.round(100 * p)} %`;
export const plural = (/** @type {number} */ n, one = "picture") => `${store.number(n)} ${one}${n === 1 ? "" : "s"}`;

/** How far the pictures are read, while they are. */
export const reading = () => {
  const project = store.project.value;
  return project?.indexing && `${store.number(project.indexed + project.failures)} of ${store.number(project.pictures)}`;
};

/** The one label that the list is of, if it is of one. */
export function labelOfList() {
  const named = (listing.value?.means.value ?? []).filter((mean) => mean.as === "label" && !mean.text.startsWith("-"));
  // a name in the box may be short for a path, or stand for all labels under it
  return named.length === 1 && store.labelNames.value.includes(named[0].detail) ? named[0].detail : "";
}

/** A word that was never taught, or a likeness, ranks pictures but promises no probability. */
const promised = () => !(listing.value?.means.value ?? []).some((mean) => mean.as === "word" || mean.as === "like");

/** Says yes or no of all that is selected, or of the picture under the cursor. @param {string} label @param {import("./api.js").Verdict} verdict @param {string[]} digests */
export async function answerFor(label, verdict, digests) {
  if (!digests.length) return;
  listing.value?.mark(digests, label, verdict);
  const what = { yes: `“${label}”`, no: `not “${label}”`, unknown: `“${label}” open` }[verdict];
  // one cell stands for its stack; the open picture speaks for itself alone
  const stack = store.route.value.screen === "library";
  const gesture = store.answer(digests.map((picture) => ({ picture, label, answer: verdict, stack })));
  if (await gesture.taken) store.say(`${plural(gesture.pictures)}: ${what}.`, { action: { text: "Undo", run: () => store.takeBack(gesture) } });
}

const columns = (/** @type {number} */ width) => columnsOf(width, width < 600 ? 104 : Math.max(168, width / 10));

/** @param {import("./api.js").Cell} cell @returns {import("./grid.js").Look} */
function look(cell) {
  const label = labelOfList();
  // the label that the list is of comes first
  const shown = cell.tags.filter((tag) => tag.state !== "no").sort((one, other) => Number(other.label === label) - Number(one.label === label));
  const names = shown.map((tag) => (tag.state === "yes" ? `${tag.label}, confirmed` : tag.label)).join("; ");
  const pressed = selection.value.has(cell.digest);
  return {
    pressed,
    kind: pressed ? "chosen" : "",
    mark: pressed ? "✓" : "",
    name: `${cell.name}${names ? `: ${names}` : ", no tags"}${cell.p !== null && promised() ? `, ${percent(cell.p)}` : ""}`,
    caption: html`<span class="tags">${shown.map((tag) => html`<span class=${tag.state}>${store.shortName(tag.label)}</span>`)}</span>
      ${cell.p !== null && promised() && html`<span class="p">${percent(cell.p)}</span>`}`,
  };
}

export function Library() {
  const { query } = store.route.value;
  const wanted = ["q", "like", "box"].map((key) => query.get(key) ?? "");
  const key = wanted.join("\n");
  const cursor = useMemo(() => {
    const { back, place, top } = store.walk.value;
    // back from a picture, one goes on from it
    return store.cameFrom === "picture" && back === location.hash ? new Cursor(place, top) : new Cursor();
  }, [key]);
  const list = useMemo(() => {
    const [text, like, box] = wanted;
    return new store.Listing({ query: text, like: like || undefined, box: box ? box.split(",").map(Number) : undefined, stacked: true });
  }, [key]);
  useEffect(() => {
    listing.value = list;
    // a look at a picture, and back, keeps it
    if (key !== selectedIn) selection.value = new Set();
    selectedIn = key;
    list.need(0, 1);
  }, [list]);
  useRefresh(list, cursor);
  // not before the project is known, and with it whether there is a hint above them: a click would miss what moves
  const total = store.project.value && list.total.value;
  useLayoutEffect(() => {
    // what had the focus is gone: the screen before, or the list
    if (total && store.cameFrom && document.activeElement === document.body) cursor.set(cursor.place.value);
  }, [list, Boolean(total)]);
  const window_ = useMemo(() => (/** @type {number} */ first, /** @type {number} */ end) => void list.need(first, end), [list]);

  /** @param {Iterable<number>} places @param {boolean} on */
  const choose = (places, on = true) => {
    const chosen = new Set(selection.value);
    for (const place of places) {
      const cell = list.at(place);
      if (cell) on ? chosen.add(cell.digest) : chosen.delete(cell.digest);
    }
    selection.value = chosen;
  };
  /** @param {number} from @param {number} to */
  const range = async (from, to) => {
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    const found = await list.readOn(low, high + 1);
    if (listing.value === list) selection.value = new Set([...selection.value, ...found]);
  };
  const all = async () => {
    const found = await store.attempt(() => digestsOf(list.wanted));
    if (found && listing.value === list) selection.value = new Set(found.digests);
  };
  /** @param {number} place @param {MouseEvent} event */
  const press = (place, event) => {
    const cell = list.at(place);
    cursor.set(place);
    if (event.shiftKey) return void range(cursor.anchor, place);
    cursor.anchor = place;
    if (cell) choose([place], !selection.value.has(cell.digest));
  };
  /** @param {number} place */
  const open = (place) => {
    const cell = list.at(place);
    if (!cell) return;
    store.walk.value = { at: (step) => list.at(step)?.digest, need: (step) => list.need(step, step + 1), total: total ?? 0, place, back: location.hash, top: cursor.top };
    store.go("picture", cell.digest);
  };
  const chosen = () => (selection.value.size ? [...selection.value] : [list.at(cursor.place.value)?.digest ?? ""].filter(Boolean));
  /** @param {import("./api.js").Verdict} verdict */
  const answer = (verdict) => {
    const label = labelOfList();
    if (label) answerFor(label, verdict, chosen());
    else if (verdict === "unknown") cursor.move(1);
    else store.ask(verdict === "yes" ? "tag" : "refuse");
  };
  useKeys([
    ...cursor.keys(range),
    { keys: ["Space"], says: "Select, or let go", run: () => press(cursor.place.value, new MouseEvent("click")) },
    { keys: ["ctrl-a"], says: "Select all", run: all },
    { keys: ["Escape"], says: "Select nothing, or show all", run: () => (selection.value.size ? (selection.value = new Set()) : key.trim() && store.go("library")) },
    { keys: ["Enter"], says: "Open the picture", run: () => open(cursor.place.value) },
    { keys: ["a"], says: "Yes: the label searched for is there", run: () => answer("yes") },
    { keys: ["x"], says: "No: not this label", run: () => answer("no") },
    { keys: ["t"], says: "Tag what is selected", run: () => store.ask("tag") },
    { keys: ["n"], says: "New label from what is selected", run: () => store.ask("new") },
    { keys: ["g"], says: "More like this picture", run: () => chosen().length && store.go("library", "", { like: chosen()[0] }) },
    { keys: ["r"], says: "Review the label searched for", run: () => (labelOfList() ? store.go("review", labelOfList()) : store.say("Search for a label first: r reviews that one.")) },
  ]);

  return html`<main class="library">
    <${Heading} list=${list} query=${query} total=${total} />
    ${store.project.value?.labels === 0 && Boolean(total) && html`<p class="enough">Click a picture that shows something, then give it a name: that is a label, and it finds more of the kind.</p>`}
    ${total === 0
      ? html`<${Nothing} query=${query} refusal=${list.refusal.value} />`
      : html`<${Grid} label="Pictures" total=${total ?? 0} at=${(/** @type {number} */ place) => list.at(place)} cursor=${cursor}
          columns=${columns} look=${look} onPress=${press} onOpen=${open} onWindow=${window_}
          onBand=${(/** @type {number[]} */ places) => choose(places)} />`}
    ${selection.value.size > 0 && html`<${SelectionBar} ...${{ open: () => open(cursor.place.value), answer }} />`}
  </main>`;
}

/** New pictures are shown while they are indexed, and what was changed elsewhere; never under the hands of someone who selects. @param {store.Listing} list @param {Cursor} cursor */
function useRefresh(list, cursor) {
  const last = useRef(0);
  // the labels of a studio that was just started come after its pictures
  const news = `${store.project.value?.files} ${store.elsewhere.value} ${store.labels.value?.length ?? 0} ${store.returns.value}`;
  useEffect(() => {
    list.shown ??= news;
    if (list.shown === news || selection.value.size) return;
    const wait = setTimeout(() => {
      last.current = Date.now();
      list.shown = news;
      list.refresh(cursor.window[0], cursor.window[1]);
    }, Math.max(150, 1500 - (Date.now() - last.current)));
    return () => clearTimeout(wait);
  }, [news, list, selection.value.size > 0]);
  // keys mean the picture that one looks at, wherever it is by now; at the top one waits for what is best
  useEffect(() => {
    let [place, held] = [0, /** @type {string | undefined} */ (undefined)];
    return effect(() => {
      const here = cursor.place.value;
      const now = here && here === place && list.at(here)?.digest !== held ? list.placeOf(held) : -1;
      if (now >= 0 && here >= cursor.window[0] && here < cursor.window[1]) {
        cursor.focus = Boolean(document.activeElement?.closest("[data-grid]"));
        cursor.anchor = cursor.place.value = now;
      }
      [place, held] = [cursor.place.value, list.at(cursor.place.value)?.digest];
    });
  }, [list, cursor]);
}

/** @param {{list: store.Listing, query: URLSearchParams, total: number | null}} props */
function Heading({ list, query, total }) {
  const label = labelOfList();
  const row = (store.labels.value ?? []).find((each) => each.name === label);
  const words = list.means.value.filter((mean) => mean.as === "word").map((mean) => mean.text.replace(/^-|"/g, ""));
  const like = query.get("like");
  const box = query.get("box");
  const only = label && query.get("q") === store.quoted(label);
  return html`<header class="heading">
    ${like && html`<img class="small" src=${thumbnail(like)} alt="The picture that others are compared with" />`}
    <h1>${like ? (box ? "Like this part" : "Like this picture") : only ? label : query.get("q") || "All pictures"}</h1>
    <p aria-live="polite">
      ${total === null ? (store.project.value ? "Searching…" : "Opening…") : !list.refusal.value && plural(list.members)}${total !== null && list.members > total && ` · ${store.number(list.members - total)} in stacks`}
      ${reading() && html`<span aria-live="off"> · reading ${reading()}</span>`}
      ${only && row?.expected_precision != null && html` · expected precision ${percent(row.expected_precision)}`}
      ${list.means.value.filter((mean) => mean.as === "name" && mean.detail).map((mean) => html` · “${mean.text}” is no known word: looked for in the names of files`)}
      ${words.length > 0 && `, ranked by ${words.map((word) => `“${word}”`).join(", ")}, not a label yet`}
    </p>
    ${words.length === 1 && !label && html`<button onClick=${() => store.ask("new", words[0])}>Make “${words[0]}” a label</button>`}
    ${(like || query.get("q")) && html`<a class="button" href="#/">Show all</a>`}
    ${row && html`<a class="button primary" href=${store.address("review", label)}>Review ${row.waiting ? plural(row.waiting, "unsure one") : ""}</a>`}
  </header>`;
}

/** @param {{open: () => void, answer: (verdict: import("./api.js").Verdict) => void}} props */
function SelectionBar({ open, answer }) {
  const size = selection.value.size;
  const label = labelOfList();
  return html`<div class="bar" role="toolbar" aria-label="What to do with the selection">
    <strong aria-live="polite">${store.number(size)} selected</strong>
    ${label && html`<button class="primary" onClick=${() => answer("yes")}>✓ ${label}<kbd>a</kbd></button>
      <button onClick=${() => answer("no")}>✗ Not ${label}<kbd>x</kbd></button>`}
    <button class=${label ? "" : "primary"} onClick=${() => store.ask("new")}>New label<kbd>n</kbd></button>
    <button onClick=${() => store.ask("tag")}>Tag<kbd>t</kbd></button>
    ${!label && store.labelNames.value.length > 0 && html`<button onClick=${() => store.ask("refuse")}>Not this<kbd>x</kbd></button>`}
    ${size === 1 && html`<button onClick=${() => store.go("library", "", { like: [...selection.value][0] })}>Like this<kbd>g</kbd></button>
      <button onClick=${open}>Open<kbd>⏎</kbd></button>`}
    <button class="plain" aria-label="Select nothing" title="Select nothing (Esc)" onClick=${() => (selection.value = new Set())}>×</button>
  </div>`;
}

/** @param {{query: URLSearchParams, refusal: string}} props */
function Nothing({ query, refusal }) {
  const project = store.project.value;
  const label = labelOfList();
  if (refusal) return html`<div class="nothing" role="alert"><h2>This cannot be searched for</h2><p>${refusal}</p></div>`;
  if (label && query.get("q") === store.quoted(label))
    return html`<div class="nothing"><h2>No picture is tagged “${label}” yet</h2><p><a href=${store.address("review", label)}>Answer some questions about it</a>, and it learns what to look for.</p></div>`;
  if (query.get("q") || query.get("like"))
    return html`<div class="nothing"><h2>Nothing found</h2><p>Try a word for the thing, such as <em>bicycle</em>, or look at <a href="#/">all pictures</a>.</p></div>`;
  if (project?.indexing)
    return html`<div class="nothing"><h2>Reading your pictures</h2><p>The first ones appear here in a moment; you can work while the rest comes.</p></div>`;
  if (project?.folders.length)
    return html`<div class="nothing"><h2>No pictures yet</h2><p>There is none in ${project.folders.join(", ")}. What is put there appears here within a minute or two.</p></div>`;
  return html`<div class="nothing"><h2>No pictures yet</h2><p>Start the studio with the folder that holds them:</p><p><code>fewtag studio PROJECT PICTURES</code></p></div>`;
}
