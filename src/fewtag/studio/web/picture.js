// Picture: one picture, every label, where each is seen and why.
import * as api from "./api.js";
import { latin, useKeys } from "./keys.js";
import { percent, plural } from "./library.js";
import * as store from "./store.js";
import { html, useEffect, useLayoutEffect, useRef, useSignal, useState } from "./view.js";

const NEXT = /** @type {const} */ ({ yes: "no", no: "unknown", unknown: "yes" });
const VERDICTS = /** @type {[Verdict, string][]} */ ([["yes", "✓"], ["no", "✗"], ["unknown", "?"]]);

/** @typedef {import("./api.js").Verdict} Verdict */

export function Picture() {
  const { name: digest, query } = store.route.value;
  const detail = useSignal(/** @type {api.Detail | null} */ (null));
  const unknown = useSignal("");
  const chosen = useSignal(query.get("label") ?? "");
  const heated = useSignal(false);
  /** How often an answer was given here. */
  const said = useRef(0);
  const box = useSignal(/** @type {number[] | null} */ (null));
  const stage = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  useLayoutEffect(() => {
    box.value = null;
    // what had the focus is gone: a cell of the list, or a label's button of the picture before
    if (document.activeElement === document.body) stage.current?.focus({ preventScroll: true });
  }, [digest]);
  useEffect(() => {
    let late = false;
    const ask = async (again = false) => {
      const refused = (/** @type {string} */ sentence, /** @type {number} */ status) => {
        if (late) return;
        if (status === 422 || /no picture/.test(sentence)) unknown.value = digest;
        else if (status === 404 && !again) ask(true); // a label went while it was looked at: an undo
        else store.say(sentence, { bad: true });
      };
      const [then, waiting] = [said.current, detail.value?.digest === digest && store.unsent.value.length];
      const got = await store.attempt(() => api.getPicture(digest), refused);
      // what was said meanwhile is newer, and is asked for again once the server has it
      if (!got || late || waiting || said.current !== then || store.unsent.value.length) return;
      // rows do not change places under one's hands: the next click is meant for what is there
      const rows = detail.value?.digest === digest ? detail.value.labels.map((row) => row.label) : [];
      got.labels.sort((one, other) => rows.indexOf(one.label) - rows.indexOf(other.label));
      detail.value = got;
      unknown.value = "";
      store.pictureName.value = got.name;
      if (!rows.length) store.announcement.value = `${got.name}: ${got.would_write.join(", ") || "no tags"}`;
    };
    ask();
    return () => void (late = true);
  }, [digest, store.version.value, store.returns.value, store.unsent.value.length === 0]);
  useEffect(() => {
    const up = (/** @type {KeyboardEvent} */ event) => latin(event) === "h" && (heated.value = false);
    addEventListener("keyup", up);
    return () => removeEventListener("keyup", up);
  }, []);

  const shown = detail.value?.digest === digest ? detail.value : null;
  const rows = shown?.labels ?? [];
  const here = rows.find((row) => row.label === chosen.value) ?? rows[0];
  /** @param {string} label @param {Verdict} verdict */
  const answer = (label, verdict) => {
    if (!shown) return;
    detail.value = { ...shown, labels: rows.map((row) => (row.label === label ? { ...row, answer: verdict } : row)) };
    store.announcement.value = `${label}: ${verdict}`;
    said.current += 1;
    store.answer([{ picture: digest, label, answer: verdict }]);
  };
  /** @param {number} step */
  const walk = async (step) => {
    const before = store.walk.value;
    const place = before.place + step;
    if (place < 0 || place >= before.total) return;
    await before.need?.(place);
    const next = before.at(place);
    if (!next || store.walk.value !== before) return;
    store.walk.value = { ...before, place };
    location.replace(store.address("picture", next, { label: chosen.value }));
    before.need?.(place + step); // so that the next step waits for nothing
  };
  /** @param {number} step */
  const pick = (step) => {
    const place = rows.findIndex((row) => row.label === here?.label) + step;
    const row = rows[place];
    if (!row) return;
    chosen.value = row.label;
    store.announcement.value = `${row.label}: ${percent(row.p)}${row.answer ? `, ${row.answer}` : ""}`;
    document.querySelectorAll(".belief")[place]?.scrollIntoView({ block: "nearest" });
  };
  const back = () => (location.hash = store.walk.value.back);
  const likeThis = () => store.go("library", "", { like: digest, box: box.value?.map((each) => each.toFixed(3)).join(",") });
  useKeys([
    { keys: ["ArrowLeft", "k"], says: "The picture before", run: () => walk(-1) },
    { keys: ["ArrowRight", "j"], says: "The next picture", run: () => walk(1) },
    { keys: ["ArrowUp"], says: "The label above", run: () => pick(-1) },
    { keys: ["ArrowDown"], says: "The label below", run: () => pick(1) },
    { keys: ["1", "2", "3", "4", "5", "6", "7", "8", "9"], says: "Yes, no, unknown for the label of that number", run: (event) => {
      const row = rows.find((each) => each.label === store.labelNames.value[Number(latin(event)) - 1]);
      if (row) answer(row.label, row.answer ? NEXT[row.answer] : "yes");
    } },
    { keys: ["a"], says: "Yes for the label that is marked", run: () => here && answer(here.label, "yes") },
    { keys: ["x"], says: "No for it", run: () => here && answer(here.label, "no") },
    { keys: ["Space"], says: "Unknown", run: () => here && answer(here.label, "unknown") },
    { keys: ["h"], says: "Hold: where the label is seen", run: () => (heated.value = true) },
    { keys: ["g"], says: "More like this picture, or like the part that is drawn", run: likeThis },
    { keys: ["n"], says: "New label from this picture", run: () => store.ask("new") },
    { keys: ["Escape"], says: "Back to the list", run: () => (box.value ? (box.value = null) : back()) },
  ]);

  if (unknown.value === digest)
    return html`<main class="nothing"><h1>There is no such picture</h1><p>It was moved or deleted since, or the address is wrong. <a href="#/">See all pictures</a></p></main>`;
  return html`<main class="single">
    <section class="stage" aria-label="The picture" tabindex="-1" ref=${stage}>
      <nav class="walk" aria-label="Pictures of the list">
        <a class="button plain" href=${store.walk.value.back}>← Back</a>
        <button class="plain" aria-label="The picture before" disabled=${store.walk.value.place <= 0} onClick=${() => walk(-1)}>‹</button>
        <span class="dim">${store.walk.value.at(store.walk.value.place) === digest && `${store.number(store.walk.value.place + 1)} of ${store.number(store.walk.value.total)}`}</span>
        <button class="plain" aria-label="The next picture" disabled=${store.walk.value.place + 1 >= store.walk.value.total} onClick=${() => walk(1)}>›</button>
        <span class="space"></span>
        <button aria-pressed=${heated.value} onClick=${() => (heated.value = !heated.value)} disabled=${!here}>Heat-map<kbd>h</kbd></button>
        <button onClick=${likeThis}>${box.value ? "Like this part" : "Like this"}<kbd>g</kbd></button>
      </nav>
      <${Stage} digest=${digest} detail=${shown} heat=${heated.value && here ? here.label : ""} box=${box} />
    </section>
    <aside class="rail" aria-label="Labels of the picture">
      ${shown && html`<h1 title=${shown.name}>${shown.name.split("/").at(-1)}</h1>
        ${rows.length === 0 && html`<p class="dim">${store.labelNames.value.length ? "No label has a word or an example yet. Give this picture one by its name:" : "No labels yet. Name what this picture shows:"}</p>`}
        <ul class="beliefs">${rows.map((row) => html`<li key=${row.label}><${Belief} ...${{ row, number: store.labelNames.value.indexOf(row.label) + 1, here: row === here, answer }}
          point=${(/** @type {boolean} */ on) => {
            chosen.value = row.label;
            heated.value = on;
          }} /></li>`)}</ul>
        <button onClick=${() => store.ask("new")}>New label<kbd>n</kbd></button>
        ${here && here.because.length > 0 && html`<h2>“${here.label}” because of</h2>
          <ul class="strip">${here.because.map((each) => html`<li key=${each.digest}><a href=${store.address("picture", each.digest, { label: here.label })}>
            <img src=${api.thumbnail(each.digest)} alt=${`Example that speaks for ${here.label}`} /></a><span class="weight">${percent(each.weight)}</span></li>`)}</ul>`}
        ${shown.stack.length > 0 && html`<h2>${shown.stack.length + 1} near-duplicates, answered together in lists</h2>
          <ul class="strip">${[digest, ...shown.stack].map((each) => html`<li key=${each}><a href=${store.address("picture", each)} aria-current=${each === digest ? "true" : "false"}>
            <img src=${api.thumbnail(each)} alt=${each === digest ? "This picture" : "A near-duplicate"} /></a></li>`)}</ul>`}
        <h2>Would be written</h2>
        <p class="written">${shown.would_write.length ? shown.would_write.map((each) => html`<span class="chip" key=${each}>${each}</span>`) : html`<span class="dim">nothing</span>`}</p>
        <p class="dim path">${shown.path}<br />${shown.width} × ${shown.height}${shown.taken && ` · ${shown.taken.replace("T", " ")}`} · ${shown.bytes < 1e6 ? `${Math.ceil(shown.bytes / 1e3)} KB` : `${(shown.bytes / 1e6).toFixed(1)} MB`}</p>`}
    </aside>
  </main>`;
}

/** @param {{row: api.Belief, number: number, here: boolean, answer: (label: string, verdict: Verdict) => void, point: (on: boolean) => void}} props */
function Belief({ row, number, here, answer, point }) {
  const now = row.answer ?? null;
  return html`<div class=${`belief ${here ? "here" : ""} ${row.p >= row.threshold ? "over" : ""}`} onPointerEnter=${(/** @type {PointerEvent} */ event) => event.pointerType === "mouse" && point(true)}
    onPointerLeave=${(/** @type {PointerEvent} */ event) => event.pointerType === "mouse" && point(false)} onFocusIn=${() => point(false)}>
    <span class="key" aria-hidden="true">${number > 0 && number < 10 ? number : ""}</span>
    <span class="what"><span class="name" title=${row.label}>${store.shortName(row.label)}</span>
      <span class="p">${percent(row.p)}</span>
      <span class="meter" role="meter" aria-label=${`Probability of ${row.label}`} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(100 * row.p)}>
        <span class="full" style=${{ width: percent(row.p).replace(" ", "") }}></span><span class="tick" style=${{ left: percent(row.threshold).replace(" ", "") }}></span></span></span>
    <span class="verdict" role="group" aria-label=${row.label}>${VERDICTS.map(([verdict, sign]) => html`<button key=${verdict} class=${verdict} aria-pressed=${now === verdict}
      aria-label=${`${row.label}: ${verdict}`} title=${verdict} onClick=${() => answer(row.label, verdict)}>${sign}</button>`)}</span>
  </div>`;
}

/** The picture with its heat-map; a mouse or a finger draws a part to search for. @param {{digest: string, detail: api.Detail | null, heat: string, box: import("./view.js").Signal<number[] | null>}} props */
function Stage({ digest, detail, heat, box }) {
  const frame = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  /** @param {PointerEvent} down */
  const draw = (down) => {
    const element = /** @type {HTMLElement} */ (frame.current);
    if (down.button !== 0) return;
    down.preventDefault();
    element.setPointerCapture(down.pointerId);
    const inside = (/** @type {PointerEvent} */ event) => {
      const edge = element.getBoundingClientRect();
      return [(event.clientX - edge.left) / edge.width, (event.clientY - edge.top) / edge.height].map((each) => Math.min(1, Math.max(0, each)));
    };
    const from = inside(down);
    const drag = (/** @type {PointerEvent} */ event) => {
      const to = inside(event);
      const drawn = [Math.min(from[0], to[0]), Math.min(from[1], to[1]), Math.max(from[0], to[0]), Math.max(from[1], to[1])];
      box.value = drawn[2] - drawn[0] > 0.03 && drawn[3] - drawn[1] > 0.03 ? drawn : null;
    };
    const stop = () => {
      element.removeEventListener("pointermove", drag);
      for (const end of ["pointerup", "pointercancel"]) element.removeEventListener(end, stop);
    };
    box.value = null;
    element.addEventListener("pointermove", drag);
    // two fingers zoom instead
    for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, stop);
  };
  // a first glance at once, the map behind it
  const [ready, setReady] = useState("");
  const [lost, setLost] = useState("");
  const wanted = heat && api.heat(digest, heat, false);
  useEffect(() => {
    const image = new Image();
    image.onload = () => setReady(wanted);
    if (wanted) image.src = wanted;
    return () => {
      image.onload = null;
      image.src = ""; // browsers give six connections: maps that nobody waits for would hold up answers
    };
  }, [wanted]);
  const part = box.value;
  const at = (/** @type {number} */ share) => `${(100 * share).toFixed(2)}%`;
  return html`<div class="stand">
    <div class="canvas" ref=${frame} onPointerDown=${draw} style=${{ aspectRatio: detail ? `${detail.width} / ${detail.height}` : "4 / 3", "--ratio": detail ? `${detail.width / detail.height}` : "1.333" }}>
      <img key=${store.returns.value} src=${api.thumbnail(digest, lost === digest ? 256 : 1024)} onError=${() => setLost(digest)} alt=${detail ? `${detail.name}: ${detail.would_write.join(", ") || "no tags"}` : "Loading"} draggable=${false} />
      ${heat && html`<img class="heat" src=${ready === wanted ? wanted : api.heat(digest, heat, true)} alt=${`Where ${heat} is seen`} draggable=${false} />`}
      ${part && html`<span class="part" style=${{ left: at(part[0]), top: at(part[1]), width: at(part[2] - part[0]), height: at(part[3] - part[1]) }}></span>`}
    </div>
    <p class="dim hint">${lost === digest ? "The file cannot be read just now: this is its thumbnail" : heat ? (ready === wanted ? `Where “${heat}” is seen` : `A first glance at “${heat}”…`) : part ? "Press g to find pictures like this part" : "Drag over a part of the picture to find more like it"}</p>
  </div>`;
}
